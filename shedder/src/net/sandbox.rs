//! A network namespace for one test.

use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test` on a thread of its own in a fresh network namespace whose `lo` is up. The namespace ends with
/// the thread and the sockets that it opened.
pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            #[expect(unsafe_code, reason = "rustix marks every kind of unshare unsafe")]
            // SAFETY: NEWNET touches neither memory nor descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("these tests need root");
            ip("link set lo up");
            test()
        });
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `ip` with these arguments in the namespace of the calling thread.
pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

/// As [`ip`].
pub(crate) fn tc(arguments: &str) {
    run("tc", arguments);
}

fn run(command: &str, arguments: &str) {
    let output = Command::new(command).args(arguments.split(' ')).output().expect("iproute2");
    assert!(output.status.success(), "{command} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

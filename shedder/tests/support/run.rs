//! Running verbs and commands to their end.

use std::path::Path;
use std::process::{Command, Output};

use xtask::testbed::Namespace;

use super::SHEDDER;

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Told {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Told {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// `shedder` with these arguments.
pub fn shedder(arguments: &[&str]) -> Told {
    Command::new(SHEDDER).args(arguments).output().unwrap().into()
}

/// `shedder` with these arguments, within a namespace.
pub fn shedder_in(namespace: &Namespace, arguments: &[&str]) -> Told {
    namespace.output(Command::new(SHEDDER).args(arguments)).unwrap().into()
}

/// `shedder unload` for the configuration in a file.
pub fn unload(config: &Path) -> Told {
    shedder(&["unload", "--config", config.to_str().unwrap()])
}

/// A command that must succeed; its output.
pub fn must(command: &str) -> String {
    let mut words = command.split_whitespace();
    let told: Told = Command::new(words.next().unwrap()).args(words).output().unwrap().into();
    assert_eq!(told.code, Some(0), "{command}: {told:?}");
    told.stdout
}

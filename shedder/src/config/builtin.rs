//! The signals that shedder reads by itself, with their default thresholds.

use std::time::Duration;

use shedder_common::level::LEVELS;

use super::model::{LevelRules, PsiResource, PsiWindow, Signal, SignalSource, Threshold};

/// Time over which a PSI signal is measured where the file does not say.
const WINDOW: PsiWindow = PsiWindow::Over(Duration::from_secs(1));

/// A signal that needs no `source`.
pub(super) struct Builtin {
    pub(super) name: &'static str,
    pub(super) source: SignalSource,
    /// Without any, the signal is read only where the file names it.
    pub(super) thresholds: [Option<Threshold>; LEVELS],
}

/// In the order in which signals are shown.
pub(super) static BUILTIN: [Builtin; 12] = [
    psi(
        "psi_memory_some",
        PsiResource::Memory,
        false,
        [above(10.0, 5.0), above(25.0, 15.0), above(50.0, 30.0)],
    ),
    psi("psi_memory_full", PsiResource::Memory, true, [above(2.0, 1.0), above(10.0, 5.0), above(30.0, 15.0)]),
    psi("psi_io_some", PsiResource::Io, false, [None, None, None]),
    psi("psi_io_full", PsiResource::Io, true, [above(20.0, 10.0), above(40.0, 25.0), None]),
    psi("psi_cpu_some", PsiResource::Cpu, false, [above(80.0, 60.0), None, None]),
    psi("psi_cpu_full", PsiResource::Cpu, true, [None, None, None]),
    signal("memory", SignalSource::Memory, [above(0.92, 0.88), above(0.95, 0.90), above(0.98, 0.93)]),
    signal("fds", SignalSource::Fds, [above(0.80, 0.70), above(0.90, 0.80), above(0.97, 0.90)]),
    signal("accept_queue", SignalSource::AcceptQueue, [above(0.50, 0.25), None, None]),
    signal("conntrack", SignalSource::Conntrack, [above(0.80, 0.70), above(0.90, 0.80), above(0.97, 0.90)]),
    signal("tcp_mem", SignalSource::TcpMem, [above(0.80, 0.70), above(0.95, 0.85), above(1.0, 0.95)]),
    signal("listen_overflows", SignalSource::ListenOverflows, [above(1.0, 0.0), None, None]),
];

/// The signals that are read although no file names them.
pub(super) fn defaults(levels: &LevelRules) -> Vec<Signal> {
    BUILTIN.iter().filter(|builtin| builtin.is_default()).map(|builtin| builtin.signal(levels)).collect()
}

/// The built-in signal of that name.
pub(super) fn find(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|builtin| builtin.name == name)
}

impl Builtin {
    /// Whether it is read although no file names it.
    pub(super) fn is_default(&self) -> bool {
        self.thresholds.iter().any(Option::is_some)
    }

    pub(super) fn signal(&self, levels: &LevelRules) -> Signal {
        Signal {
            name: self.name.to_owned(),
            source: self.source.clone(),
            enabled: true,
            thresholds: self.thresholds,
            rise_after: Duration::ZERO,
            stale_after: levels.stale_after,
            on_loss: levels.on_loss,
        }
    }
}

const fn above(enter: f64, exit: f64) -> Option<Threshold> {
    Some(Threshold { enter, exit })
}

const fn psi(
    name: &'static str,
    resource: PsiResource,
    full: bool,
    thresholds: [Option<Threshold>; LEVELS - 1],
) -> Builtin {
    signal(name, SignalSource::Psi { resource, full, window: WINDOW }, thresholds)
}

/// `thresholds` of moderate, high and emergency; nothing demands `normal`.
const fn signal(
    name: &'static str,
    source: SignalSource,
    [moderate, high, emergency]: [Option<Threshold>; LEVELS - 1],
) -> Builtin {
    Builtin { name, source, thresholds: [None, moderate, high, emergency] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_thresholds_obey_the_rules_of_the_file() {
        for builtin in &BUILTIN {
            let demanded: Vec<_> = builtin.thresholds.iter().flatten().collect();
            assert!(demanded.iter().all(|threshold| threshold.enter > threshold.exit), "{}", builtin.name);
            assert!(
                demanded
                    .windows(2)
                    .all(|pair| pair[0].enter <= pair[1].enter && pair[0].exit <= pair[1].exit),
                "{}",
                builtin.name
            );
        }
        assert_eq!(BUILTIN.iter().filter(|builtin| builtin.is_default()).count(), 10);
    }
}

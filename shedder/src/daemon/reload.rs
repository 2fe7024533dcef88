//! Reading the configuration file again, beside the control loop: a file on a file system that hangs must not stop it.

use std::path::{Path, PathBuf};

use tokio::task::JoinHandle;

use crate::config;
use crate::config::model::Config;

/// The file, and the last attempt to read it.
#[derive(Debug)]
pub(super) struct Reload {
    file: Option<PathBuf>,
    reading: Option<JoinHandle<Result<Config, String>>>,
}

impl Reload {
    pub(super) fn of(file: Option<PathBuf>) -> Self {
        Self { file, reading: None }
    }

    /// Begins to read. What an earlier attempt still reads is no longer asked for.
    pub(super) fn begin(&mut self) {
        let Some(file) = self.file.clone() else {
            tracing::info!("SIGHUP: there is no configuration file to read again.");
            return;
        };
        if self.reading.replace(tokio::task::spawn_blocking(move || read(&file))).is_some() {
            tracing::warn!("The configuration was still being read; it is read from the beginning.");
        }
    }

    /// Waits for a configuration that is right; for ever where none is being read. What is wrong is logged. Loses nothing
    /// where the future is dropped.
    pub(super) async fn configuration(&mut self) -> Config {
        loop {
            let Some(reading) = &mut self.reading else { std::future::pending().await };
            let read = reading.await.unwrap_or_else(|error| Err(error.to_string()));
            self.reading = None;
            match read {
                Ok(config) => return config,
                Err(error) => tracing::error!("The running configuration stays: {error}"),
            }
        }
    }
}

/// Whole file valid, or why not.
fn read(file: &Path) -> Result<Config, String> {
    // At the start it may come through a pipe; from there it does not come twice, and waiting for it has no end.
    match std::fs::metadata(file) {
        Ok(found) if !found.is_file() => Err(format!("{} is not a regular file.", file.display())),
        _ => config::load(file).map_err(|error| format!("{} is not valid:\n{error}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("shedder.toml");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&fifo).unwrap_err().contains("is not a regular file"));
        assert!(read(directory.path()).unwrap_err().contains("is not a regular file"));
        assert!(read(&directory.path().join("absent")).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn a_wrong_file_is_passed_over_and_the_last_one_counts() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("shedder.toml");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut reload = Reload::of(Some(file.clone()));
            std::fs::write(&file, "version = 2").unwrap();
            reload.begin();
            tokio::select! {
                biased;
                _ = reload.configuration() => panic!("it is wrong"),
                () = tokio::task::yield_now() => {}
            }
            std::fs::write(&file, "version = 1\nmode = \"enforce\"\n").unwrap();
            reload.begin();
            assert_eq!(reload.configuration().await.mode, shedder_common::control::Mode::Enforce);
        });
    }
}

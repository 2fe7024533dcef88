//! How a verb fails, and with which exit code.

use std::io;
use std::process::ExitCode;

use crate::control::client::CallError;
use crate::control::protocol::RefusalKind;

/// What the process returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0
    Done,
    /// 1
    Failed,
    /// 2; errors in the configuration are of this kind.
    WrongUse,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::WrongUse => 2,
        })
    }
}

/// Why a verb was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// One sentence for the person at the terminal; empty where nobody is there to be told, or all is said.
    pub message: String,
}

impl Failure {
    /// It could not be done.
    #[must_use]
    pub fn failed(message: impl ToString) -> Self {
        Self { exit: Exit::Failed, message: message.to_string() }
    }

    /// It cannot be done as asked.
    #[must_use]
    pub fn wrong_use(message: impl ToString) -> Self {
        Self { exit: Exit::WrongUse, message: message.to_string() }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::Refused(refusal) if refusal.kind == RefusalKind::WrongUse => Self::wrong_use(error),
            _ => Self::failed(error),
        }
    }
}

/// Writing the answer failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            // Whoever reads has seen enough, as in `shedder status | head`.
            return Self { exit: Exit::Done, message: String::new() };
        }
        Self::failed(format!("cannot write the answer: {error}"))
    }
}

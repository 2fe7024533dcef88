//! What is said on the control socket.
//!
//! ```text
//! {"version":1,"command":{"set":{"port":"8080","assignments":[["rate","500/s"]],"confirm_seconds":60.0}}}
//! {"ok":{"message":"port 8080: rate is 500/s"}}
//! ```

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use shedder_common::control::Mode;
use shedder_common::level::Level;

use crate::snapshot::Snapshot;

/// The protocol of this build. A request of another version is refused.
pub const PROTOCOL_VERSION: u32 = 1;
/// Most bytes of a request line.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Most bytes of a response line.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;
/// Longest time that a command may name.
pub const MAX_SECONDS: f64 = 30.0 * 86_400.0;

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// What is asked.
    pub command: Command,
}

/// What can be asked. An unknown field is an error: to leave out what it asks for could refuse traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// The latest snapshot.
    Status,
    /// Change the limits of a port policy.
    Set {
        /// `8080` or `8000-8099`.
        port: String,
        /// Keys of `[[port]]` and their new values as the command line spells them.
        assignments: Vec<(String, String)>,
        /// Roll back unless confirmed within this time.
        #[serde(default)]
        confirm_seconds: Option<f64>,
    },
    /// Keep what `set` changed.
    Confirm,
    /// Change the mode.
    Mode {
        /// To this one.
        #[serde(serialize_with = "mode_to_name", deserialize_with = "mode_from_name")]
        mode: Mode,
    },
    /// Pin the level of the host and of every workload and port, or let the signals decide again.
    Level {
        /// At this one.
        level: LevelChoice,
        /// For this long; without it until further notice.
        #[serde(default)]
        for_seconds: Option<f64>,
    },
    /// Detach everything, remove every pin and exit.
    Unload,
    /// Why the level is what it is.
    Explain {
        /// What a class on this port sees; without it only the levels.
        #[serde(default)]
        port: Option<String>,
    },
    /// The readings of every tick from the next one on, as a trace. It is answered with many responses: one
    /// [`Payload::Trace`] for each tick, then a [`Payload::Message`] that says why it ended.
    Record {
        /// For this long; without it until the caller goes.
        #[serde(default)]
        seconds: Option<f64>,
        /// No more than these bytes of trace.
        bytes_max: u64,
    },
}

impl Command {
    /// What the types cannot say: times must be real ones, and a change must change something.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let seconds = match self {
            Self::Set { assignments, .. } if assignments.is_empty() => {
                return Err(Refusal::wrong_use(
                    "nothing to set; name at least one KEY=VALUE such as rate=500/s",
                ));
            }
            Self::Set { confirm_seconds, .. } => *confirm_seconds,
            Self::Level { for_seconds, .. } => *for_seconds,
            Self::Record { seconds, .. } => *seconds,
            _ => None,
        };
        match seconds {
            Some(seconds) if !(seconds > 0.0 && seconds <= MAX_SECONDS) => Err(Refusal::wrong_use(format!(
                "a time of {seconds} s; it must be above 0 and 30 days at most"
            ))),
            _ => Ok(()),
        }
    }
}

/// `shedder level`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelChoice {
    /// The signals decide.
    Auto,
    /// This level, whatever the signals say.
    Pinned(Level),
}

impl LevelChoice {
    /// The word for "the signals decide".
    pub const AUTO: &'static str = "auto";

    /// The word used on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => Self::AUTO,
            Self::Pinned(level) => level.name(),
        }
    }

    /// The choice of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == Self::AUTO { Some(Self::Auto) } else { Level::from_name(name).map(Self::Pinned) }
    }
}

impl Serialize for LevelChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for LevelChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::from_name(&name).ok_or_else(|| {
            de::Error::unknown_variant(&name, &["auto", "normal", "moderate", "high", "emergency"])
        })
    }
}

fn mode_to_name<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode.name())
}

fn mode_from_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
    let name = String::deserialize(deserializer)?;
    Mode::from_name(&name).ok_or_else(|| de::Error::unknown_variant(&name, &["off", "observe", "enforce"]))
}

/// One response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// It was done.
    Ok(Payload),
    /// It was not done.
    Error(Refusal),
}

impl From<Result<Payload, Refusal>> for Response {
    fn from(result: Result<Payload, Refusal>) -> Self {
        result.map_or_else(Self::Error, Self::Ok)
    }
}

/// What comes back when a command was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// A sentence for the operator: what is now in force.
    Message(String),
    /// The answer to [`Command::Status`].
    Status(Box<Snapshot>),
    /// An answer with a shape of its own.
    Document(serde_json::Value),
    /// One tick of a recording.
    Trace {
        /// Its time, seconds from the first one.
        t: f64,
        /// Its lines of the trace.
        lines: String,
    },
}

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// One sentence: what is wrong and what to do.
    pub message: String,
    /// Whose fault it is.
    #[serde(default)]
    pub kind: RefusalKind,
}

/// Whose fault it is that a command was not done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// It could not be done now.
    #[default]
    Failed,
    /// It cannot be done as asked: unknown port, unknown key, a value that is none.
    WrongUse,
    /// The daemon is ending.
    Stopping,
}

impl Refusal {
    /// It could not be done now.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RefusalKind::Failed }
    }

    /// The daemon is ending and does nothing any more.
    #[must_use]
    pub fn stopping() -> Self {
        Self { message: "the daemon is stopping".to_owned(), kind: RefusalKind::Stopping }
    }

    /// It cannot be done as asked.
    #[must_use]
    pub fn wrong_use(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: RefusalKind::WrongUse }
    }
}

/// The command of a request line.
pub(super) fn parse_request(line: &[u8]) -> Result<Command, Refusal> {
    let value: serde_json::Value = serde_json::from_slice(line)
        .map_err(|error| Refusal::wrong_use(format!("the request is not a line of JSON: {error}")))?;
    // The version first: what else a request of another version holds is not ours to judge.
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    match version {
        Some(version) if version == u64::from(PROTOCOL_VERSION) => {}
        Some(version) => {
            return Err(Refusal::wrong_use(format!(
                "this daemon speaks version {PROTOCOL_VERSION} of the control protocol, the request is of version \
                 {version}; use the `shedder` of the daemon's release"
            )));
        }
        None => return Err(Refusal::wrong_use("the request names no version of the control protocol")),
    }
    let request: Request = serde_json::from_value(value)
        .map_err(|error| Refusal::wrong_use(format!("the request is not understood: {error}")))?;
    request.command.check()?;
    Ok(request.command)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commands() -> impl Strategy<Value = Command> {
        // Whole ones: the last bit of a long decimal fraction may change.
        let seconds = || proptest::option::of((1..2_592_000_u32).prop_map(f64::from));
        let pairs = proptest::collection::vec((any::<String>(), any::<String>()), 1..5);
        prop_oneof![
            Just(Command::Status),
            Just(Command::Confirm),
            Just(Command::Unload),
            proptest::option::of(any::<String>()).prop_map(|port| Command::Explain { port }),
            (seconds(), any::<u64>()).prop_map(|(seconds, bytes_max)| Command::Record { seconds, bytes_max }),
            proptest::sample::select(Mode::ALL.to_vec()).prop_map(|mode| Command::Mode { mode }),
            (any::<String>(), pairs, seconds()).prop_map(|(port, assignments, confirm_seconds)| {
                Command::Set { port, assignments, confirm_seconds }
            }),
            (proptest::sample::select(vec!["auto", "normal", "high"]), seconds()).prop_map(
                |(name, for_seconds)| Command::Level {
                    level: LevelChoice::from_name(name).unwrap(),
                    for_seconds
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire_in_one_line(command in commands()) {
            let request = Request { version: PROTOCOL_VERSION, command };
            let line = serde_json::to_vec(&request).unwrap();
            prop_assert!(!line.contains(&b'\n'));
            prop_assert_eq!(parse_request(&line), Ok(request.command));
        }

        #[test]
        fn garbage_is_refused(line in any::<Vec<u8>>()) {
            prop_assert_eq!(parse_request(&line).unwrap_err().kind, RefusalKind::WrongUse);
        }
    }

    fn refusal(line: &str) -> String {
        parse_request(line.as_bytes()).unwrap_err().message
    }

    #[test]
    fn the_shape_on_the_wire_is_fixed() {
        let set = r#"{"version":1,"command":{"set":{"port":"8080","assignments":[["rate","500/s"]]}}}"#;
        let assignments = vec![("rate".to_owned(), "500/s".to_owned())];
        let expected = Command::Set { port: "8080".to_owned(), assignments, confirm_seconds: None };
        assert_eq!(parse_request(set.as_bytes()), Ok(expected));
        let mode = r#"{"version":1,"command":{"mode":{"mode":"enforce"}}}"#;
        assert_eq!(parse_request(mode.as_bytes()), Ok(Command::Mode { mode: Mode::Enforce }));
        assert_eq!(parse_request(br#"{"version":1,"command":"status"}"#), Ok(Command::Status));
        let done = Response::Ok(Payload::Message("done".to_owned()));
        assert_eq!(serde_json::to_string(&done).unwrap(), r#"{"ok":{"message":"done"}}"#);
        let refused: Response = serde_json::from_str(r#"{"error":{"message":"no"}}"#).unwrap();
        assert_eq!(refused, Response::Error(Refusal::failed("no")));
    }

    #[test]
    fn refusals_name_the_fault() {
        assert!(refusal(r#"{"version":2,"command":"dance"}"#).contains("version 1"));
        assert!(refusal(r#"{"command":"status"}"#).contains("names no version"));
        assert!(refusal(r#"{"version":1,"command":"dance"}"#).contains("`dance`"));
        assert!(refusal(r#"{"version":1,"command":{"mode":{"mode":"on"}}}"#).contains("`enforce`"));
        assert!(refusal(r#"{"version":1,"command":{"level":{"level":"low"}}}"#).contains("`moderate`"));
        assert!(refusal(r#"{"version":1,"command":{"mode":{"mode":"off","hurry":1}}}"#).contains("`hurry`"));
        assert!(
            refusal(r#"{"version":1,"command":{"set":{"port":"1","assignments":[]}}}"#)
                .contains("nothing to set")
        );
        for seconds in ["0", "-1", "1e300"] {
            let line = format!(
                r#"{{"version":1,"command":{{"level":{{"level":"auto","for_seconds":{seconds}}}}}}}"#
            );
            assert!(refusal(&line).contains("above 0"), "{line}");
        }
        // Depth is bounded by the parser, so that no stack overflows.
        assert!(refusal(&"[".repeat(60_000)).contains("not a line of JSON"));
    }
}

//! `/admission`: may a load balancer send new work here?

use shedder_common::level::Level;

use crate::config::limits::is_plain_number;
use crate::config::suggest::{choose, show};
use crate::snapshot::Snapshot;

/// The answer and the sentence that goes with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// 200
    Admit(String),
    /// 503
    Refuse(String),
    /// 404
    NoSuchPort(String),
    /// 400
    BadRequest(String),
}

/// Compares the level of the host, or of the port that the query names, with the level that the query names, or else
/// `from`. `alive` says whether the control loop turns: a level that nobody keeps current refuses nothing.
pub(super) fn judge(snapshot: &Snapshot, alive: Result<(), String>, from: Level, query: &str) -> Answer {
    let asked = match Asked::read(query) {
        Ok(asked) => asked,
        Err(sentence) => return Answer::BadRequest(sentence),
    };
    if let Err(sentence) = alive {
        return Answer::Admit(format!("Admitted, since the level is not known. {sentence}"));
    }
    let from = asked.level.unwrap_or(from);
    let (whose, level) = match asked.port {
        None => ("the host".to_owned(), snapshot.host_level()),
        Some(port) => match snapshot.ports.iter().find(|state| state.covers(port)) {
            Some(state) => {
                (format!("port {}", state.port), Level::from_name(&state.level).unwrap_or_default())
            }
            None => return Answer::NoSuchPort(format!("No policy covers port {port}.")),
        },
    };
    let (level_name, from_name) = (level.name(), from.name());
    if level < from {
        Answer::Admit(format!("Admitted: {whose} is at {level_name}, below {from_name}."))
    } else {
        Answer::Refuse(format!("Not admitted: {whose} is at {level_name}; refused from {from_name} on."))
    }
}

#[derive(Debug, Default)]
struct Asked {
    level: Option<Level>,
    port: Option<u16>,
}

/// Ends what may be a question already.
fn sentence(text: &str) -> String {
    if text.ends_with(['.', '?']) { text.to_owned() } else { format!("{text}.") }
}

impl Asked {
    fn read(query: &str) -> Result<Self, String> {
        let mut asked = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "level" => {
                    let levels = [Level::Moderate, Level::High, Level::Emergency];
                    let level = choose("level", value, &levels.map(|level| (level.name(), level)));
                    let level = level.map_err(|error| sentence(&format!("level: {error}")))?;
                    once(key, asked.level.replace(level))?;
                }
                "port" => {
                    let port = value.parse().ok().filter(|port| *port != 0 && is_plain_number(value));
                    let wrong =
                        || format!("port: `{}` is no port; write a number from 1 to 65535.", show(value));
                    once(key, asked.port.replace(port.ok_or_else(wrong)?))?;
                }
                _ => {
                    let key = show(key);
                    return Err(format!("Unknown parameter `{key}`; there are `level` and `port`."));
                }
            }
        }
        Ok(asked)
    }
}

/// Which of two values was meant is not known.
fn once<T>(key: &str, before: Option<T>) -> Result<(), String> {
    match before {
        Some(_) => Err(format!("{key}: there are two; keep one.")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot_sample;

    fn ask(query: &str) -> Answer {
        judge(&snapshot_sample::snapshot(), Ok(()), Level::High, query)
    }

    #[test]
    fn the_named_level_decides() {
        let admitted = "Admitted: the host is at moderate, below high.";
        for query in ["", "level=high", "&"] {
            assert_eq!(ask(query), Answer::Admit(admitted.to_owned()), "{query}");
        }
        let refused = "Not admitted: the host is at moderate; refused from moderate on.";
        assert_eq!(ask("level=moderate"), Answer::Refuse(refused.to_owned()));
    }

    #[test]
    fn a_port_has_its_own_level() {
        assert!(matches!(ask("port=8080&level=moderate"), Answer::Refuse(_)));
        assert!(matches!(ask("level=moderate&port=8042"), Answer::Admit(_)));
        assert_eq!(ask("port=8100"), Answer::NoSuchPort("No policy covers port 8100.".to_owned()));
    }

    #[test]
    fn on_doubt_it_admits() {
        let stuck = Err("The control loop has not turned yet.".to_owned());
        let answer = judge(&snapshot_sample::snapshot(), stuck, Level::Moderate, "");
        assert!(matches!(answer, Answer::Admit(_)), "{answer:?}");
        assert!(matches!(judge(&Snapshot::default(), Ok(()), Level::Moderate, ""), Answer::Admit(_)));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (query, expected) in [
            ("level=hihg", "level: unknown level `hihg`, did you mean `high`?"),
            ("level=HIGH", "level: unknown level `HIGH`, did you mean `high`?"),
            ("level=normal", "level: unknown level `normal`: choose moderate, high or emergency."),
            ("level", "unknown level"),
            ("port=0", "no port"),
            ("port=65536", "no port"),
            ("port=http", "no port"),
            ("port=+8080", "port: `+8080` is no port"),
            ("port=08080", "no port"),
            ("port=8080&port=8081", "port: there are two; keep one."),
            ("port=8080&port=8080", "port: there are two"),
            ("level=high&port=8080&level=moderate", "level: there are two; keep one."),
            ("levle=high", "Unknown parameter `levle`"),
        ] {
            match ask(query) {
                Answer::BadRequest(sentence) => {
                    assert!(sentence.contains(expected), "{query}: {sentence}");
                    assert!(!sentence.ends_with("?.") && !sentence.ends_with(".."), "{query}: {sentence}");
                }
                other => panic!("{query}: {other:?}"),
            }
        }
    }
}

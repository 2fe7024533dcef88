//! No text brings the reader down.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::example::uncommented;
use crate::config::parse;

/// Every key, the examples too.
static EXAMPLE: LazyLock<String> = LazyLock::new(uncommented);

/// Values of every type, many of them wrong wherever they stand.
const VALUES: [&str; 24] = [
    "0",
    "-1",
    "65535",
    "9223372036854775807",
    "99999999999999999999",
    "0x10",
    "1.5",
    "-0.0",
    "nan",
    "inf",
    "1e999",
    "true",
    "1979-05-27",
    "\"\"",
    "\"é\\u0000\"",
    "\"unlimited\"",
    "\"1/s\"",
    "\"1-65535\"",
    "\"0-0\"",
    "[]",
    "[[]]",
    "[1, \"a\"]",
    "{}",
    "{ enter = 1 }",
];

/// Every problem lies within the text and can be shown.
fn check(text: &str) {
    let Err(error) = parse(text, "f.toml") else { return };
    assert!(!error.problems.is_empty());
    assert!(error.to_string().starts_with("f.toml:"));
    let lines = text.matches('\n').count() + 1;
    for problem in &error.problems {
        assert!(problem.position.is_some_and(|at| (1..=lines).contains(&at.line) && at.column >= 1));
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_toml_like_text_is_read_or_refused(text in "([a-z_.]{1,8} ?= ?[\"'\\[{]?[0-9a-z./-]{0,6}[\"'\\]}]?\n|\\[{1,2}(port|signals\\.memory|source)\\]{1,2}\n){0,12}") {
        check(&text);
    }

    /// The example with one of its values replaced.
    #[test]
    fn any_wrong_value_is_read_or_refused(line in any::<Index>(), value in select(&VALUES[..])) {
        let lines: Vec<_> = EXAMPLE.lines().collect();
        let settings: Vec<_> = (0..lines.len()).filter(|at| lines[*at].contains(" = ") && !lines[*at].starts_with('#')).collect();
        let at = settings[line.index(settings.len())];
        let (key, _) = lines[at].split_once(" = ").unwrap();
        let replaced = format!("{key} = {value}");
        let text: Vec<_> = (0..lines.len()).map(|other| if other == at { replaced.as_str() } else { lines[other] }).collect();
        check(&text.join("\n"));
    }

    /// The example with some of its text replaced.
    #[test]
    fn any_damage_is_read_or_refused(start in any::<Index>(), length in 0_usize..40, new in "\\PC{0,5}|[\n\t\"'=\\[\\]{}#.0-9]{0,5}") {
        let chars: Vec<char> = EXAMPLE.chars().collect();
        let start = start.index(chars.len());
        let end = (start + length).min(chars.len());
        let text: String = chars[..start].iter().copied().chain(new.chars()).chain(chars[end..].iter().copied()).collect();
        check(&text);
    }
}

#[test]
fn depth_and_size_are_bounded() {
    for text in ["a = ".to_owned() + &"[".repeat(100_000), "a.".repeat(2_000) + "b = 1", "[".repeat(5_000)] {
        check(&text);
    }
    let wide =
        "version = 1\n".to_owned() + &"[[port]]\nport = \"1-65535\"\noverride_guard = true\n".repeat(2_000);
    check(&wide);
}

//! Names that were meant: "did you mean" for keys, classes, levels, modes and signals.

/// Longest text that is compared; beyond it nobody mistyped a name.
const LONGEST_CHARS: usize = 48;

/// The known name that is nearest to `word`, if one is near enough to be a slip of the finger.
#[must_use]
pub fn did_you_mean<'n>(word: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if word.chars().count() > LONGEST_CHARS {
        return None;
    }
    let word = fold(word);
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&word, &fold(name)), name))
        // A word of which nothing is left was not meant.
        .filter(|(distance, name)| *distance < name.len().max(word.len()))
        .filter(|(distance, name)| *distance <= (name.len().max(word.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// What stands for `word` among `choices`.
///
/// # Errors
///
/// A sentence that names the nearest choice, or all of them where none is near.
pub fn choose<T: Copy>(what: &str, word: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices
        .iter()
        .find(|(name, _)| *name == word)
        .map(|(_, value)| *value)
        .ok_or_else(|| unknown(what, word, &choices.iter().map(|(name, _)| *name).collect::<Vec<_>>()))
}

/// The sentence about a name that is not among those known.
#[must_use]
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let word_shown = show(word);
    match did_you_mean(word, known.iter().copied()) {
        Some(near) => format!("unknown {what} `{word_shown}`, did you mean `{near}`?"),
        None => format!("unknown {what} `{word_shown}`: choose {}", list(known)),
    }
}

/// `a, b or c`
#[must_use]
pub fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Text from outside, fit for one line of a terminal.
#[must_use]
pub fn show(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// Case and dashes are no difference worth a name.
fn fold(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let known = ["queue_depth", "queue_wait", "rate", "to"];
        assert_eq!(did_you_mean("queue_dept", known), Some("queue_depth"));
        assert_eq!(did_you_mean("Queue-Wait", known), Some("queue_wait"));
        assert_eq!(did_you_mean("rat", known), Some("rate"));
        assert_eq!(did_you_mean("colour", known), None);
        assert_eq!(did_you_mean("k", ["h", "m", "s"]), None);
        assert_eq!(did_you_mean("S", ["h", "m", "s"]), Some("s"));
        assert_eq!(did_you_mean(&"rate".repeat(100), known), None);
    }

    #[test]
    fn a_choice_is_made_or_explained() {
        let choices = [("drop", 1), ("reset", 2)];
        assert_eq!(choose("action", "reset", &choices), Ok(2));
        assert_eq!(
            choose("action", "rest", &choices).unwrap_err(),
            "unknown action `rest`, did you mean `reset`?"
        );
        assert_eq!(
            choose("action", "tarpit", &choices).unwrap_err(),
            "unknown action `tarpit`: choose drop or reset"
        );
    }

    #[test]
    fn shown_text_stays_on_one_line() {
        assert_eq!(show("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(show(&"x".repeat(100)), format!("{}…", "x".repeat(LONGEST_CHARS)));
    }
}

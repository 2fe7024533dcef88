//! TOML itself: the text as a table with places, or what is no TOML in it.

use toml::Spanned;
use toml::de::{DeTable, Error};

use super::error::Problems;
use super::suggest::show;

/// How the TOML parser calls a key that is set twice.
const DUPLICATE_KEY: &str = "duplicate key";

/// The table of a text; `None` where it is no TOML, which leaves nothing to check. Keys that are set twice are
/// problems too, but leave a table.
pub(super) fn read<'t>(text: &'t str, problems: &mut Problems<'_>) -> Option<Spanned<DeTable<'t>>> {
    let (table, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    let mut is_toml = true;
    let mut last_line = 0;
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let line = problems.line_of(&span);
        if error.message() == DUPLICATE_KEY {
            let key = show(text.get(span.clone()).unwrap_or_default());
            problems.at(span, format!("`{key}` is set twice: keep one"));
        } else if line > last_line {
            is_toml = false;
            last_line = line;
            let message = error.message();
            problems.at(span, format!("this is no TOML: {message}"));
            if spans_lines(&error) {
                break;
            }
        }
    }
    is_toml.then_some(table)
}

/// Whether the parser may have lost track, so that what it says of later lines is a consequence.
fn spans_lines(error: &Error) -> bool {
    ["array", "table", "unclosed", "multi-line"].iter().any(|word| error.message().contains(word))
}

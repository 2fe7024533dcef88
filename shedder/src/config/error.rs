//! What is wrong with a configuration, each problem with its place.

use std::fmt;
use std::ops::Range;

/// Most problems that one error shows.
const MOST_SHOWN: usize = 50;

/// Most characters of a source line that are shown.
const LINE_CHARS: usize = 120;

/// A configuration that cannot be used: one or many problems, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as it was named.
    pub file: String,
    /// Never empty.
    pub problems: Vec<Problem>,
    /// Problems beyond those shown.
    pub left_off: usize,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where; `None` where the file could not be read at all.
    pub position: Option<Position>,
    /// What is wrong and what to do, in one sentence.
    pub message: String,
    excerpt: Option<Excerpt>,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

/// The part of a source line that is shown, and what to underline in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    padding: String,
    carets: usize,
}

impl ConfigError {
    /// The file could not be read.
    pub(super) fn unreadable(file: String, message: String) -> Self {
        let problem = Problem { position: None, message, excerpt: None };
        Self { file, problems: vec![problem], left_off: 0 }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                write!(f, "\n\n")?;
            }
            let message = &problem.message;
            let Some(Position { line, column }) = problem.position else {
                write!(f, "{file}: {message}")?;
                continue;
            };
            write!(f, "{file}:{line}:{column}: {message}")?;
            if let Some(Excerpt { text, padding, carets }) = &problem.excerpt {
                let gutter = " ".repeat(line.to_string().len());
                let carets = "^".repeat(*carets);
                write!(f, "\n{gutter} |\n{line} | {text}\n{gutter} | {padding}{carets}")?;
            }
        }
        if self.left_off > 0 {
            write!(f, "\n\n{file}: {} more problems are not shown", self.left_off)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Collects problems while a text is read.
pub(super) struct Problems<'t> {
    text: &'t str,
    /// Byte offset of the start of each line.
    line_starts: Vec<usize>,
    found: Vec<(Range<usize>, String)>,
}

impl<'t> Problems<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let after_newlines = text.match_indices('\n').map(|(at, newline)| at + newline.len());
        Self { text, line_starts: std::iter::once(0).chain(after_newlines).collect(), found: Vec::new() }
    }

    /// Adds a problem with the text at a byte range.
    pub(super) fn at(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.found.push((span, message.into()));
    }

    /// Number of problems so far.
    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// The line, from 1, of a byte range.
    pub(super) fn line_of(&self, span: &Range<usize>) -> usize {
        self.line_starts.partition_point(|start| *start <= span.start)
    }

    /// All that was found, in the order of the text.
    pub(super) fn into_error(mut self, file: &str) -> ConfigError {
        self.found.sort_by_key(|(span, _)| span.start);
        let found = std::mem::take(&mut self.found);
        let left_off = found.len().saturating_sub(MOST_SHOWN);
        let problems =
            found.into_iter().take(MOST_SHOWN).map(|(span, message)| self.locate(&span, message)).collect();
        ConfigError { file: file.to_owned(), problems, left_off }
    }

    fn locate(&self, span: &Range<usize>, message: String) -> Problem {
        let line = self.line_of(span);
        let line_start = self.line_starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let rest = self.text.get(line_start..).unwrap_or_default();
        let source = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let chars_before = |end: usize| self.text.get(line_start..end).map_or(0, |text| text.chars().count());
        let before = chars_before(span.start);
        let source_chars = source.chars().count();
        let end = if span.end <= line_start + source.len() { chars_before(span.end) } else { source_chars };
        Problem {
            position: Some(Position { line, column: before + 1 }),
            message,
            excerpt: Some(Excerpt::new(source, before, end.saturating_sub(before))),
        }
    }
}

impl Excerpt {
    /// Underlines `width` characters, one at least, from the one at `column` (from 0).
    fn new(source: &str, column: usize, width: usize) -> Self {
        let start =
            if source.chars().nth(LINE_CHARS).is_some() { column.saturating_sub(LINE_CHARS / 2) } else { 0 };
        let shown: String = source.chars().skip(start).take(LINE_CHARS).map(printable).collect();
        let column = column - start;
        let padding = shown.chars().take(column).map(|c| if c == '\t' { c } else { ' ' }).collect::<String>();
        let room = shown.chars().count().saturating_sub(column);
        let ellipsis = if start + LINE_CHARS < source.chars().count() { "…" } else { "" };
        Self { text: format!("{shown}{ellipsis}"), padding, carets: width.min(room).max(1) }
    }
}

/// A file must not steer the terminal that shows it.
fn printable(c: char) -> char {
    if c.is_control() && c != '\t' { '\u{fffd}' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, span: Range<usize>) -> String {
        let mut problems = Problems::new(text);
        problems.at(span, "wrong");
        problems.into_error("f.toml").to_string()
    }

    #[test]
    fn the_source_line_is_shown_with_a_caret() {
        assert_eq!(shown("a = 1\nbé = 22\r\nc", 12..14), "f.toml:2:6: wrong\n  |\n2 | bé = 22\n  |      ^^");
        assert_eq!(shown("\tb = 2", 1..2), "f.toml:1:2: wrong\n  |\n1 | \tb = 2\n  | \t^");
    }

    #[test]
    fn the_end_of_the_text_is_a_place() {
        assert_eq!(shown("", 0..0), "f.toml:1:1: wrong\n  |\n1 | \n  | ^");
        assert_eq!(shown("a\n", 2..2), "f.toml:2:1: wrong\n  |\n2 | \n  | ^");
        assert_eq!(shown("a = [\n1\n]", 4..9), "f.toml:1:5: wrong\n  |\n1 | a = [\n  |     ^");
    }

    #[test]
    fn long_lines_and_control_characters_do_not_reach_the_terminal() {
        let text = format!("{}\u{1b}bad{}", "x".repeat(500), "y".repeat(500));
        let shown = shown(&text, 501..504);
        assert!(shown.starts_with("f.toml:1:502: wrong"));
        assert!(shown.contains("x\u{fffd}bady"));
        assert!(shown.lines().all(|line| line.chars().count() < 140));
    }

    #[test]
    fn a_flood_of_problems_is_cut() {
        let mut problems = Problems::new("a");
        for _ in 0..MOST_SHOWN + 7 {
            problems.at(0..1, "wrong");
        }
        let error = problems.into_error("f.toml");
        assert_eq!((error.problems.len(), error.left_off), (MOST_SHOWN, 7));
        assert!(error.to_string().ends_with("f.toml: 7 more problems are not shown"));
    }
}

//! Walks the tables of the file and notes each problem at its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Problems;
use super::suggest::unknown;

/// One table of the file.
pub(super) struct Section<'t> {
    /// How messages call it, such as `daemon`; empty for the whole file.
    path: String,
    table: &'t DeTable<'t>,
    /// Where something that is missing is reported.
    span: Range<usize>,
}

/// A value and where the file sets it; `None` where it is the default.
pub(super) struct Setting<T> {
    pub(super) value: T,
    pub(super) span: Option<Range<usize>>,
}

impl<'t> Section<'t> {
    /// The whole file.
    pub(super) fn root(table: &'t Spanned<DeTable<'t>>) -> Self {
        Self { path: String::new(), table: table.get_ref(), span: 0..0 }
    }

    fn of(path: String, value: &'t Spanned<DeValue<'t>>) -> Option<Self> {
        Some(Self { path, table: value.get_ref().as_table()?, span: value.span() })
    }

    /// Where something that is missing is reported.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Notes every key that is not known here.
    pub(super) fn expect_keys(&self, known: &[&str], problems: &mut Problems<'_>) {
        for key in self.table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let place = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
            problems.at(key.span(), format!("{place}{}", unknown("key", key.get_ref(), known)));
        }
    }

    /// Whether the file has this key, with whatever value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Where a key itself stands.
    pub(super) fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    pub(super) fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(key)
    }

    /// The table under a key. It is a problem if something else is there.
    pub(super) fn open(&self, key: &str, problems: &mut Problems<'_>) -> Option<Self> {
        let value = self.value(key)?;
        let opened = Self::of(self.path_of(key), value);
        if opened.is_none() {
            let path = self.path_of(key);
            let found = type_name(value.get_ref());
            problems
                .at(value.span(), format!("{path} is a table, found {found}: write [{path}] above its keys"));
        }
        opened
    }

    /// The tables of an array of tables. It is a problem if something else is there.
    pub(super) fn open_each(&self, key: &str, problems: &mut Problems<'_>) -> Vec<Self> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let path = self.path_of(key);
        let Some(array) = value.get_ref().as_array() else {
            let found = type_name(value.get_ref());
            problems.at(
                value.span(),
                format!("{path} is a list of tables, found {found}: write [[{path}]] for each"),
            );
            return Vec::new();
        };
        let mut opened = Vec::new();
        for entry in array {
            match Self::of(path.clone(), entry) {
                Some(section) => opened.push(section),
                None => {
                    let found = type_name(entry.get_ref());
                    problems.at(
                        entry.span(),
                        format!("{path} is a list of tables, found {found}: write [[{path}]]"),
                    );
                }
            }
        }
        opened
    }

    /// Every key of this table.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'t str> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    /// The value of a key, if the file has it and `reader` takes it. What it refuses is a problem.
    pub(super) fn read<T>(
        &self,
        key: &str,
        problems: &mut Problems<'_>,
        reader: impl FnOnce(&'t DeValue<'t>) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        let value = self.value(key)?;
        match reader(value.get_ref()) {
            Ok(read) => Some(Spanned::new(value.span(), read)),
            Err(why) => {
                problems.at(value.span(), format!("{}: {why}", self.path_of(key)));
                None
            }
        }
    }

    /// Like [`Section::read`], with what holds where the file does not say.
    pub(super) fn read_or<T>(
        &self,
        key: &str,
        default: T,
        problems: &mut Problems<'_>,
        reader: impl FnOnce(&'t DeValue<'t>) -> Result<T, String>,
    ) -> Setting<T> {
        self.read(key, problems, reader).map_or(Setting { value: default, span: None }, |read| {
            let span = read.span();
            Setting { value: read.into_inner(), span: Some(span) }
        })
    }

    /// Like [`Section::read`], for a key that must be there.
    pub(super) fn require<T>(
        &self,
        key: &str,
        example: &str,
        problems: &mut Problems<'_>,
        reader: impl FnOnce(&'t DeValue<'t>) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        if !self.has(key) {
            problems.at(self.span(), format!("{} is missing: add `{key} = {example}`", self.path_of(key)));
        }
        self.read(key, problems, reader)
    }

    /// The elements of a list, each with its place; `None` where the file does not have the key.
    pub(super) fn read_list<T>(
        &self,
        key: &str,
        problems: &mut Problems<'_>,
        mut reader: impl FnMut(&'t DeValue<'t>) -> Result<T, String>,
    ) -> Option<Vec<Spanned<T>>> {
        let value = self.value(key)?;
        let path = self.path_of(key);
        let Some(array) = value.get_ref().as_array() else {
            let found = type_name(value.get_ref());
            problems.at(value.span(), format!("{path}: expected a list in [brackets], found {found}"));
            return None;
        };
        let mut elements = Vec::new();
        for element in array {
            match reader(element.get_ref()) {
                Ok(read) => elements.push(Spanned::new(element.span(), read)),
                Err(why) => problems.at(element.span(), format!("{path}: {why}")),
            }
        }
        Some(elements)
    }

    /// How messages call a key of this table.
    pub(super) fn path_of(&self, key: &str) -> String {
        let key = super::suggest::show(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }
}

/// The type of a value with its article.
pub(super) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

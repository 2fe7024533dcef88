//! Columns that line up.

use crate::cli::output::clean;

/// Which side of a column is straight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows of cells below a line of heads, and notes between the rows.
pub(super) struct Table {
    columns: Vec<Align>,
    rows: Vec<Row>,
}

enum Row {
    Cells(Vec<String>),
    Note(String),
}

const INDENT: &str = "  ";
const GAP: &str = "  ";

impl Table {
    pub(super) fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        Self { columns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![Row::Cells(heads)] }
    }

    /// A row; it has as many cells as there are columns.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(Row::Cells(cells.iter().map(|cell| clean(cell)).collect()));
    }

    /// A line under the last row that follows no column.
    pub(super) fn note(&mut self, note: &str) {
        self.rows.push(Row::Note(clean(note)));
    }

    /// The whole table, indented.
    pub(super) fn text(&self) -> String {
        let mut widths = vec![0; self.columns.len()];
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let line = match row {
                Row::Note(note) => format!("{INDENT}{INDENT}{note}"),
                Row::Cells(cells) => {
                    let padded: Vec<String> = cells
                        .iter()
                        .zip(&widths)
                        .zip(&self.columns)
                        .map(|((cell, width), align)| match align {
                            Align::Left => format!("{cell:<width$}"),
                            Align::Right => format!("{cell:>width$}"),
                        })
                        .collect();
                    format!("{INDENT}{}", padded.join(GAP))
                }
            };
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

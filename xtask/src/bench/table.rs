//! Tables for the terminal.

/// Columns as wide as they must be: the first to the left, numbers to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let lines: Vec<_> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for cells in &lines {
        for (column, cell) in cells.iter().enumerate() {
            let width = width(column);
            text += &if column == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

/// Milliseconds, or a dash for what there is not.
pub(crate) fn ms(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{:.0} ms", seconds * 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), ms(None)], vec!["longer".to_owned(), ms(Some(0.0552))]];
        assert_eq!(table(&["name", "p99"], &rows), "name      p99\na           –\nlonger  55 ms\n");
    }
}

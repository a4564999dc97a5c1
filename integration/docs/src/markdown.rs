//! Tables in Markdown.

/// A table with a row for each of `rows`, whose cells are in the order of `head`.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head.iter().map(|cell| (*cell).to_owned()).collect());
    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    for row in rows {
        text.push_str(&line(row.iter().map(|cell| escaped(cell)).collect()));
    }
    text
}

/// `text` in backquotes.
#[must_use]
pub fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A cell ends at a bar or a line's end.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_a_table() {
        let rows = [vec!["a|b".to_owned(), "c\nd".to_owned()]];
        assert_eq!(table(&["x", "y"], &rows), "| x | y |\n|---|---|\n| a\\|b | c d |\n");
    }
}

//! A table, and the two ways to write it.

use super::text;

/// Rows under a head. The first columns are names, the rest numbers.
pub(super) struct Table {
    pub(super) title: &'static str,
    /// What the columns mean, and in which units.
    pub(super) note: String,
    pub(super) head: Vec<String>,
    /// How many columns are names.
    pub(super) names: usize,
    pub(super) rows: Vec<Vec<String>>,
    /// Whether it is so long that a page shows it when asked to, and Markdown not at all.
    pub(super) folded: bool,
}

impl Table {
    pub(super) fn html(&self) -> String {
        let row = |tag: &str, cells: &[String]| {
            let cell = |(place, cell): (usize, &String)| {
                let class = if place < self.names { " class=\"name\"" } else { "" };
                format!("<{tag}{class}>{}</{tag}>", text::html(cell))
            };
            format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
        };
        let body: String = self.rows.iter().map(|cells| row("td", cells)).collect();
        let table = format!(
            "<p class=\"note\">{}</p>\n<div class=\"wide\"><table>\n<thead>\n{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
            text::html(&self.note),
            row("th", &self.head)
        );
        if self.folded {
            format!("<details><summary>{} ({} rows)</summary>\n{table}</details>\n", self.title, self.rows.len())
        } else {
            format!("<h3>{}</h3>\n{table}", self.title)
        }
    }

    pub(super) fn markdown(&self) -> String {
        let row = |cells: &[String]| {
            format!("| {} |\n", cells.iter().map(|cell| text::markdown(cell)).collect::<Vec<_>>().join(" | "))
        };
        let rule: Vec<&str> =
            (0..self.head.len()).map(|place| if place < self.names { "---" } else { "---:" }).collect();
        let body: String = self.rows.iter().map(|cells| row(cells)).collect();
        format!(
            "### {}\n\n{}\n\n{}| {} |\n{body}",
            self.title,
            text::markdown(&self.note),
            row(&self.head),
            rule.join(" | ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_the_same_both_ways() {
        let table = Table {
            title: "Speed",
            note: "a < b".into(),
            head: vec!["who".into(), "how".into()],
            names: 1,
            rows: vec![vec!["a|b".into(), "1".into()]],
            folded: false,
        };
        assert_eq!(table.markdown(), "### Speed\n\na \\< b\n\n| who | how |\n| --- | ---: |\n| a\\|b | 1 |\n");
        assert!(table.html().contains("<td class=\"name\">a|b</td><td>1</td>"), "{}", table.html());
        assert!(table.html().contains("<p class=\"note\">a &lt; b</p>"));
    }
}

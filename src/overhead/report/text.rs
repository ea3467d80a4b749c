//! Names and commands as text in a page: whatever they hold, they stay text.

/// `text` for an HTML document.
pub(super) fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// A sentence for an HTML document: no number stands without its unit at the end of a line.
pub(super) fn prose(text: &str) -> String {
    let units = [" %", " µs", " kB", " MB", " B"];
    units.into_iter().fold(html(text), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")))
}

/// `text` within a line of Markdown, cells of tables included.
pub(super) fn markdown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in clean(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '&') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}

/// `text` as it is, between fences that it cannot close.
pub(super) fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}\n", clean(text))
}

/// Without characters that XML forbids or that end a line: control characters become spaces.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c }).collect()
}

/// At most `longest` characters, the last of which says that there were more.
pub(super) fn shortened(text: &str, longest: usize) -> String {
    let text = clean(text);
    if text.chars().count() <= longest {
        return text;
    }
    text.chars().take(longest.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(html("<a b='c'>\u{0}&\""), "&lt;a b=&#39;c&#39;&gt; &amp;&quot;");
        assert_eq!(markdown("a|b*\n`c`"), "a\\|b\\* \\`c\\`");
        assert_eq!(fenced("a ``` b"), "````\na ``` b\n````\n");
        assert_eq!(shortened("candle kv=bf16", 8), "candle …");
        assert_eq!(shortened("candle", 8), "candle");
    }
}

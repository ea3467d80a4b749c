//! Where a parameter's value ends.
//!
//! A value is raw text and may itself hold tags: a file that documents this very form, say. Three things tell structure
//! from text. Structure stands at the start of a line, or without any lines at all. It is followed by more structure: a
//! parameter's closer by the next parameter or the function's closer, that one by the call's. And tags in a text mostly
//! come in pairs, so a closer whose opener stands in the value belongs to that one.
//!
//! A closer that is missing is made up for by the next parameter, or by the closer of what is around it.

use super::{
    CALL, CALL_END, FUNCTION, FUNCTION_END, First, Name, PARAMETER, PARAMETER_END, first_behind, first_of, name,
};

/// What may follow a parameter's closer.
const AFTER_PARAMETER: [&str; 5] = [PARAMETER, FUNCTION_END, CALL_END, CALL, FUNCTION];

/// A value being read.
#[derive(Debug)]
pub(super) struct Value {
    start: usize,
    layout: Layout,
    loose: bool,
    /// Up to here there is no end.
    scanned: usize,
    /// Openers in the value whose closers have not come.
    calls: usize,
    functions: usize,
    parameters: usize,
}

/// How a value stands to its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// On lines of its own, the first of which begins behind the value's first newline.
    Block,
    /// As block, but the header has taken that newline.
    BlockAfterLine,
    /// On the header's line.
    Inline,
}

/// Whether a value has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The value goes up to `end`; reading goes on at `next`.
    Found { end: usize, next: usize },
    /// Not in this text.
    Unknown,
}

/// What a tag inside a value is.
enum Role {
    Ends {
        next: usize,
    },
    Text,
    /// What follows decides, and has not come yet.
    Open,
}

impl Layout {
    /// The layout of a value that starts at `start`; `line` says that its header ended with the line.
    pub(super) fn at(text: &str, start: usize, line: bool) -> Self {
        match text[start..].chars().next() {
            _ if line => Self::BlockAfterLine,
            Some('\n') | None => Self::Block,
            Some(_) => Self::Inline,
        }
    }
}

impl Value {
    pub(super) fn new(start: usize, layout: Layout, loose: bool) -> Self {
        Self { start, layout, loose, scanned: start, calls: 0, functions: 0, parameters: 0 }
    }

    /// The value's text, without the newline that layout puts on each side.
    pub(super) fn content<'a>(&self, text: &'a str, end: usize) -> &'a str {
        let content = &text[self.start..end];
        let content =
            if self.layout == Layout::Block { content.strip_prefix('\n').unwrap_or(content) } else { content };
        content.strip_suffix('\n').unwrap_or(content)
    }

    /// Looks for the end; `ended` says that no more text comes. `fits` knows the parameters that may come next, `is_tool`
    /// the tools of the request.
    pub(super) fn find_end(
        &mut self,
        text: &str,
        ended: bool,
        fits: impl Fn(&str) -> bool,
        is_tool: impl Fn(&str) -> bool,
    ) -> Ending {
        // The first letter may have come only now.
        if self.layout == Layout::Block && text[self.start..].starts_with(|letter| letter != '\n') {
            self.layout = Layout::Inline;
        }
        while let Some(found) = text[self.scanned..].find('<') {
            let at = self.scanned + found;
            self.scanned = at;
            match self.role(text, at, ended, &fits, &is_tool) {
                Role::Ends { next } => {
                    // Structure with an indent: the indent is layout too.
                    let line = if next == at { self.line_start(text, at).unwrap_or(at) } else { at };
                    return Ending::Found { end: line, next };
                }
                Role::Text => self.scanned = at + 1,
                Role::Open => return Ending::Unknown,
            }
        }
        self.scanned = text.len();
        Ending::Unknown
    }

    /// The start of the line of a tag that stands first on it.
    fn line_start(&self, text: &str, at: usize) -> Option<usize> {
        let before = &text[self.start..at];
        let start = match before.rfind('\n') {
            Some(newline) => self.start + newline + 1,
            None if self.layout == Layout::BlockAfterLine || before.is_empty() => self.start,
            None => return None,
        };
        text[start..at].bytes().all(|byte| matches!(byte, b' ' | b'\t')).then_some(start)
    }

    /// Whether the value has stayed on its header's line up to `at`.
    fn is_inline(&self, text: &str, at: usize) -> bool {
        self.layout == Layout::Inline && !text[self.start..at].contains('\n')
    }

    fn role(
        &mut self,
        text: &str,
        at: usize,
        ended: bool,
        fits: &impl Fn(&str) -> bool,
        is_tool: &impl Fn(&str) -> bool,
    ) -> Role {
        let tags = [PARAMETER_END, PARAMETER, FUNCTION_END, FUNCTION, CALL_END, CALL];
        let here = match first_of(&text[at..], &tags) {
            First::Tag(tag) => tag,
            First::Started if !ended => return Role::Open,
            _ => return Role::Text,
        };
        let role = match here {
            PARAMETER_END => self.parameter_end(text, at, ended, fits),
            PARAMETER => self.parameter(text, at, ended, fits),
            FUNCTION_END => self.function_end(text, at, ended),
            CALL_END => self.call_end(text, at, ended),
            CALL => self.call(text, at, ended, is_tool),
            _ => Role::Text,
        };
        if matches!(role, Role::Text) {
            match here {
                PARAMETER_END => self.parameters = self.parameters.saturating_sub(1),
                PARAMETER => self.parameters += 1,
                FUNCTION_END => self.functions = self.functions.saturating_sub(1),
                FUNCTION => self.functions += 1,
                CALL_END => self.calls = self.calls.saturating_sub(1),
                _ => self.calls += 1,
            }
        }
        role
    }

    /// `</parameter>`: followed by the next parameter, by the function's closer, or by nothing.
    fn parameter_end(&self, text: &str, at: usize, ended: bool, fits: &impl Fn(&str) -> bool) -> Role {
        let ends = Role::Ends { next: at + PARAMETER_END.len() };
        let (first, next) = first_behind(text, at + PARAMETER_END.len(), &AFTER_PARAMETER);
        match first {
            First::Started if ended => ends,
            First::Started => Role::Open,
            First::Tag(PARAMETER) => match name(text, next + PARAMETER.len()) {
                Name::Started if !ended => Role::Open,
                Name::Whole { name, .. } => {
                    let gap = &text[at + PARAMETER_END.len()..next];
                    let laid_out =
                        gap.contains('\n') || self.is_inline(text, at) || self.line_start(text, at).is_some();
                    let new = fits(name) && self.functions == 0;
                    // Given twice, or not the tool's: still a parameter, but for one that closes an opener in the value.
                    let own = self.functions == 0 && self.parameters == 0;
                    if self.loose || laid_out && (new || own) { ends } else { Role::Text }
                }
                _ => Role::Text,
            },
            First::Tag(FUNCTION_END) if self.loose => ends,
            First::Tag(FUNCTION_END) if self.functions > 0 => Role::Text,
            First::Tag(FUNCTION_END) => match self.behind_function(text, next, ended) {
                Role::Ends { .. } => ends,
                other => other,
            },
            First::Tag(CALL_END) if self.loose || self.calls == 0 => ends,
            // The next call: this one lacks its other closers.
            First::Tag(_) if self.loose || self.calls + self.functions + self.parameters == 0 => ends,
            _ => Role::Text,
        }
    }

    /// `<parameter=`, which makes up for a closer before it: at the start of a line, and one that the tool takes.
    fn parameter(&self, text: &str, at: usize, ended: bool, fits: &impl Fn(&str) -> bool) -> Role {
        let placed = self.line_start(text, at).is_some() || self.is_inline(text, at);
        if !placed || (self.functions > 0 && !self.loose) {
            return Role::Text;
        }
        match name(text, at + PARAMETER.len()) {
            Name::Started if !ended => Role::Open,
            Name::Whole { name, .. } if fits(name) => Role::Ends { next: at },
            _ => Role::Text,
        }
    }

    /// `</function>` where no parameter's closer came before it.
    fn function_end(&self, text: &str, at: usize, ended: bool) -> Role {
        if self.loose && self.line_start(text, at).is_some() {
            return Role::Ends { next: at };
        }
        if self.functions > 0 {
            return Role::Text;
        }
        match self.behind_function(text, at, ended) {
            Role::Ends { .. } => Role::Ends { next: at },
            other => other,
        }
    }

    /// Whether the function's closer at `at` is followed by the call's, by the next call, or by nothing.
    fn behind_function(&self, text: &str, at: usize, ended: bool) -> Role {
        match first_behind(text, at + FUNCTION_END.len(), &[CALL_END, CALL, FUNCTION]) {
            (First::Tag(_), next) => Role::Ends { next },
            (First::Started, next) if ended => Role::Ends { next },
            (First::Started, _) => Role::Open,
            (First::Other, _) => Role::Text,
        }
    }

    /// `</tool_call>` where neither of the closers inside came: at the start of a line, and followed by nothing or the next
    /// call.
    fn call_end(&self, text: &str, at: usize, ended: bool) -> Role {
        let before = text[self.start..at].trim_end();
        // Those closers were taken for text, by openers in the value: which of them is wrong shows at the end.
        let doubtful = before.ends_with(FUNCTION_END) || before.ends_with(PARAMETER_END) || self.calls > 0;
        if self.line_start(text, at).is_none() || (doubtful && !self.loose) {
            return Role::Text;
        }
        match first_behind(text, at + CALL_END.len(), &[CALL]).0 {
            _ if self.loose => Role::Ends { next: at },
            First::Tag(_) => Role::Ends { next: at },
            First::Started if ended => Role::Ends { next: at },
            First::Started => Role::Open,
            First::Other => Role::Text,
        }
    }

    /// `<tool_call>`: the next call, where all closers are missing. Only the loose reading takes it so.
    fn call(&self, text: &str, at: usize, ended: bool, is_tool: &impl Fn(&str) -> bool) -> Role {
        if !self.loose || !ended || self.line_start(text, at).is_none() {
            return Role::Text;
        }
        match first_behind(text, at + CALL.len(), &[FUNCTION]) {
            (First::Tag(_), next) => match name(text, next + FUNCTION.len()) {
                Name::Whole { name, .. } if is_tool(name) => Role::Ends { next: at },
                _ => Role::Text,
            },
            _ => Role::Text,
        }
    }
}

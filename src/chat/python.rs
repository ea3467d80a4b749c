//! What chat templates get from Python, where the renderer has it otherwise: JSON, numbers, white space.
//!
//! Every difference here was found by rendering the same conversations with Python's Jinja (`chat::parity`).

use std::io::{Result as IoResult, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::clock;

/// Gives an environment what templates take for granted, the functions and `tojson` of transformers included.
pub(super) fn install(environment: &mut Environment<'_>) {
    // transformers renders chat templates with these two on.
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(format);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| clock::strftime_now(format));
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", string);
    environment.add_filter("trim", trim);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Python's spacing and numbers, keys in their order, nothing
/// escaped for HTML.
fn to_json(value: Value, kwargs: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::BadSerialization, "it writes a value as JSON that is not there"));
    }
    let indent: Option<usize> = kwargs.get("indent")?;
    // Python's other arguments change nothing that a template of ours has shown; an unknown one is no reason to fail.
    let _ = kwargs.assert_all_used();
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine)).map_err(failed)?,
        Some(width) => {
            // More than any template asks for, and a bound on what a switch could make of it.
            let spaces = " ".repeat(width.min(16));
            let formatter = Indented(PrettyFormatter::with_indent(spaces.as_bytes()));
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter)).map_err(failed)?;
        }
    }
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// `", "` between elements and `": "` after keys.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        writer.write_all(b": ")
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> IoResult<()> {
        writer.write_all(float(value).as_bytes())
    }
}

/// A line an element, with Python's numbers.
struct Indented<'a>(PrettyFormatter<'a>);

impl Formatter for Indented<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.0.end_object_value(writer)
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> IoResult<()> {
        writer.write_all(float(value).as_bytes())
    }
}

/// `repr` of a finite float: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..16) => {
            let plain = value.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs()),
        Err(_) => scientific,
    }
}

/// The value as a finite float, where it is one.
fn as_float(value: &Value) -> Option<f64> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    f64::try_from(value.clone()).ok().filter(|value| float && value.is_finite())
}

/// What `{{ value }}` writes.
fn format(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match as_float(value) {
        Some(value) => out.write_str(&float(value)).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

/// `str(value)`.
fn string(value: &Value) -> Value {
    match as_float(value) {
        Some(value) => float(value).into(),
        None if value.kind() == ValueKind::String => value.clone(),
        None => value.to_string().into(),
    }
}

/// Whether Python takes a character for white space: what Unicode does, and the four separators of ASCII.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\x1c'..='\x1f')
}

/// `str(value).strip(letters)`, with white space where no letters are given.
fn trim(value: &Value, letters: Option<&str>) -> String {
    let text = value.to_string();
    match letters {
        None => text.trim_matches(is_space).to_owned(),
        Some(letters) => text.trim_matches(|letter| letters.contains(letter)).to_owned(),
    }
}

/// Whether `iter(value)` works: on texts, and on what is not defined, but not on none.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// Whether a value has a length and elements: a text and a dict do as well.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}

/// Methods of Python's strings, dicts and lists.
fn method(state: &State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    // Only those without arguments ask what white space is.
    if let (Some(text), []) = (value.as_str(), arguments) {
        match name {
            "strip" => return Ok(text.trim_matches(is_space).into()),
            "lstrip" => return Ok(text.trim_start_matches(is_space).into()),
            "rstrip" => return Ok(text.trim_end_matches(is_space).into()),
            "split" => return Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect()),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected texts: Python's own repr.
    #[test]
    fn floats_as_python_writes_them() {
        for (value, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00012, "0.00012"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1.5e300, "1.5e+300"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(float(value), want);
        }
    }

    #[test]
    fn white_space_is_pythons() {
        let mut environment = Environment::new();
        install(&mut environment);
        let render = |template: &str| {
            let text = "\u{1c}\u{a0} a\u{1f}b \u{200b}\u{3000}\n";
            environment.render_str(template, minijinja::context! { text }).unwrap()
        };
        assert_eq!(render("{{ text | trim }}"), "a\u{1f}b \u{200b}");
        assert_eq!(render("{{ text.strip() }}"), "a\u{1f}b \u{200b}");
        assert_eq!(render("{{ text.lstrip().rstrip('\n') }}"), "a\u{1f}b \u{200b}\u{3000}");
        assert_eq!(render("{{ text.split() | length }}{{ 'xax' | trim('x') }}"), "3a");
    }
}

//! The `tojson` filter, as transformers defines it: Python's `json.dumps`
//! with `ensure_ascii=False`, not Jinja2's HTML-safe one.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::args::{bind, str_arg};
use super::repr::{as_f64, check_len, write_float};
use crate::limits::VALUE_DEPTH_MAX;
use crate::value::{as_dict, dict_entries, fail, iterate, to_value, type_name};

struct Dumper {
    ascii: bool,
    /// One level of indentation; `None` for one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    out: String,
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(_state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["x", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ascii, indent, separators, sort_keys] = bind(args, names, 1)?;
    let indent = match indent {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
        Some(indent) => {
            let width = super::args::int_arg(&indent)?.clamp(0, 1024);
            Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
        }
    };
    let (item_separator, key_separator) = match separators.filter(|value| !value.is_none()) {
        Some(separators) => match iterate(&separators)?.as_slice() {
            [item, key] => (str_arg(item)?.to_owned(), str_arg(key)?.to_owned()),
            _ => return Err(fail("separators must be two strings")),
        },
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut dumper = Dumper {
        ascii: ascii.is_some_and(|value| value.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        out: String::new(),
    };
    dumper.value(&value.unwrap_or_default(), 0)?;
    Ok(Value::from(dumper.out))
}

/// Python's `json.dumps(value, ensure_ascii=ascii)`, on one line. `None` for a value that is too deep or too
/// long.
pub(crate) fn dumps(value: &serde_json::Value, ascii: bool) -> Option<String> {
    let mut dumper = Dumper {
        ascii,
        indent: None,
        item_separator: ", ".to_owned(),
        key_separator: ": ".to_owned(),
        sort_keys: false,
        out: String::new(),
    };
    dumper.value(&to_value(value, VALUE_DEPTH_MAX)?, 0).ok()?;
    Some(dumper.out)
}

impl Dumper {
    fn value(&mut self, value: &Value, level: usize) -> Result<(), Error> {
        if level >= VALUE_DEPTH_MAX {
            return Err(fail("value nested too deep for tojson"));
        }
        check_len(&self.out)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map if as_dict(value).is_some() => self.dict(value, level)?,
            ValueKind::Seq | ValueKind::Iterable
                if matches!(type_name(value), "list" | "tuple") =>
            {
                self.list(value, level)?;
            }
            _ => {
                return Err(fail(format!(
                    "Object of type {} is not JSON serializable",
                    type_name(value)
                )));
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            return write!(self.out, "{value}").map_err(|_| fail("integer"));
        }
        let float = as_f64(value);
        if float.is_nan() {
            self.out.push_str("NaN");
        } else if float.is_infinite() {
            self.out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
        } else {
            write_float(&mut self.out, float);
        }
        Ok(())
    }

    fn newline(&mut self, level: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..level {
                self.out.push_str(indent);
            }
        }
    }

    fn list(&mut self, value: &Value, level: usize) -> Result<(), Error> {
        let mut is_empty = true;
        self.out.push('[');
        for item in value.try_iter()?.checked() {
            let item = item?;
            if !is_empty {
                self.out.push_str(&self.item_separator);
            }
            is_empty = false;
            self.newline(level + 1);
            self.value(&item, level + 1)?;
        }
        if !is_empty {
            self.newline(level);
        }
        self.out.push(']');
        Ok(())
    }

    fn dict(&mut self, value: &Value, level: usize) -> Result<(), Error> {
        let mut entries = dict_entries(value)?;
        if self.sort_keys {
            if entries.iter().any(|(key, _)| key.as_str().is_none()) {
                return Err(fail("keys to sort must be strings"));
            }
            // Python orders strings by code point, as UTF-8 does.
            entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
        }
        self.out.push('{');
        for (at, (key, item)) in entries.iter().enumerate() {
            if at > 0 {
                self.out.push_str(&self.item_separator);
            }
            self.newline(level + 1);
            self.key(key)?;
            self.out.push_str(&self.key_separator);
            self.value(item, level + 1)?;
        }
        if !entries.is_empty() {
            self.newline(level);
        }
        self.out.push('}');
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => {
                self.string(key.as_str().unwrap_or_default());
                Ok(())
            }
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
                Ok(())
            }
            _ => Err(fail("keys must be str, int, float, bool or None")),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| self.must_escape(c)) {
            let (plain, tail) = rest.split_at(at);
            self.out.push_str(plain);
            let mut chars = tail.chars();
            if let Some(c) = chars.next() {
                self.escape(c);
            }
            rest = chars.as_str();
        }
        self.out.push_str(rest);
        self.out.push('"');
    }

    fn must_escape(&self, c: char) -> bool {
        matches!(c, '"' | '\\' | '\0'..='\u{1f}') || (self.ascii && !matches!(c, ' '..='~'))
    }

    fn escape(&mut self, c: char) {
        match c {
            '"' => self.out.push_str("\\\""),
            '\\' => self.out.push_str("\\\\"),
            '\n' => self.out.push_str("\\n"),
            '\r' => self.out.push_str("\\r"),
            '\t' => self.out.push_str("\\t"),
            '\u{8}' => self.out.push_str("\\b"),
            '\u{c}' => self.out.push_str("\\f"),
            c => {
                let mut units = [0_u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    // Writing to a string cannot fail.
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            }
        }
    }
}

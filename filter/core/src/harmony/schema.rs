//! JSON schemas as the TypeScript that Harmony shows to a model.
//!
//! The rules are those of OpenAI's library, odd ones included: `anyOf`, `allOf` and `$ref` are `any`,
//! null is `any`, and only the members of an object and the variants of a `oneOf` show their defaults.
//! Linear in the schema, but for the indentation; bounded by the output's length.

use serde_json::{Map, Value};

/// TypeScript while it is written.
pub(super) struct TypeScript {
    text: String,
    bytes_max: usize,
    is_too_long: bool,
}

/// Where a default stands, which decides how a text among them is quoted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a union that is a type of its own.
    Union,
    /// In a member, or in a union that is a member's type.
    Member,
}

impl TypeScript {
    /// Writes behind `text`, in all at most `bytes_max` bytes.
    pub(super) fn after(text: String, bytes_max: usize) -> Self {
        Self { text, bytes_max, is_too_long: false }
    }

    /// What was written; `None` when it did not fit.
    pub(super) fn finish(self) -> Option<String> {
        (!self.is_too_long).then_some(self.text)
    }

    /// Writes `text` as it is.
    pub(super) fn push(&mut self, text: &str) {
        self.is_too_long |= self.text.len() + text.len() > self.bytes_max;
        if !self.is_too_long {
            self.text.push_str(text);
        }
    }

    /// Writes a line of comment.
    pub(super) fn comment(&mut self, indent: &str, text: &str) {
        self.push(indent);
        self.push("// ");
        self.push(text);
        self.push("\n");
    }

    /// Writes the type of `schema`.
    pub(super) fn schema(&mut self, schema: &Value, indent: &str) {
        if self.is_too_long {
            return;
        }
        if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
            self.union(variants, indent);
            return;
        }
        match schema.get("type") {
            Some(Value::Array(types)) => self.types(types),
            Some(Value::String(name)) => match name.as_str() {
                "object" => self.object(schema, indent),
                "string" => self.string(schema),
                "number" | "integer" => self.push("number"),
                "boolean" => self.push("boolean"),
                "array" => match schema.get("items") {
                    Some(items) => {
                        self.schema(items, indent);
                        self.push("[]");
                    }
                    None => self.push("Array<any>"),
                },
                _ => self.push("any"),
            },
            _ => self.push("any"),
        }
    }

    fn union(&mut self, variants: &[Value], indent: &str) {
        for variant in variants {
            self.push("\n");
            self.variant(variant, indent, text_of(variant, "description"), Place::Union);
        }
    }

    /// A variant of a union, with what is said about it.
    fn variant(&mut self, variant: &Value, indent: &str, about: Option<&str>, place: Place) {
        self.push(indent);
        self.push(" | ");
        self.nullable(variant, &format!("{indent}   "));
        let mut comments: Vec<String> = about.map(str::to_owned).into_iter().collect();
        comments.extend(default_of(variant, place));
        self.trailing(&comments);
    }

    fn types(&mut self, types: &[Value]) {
        let mut names = types.iter().filter_map(Value::as_str).peekable();
        if names.peek().is_none() {
            self.push("any");
        }
        while let Some(name) = names.next() {
            self.push(if name == "integer" { "number" } else { name });
            if names.peek().is_some() {
                self.push(" | ");
            }
        }
    }

    fn string(&mut self, schema: &Value) {
        let values = schema.get("enum").and_then(Value::as_array);
        let mut values = values.into_iter().flatten().filter_map(Value::as_str).peekable();
        if values.peek().is_none() {
            self.push("string");
        }
        while let Some(value) = values.next() {
            self.push("\"");
            self.push(value);
            self.push(if values.peek().is_some() { "\" | " } else { "\"" });
        }
    }

    fn object(&mut self, schema: &Value, indent: &str) {
        if let Some(text) = text_of(schema, "description") {
            self.comment(indent, text);
        }
        self.push("{\n");
        if let Some(members) = schema.get("properties").and_then(Value::as_object) {
            self.members(members, schema, indent);
        }
        self.push(indent);
        self.push("}");
    }

    fn members(&mut self, members: &Map<String, Value>, schema: &Value, indent: &str) {
        let required = schema.get("required").and_then(Value::as_array);
        let required: ahash::AHashSet<&str> =
            required.into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, member) in members {
            if self.is_too_long {
                return;
            }
            let name = (name.as_str(), required.contains(name.as_str()));
            self.about(member, indent);
            match member.get("oneOf") {
                Some(Value::Array(variants)) => self.union_member(name, member, variants, indent),
                other => self.plain_member(name, member, indent, other.is_none()),
            }
        }
    }

    /// The comments above a member.
    fn about(&mut self, member: &Value, indent: &str) {
        if let Some(title) = text_of(member, "title") {
            self.comment(indent, title);
            self.push(indent);
            self.push("//\n");
        }
        if let (None, Some(text)) = (member.get("oneOf"), text_of(member, "description")) {
            self.comment(indent, text);
        }
        let examples = member.get("examples").and_then(Value::as_array);
        let Some(examples) = examples.filter(|examples| !examples.is_empty()) else { return };
        self.comment(indent, "Examples:");
        for example in examples.iter().filter_map(Value::as_str) {
            self.comment(indent, &format!("- \"{example}\""));
        }
    }

    fn name(&mut self, (name, is_required): (&str, bool), indent: &str) {
        self.push(indent);
        self.push(name);
        self.push(if is_required { ":" } else { "?:" });
    }

    fn plain_member(
        &mut self,
        name: (&str, bool),
        member: &Value,
        indent: &str,
        shows_default: bool,
    ) {
        self.name(name, indent);
        self.push(" ");
        self.nullable(member, &format!("{indent}    "));
        self.push(",");
        if shows_default {
            self.trailing(default_of(member, Place::Member).as_slice());
        }
        self.push("\n");
    }

    fn union_member(
        &mut self,
        name: (&str, bool),
        member: &Value,
        variants: &[Value],
        indent: &str,
    ) {
        let about = text_of(member, "description");
        let about_first = variants.first().and_then(|first| text_of(first, "description"));
        let above = about.filter(|_| about != about_first);
        if let Some(text) = above {
            self.comment(indent, text);
        }
        if let Some(default) = default_of(member, Place::Member) {
            self.comment(indent, &default);
        }
        self.name(name, indent);
        self.push("\n");
        for (at, variant) in variants.iter().enumerate() {
            let own = text_of(variant, "description");
            let own = own.filter(|_| own != about && !(at == 0 && above.is_some()));
            self.variant(variant, indent, own, Place::Member);
            self.push("\n");
        }
        self.push(indent);
        self.push(",\n");
    }

    /// The type of `schema`, which may be null too.
    fn nullable(&mut self, schema: &Value, indent: &str) {
        let start = self.text.len();
        self.schema(schema, indent);
        let is_nullable = schema.get("nullable") == Some(&Value::Bool(true));
        if is_nullable && !self.text.get(start..).is_some_and(|text| text.contains("null")) {
            self.push(" | null");
        }
    }

    fn trailing(&mut self, comments: &[String]) {
        if !comments.is_empty() {
            self.push(" // ");
            self.push(&comments.join(" "));
        }
    }
}

fn text_of<'v>(schema: &'v Value, field: &str) -> Option<&'v str> {
    schema.get(field).and_then(Value::as_str)
}

/// A schema's default in words. A text that is one of a list is not quoted; in a union that is a type of
/// its own it is JSON.
fn default_of(schema: &Value, place: Place) -> Option<String> {
    let default = schema.get("default")?;
    let is_listed =
        schema.get("enum").and_then(Value::as_array).is_some_and(|values| !values.is_empty());
    Some(match default {
        Value::String(text) if !is_listed => format!("default: \"{text}\""),
        Value::String(text) if place == Place::Member => format!("default: {text}"),
        other => format!("default: {other}"),
    })
}

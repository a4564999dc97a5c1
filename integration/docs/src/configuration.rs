//! `docs/configuration.md`, from the configuration's schema.
//!
//! Each object of the schema is a table, in the order in which fields name them; each closed set of values
//! is a table of its own.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::markdown::{code, table};

const HEAD: &str = "\
# Configuration

Written by `warmpath-docs` (`make docs`) from `filter/core/src/config/raw.rs`; \
[configuration.schema.json](configuration.schema.json) says the same to an editor or a pipeline.

The configuration is JSON text in the filter's `configuration` in Envoy, see `envoy/override-host.yaml`. A \
field that is not below, a wrong type, a value out of bounds or a contradiction fails the configuration when \
Envoy loads it, never a request; all contradictions are reported at once, each with its path. A field without \
a default may be left out, and is then as the text says, unless it is required.

The example sets most fields:

```json
";

const INTERNAL: &str = "\
\n# Internal listener

On a listener of its own, which only operators reach, the same filter serves `/_warmpath/` (a page), \
`/_warmpath/status`, `/_warmpath/explain/...` and `/_warmpath/backends`. Its configuration there is \
`{\"internal\": true}`.

";

const PUSH: &str = "\
\n# Pushed backends

The body of `PUT /_warmpath/backends`, where the configuration has `push`. Its backends have the fields of \
`backends[]` above.

";

/// The page.
#[must_use]
pub fn page(schema: &Value, push: &Value, example: &str) -> String {
    let mut text = format!("{HEAD}{example}```\n\n# Listeners whose requests are routed\n");
    let mut page = Page { schema, text: String::new(), sets: HashSet::new() };
    page.object(&schema["$defs"]["Router"], "");
    text.push_str(&page.text);
    text.push_str(INTERNAL);
    text.push_str(&Page::new(schema).rows(&schema["$defs"]["Internal"], ""));
    text.push_str(PUSH);
    text.push_str(&Page::new(push).rows(push, ""));
    text
}

struct Page<'a> {
    schema: &'a Value,
    text: String,
    /// Closed sets that have their table.
    sets: HashSet<String>,
}

impl<'a> Page<'a> {
    fn new(schema: &'a Value) -> Self {
        Self { schema, text: String::new(), sets: HashSet::new() }
    }

    /// An object at `path`, and then what is in it.
    fn object(&mut self, object: &'a Value, path: &str) {
        if !path.is_empty() {
            self.text.push_str(&format!("\n## `{path}`\n\n{}\n", describe(object)));
        }
        let rows = self.rows(object, path);
        self.text.push_str(&format!("\n{rows}"));
        for (name, field) in fields(object) {
            let path = join(path, name);
            if let Some(definition) = self.definition(field) {
                self.definition_table(definition, &path);
            } else if let Some(item) = self.definition(&field["items"]) {
                self.object(item, &format!("{path}[]"));
            }
        }
    }

    fn definition_table(&mut self, definition: &'a Value, path: &str) {
        if definition.get("oneOf").is_none() {
            return self.object(definition, path);
        }
        if !self.sets.insert(path.to_owned()) {
            return;
        }
        let values = definition["oneOf"].as_array().into_iter().flatten();
        let rows: Vec<Vec<String>> =
            values.map(|value| vec![constant(&value["const"]), describe(value)]).collect();
        let values = table(&[&code(path), "meaning"], &rows);
        self.text.push_str(&format!("\n{values}"));
    }

    /// The table of an object's fields.
    fn rows(&self, object: &Value, path: &str) -> String {
        let required = object["required"].as_array().cloned().unwrap_or_default();
        let row = |(name, field): (&String, &Value)| {
            let is_required = required.iter().any(|other| other == name.as_str());
            let default = match field.get("default") {
                _ if is_required => "required".to_owned(),
                None | Some(Value::Null) => "-".to_owned(),
                Some(default) => constant(default),
            };
            let field_type = self.type_of(field);
            vec![code(&join(path, name)), field_type, default, bounds(field), describe(field)]
        };
        let rows: Vec<Vec<String>> = fields(object).map(row).collect();
        table(&["field", "type", "default", "bounds", "meaning"], &rows)
    }

    fn type_of(&self, field: &Value) -> String {
        if let Some(constant_value) = field.get("const") {
            return constant(constant_value);
        }
        if let Some(definition) = self.definition(field) {
            return if definition.get("oneOf").is_some() { "string" } else { "object" }.to_owned();
        }
        let types =
            field["type"].as_array().cloned().unwrap_or_else(|| vec![field["type"].clone()]);
        let types: Vec<&str> =
            types.iter().filter_map(Value::as_str).filter(|it| *it != "null").collect();
        match types.as_slice() {
            ["array"] => format!("list of {}s", self.type_of(&field["items"])),
            types => types.join(" or "),
        }
    }

    fn definition(&self, field: &Value) -> Option<&'a Value> {
        let name = field.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        self.schema["$defs"].get(name)
    }
}

fn fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object["properties"].as_object().into_iter().flat_map(Map::iter)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn describe(value: &Value) -> String {
    value["description"].as_str().unwrap_or_default().to_owned()
}

fn constant(value: &Value) -> String {
    match value {
        Value::String(text) => code(text),
        other => code(&other.to_string()),
    }
}

/// What a field's value is held to.
fn bounds(field: &Value) -> String {
    let number = |name: &str| field.get(name).and_then(Value::as_u64);
    let mut bounds = Vec::new();
    match (number("minimum"), number("maximum")) {
        (Some(least), Some(most)) => bounds.push(format!("{least} to {most}")),
        (Some(least), None) if least > 0 => bounds.push(format!("at least {least}")),
        _ => {}
    }
    if let Some(most) = number("maxLength") {
        bounds.push(format!("1 to {most} bytes"));
    }
    if let Some(most) = field["items"].get("maxLength") {
        bounds.push(format!("each of 1 to {most} bytes"));
    }
    if let Some(most) = number("maxItems") {
        bounds.push(format!("at most {most}"));
    }
    if let Some(pattern) = field.get("pattern").and_then(Value::as_str) {
        bounds.push(code(pattern));
    }
    if let Some(names) = field.get("properties").and_then(Value::as_object) {
        let names: Vec<String> = names.keys().map(|name| code(name)).collect();
        bounds.push(format!("names: {}", names.join(", ")));
    }
    if bounds.is_empty() { "-".to_owned() } else { bounds.join("; ") }
}

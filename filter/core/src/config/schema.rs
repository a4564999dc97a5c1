//! JSON Schema of the configuration: what an editor and a pipeline can check before Envoy does.
//!
//! Made from the raw types and the constants of the checks, so it accepts no more fields, and no other
//! bounds, than the filter. What needs more than one value to be seen (equal names, models that are not
//! configured, the form of an address) only the filter checks.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::raw::{RawConfig, RawInternal, RawPush};
use crate::request::Api;

/// The configuration of Warmpath in Envoy: of a listener whose requests it routes, or of the internal one.
#[derive(JsonSchema)]
#[schemars(rename = "Warmpath", untagged)]
#[allow(dead_code, reason = "its schema is what counts")]
enum Configuration {
    Router(Box<RawConfig>),
    Internal(RawInternal),
}

/// The schema of a configuration, as the filter takes it on any listener.
#[must_use]
pub fn configuration() -> Value {
    of::<Configuration>()
}

/// The schema of the body of `PUT /_warmpath/backends`.
#[must_use]
pub fn push() -> Value {
    of::<RawPush>()
}

fn of<T: JsonSchema>() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    RecursiveTransform(unwrap_lines).transform(&mut schema);
    schema.to_value()
}

/// Comments are wrapped for readers of the code; here a paragraph is a line.
fn unwrap_lines(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.split("\n\n").map(|it| it.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
}

/// A switch for each API.
pub(super) fn apis(_: &mut SchemaGenerator) -> Schema {
    let switch = |api: Api| (api.name().to_owned(), json!({"type": "boolean", "default": true}));
    let switches: serde_json::Map<String, Value> = Api::ALL.into_iter().map(switch).collect();
    json_schema!({"type": "object", "properties": switches, "additionalProperties": false})
}

/// Backends come from somewhere.
pub(super) fn need_backends(schema: &mut Schema) {
    let on = |field: &str| json!({"required": [field], "properties": {field: {"const": true}}});
    let listed = json!({"required": ["backends"], "properties": {"backends": {"minItems": 1}}});
    schema.insert("anyOf".to_owned(), json!([listed, on("observe"), on("push")]));
}

/// What is observed are a cluster's hosts.
pub(super) fn need_endpoint_cluster(schema: &mut Schema) {
    let observes = json!({"required": ["observe"], "properties": {"observe": {"const": true}}});
    let named = json!({
        "required": ["endpoint_cluster"],
        "properties": {"endpoint_cluster": {"type": "string"}},
    });
    schema.insert("allOf".to_owned(), json!([{"if": observes, "then": named}]));
}

/// The header goes with the policy `session`, and only with it.
pub(super) fn need_session_header(schema: &mut Schema) {
    let is_session =
        json!({"required": ["policy"], "properties": {"policy": {"const": "session"}}});
    let named = json!({
        "required": ["session_header"],
        "properties": {"session_header": {"type": "string"}},
    });
    schema.insert("if".to_owned(), is_session);
    schema.insert("then".to_owned(), named.clone());
    schema.insert("else".to_owned(), json!({"not": named}));
}

/// A backend can be named to Envoy.
pub(super) fn need_cluster_or_address(schema: &mut Schema) {
    let has = |field: &str| json!({"required": [field], "properties": {field: {"type": "string"}}});
    schema.insert("anyOf".to_owned(), json!([has("cluster"), has("address")]));
}

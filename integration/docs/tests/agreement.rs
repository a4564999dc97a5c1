//! The schema and the filter agree on configurations, where a schema can tell.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use serde_json::{Value, json};
use warmpath_core::config::{Config, Role, schema};
use warmpath_docs::{EXAMPLE, repository};

fn base() -> Value {
    json!({
        "backends": [{"name": "a", "cluster": "a", "address": "127.0.0.1:1"}],
        "models": [{"name": "m", "bundle": {"cluster": "c", "path": "/m.wpb"}}],
    })
}

/// The base with another value at `pointer`, or a new field there.
fn with(pointer: &str, value: Value) -> Value {
    let mut config = base();
    match config.pointer_mut(pointer) {
        Some(place) => *place = value,
        None => {
            let (around, name) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(around).unwrap()[name] = value;
        }
    }
    config
}

fn in_schema(config: &Value) -> bool {
    jsonschema::validator_for(&schema::configuration()).unwrap().is_valid(config)
}

fn in_filter(config: &Value) -> bool {
    Role::parse(config.to_string().as_bytes()).is_ok()
}

#[test]
fn good_configurations_pass_both() {
    let long = "x".repeat(256);
    for config in [
        base(),
        serde_json::from_str(EXAMPLE).unwrap(),
        json!({"internal": true}),
        json!({"internal": true, "peers_only": true}),
        json!({"push": true}),
        with("/peers", json!({"cluster": "peers"})),
        with("/peers", json!({"cluster": "peers", "interval_ms": 1000})),
        with("/peers", Value::Null),
        json!({"observe": true, "endpoint_cluster": "engines"}),
        with("/name", json!(long)),
        with("/name", Value::Null),
        with("/body_bytes_max", json!(64 << 20)),
        with("/index_buckets", json!(1)),
        with("/scrape", json!({"enabled": false})),
        with("/scrape", json!({"path": "/m", "interval_ms": 100, "timeout_ms": 60000})),
        with("/apis", json!({"responses": false, "rerank": true})),
        with("/models/0/chat_template_content_format", json!("openai")),
        with("/models/0/block_size_tokens", json!(8192)),
        with("/backends/0", json!({"address": "[::1]:1"})),
        with("/backends/0/draining", json!(true)),
    ] {
        assert!(in_filter(&config), "{config}");
        assert!(in_schema(&config), "{config}");
    }
    let mut session = with("/policy", json!("session"));
    session["session_header"] = json!("x-session");
    assert!(in_filter(&session) && in_schema(&session));
}

#[test]
fn bad_configurations_fail_both() {
    let long = "x".repeat(257);
    for config in [
        json!({}),
        json!([]),
        json!({"backends": []}),
        json!({"internal": false}),
        json!({"internal": true, "policy": "random"}),
        json!({"peers_only": true}),
        json!({"observe": true}),
        with("/peers", json!({})),
        with("/peers", json!({"cluster": ""})),
        with("/peers", json!({"cluster": "peers", "interval_ms": 9})),
        with("/peers", json!({"cluster": "peers", "interval_ms": 1001})),
        with("/peers", json!({"cluster": "peers", "addresses": []})),
        with("/polcy", json!("kv_cost")),
        with("/policy", json!("best")),
        with("/policy", json!("session")),
        with("/session_header", json!("x-session")),
        with("/name", json!("")),
        with("/name", json!(long)),
        with("/body_bytes_max", json!(0)),
        with("/body_bytes_max", json!((64 << 20) + 1)),
        with("/index_buckets", json!(262_145)),
        with("/kv_capacity_tokens", json!(0)),
        with("/kv_capacity_tokens", json!("many")),
        with("/scrape", json!({"path": "metrics"})),
        with("/scrape", json!({"interval_ms": 99})),
        with("/scrape", json!({"timeout_ms": 60001})),
        with("/apis", json!({"chat": false})),
        with("/apis", json!({"responses": 1})),
        with("/decisions", json!({"log": true})),
        with("/backends/0", json!({"name": "a"})),
        with("/backends/0/weight", json!(1)),
        with("/backends/0/kv_capacity_tokens", json!(0)),
        with("/models/0/bundle", json!({"cluster": "c"})),
        with("/models/0/bundle/path", json!("m.wpb")),
        with("/models/0/block_size_tokens", json!(0)),
        with("/models/0/block_size_tokens", json!(8193)),
        with("/models/0/aliases", json!([""])),
        with("/models/0/streamed_usage", Value::Null),
    ] {
        assert!(!in_filter(&config), "{config}");
        assert!(!in_schema(&config), "{config}");
    }
    let mut header = with("/policy", json!("session"));
    header["session_header"] = json!("X-Session");
    assert!(!in_filter(&header) && !in_schema(&header));
}

/// What takes two values, or a parser, to see.
#[test]
fn some_contradictions_only_the_filter_sees() {
    for config in [
        with("/backends/0/address", json!("localhost:1")),
        with("/backends/0/models", json!(["x"])),
    ] {
        assert!(!in_filter(&config), "{config}");
    }
    let twice = json!({"backends": [{"cluster": "a"}, {"cluster": "a"}]});
    assert!(!in_filter(&twice) && in_schema(&twice));
}

#[test]
fn pushes_are_judged_alike() {
    let config = Config::parse(json!({"push": true}).to_string().as_bytes()).unwrap();
    let validator = jsonschema::validator_for(&schema::push()).unwrap();
    for (push, is_good) in [
        (json!({"backends": [{"cluster": "a", "draining": true, "drain_s": 60}]}), true),
        (json!({"backends": []}), true),
        (json!({}), false),
        (json!({"backends": [{"cluster": "a", "draining": true, "drain_s": 86_401}]}), false),
        (json!({"backends": [{"name": "a"}]}), false),
    ] {
        let parsed = config.parse_push(push.to_string().as_bytes(), Default::default());
        assert_eq!(parsed.is_ok(), is_good, "{push}");
        assert_eq!(validator.is_valid(&push), is_good, "{push}");
    }
}

#[test]
fn the_bootstraps_configurations_pass_both() {
    for name in ["cluster-header", "override-host"] {
        let path = repository().join(format!("envoy/{name}.yaml"));
        let text = std::fs::read_to_string(path).unwrap();
        let bootstrap: Value = serde_yaml_ng::from_str(&text).unwrap();
        let mut found = Vec::new();
        configurations(&bootstrap, &mut found);
        assert!(found.len() >= 2, "{name}: a router and an internal listener");
        for config in found {
            assert!(in_filter(&config) && in_schema(&config), "{name}: {config}");
        }
    }
}

/// The filter's configurations anywhere in a bootstrap: JSON in the plugins named `warmpath...`.
fn configurations(value: &Value, found: &mut Vec<Value>) {
    if value["root_id"] == "warmpath"
        && let Some(text) = value["configuration"]["value"].as_str()
    {
        found.push(serde_json::from_str(text).unwrap());
    }
    match value {
        Value::Object(map) => map.values().for_each(|value| configurations(value, found)),
        Value::Array(items) => items.iter().for_each(|value| configurations(value, found)),
        _ => {}
    }
}

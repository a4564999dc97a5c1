//! A wrong configuration of the filter is refused before it serves, and the log says where it is wrong.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use warmpath_e2e::poll;
use warmpath_harness::bootstrap::merge;
use warmpath_harness::process::ChildProcess;
use warmpath_harness::{Bootstrap, Variant, paths};

/// Whether Envoy accepts the bootstrap, and its log.
async fn validate(bootstrap: &Bootstrap) -> (bool, String) {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("envoy.json");
    std::fs::write(&config, bootstrap.to_json()).unwrap();
    let arguments = ["--mode", "validate", "--log-level", "warning", "--config-path"];
    let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
    arguments.push(config.display().to_string());
    let log = dir.path().join("log");
    let mut envoy = ChildProcess::start(&paths::envoy().unwrap(), &arguments, &log).unwrap();
    let end = poll::until("Envoy's verdict", async || {
        tokio::time::sleep(Duration::from_millis(30)).await;
        envoy.ended().ok_or("it runs")
    })
    .await;
    (end.contains("exit status: 0"), envoy.log())
}

fn bootstrap(variant: Variant) -> Bootstrap {
    let mut bootstrap = Bootstrap::load(variant).unwrap();
    bootstrap.set_wasm(&paths::wasm().unwrap()).unwrap();
    bootstrap.set_bundle(None).unwrap();
    bootstrap
}

/// The bootstrap with `patch` merged into the filter's configuration.
async fn validate_patched(patch: &Value) -> (bool, String) {
    let mut bootstrap = bootstrap(Variant::ClusterHeader);
    merge(bootstrap.filter_config_mut().unwrap(), patch);
    validate(&bootstrap).await
}

async fn assert_refused(patch: &Value, expected: &[&str]) {
    let (accepted, log) = validate_patched(patch).await;
    assert!(!accepted, "accepted: {patch}");
    for words in expected {
        assert!(log.contains(words), "no {words:?} for {patch} in the log:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_repository_ships_is_accepted() {
    for variant in Variant::ALL {
        let (accepted, log) = validate(&bootstrap(variant)).await;
        assert!(accepted, "{variant:?}:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_value_is_named_at_once() {
    let patch = json!({
        "body_bytes_max": 0,
        "index_buckets": 999_999_999,
        "kv_capacity_tokens": 0,
        "fallback_cluster": "",
        "backends": [
            {"name": "", "cluster": "a"},
            {"name": "x", "address": "localhost:1"},
            {"name": "x", "cluster": "c"},
            {"name": "y"},
            {"name": "z", "address": "127.0.0.1:7", "kv_capacity_tokens": 0},
            {"name": "w", "address": "127.0.0.1:7"},
        ],
        "models": [
            {"name": "m", "block_size_tokens": 0, "bundle": {"cluster": "", "path": "p"}},
            {"name": "m", "bundle": {"cluster": "c", "path": "/p"}},
        ],
    });
    let paths = [
        "body_bytes_max: ",
        "index_buckets: ",
        " kv_capacity_tokens: ",
        "fallback_cluster: ",
        "backends[0].name: ",
        "backends[1].address: ",
        "backends[2].name: ",
        "backends[3].cluster: ",
        "backends[4].kv_capacity_tokens: ",
        "backends[5].address: ",
        "models[0].block_size_tokens: ",
        "models[0].bundle.cluster: ",
        "models[0].bundle.path: ",
        "models[1].aliases: ",
    ];
    assert_refused(&patch, &paths).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_shape_is_named() {
    let patch = json!({"backends": [{"name": "a", "cluster": "a", "weight": 1}]});
    assert_refused(&patch, &["configuration refused", "backends[0].weight: "]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_object_is_refused() {
    let text =
        json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "not JSON"});
    for configuration in [Value::Null, text] {
        let mut bootstrap = bootstrap(Variant::OverrideHost);
        bootstrap.plugin_mut().unwrap()["configuration"] = configuration.clone();
        let (accepted, log) = validate(&bootstrap).await;
        assert!(!accepted, "accepted: {configuration}");
        assert!(log.contains("configuration refused"), "{configuration}:\n{log}");
    }
}

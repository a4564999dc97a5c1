//! Envoy Gateway's policies, as far as the example has them, and `EnvoyPatchPolicy`.

use serde_json::{Value, json};

use super::{Gateway, Manifests, control_plane};

/// The gateway of `examples/envoy-gateway`.
pub fn gateway() -> Gateway {
    let manifests = Manifests::of("envoy-gateway");
    let (gateway, namespace) = (manifests.one("Gateway"), &manifests.namespace);
    let name = manifests.name("Gateway");
    let http = gateway["spec"]["listeners"][0]["name"].as_str().expect("a listener's name");
    let listener = format!("{namespace}/{name}/{http}");
    let cluster = format!("httproute/{namespace}/{}/rule/0", manifests.name("HTTPRoute"));
    manifests.backend();
    let clients = policy(&manifests, "ClientTrafficPolicy", "Gateway");
    let backends = policy(&manifests, "BackendTrafficPolicy", "HTTPRoute");
    let removed = clients["headers"]["earlyRequestHeaders"]["remove"].as_array().expect("headers");
    let mutations: Vec<Value> = removed.iter().map(|name| json!({"remove": name})).collect();
    let triggers = backends["retry"]["retryOn"]["triggers"].as_array().expect("triggers");
    let triggers: Vec<&str> = triggers.iter().filter_map(Value::as_str).collect();
    assert_eq!(backends["timeout"]["http"]["requestTimeout"], "0s");
    let mut root = control_plane(
        "envoy-gateway",
        &[
            ("$LISTENER", &listener),
            ("$CLUSTER", &cluster),
            ("$PATH", manifests.path_prefix()),
            ("$BUFFER_LIMIT", &bytes(&clients["connection"]["bufferLimit"])),
            ("$STREAM_WINDOW", &bytes(&clients["http2"]["initialStreamWindowSize"])),
            ("$CONNECTION_WINDOW", &bytes(&clients["http2"]["initialConnectionWindowSize"])),
            ("$MUTATIONS", &json!(mutations).to_string()),
            ("$RETRY_ON", &triggers.join(",")),
            ("$SOURCES", &backends["loadBalancer"]["endpointOverride"]["extractFrom"].to_string()),
        ],
    );
    let patches = policy(&manifests, "EnvoyPatchPolicy", "Gateway");
    assert_eq!(patches["type"], "JSONPatch");
    for patch in patches["jsonPatches"].as_array().expect("patches") {
        apply(&mut root["static_resources"], patch);
    }
    Gateway { listener, cluster, root, peers: None }
}

/// The policy of a kind. It must be for the only object of the kind `target`.
fn policy<'a>(manifests: &'a Manifests, kind: &str, target: &str) -> &'a Value {
    let spec = &manifests.one(kind)["spec"];
    let one = spec.get("targetRef").unwrap_or(&spec["targetRefs"][0]);
    assert_eq!(one["kind"], target, "{kind}");
    assert_eq!(one["name"], manifests.name(target), "{kind}");
    spec
}

/// Bytes of a quantity in mebibytes.
fn bytes(quantity: &Value) -> String {
    let mebibytes = quantity.as_str().and_then(|text| text.strip_suffix("Mi")).expect("some Mi");
    (mebibytes.parse::<u64>().expect("a number") << 20).to_string()
}

/// A patch without a path is a whole object; others change the object that they name.
fn apply(resources: &mut Value, patch: &Value) {
    let kind = patch["type"].as_str().unwrap_or_default().rsplit('.').next().unwrap_or_default();
    let list = match kind {
        "Listener" => &mut resources["listeners"],
        "Cluster" => &mut resources["clusters"],
        other => panic!("a patch of an unknown kind: {other}"),
    };
    let list = list.as_array_mut().expect("a list");
    let operation = &patch["operation"];
    if operation["op"] == "add" && operation["path"] == "" {
        assert_eq!(operation["value"]["name"], patch["name"]);
        list.push(operation["value"].clone());
        return;
    }
    let object = list.iter_mut().find(|object| object["name"] == patch["name"]);
    let object = object.unwrap_or_else(|| panic!("nothing to patch: {patch:#}"));
    let operations: json_patch::Patch =
        serde_json::from_value(json!([operation])).expect("an operation");
    json_patch::patch(object, &operations).expect("a place for the patch");
}

//! `EnvoyFilter`, applied as Istio does: what changes Istio's own objects first, additions after.

use serde_json::Value;

use super::{Gateway, Manifests, control_plane};

/// The gateway of `examples/istio`.
pub fn gateway() -> Gateway {
    let manifests = Manifests::of("istio");
    let (service, port) = manifests.backend();
    let host = format!("{service}.{}.svc.cluster.local", manifests.namespace);
    let cluster = format!("outbound|{port}||{host}");
    let mut root =
        control_plane("istio", &[("$CLUSTER", &cluster), ("$PATH", manifests.path_prefix())]);
    let filter = manifests.one("EnvoyFilter");
    let selected = &filter["spec"]["workloadSelector"]["labels"];
    assert_eq!(selected["gateway.networking.k8s.io/gateway-name"], manifests.name("Gateway"));
    assert_eq!(manifests.one("DestinationRule")["spec"]["host"], *host);
    let patches = filter["spec"]["configPatches"].as_array().expect("patches");
    let (additions, changes): (Vec<_>, Vec<_>) =
        patches.iter().partition(|patch| patch["patch"]["operation"] == "ADD");
    for patch in changes.into_iter().chain(additions) {
        assert_eq!(patch["match"]["context"], "GATEWAY");
        apply(&mut root["static_resources"], patch);
    }
    Gateway { listener: "0.0.0.0_80".to_owned(), cluster, root, peers: None }
}

fn apply(resources: &mut Value, patch: &Value) {
    let (matched, value) = (&patch["match"], &patch["patch"]["value"]);
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let done = match (&*text(&patch["applyTo"]), &*text(&patch["patch"]["operation"])) {
        ("NETWORK_FILTER", "MERGE") => {
            let name = &matched["listener"]["filterChain"]["filter"]["name"];
            let filters = network_filters(resources).filter(|filter| filter["name"] == *name);
            filters.map(|filter| merge(filter, value)).count()
        }
        ("HTTP_FILTER", "INSERT_BEFORE") => {
            let outer = &matched["listener"]["filterChain"]["filter"];
            let filters =
                network_filters(resources).filter(|filter| filter["name"] == outer["name"]);
            filters.map(|filter| insert_before(filter, &outer["subFilter"]["name"], value)).count()
        }
        ("HTTP_ROUTE", "MERGE") => {
            let hosts = network_filters(resources).flat_map(|filter| {
                items(&mut filter["typed_config"]["route_config"]["virtual_hosts"])
            });
            hosts
                .flat_map(|host| items(&mut host["routes"]))
                .map(|route| merge(route, value))
                .count()
        }
        ("CLUSTER", "MERGE") => {
            let wanted = &matched["cluster"];
            let name = format!("outbound|{}||{}", wanted["portNumber"], text(&wanted["service"]));
            let clusters =
                items(&mut resources["clusters"]).filter(|cluster| cluster["name"] == *name);
            clusters.map(|cluster| merge(cluster, value)).count()
        }
        (kind @ ("CLUSTER" | "LISTENER"), "ADD") => {
            let list = if kind == "CLUSTER" { "clusters" } else { "listeners" };
            resources[list].as_array_mut().expect("a list").push(value.clone());
            1
        }
        other => panic!("a patch of an unknown kind: {other:?}"),
    };
    assert!(done > 0, "nothing to patch: {patch:#}");
}

fn items(list: &mut Value) -> impl Iterator<Item = &mut Value> {
    list.as_array_mut().into_iter().flatten()
}

fn network_filters(resources: &mut Value) -> impl Iterator<Item = &mut Value> {
    items(&mut resources["listeners"])
        .flat_map(|listener| items(&mut listener["filter_chains"]))
        .flat_map(|chain| items(&mut chain["filters"]))
}

fn insert_before(network_filter: &mut Value, name: &Value, value: &Value) {
    let filters = network_filter["typed_config"]["http_filters"].as_array_mut().expect("a list");
    let place = filters.iter().position(|filter| filter["name"] == *name);
    filters.insert(place.expect("the filter to insert before"), value.clone());
}

/// Merges as protocol buffers do: messages field by field, lists one after the other, all else replaced.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(target), Value::Array(patch)) => target.extend(patch.iter().cloned()),
        (target, patch) => *target = patch.clone(),
    }
}

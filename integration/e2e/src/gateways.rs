//! The Envoys of `examples/`: each as the control plane that the example is for configures it.
//!
//! In: the files that users apply. Out: a running Envoy. Istio and Envoy Gateway cannot run here; what they
//! make of a gateway is in `control_planes/`, with their names for the example's own objects in place, and
//! the example's patches are applied to it as they do. A patch that finds nothing to patch is a panic.
//!
//! Ports, addresses and files of the machine where the tests run replace those of the examples.

mod envoy_gateway;
mod istio;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_harness::bootstrap::{PEERS_CLUSTER, endpoint};
use warmpath_harness::{EnvoyProcess, Peers, paths};

use crate::bed::Front;

/// The model of the examples.
pub const EXAMPLE_MODEL: &str = "Qwen/Qwen3-8B";

/// Where the examples put the module and the packed model: in a container, and in the repository.
const FOLDERS: [&str; 2] = ["/etc/warmpath/", ".cache/"];

/// The internal listener's port in the examples.
const INTERNAL_PORT: u64 = 10001;

/// What the examples call the listener that takes what other Envoys tell.
const PEERS_LISTENERS: [&str; 2] = ["peers", "warmpath_peers"];

/// An Envoy that an example describes.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// The listener that clients talk to.
    pub listener: String,
    /// The cluster whose hosts are the engines.
    pub cluster: String,
    /// Its configuration.
    pub root: Value,
    /// Where it listens for the other Envoys, and where these do; they cannot reach it where this is left out.
    pub peers: Option<Peers>,
}

impl Gateway {
    /// `envoy/dns.yaml`, which the examples for Compose and Kubernetes mount.
    pub fn dns() -> Self {
        let root = documents("envoy/dns.yaml").remove(0);
        let (listener, cluster) = ("public".to_owned(), "engines".to_owned());
        Self { listener, cluster, root, peers: None }
    }

    /// `examples/own-machines`.
    pub fn own_machines() -> Self {
        Self { root: documents("examples/own-machines/envoy.yaml").remove(0), ..Self::dns() }
    }

    /// `examples/istio`.
    pub fn istio() -> Self {
        istio::gateway()
    }

    /// `examples/envoy-gateway`.
    pub fn envoy_gateway() -> Self {
        envoy_gateway::gateway()
    }

    /// Starts it in front of `engines`, with the demo's model in place of the example's.
    pub async fn start(&self, engines: &[SocketAddr]) -> Front {
        let started = EnvoyProcess::start_with(&self.listener, |internal, admin| {
            self.placed(engines, internal, admin)
        });
        Front { envoy: started.await.expect("Envoy") }
    }

    /// The configuration with this machine's ports, files and engines.
    fn placed(&self, engines: &[SocketAddr], internal: u16, admin: u16) -> Value {
        let mut root = self.root.clone();
        let admin_before = root["admin"]["address"]["socket_address"]["port_value"].clone();
        walk(&mut root, &mut |value| {
            if let Some(socket) = value.get_mut("socket_address") {
                let port = match socket["port_value"].take() {
                    port if port == json!(INTERNAL_PORT) => internal,
                    port if port == admin_before => admin,
                    _ => 0,
                };
                *socket = json!({"address": "127.0.0.1", "port_value": port});
            }
            if let Some(file) = value.get_mut("filename") {
                *file = json!(local(file.as_str().expect("a file's name")));
            }
        });
        let hosts: Vec<Value> = engines.iter().map(|engine| endpoint(*engine)).collect();
        let clusters = root["static_resources"]["clusters"].as_array_mut().expect("clusters");
        let cluster = clusters.iter_mut().find(|cluster| cluster["name"] == *self.cluster);
        cluster.expect("the engines' cluster")["load_assignment"]["endpoints"] =
            json!([{"lb_endpoints": hosts}]);
        if let Some(cluster) = clusters.iter_mut().find(|one| one["name"] == PEERS_CLUSTER) {
            let all = self.peers.iter().flat_map(|peers| &peers.all);
            let hosts: Vec<Value> = all.map(|peer| endpoint(*peer)).collect();
            cluster["load_assignment"]["endpoints"] = json!([{"lb_endpoints": hosts}]);
        }
        for listener in root["static_resources"]["listeners"].as_array_mut().expect("listeners") {
            // Two Envoys must never share a port by chance: the second is to fail, and be started anew.
            listener["enable_reuse_port"] = json!(false);
            if let (Some(peers), true) =
                (&self.peers, PEERS_LISTENERS.iter().any(|name| listener["name"] == *name))
            {
                listener["address"]["socket_address"]["port_value"] = json!(peers.port);
            }
        }
        root
    }
}

/// This machine's file in place of an example's.
fn local(file: &str) -> PathBuf {
    let found = match FOLDERS.iter().find_map(|folder| file.strip_prefix(folder)) {
        Some("warmpath.wasm") => paths::wasm(),
        Some("model.wpb") => paths::demo_bundle(),
        _ => panic!("{file} is none of the files in {FOLDERS:?}"),
    };
    found.expect("a file that make builds")
}

/// Shows every object of `value` to `visit`, the outer before the inner.
fn walk(value: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Object(_) => {
            visit(value);
            value.as_object_mut().into_iter().flatten().for_each(|(_, inner)| walk(inner, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| walk(inner, visit)),
        _ => {}
    }
}

/// The documents of a YAML file of the repository.
fn documents(file: &str) -> Vec<Value> {
    parse(file, &read(file))
}

fn read(file: &str) -> String {
    let path = paths::repository().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn parse(file: &str, text: &str) -> Vec<Value> {
    serde_yaml_ng::Deserializer::from_str(text)
        .map(|document| {
            Value::deserialize(document).unwrap_or_else(|error| panic!("{file}: {error}"))
        })
        .collect()
}

/// What a control plane configures, with `words` in place.
fn control_plane(name: &str, words: &[(&str, &str)]) -> Value {
    let file = format!("integration/e2e/control_planes/{name}.yaml");
    let mut text = read(&file);
    for (word, meaning) in words {
        assert!(text.contains(word), "{file} has no {word}");
        text = text.replace(word, meaning);
    }
    let body = text.lines().filter(|line| !line.starts_with('#'));
    assert!(!body.into_iter().any(|line| line.contains('$')), "{file}: a word is left\n{text}");
    parse(&file, &text).remove(0)
}

/// The objects of one example, all in one namespace.
struct Manifests {
    namespace: String,
    objects: Vec<Value>,
}

impl Manifests {
    /// Reads the files that an example's kustomization lists, the engines' included.
    fn of(example: &str) -> Self {
        let dir = format!("examples/{example}");
        let kustomization = documents(&format!("{dir}/kustomization.yaml")).remove(0);
        let resources = kustomization["resources"].as_array().expect("a list").iter();
        let files = resources.map(|file| file.as_str().expect("a file's name"));
        let mut objects = documents("examples/kubernetes/engines/vllm.yaml");
        for file in files.filter(|file| file.ends_with(".yaml")) {
            objects.extend(documents(&format!("{dir}/{file}")));
        }
        let namespace = kustomization["namespace"].as_str().expect("a namespace").to_owned();
        Self { namespace, objects }
    }

    /// The only object of a kind.
    fn one(&self, kind: &str) -> &Value {
        let mut found = self.objects.iter().filter(|object| object["kind"] == kind);
        let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
        assert!(found.next().is_none(), "more than one {kind}");
        object
    }

    /// The name of the only object of a kind.
    fn name(&self, kind: &str) -> &str {
        self.one(kind)["metadata"]["name"].as_str().expect("a name")
    }

    /// The Service behind the only rule of the route: its name and port. It must exist.
    fn backend(&self) -> (&str, u64) {
        let backend = &self.one("HTTPRoute")["spec"]["rules"][0]["backendRefs"][0];
        let (name, port) = (backend["name"].as_str().expect("a name"), &backend["port"]);
        let is_it =
            |object: &&Value| object["kind"] == "Service" && object["metadata"]["name"] == name;
        let service = self.objects.iter().find(is_it).expect("the Service of the route");
        assert_eq!(service["spec"]["ports"][0]["port"], *port);
        (name, port.as_u64().expect("a port"))
    }

    /// The prefix of the paths that the route takes.
    fn path_prefix(&self) -> &str {
        let matched = &self.one("HTTPRoute")["spec"]["rules"][0]["matches"][0]["path"];
        assert_eq!(matched["type"], "PathPrefix");
        matched["value"].as_str().expect("a path")
    }
}

//! The bootstraps in `envoy/`, edited as data.
//!
//! In: one of the two files that users read and copy. Out: the same configuration with other ports, file
//! names, engines and filter settings, as JSON, which Envoy reads as well as YAML. Editing rather than
//! generating means that a mistake in those files fails a test.
//!
//! Each edit finds its place by name and reports what is missing; none relies on a position in a list.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::{HarnessError, paths};

/// Which of the two ways to name the upstream a bootstrap uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// A cluster for each engine, named by a request header: `envoy/cluster-header.yaml`.
    ClusterHeader,
    /// One cluster, whose host a request header names: `envoy/override-host.yaml`.
    OverrideHost,
}

impl Variant {
    /// Both, for tests that must hold in either.
    pub const ALL: [Self; 2] = [Self::ClusterHeader, Self::OverrideHost];

    /// The file's name within the repository.
    pub fn file(self) -> &'static str {
        match self {
            Self::ClusterHeader => "envoy/cluster-header.yaml",
            Self::OverrideHost => "envoy/override-host.yaml",
        }
    }
}

/// Several Envoys that tell each other what they do.
#[derive(Debug, Clone)]
pub struct Peers {
    /// The port of this one's listener for them.
    pub port: u16,
    /// Such listeners of all of them.
    pub all: Vec<SocketAddr>,
}

/// The file that has a listener and a cluster for peers.
const PEERS_FILE: &str = "envoy/dns.yaml";

/// A bootstrap being edited.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    variant: Variant,
    root: Value,
}

impl Bootstrap {
    /// Reads the file of `variant`.
    pub fn load(variant: Variant) -> Result<Self, HarnessError> {
        let path = paths::repository().join(variant.file());
        let mut bootstrap = Self { variant, root: read_yaml(&path)? };
        bootstrap.read_filter_config(&path)?;
        Ok(bootstrap)
    }

    /// The file holds the filter's configuration as JSON text; here it is edited as a value.
    fn read_filter_config(&mut self, path: &Path) -> Result<(), HarnessError> {
        let config = self.filter_config_mut()?;
        let text = config.as_str().unwrap_or_default();
        *config = serde_json::from_str(text)
            .map_err(|source| HarnessError::FilterConfig { path: path.to_owned(), source })?;
        Ok(())
    }

    /// The whole configuration, for edits that have no method here.
    pub fn root_mut(&mut self) -> &mut Value {
        &mut self.root
    }

    /// The configuration as Envoy reads it.
    pub fn to_json(&self) -> String {
        let mut written = self.clone();
        if let Ok(config) = written.filter_config_mut() {
            *config = Value::String(config.to_string());
        }
        written.root.to_string()
    }

    /// The configuration with its listeners, and the hosts of the cluster `engines`, in files of their own
    /// that Envoy watches: the main part, the listeners and the hosts, each as Envoy reads it.
    pub fn split(&self, listeners: &Path, hosts: &Path) -> Result<[String; 3], HarnessError> {
        let mut written = self.clone();
        if let Ok(config) = written.filter_config_mut() {
            *config = Value::String(config.to_string());
        }
        let mut all = at_mut(&mut written.root, "/static_resources/listeners")?.take();
        for listener in all.as_array_mut().into_iter().flatten() {
            listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
        }
        let cluster = written.cluster_mut("engines")?;
        let mut assignment = cluster["load_assignment"].take();
        assignment["@type"] =
            json!("type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
        let source = |file: &Path| json!({"resource_api_version": "V3", "path_config_source": {"path": file}});
        if let Some(fields) = cluster.as_object_mut() {
            fields.remove("load_assignment");
        }
        cluster["type"] = json!("EDS");
        cluster["eds_cluster_config"] = json!({"eds_config": source(hosts)});
        if let Some(fields) = at_mut(&mut written.root, "/static_resources")?.as_object_mut() {
            fields.remove("listeners");
        }
        written.root["node"] = json!({"id": "warmpath", "cluster": "warmpath"});
        written.root["dynamic_resources"] = json!({"lds_config": source(listeners)});
        let resources = |resources: Value| json!({"resources": resources}).to_string();
        Ok([written.root.to_string(), resources(all), resources(json!([assignment]))])
    }

    /// Sets the hosts of the cluster `engines` and leaves the filter's configuration alone.
    pub fn set_hosts(&mut self, engines: &[SocketAddr]) -> Result<(), HarnessError> {
        let endpoints: Vec<Value> = engines.iter().map(|engine| endpoint(*engine)).collect();
        let hosts =
            at_mut(self.cluster_mut("engines")?, "/load_assignment/endpoints/0/lb_endpoints")?;
        *hosts = Value::Array(endpoints);
        Ok(())
    }

    /// Lets it tell other Envoys what it does, through the listener and the cluster of `envoy/dns.yaml`.
    pub fn add_peers(&mut self, peers: &Peers) -> Result<(), HarnessError> {
        let root = read_yaml(&paths::repository().join(PEERS_FILE))?;
        let mut other = Self { variant: self.variant, root };
        let mut cluster = other.cluster_mut(PEERS_CLUSTER)?.take();
        let hosts = peers.all.iter().map(|peer| endpoint(*peer)).collect();
        *at_mut(&mut cluster, "/load_assignment/endpoints/0/lb_endpoints")? = Value::Array(hosts);
        let wasm = at_mut(self.plugin_mut()?, "/vm_config")?.clone();
        other.set_listener_port(PEERS_LISTENER, peers.port)?;
        *at_mut(other.plugin_of_mut(PEERS_LISTENER)?, "/vm_config")? = wasm;
        let listener = other.listener_mut(PEERS_LISTENER)?.take();
        for (list, item) in [("listeners", listener), ("clusters", cluster)] {
            let list = at_mut(&mut self.root, &format!("/static_resources/{list}"))?;
            list.as_array_mut().into_iter().for_each(|list| list.push(item.clone()));
        }
        self.filter_config_mut()?["peers"] = json!({"cluster": PEERS_CLUSTER});
        Ok(())
    }

    /// The listener `name`.
    pub fn listener_mut(&mut self, name: &str) -> Result<&mut Value, HarnessError> {
        named_mut(at_mut(&mut self.root, "/static_resources/listeners")?, name, "listener")
    }

    /// The cluster `name`.
    pub fn cluster_mut(&mut self, name: &str) -> Result<&mut Value, HarnessError> {
        named_mut(at_mut(&mut self.root, "/static_resources/clusters")?, name, "cluster")
    }

    /// The HTTP connection manager of the listener `name`.
    pub fn http_mut(&mut self, listener: &str) -> Result<&mut Value, HarnessError> {
        at_mut(self.listener_mut(listener)?, "/filter_chains/0/filters/0/typed_config")
    }

    /// The filter's part of the public listener: its `PluginConfig`.
    pub fn plugin_mut(&mut self) -> Result<&mut Value, HarnessError> {
        self.plugin_of_mut("public")
    }

    /// The filter's part of a listener: its `PluginConfig`.
    pub fn plugin_of_mut(&mut self, listener: &str) -> Result<&mut Value, HarnessError> {
        let filters = at_mut(self.http_mut(listener)?, "/http_filters")?;
        at_mut(named_mut(filters, WASM_FILTER, "HTTP filter")?, "/typed_config/config")
    }

    /// The filter's own configuration, as it will read it.
    pub fn filter_config_mut(&mut self) -> Result<&mut Value, HarnessError> {
        at_mut(self.plugin_mut()?, "/configuration/value")
    }

    /// Listens on `port` of the loopback interface; 0 lets the system choose.
    pub fn set_listener_port(&mut self, listener: &str, port: u16) -> Result<(), HarnessError> {
        let listener = self.listener_mut(listener)?;
        *at_mut(listener, "/address/socket_address")? = loopback(port);
        // Two Envoys must never share a port by chance: the second is to fail, and be started anew.
        listener["enable_reuse_port"] = json!(false);
        Ok(())
    }

    /// Puts the admin interface on `port` of the loopback interface; 0 lets the system choose.
    pub fn set_admin_port(&mut self, port: u16) -> Result<(), HarnessError> {
        *at_mut(&mut self.root, "/admin/address/socket_address")? = loopback(port);
        Ok(())
    }

    /// Moves the internal listener, and the cluster through which the filter reaches it, to `port`.
    pub fn set_internal_port(&mut self, port: u16) -> Result<(), HarnessError> {
        self.set_listener_port("internal", port)?;
        let cluster = self.cluster_mut(INTERNAL_CLUSTER)?;
        *at_mut(cluster, "/load_assignment/endpoints/0/lb_endpoints")? = json!([endpoint_at(port)]);
        Ok(())
    }

    /// Replaces the engines, in Envoy's clusters and in the filter's configuration alike. Engine `i` keeps
    /// the file's name for it, `engine-<i>`.
    pub fn set_engines(&mut self, engines: &[SocketAddr]) -> Result<(), HarnessError> {
        let endpoints: Vec<Value> = engines.iter().map(|engine| endpoint(*engine)).collect();
        *at_mut(self.cluster_mut("engines")?, "/load_assignment/endpoints/0/lb_endpoints")? =
            Value::Array(endpoints);
        if self.variant == Variant::ClusterHeader {
            self.set_engine_clusters(engines)?;
        }
        let Ok(config) = self.filter_config_mut() else {
            return Ok(());
        };
        let backends = at_mut(config, "/backends")?;
        let pattern = at_mut(backends, "/0")?.clone();
        let backends_new = engines.iter().enumerate().map(|(i, engine)| {
            let mut backend = pattern.clone();
            backend["name"] = json!(engine_name(i));
            backend["address"] = json!(engine.to_string());
            if self.variant == Variant::ClusterHeader {
                backend["cluster"] = json!(engine_name(i));
            }
            backend
        });
        let backends_new = backends_new.collect();
        *at_mut(self.filter_config_mut()?, "/backends")? = Value::Array(backends_new);
        Ok(())
    }

    fn set_engine_clusters(&mut self, engines: &[SocketAddr]) -> Result<(), HarnessError> {
        let pattern = self.cluster_mut(&engine_name(0))?.clone();
        let clusters = at_mut(&mut self.root, "/static_resources/clusters")?;
        let Some(clusters) = clusters.as_array_mut() else {
            return Err(HarnessError::NoSuchPart("list of clusters".to_owned()));
        };
        clusters.retain(|cluster| !name_of(cluster).starts_with("engine-"));
        for (i, engine) in engines.iter().enumerate() {
            let mut cluster = pattern.clone();
            cluster["name"] = json!(engine_name(i));
            cluster["load_assignment"]["cluster_name"] = json!(engine_name(i));
            *at_mut(&mut cluster, "/load_assignment/endpoints/0/lb_endpoints")? =
                json!([endpoint(*engine)]);
            clusters.push(cluster);
        }
        Ok(())
    }

    /// Takes the filter out: plain Envoy, balancing by itself.
    pub fn remove_filter(&mut self) -> Result<(), HarnessError> {
        for listener in LISTENERS {
            let filters = at_mut(self.http_mut(listener)?, "/http_filters")?;
            if let Some(filters) = filters.as_array_mut() {
                filters.retain(|filter| name_of(filter) != WASM_FILTER);
            }
        }
        Ok(())
    }

    /// Puts another HTTP filter where Warmpath's is, for comparison.
    pub fn replace_filter(&mut self, filter: Value) -> Result<(), HarnessError> {
        let filters = at_mut(self.http_mut("public")?, "/http_filters")?;
        *named_mut(filters, WASM_FILTER, "HTTP filter")? = filter;
        Ok(())
    }

    /// Names the file with the filter's module.
    pub fn set_wasm(&mut self, file: &Path) -> Result<(), HarnessError> {
        for listener in LISTENERS {
            let plugin = self.plugin_of_mut(listener)?;
            *at_mut(plugin, "/vm_config/code/local/filename")? = json!(file);
        }
        Ok(())
    }

    /// Names the file that the internal listener serves as the demo model's bundle; with `None` it serves
    /// none, and the filter's request for it is answered 404.
    pub fn set_bundle(&mut self, file: Option<&Path>) -> Result<(), HarnessError> {
        let http = self.http_mut("internal")?;
        let routes = at_mut(http, "/route_config/virtual_hosts/0/routes")?;
        match file {
            Some(file) => *at_mut(routes, "/0/direct_response/body/filename")? = json!(file),
            None => *routes = json!([]),
        }
        Ok(())
    }

    /// Balances the cluster `engines` by `policy`, an Envoy name such as `ROUND_ROBIN`.
    pub fn set_envoy_balancing(&mut self, policy: &str) -> Result<(), HarnessError> {
        let cluster = self.cluster_mut("engines")?;
        if let Some(fields) = cluster.as_object_mut() {
            fields.remove("load_balancing_policy");
            fields.insert("lb_policy".to_owned(), json!(policy));
        }
        Ok(())
    }
}

/// The name of engine `i` in the bootstraps.
pub fn engine_name(i: usize) -> String {
    format!("engine-{i}")
}

/// Merges `patch` into `target` as RFC 7396 says: objects field by field, null removes, all else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The listeners that have the filter: what clients talk to, and what operators do.
const LISTENERS: [&str; 2] = ["public", "internal"];

/// The listener that takes what other Envoys tell, and the cluster of all such listeners.
const PEERS_LISTENER: &str = "peers";

/// The cluster.
pub const PEERS_CLUSTER: &str = "warmpath_peers";

const WASM_FILTER: &str = "envoy.filters.http.wasm";
const INTERNAL_CLUSTER: &str = "warmpath_internal";

fn read_yaml(path: &Path) -> Result<Value, HarnessError> {
    let text = std::fs::read_to_string(path).map_err(HarnessError::file(path))?;
    let yaml = |source| HarnessError::Yaml { path: path.to_owned(), source };
    serde_yaml_ng::from_str(&text).map_err(yaml)
}

fn loopback(port: u16) -> Value {
    json!({"address": "127.0.0.1", "port_value": port})
}

fn endpoint_at(port: u16) -> Value {
    json!({"endpoint": {"address": {"socket_address": loopback(port)}}})
}

/// A host of a cluster, as Envoy writes it.
pub fn endpoint(address: SocketAddr) -> Value {
    json!({"endpoint": {"address": {"socket_address": {
        "address": address.ip().to_string(),
        "port_value": address.port(),
    }}}})
}

fn name_of(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn at_mut<'a>(value: &'a mut Value, pointer: &str) -> Result<&'a mut Value, HarnessError> {
    value.pointer_mut(pointer).ok_or_else(|| HarnessError::NoSuchPart(pointer.to_owned()))
}

fn named_mut<'a>(
    list: &'a mut Value,
    name: &str,
    what: &str,
) -> Result<&'a mut Value, HarnessError> {
    list.as_array_mut()
        .and_then(|list| list.iter_mut().find(|item| name_of(item) == name))
        .ok_or_else(|| HarnessError::NoSuchPart(format!("{what} named {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
    }

    #[test]
    fn engines_replace_clusters_endpoints_and_backends() {
        for variant in Variant::ALL {
            let mut bootstrap = Bootstrap::load(variant).unwrap();
            bootstrap.set_engines(&addresses(&[7001, 7002, 7003])).unwrap();
            let text = bootstrap.to_json();
            assert!(!text.contains("engine-3"), "{variant:?} keeps an engine of the file");
            assert!(!text.contains("9000"), "{variant:?} keeps a port of the file");
            let backends = bootstrap.filter_config_mut().unwrap()["backends"].clone();
            assert_eq!(backends.as_array().map(Vec::len), Some(3));
            assert_eq!(backends[2]["name"], "engine-2");
            assert_eq!(backends[2]["address"], "127.0.0.1:7003");
            if variant == Variant::ClusterHeader {
                let cluster = backends[2]["cluster"].as_str().unwrap().to_owned();
                bootstrap.cluster_mut(&cluster).expect("a backend names a cluster that exists");
            }
        }
    }

    #[test]
    fn without_the_filter_nothing_loads_the_module() {
        let mut bootstrap = Bootstrap::load(Variant::ClusterHeader).unwrap();
        bootstrap.remove_filter().unwrap();
        assert!(!bootstrap.to_json().contains("warmpath.wasm"));
        assert!(bootstrap.plugin_mut().is_err());
    }

    /// A bootstrap without what `envoy/dns.yaml` and the example for machines of one's own say is theirs.
    fn without_differences(file: &str) -> Value {
        let root = read_yaml(&paths::repository().join(file)).unwrap();
        let mut bootstrap = Bootstrap { variant: Variant::OverrideHost, root };
        bootstrap.set_wasm(Path::new("the module")).unwrap();
        bootstrap.set_bundle(Some(Path::new("the bundle"))).unwrap();
        *bootstrap.filter_config_mut().unwrap() = Value::Null;
        let public = bootstrap.listener_mut("public").unwrap();
        public["address"]["socket_address"]["address"] = Value::Null;
        let http = bootstrap.http_mut("internal").unwrap();
        http["route_config"]["virtual_hosts"][0]["routes"][0]["match"] = Value::Null;
        let cluster = bootstrap.cluster_mut("engines").unwrap().as_object_mut().unwrap();
        cluster.retain(|field, _| {
            !["type", "dns_refresh_rate", "load_assignment"].contains(&&**field)
        });
        let resources = &mut bootstrap.root["static_resources"];
        let others = ["metrics", "admin", PEERS_LISTENER, PEERS_CLUSTER];
        for part in ["listeners", "clusters"] {
            let listed = resources[part].as_array_mut().unwrap();
            listed.retain(|one| !others.contains(&name_of(one)));
        }
        bootstrap.root
    }

    #[test]
    fn the_other_bootstraps_with_override_host_differ_in_nothing_else() {
        let listed = without_differences("envoy/override-host.yaml");
        assert_eq!(without_differences("envoy/dns.yaml"), listed);
        assert_eq!(without_differences("examples/own-machines/envoy.yaml"), listed);
    }

    #[test]
    fn merge_follows_rfc_7396() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(&mut target, &json!({"a": {"b": null, "e": {"f": null, "g": 3}}, "d": [2, 3]}));
        assert_eq!(target, json!({"a": {"c": 2, "e": {"g": 3}}, "d": [2, 3]}));
    }
}

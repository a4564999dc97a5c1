//! The configuration as it is written: JSON, field by field.
//!
//! The comments here are the text of `docs/configuration.md` and of its JSON Schema. What the schema says
//! beyond the types stands in `schemars` attributes, which name the constants that [`super::check`] uses.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

#[cfg(feature = "schema")]
use super::check::{
    AUTHORITY_DEFAULT, BLOCK_SIZE_TOKENS_DEFAULT, BLOCK_SIZE_TOKENS_MAX, DATA_PARALLEL_MAX,
    DRAIN_S_MAX, NAME_DEFAULT, PEER_INTERVAL_MS_DEFAULT, SCRAPE_INTERVAL_MS_DEFAULT,
    SCRAPE_PATH_DEFAULT, SCRAPE_TIMEOUT_MS_DEFAULT,
};
#[cfg(feature = "schema")]
use super::schema::{
    apis, need_backends, need_cluster_or_address, need_endpoint_cluster, need_session_header,
};
use super::{Engine, Policy, StreamedUsage};
#[cfg(feature = "schema")]
use crate::limits::{
    ADAPTERS_MAX, BACKENDS_MAX, BODY_BYTES_MAX_CEILING, BODY_BYTES_MAX_DEFAULT,
    INDEX_BUCKETS_CEILING, INDEX_BUCKETS_DEFAULT, MODELS_MAX, NAME_BYTES_MAX, PEER_MS_MAX,
    PEER_MS_MIN, SCRAPE_MS_MAX, SCRAPE_MS_MIN,
};

/// The filter's configuration on a listener whose requests it routes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Router", transform = need_backends, transform = need_endpoint_cluster, transform = need_session_header))]
pub struct RawConfig {
    /// Names this configuration where one Envoy has several. Endpoints that were learnt or pushed,
    /// and the lease of the VM that scrapes, belong to the name, and outlive a change of the rest.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX), extend("default" = NAME_DEFAULT)))]
    pub name: Option<String>,
    /// How a backend is chosen.
    #[serde(default)]
    pub policy: Policy,
    /// The engine replicas. May be left out when they are observed or pushed.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = BACKENDS_MAX)))]
    pub backends: Vec<RawBackend>,
    /// The models whose prompts are read. Requests for others go by load.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = MODELS_MAX)))]
    pub models: Vec<RawModel>,
    /// Switches the reading of an API's prompts off (`false`) by its name; all are on.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(schema_with = "apis"))]
    pub apis: BTreeMap<String, bool>,
    /// Header that names a request's session, in lower case. Goes with the policy `session`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX), regex(pattern = "^[a-z0-9_.-]*$")))]
    pub session_header: Option<String>,
    /// Cluster for requests that the filter does not place; without it the route decides.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub fallback_cluster: Option<String>,
    /// Cluster with the load-balancing policy `override_host` whose hosts the backends' addresses are.
    /// Through it engines without a cluster of their own are scraped.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub endpoint_cluster: Option<String>,
    /// Learns backends from the hosts of `endpoint_cluster` that serve requests: no list is needed.
    #[serde(default)]
    pub observe: bool,
    /// Lets `PUT /_warmpath/backends` on the internal listener set backends beside the configured ones.
    #[serde(default)]
    pub push: bool,
    /// Whether and how the engines' metrics are read.
    #[serde(default)]
    pub scrape: RawScrape,
    /// Asks engines for a load report with their answers (ORCA), each one some times a second, and keeps it
    /// from clients that did not ask for it themselves.
    #[serde(default = "on")]
    pub load_reports: bool,
    /// Other Envoys before the same engines, with which what is known of caches and load is shared.
    #[serde(default)]
    pub peers: Option<RawPeers>,
    /// Where each decision is shown.
    #[serde(default)]
    pub decisions: RawDecisions,
    /// Longest body that is read, in bytes. Longer ones are routed by load while they stream through.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = BODY_BYTES_MAX_CEILING), extend("default" = BODY_BYTES_MAX_DEFAULT)))]
    pub body_bytes_max: Option<u32>,
    /// Buckets of the prefix tree, of at most 4 KiB each.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = INDEX_BUCKETS_CEILING), extend("default" = INDEX_BUCKETS_DEFAULT)))]
    pub index_buckets: Option<u32>,
    /// KV memory of a backend in tokens, where neither the engine nor the backend's own entry says.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub kv_capacity_tokens: Option<u32>,
}

/// The filter's configuration on the internal listener.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Internal"))]
pub struct RawInternal {
    /// `true`: this listener serves `/_warmpath/status`, `/_warmpath/explain/...` and
    /// `/_warmpath/backends` instead of routing.
    #[allow(dead_code, reason = "its presence says it all")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = true)))]
    pub internal: bool,
    /// Serves only `/_warmpath/peers`, through which other Envoys tell what they do: for a listener that they
    /// can reach.
    #[serde(default)]
    pub peers_only: bool,
}

/// Other Envoys before the same engines. Give them all the same configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Peers"))]
pub struct RawPeers {
    /// Cluster with the load-balancing policy `override_host` whose hosts are the listeners of all of them that
    /// serve `/_warmpath/peers`; this Envoy's own may be among them. Each must have the address at which it
    /// listens.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub cluster: String,
    /// Least time between two messages of one worker to one of them, in milliseconds. What happens after a
    /// pause is told at once.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = PEER_MS_MIN, max = PEER_MS_MAX), extend("default" = PEER_INTERVAL_MS_DEFAULT)))]
    pub interval_ms: Option<u32>,
}

/// Whether and how the engines' metrics are read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Scrape"))]
pub struct RawScrape {
    /// Whether they are read at all.
    #[serde(default = "on")]
    pub enabled: bool,
    /// Their path on the engine.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX), regex(pattern = "^/"), extend("default" = SCRAPE_PATH_DEFAULT)))]
    pub path: Option<String>,
    /// Time between two readings of one engine, in milliseconds.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = SCRAPE_MS_MIN, max = SCRAPE_MS_MAX), extend("default" = SCRAPE_INTERVAL_MS_DEFAULT)))]
    pub interval_ms: Option<u32>,
    /// Longest time that a reading may take, in milliseconds.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = SCRAPE_MS_MIN, max = SCRAPE_MS_MAX), extend("default" = SCRAPE_TIMEOUT_MS_DEFAULT)))]
    pub timeout_ms: Option<u32>,
}

impl Default for RawScrape {
    fn default() -> Self {
        Self { enabled: true, path: None, interval_ms: None, timeout_ms: None }
    }
}

/// Where each decision is shown.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Decisions"))]
pub struct RawDecisions {
    /// In the response header `x-warmpath-decision`, which clients see.
    #[serde(default)]
    pub response_header: bool,
    /// In the filter state `wasm.warmpath_decision`, for access logs.
    #[serde(default)]
    pub filter_state: bool,
}

/// One engine replica. It needs a cluster, an address, or both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Backend", transform = need_cluster_or_address))]
pub struct RawBackend {
    /// Its name in shared state, status and metrics; it keeps what is known of its cache while it has
    /// this name. The address, or else the cluster, unless given.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub name: Option<String>,
    /// Envoy cluster that holds only this backend, for `cluster_header` routes.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub cluster: Option<String>,
    /// `ip:port` as Envoy knows it, for `override_host`, and to see who served.
    #[serde(default)]
    pub address: Option<String>,
    /// Tokens of KV memory, of each rank, where the engine itself does not say.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub kv_capacity_tokens: Option<u32>,
    /// Engines that run side by side behind one address, vLLM's `--data-parallel-size`. Each has a cache of
    /// its own and becomes a backend of its own, `<name>/<rank>`, which requests name in
    /// `x-data-parallel-rank`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = DATA_PARALLEL_MAX), extend("default" = 1)))]
    pub data_parallel_size: Option<u32>,
    /// Names of the configured models that it serves; all of them unless given.
    #[serde(default)]
    pub models: Vec<String>,
    /// Takes only prompts of which no other backend holds as much, so that it can be taken away.
    #[serde(default)]
    pub draining: bool,
    /// With `draining`: after so many seconds it takes nothing at all. For pushed backends.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(max = DRAIN_S_MAX)))]
    pub drain_s: Option<u32>,
}

/// One model whose prompts are tokenized.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Model"))]
pub struct RawModel {
    /// The name under which prefixes are kept.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub name: String,
    /// Other names by which requests ask for it.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(inner(length(min = 1, max = NAME_BYTES_MAX))))]
    pub aliases: Vec<String>,
    /// Names of LoRA adapters that the engines serve on top of it; their prefixes are their own.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = ADAPTERS_MAX), inner(length(min = 1, max = NAME_BYTES_MAX))))]
    pub adapters: Vec<String>,
    /// Variables of the chat template unless the request sets them, as the engine's
    /// `--default-chat-template-kwargs`.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    /// The engine's `--chat-template-content-format`.
    #[serde(default)]
    pub chat_template_content_format: RawContentFormat,
    /// The engine's `--exclude-tools-when-tool-choice-none`.
    #[serde(default)]
    pub exclude_tools_when_tool_choice_none: bool,
    /// Whether the engine puts only the tool that `tool_choice` names into the prompt, as SGLang does.
    #[serde(default)]
    pub named_tool_only: bool,
    /// Which engine the prompts are to be equal to.
    #[serde(default)]
    pub engine: Engine,
    /// What the engine writes chats with.
    #[serde(default)]
    pub chat_format: RawChatFormat,
    /// Tokens of the model's sliding attention windows (`sliding_window` in its config.json), where some of its
    /// layers have one and others do not: vLLM keeps what these need only where prompts end or part. 0 where
    /// the engine keeps all, as SGLang and llama.cpp do, and vLLM with `--disable-hybrid-kv-cache-manager`.
    /// For gpt-oss models 128 unless given or written by their template, for others none.
    #[serde(default)]
    pub sliding_window_tokens: Option<u32>,
    /// Tokens in one KV block of the engines. What engines report takes its place.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = BLOCK_SIZE_TOKENS_MAX), extend("default" = BLOCK_SIZE_TOKENS_DEFAULT)))]
    pub block_size_tokens: Option<u32>,
    /// Whether streamed answers are made to carry their usage.
    #[serde(default)]
    pub streamed_usage: StreamedUsage,
    /// Where the filter gets the model's bundle.
    pub bundle: RawBundle,
}

/// What an engine writes chats with.
#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema, serde::Serialize),
    schemars(rename = "ChatFormat")
)]
pub enum RawChatFormat {
    /// Harmony for gpt-oss models, as vLLM does, and the template for all others, and for all of llama.cpp's.
    #[default]
    Auto,
    /// The model's chat template: SGLang and llama.cpp, for gpt-oss too.
    Template,
    /// OpenAI's Harmony format.
    Harmony,
}

/// The values of the engine's own option.
#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema, serde::Serialize),
    schemars(rename = "ContentFormat")
)]
pub enum RawContentFormat {
    /// As the template suggests.
    #[default]
    Auto,
    /// Text.
    String,
    /// A list of parts.
    OpenAi,
}

/// Where a bundle is fetched.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Bundle"))]
pub struct RawBundle {
    /// Envoy cluster that serves it.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX)))]
    pub cluster: String,
    /// Path there. What was fetched stays as long as a configuration names it: give a changed bundle another
    /// path, or another query.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = NAME_BYTES_MAX), regex(pattern = "^/")))]
    pub path: String,
    /// The request's `:authority`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("default" = AUTHORITY_DEFAULT)))]
    pub authority: Option<String>,
}

/// What `PUT /_warmpath/backends` takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Push"))]
pub struct RawPush {
    /// All pushed backends; those of an earlier push that are missing here go.
    #[cfg_attr(feature = "schema", schemars(length(max = BACKENDS_MAX)))]
    pub backends: Vec<RawBackend>,
}

fn on() -> bool {
    true
}

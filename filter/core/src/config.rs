//! Plugin configuration: raw JSON -> checked values.
//!
//! Unknown fields, wrong types and contradictions fail the configuration, never a request. All
//! contradictions are reported at once, each with its path.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ahash::AHashSet;
use serde::Deserialize;
use serde_json::{Map, Value};
use warmpath_template::ContentFormat;

use crate::ids::{BackendId, BackendIndex};
use crate::limits::{
    ADAPTERS_MAX, BACKENDS_MAX, BODY_BYTES_MAX_CEILING, BODY_BYTES_MAX_DEFAULT,
    INDEX_BUCKETS_CEILING, INDEX_BUCKETS_DEFAULT, MODELS_MAX, NAME_BYTES_MAX,
};
use crate::request::Api;
use crate::score::Weights;

/// How a backend is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Least prefill work, cached blocks counted: the product.
    #[default]
    KvCost,
    /// Each in turn, a VM for itself.
    RoundRobin,
    /// Fewest requests in flight, over all workers.
    LeastRequest,
    /// Hash of the prompt's first blocks, with bounded load.
    ConsistentHash,
    /// Longest prefix sent before, whether or not it is still there; the classic.
    PrefixAffinity,
    /// Hash of a header that names the session.
    Session,
    /// Any.
    Random,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The routing policy.
    pub policy: Policy,
    /// The backends, in the order of the configuration.
    pub backends: Vec<Backend>,
    /// The models whose prompts are read.
    pub models: Vec<Model>,
    /// The APIs whose prompts are read.
    pub apis: Apis,
    /// Header that names a request's session, in lower case; set if and only if the policy is
    /// [`Policy::Session`].
    pub session_header: Option<String>,
    /// Cluster for requests that the filter does not place; `None` leaves them to the route.
    pub fallback_cluster: Option<String>,
    /// Longest body that is read.
    pub body_bytes_max: u32,
    /// Buckets of the index.
    pub index_buckets: NonZeroU32,
    /// What the score's terms weigh. Not to be configured: other values are for ablations.
    pub weights: Weights,
}

/// One engine replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its name, for status and metrics.
    pub name: String,
    /// Its identity in shared state.
    pub id: BackendId,
    /// Envoy cluster that holds only this backend, for `cluster_header` routes.
    pub cluster: Option<String>,
    /// `ip:port` as Envoy knows it, for `override_host` and to see who served.
    pub address: Option<String>,
    /// Tokens of KV memory; `None` while unknown.
    pub kv_capacity_tokens: Option<NonZeroU32>,
}

impl Backend {
    /// KV memory in blocks; 0 while unknown.
    #[must_use]
    pub fn kv_capacity_blocks(&self, block_size_tokens: u32) -> u32 {
        self.kv_capacity_tokens.map_or(0, |tokens| tokens.get() / block_size_tokens.max(1))
    }
}

/// One model whose prompts are tokenized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name under which prefixes are kept.
    pub name: String,
    /// Other names by which requests ask for it.
    pub aliases: Vec<String>,
    /// Names of LoRA adapters that the engines serve on top of it; their prefixes are their own.
    pub adapters: Vec<String>,
    /// Tokens in one KV block of the engines.
    pub block_size_tokens: NonZeroU32,
    /// How the engines prepare chats for the template.
    pub chat: ChatConfig,
    /// Whether streamed answers are made to carry their usage.
    pub streamed_usage: StreamedUsage,
    /// Where the bundle is fetched.
    pub bundle: BundleSource,
}

impl Model {
    /// The adapter that requests for `name` use.
    #[must_use]
    pub fn adapter(&self, name: &str) -> Option<&str> {
        self.adapters.iter().find(|adapter| *adapter == name).map(String::as_str)
    }
}

/// The engines' settings that change what a chat template gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatConfig {
    /// Variables of the template unless the request sets them.
    pub template_kwargs: Map<String, Value>,
    /// The form of content; `None` where the engine tells by the template.
    pub content_format: Option<ContentFormat>,
    /// Whether tools stay out of the prompt when `tool_choice` forbids them.
    pub hides_unused_tools: bool,
}

/// The APIs whose prompts are read; requests of others go by load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apis {
    off: u16,
}

impl Apis {
    /// Whether prompts of `api` are read.
    #[must_use]
    pub fn is_on(self, api: Api) -> bool {
        self.off & Self::bit(api) == 0
    }

    fn switch_off(&mut self, api: Api) {
        self.off |= Self::bit(api);
    }

    fn bit(api: Api) -> u16 {
        1 << (api as u16)
    }
}

/// Whether the filter asks engines for the usage of streamed answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamedUsage {
    /// Requests go on as clients sent them; without usage nothing is known of the answer.
    #[default]
    AsSent,
    /// Requests of OpenAI's chats and completions are made to ask, and what the answer then has
    /// more is kept from the client.
    Ask,
}

/// A bundle's place: an Envoy cluster and a path there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSource {
    /// The cluster.
    pub cluster: String,
    /// The path, starting with `/`.
    pub path: String,
    /// The `:authority` of the request.
    pub authority: String,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON of the right shape; names the path to the field.
    #[error("{path}: {message}")]
    Shape {
        /// Path to the field.
        path: String,
        /// What serde says of it.
        message: String,
    },
    /// Fields that are well-formed and contradict each other or a bound.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Problem>),
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}")]
pub struct Problem {
    /// Path to the field.
    pub path: String,
    /// What is wrong with it.
    pub what: &'static str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    policy: Policy,
    backends: Vec<RawBackend>,
    #[serde(default)]
    models: Vec<RawModel>,
    #[serde(default)]
    apis: BTreeMap<String, bool>,
    #[serde(default)]
    session_header: Option<String>,
    #[serde(default)]
    fallback_cluster: Option<String>,
    #[serde(default)]
    body_bytes_max: Option<u32>,
    #[serde(default)]
    index_buckets: Option<u32>,
    #[serde(default)]
    kv_capacity_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBackend {
    name: String,
    #[serde(default)]
    cluster: Option<String>,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    kv_capacity_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    adapters: Vec<String>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    #[serde(default)]
    chat_template_content_format: RawContentFormat,
    #[serde(default)]
    exclude_tools_when_tool_choice_none: bool,
    #[serde(default)]
    block_size_tokens: Option<u32>,
    #[serde(default)]
    streamed_usage: StreamedUsage,
    bundle: RawBundle,
}

/// The values of the engine's own option.
#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawContentFormat {
    #[default]
    Auto,
    String,
    OpenAi,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBundle {
    cluster: String,
    path: String,
    #[serde(default)]
    authority: Option<String>,
}

/// vLLM's default on GPUs.
const BLOCK_SIZE_TOKENS_DEFAULT: u32 = 16;

/// Hybrid models page their caches in blocks of up to a few thousand tokens.
const BLOCK_SIZE_TOKENS_MAX: u32 = 8_192;

impl Config {
    /// Reads and checks a plugin configuration.
    ///
    /// # Errors
    /// [`ConfigError`], with every problem found.
    pub fn parse(json_bytes: &[u8]) -> Result<Self, ConfigError> {
        let mut deserializer = serde_json::Deserializer::from_slice(json_bytes);
        let raw: RawConfig = serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|error| shape_error(error.path().to_string(), error.inner()))?;
        deserializer.end().map_err(|error| shape_error("(end)".to_owned(), &error))?;
        Check::default().config(raw)
    }

    /// The model that answers to `name`, which may be one of its adapters.
    #[must_use]
    pub fn model_index(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| {
            let mut others = model.aliases.iter().chain(&model.adapters);
            model.name == name || others.any(|other| other == name)
        })
    }

    /// The backend whose address is `address`.
    #[must_use]
    pub fn backend_by_address(&self, address: &str) -> Option<BackendIndex> {
        self.backends
            .iter()
            .position(|backend| backend.address.as_deref() == Some(address))
            .map(BackendIndex)
    }

    /// The backend whose own cluster is `cluster`.
    #[must_use]
    pub fn backend_by_cluster(&self, cluster: &str) -> Option<BackendIndex> {
        self.backends
            .iter()
            .position(|backend| backend.cluster.as_deref() == Some(cluster))
            .map(BackendIndex)
    }

    /// The backend at `index`.
    #[must_use]
    pub fn backend(&self, index: BackendIndex) -> Option<&Backend> {
        self.backends.get(index.0)
    }
}

fn shape_error(path: String, error: &serde_json::Error) -> ConfigError {
    ConfigError::Shape { path, message: error.to_string() }
}

#[derive(Default)]
struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn config(mut self, raw: RawConfig) -> Result<Config, ConfigError> {
        self.at_most("backends", raw.backends.len(), BACKENDS_MAX);
        self.at_most("models", raw.models.len(), MODELS_MAX);
        self.require(!raw.backends.is_empty(), "backends", "at least one is needed");
        let body_bytes_max = raw.body_bytes_max.unwrap_or(BODY_BYTES_MAX_DEFAULT);
        self.require(
            (1..=BODY_BYTES_MAX_CEILING).contains(&body_bytes_max),
            "body_bytes_max",
            "must be from 1 to 67108864",
        );
        let buckets = raw.index_buckets.unwrap_or(INDEX_BUCKETS_DEFAULT);
        self.require(
            (1..=INDEX_BUCKETS_CEILING).contains(&buckets),
            "index_buckets",
            "must be from 1 to 262144",
        );
        self.require(raw.kv_capacity_tokens != Some(0), "kv_capacity_tokens", "must not be 0");
        let backends = self.backends(raw.backends, raw.kv_capacity_tokens);
        let models = self.models(raw.models);
        let apis = self.apis(&raw.apis);
        if let Some(cluster) = &raw.fallback_cluster {
            self.name("fallback_cluster", cluster);
        }
        self.session_header(raw.policy, raw.session_header.as_deref());
        if !self.problems.is_empty() {
            return Err(ConfigError::Invalid(self.problems));
        }
        Ok(Config {
            policy: raw.policy,
            backends,
            models,
            apis,
            session_header: raw.session_header,
            fallback_cluster: raw.fallback_cluster,
            body_bytes_max,
            index_buckets: NonZeroU32::new(buckets).unwrap_or(NonZeroU32::MIN),
            weights: Weights::default(),
        })
    }

    fn backends(&mut self, raw: Vec<RawBackend>, capacity_default: Option<u32>) -> Vec<Backend> {
        let mut ids = AHashSet::new();
        let mut addresses = AHashSet::new();
        let mut checked = Vec::with_capacity(raw.len());
        for (index, backend) in raw.into_iter().enumerate() {
            let path = |field: &str| format!("backends[{index}].{field}");
            self.name(&path("name"), &backend.name);
            let id = BackendId::from_name(&backend.name);
            self.require(ids.insert(id), path("name"), "is taken by another backend");
            self.require(
                backend.cluster.is_some() || backend.address.is_some(),
                path("cluster"),
                "a backend needs `cluster`, `address` or both",
            );
            if let Some(cluster) = &backend.cluster {
                self.name(&path("cluster"), cluster);
            }
            if let Some(address) = &backend.address {
                let parsed = address.parse::<std::net::SocketAddr>();
                self.require(parsed.is_ok(), path("address"), "must be ip:port");
                let is_new = addresses.insert(address.clone());
                self.require(is_new, path("address"), "is taken by another backend");
            }
            self.require(
                backend.kv_capacity_tokens != Some(0),
                path("kv_capacity_tokens"),
                "must not be 0",
            );
            let capacity = backend.kv_capacity_tokens.or(capacity_default);
            checked.push(Backend {
                id,
                name: backend.name,
                cluster: backend.cluster,
                address: backend.address,
                kv_capacity_tokens: capacity.and_then(NonZeroU32::new),
            });
        }
        checked
    }

    fn models(&mut self, raw: Vec<RawModel>) -> Vec<Model> {
        let mut names = AHashSet::new();
        let mut checked = Vec::with_capacity(raw.len());
        for (index, model) in raw.into_iter().enumerate() {
            let path = |field: &str| format!("models[{index}].{field}");
            self.name(&path("name"), &model.name);
            self.at_most(&path("adapters"), model.adapters.len(), ADAPTERS_MAX);
            let all = std::iter::once(&model.name).chain(&model.aliases).chain(&model.adapters);
            for name in all {
                self.name(&path("aliases"), name);
                let is_new = names.insert(name.clone());
                self.require(is_new, path("aliases"), "the name is taken by another model");
            }
            let block_size = model.block_size_tokens.unwrap_or(BLOCK_SIZE_TOKENS_DEFAULT);
            self.require(
                (1..=BLOCK_SIZE_TOKENS_MAX).contains(&block_size),
                path("block_size_tokens"),
                "must be from 1 to 8192",
            );
            self.name(&path("bundle.cluster"), &model.bundle.cluster);
            self.name(&path("bundle.path"), &model.bundle.path);
            self.require(
                model.bundle.path.starts_with('/'),
                path("bundle.path"),
                "must start with `/`",
            );
            checked.push(Model {
                name: model.name,
                aliases: model.aliases,
                adapters: model.adapters,
                chat: ChatConfig {
                    template_kwargs: model.chat_template_kwargs,
                    content_format: match model.chat_template_content_format {
                        RawContentFormat::Auto => None,
                        RawContentFormat::String => Some(ContentFormat::String),
                        RawContentFormat::OpenAi => Some(ContentFormat::OpenAi),
                    },
                    hides_unused_tools: model.exclude_tools_when_tool_choice_none,
                },
                block_size_tokens: NonZeroU32::new(block_size).unwrap_or(NonZeroU32::MIN),
                streamed_usage: model.streamed_usage,
                bundle: BundleSource {
                    authority: model.bundle.authority.unwrap_or_else(|| "warmpath".to_owned()),
                    cluster: model.bundle.cluster,
                    path: model.bundle.path,
                },
            });
        }
        checked
    }

    fn session_header(&mut self, policy: Policy, header: Option<&str>) {
        const PATH: &str = "session_header";
        self.require(
            header.is_some() == (policy == Policy::Session),
            PATH,
            "goes with the policy `session`, and only with it",
        );
        if let Some(header) = header {
            self.name(PATH, header);
            let token = header.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte)
            });
            self.require(token, PATH, "must be a header's name in lower case");
        }
    }

    fn apis(&mut self, raw: &BTreeMap<String, bool>) -> Apis {
        let mut apis = Apis::default();
        for (name, is_on) in raw {
            let api = Api::ALL.into_iter().find(|api| api.name() == name);
            self.require(api.is_some(), format!("apis.{name}"), "is no API that is known");
            if let Some(api) = api.filter(|_| !is_on) {
                apis.switch_off(api);
            }
        }
        apis
    }

    fn name(&mut self, path: &str, name: &str) {
        self.require(!name.is_empty(), path, "must not be empty");
        self.require(name.len() <= NAME_BYTES_MAX, path, "is longer than 256 bytes");
        let printable = name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        self.require(printable || !name.is_ascii(), path, "has a control character");
    }

    fn at_most(&mut self, path: &str, count: usize, max: usize) {
        self.require(count <= max, path, "has too many items");
    }

    fn require(&mut self, holds: bool, path: impl Into<String>, what: &'static str) {
        if !holds {
            self.problems.push(Problem { path: path.into(), what });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"policy":"kv_cost","fallback_cluster":"engines",
        "kv_capacity_tokens":1000,
        "backends":[{"name":"a","cluster":"a","address":"127.0.0.1:1"},
                    {"name":"b","address":"[::1]:2","kv_capacity_tokens":5}],
        "models":[{"name":"m","aliases":["n"],"bundle":{"cluster":"c","path":"/m.wpb"}}]}"#;

    #[test]
    fn a_good_configuration() {
        let config = Config::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(config.policy, Policy::KvCost);
        assert_eq!(config.backends[0].kv_capacity_tokens, NonZeroU32::new(1000));
        assert_eq!(config.backends[1].kv_capacity_tokens, NonZeroU32::new(5));
        assert_eq!(config.model_index("n"), Some(0));
        assert_eq!(config.model_index("x"), None);
        assert_eq!(config.backend_by_address("[::1]:2"), Some(BackendIndex(1)));
        assert_eq!(config.backend_by_cluster("a"), Some(BackendIndex(0)));
        assert_eq!(config.models[0].block_size_tokens.get(), 16);
        assert_eq!(config.models[0].streamed_usage, StreamedUsage::AsSent);
    }

    #[test]
    fn streamed_usage_is_asked_for_only_where_configured() {
        let with = |value: &str| {
            let model = format!(r#""name":"m","streamed_usage":{value},"#);
            Config::parse(GOOD.replace(r#""name":"m","#, &model).as_bytes())
        };
        assert_eq!(with(r#""ask""#).unwrap().models[0].streamed_usage, StreamedUsage::Ask);
        assert_eq!(with(r#""as_sent""#).unwrap().models[0].streamed_usage, StreamedUsage::AsSent);
        for wrong in ["true", r#""Ask""#, "null"] {
            let Err(ConfigError::Shape { path, .. }) = with(wrong) else { panic!("{wrong}") };
            assert_eq!(path, "models[0].streamed_usage");
        }
    }

    #[test]
    fn all_problems_are_reported_at_once_with_their_paths() {
        let bad = r#"{"body_bytes_max":0,"index_buckets":999999999,
            "backends":[{"name":""},{"name":"x","address":"localhost:1"},{"name":"x","cluster":"c"}],
            "models":[{"name":"m","block_size_tokens":0,"bundle":{"cluster":"","path":"p"}},
                      {"name":"m","bundle":{"cluster":"c","path":"/p"}}]}"#;
        let Err(ConfigError::Invalid(problems)) = Config::parse(bad.as_bytes()) else {
            panic!("accepted");
        };
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "body_bytes_max",
                "index_buckets",
                "backends[0].name",
                "backends[0].cluster",
                "backends[1].address",
                "backends[2].name",
                "models[0].block_size_tokens",
                "models[0].bundle.cluster",
                "models[0].bundle.path",
                "models[1].aliases",
            ]
        );
    }

    #[test]
    fn a_session_policy_needs_its_header() {
        let with = |policy: &str, header: &str| {
            let json = format!(
                r#"{{"policy":"{policy}"{header},"backends":[{{"name":"a","cluster":"a"}}]}}"#
            );
            Config::parse(json.as_bytes())
        };
        let config = with("session", r#","session_header":"x-session-id""#).unwrap();
        assert_eq!(config.session_header.as_deref(), Some("x-session-id"));
        assert!(with("session", "").is_err());
        assert!(with("kv_cost", r#","session_header":"x-session-id""#).is_err());
        assert!(with("session", r#","session_header":"X-Session""#).is_err());
    }

    #[test]
    fn shape_errors_name_the_field() {
        for (json, path) in [
            (r#"{"backends":[{"name":1}]}"#, "backends[0].name"),
            (r#"{"backends":[],"polcy":"x"}"#, "polcy"),
            (r#"{"backends":[],"policy":"best"}"#, "policy"),
            ("", "."),
            (r#"{"backends":[{"name":"a","cluster":"a"}]} x"#, "(end)"),
        ] {
            match Config::parse(json.as_bytes()) {
                Err(ConfigError::Shape { path: found, .. }) => assert_eq!(found, path, "{json}"),
                other => panic!("{json}: {other:?}"),
            }
        }
    }
}

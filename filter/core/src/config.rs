//! Plugin configuration: raw JSON -> checked values.
//!
//! Unknown fields, wrong types and contradictions fail the configuration, never a request. All
//! contradictions are reported at once, each with its path.

mod check;
mod raw;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use warmpath_template::ContentFormat;

pub(crate) use self::check::BLOCK_SIZE_TOKENS_MAX;
use self::check::Check;
use crate::ids::{BackendId, BackendIndex, NowMs};
use crate::request::{Api, ChatFormat};
use crate::score::Weights;

/// How a backend is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Tells it from others of the same Envoy.
    pub name: String,
    /// The routing policy.
    pub policy: Policy,
    /// The backends: configured ones in the order of the configuration, then those that
    /// [`crate::endpoints`] adds.
    pub backends: Vec<Arc<Backend>>,
    /// The models whose prompts are read.
    pub models: Vec<Model>,
    /// The APIs whose prompts are read.
    pub apis: Apis,
    /// Header that names a request's session, in lower case; set if and only if the policy is
    /// [`Policy::Session`].
    pub session_header: Option<String>,
    /// Cluster for requests that the filter does not place; `None` leaves them to the route.
    pub fallback_cluster: Option<String>,
    /// Cluster whose hosts the backends' addresses are; `None` where each has a cluster of its own.
    pub endpoint_cluster: Option<String>,
    /// Whether hosts of `endpoint_cluster` that serve become backends.
    pub observe: bool,
    /// Whether backends may be pushed.
    pub push: bool,
    /// How metrics are read; `None` when they are not.
    pub scrape: Option<Scrape>,
    /// Whether engines are asked for a load report with each answer.
    pub load_reports: bool,
    /// How other Envoys before the same engines are told what this one does; `None` when they are not.
    pub peers: Option<Peers>,
    /// Where decisions are shown.
    pub decisions: Decisions,
    /// Longest body that is read.
    pub body_bytes_max: u32,
    /// Buckets of the index.
    pub index_buckets: NonZeroU32,
    /// KV memory of backends of which nothing else is known.
    pub kv_capacity_tokens: Option<NonZeroU32>,
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
    /// The models that it serves.
    pub models: ModelSet,
    /// Set where several engines have the address, each with a cache of its own.
    pub data_parallel: Option<DataParallel>,
    /// Who named it.
    pub source: Source,
    /// Set while it is being taken away.
    pub drain: Option<Drain>,
}

/// One of the engines that one vLLM server runs side by side. Requests name it in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataParallel {
    /// Which of them, from 0.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
}

/// Who named a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The configuration.
    Configured,
    /// A push on the internal listener.
    Pushed,
    /// It served a request.
    Observed,
}

/// A backend that is being taken away takes no prompt whose beginning it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// From when on it takes nothing; `None` leaves it as it is.
    pub until: Option<NowMs>,
}

/// A set of configured models, by position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelSet(u64);

impl ModelSet {
    /// Every model, and every prompt of which no model is known.
    pub const ALL: Self = Self(u64::MAX);

    /// Adds the model at `position`, which is below [`crate::limits::MODELS_MAX`].
    pub fn insert(&mut self, position: usize) {
        self.0 |= 1u64.checked_shl(position as u32).unwrap_or(0);
    }

    /// Whether the model at `position` is in it.
    #[must_use]
    pub fn contains(self, position: usize) -> bool {
        self.0 & 1u64.checked_shl(position as u32).unwrap_or(0) != 0
    }
}

impl Backend {
    /// Whether it and `other` have one address, and are not known to be different engines there.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        let are_ranks = self.data_parallel.is_some() && other.data_parallel.is_some();
        self.address.is_some()
            && self.address == other.address
            && !(are_ranks && self.data_parallel != other.data_parallel)
    }

    /// Whether it and `other` are engines of one server.
    fn is_beside(&self, other: &Self) -> bool {
        let are_ranks = self.data_parallel.is_some() && other.data_parallel.is_some();
        are_ranks && self.cluster == other.cluster && self.address == other.address
    }

    /// Which of its server's engines it is; `None` where there is one.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        self.data_parallel.map(|it| it.rank)
    }

    /// Whether it is the one of its server's engines that stands for all.
    #[must_use]
    pub fn is_first_of_server(&self) -> bool {
        self.rank().is_none_or(|rank| rank == 0)
    }

    /// The backends of its `size` engines: itself, where there is one.
    fn ranks(self, size: u32) -> Vec<Self> {
        if size == 1 {
            return vec![self];
        }
        let engine = |rank| {
            let name = format!("{}/{rank}", self.name);
            let (id, data_parallel) = (BackendId::from_name(&name), DataParallel { rank, size });
            Self { id, name, data_parallel: Some(data_parallel), ..self.clone() }
        };
        (0..size).map(engine).collect()
    }

    fn has_rank(&self, rank: Option<u32>) -> bool {
        self.data_parallel.is_none() || self.rank() == rank
    }

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
    /// Tokens of the model's attention windows, 0 without any; `None` where the tokenizer tells.
    pub sliding_window_tokens: Option<u32>,
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
    /// Whether the tool that `tool_choice` names is the only one in the prompt.
    pub shows_named_tool_only: bool,
    /// What the engine writes chats with; `None` where the tokenizer tells.
    pub chat_format: Option<ChatFormat>,
    /// Whose reading of requests counts.
    pub engine: Engine,
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

/// How the engines' metrics are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// Their path.
    pub path: String,
    /// Time between two readings of one engine.
    pub interval_ms: u32,
    /// Longest time of a reading.
    pub timeout_ms: u32,
}

/// How other Envoys before the same engines are told what this one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Cluster of their internal listeners.
    pub cluster: String,
    /// Least time between two messages of one worker to one of them.
    pub interval_ms: u32,
}

/// Where decisions are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// In a response header.
    pub response_header: bool,
    /// In Envoy's filter state.
    pub filter_state: bool,
}

/// What the filter does on a listener.
#[derive(Clone, Debug)]
pub enum Role {
    /// It routes the listener's requests.
    Router(Box<Config>),
    /// It serves the internal endpoints, or only those that peers use.
    Internal {
        /// Whether it is only those.
        is_for_peers: bool,
    },
}

/// Whether the filter asks engines for the usage of streamed answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, Serialize))]
pub enum StreamedUsage {
    /// Requests go on as clients sent them; without usage nothing is known of the answer.
    #[default]
    AsSent,
    /// Requests of OpenAI's chats and completions are made to ask, and what the answer then has
    /// more is kept from the client.
    Ask,
}

/// An engine, as far as engines put different things of a request into the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, Serialize))]
pub enum Engine {
    /// vLLM, and whoever reads requests as it does.
    #[default]
    Vllm,
    /// llama.cpp's server, and what is built on it: less of tools and messages reaches the template, numbers
    /// are printed shorter, and every chat is written by the template.
    LlamaCpp,
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
    pub what: std::borrow::Cow<'static, str>,
}

impl Config {
    /// Reads and checks a plugin configuration.
    ///
    /// # Errors
    /// [`ConfigError`], with every problem found.
    pub fn parse(json_bytes: &[u8]) -> Result<Self, ConfigError> {
        Check::default().config(shaped::<raw::RawConfig>(json_bytes)?)
    }

    /// Reads and checks the body of a push of backends, which arrived at `now`.
    ///
    /// # Errors
    /// [`ConfigError`], with every problem found.
    pub fn parse_push(&self, json_bytes: &[u8], now: NowMs) -> Result<Vec<Backend>, ConfigError> {
        Check::default().push(shaped::<raw::RawPush>(json_bytes)?, self, now)
    }

    /// The model that answers to `name`, which may be one of its adapters.
    #[must_use]
    pub fn model_index(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| {
            let mut others = model.aliases.iter().chain(&model.adapters);
            model.name == name || others.any(|other| other == name)
        })
    }

    /// The backend with this address; of several engines there, the one of `rank`.
    #[must_use]
    pub fn backend_by_address(&self, address: &str, rank: Option<u32>) -> Option<&Arc<Backend>> {
        let mut backends = self.backends.iter();
        backends.find(|it| it.address.as_deref() == Some(address) && it.has_rank(rank))
    }

    /// The backend whose own cluster is `cluster`; of several engines there, the one of `rank`.
    #[must_use]
    pub fn backend_by_cluster(&self, cluster: &str, rank: Option<u32>) -> Option<&Arc<Backend>> {
        let mut backends = self.backends.iter();
        backends.find(|it| it.cluster.as_deref() == Some(cluster) && it.has_rank(rank))
    }

    /// The engines of one server, which live and die together: `backend`, which need not be listed, and those
    /// beside it.
    pub fn engines_of<'a>(
        &'a self,
        backend: &'a Backend,
    ) -> impl Iterator<Item = &'a Backend> + use<'a> {
        let others = self.backends.iter().map(Arc::as_ref);
        let others = others.filter(|it| it.id != backend.id && it.is_beside(backend));
        std::iter::once(backend).chain(others)
    }

    /// Whether any server has several engines.
    #[must_use]
    pub fn has_ranks(&self) -> bool {
        self.backends.iter().any(|backend| backend.data_parallel.is_some())
    }

    /// Whether several engines have this address or cluster.
    #[must_use]
    pub fn has_ranks_at(&self, address: &str, cluster: &str) -> bool {
        let mut ranks = self.backends.iter().filter(|backend| backend.data_parallel.is_some());
        ranks.any(|it| {
            it.address.as_deref() == Some(address) || it.cluster.as_deref() == Some(cluster)
        })
    }

    /// The backend at `index`.
    #[must_use]
    pub fn backend(&self, index: BackendIndex) -> Option<&Arc<Backend>> {
        self.backends.get(index.0)
    }
}

impl Role {
    /// Reads and checks a plugin configuration of either kind.
    ///
    /// # Errors
    /// [`ConfigError`], with every problem found.
    pub fn parse(json_bytes: &[u8]) -> Result<Self, ConfigError> {
        let is_internal = serde_json::from_slice::<Value>(json_bytes)
            .is_ok_and(|value| value.get("internal") == Some(&Value::Bool(true)));
        if is_internal {
            let raw = shaped::<raw::RawInternal>(json_bytes)?;
            return Ok(Self::Internal { is_for_peers: raw.peers_only });
        }
        Config::parse(json_bytes).map(|config| Self::Router(Box::new(config)))
    }
}

fn shaped<T: DeserializeOwned>(json_bytes: &[u8]) -> Result<T, ConfigError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json_bytes);
    let raw = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| shape_error(error.path().to_string(), error.inner()))?;
    deserializer.end().map_err(|error| shape_error("(end)".to_owned(), &error))?;
    Ok(raw)
}

fn shape_error(path: String, error: &serde_json::Error) -> ConfigError {
    ConfigError::Shape { path, message: error.to_string() }
}

//! Raw -> checked, with every problem noted.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use ahash::AHashSet;
use warmpath_template::ContentFormat;

use super::raw::{
    RawBackend, RawChatFormat, RawConfig, RawContentFormat, RawDecisions, RawModel, RawPeers,
    RawPush, RawScrape,
};
use super::{
    Apis, Backend, BundleSource, ChatConfig, Config, ConfigError, Decisions, Drain, Engine, Model,
    ModelSet, Peers, Policy, Problem, Scrape, Source,
};
use crate::ids::{BackendId, NowMs};
use crate::limits::{
    ADAPTERS_MAX, BACKENDS_MAX, BODY_BYTES_MAX_CEILING, BODY_BYTES_MAX_DEFAULT,
    INDEX_BUCKETS_CEILING, INDEX_BUCKETS_DEFAULT, MODELS_MAX, NAME_BYTES_MAX, PEER_MS_MAX,
    PEER_MS_MIN, SCRAPE_MS_MAX, SCRAPE_MS_MIN,
};
use crate::request::{Api, ChatFormat};
use crate::score::Weights;
use std::collections::BTreeMap;
use std::sync::Arc;

/// vLLM's default on GPUs.
pub(super) const BLOCK_SIZE_TOKENS_DEFAULT: u32 = 16;

/// Hybrid models page their caches in blocks of up to a few thousand tokens.
pub(crate) const BLOCK_SIZE_TOKENS_MAX: u32 = 8_192;

/// Name of a configuration that gives none.
pub(super) const NAME_DEFAULT: &str = "warmpath";

/// Where Prometheus looks unless told otherwise, and every engine answers.
pub(super) const SCRAPE_PATH_DEFAULT: &str = "/metrics";

/// Host name of the filter's own requests.
pub(super) const AUTHORITY_DEFAULT: &str = "warmpath";

/// Each second: a report that is older than the average request says little.
pub(super) const SCRAPE_INTERVAL_MS_DEFAULT: u32 = 1_000;

/// An engine whose event loop is this late is busy, and its report too old to help.
pub(super) const SCRAPE_TIMEOUT_MS_DEFAULT: u32 = 900;

/// Eight Envoys that tell each other this often do in simulation as one does, short of memory or not. At 20 ms
/// prompts that share nothing wait an eighth less at P99, for up to 2.5 times the messages.
pub(super) const PEER_INTERVAL_MS_DEFAULT: u32 = 50;

/// More ranks than one server has.
pub(super) const DATA_PARALLEL_MAX: u32 = 256;

/// A day: longer drains are no drains.
pub(super) const DRAIN_S_MAX: u32 = 86_400;

#[derive(Default)]
pub(super) struct Check {
    problems: Vec<Problem>,
}

impl Check {
    pub(super) fn config(mut self, raw: RawConfig) -> Result<Config, ConfigError> {
        self.at_most("models", raw.models.len(), MODELS_MAX);
        self.require(
            !raw.backends.is_empty() || raw.observe || raw.push,
            "backends",
            "at least one is needed, unless `observe` or `push` is on",
        );
        let body_bytes_max = raw.body_bytes_max.unwrap_or(BODY_BYTES_MAX_DEFAULT);
        self.within("body_bytes_max", body_bytes_max, 1..=BODY_BYTES_MAX_CEILING);
        let buckets = raw.index_buckets.unwrap_or(INDEX_BUCKETS_DEFAULT);
        self.within("index_buckets", buckets, 1..=INDEX_BUCKETS_CEILING);
        self.require(raw.kv_capacity_tokens != Some(0), "kv_capacity_tokens", "must not be 0");
        let kv_capacity_tokens = raw.kv_capacity_tokens.and_then(NonZeroU32::new);
        let models = self.models(raw.models);
        let backends = self.backends(raw.backends, &models, kv_capacity_tokens, None);
        let apis = self.apis(&raw.apis);
        for (path, cluster) in [
            ("name", &raw.name),
            ("fallback_cluster", &raw.fallback_cluster),
            ("endpoint_cluster", &raw.endpoint_cluster),
        ] {
            if let Some(cluster) = cluster {
                self.name(path, cluster);
            }
        }
        self.require(
            !raw.observe || raw.endpoint_cluster.is_some(),
            "observe",
            "needs `endpoint_cluster`, whose hosts it observes",
        );
        self.session_header(raw.policy, raw.session_header.as_deref());
        let scrape = self.scrape(raw.scrape);
        let peers = raw.peers.map(|peers| self.peers(peers));
        if !self.problems.is_empty() {
            return Err(ConfigError::Invalid(self.problems));
        }
        let RawDecisions { response_header, filter_state } = raw.decisions;
        Ok(Config {
            name: raw.name.unwrap_or_else(|| NAME_DEFAULT.to_owned()),
            policy: raw.policy,
            backends,
            models,
            apis,
            session_header: raw.session_header,
            fallback_cluster: raw.fallback_cluster,
            endpoint_cluster: raw.endpoint_cluster,
            observe: raw.observe,
            push: raw.push,
            scrape,
            load_reports: raw.load_reports,
            peers,
            decisions: Decisions { response_header, filter_state },
            body_bytes_max,
            index_buckets: NonZeroU32::new(buckets).unwrap_or(NonZeroU32::MIN),
            kv_capacity_tokens,
            weights: Weights::default(),
        })
    }

    /// The backends of a push beside `config`'s own.
    pub(super) fn push(
        mut self,
        raw: RawPush,
        config: &Config,
        now: NowMs,
    ) -> Result<Vec<Backend>, ConfigError> {
        let pushed =
            self.backends(raw.backends, &config.models, config.kv_capacity_tokens, Some(now));
        for (index, backend) in pushed.iter().filter(|it| it.is_first_of_server()).enumerate() {
            let is_configured = |other: &&Arc<Backend>| other.source == Source::Configured;
            let mut others = config.backends.iter().filter(is_configured);
            let path = format!("backends[{index}].name");
            let is_new = others.all(|other| other.id != backend.id && !other.is_at(backend));
            self.require(is_new, path, "is the name, or has the address, of a configured backend");
        }
        if !self.problems.is_empty() {
            return Err(ConfigError::Invalid(self.problems));
        }
        Ok(pushed.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    /// `pushed_at` is set for pushed backends.
    fn backends(
        &mut self,
        raw: Vec<RawBackend>,
        models: &[Model],
        capacity_default: Option<NonZeroU32>,
        pushed_at: Option<NowMs>,
    ) -> Vec<Arc<Backend>> {
        let mut ids = AHashSet::new();
        let mut addresses = AHashSet::new();
        let mut checked = Vec::new();
        for (index, backend) in raw.into_iter().enumerate() {
            let path = |field: &str| format!("backends[{index}].{field}");
            let name = backend.name.as_ref().or(backend.address.as_ref());
            let name = name.or(backend.cluster.as_ref()).cloned();
            self.require(
                backend.cluster.is_some() || backend.address.is_some(),
                path("cluster"),
                "a backend needs `cluster`, `address` or both",
            );
            let Some(name) = name else { continue };
            self.name(&path("name"), &name);
            let id = BackendId::from_name(&name);
            if let Some(cluster) = &backend.cluster {
                self.name(&path("cluster"), cluster);
            }
            if let Some(address) = &backend.address {
                let parsed = address.parse::<std::net::SocketAddr>();
                self.require(parsed.is_ok(), path("address"), "must be ip:port");
                let is_new = addresses.insert(address.clone());
                self.require(is_new, path("address"), "is taken by another backend");
            }
            let capacity = backend.kv_capacity_tokens;
            self.require(capacity != Some(0), path("kv_capacity_tokens"), "must not be 0");
            let models = self.served(&path("models"), &backend.models, models);
            let drain = self.drain(&path("drain_s"), &backend, pushed_at);
            let size = backend.data_parallel_size.unwrap_or(1);
            self.within(path("data_parallel_size"), size, 1..=DATA_PARALLEL_MAX);
            let backend = Backend {
                id,
                name,
                cluster: backend.cluster,
                address: backend.address,
                kv_capacity_tokens: capacity.and_then(NonZeroU32::new).or(capacity_default),
                models,
                data_parallel: None,
                source: if pushed_at.is_some() { Source::Pushed } else { Source::Configured },
                drain,
            };
            for engine in backend.ranks(size.min(DATA_PARALLEL_MAX)) {
                self.require(ids.insert(engine.id), path("name"), "is taken by another backend");
                checked.push(Arc::new(engine));
            }
            // What is too much is only counted.
            checked.truncate(BACKENDS_MAX + 1);
        }
        self.at_most("backends", checked.len(), BACKENDS_MAX);
        checked
    }

    fn served(&mut self, path: &str, names: &[String], models: &[Model]) -> ModelSet {
        let mut set = ModelSet::default();
        for name in names {
            let position = models.iter().position(|model| model.name == *name);
            self.require(position.is_some(), path, "names no configured model");
            if let Some(position) = position {
                set.insert(position);
            }
        }
        if names.is_empty() { ModelSet::ALL } else { set }
    }

    fn drain(
        &mut self,
        path: &str,
        backend: &RawBackend,
        pushed_at: Option<NowMs>,
    ) -> Option<Drain> {
        let drain_s = backend.drain_s;
        self.require(
            drain_s.is_none() || (pushed_at.is_some() && backend.draining),
            path,
            "goes with `draining` of a pushed backend",
        );
        self.require(drain_s.is_none_or(|it| it <= DRAIN_S_MAX), path, "is longer than a day");
        let until = |now: NowMs, seconds: u32| NowMs(now.0 + u64::from(seconds) * 1_000);
        backend
            .draining
            .then(|| Drain { until: pushed_at.zip(drain_s).map(|it| until(it.0, it.1)) })
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
            self.within(path("block_size_tokens"), block_size, 1..=BLOCK_SIZE_TOKENS_MAX);
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
                    shows_named_tool_only: model.named_tool_only,
                    chat_format: match model.chat_format {
                        RawChatFormat::Auto if model.engine == Engine::Vllm => None,
                        RawChatFormat::Auto | RawChatFormat::Template => Some(ChatFormat::Template),
                        RawChatFormat::Harmony => Some(ChatFormat::Harmony),
                    },
                    engine: model.engine,
                },
                block_size_tokens: NonZeroU32::new(block_size).unwrap_or(NonZeroU32::MIN),
                sliding_window_tokens: model.sliding_window_tokens,
                streamed_usage: model.streamed_usage,
                bundle: BundleSource {
                    authority: model
                        .bundle
                        .authority
                        .unwrap_or_else(|| AUTHORITY_DEFAULT.to_owned()),
                    cluster: model.bundle.cluster,
                    path: model.bundle.path,
                },
            });
        }
        checked
    }

    fn scrape(&mut self, raw: RawScrape) -> Option<Scrape> {
        let path = raw.path.unwrap_or_else(|| SCRAPE_PATH_DEFAULT.to_owned());
        self.name("scrape.path", &path);
        self.require(path.starts_with('/'), "scrape.path", "must start with `/`");
        let interval_ms = raw.interval_ms.unwrap_or(SCRAPE_INTERVAL_MS_DEFAULT);
        let timeout_ms = raw.timeout_ms.unwrap_or(SCRAPE_TIMEOUT_MS_DEFAULT);
        for (path, time_ms) in
            [("scrape.interval_ms", interval_ms), ("scrape.timeout_ms", timeout_ms)]
        {
            self.within(path, time_ms, SCRAPE_MS_MIN..=SCRAPE_MS_MAX);
        }
        raw.enabled.then_some(Scrape { path, interval_ms, timeout_ms })
    }

    fn peers(&mut self, raw: RawPeers) -> Peers {
        self.name("peers.cluster", &raw.cluster);
        let interval_ms = raw.interval_ms.unwrap_or(PEER_INTERVAL_MS_DEFAULT);
        self.within("peers.interval_ms", interval_ms, PEER_MS_MIN..=PEER_MS_MAX);
        Peers { cluster: raw.cluster, interval_ms }
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
            let api = Api::from_name(name);
            self.require(api.is_some(), format!("apis.{name}"), "is no API that is known");
            if let Some(api) = api.filter(|_| !is_on) {
                apis.switch_off(api);
            }
        }
        apis
    }

    fn name(&mut self, path: &str, name: &str) {
        self.require(!name.is_empty(), path, "must not be empty");
        let too_long = format!("is longer than {NAME_BYTES_MAX} bytes");
        self.require(name.len() <= NAME_BYTES_MAX, path, too_long);
        let is_printable = !name.chars().any(char::is_control);
        self.require(is_printable, path, "has a control character");
    }

    fn at_most(&mut self, path: &str, count: usize, max: usize) {
        self.require(count <= max, path, "has too many items");
    }

    fn within(&mut self, path: impl Into<String>, value: u32, bounds: RangeInclusive<u32>) {
        let what = format!("must be from {} to {}", bounds.start(), bounds.end());
        self.require(bounds.contains(&value), path, what);
    }

    fn require(
        &mut self,
        holds: bool,
        path: impl Into<String>,
        what: impl Into<Cow<'static, str>>,
    ) {
        if !holds {
            self.problems.push(Problem { path: path.into(), what: what.into() });
        }
    }
}

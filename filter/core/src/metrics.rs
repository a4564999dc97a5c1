//! Every metric of the filter, and every reason of a decision, as closed sets.
//!
//! The comment of each is its help text too, in `docs/metrics.md`; Envoy itself prints none. Names follow
//! Prometheus' conventions: counters end in `_total`, units are whole words.

/// Makes a closed set: an enum with all its values as `ALL`, each value's comment as its help text, and one
/// constant a value.
macro_rules! closed_set {
    (
        $(#[$meta:meta])*
        pub enum $name:ident.$constant:ident -> $type:ty {
            $($(#[doc = $help:literal])+ $variant:ident = $value:expr,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[doc = $help])+ $variant,)+
        }

        impl $name {
            /// All of them, for registration.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];

            /// The constant of this one.
            #[must_use]
            pub fn $constant(self) -> $type {
                match self {
                    $(Self::$variant => $value,)+
                }
            }

            /// What it says, in a sentence or two.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($help),+).trim_ascii(),)+
                }
            }
        }
    };
}

/// How Envoy keeps a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A metric's name without labels, how it is kept, and in what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name; Envoy puts `wasmcustom.` before it.
    pub name: &'static str,
    /// How it is kept.
    pub kind: Kind,
    /// What its numbers are.
    pub unit: &'static str,
}

const fn counter(name: &'static str, unit: &'static str) -> Definition {
    Definition { name, kind: Kind::Counter, unit }
}

const fn gauge(name: &'static str, unit: &'static str) -> Definition {
    Definition { name, kind: Kind::Gauge, unit }
}

const fn histogram(name: &'static str, unit: &'static str) -> Definition {
    Definition { name, kind: Kind::Histogram, unit }
}

/// Decisions, by [`Reason`].
pub const DECISIONS: Definition = counter("warmpath_decisions_total", "decisions");

/// Failures of backends, by [`Failure`].
pub const BACKEND_FAILURES: Definition = counter("warmpath_backend_failures_total", "attempts");

closed_set! {
    /// Why a request went where it went. Each is a value of the label `reason`.
    pub enum Reason.label -> &'static str {
        /// Picked: the backend probably holds a part of the prompt.
        PrefixHit = "prefix_hit",
        /// Picked: no backend holds any of it; the least loaded one took it.
        PrefixMiss = "prefix_miss",
        /// Picked: a backend holds a part, and its load outweighs that.
        LoadOverPrefix = "load_over_prefix",
        /// Picked by a policy that does not look at prefixes.
        Policy = "policy",
        /// By load: the path is of no API that is read.
        OtherPath = "other_path",
        /// By load: the request has no body.
        EmptyBody = "empty_body",
        /// By load: the body is longer than the configured limit.
        BodyTooLarge = "body_too_large",
        /// By load: the body could not be read from Envoy.
        BodyUnreadable = "body_unreadable",
        /// By load: the body is not UTF-8.
        NotUtf8 = "not_utf8",
        /// By load: the body is not JSON.
        NotJson = "not_json",
        /// By load: the body is nested too deep, or has too many values.
        TooManyValues = "too_many_values",
        /// By load: a text of the prompt has half of a surrogate pair.
        LoneSurrogate = "lone_surrogate",
        /// By load: a number of the prompt is beyond what can be printed as the engine
        /// prints it.
        NumberOutOfRange = "number_out_of_range",
        /// By load: the request uses a feature whose prompt only the engine can know.
        Unsupported = "unsupported",
        /// By load: the conversation continues one that only the engine has.
        StoredHistory = "stored_history",
        /// By load: a token id is not in the model's vocabulary.
        TokenOutOfRange = "token_out_of_range",
        /// By load: the API is one that has no prefix to match, or is switched off.
        LoadOnlyApi = "load_only_api",
        /// By load: a server of several engines chooses among them itself, whatever the request says.
        RankUnnamed = "rank_unnamed",
        /// By load: the JSON is not of the API's shape.
        WrongShape = "wrong_shape",
        /// By load: the request brings its own chat template.
        OwnTemplate = "own_template",
        /// By load: no configured model answers to the request's model name.
        UnknownModel = "unknown_model",
        /// By load: the model's bundle has not arrived, or was refused.
        NoTokenizer = "no_tokenizer",
        /// By load: the model's bundle has no chat template.
        NoTemplate = "no_template",
        /// By load: the chat template refused the request.
        TemplateFailed = "template_failed",
        /// By load: the tokenizer refused the prompt.
        TokenizerFailed = "tokenizer_failed",
        /// By load: the shared store failed.
        StoreFailed = "store_failed",
        /// Left to Envoy, to find backends that nobody listed.
        Explore = "explore",
        /// Left to Envoy: no backend is known, or none serves the model.
        NoBackend = "no_backend",
        /// Answered 503: every backend is passed over for its failures.
        AllDown = "all_down",
    }
}

impl Reason {
    /// Name of its counter as Envoy's stats have it; Envoy's stats tags turn the last part into a label.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}.reason.{}", DECISIONS.name, self.label())
    }
}

closed_set! {
    /// A metric without labels.
    pub enum Metric.definition -> Definition {
        /// Picks that the residency estimate changed: had everything that was sent still been there,
        /// another backend would have got the request.
        ResidencyRouteDowngrades = counter("warmpath_residency_route_downgrades_total", "decisions"),
        /// Decisions that another backend served than was picked.
        ServedElsewhere = counter("warmpath_served_elsewhere_total", "requests"),
        /// Time of one decision.
        DecisionTime = histogram("warmpath_decision_time_microseconds", "microseconds"),
        /// Requests that this Envoy has in flight.
        InFlight = gauge("warmpath_requests_in_flight", "requests"),
        /// Blocks entered into the prefix tree.
        IndexBlocksAdded = counter("warmpath_index_blocks_added_total", "blocks"),
        /// Blocks that went from the prefix tree: to make room, or because the request that entered them
        /// failed.
        IndexBlocksEvicted = counter("warmpath_index_blocks_evicted_total", "blocks"),
        /// Shared-store updates lost to races or to the host.
        StoreUpdatesLost = counter("warmpath_store_updates_lost_total", "updates"),
        /// Bundles loaded.
        BundlesLoaded = counter("warmpath_bundles_loaded_total", "bundles"),
        /// Attempts to get a bundle that failed.
        BundleFailures = counter("warmpath_bundle_failures_total", "attempts"),
        /// Bytes of the VM's linear memory, which never shrinks.
        VmMemoryBytes = gauge("warmpath_vm_memory_bytes", "bytes"),
        /// Readings of engines' metrics that brought a report.
        Scrapes = counter("warmpath_scrapes_total", "readings"),
        /// Readings of engines' metrics that failed.
        ScrapeFailures = counter("warmpath_scrape_failures_total", "readings"),
        /// Engines that were seen to have started anew, so that their caches are empty.
        BackendRestarts = counter("warmpath_backend_restarts_total", "restarts"),
        /// Backends that are known: configured, pushed and observed ones.
        Backends = gauge("warmpath_backends", "backends"),
        /// Of these, the ones that are passed over for their failures.
        BackendsDown = gauge("warmpath_backends_down", "backends"),
        /// Other Envoys that were heard of lately.
        Peers = gauge("warmpath_peers", "Envoys"),
        /// Messages of peers that were taken in.
        PeerMessages = counter("warmpath_peer_messages_total", "messages"),
        /// Messages to peers that did not arrive, or were not sent because earlier ones were still under way.
        PeerMessagesLost = counter("warmpath_peer_messages_lost_total", "messages"),
        /// What peers were not told because a message would have become too long.
        PeerEventsDropped = counter("warmpath_peer_events_dropped_total", "events"),
        /// What peers told about backends, models or block sizes that are not known here.
        PeerEventsForeign = counter("warmpath_peer_events_foreign_total", "events"),
        /// Models whose configured block size engines contradict; what engines say is used where they
        /// agree.
        BlockSizeContradictions = gauge("warmpath_block_size_contradictions", "models"),
    }
}

closed_set! {
    /// How a backend failed a request. Each is a value of the label `kind`.
    pub enum Failure.label -> &'static str {
        /// No connection came about.
        Connect = "connect",
        /// The connection ended, or the stream was reset, before the answer was whole.
        Reset = "reset",
        /// The answer did not come in time.
        Timeout = "timeout",
        /// The answer broke the protocol.
        Protocol = "protocol",
        /// It answered 502, 503 or 504.
        Status = "status",
        /// Envoy had no host to try.
        NoHost = "no_host",
    }
}

impl Failure {
    /// Name of its counter as Envoy's stats have it.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}.kind.{}", BACKEND_FAILURES.name, self.label())
    }
}

closed_set! {
    /// A metric of one configured backend. Backends that come and go by themselves have none: Envoy keeps
    /// every name for good.
    pub enum BackendMetric.definition -> Definition {
        /// 1 while it may be picked.
        Up = gauge("warmpath_backend_up", "0 or 1"),
        /// Requests that this Envoy has in flight there.
        InFlight = gauge("warmpath_backend_requests_in_flight", "requests"),
        /// Tokens that those requests have yet to prefill.
        PendingPrefillTokens = gauge("warmpath_backend_pending_prefill_tokens", "tokens"),
        /// Requests in flight there that others sent, as far as its reports tell.
        OthersInFlight = gauge("warmpath_backend_others_in_flight", "requests"),
        /// Tokens of its KV memory; 0 while unknown.
        KvCapacityTokens = gauge("warmpath_backend_kv_capacity_tokens", "tokens"),
        /// How often its cache was taken to be lost: restarts, and failures like a dead process's.
        CacheGeneration = gauge("warmpath_backend_cache_generation", "losses"),
    }
}

impl BackendMetric {
    /// Name as Envoy's stats have it, for `backend`.
    #[must_use]
    pub fn name(self, backend: &str) -> String {
        format!("{}.backend.{}", self.definition().name, label(backend))
    }
}

closed_set! {
    /// A metric of one configured model.
    pub enum ModelMetric.definition -> Definition {
        /// Prompt tokens of the requests that were tokenized.
        PromptTokens = counter("warmpath_prompt_tokens_total", "tokens"),
        /// Of those, tokens that the picked backend was predicted to have cached.
        PredictedCachedTokens = counter("warmpath_predicted_cached_tokens_total", "tokens"),
        /// Tokens that the engines reported as cached, for requests that were tokenized.
        ReportedCachedTokens = counter("warmpath_reported_cached_tokens_total", "tokens"),
        /// Prompt tokens as the engines reported them, for requests that were tokenized.
        ReportedPromptTokens = counter("warmpath_reported_prompt_tokens_total", "tokens"),
        /// Answers whose reported prompt length equals ours.
        ParityAgreements = counter("warmpath_parity_agreements_total", "answers"),
        /// Answers whose reported prompt length differs from ours.
        ParityDisagreements = counter("warmpath_parity_disagreements_total", "answers"),
        /// 1 while our prompt lengths disagree with the engine's on more than 1% of the last answers.
        Approximate = gauge("warmpath_model_approximate", "0 or 1"),
    }
}

impl ModelMetric {
    /// Name as Envoy's stats have it, for `model`.
    #[must_use]
    pub fn name(self, model: &str) -> String {
        format!("{}.model.{}", self.definition().name, label(model))
    }
}

/// `name` as the last part of a stat's name: characters that would end the part are replaced.
fn label(name: &str) -> String {
    let keeps = |c: char| c.is_ascii_alphanumeric() || "_-/:".contains(c);
    name.chars().map(|c| if keeps(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions() -> Vec<Definition> {
        let mut all = vec![DECISIONS, BACKEND_FAILURES];
        all.extend(Metric::ALL.map(Metric::definition));
        all.extend(ModelMetric::ALL.map(ModelMetric::definition));
        all.extend(BackendMetric::ALL.map(BackendMetric::definition));
        all
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<&str> = definitions().iter().map(|it| it.name).collect();
        names.extend(Reason::ALL.map(Reason::label));
        names.extend(Failure::ALL.map(Failure::label));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn counters_are_totals_and_nothing_else_is() {
        for Definition { name, kind, .. } in definitions() {
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        }
    }

    #[test]
    fn help_is_the_comment_in_one_line() {
        assert_eq!(
            Reason::NumberOutOfRange.help(),
            "By load: a number of the prompt is beyond what can be printed as the engine prints it."
        );
        let mut help: Vec<&str> = Reason::ALL.map(Reason::help).to_vec();
        help.extend(Metric::ALL.map(Metric::help));
        help.extend(Failure::ALL.map(Failure::help));
        help.extend(BackendMetric::ALL.map(BackendMetric::help));
        help.extend(ModelMetric::ALL.map(ModelMetric::help));
        assert!(help.iter().all(|text| text.ends_with('.') && !text.contains('\n')));
    }
}

//! Every metric of the filter, and every reason of a decision, as closed sets.

/// Why a request went where it went. Each is a value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Picked: the backend probably holds a part of the prompt.
    PrefixHit,
    /// Picked: no backend holds any of it; the least loaded one took it.
    PrefixMiss,
    /// Picked: a backend holds a part, and its load outweighs that.
    LoadOverPrefix,
    /// Picked by a policy that does not look at prefixes.
    Policy,
    /// By load: the path is of no API that is read.
    OtherPath,
    /// By load: the request has no body.
    EmptyBody,
    /// By load: the body is longer than the configured limit.
    BodyTooLarge,
    /// By load: the body could not be read from Envoy.
    BodyUnreadable,
    /// By load: the body is not UTF-8.
    NotUtf8,
    /// By load: the body is not JSON.
    NotJson,
    /// By load: the body is nested too deep, or has too many values.
    TooManyValues,
    /// By load: a text of the prompt has half of a surrogate pair.
    LoneSurrogate,
    /// By load: a number of the prompt is beyond what can be printed as the engine
    /// prints it.
    NumberOutOfRange,
    /// By load: the request uses a feature whose prompt only the engine can know.
    Unsupported,
    /// By load: the conversation continues one that only the engine has.
    StoredHistory,
    /// By load: a token id is not in the model's vocabulary.
    TokenOutOfRange,
    /// By load: the API is one that has no prefix to match, or is switched off.
    LoadOnlyApi,
    /// By load: the JSON is not of the API's shape.
    WrongShape,
    /// By load: the request brings its own chat template.
    OwnTemplate,
    /// By load: no configured model answers to the request's model name.
    UnknownModel,
    /// By load: the model's bundle has not arrived, or was refused.
    NoTokenizer,
    /// By load: the model's bundle has no chat template.
    NoTemplate,
    /// By load: the chat template refused the request.
    TemplateFailed,
    /// By load: the tokenizer refused the prompt.
    TokenizerFailed,
    /// By load: the shared store failed.
    StoreFailed,
    /// Left to Envoy, to find backends that nobody listed.
    Explore,
    /// Left to Envoy: no backend is known, or none serves the model.
    NoBackend,
    /// Answered 503: every backend is passed over for its failures.
    AllDown,
}

impl Reason {
    /// All reasons, for registration.
    pub const ALL: [Self; 28] = [
        Self::PrefixHit,
        Self::PrefixMiss,
        Self::LoadOverPrefix,
        Self::Policy,
        Self::OtherPath,
        Self::EmptyBody,
        Self::BodyTooLarge,
        Self::BodyUnreadable,
        Self::NotUtf8,
        Self::NotJson,
        Self::TooManyValues,
        Self::LoneSurrogate,
        Self::NumberOutOfRange,
        Self::Unsupported,
        Self::StoredHistory,
        Self::TokenOutOfRange,
        Self::LoadOnlyApi,
        Self::WrongShape,
        Self::OwnTemplate,
        Self::UnknownModel,
        Self::NoTokenizer,
        Self::NoTemplate,
        Self::TemplateFailed,
        Self::TokenizerFailed,
        Self::StoreFailed,
        Self::Explore,
        Self::NoBackend,
        Self::AllDown,
    ];

    /// The label's value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::PrefixHit => "prefix_hit",
            Self::PrefixMiss => "prefix_miss",
            Self::LoadOverPrefix => "load_over_prefix",
            Self::Policy => "policy",
            Self::OtherPath => "other_path",
            Self::EmptyBody => "empty_body",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyUnreadable => "body_unreadable",
            Self::NotUtf8 => "not_utf8",
            Self::NotJson => "not_json",
            Self::TooManyValues => "too_many_values",
            Self::LoneSurrogate => "lone_surrogate",
            Self::NumberOutOfRange => "number_out_of_range",
            Self::Unsupported => "unsupported",
            Self::StoredHistory => "stored_history",
            Self::TokenOutOfRange => "token_out_of_range",
            Self::LoadOnlyApi => "load_only_api",
            Self::WrongShape => "wrong_shape",
            Self::OwnTemplate => "own_template",
            Self::UnknownModel => "unknown_model",
            Self::NoTokenizer => "no_tokenizer",
            Self::NoTemplate => "no_template",
            Self::TemplateFailed => "template_failed",
            Self::TokenizerFailed => "tokenizer_failed",
            Self::StoreFailed => "store_failed",
            Self::Explore => "explore",
            Self::NoBackend => "no_backend",
            Self::AllDown => "all_down",
        }
    }
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

/// A metric without labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Picks that the residency estimate changed: had everything that was sent still been there,
    /// another backend would have got the request.
    ResidencyRouteDowngrades,
    /// Decisions that another backend served than was picked.
    ServedElsewhere,
    /// Time of one decision.
    DecisionTimeUs,
    /// Requests that this Envoy has in flight.
    InFlight,
    /// Blocks entered into the prefix tree.
    IndexBlocksAdded,
    /// Blocks evicted from the prefix tree to make room.
    IndexBlocksEvicted,
    /// Shared-store updates lost to races or to the host.
    StoreUpdatesLost,
    /// Bundles loaded.
    BundlesLoaded,
    /// Attempts to get a bundle that failed.
    BundleFailures,
    /// Bytes of the VM's linear memory, which never shrinks.
    VmMemoryBytes,
    /// Readings of engines' metrics that brought a report.
    Scrapes,
    /// Readings of engines' metrics that failed.
    ScrapeFailures,
    /// Engines that were seen to have started anew, so that their caches are empty.
    BackendRestarts,
    /// Backends that are known: configured, pushed and observed ones.
    Backends,
    /// Of these, the ones that are passed over for their failures.
    BackendsDown,
    /// Models whose configured block size engines contradict; what engines say is used where they
    /// agree.
    BlockSizeContradictions,
}

impl Metric {
    /// All metrics, for registration.
    pub const ALL: [Self; 16] = [
        Self::ResidencyRouteDowngrades,
        Self::ServedElsewhere,
        Self::DecisionTimeUs,
        Self::InFlight,
        Self::IndexBlocksAdded,
        Self::IndexBlocksEvicted,
        Self::StoreUpdatesLost,
        Self::BundlesLoaded,
        Self::BundleFailures,
        Self::VmMemoryBytes,
        Self::Scrapes,
        Self::ScrapeFailures,
        Self::BackendRestarts,
        Self::Backends,
        Self::BackendsDown,
        Self::BlockSizeContradictions,
    ];

    /// Name as Envoy's stats have it, and kind.
    #[must_use]
    pub fn definition(self) -> (&'static str, Kind) {
        match self {
            Self::ResidencyRouteDowngrades => {
                ("warmpath_residency_route_downgrades_total", Kind::Counter)
            }
            Self::ServedElsewhere => ("warmpath_served_elsewhere_total", Kind::Counter),
            Self::DecisionTimeUs => ("warmpath_decision_time_us", Kind::Histogram),
            Self::InFlight => ("warmpath_requests_in_flight", Kind::Gauge),
            Self::IndexBlocksAdded => ("warmpath_index_blocks_added_total", Kind::Counter),
            Self::IndexBlocksEvicted => ("warmpath_index_blocks_evicted_total", Kind::Counter),
            Self::StoreUpdatesLost => ("warmpath_store_updates_lost_total", Kind::Counter),
            Self::BundlesLoaded => ("warmpath_bundles_loaded_total", Kind::Counter),
            Self::BundleFailures => ("warmpath_bundle_failures_total", Kind::Counter),
            Self::VmMemoryBytes => ("warmpath_vm_memory_bytes", Kind::Gauge),
            Self::Scrapes => ("warmpath_scrapes_total", Kind::Counter),
            Self::ScrapeFailures => ("warmpath_scrape_failures_total", Kind::Counter),
            Self::BackendRestarts => ("warmpath_backend_restarts_total", Kind::Counter),
            Self::Backends => ("warmpath_backends", Kind::Gauge),
            Self::BackendsDown => ("warmpath_backends_down", Kind::Gauge),
            Self::BlockSizeContradictions => ("warmpath_block_size_contradictions", Kind::Gauge),
        }
    }
}

/// How a backend failed a request. Each is a value of the label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// No connection came about.
    Connect,
    /// The connection ended, or the stream was reset, before the answer was whole.
    Reset,
    /// The answer did not come in time.
    Timeout,
    /// The answer broke the protocol.
    Protocol,
    /// It answered 502, 503 or 504.
    Status,
    /// Envoy had no host to try.
    NoHost,
}

impl Failure {
    /// All kinds, for registration.
    pub const ALL: [Self; 6] =
        [Self::Connect, Self::Reset, Self::Timeout, Self::Protocol, Self::Status, Self::NoHost];

    /// The label's value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Status => "status",
            Self::NoHost => "no_host",
        }
    }

    /// Name as Envoy's stats have it; Envoy's stats tags turn the last part into a label.
    #[must_use]
    pub fn name(self) -> String {
        format!("warmpath_backend_failures_total.kind.{}", self.label())
    }
}

/// A metric of one configured backend. Backends that come and go by themselves have none: Envoy keeps
/// every name for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendMetric {
    /// 1 while it may be picked.
    Up,
    /// Requests that this Envoy has in flight there.
    InFlight,
    /// Tokens that those requests have yet to prefill.
    PendingPrefillTokens,
    /// Requests in flight there that others sent, as far as its reports tell.
    OthersInFlight,
    /// Tokens of its KV memory; 0 while unknown.
    KvCapacityTokens,
    /// How often its cache was taken to be lost: restarts, and failures like a dead process's.
    CacheGeneration,
}

impl BackendMetric {
    /// All metrics of a backend, for registration.
    pub const ALL: [Self; 6] = [
        Self::Up,
        Self::InFlight,
        Self::PendingPrefillTokens,
        Self::OthersInFlight,
        Self::KvCapacityTokens,
        Self::CacheGeneration,
    ];

    /// Name without the backend; all are gauges.
    #[must_use]
    pub fn base(self) -> &'static str {
        match self {
            Self::Up => "warmpath_backend_up",
            Self::InFlight => "warmpath_backend_requests_in_flight",
            Self::PendingPrefillTokens => "warmpath_backend_pending_prefill_tokens",
            Self::OthersInFlight => "warmpath_backend_others_in_flight",
            Self::KvCapacityTokens => "warmpath_backend_kv_capacity_tokens",
            Self::CacheGeneration => "warmpath_backend_cache_generation",
        }
    }

    /// Name as Envoy's stats have it, for `backend`.
    #[must_use]
    pub fn name(self, backend: &str) -> String {
        format!("{}.backend.{}", self.base(), label(backend))
    }
}

/// `name` as the last part of a stat's name: characters that would end the part are replaced.
fn label(name: &str) -> String {
    let keeps = |c: char| c.is_ascii_alphanumeric() || "_-/:".contains(c);
    name.chars().map(|c| if keeps(c) { c } else { '_' }).collect()
}

/// A metric of one configured model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelMetric {
    /// Prompt tokens of the requests that were tokenized.
    PromptTokens,
    /// Of those, tokens that the picked backend was predicted to have cached.
    PredictedCachedTokens,
    /// Tokens that the engines reported as cached, for requests that were tokenized.
    ReportedCachedTokens,
    /// Prompt tokens as the engines reported them, for requests that were tokenized.
    ReportedPromptTokens,
    /// Answers whose reported prompt length equals ours.
    ParityAgreements,
    /// Answers whose reported prompt length differs from ours.
    ParityDisagreements,
    /// 1 while our prompt lengths disagree with the engine's on more than 1% of the last answers.
    Approximate,
}

impl ModelMetric {
    /// All metrics of a model, for registration.
    pub const ALL: [Self; 7] = [
        Self::PromptTokens,
        Self::PredictedCachedTokens,
        Self::ReportedCachedTokens,
        Self::ReportedPromptTokens,
        Self::ParityAgreements,
        Self::ParityDisagreements,
        Self::Approximate,
    ];

    /// Name without the model, and kind.
    #[must_use]
    pub fn definition(self) -> (&'static str, Kind) {
        match self {
            Self::PromptTokens => ("warmpath_prompt_tokens_total", Kind::Counter),
            Self::PredictedCachedTokens => {
                ("warmpath_predicted_cached_tokens_total", Kind::Counter)
            }
            Self::ReportedCachedTokens => ("warmpath_reported_cached_tokens_total", Kind::Counter),
            Self::ReportedPromptTokens => ("warmpath_reported_prompt_tokens_total", Kind::Counter),
            Self::ParityAgreements => ("warmpath_parity_agreements_total", Kind::Counter),
            Self::ParityDisagreements => ("warmpath_parity_disagreements_total", Kind::Counter),
            Self::Approximate => ("warmpath_model_approximate", Kind::Gauge),
        }
    }

    /// Name as Envoy's stats have it, for `model`; Envoy's stats tags turn the last part into a
    /// label.
    #[must_use]
    pub fn name(self, model: &str) -> String {
        format!("{}.model.{}", self.definition().0, label(model))
    }
}

/// Name of the counter of decisions with `reason`; Envoy's stats tags turn the last part into a
/// label.
#[must_use]
pub fn decisions_name(reason: Reason) -> String {
    format!("warmpath_decisions_total.reason.{}", reason.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.definition().0).collect();
        names.extend(ModelMetric::ALL.iter().map(|metric| metric.definition().0));
        names.extend(Reason::ALL.iter().map(|reason| reason.label()));
        names.extend(BackendMetric::ALL.iter().map(|metric| metric.base()));
        names.extend(Failure::ALL.iter().map(|failure| failure.label()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

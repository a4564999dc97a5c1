//! Arms: what is compared. Each is a policy of the core, or the product's policy with something
//! taken away or known perfectly.

use warmpath_core::config::Policy;
use warmpath_core::score::Weights;

/// A term of the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Prefill that waits.
    PendingPrefill,
    /// The request's own prefill.
    Uncached,
    /// Running requests.
    Running,
    /// Tokens beyond the KV memory.
    KvOverflow,
    /// The backends' learnt speeds.
    Slowness,
}

/// One way to route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// A policy of the core as it is.
    Policy(Policy),
    /// The product's policy, which believes that nothing is ever evicted.
    NoResidency,
    /// The product's policy with perfect knowledge of every cache.
    Oracle,
    /// The product's policy without a term of its score.
    Without(Term),
}

impl Arm {
    /// All arms, baselines first.
    pub const ALL: [Self; 14] = [
        Self::Policy(Policy::RoundRobin),
        Self::Policy(Policy::Random),
        Self::Policy(Policy::LeastRequest),
        Self::Policy(Policy::ConsistentHash),
        Self::Policy(Policy::Session),
        Self::Policy(Policy::PrefixAffinity),
        Self::NoResidency,
        Self::Policy(Policy::KvCost),
        Self::Oracle,
        Self::Without(Term::PendingPrefill),
        Self::Without(Term::Uncached),
        Self::Without(Term::Running),
        Self::Without(Term::KvOverflow),
        Self::Without(Term::Slowness),
    ];

    /// Its name in reports and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(Policy::KvCost) => "kv_cost",
            Self::Policy(Policy::RoundRobin) => "round_robin",
            Self::Policy(Policy::LeastRequest) => "least_request",
            Self::Policy(Policy::ConsistentHash) => "consistent_hash",
            Self::Policy(Policy::Random) => "random",
            Self::Policy(Policy::PrefixAffinity) => "prefix_affinity",
            Self::Policy(Policy::Session) => "session",
            Self::NoResidency => "no_residency",
            Self::Oracle => "oracle",
            Self::Without(Term::PendingPrefill) => "without_pending_prefill",
            Self::Without(Term::Uncached) => "without_uncached",
            Self::Without(Term::Running) => "without_running",
            Self::Without(Term::KvOverflow) => "without_kv_overflow",
            Self::Without(Term::Slowness) => "without_slowness",
        }
    }

    /// The arm of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arm| arm.name() == name)
    }

    /// The core's policy that it runs on.
    #[must_use]
    pub fn policy(self) -> Policy {
        match self {
            Self::Policy(policy) => policy,
            Self::NoResidency | Self::Oracle | Self::Without(_) => Policy::KvCost,
        }
    }

    /// What routing adds to a request's way, in milliseconds: the filter's budget, 0.1 ms and 50 ns a
    /// token (0.5 ms for 8,000 tokens, 5 ms for 100,000). Envoy's own balancers take microseconds.
    #[must_use]
    pub fn overhead_ms(self, prompt_tokens: u32) -> f64 {
        match self.policy() {
            Policy::RoundRobin | Policy::Random | Policy::LeastRequest | Policy::Session => 0.0,
            Policy::KvCost | Policy::ConsistentHash | Policy::PrefixAffinity => {
                0.1 + 5e-5 * f64::from(prompt_tokens)
            }
        }
    }

    /// The score's weights.
    #[must_use]
    pub fn weights(self) -> Weights {
        let mut weights = Weights::default();
        match self {
            Self::Without(Term::PendingPrefill) => weights.pending_prefill = 0.0,
            Self::Without(Term::Uncached) => weights.uncached = 0.0,
            Self::Without(Term::Running) => {
                weights.decoding = 0.0;
                weights.prefilling = 0.0;
            }
            Self::Without(Term::KvOverflow) => weights.kv_overflow = 0.0,
            Self::Without(Term::Slowness) => weights.slowness = 0.0,
            Self::Policy(_) | Self::NoResidency | Self::Oracle => {}
        }
        weights
    }
}

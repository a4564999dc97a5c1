//! Warmpath's routing core: from request bytes to the picked backend.
//!
//! A pure library. It knows no proxy, no clock and no network: the caller brings the moment, the
//! randomness and the store that all workers share.
//!
//! The read path, one file a stage, put together in [`route`]:
//!
//! 1. [`request`]: body bytes -> what is asked
//! 2. [`model`]: prompt -> tokens, through the model's own chat template and tokenizer, after
//!    [`conversation`] has prepared the messages as the engine does
//! 3. [`blocks`]: tokens -> chained block hashes
//! 4. [`index`]: hashes -> who holds how many leading blocks
//! 5. [`residency`]: when they were last touched -> how likely they are still there
//! 6. [`score`]: matches, [`load`] and [`pace`] -> cost of each backend
//!    ([`standing`]: who may be picked at all)
//! 7. [`pick`]: costs -> an order of backends, under one of several policies
//!
//! What comes out is a [`decision`]; [`explain`] shows all of it for one request, and [`explore`] keeps
//! some requests out of it, so that backends which nobody listed are found.
//!
//! The write path is [`dispatch`]: it counts the load, enters the prompt into the index, and takes
//! back or confirms what the answer contradicts or confirms. [`answer`] reads the engine's own
//! `usage` on the way ([`ask`] sees to it that a stream has one, [`withhold`] that the client does
//! not see it), [`parity`] compares it with our count, [`health`] keeps failing backends out.
//!
//! What engines say of themselves is read by [`signals`] and kept in [`reported`], or in [`sightings`]
//! where it came with an answer; [`endpoints`] has the backends that nobody configured; [`live`] is the
//! configuration with both. [`peers`] has what other Envoys in front of the same engines do. [`lease`] says which VM scrapes, [`turn`] when;
//! [`status`] shows everything.
//!
//! Shared state lives in [`store`], laid out by [`wire`]; [`config`] is checked once; [`limits`]
//! has every bound; [`metrics`] every name.

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::panic,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unreachable
    )
)]

pub mod answer;
pub mod ask;
pub mod blocks;
pub mod config;
pub mod conversation;
pub mod decision;
pub mod dispatch;
pub mod endpoints;
pub mod explain;
pub mod explore;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod harmony;
pub mod health;
pub mod ids;
pub mod index;
pub mod lease;
pub mod limits;
pub mod live;
pub mod load;
pub mod metrics;
pub mod mistral;
pub mod model;
pub mod pace;
pub mod parity;
pub mod peers;
pub mod pick;
pub mod piece;
pub mod reported;
pub mod request;
pub mod residency;
pub mod route;
pub mod score;
pub mod sightings;
pub mod signals;
pub mod standing;
pub mod status;
pub mod store;
pub mod turn;
pub mod window;
pub mod wire;
pub mod withhold;

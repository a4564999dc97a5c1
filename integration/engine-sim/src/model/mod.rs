//! The engine in virtual time.
//!
//! What comes in: [`RequestSpec`]s with their arrival times, and the time up to which to run. What
//! goes out: [`Event`]s (admitted with so many cached tokens, first token, token, finished,
//! preempted), [`EngineStats`], and [`CacheEvent`]s of the prefix cache.
//!
//! Nothing in here reads a clock, draws random numbers from outside or does I/O: the same calls
//! give the same events.
//!
//! Modules, in the order of the data path:
//!
//! 1. [`time`]: points in virtual time.
//! 2. [`profile`]: what a GPU and a model can do, as numbers.
//! 3. [`prompt`]: tokens to chained block hashes.
//! 4. [`output`]: which tokens the engine "generates".
//! 5. [`kv_cache`]: the block pool with prefix caching.
//! 6. [`event`]: what an engine reports.
//! 7. [`engine`]: continuous batching with chunked prefill.

pub mod engine;
pub mod event;
pub mod kv_cache;
pub mod output;
pub mod profile;
pub mod prompt;
pub mod time;

pub use engine::{Engine, EngineStats, Reporting, RequestSpec, SubmitError};
pub use event::{CacheEvent, Event, EventKind, Finished, RequestId};
pub use output::OutputVocabulary;
pub use profile::{Profile, ProfileError};
pub use prompt::{BlockHash, Prompt, PromptShapeError};
pub use time::SimTime;

//! Every bound of the core in one place. Going over one yields a named fallback, never an error
//! page.

/// Largest body that is read, in bytes, unless configured. Larger ones are routed by load while
/// they stream through. 8 MiB is a 2 M token prompt in plain English.
pub const BODY_BYTES_MAX_DEFAULT: u32 = 8 << 20;

/// Upper bound for the configured body limit: a VM's memory ends at 1 GiB and a parsed body takes
/// several times its size.
pub const BODY_BYTES_MAX_CEILING: u32 = 64 << 20;

/// Blocks of one prompt that take part in matching. 1 M tokens in blocks of 16; the rest of a
/// longer prompt counts as uncached.
pub const PROMPT_BLOCKS_MAX: usize = 65_536;

/// Blocks in one node of the index: one shared-data call covers 1,024 tokens of prefix at 16 tokens a
/// block. With 16 blocks a prompt of 8k tokens that nobody sent before cost 32 reads and writes; fleets
/// in simulation do as well with either.
pub const NODE_BLOCKS_MAX: usize = 64;

/// Backends in one configuration. A node can list all of them as holders.
pub const BACKENDS_MAX: usize = 256;

/// Holders kept for a node; the least resident goes first. Beyond this many copies of one prefix
/// another holder changes no decision.
pub const HOLDERS_MAX: usize = 128;

/// Bytes of one bucket of the index: 7 full nodes with two holders each, or 40 of ten blocks; read by
/// the host in about a microsecond.
pub const BUCKET_BYTES_MAX: usize = 4_096;

/// Buckets of the index unless configured: 16,384 x 4 KiB is a 64 MiB ceiling and holds 1 M blocks
/// in 15,600 full nodes, one a bucket.
pub const INDEX_BUCKETS_DEFAULT: u32 = 16_384;

/// Upper bound for the configured number of buckets: a ceiling of 1 GiB.
pub const INDEX_BUCKETS_CEILING: u32 = 262_144;

/// Slots for VM load records. Envoy starts one VM a worker and one for its main thread.
pub const VM_SLOTS_MAX: u32 = 256;

/// A VM that has not written its record for this long is gone, and its counts with it. Ten of the
/// one-second heartbeats.
pub const VM_LEASE_MS: u64 = 10_000;

/// Attempts of one compare-and-swap before the update is dropped and counted. Each lost one means that
/// another worker wrote; four threads that do nothing but write one key lose 64 in a row once in 10^8.
pub const CAS_ATTEMPTS_MAX: u32 = 64;

/// Models in one configuration.
pub const MODELS_MAX: usize = 64;

/// Length of any configured name or path, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// Largest bundle that is accepted, in bytes: Envoy's own cap on a callout's response.
pub const BUNDLE_BYTES_MAX: usize = 32 << 20;

/// JSON answer that is kept to find its `usage`, in bytes from its end; what is cut off is searched once.
pub const ANSWER_TAIL_BYTES_MAX: usize = 16 << 10;

/// One SSE line that is kept while incomplete, in bytes from its end; what is cut off is searched once.
pub const SSE_LINE_BYTES_MAX: usize = 64 << 10;

/// Length of a rendered prompt in bytes, relative to nothing: templates are outside input.
pub const PROMPT_BYTES_MAX: usize = 32 << 20;

/// Nesting of a request's JSON. Messages nest five levels deep, schemas of tools a few more.
pub const JSON_DEPTH_MAX: usize = 128;

/// JSON values in one request's body. 100,000 messages have 300,000; each takes about 50 bytes
/// while it is read.
pub const JSON_VALUES_MAX: usize = 1 << 20;

/// Token ids in one request's body: twice the longest prompt that is matched whole.
pub const TOKEN_IDS_MAX: usize = 2 << 20;

/// LoRA adapters of one model.
pub const ADAPTERS_MAX: usize = 1_024;

/// Bounds for the time between two readings of an engine's metrics, and for the time that one may
/// take: above what a busy engine's event loop needs, below the time in which a report goes stale.
pub const SCRAPE_MS_MIN: u32 = 100;

/// The upper bound.
pub const SCRAPE_MS_MAX: u32 = 60_000;

/// Text of one engine's metrics, in bytes. vLLM 0.32 writes 57 KB a rank.
pub const METRICS_BYTES_MAX: usize = 4 << 20;

/// Samples in one engine's metrics. vLLM 0.32 has 450 a rank; an average line is over 64 bytes long.
pub const METRICS_SAMPLES_MAX: usize = METRICS_BYTES_MAX / 64;

/// Value of one label of a metric that is looked at, in bytes. Longer ones count as missing: those of
/// interest are numbers and names.
pub const LABEL_BYTES_MAX: usize = 1_024;

/// Peers that one Envoy tells what it does.
pub const PEERS_MAX: usize = 64;

/// Bounds for the time between two messages of a worker to a peer: below the lower one they cost more than
/// they bring, above the upper one a peer's load is stale before it is known.
pub const PEER_MS_MIN: u32 = 10;

/// The upper bound.
pub const PEER_MS_MAX: u32 = 1_000;

/// Blocks of one prompt that peers are told: 256k tokens in blocks of 16.
pub const PEER_BLOCKS_MAX: usize = 16_384;

/// Events in one message to or from a peer.
pub const PEER_EVENTS_MAX: usize = 4_096;

/// One message from a peer, in bytes: the buffer that Envoy gives a connection. A VM's own ones end
/// at half of it, so that a burst of long prompts is cut short before it is refused.
pub const PEER_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Load report in an answer's header, in bytes: vLLM writes 90 a rank.
pub const LOAD_REPORT_BYTES_MAX: usize = 8 << 10;

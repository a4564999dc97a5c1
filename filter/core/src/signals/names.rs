//! Samples -> what they say of the engine.
//!
//! Each engine has its own names for the same things, and some names changed between versions; the
//! tables below list them with the best first. Where one dump has several names of one thing, the best
//! of them counts.
//!
//! Several series of one name are data-parallel ranks or models: their counts are added, their usage
//! is averaged. SGLang's schedulers also write one series a tensor-parallel rank, and one a priority
//! beside the total; those say the same thing again and count once. So does vLLM's number of blocks: its
//! front end writes the sum over all ranks into the series of each.
//!
//! A value that cannot be (negative, NaN, infinite, a usage well over 1) counts as missing. A count
//! over its integer's range is that range's end.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::config::{BLOCK_SIZE_TOKENS_MAX, DataParallel};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::Field::{
    BlockSize, Blocks, Generation, Hits, Prompt, Queries, Running, Usage, UsedBlocks, Waiting,
};
use self::Metric::{Switch, Value};
use super::exposition::{Labels, Reading, Samples, number};
use super::report::{EngineKind, EngineReport, USAGE_MAX};
use crate::limits::{METRICS_BYTES_MAX, METRICS_SAMPLES_MAX};

/// Why a text is no report. Asking again helps only if the engine was still starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricsError {
    /// The text is longer than any engine's metrics.
    #[error("metrics of {bytes} bytes, more than the {METRICS_BYTES_MAX} that are read")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// It has more samples than any engine's metrics.
    #[error("metrics of more than {METRICS_SAMPLES_MAX} samples")]
    TooManySamples,
    /// It has no value under a name of an engine that is known here.
    #[error("no metric of a known engine")]
    UnknownEngine,
}

/// What `text`, an engine's metrics, says of it, or of one of its ranks. A last line without line feed is
/// left out.
///
/// # Errors
/// When it is no engine's metrics; nothing of it is used then.
pub fn parse_metrics(
    text: &[u8],
    data_parallel: Option<DataParallel>,
) -> Result<EngineReport, MetricsError> {
    if text.len() > METRICS_BYTES_MAX {
        return Err(MetricsError::TooLarge { bytes: text.len() });
    }
    let mut engines = EngineKind::ALL.map(|_| Totals::default());
    let mut started_at_s: Option<f64> = None;
    for (index, sample) in Samples::new(text).enumerate() {
        if index == METRICS_SAMPLES_MAX {
            return Err(MetricsError::TooManySamples);
        }
        if sample.name == PROCESS_START.as_bytes() {
            let value = sample.read().map(|reading| reading.value);
            let started = value.filter(|value| value.is_finite() && *value > 0.0);
            started_at_s = started_at_s.into_iter().chain(started).reduce(f64::max);
        } else if let Some((engine, rank, metric)) = known(sample.name)
            && let Some(reading) = sample.read()
            && data_parallel.is_none_or(|it| is_of(it.rank, &reading.labels))
            && let Some(totals) = engines.get_mut(engine as usize)
        {
            take(totals, rank, metric, &reading);
        }
    }
    let named = EngineKind::ALL.into_iter().zip(engines).find(|(_, totals)| !totals.is_empty());
    let (engine, totals) = named.ok_or(MetricsError::UnknownEngine)?;
    let ranks = data_parallel.map_or(1, |it| it.size);
    Ok(EngineReport { started_at_s, ..report(engine, &totals, ranks) })
}

/// Whether a series is that of `rank`. What names no rank is of all.
fn is_of(rank: u32, labels: &Labels<'_>) -> bool {
    let named = [&b"engine"[..], b"dp_rank"].into_iter().find_map(|label| labels.get(label));
    named.and_then(number).is_none_or(|named| named as u32 == rank)
}

/// Written by the Prometheus clients of all languages.
const PROCESS_START: &str = "process_start_time_seconds";

/// What a value is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    Waiting,
    Running,
    Usage,
    BlockSize,
    Blocks,
    UsedBlocks,
    Prompt,
    Generation,
    Queries,
    Hits,
}

/// Where a metric keeps what it says.
#[derive(Clone, Copy, Debug)]
enum Metric {
    /// In its value.
    Value(Field),
    /// In labels, by name.
    Labels(&'static [(&'static str, Field)]),
    /// In the value, and what it is of in the label of the first name.
    Switch(&'static str, &'static [(&'static str, Field)]),
}

/// Names without the engine's prefix, better ones of the same field first.
type Names = &'static [(&'static str, Metric)];

/// vLLM 0.6 to 0.32. Before version 1 of its engine the cache was called the GPU's.
const VLLM: Names = &[
    ("num_requests_waiting", Value(Waiting)),
    ("num_requests_running", Value(Running)),
    ("kv_cache_usage_perc", Value(Usage)),
    ("gpu_cache_usage_perc", Value(Usage)),
    ("cache_config_info", Metric::Labels(&[("block_size", BlockSize), ("num_gpu_blocks", Blocks)])),
    ("prompt_tokens_total", Value(Prompt)),
    ("generation_tokens_total", Value(Generation)),
    ("prefix_cache_queries_total", Value(Queries)),
    ("prefix_cache_queries", Value(Queries)),
    ("gpu_prefix_cache_queries_total", Value(Queries)),
    ("gpu_prefix_cache_queries", Value(Queries)),
    ("prefix_cache_hits_total", Value(Hits)),
    ("prefix_cache_hits", Value(Hits)),
    ("gpu_prefix_cache_hits_total", Value(Hits)),
    ("gpu_prefix_cache_hits", Value(Hits)),
];

/// SGLang; newer versions have gauges where older ones had `cache_config_info`.
const SGLANG: Names = &[
    ("num_queue_reqs", Value(Waiting)),
    ("num_running_reqs", Value(Running)),
    ("token_usage", Value(Usage)),
    ("page_size", Value(BlockSize)),
    ("num_pages", Value(Blocks)),
    ("cache_config_info", Metric::Labels(&[("page_size", BlockSize), ("num_pages", Blocks)])),
    ("prompt_tokens_total", Value(Prompt)),
    ("generation_tokens_total", Value(Generation)),
    ("cached_tokens_total", Value(Hits)),
];

/// `trtllm-serve`, whose text is at `/prometheus/metrics`.
const TRT_LLM: Names = &[
    ("num_requests_waiting", Value(Waiting)),
    ("num_requests_running", Value(Running)),
    ("kv_cache_utilization", Value(Usage)),
    ("kv_cache_tokens_per_block", Value(BlockSize)),
    ("kv_cache_max_blocks", Value(Blocks)),
    ("prompt_tokens_total", Value(Prompt)),
    ("generation_tokens_total", Value(Generation)),
    ("prompt_cached_tokens_total", Value(Hits)),
];

/// Triton's TensorRT-LLM backend.
const TRITON: Names = &[
    ("request_metrics", Switch("request_type", &[("waiting", Waiting), ("scheduled", Running)])),
    (
        "kv_cache_block_metrics",
        Switch(
            "kv_cache_block_type",
            &[
                ("fraction", Usage),
                ("tokens_per", BlockSize),
                ("max", Blocks),
                ("used", UsedBlocks),
            ],
        ),
    ),
];

/// llama.cpp's server; its newer versions have no usage.
const LLAMA_CPP: Names = &[
    ("requests_deferred", Value(Waiting)),
    ("requests_processing", Value(Running)),
    ("kv_cache_usage_ratio", Value(Usage)),
    ("prompt_tokens_total", Value(Prompt)),
    ("tokens_predicted_total", Value(Generation)),
    ("prompt_tokens_cached_total", Value(Hits)),
];

/// What every engine's names begin with. Where a colon belongs, an underscore is one that a tool on
/// the way put there.
const PREFIXES: &[(&str, EngineKind, Names)] = &[
    ("vllm:", EngineKind::Vllm, VLLM),
    ("vllm_", EngineKind::Vllm, VLLM),
    ("sglang:", EngineKind::Sglang, SGLANG),
    ("sglang_", EngineKind::Sglang, SGLANG),
    ("trtllm_", EngineKind::TrtLlm, TRT_LLM),
    ("trtllm:", EngineKind::TrtLlm, TRT_LLM),
    ("nv_trt_llm_", EngineKind::Triton, TRITON),
    ("llamacpp:", EngineKind::LlamaCpp, LLAMA_CPP),
    ("llamacpp_", EngineKind::LlamaCpp, LLAMA_CPP),
];

/// What the metric `name` is, and its place among the names of its engine: of two for the same field
/// the lower one counts.
fn known(name: &[u8]) -> Option<(EngineKind, u8, Metric)> {
    let (name, engine, names) = PREFIXES.iter().find_map(|(prefix, engine, names)| {
        Some((name.strip_prefix(prefix.as_bytes())?, *engine, *names))
    })?;
    let ranks = 0_u8..;
    let mut named = ranks.zip(names).filter(|(_, (other, _))| other.as_bytes() == name);
    named.next().map(|(rank, (_, metric))| (engine, rank, *metric))
}

/// Books all that one sample says.
fn take(totals: &mut Totals, rank: u8, metric: Metric, reading: &Reading<'_>) {
    match metric {
        Value(field) => totals.add(field, rank, reading.value, &reading.labels),
        Metric::Labels(fields) => {
            for (label, field) in fields {
                if let Some(value) = reading.labels.get(label.as_bytes()).and_then(number) {
                    totals.add(*field, rank, value, &reading.labels);
                }
            }
        }
        Switch(label, fields) => {
            let case = reading.labels.get(label.as_bytes());
            let field = fields.iter().find(|(name, _)| case == Some(name.as_bytes()));
            if let Some((_, field)) = field {
                totals.add(*field, rank, reading.value, &reading.labels);
            }
        }
    }
}

/// The series of one name.
#[derive(Clone, Copy, Debug)]
struct Total {
    rank: u8,
    series: u32,
    sum: f64,
    min: f64,
    max: f64,
}

/// All that one engine's samples say.
#[derive(Debug, Default)]
struct Totals {
    fields: BTreeMap<Field, Total>,
    /// Series that tensor-parallel ranks repeat: the highest value for each data-parallel rank.
    repeated: BTreeMap<(Field, u8, u64), f64>,
}

impl Totals {
    fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.repeated.is_empty()
    }

    fn add(&mut self, field: Field, rank: u8, value: f64, labels: &Labels<'_>) {
        let Some(value) = sane(field, value) else { return };
        if labels.get(b"tp_rank").is_none() {
            add(&mut self.fields, field, rank, value);
        } else if labels.get(b"priority").is_none_or(<[u8]>::is_empty) {
            let model = xxh3_64_with_seed(labels.get(b"model_name").unwrap_or_default(), 0);
            let group = xxh3_64_with_seed(labels.get(b"dp_rank").unwrap_or_default(), model);
            let highest = self.repeated.entry((field, rank, group)).or_insert(value);
            *highest = highest.max(value);
        }
    }

    /// With what ranks repeat counted once.
    fn settled(&self) -> BTreeMap<Field, Total> {
        let mut fields = self.fields.clone();
        for ((field, rank, _), value) in &self.repeated {
            add(&mut fields, *field, *rank, *value);
        }
        fields
    }
}

fn add(fields: &mut BTreeMap<Field, Total>, field: Field, rank: u8, value: f64) {
    let first = Total { rank, series: 1, sum: value, min: value, max: value };
    let total = fields.entry(field).or_insert(Total { series: 0, sum: 0.0, ..first });
    if rank < total.rank {
        *total = first;
    } else if rank == total.rank {
        total.series += 1;
        total.sum += value;
        total.min = total.min.min(value);
        total.max = total.max.max(value);
    }
}

/// `value` within its field's range; `None` where it says nothing.
fn sane(field: Field, value: f64) -> Option<f64> {
    let most = if field == Usage { USAGE_MAX } else { f64::MAX };
    let is_sane = value.is_finite() && (0.0..=most).contains(&value);
    is_sane.then_some(if field == Usage { value.min(1.0) } else { value })
}

/// `ranks` is among how many engines the blocks are shared that each names as its own.
fn report(engine: EngineKind, totals: &Totals, ranks: u32) -> EngineReport {
    let fields = totals.settled();
    let total = |field: Field| fields.get(&field);
    let count = |field: Field| total(field).map(|total| total.sum as u32);
    let tokens = |field: Field| total(field).map(|total| total.sum as u64);
    let sizes = total(BlockSize).filter(|sizes| sizes.min >= sizes.max);
    let blocks = match engine {
        EngineKind::Vllm => total(Blocks).map(|blocks| blocks.max as u32 / ranks.max(1)),
        _ => count(Blocks),
    };
    let hits = tokens(Hits);
    let (prompt, queries) = match (engine, tokens(Prompt)) {
        (EngineKind::Vllm, prompt) => (prompt, tokens(Queries)),
        (EngineKind::LlamaCpp, computed) => {
            let prompt = computed.map(|computed| computed.saturating_add(hits.unwrap_or(0)));
            (prompt, prompt.filter(|_| hits.is_some()))
        }
        (_, prompt) => (prompt, prompt.filter(|_| hits.is_some())),
    };
    EngineReport {
        engine: Some(engine),
        waiting: count(Waiting),
        running: count(Running),
        kv_usage: usage(&fields),
        // A size that no configuration may have is taken for garbage.
        block_size_tokens: sizes
            .filter(|sizes| sizes.max <= f64::from(BLOCK_SIZE_TOKENS_MAX))
            .and_then(|sizes| NonZeroU32::new(sizes.max as u32)),
        kv_blocks: blocks.and_then(NonZeroU32::new),
        prompt_tokens: prompt,
        generation_tokens: tokens(Generation),
        prefix_query_tokens: queries,
        prefix_hit_tokens: hits,
        started_at_s: None,
    }
}

/// Used blocks over all where an engine names both: Triton's `fraction` has not always been that.
fn usage(fields: &BTreeMap<Field, Total>) -> Option<f32> {
    let used = fields.get(&UsedBlocks).zip(fields.get(&Blocks)).filter(|(_, all)| all.sum > 0.0);
    let share = match used {
        Some((used, all)) => used.sum / all.sum,
        None => fields.get(&Usage).map(|total| total.sum / f64::from(total.series))?,
    };
    Some(share.min(1.0) as f32)
}

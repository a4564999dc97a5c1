//! Latency of one request at a time, the arms taking turns in random order.

use std::time::Instant;

use anyhow::Context;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use warmpath_harness::workload;

use crate::arms::{Arm, Kind};
use crate::wire::{self, Client};

/// Body sizes, in bytes, with the budget for what Warmpath adds beyond the buffer filter: p50 and
/// p99, in microseconds.
const SIZES: [(usize, [u64; 2]); 3] =
    [(2_000, [100, 300]), (32_000, [500, 1_000]), (400_000, [5_000, 10_000])];

/// Rounds before measuring: connections, caches, V8's tiers.
const WARM_UP_ROUNDS: u32 = 50;

/// Latencies of one size and kind of body.
pub struct Latency {
    /// Size of the body.
    pub body_bytes: usize,
    /// Whether every request had a text of its own.
    pub is_first_sight: bool,
    /// The budget in microseconds, p50 and p99.
    pub budget_us: [u64; 2],
    /// Microseconds, for each arm.
    pub arms: Vec<(Kind, Histogram<u64>)>,
}

impl Latency {
    /// What Warmpath adds beyond the buffer filter, at a percentile, in microseconds.
    pub fn added_us(&self, percentile: f64) -> i64 {
        let at = |kind| {
            let arm = self.arms.iter().find(|arm| arm.0 == kind);
            arm.map_or(0, |arm| arm.1.value_at_percentile(percentile) as i64)
        };
        at(Kind::Warmpath) - at(Kind::Buffer)
    }
}

/// Measures every size, at first sight and repeated.
pub fn measure(arms: &[Arm], requests: u32, seed: u64) -> anyhow::Result<Vec<Latency>> {
    let mut results = Vec::new();
    for (body_bytes, budget_us) in SIZES {
        // Large bodies take longer and vary less.
        let rounds = if body_bytes > 100_000 { requests.div_ceil(4) } else { requests };
        for is_first_sight in [true, false] {
            let bar = ProgressBar::new(u64::from(rounds));
            bar.set_message(format!("{body_bytes} bytes"));
            let arms = measure_one(arms, body_bytes, is_first_sight, rounds, seed, &bar)?;
            bar.finish_and_clear();
            results.push(Latency { body_bytes, is_first_sight, budget_us, arms });
        }
    }
    Ok(results)
}

fn measure_one(
    arms: &[Arm],
    body_bytes: usize,
    is_first_sight: bool,
    rounds: u32,
    seed: u64,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<(Kind, Histogram<u64>)>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ body_bytes as u64);
    let rounds = WARM_UP_ROUNDS + rounds;
    // Made before the first is sent: nothing but the text tells the two kinds apart.
    let texts = if is_first_sight { rounds } else { 1 };
    let requests: Vec<Vec<u8>> =
        (0..texts).map(|_| wire::post(&body(&mut rng, body_bytes))).collect();
    let mut clients = Vec::new();
    for arm in arms {
        let client = Client::connect(arm.envoy.public()).context("cannot connect to Envoy")?;
        clients.push((arm.kind, client, Histogram::<u64>::new(3)?));
    }
    for (round, request) in (0..rounds).zip(requests.iter().cycle()) {
        // None always follows the same other, which leaves its code in the caches.
        clients.shuffle(&mut rng);
        for (kind, client, histogram) in &mut clients {
            let started = Instant::now();
            client.send(request).with_context(|| kind.label())?;
            if round >= WARM_UP_ROUNDS {
                histogram.record(started.elapsed().as_micros().try_into()?)?;
            }
        }
        if round >= WARM_UP_ROUNDS {
            bar.inc(1);
        }
    }
    let mut results: Vec<_> =
        clients.into_iter().map(|(kind, _, histogram)| (kind, histogram)).collect();
    results.sort_by_key(|(kind, _)| *kind as u8);
    Ok(results)
}

/// A chat request of about `body_bytes` bytes.
pub fn body(rng: &mut ChaCha8Rng, body_bytes: usize) -> String {
    // More words than needed, cut to the size.
    let mut text = workload::words(rng, (body_bytes / 3) as u32);
    let mut end = body_bytes.saturating_sub(80).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    json!({"model": "demo", "messages": [{"role": "user", "content": text}]}).to_string()
}

/// The results for people.
pub fn table(latencies: &[Latency]) -> Table {
    let arms = latencies.first().map_or(&[][..], |latency| &latency.arms);
    let mut header = vec!["body", "text"];
    header.extend(arms.iter().map(|(kind, _)| kind.label()));
    header.extend(["added p50 (budget)", "added p99 (budget)"]);
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    for latency in latencies {
        let text = if latency.is_first_sight { "first sight" } else { "repeated" };
        let mut row = vec![format!("{} KB", latency.body_bytes / 1_000), text.to_owned()];
        row.extend(latency.arms.iter().map(|(_, histogram)| {
            let [p50, p99] = [50.0, 99.0].map(|p| histogram.value_at_percentile(p));
            format!("{p50} / {p99}")
        }));
        for (percentile, budget) in [50.0, 99.0].into_iter().zip(latency.budget_us) {
            row.push(format!("{} ({budget})", latency.added_us(percentile)));
        }
        table.add_row(row);
    }
    table
}

//! Requests a second that one worker carries, the arms alternating round by round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use comfy_table::{Table, presets};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::arms::{Arm, Kind};
use crate::latency;
use crate::wire::{self, Client};

/// Connections that each keep one request in flight.
const CONNECTIONS: usize = 8;

/// Rounds of each arm.
const ROUNDS: usize = 5;

/// Size of the requests' bodies.
const BODY_BYTES: usize = 2_000;

/// Requests a second in each round of one arm.
pub struct Throughput {
    /// The arm.
    pub kind: Kind,
    /// One number a round, in order.
    pub per_s: Vec<f64>,
}

impl Throughput {
    /// The middle round.
    pub fn median(&self) -> f64 {
        let mut sorted = self.per_s.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Measures every arm in alternating rounds of `round_s` seconds.
pub fn measure(arms: &[Arm], round_s: f64, seed: u64) -> anyhow::Result<Vec<Throughput>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let requests: Vec<Vec<u8>> =
        (0..64).map(|_| wire::post(&latency::body(&mut rng, BODY_BYTES))).collect();
    let mut results: Vec<Throughput> =
        arms.iter().map(|arm| Throughput { kind: arm.kind, per_s: Vec::new() }).collect();
    for _ in 0..ROUNDS {
        for (arm, result) in arms.iter().zip(&mut results) {
            result.per_s.push(round(arm, &requests, Duration::from_secs_f64(round_s))?);
        }
    }
    Ok(results)
}

fn round(arm: &Arm, requests: &[Vec<u8>], length: Duration) -> anyhow::Result<f64> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                let (done, stop) = (&done, &stop);
                scope.spawn(move || -> std::io::Result<()> {
                    let mut client = Client::connect(arm.envoy.public())?;
                    for request in requests.iter().cycle().skip(connection * 8) {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        client.send(request)?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a client thread panicked"))??;
        }
        anyhow::Ok(())
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

/// The results for people.
pub fn table(throughputs: &[Throughput]) -> Table {
    let plain =
        throughputs.iter().find(|it| it.kind == Kind::Plain).map_or(1.0, Throughput::median);
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "2 KB bodies, 8 connections",
        "requests/s (median)",
        "min to max",
        "of plain",
    ]);
    for result in throughputs {
        let (min, max) = result
            .per_s
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(min, max), &it| (min.min(it), max.max(it)));
        table.add_row([
            result.kind.label().to_owned(),
            format!("{:.0}", result.median()),
            format!("{min:.0} to {max:.0}"),
            format!("{:.0}%", 100.0 * result.median() / plain),
        ]);
    }
    table
}

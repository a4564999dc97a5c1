//! Thin command line.
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use warmpath_fleet::arm::Arm;
use warmpath_fleet::fleet::{FleetSpec, run};
use warmpath_fleet::measure::figures;
use warmpath_fleet::scenario;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let arms: Vec<Arm> = args[2].split(',').map(|n| Arm::named(n).expect("arm")).collect();
    let seeds: u64 = args[3].parse().unwrap();
    let mut jobs = vec![];
    let ws: Vec<Option<Vec<f64>>> = std::env::var("W").map_or(vec![None], |w| w.split(' ').map(|x| Some(x.split(',').map(|y| y.parse().unwrap()).collect())).collect());
    for s in scenario::all().unwrap() {
        if args[1] != "all" && !args[1].split(',').any(|n| s.name.starts_with(n)) { continue; }
        for &arm in &arms { for seed in 0..seeds { for w in &ws { jobs.push((s.clone(), arm, seed, w.clone())); } } }
    }
    let next = AtomicUsize::new(0);
    let out = Mutex::new(vec![None; jobs.len()]);
    std::thread::scope(|sc| { for _ in 0..2 { sc.spawn(|| loop {
        let i = next.fetch_add(1, Ordering::Relaxed);
        let Some((s, arm, seed, w)) = jobs.get(i) else { break };
        let t = std::time::Instant::now();
        let fleet = FleetSpec { profile: s.profile.clone(), told_kv_tokens: std::env::var("TOLD").map_or(Some(s.profile.kv_tokens), |t| match t.parse::<f64>() { Ok(f) if f > 0.0 => Some((f64::from(s.profile.kv_tokens) * f) as u32), _ => None }), backends: s.backends, slow_backends: s.slow_backends, envoys: std::env::var("ENVOYS").map_or(1, |t| t.parse().unwrap()), workers: 2, arm: *arm, seed: *seed, weights: w.as_ref().map(|w| warmpath_core::score::Weights { pending_prefill: w[0], uncached: w[1], running: w[2], kv_overflow: w[3] }) };
        let r = run(&fleet, s.workload(*seed).unwrap().as_mut()).unwrap();
        let f = figures(&r, s.duration_s());
        let line = format!("{:22} {:12} {} s{seed} n={} ref={} cached={:.1}% hit={:.1}% ttft m={:.1} p50={:.1} p90={:.0} p99={:.1} XL50={:.0} tpot p50={:.1} p99={:.1} rps={:.2} cv={:.2} err={:.3} bias={:+.3} pre={} down={} {:?} [{:.1}s]",
            s.name, arm.name(), w.as_ref().map_or(String::new(), |w| format!("{w:?}")), f.requests, f.refused, f.cached_share*100.0, f.hit_share*100.0, f.ttft.mean_ms, f.ttft.p50_ms, f.ttft.p90_ms, f.ttft.p99_ms, f.ttft_extra_large.p50_ms, f.tpot.p50_ms, f.tpot.p99_ms, f.requests_per_s, f.spread, f.prediction_error, f.prediction_bias, f.preemptions, f.downgrades, f.reasons, t.elapsed().as_secs_f64());
        println!("{line}"); let mut o = out.lock().unwrap(); o[i] = Some(());
    });}});
    
}

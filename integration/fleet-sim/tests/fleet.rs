//! Whole runs: that they replay, that nothing is lost, and that the arms are what they say.

use warmpath_core::config::Policy;
use warmpath_engine_sim::model::Profile;
use warmpath_fleet::arm::Arm;
use warmpath_fleet::batch::{Job, run_all};
use warmpath_fleet::evaluate::{Results, arms, checks};
use warmpath_fleet::fleet::Run;
use warmpath_fleet::measure::figures;
use warmpath_fleet::scenario::{self, Scenario, Traffic};
use warmpath_fleet::what_if::{Question, answer, smallest};
use warmpath_fleet::workload::{OpenSpec, Pool, Prompts, StressSpec, TalkSpec};

const PRODUCT: Arm = Arm::Policy(Policy::KvCost);

fn profile(name: &str) -> Profile {
    Profile::named(name).unwrap()
}

fn stress(users: u32, documents: u64) -> Traffic {
    Traffic::Stress(StressSpec {
        users,
        rate_per_s: None,
        documents,
        document_tokens: (2_000, 4_000),
        pool: Pool::Fixed,
        shared_documents: 1.0,
        shared_systems: 0.9,
        output_tokens: 50,
        duration_s: 60.0,
    })
}

fn talk() -> Traffic {
    Traffic::Talk(TalkSpec {
        rate_per_s: 1.0,
        prefixes: 4,
        prefix_tokens: (500, 1_000),
        turns: (2, 5),
        added_tokens: (50, 200),
        output_tokens: (40, 80),
        wait_s: 1.0,
        duration_s: 40.0,
    })
}

fn burst() -> OpenSpec {
    OpenSpec {
        prompts: Prompts::Unique { tokens: (500, 1_000) },
        rate_per_s: 4.0,
        output_tokens: (20, 40),
        burst_requests: 50,
        burst_tokens: 3_000,
        burst_every_s: 20.0,
        duration_s: 40.0,
    }
}

fn run(scenario: &Scenario, arm: Arm, seed: u64) -> Run {
    Job { scenario: scenario.clone(), arm, seed }.run().unwrap()
}

/// Everything that a run says, as text.
fn transcript(run: &Run) -> String {
    format!("{:?}\n{:?}", run.records, run.engines)
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for traffic in [stress(8, 6), talk(), Traffic::Open(burst())] {
        let scenario = Scenario {
            envoys: 2,
            workers: 3,
            ..Scenario::new("t", &profile("a100-8b"), 4, traffic)
        };
        for arm in [PRODUCT, Arm::Oracle, Arm::Policy(Policy::Random)] {
            let first = transcript(&run(&scenario, arm, 1));
            assert_eq!(first, transcript(&run(&scenario, arm, 1)), "{}", arm.name());
            assert_ne!(first, transcript(&run(&scenario, arm, 2)), "{}", arm.name());
        }
    }
}

#[test]
fn the_requests_do_not_depend_on_the_policy() {
    let scenario = Scenario::new("t", &profile("a100-8b"), 4, Traffic::Open(burst()));
    let asked = |arm| {
        let mut asked: Vec<_> = run(&scenario, arm, 5)
            .records
            .iter()
            .map(|record| {
                let done = &record.finished;
                (record.user, done.arrived_at, done.prompt_tokens, done.output_tokens)
            })
            .collect();
        asked.sort_unstable();
        asked
    };
    let first = asked(PRODUCT);
    assert!(first.len() > 200);
    assert_eq!(first, asked(Arm::Policy(Policy::RoundRobin)));
    assert_eq!(first, asked(Arm::Policy(Policy::Session)));
}

#[test]
fn every_request_ends_once_and_the_records_agree_with_the_engines_counters() {
    let small = Profile { kv_tokens: 11_648, ..profile("a100-13b") };
    for arm in Arm::ALL {
        let run = run(&Scenario::new("t", &small, 3, stress(12, 10)), arm, 3);
        let sum = |of: fn(&warmpath_engine_sim::model::EngineStats) -> u64| {
            run.engines.iter().map(of).sum::<u64>()
        };
        let count = run.records.len() as u64;
        assert!(count > 50, "{}", arm.name());
        assert_eq!((sum(|e| e.submitted), sum(|e| e.finished)), (count, count), "{}", arm.name());
        let prompt: u64 = run.records.iter().map(|r| u64::from(r.finished.prompt_tokens)).sum();
        let cached: u64 = run.records.iter().map(|r| u64::from(r.finished.cached_tokens)).sum();
        assert_eq!(sum(|e| e.prefix_cache_queries), prompt);
        assert_eq!(sum(|e| e.prefix_cache_hits), cached);
        assert!(run.engines.iter().all(|engine| engine.running == 0 && engine.waiting == 0));
        for record in &run.records {
            let done = &record.finished;
            assert!(done.arrived_at <= done.admitted_at);
            assert!(done.admitted_at <= done.first_token_at);
            assert!(done.first_token_at <= record.finished_at);
        }
    }
}

#[test]
fn the_oracle_knows_and_history_does_not() {
    let small = Profile { kv_tokens: 11_648, ..profile("a100-13b") };
    let scenario = Scenario::new("t", &small, 4, stress(8, 30));
    let error = |arm| figures(&run(&scenario, arm, 1), scenario.duration_s()).prediction_error;
    let (oracle, product, history) = (error(Arm::Oracle), error(PRODUCT), error(Arm::NoResidency));
    assert!(oracle < 0.02, "{oracle}");
    assert!(product < 0.10, "{product}");
    assert!(history > 0.20, "{history}");
}

#[test]
fn follow_up_turns_find_what_was_said_before() {
    let scenario = Scenario::new("t", &profile("a100-8b"), 4, talk());
    let figures = figures(&run(&scenario, PRODUCT, 1), scenario.duration_s());
    assert!(figures.cached_share > 0.6, "{}", figures.cached_share);
    // Answers are in the caches too, unknown to the router.
    assert!(figures.prediction_bias < 0.0, "{}", figures.prediction_bias);
}

#[test]
fn bursts_are_counted_by_the_backends_that_compute_them() {
    let scenario = Scenario::new("t", &profile("a100-8b"), 4, Traffic::Open(burst()));
    let backends = |arm| figures(&run(&scenario, arm, 1), scenario.duration_s()).burst_backends;
    assert_eq!(backends(Arm::Policy(Policy::RoundRobin)), 4);
    assert!(backends(PRODUCT) <= 2);
}

#[test]
fn prompts_that_fit_no_engine_are_counted_and_users_go_on() {
    let tiny = Profile { kv_tokens: 3_200, ..profile("a100-8b") };
    let run = run(&Scenario::new("t", &tiny, 2, stress(4, 20)), PRODUCT, 1);
    assert!(run.refused > 0 && run.records.len() > 20);
}

#[test]
fn jobs_come_back_in_order_whatever_order_they_ran_in() {
    let long = Scenario::new("long", &profile("a100-8b"), 4, stress(8, 6));
    let short = Scenario::new("short", &profile("a100-8b"), 1, talk());
    let jobs: Vec<Job> = [&long, &short, &long, &short]
        .into_iter()
        .zip(0..)
        .map(|(scenario, seed)| Job { scenario: scenario.clone(), arm: PRODUCT, seed })
        .collect();
    let together = run_all(&jobs, &|_| {}).unwrap();
    for (job, figures) in jobs.iter().zip(&together) {
        assert_eq!(run_all(std::slice::from_ref(job), &|_| {}).unwrap()[0], *figures);
    }
}

#[test]
fn scenarios_have_names_of_their_own_and_run_under_the_product() {
    let scenarios = scenario::all().unwrap();
    let mut names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), scenarios.len());
    for scenario in &scenarios {
        assert!(arms(scenario).contains(&PRODUCT), "{}", scenario.name);
        assert!(scenario.duration_s() > 0.0);
    }
    // Every bound is on a scenario that exists.
    for check in checks::all(&Results::default()).iter().flat_map(|group| &group.checks) {
        assert!(names.contains(&check.scenario.as_str()), "{}", check.scenario);
    }
}

#[test]
fn the_committed_traces_are_whole() {
    for (name, count) in [("mooncake-conversation-8", 6_000), ("mooncake-synthetic-8", 3_993)] {
        let scenarios = scenario::all().unwrap();
        let scenario = scenarios.iter().find(|scenario| scenario.name == name).unwrap();
        let arrivals = scenario.workload(0).unwrap().start();
        assert_eq!(arrivals.len(), count);
        let last_s = arrivals.iter().map(|arrival| arrival.at.as_secs_f64()).fold(0.0, f64::max);
        assert!(last_s <= scenario.duration_s() && last_s > 0.98 * scenario.duration_s());
    }
}

#[test]
fn what_if_says_how_many_gpus_meet_a_goal() {
    let path = std::env::temp_dir().join(format!("warmpath-what-if-{}.jsonl", std::process::id()));
    // Each second one of four conversations goes on, for a minute.
    let lines: Vec<String> = (0..60)
        .map(|second| {
            let (session, turn) = (second % 4, second / 4);
            let prompt_tokens = 4_000 + 250 * turn;
            format!(
                r#"{{"start_time":{second},"prompt_tokens":{prompt_tokens},"completion_tokens":100,"session":"s{session}"}}"#
            )
        })
        .collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    let question = Question {
        trace: path,
        profile: profile("a100-8b"),
        gpus: vec![1, 2, 8],
        speed: 4.0,
        seed: 0,
    };
    let answers = answer(&question).unwrap();
    assert_eq!(answers.len(), 3 * 6);
    assert!(answers.iter().all(|answer| answer.figures.requests == 60));
    let p99 = |gpus, policy| {
        let arm = Arm::Policy(policy);
        let found = answers.iter().find(|answer| answer.gpus == gpus && answer.arm == arm);
        found.unwrap().figures.ttft.p99_ms
    };
    assert!(p99(8, Policy::KvCost) <= p99(1, Policy::KvCost));
    let goal_ms = p99(8, Policy::RoundRobin) * 1.01;
    let product = smallest(&answers, PRODUCT, goal_ms).unwrap();
    assert!(product <= smallest(&answers, Arm::Policy(Policy::RoundRobin), goal_ms).unwrap());
    assert_eq!(smallest(&answers, PRODUCT, 0.001), None);
}

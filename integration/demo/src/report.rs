//! The table and what it means.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use crate::arm::{Arm, Policy};

/// The table of all arms, then what it means in two sentences.
pub fn render(arms: &[Arm]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "policy",
        "prompt tokens cached",
        "TTFT p50",
        "TTFT p99",
        "completed/s",
        "completed",
        "failed",
    ]);
    for arm in arms {
        table.add_row([
            arm.policy.label().to_owned(),
            percent(arm.cached_share()),
            milliseconds(arm.ttft_p50),
            milliseconds(arm.ttft_p99),
            format!("{:.2}", arm.completed_per_s),
            arm.completed.to_string(),
            arm.failed.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::new();
    let _ = writeln!(text, "{table}");
    let _ =
        writeln!(text, "By the engines' own counters and clocks; TTFT is the time to first token.");
    if let Some(meaning) = meaning(arms) {
        let _ = writeln!(text, "\n{meaning}");
    }
    text
}

fn meaning(arms: &[Arm]) -> Option<String> {
    let arm = |policy| arms.iter().find(|arm| arm.policy == policy);
    let (turns, least, warm) =
        (arm(Policy::RoundRobin)?, arm(Policy::LeastRequest)?, arm(Policy::KvCost)?);
    let computed = |arm: &Arm| arm.prompt_tokens.saturating_sub(arm.cached_tokens);
    Some(format!(
        "Of the prompts' tokens, {} were still in the KV memory of the GPU that Warmpath chose, against {} \
         with round robin and {} with least request, so for the same answers the GPUs computed {} thousand \
         prompt tokens instead of {} thousand.\n\
         One request in a hundred waited longer than {} for its first token with Warmpath, {} with round \
         robin and {} with least request.",
        percent(warm.cached_share()),
        percent(turns.cached_share()),
        percent(least.cached_share()),
        computed(warm) / 1_000,
        computed(turns) / 1_000,
        milliseconds(warm.ttft_p99),
        milliseconds(turns.ttft_p99),
        milliseconds(least.ttft_p99),
    ))
}

/// What to type while the fleet is up.
pub fn try_it(public: SocketAddr, internal: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "Envoy and the engines stay up until Ctrl-C. Send this twice; the second time, cached_tokens says what \
         the engine still had:\n\n  \
         curl -s http://{public}/v1/chat/completions -H 'content-type: application/json' \
         -d @examples/demo-model/request.json\n\n\
         Where such a request would go, and why:\n\n  \
         curl -s http://{internal}/_warmpath/explain/v1/chat/completions \
         -d @examples/demo-model/request.json\n\n\
         Backends, caches and decisions, live, for a browser:\n\n  http://{internal}/_warmpath/\n\n\
         What the filter counted:\n\n  \
         curl -s 'http://{admin}/stats?filter=wasmcustom'"
    )
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(policy: Policy, cached_tokens: u64, p99_ms: u64) -> Arm {
        Arm {
            policy,
            completed: 900,
            failed: 1,
            prompt_tokens: 1_000_000,
            cached_tokens,
            ttft_p50: Duration::from_millis(40),
            ttft_p99: Duration::from_millis(p99_ms),
            completed_per_s: 6.5,
        }
    }

    #[test]
    fn the_table_and_the_sentences_tell_the_same_numbers() {
        let arms = [
            arm(Policy::RoundRobin, 221_000, 1_900),
            arm(Policy::LeastRequest, 208_000, 2_100),
            arm(Policy::KvCost, 954_000, 310),
        ];
        let text = render(&arms);
        for number in ["22.1%", "20.8%", "95.4%", "1900 ms", "2100 ms", "310 ms"] {
            assert_eq!(text.matches(number).count(), 2, "{number} in\n{text}");
        }
        assert!(text.contains("46 thousand prompt tokens instead of 779 thousand"), "{text}");
    }

    #[test]
    fn a_missing_arm_leaves_the_table() {
        let text = render(&[arm(Policy::KvCost, 1, 1)]);
        assert!(text.contains("Warmpath") && !text.contains("against"));
    }
}

//! Real and composed dumps, hostile text, and lines that must not matter.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::exposition::Samples;
use super::*;
use crate::config::DataParallel;
use crate::limits::{
    LABEL_BYTES_MAX, LOAD_REPORT_BYTES_MAX, METRICS_BYTES_MAX, METRICS_SAMPLES_MAX,
};

const VLLM: &str = include_str!("../../tests/metrics/vllm-0.32.0.txt");
const VLLM_RANKS: &str = include_str!("../../tests/metrics/vllm-0.32.0-ranks.txt");
const VLLM_OLD: &str = include_str!("../../tests/metrics/vllm-0.8.txt");
const SGLANG: &str = include_str!("../../tests/metrics/sglang-0.5.txt");
const SGLANG_RANKS: &str = include_str!("../../tests/metrics/sglang-ranks.txt");
const TRT_LLM: &str = include_str!("../../tests/metrics/trtllm-serve.txt");
const TRITON: &str = include_str!("../../tests/metrics/triton-trtllm.txt");
const LLAMA_CPP: &str = include_str!("../../tests/metrics/llamacpp-7e4c0a9.txt");

const DUMPS: [&str; 8] =
    [VLLM, VLLM_RANKS, VLLM_OLD, SGLANG, SGLANG_RANKS, TRT_LLM, TRITON, LLAMA_CPP];

fn parse(text: &str) -> EngineReport {
    parse_metrics(text.as_bytes(), None).unwrap()
}

/// A report with the fields that all engines have.
fn expected(engine: EngineKind, waiting: u32, running: u32, kv_usage: f32) -> EngineReport {
    EngineReport {
        engine: Some(engine),
        waiting: Some(waiting),
        running: Some(running),
        kv_usage: Some(kv_usage),
        ..EngineReport::default()
    }
}

/// With size and number of its blocks.
fn with_blocks(report: EngineReport, block_size_tokens: u32, kv_blocks: u32) -> EngineReport {
    EngineReport {
        block_size_tokens: NonZeroU32::new(block_size_tokens),
        kv_blocks: NonZeroU32::new(kv_blocks),
        ..report
    }
}

/// With tokens of prompts and outputs, looked up and found.
fn with_tokens(report: EngineReport, tokens: [u64; 4]) -> EngineReport {
    let [prompt, generation, queries, hits] = tokens.map(Some);
    EngineReport {
        prompt_tokens: prompt,
        generation_tokens: generation,
        prefix_query_tokens: queries,
        prefix_hit_tokens: hits,
        ..report
    }
}

#[test]
fn vllm() {
    let report = expected(EngineKind::Vllm, 0, 12, 0.000_534_061_7);
    let report = with_tokens(with_blocks(report, 32, 131_072), [5_899, 1_664, 5_899, 5_120]);
    assert_eq!(parse(VLLM), EngineReport { started_at_s: Some(1_795_988_788.6), ..report });

    // Two data-parallel ranks of 131,072 blocks.
    let report = expected(EngineKind::Vllm, 0, 12, 0.000_305_178_1);
    let report = with_tokens(with_blocks(report, 32, 262_144), [5_899, 1_642, 5_899, 4_800]);
    assert_eq!(parse(VLLM_RANKS), report);
    // The parts of one and the other.
    for (rank, tokens) in [(0, [3_123, 851, 3_123, 2_560]), (1, [2_776, 791, 2_776, 2_240])] {
        let of_rank = Some(DataParallel { rank, size: 2 });
        let report = expected(EngineKind::Vllm, 0, 6, 0.000_305_178_1);
        let report = with_tokens(with_blocks(report, 32, 131_072), tokens);
        assert_eq!(parse_metrics(VLLM_RANKS.as_bytes(), of_rank), Ok(report));
    }

    let report = expected(EngineKind::Vllm, 7, 41, 0.643_192_47);
    let report = with_tokens(with_blocks(report, 16, 27_691), [1_204_187, 96_014, 75_262, 50_144]);
    assert_eq!(parse(VLLM_OLD), EngineReport { started_at_s: Some(1_745_683_200.14), ..report });
}

#[test]
fn sglang() {
    let report = with_blocks(expected(EngineKind::Sglang, 3, 12, 0.41), 64, 11_147);
    assert_eq!(parse(SGLANG), with_tokens(report, [812_004, 70_420, 812_004, 203_776]));
    // What tensor-parallel ranks and priorities repeat counts once.
    let report = with_blocks(expected(EngineKind::Sglang, 6, 44, 0.625), 64, 16_384);
    let report = with_tokens(report, [2_000_000, 80_000, 2_000_000, 640_000]);
    assert_eq!(parse(SGLANG_RANKS), report);
    // Tools on the way replace colons.
    assert_eq!(parse(&SGLANG_RANKS.replace("sglang:", "sglang_")), report);
}

#[test]
fn tensorrt_llm() {
    let report = with_blocks(expected(EngineKind::TrtLlm, 4, 18, 0.625), 32, 6_400);
    assert_eq!(parse(TRT_LLM), with_tokens(report, [640_000, 51_200, 640_000, 192_000]));
    // 1,560 of 6,240 blocks, whatever the fraction says.
    let report = with_blocks(expected(EngineKind::Triton, 9, 33, 0.25), 64, 6_240);
    assert_eq!(parse(TRITON), report);
    let without_used = TRITON.replace("\"used\"", "\"?\"");
    assert_eq!(parse(&without_used), EngineReport { kv_usage: Some(0.4875), ..report });
}

#[test]
fn llama_cpp() {
    // Its counter of prompt tokens leaves out the 1,326 cached ones.
    let report = EngineReport { kv_usage: None, ..expected(EngineKind::LlamaCpp, 4, 2, 0.0) };
    assert_eq!(parse(LLAMA_CPP), with_tokens(report, [2_215, 90, 2_215, 1_326]));
    let old = "llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:prompt_tokens_total 7\n";
    let report = parse(old);
    assert_eq!((report.kv_usage, report.prompt_tokens), (Some(0.5), Some(7)));
    assert_eq!((report.prefix_query_tokens, report.prefix_hit_tokens), (None, None));
}

#[test]
fn ranks_and_models_are_added_and_usage_is_averaged() {
    let text = concat!(
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"a\"} 3\n",
        "vllm:num_requests_waiting{engine=\"1\",model_name=\"a\"} 4\n",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a\"} 0.25\n",
        "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"a\"} 0.75\n",
        "vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"a\"} 0.9\n",
        "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"220\"} 1\n",
        "vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"220\"} 1\n",
    );
    let report = parse(text);
    assert_eq!((report.waiting, report.kv_usage), (Some(7), Some(0.5)));
    assert_eq!(report.block_size_tokens, NonZeroU32::new(16));
    assert_eq!(report.kv_blocks, NonZeroU32::new(220));
    let report = parse(&text.replacen("size=\"16\"", "size=\"32\"", 1));
    assert_eq!((report.block_size_tokens, report.kv_blocks), (None, NonZeroU32::new(220)));
}

#[test]
fn values_that_cannot_be_count_as_missing() {
    let waiting = |value: &str| parse(&format!("vllm:num_requests_waiting {value}\n")).waiting;
    let ending = |value: &str| {
        let text = format!("vllm:prompt_tokens_total 1\nvllm:num_requests_waiting {value}\n");
        parse(&text).waiting
    };
    assert_eq!(waiting("3"), Some(3));
    assert_eq!(waiting("3.0"), Some(3));
    assert_eq!(waiting("+3e1 1395066363000"), Some(30));
    assert_eq!(waiting("5 # {trace_id=\"x\"} 0.67 1.5"), Some(5));
    assert_eq!(waiting("5 1.5 # {trace_id=\"x\"} 0.67"), Some(5));
    assert_eq!(waiting("-0"), Some(0));
    assert_eq!(waiting("1e30"), Some(u32::MAX));
    for nonsense in ["NaN", "+Inf", "-Inf", "-1", "", "x", "3x", "3 x", "3 4 5", "0x10", "1_0"] {
        assert_eq!(ending(nonsense), None, "{nonsense}");
    }
    let usage = |value: &str| {
        let text = format!("vllm:prompt_tokens_total 1\nvllm:kv_cache_usage_perc {value}\n");
        parse(&text).kv_usage
    };
    assert_eq!(usage("1.0000000002"), Some(1.0));
    assert_eq!((usage("48.75"), usage("-0.1"), usage("NaN")), (None, None, None));
    let blocks = |value: &str| {
        let text =
            "vllm:prompt_tokens_total 1e30\nvllm:cache_config_info{num_gpu_blocks=\"VALUE\"} 1\n";
        let report = parse(&text.replace("VALUE", value));
        assert_eq!(report.prompt_tokens, Some(u64::MAX));
        report.kv_blocks.map(NonZeroU32::get)
    };
    assert_eq!(blocks("27691"), Some(27_691));
    assert_eq!((blocks("None"), blocks("0"), blocks("-1"), blocks("")), (None, None, None, None));
}

#[test]
fn the_format_in_all_its_forms() {
    let samples = |text: &str| -> Vec<(String, Option<f64>)> {
        Samples::new(text.as_bytes())
            .map(|sample| {
                let name = String::from_utf8(sample.name.to_vec()).unwrap();
                (name, sample.read().map(|reading| reading.value))
            })
            .collect()
    };
    let read = |text: &str| samples(text).pop().and_then(|(_, value)| value);
    assert_eq!(read("a 1\n"), Some(1.0));
    assert_eq!(read("  a\t{ } 1 \t\r\n"), Some(1.0));
    assert_eq!(read("a{b=\"}\\\"\\\\\", c = \"\" , } .5\n"), Some(0.5));
    assert_eq!(read("a{b=\"x\"}2\n"), Some(2.0));
    for broken in [
        "a",
        "a1",
        "a{",
        "a{}",
        "a{b} 1",
        "a{b=1} 1",
        "a{b=\"} 1",
        "a{b=\"\\\"} 1",
        "a{b=\"\" c=\"\"} 1",
        "a{,} 1",
        "a{=\"\"} 1",
        "a{1b=\"\"} 1",
        "a}1",
        "a=1",
    ] {
        assert_eq!(read(&format!("{broken}\n")), None, "{broken}");
    }
    // No names: comments, empty lines, quoted names.
    let text = "# TYPE a gauge\n\n{\"a.b\"} 1\n1a 1\n\u{e4} 1\n# EOF\n";
    assert_eq!(samples(text), []);
    // The last line has no end yet.
    assert_eq!(samples("a 1\na 12"), [("a".to_owned(), Some(1.0))]);

    let text = b"a{long=\"LONG\",b=\"x\\\"y\",\xff=\"\"} 1\n";
    assert!(Samples::new(text).next().unwrap().read().is_none());
    let long = "l".repeat(LABEL_BYTES_MAX + 1);
    let text = format!("a{{long=\"{long}\",b=\"x\\\"y\",bb=\"\"}} 1\n");
    let labels = Samples::new(text.as_bytes()).next().unwrap().read().unwrap().labels;
    assert_eq!(labels.get(b"b"), Some(&b"x\\\"y"[..]));
    assert_eq!((labels.get(b"long"), labels.get(b"c")), (None, None));
}

#[test]
fn what_is_no_engines_metrics_is_refused() {
    let json = br#"[{"iter":1,"numActiveRequests":2}]"#;
    let others = b"process_start_time_seconds 1\nhttp_requests_total 3\nvllm:unknown 1\n";
    for text in [&b""[..], b"\n", json, others, b"<html>\n<body>502</body>\n", b"\xff\xfe\n\0"] {
        assert_eq!(parse_metrics(text, None), Err(MetricsError::UnknownEngine));
    }
    let bytes = METRICS_BYTES_MAX + 1;
    assert_eq!(parse_metrics(&vec![b'\n'; bytes], None), Err(MetricsError::TooLarge { bytes }));
    let many = "a 1\n".repeat(METRICS_SAMPLES_MAX + 1);
    assert_eq!(parse_metrics(many.as_bytes(), None), Err(MetricsError::TooManySamples));
    assert_eq!(parse_metrics(&many.as_bytes()[4..], None), Err(MetricsError::UnknownEngine));
}

#[test]
fn a_text_cut_anywhere_says_less_but_nothing_else() {
    let whole = parse(LLAMA_CPP);
    for end in 0..LLAMA_CPP.len() {
        let Ok(part) = parse_metrics(&LLAMA_CPP.as_bytes()[..end], None) else { continue };
        assert!(part.running.is_none() || part.running == whole.running);
        assert!(part.waiting.is_none() || part.waiting == whole.waiting);
        assert!(part.generation_tokens.is_none_or(|tokens| tokens == 90));
    }
}

#[test]
fn load_reports() {
    let load = |waiting, running, kv_usage| Some(LoadReport { waiting, running, kv_usage });
    // As vLLM 0.32.0 wrote them.
    let usage = Some(0.000_625_615_1);
    for report in [
        "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0006256151246271102",
        "JSON {\"named_metrics\": {\"num_requests_waiting\": 0.0, \"kv_cache_usage_perc\": 0.0006256151246271102}}",
    ] {
        assert_eq!(parse_orca(report.as_bytes()), load(Some(0), None, usage));
    }
    // As Triton's source prints them.
    let triton = load(None, None, Some(0.25));
    let text =
        b"TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=6400";
    assert_eq!(parse_orca(text), triton);
    let json = br#"JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":6400}}"#;
    assert_eq!(parse_orca(json), triton);
    // Two ranks; vLLM's JSON has the last one only.
    let ranks =
        b"TEXT named_metrics.num_requests_waiting=0.0, named_metrics.num_requests_waiting=0.0, \
        named_metrics.kv_cache_usage_perc=0.00044250825888259016, \
        named_metrics.kv_cache_usage_perc=0.00039673154244646014";
    assert_eq!(parse_orca(ranks), load(Some(0), None, Some(0.000_419_619_9)));
    let ranks = b"text kv_cache_usage_perc=0.5,num_requests_waiting=1,num_requests_running=2 ,\
        kv_cache_usage_perc=1.0,num_requests_waiting=3,num_requests_running=2";
    assert_eq!(parse_orca(ranks), load(Some(4), Some(4), Some(0.75)));
    let flat = br#"JSON {"cpu_utilization": 0.1, "named_metrics.num_requests_running": 2e0}"#;
    assert_eq!(parse_orca(flat), load(None, Some(2), None));
    let broken = b"TEXT num_requests_waiting=x, =, a=1=2, num_requests_running=NaN, \xff=1, \
        kv_cache_usage_perc=7, num_requests_waiting=-1, num_requests_running=1e99";
    assert_eq!(parse_orca(broken), load(None, Some(u32::MAX), None));
}

#[test]
fn other_headers_are_no_load_reports() {
    let long = format!("TEXT num_requests_waiting=1{}", " ".repeat(LOAD_REPORT_BYTES_MAX));
    for value in [
        &b""[..],
        b"TEXT",
        b"TEXT ",
        b"JSON",
        b"JSON {}",
        b"JSON []",
        b"JSON {\"named_metrics\": {\"num_requests_waiting\": NaN}}",
        b"JSON {\"named_metrics\": {\"num_requests_waiting\": \"1\"}}",
        b"JSON {\"named_metrics\": [1]}",
        b"BIN CgkJAAAAAAAA8D8=",
        b"TEXTnum_requests_waiting=1",
        b"num_requests_waiting=1",
        b"\xff\xff\xff\xff\xff\xff",
        long.as_bytes(),
    ] {
        assert_eq!(parse_orca(value), None, "{}", String::from_utf8_lossy(value));
    }
}

/// A line that says nothing of an engine.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..80).prop_map(|mut line| {
        line.retain(|byte| *byte != b'\n');
        // The prefix makes it a name that no engine has, a comment, or a line that was cut.
        line.splice(0..0, *b"x");
        line
    });
    let cut = (0..DUMPS.len(), any::<prop::sample::Index>(), any::<prop::sample::Index>())
        .prop_map(|(dump, line, end)| {
            let lines: Vec<&str> = DUMPS[dump].lines().collect();
            let line = line.get(&lines).as_bytes();
            // A line without its value, or the start of its name only.
            let value = line.iter().rposition(|&byte| byte == b' ').unwrap_or(0);
            line[..end.index(value + 1)].to_vec()
        });
    let fixed = prop::sample::select(vec![
        &b""[..],
        b"#",
        b"# TYPE vllm:num_requests_waiting gauge",
        b"\xff\xfe",
        b"vllm:num_requests_waiting{engine=\"0\xff} 7",
        b"vllm:num_requests_waiting{engine=\"0\"} NaN",
        b"vllm:num_requests_waitin\xff 7",
        b"my_vllm:num_requests_waiting 7",
    ])
    .prop_map(<[u8]>::to_vec);
    prop_oneof![bytes, cut, fixed]
}

proptest! {
    #[test]
    fn garbage_between_the_lines_changes_nothing(
        dump in 0..DUMPS.len(),
        lines in proptest::collection::vec((any::<prop::sample::Index>(), garbage()), 0..20),
    ) {
        let text = DUMPS[dump];
        let mut mixed: Vec<&[u8]> = text.lines().map(str::as_bytes).collect();
        for (index, line) in &lines {
            mixed.insert(index.index(mixed.len() + 1), line);
        }
        let mixed: Vec<u8> = mixed.join(&b"\r\n"[..]).into_iter().chain(*b"\n").collect();
        prop_assert_eq!(parse_metrics(&mixed, None).unwrap(), parse(text));
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_metrics(&bytes, None);
        let _ = parse_metrics(&bytes, Some(DataParallel { rank: 1, size: 0 }));
        let _ = parse_orca(&bytes);
        let _ = parse_orca(&[b"TEXT ", &bytes[..]].concat());
    }
}

//! The HTTP surface, over real loopback connections.

mod common;

use common::{CHAT, COMPLETIONS, Fleet, chat, events, quick, slow, start, streaming};
use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::{Value, json};
use warmpath_engine_sim::server::ServerConfig;

fn cached(usage: &Value) -> &Value {
    &usage["prompt_tokens_details"]["cached_tokens"]
}

#[tokio::test]
async fn a_chat_stream_has_vllms_shape() {
    let fleet = start(quick()).await;
    let answer = fleet.post(CHAT, &streaming(chat("hello", 5))).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    let events = events(answer.text());
    // The role, five tokens, usage, end.
    assert_eq!(events.len(), 8);
    assert_eq!(events[7], "[DONE]");
    let chunks: Vec<Value> =
        events[..7].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "sim");
        assert_eq!(chunk["id"], chunks[0]["id"]);
    }
    let delta = |at: usize| &chunks[at]["choices"][0];
    assert_eq!(delta(0)["delta"], json!({"role": "assistant", "content": ""}));
    for at in 1..6 {
        assert_eq!(delta(at)["delta"]["content"].as_str().unwrap().len(), 1);
        let end = if at == 5 { json!("length") } else { json!(null) };
        assert_eq!(delta(at)["finish_reason"], end);
    }
    assert_eq!(chunks[6]["choices"], json!([]));
    // "user: hello\nassistant: " are 23 bytes.
    let usage = &chunks[6]["usage"];
    assert_eq!(
        *usage,
        json!({
            "prompt_tokens": 23, "total_tokens": 28, "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    );
}

#[tokio::test]
async fn without_include_usage_a_stream_has_no_usage() {
    let fleet = start(quick()).await;
    let mut body = chat("hello", 2);
    body["stream"] = json!(true);
    let answer = fleet.post(CHAT, &body).await;
    assert_eq!(events(answer.text()).len(), 4);
    assert!(!answer.text().contains("usage"));
}

#[tokio::test]
async fn json_answers_agree_with_streams_and_repeats_hit_the_cache() {
    let fleet = start(quick()).await;
    let body = chat(&"x".repeat(100), 7);
    let first = fleet.post(CHAT, &body).await.json();
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    assert_eq!(cached(&first["usage"]), 0);
    let text = first["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.len(), 7);

    let second = fleet.post(CHAT, &streaming(body)).await;
    let mut streamed = String::new();
    let mut last_usage = Value::Null;
    for event in events(second.text()).iter().filter(|event| **event != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).unwrap();
        streamed.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or(""));
        last_usage = chunk["usage"].clone();
    }
    assert_eq!(streamed, text, "equal prompts get equal answers");
    // 118 prompt tokens: seven full blocks, and the answer's tokens are not part of the prompt.
    assert_eq!(last_usage["prompt_tokens"], 118);
    assert_eq!(*cached(&last_usage), 112);
}

#[tokio::test]
async fn the_next_turn_hits_what_decoding_filled() {
    let fleet = start(quick()).await;
    let question = "y".repeat(60);
    let first = fleet.post(CHAT, &chat(&question, 60)).await.json();
    let answer = first["choices"][0]["message"]["content"].as_str().unwrap();
    let next = json!({"model": "sim", "max_tokens": 1, "messages": [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "go on"},
    ]});
    let usage = fleet.post(CHAT, &next).await.json()["usage"].clone();
    // 78 prompt tokens and 59 of the 60 output tokens have KV: 137, eight blocks of 16.
    assert_eq!(*cached(&usage), 128);
}

#[tokio::test]
async fn completions_answer_every_kind_of_prompt() {
    let fleet = start(quick()).await;
    let shapes = [
        (json!("hello"), vec![5]),
        (json!(["hello", "hi"]), vec![5, 2]),
        (json!([1, 2, 3]), vec![3]),
        (json!([[1, 2, 3], [4]]), vec![3, 1]),
    ];
    for (prompt, lengths) in shapes {
        let total: u64 = lengths.iter().sum();
        let choices = lengths.len();
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 3});
        let answer = fleet.post(COMPLETIONS, &body).await.json();
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(answer["usage"]["prompt_tokens"], total);
        assert_eq!(answer["usage"]["completion_tokens"], 3 * choices);
        let texts = answer["choices"].as_array().unwrap();
        assert_eq!(texts.len(), choices);
        for (index, choice) in texts.iter().enumerate() {
            assert_eq!(choice["index"], index);
            assert_eq!(choice["text"].as_str().unwrap().len(), 3);
        }

        let answer = fleet.post(COMPLETIONS, &streaming(body)).await;
        let events = events(answer.text());
        assert_eq!(events.len(), 3 * choices + 2);
        let ends = events.iter().filter(|event| event.contains(r#""finish_reason":"length""#));
        assert_eq!(ends.count(), choices);
    }
}

#[tokio::test]
async fn the_default_output_is_sixteen_tokens() {
    let fleet = start(quick()).await;
    let body = json!({"prompt": "no limit, no model"});
    let answer = fleet.post(COMPLETIONS, &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn errors_have_the_apis_shape() {
    let fleet = start(quick()).await;
    let long = "x".repeat(700);
    let cases: [(&str, Vec<u8>, u16); 8] = [
        (CHAT, b"{not json".to_vec(), 400),
        (CHAT, b"[]".to_vec(), 400),
        (CHAT, b"{}".to_vec(), 400),
        (CHAT, br#"{"messages": "hi"}"#.to_vec(), 400),
        (COMPLETIONS, br#"{"prompt": {"a": 1}}"#.to_vec(), 400),
        (COMPLETIONS, br#"{"prompt": "x", "max_tokens": "many"}"#.to_vec(), 400),
        (CHAT, chat(&long, 1).to_string().into_bytes(), 400),
        (
            CHAT,
            br#"{"model": "gpt", "messages": [{"role": "user", "content": "x"}]}"#.to_vec(),
            404,
        ),
    ];
    for (path, body, status) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let answer = fleet.send(path, &[], Some(body)).await;
        assert_eq!(answer.status, status, "{shown}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], status, "{shown}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert!(error["type"].as_str().unwrap().ends_with("Error"));
    }
    let records = fleet.records().await;
    assert_eq!(records.len(), 8);
    assert!(records.iter().all(|record| record["state"] == "rejected"));
    assert_eq!(fleet.stats().await["submitted"], 0);
}

#[tokio::test]
async fn large_bodies_are_read_and_huge_ones_are_not() {
    let fleet = start(quick()).await;
    let body = json!({"prompt": "x", "pad": "p".repeat(8 << 20), "max_tokens": 1});
    assert_eq!(fleet.post(COMPLETIONS, &body).await.status, StatusCode::OK);
    let body = vec![b' '; (64 << 20) + 1];
    let answer = fleet.send(COMPLETIONS, &[], Some(body)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.json()["error"]["code"], 413);
}

#[tokio::test]
async fn metrics_have_vllms_names_and_count_what_happened() {
    let fleet = start(quick()).await;
    for _ in 0..2 {
        fleet.post(COMPLETIONS, &json!({"prompt": "x".repeat(40), "max_tokens": 4})).await;
    }
    fleet.wait_for("both requests", |stats| stats["finished"] == 2).await;
    let answer = fleet.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text();
    let labels = r#"{engine="0",model_name="sim"}"#;
    for line in [
        format!("vllm:num_requests_running{labels} 0"),
        format!("vllm:num_requests_waiting{labels} 0"),
        format!("vllm:kv_cache_usage_perc{labels} 0"),
        format!("vllm:prefix_cache_queries_total{labels} 80"),
        format!("vllm:prefix_cache_hits_total{labels} 32"),
        format!("vllm:prompt_tokens_total{labels} 80"),
        format!("vllm:generation_tokens_total{labels} 8"),
        format!("vllm:num_preemptions_total{labels} 0"),
        format!("vllm:time_to_first_token_seconds_count{labels} 2"),
        r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 2"#
            .into(),
        "# TYPE vllm:prompt_tokens_total counter".into(),
        "# TYPE vllm:num_requests_running gauge".into(),
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\nis not in\n{text}");
    }
    let info = text.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
    assert!(info.contains(r#"block_size="16""#) && info.contains(r#"num_gpu_blocks="41""#));
    assert!(info.ends_with("} 1"));
    assert!(text.contains("\nprocess_start_time_seconds 1"));
}

#[tokio::test]
async fn gauges_show_running_and_waiting_requests() {
    let fleet = start(slow()).await;
    let body = streaming(json!({"prompt": "x".repeat(320), "max_tokens": 10}));
    let bytes = || Some(body.to_string().into_bytes());
    let _first = fleet.open(COMPLETIONS, &[], bytes()).await.unwrap();
    fleet.wait_for("a running request", |stats| stats["running"] == 1).await;
    let other = streaming(json!({"prompt": "z".repeat(400), "max_tokens": 10}));
    let _second = fleet.open(COMPLETIONS, &[], Some(other.to_string().into_bytes())).await.unwrap();
    // 20 of 40 blocks are held, so the second, which needs 25, waits.
    let stats = fleet.wait_for("a waiting request", |stats| stats["waiting"] == 1).await;
    assert_eq!((&stats["kv_usage"], &stats["kv_used_blocks"]), (&json!(0.5), &json!(20)));
    let metrics = fleet.get("/metrics").await;
    assert!(
        metrics.text().contains(r#"vllm:kv_cache_usage_perc{engine="0",model_name="sim"} 0.5"#)
    );
    assert!(metrics.text().contains(r#"vllm:num_requests_waiting{engine="0",model_name="sim"} 1"#));
}

#[tokio::test]
async fn load_reports_ride_on_json_answers_when_asked_for() {
    let fleet = start(quick()).await;
    let body = chat("hi", 1).to_string().into_bytes();
    let ask = |format| [("endpoint-load-metrics-format", format)];
    let answer = fleet.send(CHAT, &ask("TEXT"), Some(body.clone())).await;
    assert_eq!(
        answer.headers["endpoint-load-metrics"],
        "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0"
    );
    let answer = fleet.send(CHAT, &ask("json"), Some(body.clone())).await;
    assert_eq!(
        answer.headers["endpoint-load-metrics"],
        r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0.0}}"#
    );
    for (format, body) in
        [("binary", body.clone()), ("TEXT", streaming(chat("hi", 1)).to_string().into_bytes())]
    {
        let answer = fleet.send(CHAT, &ask(format), Some(body)).await;
        assert!(!answer.headers.contains_key("endpoint-load-metrics"));
    }
    let answer = fleet.send(CHAT, &[], Some(body)).await;
    assert!(!answer.headers.contains_key("endpoint-load-metrics"));
}

#[tokio::test]
async fn small_endpoints_answer() {
    let fleet = start(quick()).await;
    assert_eq!(fleet.get("/health").await.status, StatusCode::OK);
    let models = fleet.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "sim");
    assert_eq!(models["data"][0]["max_model_len"], 640);
    assert!(fleet.get("/version").await.json()["version"].is_string());
    assert_eq!(fleet.get("/nowhere").await.status, StatusCode::NOT_FOUND);
    assert_eq!(fleet.get(CHAT).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_disconnect_aborts_streams_and_waiting_answers() {
    let fleet = start(slow()).await;
    let body = json!({"prompt": "x".repeat(320), "max_tokens": 100});
    // A stream whose first token came, and a JSON request that waits for all of its tokens.
    let mut stream = fleet
        .open(COMPLETIONS, &[], Some(streaming(body.clone()).to_string().into_bytes()))
        .await
        .unwrap();
    stream.frame().await.unwrap().unwrap();
    let address = fleet.address();
    let json = tokio::spawn(async move {
        let body = Some(body.to_string().into_bytes());
        common::open_at(address, COMPLETIONS, &[], body).await
    });
    fleet.wait_for("both requests", |stats| stats["submitted"] == 2).await;
    drop(stream);
    fleet.wait_for("the stream's abort", |stats| stats["aborted"] == 1).await;
    json.abort();
    let stats = fleet.wait_for("the other abort", |stats| stats["aborted"] == 2).await;
    assert_eq!((&stats["running"], &stats["kv_used_blocks"]), (&json!(0), &json!(0)));
    let records = fleet.records().await;
    assert!(records.iter().all(|record| record["state"] == "aborted"), "{records:?}");
    let metrics = fleet.get("/metrics").await;
    assert!(metrics.text().contains(r#"finished_reason="abort",model_name="sim"} 2"#));
}

#[tokio::test]
async fn a_disconnect_aborts_a_request_that_waits_in_the_queue() {
    let fleet = start(slow()).await;
    let body = |letter: &str, tokens| {
        let body = json!({"prompt": letter.repeat(tokens), "max_tokens": 10});
        Some(streaming(body).to_string().into_bytes())
    };
    let _first = fleet.open(COMPLETIONS, &[], body("x", 320)).await.unwrap();
    fleet.wait_for("a running request", |stats| stats["running"] == 1).await;
    let second = fleet.open(COMPLETIONS, &[], body("z", 400)).await.unwrap();
    fleet.wait_for("a waiting request", |stats| stats["waiting"] == 1).await;
    drop(second);
    let stats = fleet.wait_for("the abort", |stats| stats["aborted"] == 1).await;
    assert_eq!((&stats["running"], &stats["waiting"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn the_record_tells_what_was_served() {
    let fleet = start(quick()).await;
    let body = chat(&"q".repeat(100), 4).to_string().into_bytes();
    let headers = [("x-request-id", "abc-1"), ("x-tenant", "t")];
    let answer = fleet.send(CHAT, &headers, Some(body.clone())).await;
    assert_eq!(answer.json()["id"], "chatcmpl-abc-1");
    fleet.send(CHAT, &[], Some(body.clone())).await;
    let records = fleet.records().await;
    assert_eq!(records.len(), 2);
    let (first, second) = (&records[0], &records[1]);
    assert_eq!((&first["x_request_id"], &second["x_request_id"]), (&json!("abc-1"), &json!(null)));
    assert_eq!(first["state"], "finished");
    assert_eq!((&first["prompt_tokens"], &first["output_tokens"]), (&json!(118), &json!(4)));
    assert_eq!((&first["cached_tokens"], &second["cached_tokens"]), (&json!(0), &json!(112)));
    // 11 ms a step, 0.05 ms for the sequence, 118 tokens at 10 a millisecond: model time, however
    // fast the clock and the machine.
    let ttft_ms = |record: &Value| record["ttft_ms"].as_f64().unwrap();
    assert!(ttft_ms(first) >= 22.85 - 1e-6, "{first}");
    assert!(first["e2e_ms"].as_f64().unwrap() >= ttft_ms(first) + 3.0 * 11.05 - 1e-6);
    assert_eq!(first["body_head"].as_str().unwrap().as_bytes(), &body[..80]);
    let headers = first["headers"].as_array().unwrap();
    assert!(headers.contains(&json!(["x-tenant", "t"])));
}

#[tokio::test]
async fn faults_answer_reset_or_hang_as_told() {
    let fleet = start(quick()).await;
    let body = || Some(streaming(chat("hi", 8)).to_string().into_bytes());
    for (mode, status) in [("http_500", 500), ("http_503", 503)] {
        fleet.fail(json!({"mode": mode})).await;
        let answer = fleet.send(CHAT, &[], body()).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["code"]),
            (status, &json!(status))
        );
        assert_eq!(fleet.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    fleet.fail(json!({"mode": "reset_before_headers"})).await;
    assert!(fleet.open(CHAT, &[], body()).await.is_err());
    assert_eq!(fleet.get("/health").await.status, StatusCode::OK);

    for streamed in [true, false] {
        fleet.fail(json!({"mode": "reset_mid_stream"})).await;
        let request = if streamed { body() } else { Some(chat("hi", 8).to_string().into_bytes()) };
        let answer = fleet.open(CHAT, &[], request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let mut incoming = answer.into_body();
        let mut seen = Vec::new();
        let error = loop {
            match incoming.frame().await.expect("the answer does not end normally") {
                Ok(frame) => seen.extend(frame.into_data().unwrap()),
                Err(error) => break error,
            }
        };
        assert!(!seen.is_empty(), "something arrives before the reset: {error}");
    }

    fleet.fail(json!({"mode": "hang"})).await;
    let hung = fleet.open(CHAT, &[], body());
    let waited = tokio::time::timeout(std::time::Duration::from_millis(200), hung).await;
    assert!(waited.is_err(), "a hanging engine answers nothing");

    fleet.fail(json!({"mode": "ok"})).await;
    assert_eq!(fleet.send(CHAT, &[], body()).await.status, StatusCode::OK);
    for bad in [json!({"mode": "explode"}), json!({"slow_factor": 0})] {
        assert_eq!(fleet.post("/sim/fail", &bad).await.status, StatusCode::BAD_REQUEST);
    }
    let failed = fleet.records().await;
    let failed = failed.iter().filter(|record| record["state"] == "failed");
    assert_eq!(failed.count(), 4, "two statuses, one reset before headers, one hang");
}

#[tokio::test]
async fn a_slow_engine_takes_that_much_longer_in_model_time() {
    let fleet = start(quick()).await;
    fleet.fail(json!({"slow_factor": 10.0})).await;
    fleet.post(CHAT, &chat("hi", 1)).await;
    let records = fleet.records().await;
    // 10 x (11.05 ms and 20 prompt tokens at 10 a millisecond).
    assert!(records[0]["ttft_ms"].as_f64().unwrap() >= 130.5, "{}", records[0]);
}

#[tokio::test]
async fn the_cache_can_be_reset_when_idle() {
    let fleet = start(quick()).await;
    let body = chat(&"r".repeat(100), 1);
    fleet.post(CHAT, &body).await;
    let reset = fleet.send("/reset_prefix_cache", &[], Some(Vec::new())).await;
    assert_eq!(reset.json(), json!({"success": true}));
    let usage = fleet.post(CHAT, &body).await.json()["usage"].clone();
    assert_eq!(*cached(&usage), 0);

    fleet.fail(json!({"slow_factor": 1e6})).await;
    let _running =
        fleet.open(CHAT, &[], Some(streaming(body).to_string().into_bytes())).await.unwrap();
    fleet.wait_for("a running request", |stats| stats["running"] == 1).await;
    let reset = fleet.send("/reset_prefix_cache", &[], Some(Vec::new())).await;
    assert_eq!(reset.json(), json!({"success": false}));
}

#[tokio::test]
async fn starting_over_drops_requests_records_counters_and_faults() {
    let fleet = start(quick()).await;
    fleet.post(CHAT, &chat("before", 1)).await;
    fleet.fail(json!({"slow_factor": 1e6})).await;
    let stream = fleet
        .open(CHAT, &[], Some(streaming(chat("during", 5)).to_string().into_bytes()))
        .await
        .unwrap();
    fleet.wait_for("a running request", |stats| stats["running"] == 1).await;
    fleet.send("/sim/reset", &[], Some(Vec::new())).await;
    let body = stream.into_body().collect().await;
    assert!(body.is_err(), "a dropped stream does not end as if it were whole");
    let stats = fleet.stats().await;
    for field in ["running", "submitted", "finished", "kv_hashed_blocks", "generation_tokens"] {
        assert_eq!(stats[field], 0, "{field}");
    }
    let no_fault = json!({
        "mode": "ok", "slow_factor": 1.0, "metrics": "ok", "usage": "ok", "pause": false,
    });
    assert_eq!(stats["fault"], no_fault);
    assert!(fleet.records().await.is_empty());
    let metrics = fleet.get("/metrics").await;
    assert!(
        metrics.text().contains(r#"vllm:generation_tokens_total{engine="0",model_name="sim"} 0"#)
    );
    assert_eq!(fleet.post(CHAT, &chat("after", 2)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn engines_of_one_process_are_independent() {
    let config = ServerConfig { listen: [quick().listen, quick().listen].concat(), ..quick() };
    let both = start(config).await;
    assert_eq!(both.server.addresses().len(), 2);
    both.fail(json!({"mode": "http_503"})).await;
    let body = || Some(chat(&"s".repeat(100), 1).to_string().into_bytes());
    let second = both.server.addresses()[1];
    let answer = common::open_at(second, CHAT, &[], body()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(both.send(CHAT, &[], body()).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn many_concurrent_streams_all_end_whole() {
    let fleet = start(quick()).await;
    let address = fleet.address();
    let tasks: Vec<_> = (0..100)
        .map(|number: usize| {
            tokio::spawn(async move {
                let content = format!("{}{number}", "shared ".repeat(20));
                let body = streaming(chat(&content, 10 + number as u32 % 20));
                let answer =
                    common::open_at(address, CHAT, &[], Some(body.to_string().into_bytes()))
                        .await
                        .unwrap();
                answer.into_body().collect().await.unwrap().to_bytes()
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        let bytes = task.await.unwrap();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(events(text).len(), 10 + number % 20 + 3);
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
    let stats = fleet.wait_for("all requests", |stats| stats["finished"] == 100).await;
    assert!(stats["prefix_cache_hits"].as_u64().unwrap() > 0);
    assert_idle(&fleet).await;
}

async fn assert_idle(fleet: &Fleet) {
    let stats = fleet.stats().await;
    assert_eq!(
        (&stats["running"], &stats["waiting"], &stats["kv_used_blocks"]),
        (&json!(0), &json!(0), &json!(0))
    );
}

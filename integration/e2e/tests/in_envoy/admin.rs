//! The internal endpoints: what they show is what happens, and what they are given takes effect.

use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, FrontOptions, post};
use warmpath_e2e::client::Version;
use warmpath_e2e::fleet::{fast, served_once};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{MODEL, completion, prompt};
use warmpath_harness::bootstrap::merge;
use warmpath_harness::fleet::Fleet;
use warmpath_harness::http::{HttpAnswer, HttpClient, JSON, request};
use warmpath_harness::{Bootstrap, HarnessError, Variant};

const BLOCKS: usize = 24;
const PATH: &str = "/v1/completions";

/// The filter shows its decisions and reads the engines' metrics.
fn showing(variant: Variant) -> FrontOptions {
    let mut options = FrontOptions::new(variant);
    merge(
        &mut options.config_patch,
        &json!({"decisions": {"response_header": true, "filter_state": true}, "scrape": null}),
    );
    options.edit = log_decisions;
    options
}

/// An access log with the filter's state.
fn log_decisions(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    bootstrap.http_mut("public")?["access_log"] = json!([{
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {"inline_string":
                "decided %FILTER_STATE(wasm.warmpath_decision:PLAIN)% %RESP(x-warmpath-decision)%\n"}},
        },
    }]);
    Ok(())
}

async fn ask(bed: &Bed, method: &str, path: &str, body: &str) -> HttpAnswer {
    let server = bed.front.envoy.internal();
    let asked = request(method, server, path, JSON, body.to_owned().into()).unwrap();
    HttpClient::new().send(asked).await.unwrap()
}

fn backend<'a>(status: &'a Value, name: &str) -> &'a Value {
    let backends = status["backends"].as_array().unwrap();
    backends.iter().find(|backend| backend["name"] == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_shows_what_the_engines_say_and_what_the_filter_counts() {
    let bed = Bed::start(&showing(Variant::OverrideHost), 3).await;
    let open = bed.open_stream(&prompt(1, BLOCKS)).await;
    let busy = format!("engine-{}", open.engine);
    let status = poll::until("a report of every engine", async || {
        let status = bed.front.status().await;
        let reports = status["backends"].as_array().unwrap().iter();
        let ready = reports.clone().all(|backend| backend["report"]["age_ms"].is_u64());
        let running = &backend(&status, &busy)["report"]["running"];
        if ready && running == 1 { Ok(status) } else { Err(status) }
    })
    .await;
    let one = backend(&status, &busy);
    assert_eq!(one["state"], "healthy");
    assert_eq!(one["report"]["engine"], "vllm");
    assert_eq!(one["report"]["block_size_tokens"], 16);
    // The engines say what they hold, which takes the place of what is configured.
    assert_eq!(one["report"]["kv_capacity_tokens"], 1 << 23);
    assert_eq!(one["load"]["running"], 1);
    assert_eq!(one["others"]["running"], 0);
    assert_eq!(one["address"], bed.fleet.addresses()[open.engine].to_string());
    assert_eq!(status["in_flight"], 1);
    assert_eq!(status["decisions"], json!({"prefix_miss": 1}));
    assert_eq!(status["models"][0]["name"], MODEL);
    assert_eq!(status["tree"]["blocks"], BLOCKS);
    assert!(status["leader_age_ms"].as_u64().unwrap() < 5_000);
    drop(open);
    poll::until_equal("nothing in flight", 0, async || {
        bed.front.status().await["in_flight"].as_u64().unwrap()
    })
    .await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_is_what_the_next_request_does() {
    for variant in Variant::ALL {
        let bed = Bed::start(&showing(variant), 4).await;
        let mut connection = bed.front.connect(Version::Http1).await;
        let mut logged = Vec::new();
        for step in 0..24u32 {
            let body = completion(&prompt(step % 5, BLOCKS + step as usize));
            let explained = bed.front.explain(PATH, &body).await;
            let (id, answer) = post(&mut connection, PATH, &body, &[]).await;
            let served = served_once(&bed.fleet, &id).await;
            assert_eq!(explained["pick"], format!("engine-{}", served.engine), "step {step}");
            assert_eq!(explained["prompt"]["tokens"], served.prompt_tokens);
            let cached = explained["predicted_cached_tokens"].as_u64();
            assert_eq!(cached, served.cached_tokens, "step {step}");
            let decision = format!(
                "{};backend=\"engine-{}\";prompt={};cached={}",
                explained["reason"].as_str().unwrap(),
                served.engine,
                served.prompt_tokens,
                cached.unwrap(),
            );
            assert_eq!(answer.headers["x-warmpath-decision"], decision);
            logged.push(format!("decided {decision} {decision}"));
            let first = &explained["backends"][0];
            assert_eq!(first["name"], explained["pick"]);
            let terms = ["pending_prefill", "uncached", "running", "kv_overflow"];
            let sum: f64 = terms.iter().map(|term| first["cost"][*term].as_f64().unwrap()).sum();
            assert!((first["cost"]["total"].as_f64().unwrap() - sum).abs() < 1e-9);
        }
        // Envoy writes its access log each ten seconds.
        poll::until("the access log", async || {
            let log = bed.front.envoy.log();
            let missing = logged.iter().find(|line| !log.contains(line.as_str()));
            missing.map_or(Ok(()), |line| Err(line.clone()))
        })
        .await;
        bed.front.assert_no_crash().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_asks_wrongly_is_answered_clearly() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), 1).await;
    for (method, path, body, status, says) in [
        ("POST", "/_warmpath/status", "", 405, "GET"),
        ("GET", "/_warmpath/backends", "", 405, "PUT"),
        ("GET", "/_warmpath/explain/v1/completions", "", 405, "POST"),
        ("GET", "/_warmpath/status?name=other", "", 503, "of that name"),
        ("PUT", "/_warmpath/backends", "{}", 409, "push"),
    ] {
        let answer = ask(&bed, method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], status);
        assert!(answer.text().contains(says), "{}", answer.text());
    }
    let explained = ask(&bed, "POST", "/_warmpath/explain/v1/completions", "{").await.json();
    assert_eq!(explained["reason"], "not_json");
    let explained = ask(&bed, "POST", "/_warmpath/explain/v1/nothing", "").await.json();
    assert_eq!((&explained["reason"], &explained["api"]), (&json!("other_path"), &Value::Null));
    let page = ask(&bed, "GET", "/_warmpath/", "").await;
    assert!(page.status == 200 && page.text().contains("<html"), "{}", page.text());
    assert_eq!(ask(&bed, "GET", "/_warmpath/nothing", "").await.status, 404);
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_backends_serve_and_go() {
    let fleet = Fleet::start(&fast(3)).await.unwrap();
    let mut options = FrontOptions::new(Variant::OverrideHost);
    merge(&mut options.config_patch, &json!({"push": true, "backends": []}));
    let front = options.start(fleet.addresses()).await;
    let bed = Bed { front, fleet };
    let push = async |engines: &[usize], rest: Value| {
        let backends = engines.iter().map(|engine| {
            let mut backend = json!({"name": format!("pushed-{engine}"),
                "address": bed.fleet.addresses()[*engine].to_string()});
            merge(&mut backend, &rest);
            backend
        });
        let body = json!({"backends": backends.collect::<Vec<_>>()}).to_string();
        ask(&bed, "PUT", "/_warmpath/backends", &body).await
    };
    // Nobody is known: Envoy chooses.
    bed.complete(&prompt(1, BLOCKS)).await;
    assert_eq!(bed.front.decisions().await["no_backend"], 1);
    let answer = push(&[0, 1], json!({})).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"pushed": ["pushed-0", "pushed-1"]})));
    // Every worker knows within a moment.
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    for number in 10..30 {
        assert!(bed.complete(&prompt(number, BLOCKS)).await.engine < 2);
    }
    let wrong = push(&[0], json!({"drain_s": 5, "kv_capacity_tokens": 0})).await;
    assert_eq!(wrong.status, 400);
    for path in ["backends[0].kv_capacity_tokens", "backends[0].drain_s"] {
        assert!(wrong.text().contains(path), "{}", wrong.text());
    }
    assert_eq!(push(&[1, 2], json!({})).await.status, 200);
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let mut engines = std::collections::BTreeSet::new();
    for number in 10..40 {
        engines.insert(bed.complete(&prompt(number, BLOCKS)).await.engine);
    }
    assert_eq!(engines.into_iter().collect::<Vec<_>>(), [1, 2]);
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn load_reports_are_asked_for_and_kept_from_who_did_not() {
    let bed = Bed::start(&showing(Variant::OverrideHost), 1).await;
    let mut connection = bed.front.connect(Version::Http1).await;
    let body = completion(&prompt(1, BLOCKS));
    let (id, answer) = post(&mut connection, PATH, &body, &[]).await;
    let asked = served_once(&bed.fleet, &id).await;
    assert_eq!(asked.header("endpoint-load-metrics-format"), Some("text"));
    assert!(!answer.headers.contains_key("endpoint-load-metrics"), "{:?}", answer.headers);
    // Not each time: while the last one is new, there is nothing to ask.
    poll::until("a request that asks for none", async || {
        let (id, _) = post(&mut connection, PATH, &body, &[]).await;
        let asked = served_once(&bed.fleet, &id).await;
        asked.header("endpoint-load-metrics-format").map_or(Ok(()), |it| Err(it.to_owned()))
    })
    .await;
    // Who asks gets it, in the form of its choice.
    let json_form = [("endpoint-load-metrics-format", "json")];
    let (id, answer) = post(&mut connection, PATH, &body, &json_form).await;
    let asked = served_once(&bed.fleet, &id).await;
    assert_eq!(asked.header("endpoint-load-metrics-format"), Some("json"));
    assert!(answer.headers["endpoint-load-metrics"].to_str().unwrap().starts_with("JSON {"));
    let report = poll::until("the report in the status", async || {
        let status = bed.front.status().await;
        let report = status["backends"][0]["load_report"].clone();
        if report.is_object() { Ok(report) } else { Err(status) }
    })
    .await;
    assert_eq!(report["waiting"], 0);
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_block_size_is_corrected_by_what_engines_say() {
    let mut options = showing(Variant::OverrideHost);
    options.config_patch["models"] = json!([{
        "name": MODEL, "block_size_tokens": 32,
        "bundle": {"cluster": "warmpath_internal", "path": "/no-bundle"},
    }]);
    let bed = Bed::start(&options, 2).await;
    let model = poll::until("the correction", async || {
        let model = bed.front.status().await["models"][0].clone();
        if model["block_size_tokens"] == 16 { Ok(model) } else { Err(model) }
    })
    .await;
    assert_eq!(model["configured_block_size_tokens"], 32);
    poll::until_equal("the metric", 1, async || {
        bed.front.metric("block_size_contradictions").await
    })
    .await;
    let log = bed.front.envoy.log();
    assert!(log.contains("configured as 32, its engines say 16"), "{log}");
    // Predictions are in the engines' blocks: 24 of 16 tokens are no multiple of 32.
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let tokens = prompt(1, 23);
    bed.complete(&tokens).await;
    let explained = bed.front.explain(PATH, &completion(&tokens)).await;
    assert_eq!(explained["predicted_cached_tokens"], 23 * 16);
    bed.front.assert_no_crash().await;
}

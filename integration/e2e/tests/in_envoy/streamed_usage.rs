//! Where it is configured, the filter asks for the usage of streamed answers, and no client sees it.

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, Front, FrontOptions};
use warmpath_e2e::client::{Body, Connection, Version, frames, whole};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{MODEL, completion, prompt};
use warmpath_e2e::scripted::{ScriptedEngine, Seen};
use warmpath_harness::Variant;

const COMPLETIONS: &str = "/v1/completions";
const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

fn asking(variant: Variant) -> FrontOptions {
    let mut options = FrontOptions::new(variant);
    options.config_patch["models"] = json!([{
        "name": MODEL,
        "streamed_usage": "ask",
        "bundle": {"cluster": "warmpath_internal", "path": "/no-bundle"},
    }]);
    options
}

/// What an engine sends with `include_usage`, piece by piece, and what is to reach the client by then.
fn script() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
        ),
        (
            "data: {\"choices\":[{\"text\":\"b\"}],\"usage\":null}\n\n",
            "data: {\"choices\":[{\"text\":\"b\"}]}\n\n",
        ),
        (": ping\n\n", ": ping\n\n"),
        ("data: {\"choices\":[{\"te", ""),
        (
            "xt\":\"caf\u{e9}\"}],\"usage\":null}\r\n",
            "data: {\"choices\":[{\"text\":\"caf\u{e9}\"}]}\r\n",
        ),
        ("\r\n", "\r\n"),
        ("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":323,", ""),
        ("\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n", ""),
        ("\ndata: [DONE]\n\n", "data: [DONE]\n\n"),
    ]
}

fn streaming() -> String {
    let mut body = completion(&prompt(1, 20));
    body["stream"] = json!(true);
    body.to_string()
}

/// The ways in which a body may come.
fn bodies(text: &str) -> Vec<(&'static str, Body)> {
    let bytes = Bytes::from(text.to_owned());
    let halves = || vec![bytes.slice(..100), bytes.slice(100..)];
    let mut trailers = HeaderMap::new();
    trailers.insert("x-trailer", "1".parse().expect("a value"));
    vec![
        ("whole", whole(bytes.clone())),
        ("in frames", frames(halves(), None)),
        ("with trailers", frames(halves(), Some(trailers))),
    ]
}

/// Sends a body, has the engine answer by the script, and returns what the engine saw. The client gets each
/// piece before the engine sends the next.
async fn in_step(front: &Front, engine: &mut ScriptedEngine, version: Version, body: Body) -> Seen {
    let mut connection = front.connect(version).await;
    let headers = [("content-type", "application/json")];
    let request = connection.request("POST", COMPLETIONS, &headers, body);
    let client = tokio::spawn(async move { (connection.start(request).await, connection) });
    let mut served = engine.next().await;
    let seen = served.seen.clone();
    served.send_head(200, &[("content-type", EVENT_STREAM)]).await;
    let (response, _connection) = poll::within("the head", client).await.expect("no panic");
    let mut answer = response.expect("an answer").into_body();
    let (mut received, mut expected) = (Vec::new(), Vec::new());
    for (sent, passes) in script() {
        served.send_chunk(sent.as_bytes()).await;
        expected.extend_from_slice(passes.as_bytes());
        while received.len() < expected.len() {
            let frame = poll::within("a chunk", answer.frame()).await.expect("the stream goes on");
            received.extend_from_slice(frame.expect("no error").data_ref().expect("data"));
        }
        assert_eq!(String::from_utf8_lossy(&received), String::from_utf8_lossy(&expected));
    }
    served.finish().await;
    let rest = poll::within("the end", answer.collect()).await.expect("no error");
    assert_eq!(rest.to_bytes(), "");
    seen
}

async fn asks_and_withholds(variant: Variant) {
    let mut engine = ScriptedEngine::start().await;
    let front = asking(variant).start(&[engine.address()]).await;
    let sent = streaming();
    let expected = sent.replacen('{', "{\"stream_options\":{\"include_usage\":true},", 1);
    let mut answers = 0;
    for version in [Version::Http1, Version::Http2] {
        for (how, body) in bodies(&sent) {
            let seen = in_step(&front, &mut engine, version, body).await;
            assert_eq!(String::from_utf8_lossy(&seen.body), expected, "{version:?}, {how}");
            match seen.header("content-length").first() {
                Some(length) => assert_eq!(*length, expected.len().to_string()),
                None => assert_eq!(seen.header("transfer-encoding"), ["chunked"]),
            }
            answers += 1;
        }
    }
    let agreements = async || front.model_metric("parity_agreements_total").await;
    poll::until_equal("the usage to be read", answers, agreements).await;
    others_are_left_alone(&front, &mut engine).await;
    a_length_is_not_promised(&front, &mut engine).await;
    assert_eq!(front.model_metric("parity_disagreements_total").await, 0);
    front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_engine_sees_the_question_by_cluster_header() {
    asks_and_withholds(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_engine_sees_the_question_by_override_host() {
    asks_and_withholds(Variant::OverrideHost).await;
}

/// Requests that are not to be changed, and answers of those that were, which are no plain event streams.
async fn others_are_left_alone(front: &Front, engine: &mut ScriptedEngine) {
    let stream: String = script().into_iter().map(|(sent, _)| sent).collect();
    let asked = {
        let mut body: Value = serde_json::from_str(&streaming()).expect("JSON");
        body["stream_options"] = json!({"include_usage": true});
        body.to_string()
    };
    let json_type = &[("content-type", "application/json")][..];
    let digest = &[("content-type", "application/json"), ("content-digest", "sha-256=:x:")][..];
    let events = &[("content-type", EVENT_STREAM)][..];
    let encoded = &[("content-type", EVENT_STREAM), ("content-encoding", "gzip")][..];
    let cases = [
        ("asks itself", asked, json_type, events, false),
        ("no stream", completion(&prompt(1, 20)).to_string(), json_type, events, false),
        ("signed", streaming(), digest, events, false),
        ("encoded", streaming(), json_type, encoded, true),
        ("no events", streaming(), json_type, json_type, true),
    ];
    for (what, body, request_headers, answer_headers, is_changed) in cases {
        let mut connection = front.connect(Version::Http1).await;
        let request = connection.request("POST", COMPLETIONS, request_headers, whole(body.clone()));
        let client = tokio::spawn(async move { connection.send(request).await });
        let mut served = engine.next().await;
        assert_eq!(served.seen.body != body.as_bytes(), is_changed, "{what}");
        served.send_head(200, answer_headers).await;
        for piece in stream.as_bytes().chunks(50) {
            served.send_chunk(piece).await;
        }
        served.finish().await;
        let answer = poll::within("an answer", client).await.expect("no panic").expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer.body), stream, "{what}");
    }
}

/// A stream whose length the engine names is shorter for the client.
async fn a_length_is_not_promised(front: &Front, engine: &mut ScriptedEngine) {
    let sent: String = script().into_iter().map(|(sent, _)| sent).collect();
    let expected: String = script().into_iter().map(|(_, passes)| passes).collect();
    for version in [Version::Http1, Version::Http2] {
        let mut connection = front.connect(version).await;
        let headers = [("content-type", "application/json")];
        let request = connection.request("POST", COMPLETIONS, &headers, whole(streaming()));
        let client = tokio::spawn(async move { connection.send(request).await });
        engine.next().await.answer_with_length(EVENT_STREAM, sent.as_bytes()).await;
        let answer = poll::within("an answer", client).await.expect("no panic").expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer.body), expected);
        assert_eq!(answer.headers.get("content-length"), None);
    }
}

/// The answer without what differs between any two.
async fn stream_from(mut connection: Connection, options: Option<Value>) -> String {
    let mut body = completion(&prompt(1, 20));
    body["stream"] = json!(true);
    body["max_tokens"] = json!(50);
    if let Some(options) = options {
        body["stream_options"] = options;
    }
    let headers = [("content-type", "application/json")];
    let request = connection.request("POST", COMPLETIONS, &headers, whole(body.to_string()));
    let answer = poll::within("the stream", connection.send(request)).await.expect("an answer");
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body.to_vec()).expect("text");
    let events = text.split("data: {\"id\":");
    // The id and the time of creation come before the model.
    let rests = events.map(|event| event.split_once("\"model\":").map_or(event, |(_, rest)| rest));
    rests.collect::<Vec<_>>().join("data: ")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_stream_is_the_one_that_the_client_asked_for() {
    let bed = Bed::start(&asking(Variant::ClusterHeader), 1).await;
    let engine = bed.fleet.addresses()[0];
    // The cache is warm for all that follow, so that usage is the same.
    bed.complete(&prompt(1, 20)).await;
    let mut answers = 1;
    for options in [
        None,
        Some(Value::Null),
        Some(json!({})),
        Some(json!({"include_usage": false})),
        Some(json!({"include_usage": true})),
    ] {
        let direct = Connection::open(engine, Version::Http1).await;
        let direct = stream_from(direct, options.clone()).await;
        assert_eq!(direct.contains("\"usage\""), options == Some(json!({"include_usage": true})));
        for version in [Version::Http1, Version::Http2] {
            let through = stream_from(bed.front.connect(version).await, options.clone()).await;
            assert_eq!(through, direct, "{options:?}");
            answers += 1;
        }
    }
    let agreements = async || bed.front.model_metric("parity_agreements_total").await;
    poll::until_equal("the usage to be read", answers, agreements).await;
    assert_eq!(bed.front.model_metric("parity_disagreements_total").await, 0);
    bed.front.assert_no_crash().await;
}

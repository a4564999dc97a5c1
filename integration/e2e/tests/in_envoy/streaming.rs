//! Answers pass as they are: chunk by chunk, byte by byte.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, Front, FrontOptions, difference, streaming_request};
use warmpath_e2e::client::raw::RawConnection;
use warmpath_e2e::client::{Connection, Version, whole};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{MODEL, completion, prompt};
use warmpath_e2e::scripted::{ScriptedEngine, ServedRequest};
use warmpath_harness::Variant;

const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// Chunks as no engine cuts them on purpose and networks do: in the middle of a line, of a character, of a
/// line's end; an event of many chunks, many events in a chunk; bytes that are no text at all.
fn chunks() -> Vec<Vec<u8>> {
    let mut chunks: Vec<Vec<u8>> = vec![
        b"data: {\"choices\":[{\"text\":\"one\"}]}\n\n".to_vec(),
        b"data: {\"choi".to_vec(),
        b"ces\":[{\"text\":\"caf\xc3".to_vec(),
        b"\xa9\"}]}\n".to_vec(),
        b"\n".to_vec(),
        b": a comment\r".to_vec(),
        b"\n\r\nevent: other\r\ndata: x\r\n\r\n".to_vec(),
        b"data: \xff\xfe\x00 not UTF-8\n\n".to_vec(),
        b"d".to_vec(),
        b"a".to_vec(),
        b"ta: {\"choices\":[],\"usage\":{\"prompt_tokens\":323,".to_vec(),
        b"\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n".to_vec(),
        b"data: [DONE]\n\n".to_vec(),
        b"data: after the end\n\n".to_vec(),
        b"an unfinished line".to_vec(),
    ];
    // A line longer than the filter keeps, in one chunk; it is not to be cut or held.
    let long = format!("data: {}\n\n", "x".repeat(200_000)).into_bytes();
    chunks.insert(4, long);
    chunks
}

/// A stream of the client's: the answer's bytes so far.
struct Receiver {
    body: Incoming,
    received: Vec<u8>,
}

impl Receiver {
    async fn receive(&mut self, length: usize) {
        while self.received.len() < length {
            let frame = poll::within("the next chunk", self.body.frame()).await;
            let frame = frame.expect("the stream goes on").expect("no error");
            self.received.extend_from_slice(frame.data_ref().expect("data"));
        }
    }

    async fn finish(mut self) -> Vec<u8> {
        let rest = poll::within("the end", self.body.collect()).await.expect("no error").to_bytes();
        self.received.extend_from_slice(&rest);
        self.received
    }
}

/// Sends each chunk only after the client has got all before it, and returns what the client got.
async fn in_step(
    mut connection: Connection,
    engine: &mut ScriptedEngine,
    headers: &[(&str, &str)],
) -> Vec<u8> {
    let (_, request) = streaming_request(&connection, &prompt(1, 20), 2);
    let client = tokio::spawn(async move { (connection.start(request).await, connection) });
    let mut served: ServedRequest = engine.next().await;
    served.send_head(200, headers).await;
    // The head alone reaches the client.
    let (response, _connection) = poll::within("the head", client).await.expect("no panic");
    let response = response.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], headers[0].1);
    let mut receiver = Receiver { body: response.into_body(), received: Vec::new() };
    let mut sent = Vec::new();
    for chunk in chunks() {
        served.send_chunk(&chunk).await;
        sent.extend_from_slice(&chunk);
        receiver.receive(sent.len()).await;
        assert!(receiver.received == sent, "the bytes differ within the first {}", sent.len());
    }
    served.finish().await;
    receiver.finish().await
}

async fn chunks_pass_in_step(variant: Variant) {
    let mut engine = ScriptedEngine::start().await;
    let mut options = FrontOptions::new(variant);
    options.config_patch["body_bytes_max"] = json!(100_000);
    let front = options.start(&[engine.address()]).await;
    for headers in [
        &[("content-type", EVENT_STREAM)][..],
        &[("content-type", EVENT_STREAM), ("content-encoding", "br")],
        &[("content-type", "application/json")],
        &[("content-type", "application/octet-stream")],
    ] {
        let direct = Connection::open(engine.address(), Version::Http1).await;
        let direct = in_step(direct, &mut engine, headers).await;
        for version in [Version::Http1, Version::Http2] {
            let through = front.connect(version).await;
            let through = in_step(through, &mut engine, headers).await;
            assert!(through == direct, "{variant:?}, {version:?}, {headers:?}");
        }
    }
    what_is_not_read_is_not_held(&front, &mut engine).await;
    front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_chunk_arrives_before_the_engine_sends_the_next_by_cluster_header() {
    chunks_pass_in_step(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_chunk_arrives_before_the_engine_sends_the_next_by_override_host() {
    chunks_pass_in_step(Variant::OverrideHost).await;
}

/// A request that the filter does not read reaches the engine while it is still being sent: an upload to a
/// path of no API, and a body that says at once that it is too long.
async fn what_is_not_read_is_not_held(front: &Front, engine: &mut ScriptedEngine) {
    for (path, framing, first, reason) in [
        ("/v1/files", "transfer-encoding: chunked", "4\r\nabcd\r\n", "other_path"),
        ("/v1/files", "content-length: 8", "abcd", "other_path"),
        ("/v1/completions", "content-length: 200000", "abcd", "body_too_large"),
    ] {
        let before = front.decisions().await;
        let mut client = RawConnection::open(front.address()).await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n{first}");
        client.write(head.as_bytes()).await;
        let mut served = engine.next_head().await;
        assert!(served.seen.line.starts_with(&format!("POST {path} ")));
        let rest = match framing {
            "transfer-encoding: chunked" => "4\r\nefgh\r\n0\r\n\r\n".to_owned(),
            "content-length: 8" => "efgh".to_owned(),
            _ => "x".repeat(200_000 - first.len()),
        };
        client.write(rest.as_bytes()).await;
        served.read_body().await;
        assert!(served.seen.body.starts_with(b"abcd"));
        served.answer(200, "application/json", b"{}").await;
        assert_eq!(client.read_answer(false).await.status, 200);
        let decisions = difference(&before, &front.decisions().await);
        assert_eq!(decisions.into_iter().collect::<Vec<_>>(), [(reason.to_owned(), 1)]);
    }
}

/// The data of each event, without what differs between any two answers.
fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).expect("text");
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.map(|data| {
        let mut event = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
        if let Some(event) = event.as_object_mut() {
            event.remove("id");
            event.remove("created");
        }
        event
    })
    .collect()
}

async fn stream_from(mut connection: Connection, include_usage: bool) -> Vec<Value> {
    let mut body = completion(&prompt(1, 20));
    body["stream"] = json!(true);
    body["max_tokens"] = json!(50);
    body["stream_options"] = json!({"include_usage": include_usage});
    let request = connection.request(
        "POST",
        "/v1/completions",
        &[("content-type", "application/json")],
        whole(body.to_string()),
    );
    let answer = poll::within("the stream", connection.send(request)).await.unwrap();
    assert_eq!(answer.status, 200);
    events(&answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_stream_is_the_same_with_and_without_the_filter() {
    let bed = Bed::start(&FrontOptions::new(Variant::ClusterHeader), 1).await;
    let engine = bed.fleet.addresses()[0];
    // The cache is warm for all that follow, so that usage is the same.
    bed.complete(&prompt(1, 20)).await;
    for include_usage in [true, false] {
        let direct =
            stream_from(Connection::open(engine, Version::Http1).await, include_usage).await;
        assert_eq!(direct.last(), Some(&json!("[DONE]")));
        assert_eq!(direct.len(), if include_usage { 52 } else { 51 });
        for version in [Version::Http1, Version::Http2] {
            let through = stream_from(bed.front.connect(version).await, include_usage).await;
            assert_eq!(through, direct);
        }
    }
    usage_was_read(&bed.front).await;
}

async fn usage_was_read(front: &Front) {
    // The first completion, and two streams with usage.
    let agreements = async || front.model_metric("parity_agreements_total").await;
    poll::until_equal("parity", 3, agreements).await;
    assert_eq!(front.model_metric("parity_disagreements_total").await, 0);
}

/// Prefill of the only backend that is not done, as the filter has it.
async fn pending_tokens(front: &Front) -> u64 {
    let load = &front.status().await["backends"][0]["load"];
    load["pending_prefill_tokens"].as_u64().expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_is_done_when_the_stream_says_more_than_that_the_request_came() {
    let mut engine = ScriptedEngine::start().await;
    let front = FrontOptions::new(Variant::OverrideHost).start(&[engine.address()]).await;
    let tokens = prompt(1, 20);
    let body = json!({"model": MODEL, "input": "hi", "stream": true,
        "kv_transfer_params": {"prompt_token_ids": tokens}});
    let mut connection = front.connect(Version::Http1).await;
    let headers = [("content-type", "application/json")];
    let request = connection.request("POST", "/v1/responses", &headers, whole(body.to_string()));
    let client = tokio::spawn(async move { (connection.start(request).await, connection) });
    let mut served = engine.next().await;
    let all = tokens.len() as u64;
    assert_eq!(pending_tokens(&front).await, all);
    served.send_head(200, &[("content-type", EVENT_STREAM)]).await;
    let (response, _connection) = poll::within("the head", client).await.expect("no panic");
    let mut receiver =
        Receiver { body: response.expect("an answer").into_body(), received: Vec::new() };
    let mut sent = 0;
    for (event, pending) in [
        ("event: response.created\ndata: {\"type\":\"response.created\"}\n\n", all),
        ("event: response.in_progress\ndata: {\"type\":\"response.in_progress\"}\n\n", all),
        (": ping\n\n", all),
        ("event: response.output_item.added\ndata: {}\n\n", 0),
    ] {
        served.send_chunk(event.as_bytes()).await;
        sent += event.len();
        receiver.receive(sent).await;
        // It is told a few milliseconds later, if there is anything to tell.
        tokio::time::sleep(Duration::from_millis(50)).await;
        poll::until_equal(event, pending, async || pending_tokens(&front).await).await;
    }
    served.finish().await;
    receiver.finish().await;
    front.assert_no_crash().await;
}

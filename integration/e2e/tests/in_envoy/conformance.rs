//! Whatever clients send is served or refused by the engine as it would be without the filter, and counted
//! under its reason.
//!
//! Each request goes three ways: to an engine, to an engine behind an Envoy without the filter, and to one
//! behind an Envoy with it. The three engines see the same requests, so that their caches are equal.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, Front, FrontOptions, difference};
use warmpath_e2e::client::raw::{self, RawAnswer, RawConnection};
use warmpath_e2e::client::{Body, Connection, Version, frames, whole};
use warmpath_e2e::fleet::fast;
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_e2e::scripted::Recorder;
use warmpath_harness::fleet::Fleet;
use warmpath_harness::{EnvoyOptions, EnvoyProcess, Variant};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// The three ways.
struct Ways {
    direct: Fleet,
    _plain_fleet: Fleet,
    plain: EnvoyProcess,
    bed: Bed,
}

impl Ways {
    async fn start(variant: Variant) -> Self {
        let direct = Fleet::start(&fast(1)).await.unwrap();
        let plain_fleet = Fleet::start(&fast(1)).await.unwrap();
        let options = EnvoyOptions::plain(variant, plain_fleet.addresses());
        let plain = EnvoyProcess::start(&options).await.unwrap();
        let bed = Bed::start(&FrontOptions::new(variant), 1).await;
        Self { direct, _plain_fleet: plain_fleet, plain, bed }
    }
}

/// What must be the same: status, type and body, without what differs between any two answers.
fn essence(status: u16, content_type: Option<&str>, body: &[u8]) -> (u16, Option<String>, Value) {
    let mut json: Value = serde_json::from_slice(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
    if let Some(object) = json.as_object_mut() {
        object.remove("id");
        object.remove("created");
    }
    (status, content_type.map(str::to_owned), json)
}

fn raw_essence(answer: &RawAnswer) -> (u16, Option<String>, Value) {
    essence(answer.status, answer.header("content-type"), &answer.body)
}

/// The decisions that `action` causes, beside its result.
async fn counted<T>(front: &Front, action: impl Future<Output = T>) -> (T, BTreeMap<String, u64>) {
    let before = front.decisions().await;
    let result = action.await;
    (result, difference(&before, &front.decisions().await))
}

/// A case: its name, the reason under which it is counted (none if Envoy refuses it by itself), and the
/// request as bytes.
struct Case {
    name: &'static str,
    reason: Option<&'static str>,
    request: Vec<u8>,
    /// Whether Envoy, filter or not, must answer as the engine itself does.
    as_direct: bool,
}

fn case(name: &'static str, reason: &'static str, request: impl Into<Vec<u8>>) -> Case {
    Case { name, reason: Some(reason), request: request.into(), as_direct: true }
}

/// A case that Envoy treats in its own way, with the filter as without.
fn envoys(name: &'static str, reason: Option<&'static str>, request: impl Into<Vec<u8>>) -> Case {
    Case { name, reason, request: request.into(), as_direct: false }
}

fn without_body(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: engines\r\n\r\n")
}

fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    post_with(path, "content-type: application/json\r\n", body)
}

fn post_with(path: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: engines\r\n{headers}content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn chunked(path: &str, pieces: &[&[u8]], trailers: &str) -> Vec<u8> {
    let mut request =
        format!("POST {path} HTTP/1.1\r\nhost: engines\r\ntransfer-encoding: chunked\r\n\r\n")
            .into_bytes();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        request.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        request.extend_from_slice(piece);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    request
}

fn nested(levels: usize) -> String {
    format!("{{\"prompt\":[1,2,3],\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels))
}

async fn check_raw(ways: &Ways, case: &Case) {
    let name = case.name;
    let direct = raw::exchange(ways.direct.addresses()[0], &case.request);
    let direct = if case.as_direct { Some(direct.await) } else { None };
    let plain = raw::exchange(ways.plain.public(), &case.request).await;
    let front = &ways.bed.front;
    let (through, reasons) = counted(front, raw::exchange(front.address(), &case.request)).await;
    assert_eq!(raw_essence(&through), raw_essence(&plain), "{name}: not as without the filter");
    if let Some(direct) = direct {
        assert_eq!(raw_essence(&through), raw_essence(&direct), "{name}: not as the engine");
    }
    let expected = case.reason.map(|reason| (reason.to_owned(), 1));
    assert_eq!(reasons, expected.into_iter().collect(), "{name}");
}

async fn check_all(ways: &Ways, cases: &[Case]) {
    for case in cases {
        check_raw(ways, case).await;
    }
}

async fn all_requests(variant: Variant) {
    let ways = Ways::start(variant).await;
    methods_and_paths(&ways).await;
    bodies_of_every_shape(&ways).await;
    framings(&ways).await;
    expect_continue(&ways).await;
    pipelined_requests_are_answered_in_order(&ways).await;
    over_http2(&ways).await;
    large_bodies(&ways).await;
    ways.bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_as_without_the_filter_by_cluster_header() {
    all_requests(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_as_without_the_filter_by_override_host() {
    all_requests(Variant::OverrideHost).await;
}

async fn methods_and_paths(ways: &Ways) {
    let prompt = "{\"prompt\":[1,2,3],\"max_tokens\":2}";
    let cases = [
        case("models", "other_path", without_body("GET", "/v1/models")),
        case("head of models", "other_path", without_body("HEAD", "/v1/models")),
        case("health", "other_path", without_body("GET", "/health")),
        case("unknown path", "other_path", without_body("GET", "/no/such/path")),
        case("root", "other_path", without_body("GET", "/")),
        case("wrong method", "other_path", without_body("DELETE", "/v1/models")),
        case("get a chat", "empty_body", without_body("GET", CHAT)),
        case("head of a chat", "empty_body", without_body("HEAD", CHAT)),
        case("options", "empty_body", without_body("OPTIONS", COMPLETIONS)),
        case("unknown path with a body", "other_path", post("/v1/nothing", "{\"a\":1}")),
        case("trailing slash", "other_path", post("/v1/completions/", prompt)),
        case("query", "prefix_miss", post("/v1/completions?x=1&y=/_warmpath", prompt)),
        case("upper case", "other_path", post("/V1/Completions", prompt)),
        case("version as a path", "other_path", post("/completions", prompt)),
        envoys("double slash", Some("prefix_miss"), post("//v1//completions", prompt)),
        envoys("dot segments", Some("prefix_miss"), post("/v1/./x/../completions", prompt)),
        envoys("encoded letter", Some("prefix_miss"), post("/v1/%63ompletions", prompt)),
        envoys("absolute URI", Some("other_path"), without_body("GET", "http://x/v1/models")),
    ];
    check_all(ways, &cases).await;
}

async fn bodies_of_every_shape(ways: &Ways) {
    let text = |body: Value| post(COMPLETIONS, body.to_string());
    let chat = |body: Value| post(CHAT, body.to_string());
    let hello = json!([{"role": "user", "content": "hello"}]);
    let cases = [
        case("token ids", "prefix_miss", text(json!({"prompt": [1, 2, 3], "max_tokens": 3}))),
        case("two prompts", "prefix_miss", text(json!({"prompt": [[1, 2], [3]]}))),
        case("text", "no_tokenizer", text(json!({"prompt": "hello"}))),
        case("two texts", "no_tokenizer", text(json!({"prompt": ["hello", "you"]}))),
        case("chat", "no_tokenizer", chat(json!({"messages": hello}))),
        case("unknown model", "unknown_model", text(json!({"model": "gpt", "prompt": [1]}))),
        case(
            "own template",
            "own_template",
            chat(json!({"messages": hello, "chat_template": "x"})),
        ),
        case(
            "null fields",
            "prefix_miss",
            text(json!({"model": null, "prompt": [1, 2, 3], "cache_salt": null})),
        ),
        case("no fields", "wrong_shape", text(json!({}))),
        case("a list", "wrong_shape", text(json!([1, 2]))),
        case("a number", "wrong_shape", post(COMPLETIONS, "7")),
        case("null", "wrong_shape", post(COMPLETIONS, "null")),
        case("prompt of a wrong type", "wrong_shape", text(json!({"prompt": 7}))),
        case("prompt null", "wrong_shape", text(json!({"prompt": null}))),
        case("no prompts", "wrong_shape", text(json!({"prompt": []}))),
        case("mixed prompt", "wrong_shape", text(json!({"prompt": [1, "a"]}))),
        case("negative token", "wrong_shape", text(json!({"prompt": [1, -1]}))),
        case("fractional token", "wrong_shape", text(json!({"prompt": [1, 1.5]}))),
        case("token of 33 bits", "wrong_shape", text(json!({"prompt": [1, 4_294_967_296_u64]}))),
        case("model of a wrong type", "wrong_shape", text(json!({"model": 7, "prompt": [1]}))),
        case("messages of a wrong type", "wrong_shape", chat(json!({"messages": "hello"}))),
        case("message of a wrong type", "wrong_shape", chat(json!({"messages": [7]}))),
        case("no messages", "no_tokenizer", chat(json!({"messages": []}))),
        case("not JSON", "not_json", post(COMPLETIONS, "prompt=hello")),
        case("half of JSON", "not_json", post(COMPLETIONS, "{\"prompt\": [1,")),
        case("two values", "not_json", post(COMPLETIONS, "{\"prompt\":[1]} {}")),
        case("byte-order mark", "prefix_miss", post(COMPLETIONS, "\u{feff}{\"prompt\":[1]}")),
        case("lone surrogate", "lone_surrogate", post(COMPLETIONS, "{\"prompt\":\"\\ud800\"}")),
        case("number too large", "prefix_miss", post(COMPLETIONS, "{\"prompt\":[1],\"x\":1e999}")),
        case("zero bytes", "not_json", post(COMPLETIONS, [0; 100])),
        case("nested 100 deep", "prefix_miss", post(COMPLETIONS, nested(100))),
        case("nested 200 deep", "too_many_values", post(COMPLETIONS, nested(200))),
        case("nested 100,000 deep", "too_many_values", post(COMPLETIONS, nested(100_000))),
        case("not UTF-8", "not_utf8", post(COMPLETIONS, b"{\"prompt\":\"\xff\xfe\"}")),
        case(
            "compressed",
            "not_utf8",
            post_with(
                COMPLETIONS,
                "content-encoding: gzip\r\n",
                b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
            ),
        ),
        case(
            "same key twice",
            "prefix_miss",
            post(COMPLETIONS, "{\"prompt\":\"a\",\"prompt\":[1,2]}"),
        ),
        case("no content type", "prefix_miss", post_with(COMPLETIONS, "", "{\"prompt\":[1,2,3]}")),
        case("white space", "prefix_miss", post(COMPLETIONS, " \r\n\t{\"prompt\" : [ 1 ] }\n ")),
    ];
    check_all(ways, &cases).await;
}

async fn framings(ways: &Ways) {
    let body: &[u8] = b"{\"prompt\":[1,2,3],\"max_tokens\":2}";
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    let cases = [
        case("no body", "empty_body", post(COMPLETIONS, "")),
        case("no body, no length", "empty_body", without_body("POST", COMPLETIONS)),
        case("chunked, no chunks", "empty_body", chunked(COMPLETIONS, &[], "")),
        case("chunked", "prefix_miss", chunked(COMPLETIONS, &[body], "")),
        case("a chunk a byte", "prefix_miss", chunked(COMPLETIONS, &bytes, "")),
        case("trailers", "prefix_miss", chunked(COMPLETIONS, &[body], "x-checksum: 1\r\n")),
        case("trailers only", "empty_body", chunked(COMPLETIONS, &[], "x-checksum: 1\r\n")),
        case(
            "forged trailers",
            "prefix_miss",
            chunked(COMPLETIONS, &[body], "x-warmpath-cluster: x\r\ncontent-length: 3\r\n"),
        ),
        envoys(
            "length and chunks",
            None,
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\
             transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        envoys("HTTP/1.0", None, "GET /v1/models HTTP/1.0\r\nhost: x\r\n\r\n"),
        envoys("no host", None, "GET /v1/models HTTP/1.1\r\n\r\n"),
        envoys("not HTTP", None, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
        envoys(
            "upgrade",
            None,
            "GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        ),
    ];
    check_all(ways, &cases).await;
}

async fn large_bodies(ways: &Ways) {
    let megabytes = 1 << 20;
    let text =
        |bytes: usize| json!({"prompt": "word ".repeat(bytes / 5), "max_tokens": 2}).to_string();
    let ids: Vec<u32> = (0..3 * megabytes as u32 / 7).map(|i| 100_000 + i % 50_000).collect();
    let ids = json!({"prompt": ids, "max_tokens": 2}).to_string();
    assert!(ids.len() > 2_900_000);
    let long = text(9 * megabytes);
    let longer = text(17 * megabytes);
    let pieces: Vec<&[u8]> = long.as_bytes().chunks(100_000).collect();
    let more_pieces: Vec<&[u8]> = longer.as_bytes().chunks(100_000).collect();
    let cases = [
        case("3 MB of text", "no_tokenizer", post(COMPLETIONS, text(3 * megabytes))),
        case("3 MB of token ids", "prefix_miss", post(COMPLETIONS, &ids)),
        case("again", "prefix_hit", post(COMPLETIONS, &ids)),
        case("3 MB in one chunk", "prefix_hit", chunked(COMPLETIONS, &[ids.as_bytes()], "")),
        case("3 MB of no JSON", "not_json", post(COMPLETIONS, vec![b'x'; 3 * megabytes])),
        case("3 MB elsewhere", "other_path", post("/v1/nothing", vec![b'x'; 3 * megabytes])),
        case("9 MB", "body_too_large", post(COMPLETIONS, &long)),
        case("9 MB in chunks", "body_too_large", chunked(COMPLETIONS, &pieces, "")),
        case("17 MB", "body_too_large", post(COMPLETIONS, &longer)),
        case("17 MB in chunks", "body_too_large", chunked(COMPLETIONS, &more_pieces, "")),
    ];
    check_all(ways, &cases).await;
}

async fn expect_continue(ways: &Ways) {
    let body = b"{\"prompt\":[1,2,3],\"max_tokens\":2}";
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut answers = Vec::new();
    for server in [ways.direct.addresses()[0], ways.plain.public(), ways.bed.front.address()] {
        let mut connection = RawConnection::open(server).await;
        connection.write(head.as_bytes()).await;
        // The client waits for permission, as it may.
        assert_eq!(connection.read_head().await.0, 100);
        connection.write(body).await;
        answers.push(raw_essence(&connection.read_answer(false).await));
    }
    assert_eq!(answers[0].0, 200);
    assert_eq!(answers[1], answers[0]);
    assert_eq!(answers[2], answers[0]);
}

async fn pipelined_requests_are_answered_in_order(ways: &Ways) {
    let requests = [
        post(COMPLETIONS, "{\"prompt\":[1,2,3],\"max_tokens\":2}"),
        without_body("GET", "/v1/models").into_bytes(),
        post(COMPLETIONS, "not JSON"),
        chunked(COMPLETIONS, &[b"{\"prompt\":[4,5,6],", b"\"max_tokens\":3}"], ""),
    ];
    let mut all = Vec::new();
    for server in [ways.direct.addresses()[0], ways.plain.public(), ways.bed.front.address()] {
        let mut connection = RawConnection::open(server).await;
        connection.write(&requests.concat()).await;
        let mut answers = Vec::new();
        for _ in 0..requests.len() {
            answers.push(raw_essence(&connection.read_answer(false).await));
        }
        all.push(answers);
    }
    let statuses: Vec<u16> = all[0].iter().map(|answer| answer.0).collect();
    assert_eq!(statuses, [200, 200, 400, 200]);
    assert_eq!(all[1], all[0]);
    assert_eq!(all[2], all[0]);
}

/// A request over HTTP/2.
struct Http2Case {
    name: &'static str,
    reason: &'static str,
    method: &'static str,
    path: &'static str,
    body: fn() -> Body,
}

fn ids_body() -> Bytes {
    Bytes::from(completion(&prompt(1, 20)).to_string())
}

fn trailers() -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from_static("1"));
    trailers.insert("x-warmpath-cluster", HeaderValue::from_static("x"));
    Some(trailers)
}

fn pieces(megabytes: usize) -> Vec<Bytes> {
    let text = json!({"prompt": "word ".repeat(megabytes << 18), "max_tokens": 2}).to_string();
    let bytes = Bytes::from(text);
    (0..bytes.len())
        .step_by(50_000)
        .map(|at| bytes.slice(at..bytes.len().min(at + 50_000)))
        .collect()
}

const HTTP2_CASES: &[Http2Case] = &[
    Http2Case {
        name: "models",
        reason: "other_path",
        method: "GET",
        path: "/v1/models",
        body: || whole(""),
    },
    Http2Case {
        name: "head",
        reason: "other_path",
        method: "HEAD",
        path: "/v1/models",
        body: || whole(""),
    },
    Http2Case {
        name: "get",
        reason: "empty_body",
        method: "GET",
        path: COMPLETIONS,
        body: || whole(""),
    },
    Http2Case {
        name: "no body",
        reason: "empty_body",
        method: "POST",
        path: COMPLETIONS,
        body: || whole(""),
    },
    Http2Case {
        name: "whole",
        reason: "prefix_miss",
        method: "POST",
        path: COMPLETIONS,
        body: || whole(ids_body()),
    },
    Http2Case {
        name: "trailers",
        reason: "prefix_hit",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(vec![ids_body()], trailers()),
    },
    Http2Case {
        name: "two frames and trailers",
        reason: "prefix_hit",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(vec![ids_body().slice(..100), ids_body().slice(100..)], trailers()),
    },
    Http2Case {
        name: "a frame a byte",
        reason: "prefix_hit",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(ids_body().chunks(1).map(Bytes::copy_from_slice).collect(), None),
    },
    Http2Case {
        name: "an empty frame",
        reason: "empty_body",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(vec![Bytes::new()], None),
    },
    Http2Case {
        name: "an empty frame in the end",
        reason: "prefix_hit",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(vec![ids_body(), Bytes::new()], None),
    },
    Http2Case {
        name: "trailers only",
        reason: "empty_body",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(Vec::new(), trailers()),
    },
    Http2Case {
        name: "not JSON with trailers",
        reason: "not_json",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(vec![Bytes::from_static(b"x")], trailers()),
    },
    Http2Case {
        name: "elsewhere with trailers",
        reason: "other_path",
        method: "POST",
        path: "/v1/nothing",
        body: || frames(vec![Bytes::from_static(b"x")], trailers()),
    },
    Http2Case {
        name: "3 MB",
        reason: "no_tokenizer",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(pieces(3), None),
    },
    Http2Case {
        name: "3 MB and trailers",
        reason: "no_tokenizer",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(pieces(3), trailers()),
    },
    Http2Case {
        name: "9 MB",
        reason: "body_too_large",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(pieces(9), None),
    },
    Http2Case {
        name: "9 MB and trailers",
        reason: "body_too_large",
        method: "POST",
        path: COMPLETIONS,
        body: || frames(pieces(9), trailers()),
    },
];

async fn over_http2(ways: &Ways) {
    let mut connections = Vec::new();
    for server in [ways.direct.addresses()[0], ways.plain.public(), ways.bed.front.address()] {
        connections.push(Connection::open(server, Version::Http2).await);
    }
    for Http2Case { name, reason, method, path, body } in HTTP2_CASES {
        let before = ways.bed.front.decisions().await;
        let mut answers = Vec::new();
        for connection in &mut connections {
            let headers = [("content-type", "application/json")];
            let request = connection.request(method, path, &headers, body());
            let answer = poll::within(name, connection.send(request)).await;
            let answer = answer.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            let kind = answer.headers.get("content-type").and_then(|kind| kind.to_str().ok());
            answers.push(essence(answer.status, kind, &answer.body));
        }
        assert_eq!(answers[1], answers[0], "{name}: Envoy, not as the engine");
        assert_eq!(answers[2], answers[0], "{name}: not as the engine");
        let reasons = difference(&before, &ways.bed.front.decisions().await);
        assert_eq!(reasons, BTreeMap::from([((*reason).to_owned(), 1)]), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_reach_the_engine_byte_for_byte() {
    for variant in Variant::ALL {
        let engine = Recorder::start().await;
        let front = FrontOptions::new(variant).start(&[engine.address()]).await;
        for length in
            [0, 1, 16_383, 65_536, (1 << 20) - 1, (1 << 20) + 1, 3 << 20, 9 << 20, 20 << 20]
        {
            let body: Vec<u8> = (0..length).map(|i: usize| (i % 251) as u8).collect();
            let pieces: Vec<&[u8]> = body.chunks(40_000).collect();
            for request in [post(COMPLETIONS, &body), chunked(COMPLETIONS, &pieces, "")] {
                assert_eq!(raw::exchange(front.address(), &request).await.status, 200, "{length}");
            }
            let mut connection = front.connect(Version::Http2).await;
            let pieces = pieces.into_iter().map(Bytes::copy_from_slice).collect();
            let request = connection.request("POST", COMPLETIONS, &[], frames(pieces, None));
            let answer = poll::within("an answer", connection.send(request)).await.unwrap();
            assert_eq!(answer.status, 200, "{length}");
            let seen = engine.take();
            assert_eq!(seen.len(), 3, "{length}");
            for seen in seen {
                assert!(
                    seen.body == body,
                    "{variant:?}: {length} bytes arrived as {}",
                    seen.body.len()
                );
            }
        }
        front.assert_no_crash().await;
    }
}

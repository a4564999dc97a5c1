//! What clients must not be able to do: name an upstream, forge the filter's headers, reach its endpoints.

use bytes::Bytes;
use serde_json::json;
use warmpath_e2e::bed::{Front, FrontOptions};
use warmpath_e2e::client::{Connection, Version, raw, whole};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_e2e::scripted::{Recorder, Seen};
use warmpath_harness::Variant;

const ENDPOINT: &str = "x-gateway-destination-endpoint";
const CLUSTER: &str = "x-warmpath-cluster";

async fn recorders(count: usize) -> Vec<Recorder> {
    let mut recorders = Vec::new();
    for _ in 0..count {
        recorders.push(Recorder::start().await);
    }
    recorders
}

fn addresses(engines: &[Recorder]) -> Vec<std::net::SocketAddr> {
    engines.iter().map(Recorder::address).collect()
}

/// What all engines were asked since the last call: engine and request.
fn taken(engines: &[Recorder]) -> Vec<(usize, Seen)> {
    let each = engines.iter().enumerate();
    each.flat_map(|(index, engine)| engine.take().into_iter().map(move |seen| (index, seen)))
        .collect()
}

async fn send(
    connection: &mut Connection,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> u16 {
    let body = whole(Bytes::from(body.to_owned()));
    let request = connection.request(method, path, headers, body);
    poll::within("an answer", connection.send(request)).await.expect("an answer").status
}

/// The filter's headers that reach the engine, if any, are the filter's own: its list of endpoints, with
/// this engine as the first.
fn assert_clean(seen: &Seen, first: &str) {
    for (name, value) in &seen.headers {
        assert!(!name.starts_with("x-warmpath-"), "{name}: {value} reached the engine");
    }
    for value in seen.header(ENDPOINT) {
        assert!(value == first || value.starts_with(&format!("{first},")), "{ENDPOINT}: {value}");
    }
    assert!(seen.header(ENDPOINT).len() <= 1);
}

/// Engines that only record, Envoy in front of them, and a server that is none of the engines.
struct Stage {
    engines: Vec<Recorder>,
    outside: Recorder,
    front: Front,
}

async fn trust(variant: Variant) {
    let mut bundle = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut bundle, BUNDLE).unwrap();
    let engines = recorders(3).await;
    let outside = Recorder::start().await;
    let mut options = FrontOptions::new(variant);
    options.bundle = Some(bundle.path().to_path_buf());
    let front = options.start(&addresses(&engines)).await;
    let stage = Stage { engines, outside, front };
    a_clients_own_headers_do_not_choose_the_engine(&stage).await;
    nor_for_what_the_filter_does_not_read(&stage).await;
    forged_headers_of_odd_bytes_are_dropped_too(&stage).await;
    internal_paths_are_refused_in_every_spelling(&stage).await;
    paths_that_only_look_alike_pass(&stage).await;
    assert!(stage.outside.take().is_empty(), "a client reached a host that is no engine");
    stage.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_not_trusted_by_cluster_header() {
    trust(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_not_trusted_by_override_host() {
    trust(Variant::OverrideHost).await;
}

async fn a_clients_own_headers_do_not_choose_the_engine(stage: &Stage) {
    let Stage { engines, outside, front } = stage;
    let outside = outside.address().to_string();
    for version in [Version::Http1, Version::Http2] {
        let mut connection = front.connect(version).await;
        for number in 0..9 {
            let body = completion(&prompt(number, 20)).to_string();
            assert_eq!(send(&mut connection, "POST", "/v1/completions", &[], &body).await, 200);
            let holder = taken(engines)[0].0;
            let wanted = (holder + 1) % engines.len();
            let (cluster, address) =
                (format!("engine-{wanted}"), engines[wanted].address().to_string());
            for forged in forgeries(&cluster, &address, &outside) {
                let status = send(&mut connection, "POST", "/v1/completions", &forged, &body).await;
                assert_eq!(status, 200, "{version:?} {forged:?}");
                let seen = taken(engines);
                assert_eq!(seen.len(), 1);
                assert_eq!(seen[0].0, holder, "{version:?} {forged:?}");
                let first = engines[holder].address().to_string();
                assert_clean(&seen[0].1, &first);
            }
        }
    }
}

/// Headers that would send a request to the engine with this cluster and address, or outside, if they were
/// heard.
fn forgeries<'a>(
    cluster: &'a str,
    address: &'a str,
    outside: &'a str,
) -> Vec<Vec<(&'static str, &'a str)>> {
    vec![
        vec![(CLUSTER, cluster), (ENDPOINT, address)],
        vec![(CLUSTER, "warmpath_internal"), (ENDPOINT, outside)],
        vec![(ENDPOINT, address), (ENDPOINT, address), (CLUSTER, cluster), (CLUSTER, cluster)],
        vec![(CLUSTER, "no-such-cluster"), (ENDPOINT, "not an address")],
        vec![(CLUSTER, ""), (ENDPOINT, "")],
        vec![("X-Warmpath-Cluster", cluster), ("X-GATEWAY-Destination-Endpoint", address)],
        vec![("x-warmpath-anything", "forged"), ("x-warmpath-", "forged")],
        vec![(CLUSTER, "\u{e9}\u{ff}"), (ENDPOINT, "\u{e9}\u{ff}")],
    ]
}

async fn nor_for_what_the_filter_does_not_read(stage: &Stage) {
    let Stage { engines, front, .. } = stage;
    let address = engines[1].address().to_string();
    let forged = [(CLUSTER, "engine-1"), (ENDPOINT, address.as_str())];
    let mut connection = front.connect(Version::Http1).await;
    let mut counts = [0; 3];
    for (method, path, body) in [
        ("GET", "/v1/models", ""),
        ("POST", "/v1/completions", ""),
        ("POST", "/v1/completions", "not JSON"),
        ("POST", "/v1/embeddings", "{}"),
        ("POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"),
    ] {
        for _ in 0..12 {
            assert_eq!(send(&mut connection, method, path, &forged, body).await, 200);
            for (engine, seen) in taken(engines) {
                counts[engine] += 1;
                assert_clean(&seen, &engines[engine].address().to_string());
            }
        }
    }
    // By load: sixty requests, one after the other, over three idle engines.
    assert_eq!(counts.iter().sum::<usize>(), 60);
    assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
}

async fn forged_headers_of_odd_bytes_are_dropped_too(stage: &Stage) {
    let Stage { engines, front, .. } = stage;
    let body = completion(&prompt(1, 20)).to_string();
    let length = body.len();
    let mut request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nX-WarmPath-Odd: "
    )
    .into_bytes();
    request.extend_from_slice(b"\xff\xfe\x80\r\nx-odd: \xff\xfe\x80\r\n\r\n");
    request.extend_from_slice(body.as_bytes());
    let hits = front.decisions().await["prefix_hit"];
    assert_eq!(raw::exchange(front.address(), &request).await.status, 200);
    let seen = taken(engines);
    assert_eq!(seen.len(), 1);
    assert_clean(&seen[0].1, &engines[seen[0].0].address().to_string());
    // A header that is not ours passes, whatever its bytes.
    assert_eq!(seen[0].1.header("x-odd").len(), 1);
    assert_eq!(front.decisions().await["prefix_hit"], hits + 1);
}

/// Spellings of the internal endpoints' paths.
const INTERNAL_PATHS: &[&str] = &[
    "/_warmpath",
    "/_warmpath/",
    "/_warmpath?x=1",
    "/_warmpath#x",
    "/_warmpath/bundles/demo.wpb",
    "/_warmpath/bundles/demo.wpb?x=/v1/models",
    "//_warmpath/bundles/demo.wpb",
    "///_warmpath//bundles/demo.wpb",
    "/./_warmpath/bundles/demo.wpb",
    "/v1/../_warmpath/bundles/demo.wpb",
    "/v1/%2e%2e/_warmpath/bundles/demo.wpb",
    "/v1/.%2E/_warmpath/bundles/demo.wpb",
    "/../../_warmpath/bundles/demo.wpb",
    "/%5fwarmpath/bundles/demo.wpb",
    "/%5Fwarmpath/bundles/demo.wpb",
    "/_%77armpath/bundles/demo.wpb",
    "/%5F%77%61%72%6D%70%61%74%68/bundles/demo.wpb",
    "/_warmpath%2Fbundles/demo.wpb",
    "/_warmpath%2fbundles%2fdemo.wpb",
    "/%2F_warmpath/bundles/demo.wpb",
    "/_warmpath%5Cbundles/demo.wpb",
    "/_warmpath\\bundles\\demo.wpb",
    "/\\_warmpath/bundles/demo.wpb",
    "/_warmpath;x/bundles/demo.wpb",
    "/_warmpath/../_warmpath/bundles/demo.wpb",
    "/_WARMPATH/bundles/demo.wpb",
    "/_Warmpath/bundles/demo.wpb",
];

/// What the internal listener serves.
const BUNDLE: &[u8] = b"e2e-file";

async fn internal_paths_are_refused_in_every_spelling(stage: &Stage) {
    let Stage { engines, front, .. } = stage;
    // It is there, for whoever may ask.
    let inside = b"GET /_warmpath/bundles/demo.wpb HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(raw::exchange(front.envoy.internal(), inside).await.body, BUNDLE);
    let mut wrong = Vec::new();
    for path in INTERNAL_PATHS {
        for method in ["GET", "POST"] {
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}");
            let answer = raw::exchange(front.address(), request.as_bytes()).await;
            let leaks = answer.body.windows(BUNDLE.len()).any(|window| window == BUNDLE);
            if !is_refusal(answer.status) || leaks || !taken(engines).is_empty() {
                wrong.push((method, path, answer.status));
            }
        }
    }
    let mut connection = front.connect(Version::Http2).await;
    for path in INTERNAL_PATHS.iter().filter(|path| path.parse::<http::Uri>().is_ok()) {
        let status = send(&mut connection, "GET", path, &[], "").await;
        if !is_refusal(status) || !taken(engines).is_empty() {
            wrong.push(("HTTP/2 GET", path, status));
        }
    }
    assert!(wrong.is_empty(), "not refused: {wrong:#?}");
    refusals_are_in_the_shape_of_the_paths_api(front).await;
}

async fn refusals_are_in_the_shape_of_the_paths_api(front: &Front) {
    let of_anthropic = json!({
        "type": "error",
        "error": {"type": "not_found_error", "message": "not found"},
    });
    let of_openai = json!({"error": {
        "message": "not found", "type": "NotFoundError", "param": null, "code": 404,
    }});
    let mut connection = front.connect(Version::Http1).await;
    for (path, body) in [
        ("/v1/messages/_warmpath", of_anthropic),
        ("/api/_warmpath", json!({"error": "not found"})),
        ("/v1/chat/completions/_warmpath", of_openai.clone()),
        ("/_warmpath/bundles/demo.wpb", of_openai),
    ] {
        let request = connection.request("GET", path, &[], whole(""));
        let answer = poll::within("an answer", connection.send(request)).await.expect("an answer");
        assert_eq!((answer.status, answer.json()), (404, body), "{path}");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
}

/// Envoy calls some spellings bad requests before anyone looks for their meaning.
fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 403 | 404)
}

async fn paths_that_only_look_alike_pass(stage: &Stage) {
    let mut connection = stage.front.connect(Version::Http1).await;
    for path in ["/_warmpathx", "/_warmpathx/y", "/x_warmpath", "/_warm", "/x?y=/_warmpath/"] {
        assert_eq!(send(&mut connection, "GET", path, &[], "").await, 200, "{path}");
        assert_eq!(taken(&stage.engines).len(), 1, "{path}");
    }
}

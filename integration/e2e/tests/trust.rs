//! What clients must not be able to do: name an upstream, forge the filter's headers, reach its endpoints.

use bytes::Bytes;
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

/// No header of the filter's names with a value that the client chose.
fn assert_clean(seen: &Seen, forged: &[&str]) {
    for (name, value) in &seen.headers {
        assert!(!name.starts_with("x-warmpath-"), "{name}: {value} reached the engine");
        let is_forged = forged.iter().any(|forged| value.contains(forged));
        assert!(name != ENDPOINT || !is_forged, "{name}: {value} reached the engine");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_own_headers_do_not_choose_the_engine() {
    for variant in Variant::ALL {
        let engines = recorders(3).await;
        let outside = Recorder::start().await;
        let front = FrontOptions::new(variant).start(&addresses(&engines)).await;
        let outside_address = outside.address().to_string();
        for version in [Version::Http1, Version::Http2] {
            let mut connection = front.connect(version).await;
            for number in 0..9 {
                let body = completion(&prompt(number, 20)).to_string();
                assert_eq!(send(&mut connection, "POST", "/v1/completions", &[], &body).await, 200);
                let holder = taken(&engines)[0].0;
                let wanted = (holder + 1) % engines.len();
                let (cluster, address) =
                    (format!("engine-{wanted}"), engines[wanted].address().to_string());
                for forged in [
                    vec![(CLUSTER, cluster.as_str()), (ENDPOINT, &address)],
                    vec![(CLUSTER, "warmpath_internal"), (ENDPOINT, &outside_address)],
                    vec![(ENDPOINT, &address), (ENDPOINT, &address), (CLUSTER, &cluster), (CLUSTER, &cluster)],
                    vec![(CLUSTER, "no-such-cluster"), (ENDPOINT, "not an address")],
                    vec![(CLUSTER, ""), (ENDPOINT, "")],
                    vec![("X-Warmpath-Cluster", &cluster), ("X-GATEWAY-Destination-Endpoint", &address)],
                    vec![("x-warmpath-anything", "forged"), ("x-warmpath-", "forged")],
                    vec![(CLUSTER, "\u{e9}\u{ff}"), (ENDPOINT, "\u{e9}\u{ff}")],
                ] {
                    let values: Vec<&str> = forged.iter().map(|(_, value)| *value).collect();
                    let status =
                        send(&mut connection, "POST", "/v1/completions", &forged, &body).await;
                    assert_eq!(status, 200, "{variant:?} {version:?} {forged:?}");
                    let seen = taken(&engines);
                    assert_eq!(seen.len(), 1);
                    assert_eq!(seen[0].0, holder, "{variant:?} {version:?} {forged:?}");
                    assert_clean(&seen[0].1, &own_values(&values, &engines[holder]));
                }
            }
        }
        assert!(outside.take().is_empty(), "a client reached a host that is no engine");
        front.assert_no_crash().await;
    }
}

/// The forged values that the filter would not write itself.
fn own_values<'a>(values: &[&'a str], holder: &Recorder) -> Vec<&'a str> {
    let holder = holder.address().to_string();
    // The filter's own list has the other engines behind the pick; a forged list would begin with another.
    let other = values.iter().filter(|value| !value.is_empty() && value.parse::<std::net::SocketAddr>().is_err());
    let _ = holder;
    other.copied().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_own_headers_do_not_choose_for_what_the_filter_does_not_read() {
    for variant in Variant::ALL {
        let engines = recorders(3).await;
        let front = FrontOptions::new(variant).start(&addresses(&engines)).await;
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
                for (engine, seen) in taken(&engines) {
                    counts[engine] += 1;
                    assert_clean(&seen, &[]);
                }
            }
        }
        // By load: sixty requests, one after the other, over three idle engines.
        assert_eq!(counts.iter().sum::<usize>(), 60);
        assert!(counts.iter().all(|count| *count >= 5), "{variant:?}: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_headers_of_odd_bytes_are_dropped_too() {
    let engines = recorders(3).await;
    let front = FrontOptions::new(Variant::OverrideHost).start(&addresses(&engines)).await;
    let body = completion(&prompt(1, 20)).to_string();
    let mut request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\
         X-WarmPath-Odd: ",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(b"\xff\xfe\x80\r\nx-odd: \xff\xfe\x80\r\n\r\n");
    request.extend_from_slice(body.as_bytes());
    for _ in 0..2 {
        assert_eq!(raw::exchange(front.address(), &request).await.status, 200);
        let seen = taken(&engines);
        assert_eq!(seen.len(), 1);
        assert_clean(&seen[0].1, &[]);
        // A header that is not ours passes, whatever its bytes.
        assert_eq!(seen[0].1.header("x-odd").len(), 1);
    }
    let decisions = front.decisions().await;
    assert_eq!((decisions["prefix_miss"], decisions["prefix_hit"]), (1, 1));
    front.assert_no_crash().await;
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

async fn assert_refused(front: &Front, engines: &[Recorder], method: &str, path: &str) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}");
    let answer = raw::exchange(front.address(), request.as_bytes()).await;
    assert!(
        (400..=404).contains(&answer.status) || answer.status == 307,
        "{method} {path}: {} {}",
        answer.status,
        String::from_utf8_lossy(&answer.body)
    );
    assert!(!answer.body.windows(8).any(|window| window == b"e2e-file"), "{method} {path}");
    let seen = taken(engines);
    assert!(seen.is_empty(), "{method} {path} reached an engine: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_paths_are_refused_in_every_spelling() {
    let mut bundle = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut bundle, b"e2e-file").unwrap();
    for variant in Variant::ALL {
        let engines = recorders(2).await;
        let mut options = FrontOptions::new(variant);
        options.bundle = Some(bundle.path().to_path_buf());
        let front = options.start(&addresses(&engines)).await;
        // It is there, for whoever may ask.
        let inside = b"GET /_warmpath/bundles/demo.wpb HTTP/1.1\r\nhost: x\r\n\r\n";
        assert_eq!(raw::exchange(front.envoy.internal(), inside).await.body, b"e2e-file");
        for path in INTERNAL_PATHS {
            for method in ["GET", "POST"] {
                assert_refused(&front, &engines, method, path).await;
            }
        }
        let mut connection = front.connect(Version::Http2).await;
        for path in INTERNAL_PATHS.iter().filter(|path| path.parse::<http::Uri>().is_ok()) {
            let status = send(&mut connection, "GET", path, &[], "").await;
            assert!((400..=404).contains(&status) || status == 307, "HTTP/2 {path}: {status}");
            assert!(taken(&engines).is_empty(), "HTTP/2 {path} reached an engine");
        }
        front.assert_no_crash().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_only_look_alike_pass() {
    let engines = recorders(1).await;
    let front = FrontOptions::new(Variant::OverrideHost).start(&addresses(&engines)).await;
    let mut connection = front.connect(Version::Http1).await;
    for path in ["/_warmpathx", "/v1/_warmpath/x", "/_warm", "/x?y=/_warmpath/"] {
        assert_eq!(send(&mut connection, "GET", path, &[], "").await, 200, "{path}");
        assert_eq!(taken(&engines).len(), 1, "{path}");
    }
}

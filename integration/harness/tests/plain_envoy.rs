//! The bootstraps and the harness itself, in a real Envoy without the filter: what must hold before any
//! routing does. The upstreams here are a few lines of HTTP that record what they were asked.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use warmpath_harness::http::{HttpClient, JSON, request};
use warmpath_harness::load::{self, LoadOptions};
use warmpath_harness::workload::{Chats, SharedPrefixes, Workload, WorkloadSpec};
use warmpath_harness::{EnvoyOptions, EnvoyProcess, Variant};

const ANSWER: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"warm\"}}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,",
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
    "data: [DONE]\n\n"
);

/// What an upstream was asked: the headers and the body's length.
type Asked = Arc<Mutex<Vec<(http::HeaderMap, usize)>>>;

struct Upstream {
    address: SocketAddr,
    asked: Asked,
}

impl Upstream {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Asked::default();
        let record = asked.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let record = record.clone();
                let service = service_fn(move |request| answer(request, record.clone()));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), service);
                tokio::spawn(connection);
            }
        });
        Self { address, asked }
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn answer(
    request: http::Request<Incoming>,
    record: Asked,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    record.lock().unwrap().push((head.headers, body.len()));
    Ok(http::Response::builder()
        .header("content-type", "text/event-stream")
        .body(Full::new(Bytes::from_static(ANSWER.as_bytes())))
        .unwrap())
}

async fn fleet() -> (Vec<Upstream>, Vec<SocketAddr>) {
    let mut upstreams = Vec::new();
    for _ in 0..3 {
        upstreams.push(Upstream::start().await);
    }
    let addresses = upstreams.iter().map(|upstream| upstream.address).collect();
    (upstreams, addresses)
}

/// `make check` leaves out the tests in here, which need Envoy.
mod in_envoy {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_workload_reaches_every_engine_and_all_of_it_is_answered() {
        for variant in Variant::ALL {
            let (upstreams, addresses) = fleet().await;
            let envoy =
                EnvoyProcess::start(&EnvoyOptions::plain(variant, &addresses)).await.unwrap();
            let workload = Workload::generate(&WorkloadSpec {
                seed: 1,
                duration: Duration::from_secs(20),
                shared: SharedPrefixes {
                    count: 3,
                    prefix_tokens: 50..=60,
                    question_tokens: 5..=9,
                    requests_per_s: 4.0,
                },
                chats: Chats {
                    chats_per_s: 1.0,
                    turns: 2..=3,
                    opening_tokens: 10..=20,
                    message_tokens: 5..=9,
                    turn_gap_s: 1.0..=2.0,
                },
                output_tokens: 5..=9,
            });
            let options = LoadOptions {
                target: envoy.public(),
                model: "demo".to_owned(),
                speed: 20.0,
                in_flight_max: 64,
                timeout: Duration::from_secs(30),
            };
            let mut seen = 0;
            let report = load::run(&options, &workload, |_| seen += 1).await;
            assert_eq!(report.failures(), Default::default(), "{}", envoy.log());
            assert_eq!(report.completed(), workload.requests());
            assert_eq!(seen, workload.requests());
            assert_eq!(report.ttft_us().len(), workload.requests() as u64);
            let usage = report.samples[0].usage.unwrap();
            assert_eq!(
                (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
                (9, 4, 1)
            );
            let counts: Vec<usize> = upstreams.iter().map(Upstream::count).collect();
            assert_eq!(counts.iter().sum::<usize>(), workload.requests());
            assert!(counts.iter().all(|count| *count > 0), "{variant:?}: {counts:?}");
            let served = envoy.stat("cluster.engines.upstream_rq_200").await.unwrap();
            assert_eq!(served, workload.requests() as u64);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn clients_neither_reach_the_internal_paths_nor_name_an_upstream() {
        for variant in Variant::ALL {
            let (upstreams, addresses) = fleet().await;
            let envoy =
                EnvoyProcess::start(&EnvoyOptions::plain(variant, &addresses)).await.unwrap();
            let client = HttpClient::new();
            for path in
                ["/_warmpath", "/_warmpath/bundles/demo.wpb", "//_warmpath/x", "/v1/../_warmpath/x"]
            {
                let answer = client.get(envoy.public(), path).await.unwrap();
                assert_eq!(answer.status, 404, "{path}");
                assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
                assert_eq!(answer.json()["error"]["code"], "not_found", "{path}");
            }
            assert_eq!(upstreams.iter().map(Upstream::count).sum::<usize>(), 0);

            let target = addresses[1].to_string();
            let headers = [
                ("x-gateway-destination-endpoint", target.as_str()),
                ("x-warmpath-cluster", "engine-1"),
            ];
            for _ in 0..60 {
                let request = request("GET", envoy.public(), "/v1/models", &headers, Bytes::new());
                assert_eq!(client.send(request.unwrap()).await.unwrap().status, 200);
            }
            for upstream in &upstreams {
                assert!(upstream.count() > 0, "{variant:?}: the headers decided");
                for (headers, _) in upstream.asked.lock().unwrap().iter() {
                    assert!(!headers.contains_key("x-warmpath-cluster"));
                    assert!(!headers.contains_key("x-gateway-destination-endpoint"));
                }
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_body_of_three_megabytes_passes() {
        for variant in Variant::ALL {
            let (upstreams, addresses) = fleet().await;
            let envoy =
                EnvoyProcess::start(&EnvoyOptions::plain(variant, &addresses)).await.unwrap();
            let body = Bytes::from(vec![b'x'; 3 << 20]);
            let request = request("POST", envoy.public(), "/v1/completions", JSON, body).unwrap();
            assert_eq!(HttpClient::new().send(request).await.unwrap().status, 200);
            let lengths: Vec<usize> = upstreams
                .iter()
                .flat_map(|u| u.asked.lock().unwrap().iter().map(|a| a.1).collect::<Vec<_>>())
                .collect();
            assert_eq!(lengths, [3 << 20]);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_envoy_that_cannot_start_says_why() {
        let (_upstreams, addresses) = fleet().await;
        let mut options = EnvoyOptions::plain(Variant::ClusterHeader, &addresses);
        options.edit = |bootstrap| {
            bootstrap.cluster_mut("engines")?["lb_policy"] = "NO_SUCH_POLICY".into();
            Ok(())
        };
        let error = EnvoyProcess::start(&options).await.unwrap_err().to_string();
        assert!(error.contains("NO_SUCH_POLICY"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dead_engines_are_passed_over() {
        let (upstreams, mut addresses) = fleet().await;
        // Bound and dropped: nothing listens there.
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        addresses[0] = dead;
        for variant in Variant::ALL {
            let envoy =
                EnvoyProcess::start(&EnvoyOptions::plain(variant, &addresses)).await.unwrap();
            let client = HttpClient::new();
            for _ in 0..30 {
                let body = serde_json::json!({"model": "demo", "messages": []});
                let answer = client.post_json(envoy.public(), "/v1/chat/completions", &body).await;
                assert_eq!(answer.unwrap().status, 200, "{variant:?}");
            }
        }
        assert_eq!(upstreams.iter().map(Upstream::count).sum::<usize>(), 60);
    }
}

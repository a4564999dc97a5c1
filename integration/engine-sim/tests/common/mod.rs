//! A server on a free port, and a client that shows everything the wire shows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use warmpath_engine_sim::model::Profile;
use warmpath_engine_sim::server::{self, BytesTokenizer, RunningServer, ServerConfig};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// Engines under test.
pub struct Fleet {
    pub server: RunningServer,
}

/// A quick engine: 640 tokens of KV beside the null block, 100 times as fast as an A100 with 8B.
pub fn quick() -> ServerConfig {
    ServerConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        profile: Profile { kv_tokens: 656, ..Profile::named("a100-8b").unwrap() },
        speed: 100.0,
        seed: 3,
        served_model_names: vec!["sim".into()],
    }
}

/// The same engine, so slow that nothing ends during a test.
pub fn slow() -> ServerConfig {
    ServerConfig { speed: 0.1, ..quick() }
}

pub async fn start(config: ServerConfig) -> Fleet {
    let server = server::serve(config, Arc::new(BytesTokenizer)).await.unwrap();
    Fleet { server }
}

/// A whole answer.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Fleet {
    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    /// Sends a request on a connection of its own. The connection lives as long as the answer.
    pub async fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> hyper::Result<Response<Incoming>> {
        open_at(self.address(), path, headers, body).await
    }

    pub async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Answer {
        let response = self.open(path, headers, body).await.unwrap();
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(path, &[], Some(body.to_string().into_bytes())).await
    }

    pub async fn stats(&self) -> Value {
        self.get("/sim/stats").await.json()
    }

    /// Polls the statistics until `check` holds; fails after a time that only a bug can need.
    pub async fn wait_for(&self, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let stats = self.stats().await;
            if check(&stats) {
                return stats;
            }
            assert!(Instant::now() < deadline, "never saw {what}: {stats}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn fail(&self, fault: Value) {
        let answer = self.post("/sim/fail", &fault).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    }

    pub async fn records(&self) -> Vec<Value> {
        let answer = self.get("/sim/requests").await.json();
        answer["requests"].as_array().unwrap().clone()
    }
}

pub async fn open_at(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Vec<u8>>,
) -> hyper::Result<Response<Incoming>> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(if body.is_some() { "POST" } else { "GET" })
        .uri(path)
        .header("host", "engine");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from(body.unwrap_or_default()));
    let response = sender.send_request(request.body(body).unwrap()).await;
    drop(driver);
    response
}

/// A chat of one user message.
pub fn chat(content: &str, max_tokens: u32) -> Value {
    json!({
        "model": "sim",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
    })
}

/// `body` as a stream with usage at the end.
pub fn streaming(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// The data of each event of a stream.
pub fn events(text: &str) -> Vec<&str> {
    assert!(text.ends_with("\n\n"), "a stream ends with a whole event");
    text.trim_end()
        .split("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("every event is one data line"))
        .collect()
}

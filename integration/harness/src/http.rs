//! A small HTTP/1.1 client over keep-alive connections: whole answers here, streams for [`crate::load`].

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::HarnessError;

/// Sends requests; connections are pooled and shared by clones.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// One whole answer.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The response headers.
    pub headers: http::HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl HttpAnswer {
    /// The body as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The value of the header `name`, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpClient {
    /// A client with its own pool of connections.
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector);
        Self { client }
    }

    /// Sends a request and waits for its whole answer.
    pub async fn send(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<HttpAnswer, HarnessError> {
        let (method, url) = (request.method().to_string(), request.uri().to_string());
        let fail =
            |why: String| HarnessError::Http { method: method.clone(), url: url.clone(), why };
        let response = self.client.request(request).await.map_err(|e| fail(causes(&e)))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| fail(causes(&e)))?.to_bytes();
        Ok(HttpAnswer { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Sends a request and returns once the response headers are there.
    pub async fn open(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<http::Response<Incoming>, HarnessError> {
        let (method, url) = (request.method().to_string(), request.uri().to_string());
        self.client.request(request).await.map_err(|e| HarnessError::Http {
            method,
            url,
            why: causes(&e),
        })
    }

    /// GET `path` from `server`.
    pub async fn get(&self, server: SocketAddr, path: &str) -> Result<HttpAnswer, HarnessError> {
        self.send(request("GET", server, path, &[], Bytes::new())?).await
    }

    /// POST `body` as JSON to `path` of `server`.
    pub async fn post_json(
        &self,
        server: SocketAddr,
        path: &str,
        body: &Value,
    ) -> Result<HttpAnswer, HarnessError> {
        self.send(request("POST", server, path, JSON, Bytes::from(body.to_string()))?).await
    }
}

/// The headers of a JSON request.
pub const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// Builds a request with `headers` and `body`.
pub fn request(
    method: &str,
    server: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Result<http::Request<Full<Bytes>>, HarnessError> {
    let url = format!("http://{server}{path}");
    let mut builder = http::Request::builder().method(method).uri(&url);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body)).map_err(|error| HarnessError::Http {
        method: method.to_owned(),
        url,
        why: error.to_string(),
    })
}

/// An error with its causes, which the HTTP client hides behind "client error".
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

//! HTTP/1.1 and HTTP/2 connections that the test holds, and requests as raw bytes.
//!
//! A pooled client hides which connection, and so which of Envoy's workers, a request takes; a tidy one
//! cannot send what untidy clients send. [`Connection`] is for the first, [`raw`] for the second.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::poll;

/// A request's body: whole, or frame by frame.
pub type Body = BoxBody<Bytes, std::convert::Infallible>;

/// The HTTP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, by prior knowledge.
    Http2,
}

/// A connection to one server.
#[derive(Debug)]
pub struct Connection {
    server: SocketAddr,
    sender: Sender,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

impl Connection {
    /// Connects.
    pub async fn open(server: SocketAddr, version: Version) -> Self {
        let socket = TcpStream::connect(server).await.expect("a connection");
        socket.set_nodelay(true).expect("no delay");
        let io = TokioIo::new(socket);
        let sender = match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.expect("HTTP/1.1");
                tokio::spawn(connection);
                Sender::Http1(sender)
            }
            Version::Http2 => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        Self { server, sender }
    }

    /// Sends a request; returns when the answer's headers are there.
    pub async fn start(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends a request and waits for the whole answer.
    pub async fn send(&mut self, request: Request<Body>) -> hyper::Result<Answer> {
        let (head, body) = self.start(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// A request for this connection, in the form that its version needs.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Request<Body> {
        let mut builder = Request::builder().method(method);
        builder = match self.sender {
            Sender::Http1(_) => builder.uri(path).header("host", self.server.to_string()),
            Sender::Http2(_) => builder.uri(format!("http://{}{path}", self.server)),
        };
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(body).expect("a request")
    }
}

/// The connection's half that sends, for several streams at once.
impl Clone for Connection {
    fn clone(&self) -> Self {
        match &self.sender {
            Sender::Http1(_) => panic!("an HTTP/1.1 connection carries one request at a time"),
            Sender::Http2(sender) => {
                Self { server: self.server, sender: Sender::Http2(sender.clone()) }
            }
        }
    }
}

/// A body that is sent whole.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// A body that is sent frame by frame, without its length in front, and then its trailers.
pub fn frames(data: Vec<Bytes>, trailers: Option<HeaderMap>) -> Body {
    let frames = data.into_iter().map(Frame::data).chain(trailers.map(Frame::trailers));
    let frames: Vec<Result<_, std::convert::Infallible>> = frames.map(Ok).collect();
    BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)))
}

/// Requests as raw bytes.
pub mod raw {
    use super::*;

    /// An answer as it came over the wire.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RawAnswer {
        /// Statuses of interim answers (100 to 199).
        pub interim: Vec<u16>,
        /// The status of the final one.
        pub status: u16,
        /// Its headers, names in lower case, in order.
        pub headers: Vec<(String, String)>,
        /// Its body, transfer coding removed.
        pub body: Vec<u8>,
    }

    impl RawAnswer {
        /// The first value of the header `name`.
        pub fn header(&self, name: &str) -> Option<&str> {
            let found = self.headers.iter().find(|(found, _)| found == name);
            found.map(|(_, value)| value.as_str())
        }
    }

    /// A connection that takes any bytes.
    #[derive(Debug)]
    pub struct RawConnection {
        socket: TcpStream,
        unread: Vec<u8>,
    }

    impl RawConnection {
        /// Connects.
        pub async fn open(server: SocketAddr) -> Self {
            let socket = TcpStream::connect(server).await.expect("a connection");
            socket.set_nodelay(true).expect("no delay");
            Self { socket, unread: Vec::new() }
        }

        /// Sends bytes.
        pub async fn write(&mut self, bytes: &[u8]) {
            self.socket.write_all(bytes).await.expect("the server takes the bytes");
        }

        /// Sends bytes; a server that answers before it has read them all may close.
        pub async fn write_or_be_closed(&mut self, bytes: &[u8]) {
            let _ = self.socket.write_all(bytes).await;
        }

        /// Reads the next answer head, interim ones included: status and headers.
        pub async fn read_head(&mut self) -> (u16, Vec<(String, String)>) {
            let end = loop {
                if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                    break end + 4;
                }
                assert!(self.read_more().await, "the connection ended in an answer's head");
            };
            let head: Vec<u8> = self.unread.drain(..end).collect();
            let head = String::from_utf8_lossy(&head).into_owned();
            let mut lines = head.split("\r\n");
            let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
            let headers = lines.filter_map(|line| line.split_once(": "));
            let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
            (status.expect("a status line"), headers.collect())
        }

        /// Reads one whole answer.
        pub async fn read_answer(&mut self, to_head: bool) -> RawAnswer {
            let mut interim = Vec::new();
            let (status, headers) = loop {
                let (status, headers) = self.read_head().await;
                if status >= 200 {
                    break (status, headers);
                }
                interim.push(status);
            };
            let mut answer = RawAnswer { interim, status, headers, body: Vec::new() };
            if to_head || status == 204 || status == 304 {
                return answer;
            }
            answer.body = if answer.header("transfer-encoding") == Some("chunked") {
                self.read_chunked().await
            } else if let Some(length) = answer.header("content-length") {
                self.read_exactly(length.parse().expect("a length")).await
            } else {
                while self.read_more().await {}
                std::mem::take(&mut self.unread)
            };
            answer
        }

        /// Whether the server has closed the connection, waiting until it has.
        pub async fn is_closed(&mut self) -> bool {
            self.unread.clear();
            !self.read_more().await
        }

        async fn read_chunked(&mut self) -> Vec<u8> {
            let mut body = Vec::new();
            loop {
                let line = self.read_line().await;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(size, 16).expect("a chunk size");
                if size == 0 {
                    // Trailers, up to the empty line.
                    while !self.read_line().await.is_empty() {}
                    return body;
                }
                body.extend(self.read_exactly(size).await);
                assert_eq!(self.read_line().await, "");
            }
        }

        async fn read_line(&mut self) -> String {
            loop {
                if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                    let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                    return String::from_utf8_lossy(&line[..end]).into_owned();
                }
                assert!(self.read_more().await, "the connection ended in a line");
            }
        }

        async fn read_exactly(&mut self, length: usize) -> Vec<u8> {
            while self.unread.len() < length {
                assert!(self.read_more().await, "the connection ended in a body");
            }
            self.unread.drain(..length).collect()
        }

        async fn read_more(&mut self) -> bool {
            let mut buffer = vec![0; 64 << 10];
            let read = poll::within("bytes of an answer", self.socket.read(&mut buffer)).await;
            match read {
                Ok(0) | Err(_) => false,
                Ok(count) => {
                    self.unread.extend_from_slice(&buffer[..count]);
                    true
                }
            }
        }
    }

    /// Sends a whole request over a new connection and reads the answer.
    pub async fn exchange(server: SocketAddr, request: &[u8]) -> RawAnswer {
        let mut connection = RawConnection::open(server).await;
        connection.write_or_be_closed(request).await;
        connection.read_answer(request.starts_with(b"HEAD ")).await
    }
}

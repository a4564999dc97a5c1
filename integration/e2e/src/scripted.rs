//! An engine whose every byte the test decides, and when it leaves.
//!
//! It hands each HTTP/1.1 request to the test, which answers it piece by piece. One request a connection,
//! so that closing it says nothing about others.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::poll;

/// The engine. Dropping it closes its port.
#[derive(Debug)]
pub struct ScriptedEngine {
    address: SocketAddr,
    requests: mpsc::UnboundedReceiver<ServedRequest>,
    task: JoinHandle<()>,
}

/// What a request looked like when it reached the engine.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The request line.
    pub line: String,
    /// The headers, names in lower case, in order. Bytes that are not UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    /// The body, transfer coding removed.
    pub body: Vec<u8>,
}

impl Seen {
    /// The values of the header `name`.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let found = self.headers.iter().filter(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str()).collect()
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct ServedRequest {
    /// What was asked.
    pub seen: Seen,
    socket: TcpStream,
    unread: Vec<u8>,
}

impl ScriptedEngine {
    /// Listens on a port that the system chooses.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (sender, requests) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Some(request) = read_head(socket).await {
                        // Nobody receives once the engine is dropped.
                        let _ = sender.send(request);
                    }
                });
            }
        });
        Self { address, requests, task }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request, as soon as its head is there.
    pub async fn next_head(&mut self) -> ServedRequest {
        let next = poll::within("a request at the engine", self.requests.recv()).await;
        next.expect("the engine listens")
    }

    /// The next request, with its body.
    pub async fn next(&mut self) -> ServedRequest {
        let mut request = self.next_head().await;
        request.read_body().await;
        request
    }

    /// Answers every request with `{}` and remembers it.
    pub fn record(self) -> Recorder {
        let Self { address, .. } = self;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let mut engine = self;
        let task = tokio::spawn(async move {
            while let Some(mut request) = engine.requests.recv().await {
                let record = Arc::clone(&record);
                tokio::spawn(async move {
                    if request.try_read_body().await.is_some() {
                        record.lock().expect("no panic").push(request.seen.clone());
                        request.answer(200, "application/json", b"{}").await;
                    }
                });
            }
        });
        Recorder { address, seen, task }
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An engine that answers by itself and remembers what it was asked.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Recorder {
    /// Starts one.
    pub async fn start() -> Self {
        ScriptedEngine::start().await.record()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was asked since the last call.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().expect("no panic"))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ServedRequest {
    /// Reads the body to its end.
    pub async fn read_body(&mut self) {
        let read = poll::within("the request's body", self.try_read_body()).await;
        read.expect("a whole body");
    }

    async fn try_read_body(&mut self) -> Option<()> {
        if self.seen.header("transfer-encoding") == ["chunked"] {
            loop {
                let size = usize::from_str_radix(&self.read_line().await?, 16).ok()?;
                let chunk = self.read_exactly(size + 2).await?;
                self.seen.body.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    return Some(());
                }
            }
        }
        if let Some(length) = self.seen.header("content-length").first() {
            let length = length.parse().ok()?;
            self.seen.body = self.read_exactly(length).await?;
        }
        Some(())
    }

    async fn read_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return String::from_utf8(line[..end].to_vec()).ok();
            }
            read_more(&mut self.socket, &mut self.unread).await?;
        }
    }

    async fn read_exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.unread.len() < length {
            read_more(&mut self.socket, &mut self.unread).await?;
        }
        Some(self.unread.drain(..length).collect())
    }

    /// Sends the answer's head; the body follows in chunks.
    pub async fn send_head(&mut self, status: u16, headers: &[(&str, &str)]) {
        let mut head = format!("HTTP/1.1 {status} Scripted\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
        self.write(head.as_bytes()).await;
    }

    /// Sends one chunk of the body, in one write.
    pub async fn send_chunk(&mut self, chunk: &[u8]) {
        let mut bytes = format!("{:x}\r\n", chunk.len()).into_bytes();
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
        self.write(&bytes).await;
    }

    /// Ends the body and closes the connection.
    pub async fn finish(mut self) {
        self.write(b"0\r\n\r\n").await;
        let _ = self.socket.shutdown().await;
    }

    /// Sends a whole answer.
    pub async fn answer(mut self, status: u16, content_type: &str, body: &[u8]) {
        self.send_head(status, &[("content-type", content_type)]).await;
        if !body.is_empty() {
            self.send_chunk(body).await;
        }
        self.finish().await;
    }

    /// Sends a whole answer whose length its head names.
    pub async fn answer_with_length(mut self, content_type: &str, body: &[u8]) {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 200 Scripted\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
            connection: close\r\n\r\n"
        );
        self.write(head.as_bytes()).await;
        self.write(body).await;
        let _ = self.socket.shutdown().await;
    }

    /// Resets the connection.
    pub fn reset(self) {
        let _ = self.socket.set_zero_linger();
    }

    /// Whether the other side has closed the connection, waiting until it has.
    pub async fn is_abandoned(&mut self) -> bool {
        let mut byte = [0];
        let read = poll::within("the end of the connection", self.socket.read(&mut byte)).await;
        matches!(read, Ok(0) | Err(_))
    }

    async fn write(&mut self, bytes: &[u8]) {
        // A peer that left shows in what the test looks at.
        let _ = self.socket.write_all(bytes).await;
    }
}

async fn read_head(mut socket: TcpStream) -> Option<ServedRequest> {
    socket.set_nodelay(true).ok()?;
    let mut unread = Vec::new();
    let head_end = loop {
        if let Some(end) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        read_more(&mut socket, &mut unread).await?;
    };
    let head: Vec<u8> = unread.drain(..head_end).collect();
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let seen = Seen { line, headers, body: Vec::new() };
    Some(ServedRequest { seen, socket, unread })
}

async fn read_more(socket: &mut TcpStream, unread: &mut Vec<u8>) -> Option<()> {
    let count = socket.read_buf(unread).await.ok()?;
    (count > 0).then_some(())
}

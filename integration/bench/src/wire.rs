//! HTTP/1.1 over blocking sockets, with as little of its own cost as possible.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// No answer takes longer, or something is wrong.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Says nothing of cached tokens, as vLLM by default: a constant would contradict every prediction.
const ANSWER: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}"#;

/// A client with one connection.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects to `address`.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, reader })
    }

    /// Posts a whole request and reads the whole answer, which must be 200.
    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)?;
        let head = Head::read(&mut self.reader)?;
        if !head.first_line.contains(" 200 ") {
            return Err(io::Error::other(format!("answered {}", head.first_line.trim())));
        }
        io::copy(&mut (&mut self.reader).take(head.content_length), &mut io::sink())?;
        Ok(())
    }
}

/// A chat completion request with `body`, ready to be written.
pub fn post(body: &str) -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
        content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Answers every request with the same JSON.
pub struct Responder {
    address: SocketAddr,
}

impl Responder {
    /// Listens on a port that the system picks, at all loopback addresses.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("0.0.0.0:0")?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that breaks ends its thread, and Envoy opens another.
                std::thread::spawn(move || answer_all(stream));
            }
        });
        Ok(Self { address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    );
    loop {
        let head = Head::read(&mut reader)?;
        io::copy(&mut (&mut reader).take(head.content_length), &mut io::sink())?;
        stream.write_all(answer.as_bytes())?;
    }
}

struct Head {
    first_line: String,
    content_length: u64,
}

impl Head {
    fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut first_line = String::new();
        if reader.read_line(&mut first_line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut content_length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let field = line.trim_end();
            if field.is_empty() {
                return Ok(Self { first_line, content_length });
            }
            if let Some((name, value)) = field.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                content_length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
    }
}

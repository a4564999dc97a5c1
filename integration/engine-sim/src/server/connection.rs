//! Accepted sockets, and the switch that resets one.
//!
//! Handlers cannot reach the socket that they answer on. Each connection therefore carries a
//! [`ConnectionControl`], which handlers get as connect info: once it is switched, the next read
//! or write fails and the socket closes with a TCP reset instead of a normal end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// A connection's reset switch.
#[derive(Clone, Debug, Default)]
pub struct ConnectionControl {
    reset: Arc<AtomicBool>,
}

impl ConnectionControl {
    /// Makes the connection end with a TCP reset at its next read or write. On HTTP/2 this takes
    /// every stream of the connection along.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
    }

    fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }
}

impl Connected<IncomingStream<'_, SimListener>> for ConnectionControl {
    fn connect_info(stream: IncomingStream<'_, SimListener>) -> Self {
        stream.io().control.clone()
    }
}

/// Accepts connections that can be reset.
#[derive(Debug)]
pub struct SimListener {
    inner: TcpListener,
}

impl SimListener {
    /// Accepts from `inner`.
    #[must_use]
    pub fn new(inner: TcpListener) -> Self {
        Self { inner }
    }
}

impl Listener for SimListener {
    type Io = SimStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (SimStream, SocketAddr) {
        // axum's own listener retries failed accepts with a pause.
        let (inner, address) = Listener::accept(&mut self.inner).await;
        // Tokens are small writes that must not wait for each other. A socket that refuses the
        // option still works.
        let _ = inner.set_nodelay(true);
        let control = ConnectionControl::default();
        (SimStream { inner, control }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A connection that can be reset.
#[derive(Debug)]
pub struct SimStream {
    inner: TcpStream,
    control: ConnectionControl,
}

impl SimStream {
    fn check(&self) -> io::Result<()> {
        if !self.control.is_reset() {
            return Ok(());
        }
        // With zero linger, closing sends a reset. If the option fails the close is a normal one.
        let _ = self.inner.set_zero_linger();
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

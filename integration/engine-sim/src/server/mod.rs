//! The engine behind vLLM's HTTP surface, on a scaled wall clock.
//!
//! What comes in: OpenAI-style requests over HTTP/1.1 or cleartext HTTP/2. What goes out: token
//! streams and JSON answers at the times that [`crate::model`] computes, vLLM's metrics, and under
//! `/sim/` what tests and benches want to know or to break.
//!
//! One process serves any number of engines, one port each. One task an engine owns the
//! [`crate::model::Engine`] and sleeps until its next event; handlers talk to it over a bounded
//! channel. Tokens that come due together leave in one write a request.
//!
//! Modules in the order in which a request passes through them:
//!
//! 1. [`config`]: what to serve, checked.
//! 2. [`connection`]: accepted sockets, and the switch that resets one.
//! 3. [`routes`]: the URL space.
//! 4. [`fault`]: which requests to break, and how; [`garbage`]: with what.
//! 5. [`request`]: the body, checked.
//! 6. [`tokens`]: the prompt's tokens; the one seam for a real tokenizer.
//! 7. [`driver`]: the engine's task, what it is asked (`command`) and its clock ([`clock`]).
//! 8. [`response`]: SSE and JSON.
//! 9. [`error`]: failures in the API's own shape.
//! 10. [`record`], [`metrics`]: what was served, request by request and in sum; bodies are hashed
//!     as they leave.

pub mod clock;
mod command;
pub mod config;
pub mod connection;
pub mod driver;
pub mod error;
pub mod fault;
pub mod garbage;
pub mod metrics;
pub mod record;
pub mod request;
pub mod response;
pub mod routes;
mod sent;
mod sim_routes;
pub mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use self::config::{ConfigError, ServerConfig};
pub use self::tokens::{BytesTokenizer, OutputWord, PromptError, PromptTokenizer, TokenizedPrompt};

use self::connection::{ConnectionControl, SimListener};
use self::driver::EngineHandle;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A metric cannot be set up, for example because of the model's name.
    #[error(transparent)]
    Metrics(#[from] metrics::MetricsError),
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// A server that runs; dropping it stops it.
#[derive(Debug)]
pub struct RunningServer {
    addresses: Vec<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

impl RunningServer {
    /// Where the engines listen, in order.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Starts every engine of `config` on the current tokio runtime.
///
/// # Errors
/// When the configuration is wrong or an address cannot be bound; nothing is left running then.
pub async fn serve(
    config: ServerConfig,
    tokenizer: Arc<dyn PromptTokenizer>,
) -> Result<RunningServer, ServeError> {
    config.check()?;
    let config = Arc::new(config);
    let mut server = RunningServer { addresses: Vec::new(), tasks: Vec::new() };
    for &address in &config.listen {
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let local = listener.local_addr()?;
            Ok((listener, local))
        };
        let (listener, local) =
            bound.await.map_err(|source| ServeError::Bind { address, source })?;
        let (handle, driver) = EngineHandle::start(Arc::clone(&config), Arc::clone(&tokenizer))?;
        server.tasks.push(tokio::spawn(driver));
        let app = routes::router(handle).into_make_service_with_connect_info::<ConnectionControl>();
        server.tasks.push(tokio::spawn(async move {
            // `axum::serve` ends only with its task.
            let _ = axum::serve(SimListener::new(listener), app).await;
        }));
        server.addresses.push(local);
    }
    Ok(server)
}

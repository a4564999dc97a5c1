//! The Envoys that are compared.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use warmpath_harness::{
    Bootstrap, EnvoyOptions, EnvoyProcess, FilterOptions, HarnessError, Variant,
};

/// The filter has its tokenizer by then, or something is wrong.
const BUNDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Backends that the filter chooses from; all are the one responder.
const BACKENDS: u16 = 8;

/// What sits in Envoy's filter chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: bodies stream through.
    Plain,
    /// Envoy's native buffer filter: what waiting for the body costs by itself.
    Buffer,
    /// Warmpath.
    Warmpath,
    /// Another build of it.
    Other,
}

impl Kind {
    /// Its name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain Envoy",
            Self::Buffer => "buffer filter",
            Self::Warmpath => "Warmpath",
            Self::Other => "other build",
        }
    }
}

/// One running Envoy.
pub struct Arm {
    /// What it runs.
    pub kind: Kind,
    /// The process.
    pub envoy: EnvoyProcess,
}

/// Starts them in front of `responder`, with one for the module `other` if it is given, and waits for the
/// filter's tokenizer.
pub async fn start(responder: SocketAddr, other: Option<&Path>) -> anyhow::Result<Vec<Arm>> {
    // Loopback addresses of their own make eight backends of one listener.
    let backends: Vec<SocketAddr> = (1..=BACKENDS)
        .map(|host| SocketAddr::from(([127, 0, 0, host as u8], responder.port())))
        .collect();
    let variant = Variant::OverrideHost;
    let plain = EnvoyOptions { concurrency: 1, ..EnvoyOptions::plain(variant, &backends) };
    let mut buffer = plain.clone();
    buffer.filter = Some(FilterOptions::built("kv_cost")?);
    let warmpath = EnvoyOptions { edit: |_| Ok(()), ..buffer.clone() };
    buffer.edit = use_buffer_filter;
    let mut kinds =
        vec![(Kind::Plain, plain), (Kind::Buffer, buffer), (Kind::Warmpath, warmpath.clone())];
    if let Some(wasm) = other {
        let filter = FilterOptions { wasm: wasm.to_owned(), ..FilterOptions::built("kv_cost")? };
        kinds.push((Kind::Other, EnvoyOptions { filter: Some(filter), ..warmpath }));
    }
    let mut arms = Vec::new();
    for (kind, options) in kinds {
        let envoy = EnvoyProcess::start(&options)
            .await
            .with_context(|| format!("the Envoy with {} did not start", kind.label()))?;
        arms.push(Arm { kind, envoy });
    }
    for arm in arms.iter().filter(|arm| matches!(arm.kind, Kind::Warmpath | Kind::Other)) {
        // One VM for the worker, and one for Envoy's main thread.
        let loaded = arm.envoy.wait_for_bundles(2, BUNDLE_TIMEOUT).await;
        loaded.with_context(|| format!("the end of Envoy's log:\n{}", arm.envoy.log()))?;
    }
    Ok(arms)
}

fn use_buffer_filter(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    bootstrap.replace_filter(json!({
        "name": "envoy.filters.http.buffer",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
            "max_request_bytes": 16_777_216,
        },
    }))
}

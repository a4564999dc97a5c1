//! The proxy-wasm filter: Envoy's callbacks on one side, `warmpath-core` on the other.
//!
//! - `root`: the plugin's life: configuration, the tick
//! - `plugin`: one routing configuration, for its streams and its root context
//! - `bundles`: fetches the models' bundles by callout, until each is there
//! - `scrape`: reads the engines' metrics by callout, in one VM
//! - `peers`: tells other Envoys what this VM does, by callout
//! - `stream`: one HTTP request, from its headers to its end
//! - `backlog`: what answers taught, taken in after they have left
//! - `outcome`: what an answer's head and Envoy's flags say
//! - `path`: which paths are internal
//! - `admin`: the internal endpoints
//! - `vm`: what all plugins and streams of this VM share
//! - `stats`: Envoy's stats, resolved once
//! - `host`: the only file that calls the host
//!
//! A panic here is a trap that cuts every stream of the worker, so nothing here may panic.

// `proxy_wasm::main!` exports the module's entry point, undocumented.
#![allow(unsafe_code, reason = "the SDK's macro declares an extern function")]
#![deny(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unreachable
)]

mod admin;
mod backlog;
mod bundles;
mod host;
mod outcome;
mod path;
mod peers;
mod plugin;
mod root;
mod scrape;
mod stats;
mod stream;
mod vm;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(root::Root::default()));
}}

//! The internal endpoints, on a listener of their own: status, explanations, pushed backends, and what other
//! Envoys tell.
//!
//! They show and change the newest routing configuration of this VM, or the one that the query names
//! (`?name=`). Paths that are none of these pass to the listener's own routes, which serve bundles.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use serde_json::{Value, json};
use warmpath_core::endpoints;
use warmpath_core::metrics::Metric;
use warmpath_core::route::Router;
use warmpath_core::status::{self, Known};

use crate::backlog;
use crate::host::{self, HostStore};
use crate::peers::{self, ADDRESS_HEADER, ENVOY_HEADER, Greeting};
use crate::plugin::Plugin;
use crate::stats::ModelStats;
use crate::vm::Vm;

const JSON: &str = "application/json";

/// The page that shows the status; it asks for the JSON itself.
const PAGE: &[u8] = include_bytes!("page.html");

/// What the page may do: run what is in it and ask this listener. It loads nothing, and no other page
/// frames it.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Longest body of a request for an endpoint here, in bytes: as long as a request that is explained.
const BODY_BYTES_MAX: usize = 64 << 20;

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// All endpoints.
    Everything,
    /// Those that other Envoys use.
    Peers,
}

/// What a request is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Endpoint {
    /// None of the filter's.
    #[default]
    Other,
    Page,
    Status,
    /// Explains a request with this path.
    Explain(String),
    Push,
    /// Says who this Envoy is, or takes in what another one did.
    Hello,
    Peer,
    /// A known path, asked with another method than the one given.
    WrongMethod(&'static str),
}

impl Endpoint {
    fn of(serves: Serves, method: &[u8], path: &str) -> Self {
        let (path, _) = path.split_once('?').unwrap_or((path, ""));
        let Some(rest) = path.strip_prefix("/_warmpath") else { return Self::Other };
        if serves == Serves::Peers && rest != "/peers" {
            return Self::Other;
        }
        let (endpoint, wanted) = match rest {
            "/peers" if method == b"POST" => return Self::Peer,
            "/peers" => (Self::Hello, "GET"),
            "" | "/" => (Self::Page, "GET"),
            "/status" => (Self::Status, "GET"),
            "/backends" => (Self::Push, "PUT"),
            _ => match rest.strip_prefix("/explain").filter(|rest| rest.starts_with('/')) {
                Some(explained) => (Self::Explain(explained.to_owned()), "POST"),
                None => return Self::Other,
            },
        };
        if method == wanted.as_bytes() { endpoint } else { Self::WrongMethod(wanted) }
    }
}

/// One request of an operator, or of another Envoy.
pub struct Admin {
    serves: Serves,
    endpoint: Endpoint,
    name: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    answered: bool,
}

impl Admin {
    /// A request before its headers.
    pub fn new(serves: Serves) -> Self {
        Self { serves, endpoint: Endpoint::Other, name: None, headers: Vec::new(), answered: false }
    }

    fn error(&mut self, status: u32, message: &str, more: &[(&str, &str)]) -> Action {
        let body = json!({ "error": { "message": message, "code": status } });
        self.answer(status, JSON, more, body.to_string().as_bytes())
    }

    fn answer(
        &mut self,
        status: u32,
        content_type: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Action {
        self.answered = true;
        host::answer(status, content_type, more, body);
        Action::Pause
    }

    fn json(&mut self, value: serde_json::Result<Value>) -> Action {
        match value {
            Ok(value) => self.answer(
                200,
                JSON,
                &[("cache-control", "no-store")],
                value.to_string().as_bytes(),
            ),
            Err(_) => self.error(500, "the answer could not be written", &[]),
        }
    }

    fn plugin(&self) -> Option<Rc<Plugin>> {
        Vm::get().newest(self.name.as_deref())
    }

    fn serve(&mut self, body: &[u8]) -> Action {
        if self.endpoint == Endpoint::Page {
            let headers = [("cache-control", "no-cache"), ("content-security-policy", PAGE_POLICY)];
            return self.answer(200, "text/html; charset=utf-8", &headers, PAGE);
        }
        let Some(plugin) = self.plugin() else {
            return self.error(503, "no routing configuration of that name is loaded", &[]);
        };
        match std::mem::take(&mut self.endpoint) {
            Endpoint::Status => self.json(status(&plugin)),
            Endpoint::Explain(path) => {
                let session = plugin.config.session_header.as_ref().and_then(|header| {
                    let found = self.headers.iter().find(|(name, _)| name == header);
                    found.map(|(_, value)| value.clone())
                });
                self.json(explain(&plugin, &path, body, session.as_deref()))
            }
            Endpoint::Push => self.push(&plugin, body),
            Endpoint::Hello | Endpoint::Peer if plugin.vm.teller().is_none() => {
                self.error(409, "the configuration has no `peers`", &[])
            }
            Endpoint::Hello => self.greet(&plugin.vm),
            Endpoint::Peer => match peers::take_in(&plugin.vm, body) {
                Ok(()) => self.greet(&plugin.vm),
                Err(error) => self.error(400, &error.to_string(), &[]),
            },
            Endpoint::Other | Endpoint::Page | Endpoint::WrongMethod(_) => Action::Continue,
        }
    }

    /// Tells a peer whom it has reached.
    fn greet(&mut self, vm: &Vm) -> Action {
        let Some(Greeting { envoy, address }) = Greeting::own(vm) else {
            return self.error(503, "the shared store is busy: try again", &[("retry-after", "1")]);
        };
        let headers = [(ENVOY_HEADER, envoy.as_str()), (ADDRESS_HEADER, address.as_str())];
        let said = json!({ "envoy": envoy, "address": address });
        self.answer(200, JSON, &headers, said.to_string().as_bytes())
    }

    fn push(&mut self, plugin: &Plugin, body: &[u8]) -> Action {
        if !plugin.config.push {
            return self.error(
                409,
                "the configuration does not let backends be pushed (`push`)",
                &[],
            );
        }
        let pushed = match plugin.config.parse_push(body, host::now()) {
            Ok(pushed) => pushed,
            Err(error) => return self.error(400, &error.to_string(), &[]),
        };
        if endpoints::push(&HostStore, &plugin.config, &pushed).is_err() {
            plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
            return self.error(503, "the shared store is busy: try again", &[("retry-after", "1")]);
        }
        plugin.refresh();
        let names: Vec<&str> = pushed.iter().map(|backend| backend.name.as_str()).collect();
        log::info!("warmpath: {} backends pushed: {}", names.len(), names.join(", "));
        self.json(Ok(json!({ "pushed": names })))
    }
}

fn status(plugin: &Plugin) -> serde_json::Result<Value> {
    backlog::settle(plugin);
    let now = host::now();
    plugin.vm.look_at_peers(now);
    let stats = &plugin.vm.stats;
    let loaded: Vec<bool> = plugin
        .models
        .try_borrow()
        .map(|models| models.iter().map(Option::is_some).collect())
        .unwrap_or_default();
    let known = Known {
        bundles_loaded: &loaded,
        decisions: stats.decisions(),
        tokens: plugin.model_stats.iter().map(ModelStats::tokens).collect(),
        tree_blocks: (
            stats.total(Metric::IndexBlocksAdded),
            stats.total(Metric::IndexBlocksEvicted),
        ),
    };
    let live = plugin.live(now);
    match plugin.vm.ledger.try_borrow() {
        Ok(ledger) => serde_json::to_value(status::status(&HostStore, &live, &ledger, known, now)),
        Err(_) => Ok(Value::Null),
    }
}

fn explain(
    plugin: &Plugin,
    path: &str,
    body: &[u8],
    session: Option<&[u8]>,
) -> serde_json::Result<Value> {
    let now = host::now();
    plugin.vm.look_at_peers(now);
    let live = plugin.live(now);
    let (Ok(models), Ok(ledger)) = (plugin.models.try_borrow(), plugin.vm.ledger.try_borrow())
    else {
        return Ok(Value::Null);
    };
    let (random, turn) = plugin.vm.draw();
    let router = Router {
        config: &live.config,
        models: &models,
        store: &HostStore,
        ledger: &ledger,
        reported: &live.reported,
        explorer: None,
        now,
        random,
        turn,
    };
    serde_json::to_value(router.explain(path, body, session))
}

impl Context for Admin {}

impl HttpContext for Admin {
    fn on_http_request_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        self.headers = host::request_headers();
        let header = |name: &str| {
            let found = self.headers.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let path = String::from_utf8_lossy(&header(":path")).into_owned();
        self.endpoint = Endpoint::of(self.serves, &header(":method"), &path);
        self.name = query_name(&path);
        match self.endpoint {
            Endpoint::Other => Action::Continue,
            Endpoint::WrongMethod(wanted) => {
                self.error(405, &format!("this takes {wanted}"), &[("allow", wanted)])
            }
            _ if end_of_stream => self.serve(&[]),
            _ => Action::Pause,
        }
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        if self.answered {
            return Action::Pause;
        }
        if self.endpoint == Endpoint::Other {
            return Action::Continue;
        }
        if body_size > BODY_BYTES_MAX {
            return self.error(413, "the body is longer than 64 MiB", &[]);
        }
        if !end_of_stream {
            return Action::Pause;
        }
        self.serve(&host::request_body(BODY_BYTES_MAX).unwrap_or_default())
    }

    fn on_http_request_trailers(&mut self, _num_trailers: usize) -> Action {
        if self.answered || self.endpoint == Endpoint::Other {
            return Action::Continue;
        }
        self.serve(&host::request_body(BODY_BYTES_MAX).unwrap_or_default())
    }
}

/// The configuration that the query names.
fn query_name(path: &str) -> Option<String> {
    let (_, query) = path.split_once('?')?;
    let value = query.split('&').find_map(|pair| pair.strip_prefix("name="))?;
    Some(String::from_utf8_lossy(&crate::path::percent_decoded(value.as_bytes())).into_owned())
}

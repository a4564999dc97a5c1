//! One HTTP request, from its headers to its end.
//!
//! Headers are held until the body is there; then the decision is made, its headers are set, and
//! the request goes on. The response passes untouched and its chunks are only looked at, unless the
//! filter asked for usage that the client did not ask for.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use warmpath_core::answer::{Framing, UsageScanner};
use warmpath_core::ask;
use warmpath_core::config::{Backend, StreamedUsage};
use warmpath_core::dispatch::{Dispatched, Outcome, Verdict, Writer};
use warmpath_core::ids::BackendIndex;
use warmpath_core::metrics::{Metric, Reason};
use warmpath_core::parity;
use warmpath_core::request::{self, Api};
use warmpath_core::route::{self, Decision, Pick, Router};
use warmpath_core::store::View;
use warmpath_core::withhold::Withholder;

use crate::host::{self, HostStore};
use crate::root::Plugin;

/// Header by which a `cluster_header` route finds the picked backend's cluster.
const CLUSTER_HEADER: &str = "x-warmpath-cluster";

/// Header by which an `override_host` policy finds the picked backend, and where to retry.
const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";

/// Clients' headers of this name or prefix are removed: only the filter sets them.
const OWN_HEADER_PREFIX: &str = "x-warmpath-";

/// A path with this segment is internal, and never served on a listener with this filter.
const INTERNAL_SEGMENT: &[u8] = b"_warmpath";

/// Headers that vouch for a body's bytes: with one of them the body stays as it is.
const DIGEST_HEADERS: [&str; 5] =
    ["content-digest", "content-md5", "digest", "repr-digest", "x-amz-content-sha256"];

/// Endpoints named for retries; Envoy consumes one an attempt.
const ENDPOINTS_MAX: usize = 4;

/// Envoy's response flags, as bits of the attribute `response.flags`.
mod flags {
    /// No healthy upstream, request timeout, remote reset, connect failure, connection end, protocol
    /// error (a chunked answer that breaks off), unresolved name.
    pub const BACKEND_FAILED: u64 = 0x2 | 0x4 | 0x10 | 0x20 | 0x40 | 0x80_0000 | 0x400_0000;
    /// The client's connection ended, its stream was reset, it broke the protocol, or the stream was
    /// silent for too long, which either side may have caused.
    pub const CLIENT_LEFT: u64 = 0x4000 | 0x1000_0000 | 0x4_0000 | 0x1_0000;
}

/// One request.
pub struct Stream {
    plugin: Rc<Plugin>,
    path: String,
    session_bytes: Option<Vec<u8>>,
    has_content_length: bool,
    has_digest: bool,
    decided: bool,
    /// Whether the body was made to ask for usage.
    has_asked: bool,
    dispatched: Option<Dispatched>,
    status: Option<u16>,
    scanner: Option<UsageScanner>,
    withholder: Option<Withholder>,
    first_byte_seen: bool,
    is_whole: bool,
}

impl Stream {
    /// A stream before its headers.
    pub fn new(plugin: Rc<Plugin>) -> Self {
        Self {
            plugin,
            path: String::new(),
            session_bytes: None,
            has_content_length: false,
            has_digest: false,
            decided: false,
            has_asked: false,
            dispatched: None,
            status: None,
            scanner: None,
            withholder: None,
            first_byte_seen: false,
            is_whole: false,
        }
    }

    /// Decides on the buffered body.
    fn decide(&mut self) {
        if self.decided {
            return;
        }
        let bytes_max = self.plugin.config.body_bytes_max as usize;
        // No buffer at all is how the host shows an empty body.
        let body = host::request_body(bytes_max).unwrap_or_default();
        let started = host::Instant::now();
        let session_bytes = self.session_bytes.take();
        let session = session_bytes.as_deref();
        self.dispatch(started, |router, path| router.route_in_session(path, &body, session));
        self.ask_for_usage(&body);
        self.plugin.vm.stats.took_us(host::Instant::now().since_us(started));
    }

    /// Makes the request ask for the usage of its answer, where that is configured.
    fn ask_for_usage(&mut self, body: &[u8]) {
        let model_index = self.dispatched.as_ref().and_then(Dispatched::model_index);
        let model = model_index.and_then(|index| self.plugin.config.models.get(index));
        if self.has_digest || model.is_none_or(|it| it.streamed_usage != StreamedUsage::Ask) {
            return;
        }
        let asking = Api::from_path(&self.path).and_then(|api| ask::for_usage(api, body));
        let Some(asking) = asking else { return };
        host::replace_request_body(&asking);
        if self.has_content_length {
            host::set_request_header("content-length", &asking.len().to_string());
        }
        self.has_asked = true;
    }

    /// Decides without the body.
    fn decide_by_load(&mut self, reason: Reason) {
        if !self.decided {
            self.dispatch(host::Instant::now(), |router, _| router.by_load(reason));
        }
    }

    fn dispatch(
        &mut self,
        started: host::Instant,
        decide: impl FnOnce(&Router<'_, View<'_, HostStore>>, &str) -> Decision,
    ) {
        self.decided = true;
        let plugin = Rc::clone(&self.plugin);
        let (Ok(models), Ok(mut ledger)) =
            (plugin.models.try_borrow(), plugin.vm.ledger.try_borrow_mut())
        else {
            return;
        };
        let (random, turn) = plugin.vm.draw();
        let now = started.ms();
        let store = View::new(&HostStore);
        let router = Router {
            config: &plugin.config,
            models: &models,
            store: &store,
            ledger: &ledger,
            now,
            random,
            turn,
        };
        let decision = decide(&router, &self.path);
        set_destination(&plugin, decision.order());
        count_decision(&plugin, &decision);
        let mut writer = Writer { config: &plugin.config, store: &store, ledger: &mut ledger, now };
        let (dispatched, written) = writer.dispatch(decision);
        plugin.vm.stats.written(written);
        self.dispatched = Some(dispatched);
    }

    /// Runs `change` on the write path, with this stream's dispatched request.
    fn write<T>(&self, change: impl FnOnce(&mut Writer<'_, HostStore>) -> T) -> Option<T> {
        let mut ledger = self.plugin.vm.ledger.try_borrow_mut().ok()?;
        Some(change(&mut Writer {
            config: &self.plugin.config,
            store: &HostStore,
            ledger: &mut ledger,
            now: host::now(),
        }))
    }

    fn finish(&mut self) {
        let Some(dispatched) = self.dispatched.take() else { return };
        self.conclude(dispatched);
        self.plugin.flush_stats();
    }

    fn conclude(&mut self, dispatched: Dispatched) {
        let outcome = self.outcome();
        let usage = self.scanner.take().and_then(UsageScanner::finish);
        let result = self.write(|writer| writer.finish(dispatched, outcome, usage));
        let Some((written, verdict)) = result else { return };
        let stats = &self.plugin.vm.stats;
        stats.written(written);
        if outcome == Outcome::BackendFailed {
            stats.add(Metric::BackendFailures, 1);
        }
        if let Some(verdict) = verdict {
            self.judge(&verdict);
        }
    }

    fn judge(&self, verdict: &Verdict) {
        if let Some(stats) = self.plugin.model_stats.get(verdict.model_index) {
            stats.judged(verdict);
        }
        if let Some(model) = self.plugin.config.models.get(verdict.model_index) {
            let (ours, theirs) = (verdict.prompt_tokens, verdict.usage.prompt_tokens);
            if parity::record(&HostStore, &model.name, ours, theirs).is_err() {
                self.plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
            }
        }
    }

    /// Looks at a chunk of the answer, and keeps back what the client did not ask for.
    fn read_chunk(&mut self, chunk_bytes: usize, end_of_stream: bool) {
        let chunk = match chunk_bytes {
            0 => Vec::new(),
            _ => host::response_chunk(chunk_bytes).unwrap_or_default(),
        };
        if let Some(scanner) = &mut self.scanner {
            scanner.push(&chunk);
        }
        let Some(withholder) = &mut self.withholder else { return };
        let mut passing = withholder.push(&chunk);
        if end_of_stream {
            passing.extend(std::mem::take(withholder).finish());
        }
        if passing != chunk {
            host::replace_response_chunk(&passing);
        }
    }

    fn outcome(&self) -> Outcome {
        // An answer that came whole is one, whatever became of the client meanwhile.
        if self.is_whole && matches!(self.status, Some(200..=299)) {
            return Outcome::Answered;
        }
        let flags = response_flags();
        if flags & flags::BACKEND_FAILED != 0 {
            return Outcome::BackendFailed;
        }
        if flags & flags::CLIENT_LEFT != 0 {
            return Outcome::ClientLeft;
        }
        match self.status {
            Some(200..=299) => Outcome::Answered,
            Some(502..=504) => Outcome::BackendFailed,
            Some(_) => Outcome::Refused,
            None => Outcome::ClientLeft,
        }
    }

    /// Gives the credit to the backend that answered.
    fn credit(&self, dispatched: &mut Dispatched) {
        let Some(served) = self.server().filter(|served| Some(*served) != dispatched.picked())
        else {
            return;
        };
        self.plugin.vm.stats.add(Metric::ServedElsewhere, 1);
        if let Some(written) = self.write(|writer| writer.served(dispatched, served)) {
            self.plugin.vm.stats.written(written);
        }
    }

    /// The backend whose answer this is, by its address, else by its cluster.
    fn server(&self) -> Option<BackendIndex> {
        let config = &self.plugin.config;
        let by_address = host::property_text(&["upstream", "address"])
            .and_then(|address| config.backend_by_address(&address));
        by_address.or_else(|| {
            let cluster = host::property_text(&["xds", "cluster_name"])?;
            config.backend_by_cluster(&cluster)
        })
    }
}

/// What the head of an answer says.
struct ResponseHead {
    status: Option<u16>,
    is_encoded: bool,
    framing: Option<Framing>,
}

impl ResponseHead {
    /// In the response headers callback.
    fn read() -> Self {
        let mut head = Self { status: None, is_encoded: false, framing: None };
        for (name, value) in host::response_headers() {
            match name.as_str() {
                ":status" => {
                    head.status = std::str::from_utf8(&value).ok().and_then(|it| it.parse().ok());
                }
                "content-encoding" => head.is_encoded = true,
                "content-type" => head.framing = Framing::from_content_type(&value),
                _ => {}
            }
        }
        head
    }

    fn is_good(&self) -> bool {
        matches!(self.status, Some(200..=299))
    }
}

fn is_failed_by_backend() -> bool {
    response_flags() & flags::BACKEND_FAILED != 0
}

fn response_flags() -> u64 {
    host::property_u64(&["response", "flags"]).unwrap_or(0)
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        let mut content_length = None;
        let plugin = Rc::clone(&self.plugin);
        for (name, value) in host::request_headers() {
            if name == ":path" {
                self.path = String::from_utf8_lossy(&value).into_owned();
            } else if name == "content-length" {
                self.has_content_length = true;
                content_length = std::str::from_utf8(&value).ok().and_then(|it| it.parse().ok());
            } else if DIGEST_HEADERS.contains(&name.as_str()) {
                self.has_digest = true;
            } else if name == ENDPOINT_HEADER || name.starts_with(OWN_HEADER_PREFIX) {
                host::remove_request_header(&name);
            } else if plugin.config.session_header.as_deref() == Some(name.as_str()) {
                self.session_bytes = Some(value);
            }
        }
        if is_internal(&self.path) {
            host::answer_json(404, &request::error_body_at(&self.path, 404, "not found"));
            return Action::Pause;
        }
        // What is not read need not be waited for: uploads stream.
        if let Err(reason) = route::readable_api(&self.plugin.config, &self.path) {
            self.decide_by_load(reason);
            return Action::Continue;
        }
        if end_of_stream {
            self.decide_by_load(Reason::EmptyBody);
            return Action::Continue;
        }
        let bytes_max: u64 = self.plugin.config.body_bytes_max.into();
        if content_length.is_some_and(|bytes: u64| bytes > bytes_max) {
            self.decide_by_load(Reason::BodyTooLarge);
            return Action::Continue;
        }
        Action::Pause
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        if self.decided {
            return Action::Continue;
        }
        if body_size > self.plugin.config.body_bytes_max as usize {
            self.decide_by_load(Reason::BodyTooLarge);
            return Action::Continue;
        }
        if !end_of_stream {
            return Action::Pause;
        }
        self.decide();
        Action::Continue
    }

    fn on_http_request_trailers(&mut self, _num_trailers: usize) -> Action {
        self.decide();
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        let Some(mut dispatched) = self.dispatched.take() else { return Action::Continue };
        self.is_whole = end_of_stream;
        let head = ResponseHead::read();
        self.status = head.status;
        // Envoy's own error pages pass here too; they come from no backend.
        if head.is_good() || !is_failed_by_backend() {
            self.credit(&mut dispatched);
        }
        if dispatched.model_index().is_some() && head.is_good() && !head.is_encoded {
            self.scanner = head.framing.map(UsageScanner::new);
            if self.has_asked && head.framing == Some(Framing::Sse) {
                host::remove_response_header("content-length");
                self.withholder = Some(Withholder::default());
            }
        }
        self.dispatched = Some(dispatched);
        Action::Continue
    }

    fn on_http_response_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        if body_size > 0
            && !self.first_byte_seen
            && let Some(mut dispatched) = self.dispatched.take()
        {
            self.first_byte_seen = true;
            if let Some(written) = self.write(|writer| writer.first_byte(&mut dispatched)) {
                self.plugin.vm.stats.written(written);
            }
            self.dispatched = Some(dispatched);
        }
        if self.scanner.is_some() {
            self.read_chunk(body_size, end_of_stream);
        }
        self.is_whole |= end_of_stream;
        Action::Continue
    }

    fn on_log(&mut self) {
        self.finish();
    }
}

/// Names the picked backend to Envoy, or the fallback cluster where none was picked.
fn set_destination(plugin: &Plugin, order: &[BackendIndex]) {
    let config = &plugin.config;
    let backends: Vec<&Backend> =
        order.iter().take(ENDPOINTS_MAX).filter_map(|index| config.backend(*index)).collect();
    let cluster = backends.first().and_then(|backend| backend.cluster.as_deref());
    if let Some(cluster) = cluster.or(config.fallback_cluster.as_deref()) {
        host::set_request_header(CLUSTER_HEADER, cluster);
    }
    let addresses: Vec<&str> =
        backends.iter().filter_map(|backend| backend.address.as_deref()).collect();
    if !addresses.is_empty() {
        host::set_request_header(ENDPOINT_HEADER, &addresses.join(","));
    }
}

fn count_decision(plugin: &Plugin, decision: &Decision) {
    plugin.vm.stats.decided(decision.reason());
    let Decision::Pick(Pick { prompt, downgraded, .. }) = decision else { return };
    plugin.vm.stats.add(Metric::ResidencyRouteDowngrades, u64::from(*downgraded));
    if let Some(stats) = plugin.model_stats.get(prompt.model_index) {
        stats.placed(prompt.prompt_tokens as u64, prompt.cached_tokens.into());
    }
}

/// Whether any segment of the path is the internal one, in any spelling that a server behind might
/// read so: percent-encoded, in capitals, after backslashes, with parameters.
fn is_internal(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let decoded = percent_decoded(path.as_bytes());
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        name.eq_ignore_ascii_case(INTERNAL_SEGMENT)
    })
}

fn percent_decoded(mut bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    while let Some((&first, rest)) = bytes.split_first() {
        let escape = if first == b'%' { rest.split_first_chunk::<2>() } else { None };
        let value = escape.and_then(|(digits, rest)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, rest))
        });
        let (byte, rest) = value.unwrap_or((first, rest));
        decoded.push(byte);
        bytes = rest;
    }
    decoded
}

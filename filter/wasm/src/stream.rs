//! One HTTP request, from its headers to its end.
//!
//! Headers are held until the body is there; then the decision is made, its headers are set, and
//! the request goes on. The response passes untouched and its chunks are only looked at, unless the
//! filter asked for usage that the client did not ask for.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use warmpath_core::answer::{AnswerKind, Framing, UsageScanner};
use warmpath_core::ask;
use warmpath_core::config::{Backend, Config, Source, StreamedUsage};
use warmpath_core::decision;
use warmpath_core::dispatch::{Dispatched, Outcome, Writer};
use warmpath_core::endpoints;
use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::metrics::{Metric, Reason};
use warmpath_core::request::{self, Api};
use warmpath_core::route::{self, Decision, Pick, Refusal, Router};
use warmpath_core::signals::parse_orca;
use warmpath_core::store::View;
use warmpath_core::withhold::Withholder;

use crate::backlog::{self, Ended};
use crate::host::{self, HostStore};
use crate::outcome::{self, ResponseHead};
use crate::path;
use crate::plugin::Plugin;

/// Header by which a `cluster_header` route finds the picked backend's cluster.
const CLUSTER_HEADER: &str = "x-warmpath-cluster";

/// Header by which an `override_host` policy finds the picked backend, and where to retry.
pub const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";

/// Header by which a server of several engines finds the picked one.
const RANK_HEADER: &str = "x-data-parallel-rank";

/// Clients' headers of this name or prefix are removed: only the filter sets them.
const OWN_HEADER_PREFIX: &str = "x-warmpath-";

/// Headers that vouch for a body's bytes: with one of them the body stays as it is.
const DIGEST_HEADERS: [&str; 5] =
    ["content-digest", "content-md5", "digest", "repr-digest", "x-amz-content-sha256"];

/// Endpoints named for retries; Envoy consumes one an attempt.
const ENDPOINTS_MAX: usize = 4;

/// Header by which a client asks an engine for a load report (ORCA).
const LOAD_FORMAT_HEADER: &str = "endpoint-load-metrics-format";

/// Where a decision is shown to clients.
const DECISION_HEADER: &str = "x-warmpath-decision";

/// Where a decision is shown to access logs, as `wasm.warmpath_decision`.
const DECISION_STATE: &str = "warmpath_decision";

/// One request.
pub struct Stream {
    plugin: Rc<Plugin>,
    path: String,
    session_bytes: Option<Vec<u8>>,
    has_content_length: bool,
    has_digest: bool,
    /// Whether the client asked for a load report itself.
    has_load_format: bool,
    decided: bool,
    /// Whether the request was answered by the filter itself.
    refused: bool,
    /// The decision in words, where it is to be shown.
    note: Option<String>,
    /// Whether a load report was asked for in the client's place.
    has_asked_for_load: bool,
    /// Whether the body was made to ask for usage.
    has_asked_for_usage: bool,
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
            has_load_format: false,
            decided: false,
            refused: false,
            note: None,
            has_asked_for_load: false,
            has_asked_for_usage: false,
            dispatched: None,
            status: None,
            scanner: None,
            withholder: None,
            first_byte_seen: false,
            is_whole: false,
        }
    }

    /// Decides on the buffered body.
    fn decide(&mut self) -> Action {
        if self.decided {
            return Action::Continue;
        }
        let bytes_max = self.plugin.config.body_bytes_max as usize;
        // No buffer at all is how the host shows an empty body.
        let body = host::request_body(bytes_max).unwrap_or_default();
        let started = host::Instant::now();
        let session_bytes = self.session_bytes.take();
        let session = session_bytes.as_deref();
        self.dispatch(started, |router, path| router.route_in_session(path, &body, session));
        if self.refused {
            return Action::Pause;
        }
        self.ask_for_usage(&body);
        self.ask_for_load(started.ms());
        self.plugin.vm.stats.took_us(host::Instant::now().since_us(started));
        Action::Continue
    }

    /// Asks the engine for a load report, if it is time for one.
    fn ask_for_load(&mut self, now: NowMs) {
        if !self.plugin.config.load_reports || self.has_load_format {
            return;
        }
        let Ok(mut ledger) = self.plugin.vm.ledger.try_borrow_mut() else { return };
        let picked = self.dispatched.as_ref().and_then(Dispatched::picked);
        if picked.is_none_or(|it| reports_itself(it) && ledger.asks_report(it.id, now)) {
            host::set_request_header(LOAD_FORMAT_HEADER, "text");
            self.has_asked_for_load = true;
        }
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
        self.has_asked_for_usage = true;
    }

    /// Decides without the body.
    fn decide_by_load(&mut self, reason: Reason) -> Action {
        if !self.decided {
            self.dispatch(host::Instant::now(), |router, _| router.by_load(reason));
        }
        if self.refused { Action::Pause } else { Action::Continue }
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
        let live = plugin.live(now);
        let explorer = plugin.explorer.try_borrow().map(|it| *it).unwrap_or_default();
        if ledger.look_at_peers(&HostStore, now).is_err() {
            plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
        }
        let store = View::new(&HostStore);
        let router = Router {
            config: &live.config,
            models: &models,
            store: &store,
            ledger: &ledger,
            reported: &live.reported,
            explorer: live.config.observe.then_some(&explorer),
            now,
            random,
            turn,
        };
        let decision = decide(&router, &self.path);
        plugin.vm.stats.decided(decision.reason());
        if let Decision::Refusal(refusal) = decision {
            self.refuse(refusal);
            return;
        }
        if let Ok(mut explorer) = plugin.explorer.try_borrow_mut() {
            explorer.note(&decision, now);
        }
        set_destination(&live.config, decision.order());
        count_decision(&plugin, &decision);
        self.show(&decision, &live.config);
        let mut writer = Writer { config: &live.config, store: &store, ledger: &mut ledger, now };
        let (dispatched, written) = writer.dispatch(decision);
        plugin.vm.stats.written(written);
        if ledger.outbox.is_open() {
            plugin.settle_soon();
        }
        self.dispatched = Some(dispatched);
    }

    /// Answers in the place of backends that are all down.
    fn refuse(&mut self, refusal: Refusal) {
        self.refused = true;
        let message = "every backend is failing; try again later";
        let body = request::error_body_at(&self.path, 503, message);
        let seconds = refusal.retry_after_s.to_string();
        host::answer(503, "application/json", &[("retry-after", &seconds)], body.as_bytes());
        self.plugin.flush_stats();
    }

    /// Keeps the decision to be shown, and shows it to access logs.
    fn show(&mut self, decision: &Decision, config: &Config) {
        let shown = config.decisions;
        if !shown.response_header && !shown.filter_state {
            return;
        }
        let note = decision.note(config);
        if shown.filter_state {
            host::set_filter_state(DECISION_STATE, &note);
        }
        self.note = shown.response_header.then_some(note);
    }

    fn finish(&mut self) {
        let Some(mut dispatched) = self.dispatched.take() else { return };
        let plugin = &self.plugin;
        let at = host::now();
        if let Ok(mut ledger) = plugin.vm.ledger.try_borrow_mut() {
            dispatched.release(&mut ledger);
            // A follow-up may come at once, at another worker: its backend must not seem busy.
            if ledger.publish(&HostStore, at).is_err() {
                plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
            }
        }
        let (outcome, failure) = outcome::of(self.status, self.is_whole);
        let scanner = self.scanner.take();
        let ended = Ended { plugin: Rc::clone(plugin), dispatched, at, outcome, failure, scanner };
        let can_wait = outcome == Outcome::Answered && !ended.dispatched.is_awaited();
        let waiting = plugin.vm.put_off(ended);
        if can_wait && waiting <= backlog::ENDED_MAX {
            plugin.settle_soon();
        } else {
            backlog::settle(plugin);
        }
    }

    /// Runs `change` on the write path.
    fn write<T>(&self, change: impl FnOnce(&mut Writer<'_, HostStore>) -> T) -> Option<T> {
        self.plugin.write(host::now(), change)
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

    /// Gives the credit to the backend that answered.
    fn credit(&self, dispatched: &mut Dispatched, head: &ResponseHead) {
        let now = host::now();
        let rank = dispatched.picked().and_then(|picked| picked.rank());
        let served = match self.server(head, rank, now) {
            Server::Backend(served) => served,
            Server::Unknown => return,
            Server::Stranger => {
                let attempts = attempts();
                let written = self.write(|writer| writer.served_by_stranger(dispatched, attempts));
                self.plugin.vm.stats.written(written.unwrap_or_default());
                return;
            }
        };
        let picked = dispatched.picked().map(|picked| picked.id);
        if picked == Some(served.id) {
            return;
        }
        if picked.is_some() {
            self.plugin.vm.stats.add(Metric::ServedElsewhere, 1);
        }
        let attempts = attempts();
        let source = dispatched.picked().map(|picked| picked.source);
        let written = self.write(|writer| writer.served(dispatched, &served, attempts));
        if let Some(written) = written {
            self.plugin.vm.stats.written(written);
        }
        if attempts <= 1 && source == Some(Source::Observed) {
            self.plugin.refresh();
        }
    }

    /// Whose answer this is, by its address, else by its cluster; `rank` is the one that was asked for. Where
    /// backends are observed, a new one is learnt.
    fn server(&self, head: &ResponseHead, rank: Option<u32>, now: NowMs) -> Server {
        let live = self.plugin.live(now);
        let config = &live.config;
        let Some(address) = host::property_text(&["upstream", "address"]) else {
            return Server::Unknown;
        };
        let cluster = || host::property_text(&["xds", "cluster_name"]);
        let is_read = || route::readable_api(config, &self.path).is_ok();
        if let Some(known) = config.backend_by_address(&address, rank) {
            if known.source == Source::Observed && head.is_good() && is_read() {
                self.plugin.note_served(&address, now);
            }
            return Server::Backend(Arc::clone(known));
        }
        let Some(cluster) = cluster() else { return Server::Unknown };
        if let Some(known) = config.backend_by_cluster(&cluster, rank) {
            return Server::Backend(Arc::clone(known));
        }
        // One of its engines, but who knows which.
        if config.has_ranks_at(&address, &cluster) {
            return Server::Unknown;
        }
        if !config.observe || Some(&cluster) != config.endpoint_cluster.as_ref() {
            return Server::Stranger;
        }
        // A socket file cannot be named to Envoy.
        if !head.is_good() || !is_read() || address.parse::<std::net::SocketAddr>().is_err() {
            return Server::Stranger;
        }
        self.plugin.note_served(&address, now);
        Server::Backend(Arc::new(endpoints::observed_backend(config, &address)))
    }

    /// Takes in the load report that came with the answer.
    fn hear(&self, dispatched: &Dispatched, value: &[u8]) {
        let Some(backend) = dispatched.credited() else { return };
        let Ok(mut ledger) = self.plugin.vm.ledger.try_borrow_mut() else { return };
        let now = host::now();
        if !reports_itself(backend) || !ledger.wants_report(backend.id, now) {
            return;
        }
        let Some(report) = parse_orca(value) else { return };
        let capacity_tokens = backend.kv_capacity_tokens.map_or(0, NonZeroU32::get);
        let result = ledger.hear(&HostStore, now, backend.id, report, capacity_tokens);
        if result.is_err() {
            self.plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
        }
    }

    /// Shows the decision in the answer's headers.
    fn show_decision(&self, dispatched: &Dispatched) {
        let Some(note) = &self.note else { return };
        let served = dispatched.credited();
        match served.filter(|it| dispatched.picked().is_none_or(|picked| picked.id != it.id)) {
            Some(served) => {
                let name = decision::quoted(&served.name);
                host::set_response_header(DECISION_HEADER, &format!("{note};served={name}"));
            }
            None => host::set_response_header(DECISION_HEADER, note),
        }
    }
}

/// Whether the load reports of `backend` are its own: a server of several engines reports that of any one.
fn reports_itself(backend: &Backend) -> bool {
    backend.data_parallel.is_none()
}

/// How often Envoy tried, with the attempt that is answered.
fn attempts() -> u32 {
    let attempts = host::property_u64(&["upstream", "request_attempt_count"]).unwrap_or(1);
    u32::try_from(attempts).unwrap_or(u32::MAX)
}

/// Whose answer it is.
enum Server {
    Backend(Arc<Backend>),
    /// A host that is no backend.
    Stranger,
    /// Envoy does not say, or answers itself.
    Unknown,
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
            } else if name == LOAD_FORMAT_HEADER {
                self.has_load_format = true;
            } else if DIGEST_HEADERS.contains(&name.as_str()) {
                self.has_digest = true;
            } else if name == ENDPOINT_HEADER || name.starts_with(OWN_HEADER_PREFIX) {
                host::remove_request_header(&name);
            } else if plugin.config.session_header.as_deref() == Some(name.as_str()) {
                self.session_bytes = Some(value);
            }
        }
        if path::is_internal(&self.path) {
            let body = request::error_body_at(&self.path, 404, "not found");
            host::answer(404, "application/json", &[], body.as_bytes());
            return Action::Pause;
        }
        // What is not read need not be waited for: uploads stream.
        if let Err(reason) = route::readable_api(&self.plugin.config, &self.path) {
            return self.decide_by_load(reason);
        }
        if end_of_stream {
            return self.decide_by_load(Reason::EmptyBody);
        }
        let bytes_max: u64 = self.plugin.config.body_bytes_max.into();
        if content_length.is_some_and(|bytes: u64| bytes > bytes_max) {
            return self.decide_by_load(Reason::BodyTooLarge);
        }
        Action::Pause
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        if self.refused {
            return Action::Pause;
        }
        if self.decided {
            return Action::Continue;
        }
        if body_size > self.plugin.config.body_bytes_max as usize {
            return self.decide_by_load(Reason::BodyTooLarge);
        }
        if !end_of_stream {
            return Action::Pause;
        }
        self.decide()
    }

    fn on_http_request_trailers(&mut self, _num_trailers: usize) -> Action {
        self.decide()
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        let Some(mut dispatched) = self.dispatched.take() else { return Action::Continue };
        self.is_whole = end_of_stream;
        let head = ResponseHead::read();
        self.status = head.status;
        // Envoy's own error pages pass here too; they come from no backend.
        if head.is_good() || !outcome::is_failed_by_backend() {
            self.credit(&mut dispatched, &head);
        }
        if let Some(report) = &head.load_report {
            self.hear(&dispatched, report);
            // Who did not ask for it does not get it.
            if self.has_asked_for_load {
                host::remove_response_header(outcome::LOAD_HEADER);
            }
        }
        self.show_decision(&dispatched);
        if dispatched.model_index().is_some() && head.is_good() && !head.is_encoded {
            if let (Some(api), Some(framing)) = (Api::from_path(&self.path), head.framing) {
                self.scanner = Some(UsageScanner::new(framing));
                dispatched.answers_in(AnswerKind { api, framing });
            }
            if self.has_asked_for_usage && head.framing == Some(Framing::Sse) {
                host::remove_response_header("content-length");
                self.withholder = Some(Withholder::default());
            }
        }
        self.dispatched = Some(dispatched);
        Action::Continue
    }

    fn on_http_response_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        if self.scanner.is_some() {
            self.read_chunk(body_size, end_of_stream);
        }
        let has_begun = self.scanner.as_ref().map_or(body_size > 0, UsageScanner::has_begun);
        if has_begun
            && !self.first_byte_seen
            && let Some(mut dispatched) = self.dispatched.take()
        {
            self.first_byte_seen = true;
            let is_good = matches!(self.status, Some(200..=299));
            self.write(|writer| writer.first_byte(&mut dispatched, is_good));
            if dispatched.is_awaited() {
                backlog::settle(&self.plugin);
            } else {
                self.plugin.settle_soon();
            }
            self.dispatched = Some(dispatched);
        }
        self.is_whole |= end_of_stream;
        Action::Continue
    }

    fn on_log(&mut self) {
        self.finish();
    }
}

/// Names the picked backend to Envoy, or the fallback cluster where none was picked, and to a server of
/// several engines.
fn set_destination(config: &Config, order: &[BackendIndex]) {
    let first = order.first().and_then(|index| config.backend(*index));
    let cluster = first.and_then(|backend| backend.cluster.as_deref());
    if let Some(cluster) = cluster.or(config.fallback_cluster.as_deref()) {
        host::set_request_header(CLUSTER_HEADER, cluster);
    }
    let rank = first.and_then(|backend| backend.rank());
    if let Some(rank) = rank {
        host::set_request_header(RANK_HEADER, &rank.to_string());
    }
    // A retry has the same rank; a server without it would refuse the request.
    let has_rank = |backend: &Backend| {
        rank.is_none_or(|rank| backend.data_parallel.is_some_and(|it| rank < it.size))
    };
    let mut addresses: Vec<&str> = Vec::new();
    for backend in order.iter().filter_map(|index| config.backend(*index)) {
        if let Some(address) = backend.address.as_deref()
            && has_rank(backend)
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
        if addresses.len() == ENDPOINTS_MAX {
            break;
        }
    }
    if !addresses.is_empty() {
        host::set_request_header(ENDPOINT_HEADER, &addresses.join(","));
    }
}

fn count_decision(plugin: &Plugin, decision: &Decision) {
    let Decision::Pick(Pick { prompt, downgraded, .. }) = decision else { return };
    plugin.vm.stats.add(Metric::ResidencyRouteDowngrades, u64::from(*downgraded));
    if let Some(stats) = plugin.model_stats.get(prompt.model_index) {
        stats.placed(prompt.prompt_tokens as u64, prompt.cached_tokens.into());
    }
}

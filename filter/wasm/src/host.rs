//! The only file that calls the host.
//!
//! The SDK's calls panic on statuses they do not expect, their `Result` notwithstanding. What is
//! used here and when it would panic, read in proxy-wasm 0.2.5:
//!
//! - `get_current_time`, `set_tick_period`: never in Envoy, which always answers Ok.
//! - `get_buffer`: on BadArgument, which Envoy gives only for a buffer type that the callback does
//!   not have; each function here names the callback it belongs to.
//! - `set_buffer`: on whatever is not Ok. Envoy answers Ok when the whole of a buffer that the
//!   callback has is replaced, which is how it is used here; BadArgument for a part of it, NotFound
//!   for a buffer that the callback does not have.
//! - `get_map_bytes`, `get_map_value_bytes`, `set_map_value_bytes`, `remove_map_value`: on
//!   BadArgument, when the map does not exist: used only inside the map's own callback. The byte
//!   calls take any header value; the string calls would panic on non-UTF-8.
//! - `get_property`: on BadArgument, for a malformed path; all paths are constants.
//! - `get_shared_data`, `set_shared_data`: on statuses that Envoy does not give.
//! - `define_metric`, `record_metric`, `increment_metric`: on BadArgument for a wrong metric type;
//!   types are fixed by the definition.
//! - `dispatch_http_call`: BadArgument and InternalFailure are returned.
//! - `send_http_response`: on BadArgument outside a stream.
//! - `get_metric`: on a status other than NotFound and BadArgument, which Envoy does not give.
//! - `set_property`: on whatever is not Ok. Envoy answers Ok inside a stream unless the name is taken by
//!   a state of another type; the name here is the filter's own, and set once a stream.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType, MetricType, Status};
use warmpath_core::ids::NowMs;
use warmpath_core::metrics::Kind;
use warmpath_core::store::{Cas, Entry, SharedStore, StoreError};

/// Envoy's shared data.
#[derive(Clone, Copy, Debug)]
pub struct HostStore;

impl SharedStore for HostStore {
    fn get(&self, key: &str) -> Result<Option<Rc<Entry>>, StoreError> {
        match hostcalls::get_shared_data(key) {
            Ok((Some(value), cas)) => {
                let cas = cas.and_then(NonZeroU32::new).map(Cas);
                Ok(Some(Rc::new(Entry { value, cas })))
            }
            Ok((None, _)) => Ok(None),
            Err(_) => Err(StoreError::Host),
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        match hostcalls::set_shared_data(key, Some(value), cas.map(|cas| cas.0.get())) {
            Ok(()) => Ok(()),
            Err(Status::CasMismatch) => Err(StoreError::CasMismatch),
            Err(_) => Err(StoreError::Host),
        }
    }
}

/// A moment by the host's wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Self {
        let time = hostcalls::get_current_time().unwrap_or(SystemTime::UNIX_EPOCH);
        Self(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }

    /// As the core has it.
    pub fn ms(self) -> NowMs {
        NowMs(self.0.as_millis().try_into().unwrap_or(u64::MAX))
    }

    /// Microseconds from `earlier` to here; 0 when the clock was set back.
    pub fn since_us(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0).as_micros().try_into().unwrap_or(u64::MAX)
    }
}

/// The host's wall clock.
pub fn now() -> NowMs {
    Instant::now().ms()
}

/// Asks for a tick each `period`.
pub fn set_tick_period(period: Duration) {
    // Envoy answers Ok always.
    let _ = hostcalls::set_tick_period(period);
}

/// Bytes of this VM's linear memory.
pub fn memory_bytes() -> u64 {
    #[cfg(target_arch = "wasm32")]
    return core::arch::wasm32::memory_size(0) as u64 * 65_536;
    #[cfg(not(target_arch = "wasm32"))]
    return 0;
}

/// Defines a metric; `None` when the host refuses.
pub fn define_metric(kind: Kind, name: &str) -> Option<u32> {
    let kind = match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    hostcalls::define_metric(kind, name).ok()
}

/// Adds to a counter. The host refuses 0.
pub fn add_to_metric(id: u32, count: u64) {
    if let Ok(count @ 1..) = i64::try_from(count) {
        let _ = hostcalls::increment_metric(id, count);
    }
}

/// A counter's value, over all workers; 0 when the host does not know it.
pub fn metric(id: u32) -> u64 {
    hostcalls::get_metric(id).unwrap_or(0)
}

/// Sets a gauge or records a value of a histogram.
pub fn record_metric(id: u32, value: u64) {
    let _ = hostcalls::record_metric(id, value);
}

/// In request callbacks: names and values of all headers.
pub fn request_headers() -> Vec<(String, Vec<u8>)> {
    hostcalls::get_map_bytes(MapType::HttpRequestHeaders).unwrap_or_default()
}

/// In request callbacks: sets a header.
pub fn set_request_header(name: &str, value: &str) {
    let _ =
        hostcalls::set_map_value_bytes(MapType::HttpRequestHeaders, name, Some(value.as_bytes()));
}

/// In request callbacks: removes a header; no error when it is absent.
pub fn remove_request_header(name: &str) {
    let _ = hostcalls::remove_map_value(MapType::HttpRequestHeaders, name);
}

/// In the response headers callback: names and values of all headers.
pub fn response_headers() -> Vec<(String, Vec<u8>)> {
    hostcalls::get_map_bytes(MapType::HttpResponseHeaders).unwrap_or_default()
}

/// In the response headers callback: sets a header.
pub fn set_response_header(name: &str, value: &str) {
    let value = Some(value.as_bytes());
    let _ = hostcalls::set_map_value_bytes(MapType::HttpResponseHeaders, name, value);
}

/// In the response headers callback: removes a header; no error when it is absent.
pub fn remove_response_header(name: &str) {
    let _ = hostcalls::remove_map_value(MapType::HttpResponseHeaders, name);
}

/// In request body and trailer callbacks: the buffered body.
pub fn request_body(bytes_max: usize) -> Option<Vec<u8>> {
    hostcalls::get_buffer(BufferType::HttpRequestBody, 0, bytes_max).ok().flatten()
}

/// In the response body callback: the chunk that passes.
pub fn response_chunk(bytes: usize) -> Option<Vec<u8>> {
    hostcalls::get_buffer(BufferType::HttpResponseBody, 0, bytes).ok().flatten()
}

/// In request body and trailer callbacks, while a body is buffered and the headers are held: puts
/// `body` in its place.
pub fn replace_request_body(body: &[u8]) {
    let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, usize::MAX, body);
}

/// In the response body callback: puts `chunk` in the place of the one that passes.
pub fn replace_response_chunk(chunk: &[u8]) {
    let _ = hostcalls::set_buffer(BufferType::HttpResponseBody, 0, usize::MAX, chunk);
}

/// A numeric attribute of the stream.
pub fn property_u64(path: &[&str]) -> Option<u64> {
    let bytes = hostcalls::get_property(path.to_vec()).ok().flatten()?;
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// A text attribute of the stream.
pub fn property_text(path: &[&str]) -> Option<String> {
    String::from_utf8(hostcalls::get_property(path.to_vec()).ok().flatten()?).ok()
}

/// Answers the request instead of any backend.
pub fn answer(status: u32, content_type: &str, more: &[(&str, &str)], body: &[u8]) {
    let mut headers = vec![("content-type", content_type)];
    headers.extend_from_slice(more);
    let _ = hostcalls::send_http_response(status, headers, Some(body));
}

/// In a stream's callbacks: sets a value of Envoy's filter state, under `wasm.<name>`.
pub fn set_filter_state(name: &str, value: &str) {
    let _ = hostcalls::set_property(vec![name], Some(value.as_bytes()));
}

/// A request that the filter makes itself.
pub struct Callout<'a> {
    /// The cluster that gets it.
    pub cluster: &'a str,
    /// Its `:authority`.
    pub authority: &'a str,
    /// Its `:path`.
    pub path: &'a str,
    /// Further headers.
    pub more: &'a [(&'a str, &'a str)],
    /// How long an answer may take.
    pub timeout: Duration,
}

impl Callout<'_> {
    /// Starts it as a GET; `None` when the cluster is unknown.
    pub fn get(&self) -> Option<u32> {
        self.start("GET", None)
    }

    /// Starts it as a POST; `None` when the cluster is unknown.
    pub fn post(&self, body: &[u8]) -> Option<u32> {
        self.start("POST", Some(body))
    }

    fn start(&self, method: &str, body: Option<&[u8]>) -> Option<u32> {
        let mut headers =
            vec![(":method", method), (":path", self.path), (":authority", self.authority)];
        headers.extend_from_slice(self.more);
        hostcalls::dispatch_http_call(self.cluster, headers, body, vec![], self.timeout).ok()
    }
}

/// In the callout's callback: a header of its answer.
pub fn callout_header(name: &str) -> Option<Vec<u8>> {
    hostcalls::get_map_value_bytes(MapType::HttpCallResponseHeaders, name).ok().flatten()
}

/// In the callout's callback: a header of its answer, if it is text.
pub fn callout_header_text(name: &str) -> Option<String> {
    String::from_utf8(callout_header(name)?).ok()
}

/// In the callout's callback, and only if the answer has headers: its body.
pub fn callout_body(bytes: usize) -> Option<Vec<u8>> {
    hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, bytes).ok().flatten()
}

/// In the configuration callback: the plugin's configuration.
pub fn plugin_configuration(bytes: usize) -> Vec<u8> {
    let buffer = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, bytes);
    buffer.ok().flatten().unwrap_or_default()
}

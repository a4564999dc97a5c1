//! What an answer's head and Envoy's flags say of a request's outcome.

use warmpath_core::answer::Framing;
use warmpath_core::dispatch::Outcome;
use warmpath_core::metrics::Failure;

use crate::host;

/// Header of an answer with the engine's load report.
pub const LOAD_HEADER: &str = "endpoint-load-metrics";

/// What each of Envoy's response flags says of the backend, as bits of the attribute `response.flags`;
/// the first that is set counts. A protocol error may be a chunked answer that breaks off; an
/// unresolved name gives no connection.
const BACKEND_FAILED: [(u64, Failure); 7] = [
    (0x2, Failure::NoHost),
    (0x4, Failure::Timeout),
    (0x20, Failure::Connect),
    (0x400_0000, Failure::Connect),
    (0x10, Failure::Reset),
    (0x40, Failure::Reset),
    (0x80_0000, Failure::Protocol),
];

/// The client's connection ended, its stream was reset, it broke the protocol, or the stream was
/// silent for too long, which either side may have caused.
const CLIENT_LEFT: u64 = 0x4000 | 0x1000_0000 | 0x4_0000 | 0x1_0000;

/// Envoy answered itself: too many requests at once, no route, an injected fault, a rate limit, no
/// permission, an external service's refusal, an invalid request, no such cluster or filter configuration,
/// overload.
const NOT_SENT: u64 =
    0x80 | 0x100 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x2_0000 | 0x200_0000 | 0x800_0000;

/// How a request with this status ended, and how its backend failed if it did; `is_whole` when the
/// answer's end came.
pub fn of(status: Option<u16>, is_whole: bool) -> (Outcome, Option<Failure>) {
    // An answer that came whole is one, whatever became of the client meanwhile.
    if is_whole && matches!(status, Some(200..=299)) {
        return (Outcome::Answered, None);
    }
    let flags = response_flags();
    if let Some(failure) = failure(flags) {
        return (Outcome::BackendFailed, Some(failure));
    }
    if flags & NOT_SENT != 0 {
        return (Outcome::NotSent, None);
    }
    if flags & CLIENT_LEFT != 0 {
        return (Outcome::ClientLeft, None);
    }
    match status {
        Some(200..=299) => (Outcome::Answered, None),
        Some(429) => (Outcome::Shed, None),
        Some(502..=504) => (Outcome::BackendFailed, Some(Failure::Status)),
        Some(_) => (Outcome::Refused, None),
        None => (Outcome::ClientLeft, None),
    }
}

/// Whether Envoy's flags say that the backend failed.
pub fn is_failed_by_backend() -> bool {
    failure(response_flags()).is_some()
}

fn failure(flags: u64) -> Option<Failure> {
    let set = BACKEND_FAILED.into_iter().find(|(flag, _)| flags & flag != 0);
    set.map(|(_, failure)| failure)
}

fn response_flags() -> u64 {
    host::property_u64(&["response", "flags"]).unwrap_or(0)
}

/// What the head of an answer says.
pub struct ResponseHead {
    /// Its status.
    pub status: Option<u16>,
    /// Whether the body is encoded.
    pub is_encoded: bool,
    /// How the body is cut; `None` for a type that has no usage.
    pub framing: Option<Framing>,
    /// The load report (ORCA).
    pub load_report: Option<Vec<u8>>,
}

impl ResponseHead {
    /// In the response headers callback.
    pub fn read() -> Self {
        let mut head = Self { status: None, is_encoded: false, framing: None, load_report: None };
        for (name, value) in host::response_headers() {
            match name.as_str() {
                ":status" => {
                    head.status = std::str::from_utf8(&value).ok().and_then(|it| it.parse().ok());
                }
                "content-encoding" => head.is_encoded = true,
                LOAD_HEADER => head.load_report = Some(value),
                "content-type" => head.framing = Framing::from_content_type(&value),
                _ => {}
            }
        }
        head
    }

    /// Whether the answer is a success.
    pub fn is_good(&self) -> bool {
        matches!(self.status, Some(200..=299))
    }
}

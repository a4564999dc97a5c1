//! What went out in an answer's body, counted and hashed as it goes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use xxhash_rust::xxh3::Xxh3;

use super::driver::EngineHandle;

/// Lets `records` know what `response` sends, before each part of it leaves.
pub(super) fn counted(response: Response, engine: &EngineHandle, records: Vec<u64>) -> Response {
    response.map(|inner| {
        let hasher = Box::new(Xxh3::new());
        Body::new(CountedBody { inner, engine: engine.clone(), records, hasher, bytes: 0 })
    })
}

/// A body that keeps account of itself.
struct CountedBody {
    inner: Body,
    engine: EngineHandle,
    /// The numbers of the records to keep.
    records: Vec<u64>,
    hasher: Box<Xxh3>,
    bytes: u64,
}

impl CountedBody {
    fn count(&mut self, data: &Bytes) {
        self.hasher.update(data);
        self.bytes += data.len() as u64;
        let mut log = self.engine.log();
        for number in &self.records {
            if let Some(record) = log.get_mut(*number) {
                record.sent_bytes = self.bytes;
                record.sent_hash = Some(self.hasher.digest());
            }
        }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.count(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

//! What an engine served, request by request, as it saw it itself.
//!
//! Times are in milliseconds of model time, whatever the clock's scale. Bounded: the oldest record
//! goes first, and header and body bytes are cut.

use std::collections::VecDeque;

use axum::http::HeaderMap;
use serde::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use crate::limits::{RECORD_BODY_BYTES_MAX, RECORD_HEADER_BYTES_MAX, REQUEST_RECORDS_MAX};

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// In the queue, or not yet seen by the engine.
    Waiting,
    /// Admitted.
    Running,
    /// Complete.
    Finished,
    /// The client went away, or a reset dropped it.
    Aborted,
    /// Answered with a 4xx or 5xx of the engine's own.
    Rejected,
    /// Broken on purpose.
    Failed,
}

/// One prompt's record.
#[derive(Clone, Debug, Serialize)]
pub struct RequestRecord {
    /// Counts the engine's records from 0.
    pub seq: u64,
    /// The id in the answer, without the index of the prompt.
    pub id: String,
    /// The client's or proxy's `x-request-id`.
    pub x_request_id: Option<String>,
    /// The request's path.
    pub path: String,
    /// Which of the request's prompts.
    pub index: u32,
    /// How far it got.
    pub state: RecordState,
    /// The status of the answer.
    pub status: u16,
    /// Tokens in the prompt; 0 when it never got that far.
    pub prompt_tokens: u32,
    /// Tokens found in the prefix cache at the first admission.
    pub cached_tokens: Option<u32>,
    /// Tokens generated so far.
    pub output_tokens: u32,
    /// When it reached the engine's queue.
    pub arrived_ms: Option<f64>,
    /// From there to the first token.
    pub ttft_ms: Option<f64>,
    /// From there to the end.
    pub e2e_ms: Option<f64>,
    /// Bytes of the answer's body that went out so far. Prompts of one request share its answer.
    pub sent_bytes: u64,
    /// Their XXH3, written in hex; `None` before the first.
    #[serde(serialize_with = "as_hex")]
    pub sent_hash: Option<u64>,
    /// The body's first bytes.
    pub body_head: String,
    /// The request's headers, in order.
    pub headers: Vec<(String, String)>,
}

/// The hash of a whole body, as a record has it.
#[must_use]
pub fn body_hash(body: &[u8]) -> String {
    hex(xxh3_64(body))
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

fn as_hex<S: Serializer>(hash: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    hash.map(hex).serialize(serializer)
}

impl RequestRecord {
    /// The record of a request that has just been read.
    #[must_use]
    pub fn new(id: String, path: &str, headers: &HeaderMap, body: &[u8]) -> Self {
        let head = &body[..body.len().min(RECORD_BODY_BYTES_MAX)];
        let mut room = RECORD_HEADER_BYTES_MAX;
        let headers: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), value)
            })
            .take_while(|(name, value)| {
                let bytes = name.len() + value.len();
                let fits = bytes <= room;
                room = room.saturating_sub(bytes);
                fits
            })
            .collect();
        let x_request_id =
            headers.iter().find(|(name, _)| name == "x-request-id").map(|(_, value)| value.clone());
        Self {
            seq: 0,
            id,
            x_request_id,
            path: path.to_owned(),
            index: 0,
            state: RecordState::Waiting,
            status: 200,
            prompt_tokens: 0,
            cached_tokens: None,
            output_tokens: 0,
            arrived_ms: None,
            ttft_ms: None,
            e2e_ms: None,
            sent_bytes: 0,
            sent_hash: None,
            body_head: String::from_utf8_lossy(head).into_owned(),
            headers,
        }
    }
}

/// The latest records of an engine.
#[derive(Debug, Default)]
pub struct RequestLog {
    records: VecDeque<RequestRecord>,
    next_seq: u64,
}

impl RequestLog {
    /// Keeps a record; returns its number.
    pub fn push(&mut self, mut record: RequestRecord) -> u64 {
        let seq = self.next_seq;
        record.seq = seq;
        self.next_seq += 1;
        if self.records.len() == REQUEST_RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
        seq
    }

    /// The record of that number, unless it is gone.
    pub fn get_mut(&mut self, seq: u64) -> Option<&mut RequestRecord> {
        let first = self.next_seq - self.records.len() as u64;
        let at = seq.checked_sub(first)?;
        self.records.get_mut(usize::try_from(at).ok()?)
    }

    /// Forgets all records; numbering goes on, so that late updates of old ones miss.
    pub fn clear(&mut self) {
        self.records.clear();
    }

    /// The records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &RequestRecord> {
        self.records.iter()
    }

    /// Records that were kept once and are gone.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.next_seq - self.records.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn records_are_cut_and_the_oldest_goes_first() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", HeaderValue::from_static("r1"));
        headers.insert("x-long", HeaderValue::from_str(&"v".repeat(5_000)).unwrap());
        let record = RequestRecord::new("id".into(), "/p", &headers, &[b'x'; 500]);
        assert_eq!(record.body_head.len(), RECORD_BODY_BYTES_MAX);
        assert_eq!(record.x_request_id.as_deref(), Some("r1"));
        assert_eq!(record.headers.len(), 1);

        let mut log = RequestLog::default();
        for _ in 0..REQUEST_RECORDS_MAX + 2 {
            log.push(record.clone());
        }
        assert!(log.get_mut(1).is_none());
        assert_eq!(log.get_mut(2).unwrap().seq, 2);
        assert_eq!((log.iter().count(), log.forgotten()), (REQUEST_RECORDS_MAX, 2));
        log.clear();
        assert!(log.get_mut(2).is_none());
        assert_eq!(log.push(record), REQUEST_RECORDS_MAX as u64 + 2);
    }
}

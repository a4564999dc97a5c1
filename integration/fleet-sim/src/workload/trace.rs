//! Traces: requests that real users sent, with their times.
//!
//! In: lines of JSON in Mooncake's format (`timestamp` in ms, `input_length`, `output_length`,
//! `hash_ids`: one number for each 512 tokens of prompt, equal where prompts are equal up to there),
//! plain or gzipped. Out: arrivals. Bounded by [`TRACE_REQUESTS_MAX`] and [`TRACE_LINE_BYTES_MAX`].

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use serde::Deserialize;
use warmpath_engine_sim::model::SimTime;

use super::{Arrival, Request};
use crate::text::{Piece, mix};

/// Tokens that one of a trace's hash ids stands for.
const TRACE_BLOCK_TOKENS: u32 = 512;

/// Requests read from a trace: a day at ten a second.
pub const TRACE_REQUESTS_MAX: usize = 1_000_000;

/// Longest line: a million tokens of prompt in ids of ten digits take 20 kB.
pub const TRACE_LINE_BYTES_MAX: u64 = 1 << 20;

/// Longest prompt or answer of a line, in tokens.
const TRACE_TOKENS_MAX: u32 = 10_000_000;

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be opened or read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not of the format.
    #[error("{path}:{line}: {what}")]
    Line {
        /// The file.
        path: String,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// It has no requests.
    #[error("{0}: no requests")]
    Empty(String),
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Reads a trace; `speed` 2 plays it in half its time.
///
/// # Errors
/// [`TraceError`] when the file cannot be read or is not of the format.
pub fn read_mooncake(path: &Path, speed: f64) -> Result<Vec<Arrival>, TraceError> {
    let mut arrivals = Vec::new();
    for_each_line(path, |number, text| {
        let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let at = SimTime::from_millis_f64(line.timestamp / speed);
        let user = u32::try_from(number).unwrap_or(u32::MAX);
        arrivals.push(Arrival { at, request: line.request(user)? });
        Ok(())
    })?;
    if arrivals.is_empty() {
        return Err(TraceError::Empty(path.display().to_string()));
    }
    Ok(arrivals)
}

impl Line {
    fn request(&self, user: u32) -> Result<Request, String> {
        if self.input_length == 0 || self.input_length.max(self.output_length) > TRACE_TOKENS_MAX {
            return Err(format!("a prompt has 1 to {TRACE_TOKENS_MAX} tokens"));
        }
        if !(self.timestamp.is_finite() && self.timestamp >= 0.0) {
            return Err("`timestamp` must not be negative".to_owned());
        }
        if self.hash_ids.len() != self.input_length.div_ceil(TRACE_BLOCK_TOKENS) as usize {
            return Err("one hash id for each 512 tokens is needed".to_owned());
        }
        let mut rest = self.input_length;
        let pieces = self
            .hash_ids
            .iter()
            .map(|id| {
                let tokens = rest.min(TRACE_BLOCK_TOKENS);
                rest -= tokens;
                Piece::Text { id: mix(*id), tokens }
            })
            .collect();
        let output_tokens = self.output_length.max(1);
        Ok(Request { user, pieces, output_tokens, output_tokens_max: None })
    }
}

/// Calls `each` with the number and text of every line that is not empty.
pub(crate) fn for_each_line(
    path: &Path,
    mut each: impl FnMut(usize, &str) -> Result<(), String>,
) -> Result<(), TraceError> {
    let name = path.display().to_string();
    let failed = |source| TraceError::Read { path: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let mut lines: Box<dyn BufRead> = if path.extension().is_some_and(|end| end == "gz") {
        Box::new(BufReader::new(GzDecoder::new(file)))
    } else {
        Box::new(BufReader::new(file))
    };
    let mut text = String::new();
    for line in 1..=TRACE_REQUESTS_MAX {
        text.clear();
        let read = lines.by_ref().take(TRACE_LINE_BYTES_MAX).read_line(&mut text);
        if read.map_err(failed)? == 0 {
            break;
        }
        if !text.trim().is_empty() {
            each(line, text.trim()).map_err(|what| TraceError::Line {
                path: name.clone(),
                line,
                what,
            })?;
        }
    }
    Ok(())
}

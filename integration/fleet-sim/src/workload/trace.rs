//! Traces: requests that real users sent, with their times.
//!
//! In: a file of JSON lines, plain or gzipped, in one of two formats. Out: arrivals, in the order of
//! the file. Bounded by [`TRACE_REQUESTS_MAX`] and [`TRACE_LINE_BYTES_MAX`].
//!
//! - Mooncake's format: `timestamp` in ms, `input_length`, `output_length`, and `hash_ids`, one
//!   number for each 512 tokens of prompt, equal where prompts are equal up to there.
//! - An access log: `start_time` (RFC 3339, or seconds), `prompt_tokens`, `completion_tokens`, and
//!   `session`, if known. A log does not say what prompts share. A request is taken to begin with
//!   its session's last prompt and answer, if it is at least as long, as a chat does; otherwise it
//!   shares nothing.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use ahash::AHashMap;
use flate2::read::GzDecoder;
use serde::Deserialize;
use warmpath_engine_sim::model::SimTime;

use super::{Arrival, Request};
use crate::text::{self, Piece, mix};

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

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// Mooncake's: prefixes by hash ids.
    Mooncake,
    /// An access log: token counts and sessions.
    AccessLog,
}

impl TraceFormat {
    /// The format of a file, by the fields of its first line.
    ///
    /// # Errors
    /// [`TraceError`] when the file cannot be read or is of neither format.
    pub fn of(path: &Path) -> Result<Self, TraceError> {
        let mut format = None;
        for_each_line(path, |_, text| {
            let line: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(text).map_err(|error| error.to_string())?;
            format = if line.contains_key("hash_ids") {
                Some(Self::Mooncake)
            } else if line.contains_key("start_time") {
                Some(Self::AccessLog)
            } else {
                return Err("neither `hash_ids` nor `start_time` is there".to_owned());
            };
            Ok(format.is_none())
        })?;
        format.ok_or_else(|| TraceError::Empty(path.display().to_string()))
    }
}

/// Reads a trace; `speed` 2 plays it in half its time.
///
/// # Errors
/// [`TraceError`] when the file cannot be read or is not of the format.
pub fn read(path: &Path, format: TraceFormat, speed: f64) -> Result<Vec<Arrival>, TraceError> {
    let mut arrivals = Vec::new();
    let mut sessions = Sessions::default();
    for_each_line(path, |number, text| {
        let user = u32::try_from(number).unwrap_or(u32::MAX);
        let (at_ms, request) = match format {
            TraceFormat::Mooncake => {
                let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
                (line.timestamp, line.request(user)?)
            }
            TraceFormat::AccessLog => {
                let line: LogLine =
                    serde_json::from_str(text).map_err(|error| error.to_string())?;
                (sessions.at_ms(&line)?, sessions.request(line, user)?)
            }
        };
        arrivals.push(Arrival { at: SimTime::from_millis_f64(at_ms / speed), request });
        Ok(true)
    })?;
    if arrivals.is_empty() {
        return Err(TraceError::Empty(path.display().to_string()));
    }
    Ok(arrivals)
}

impl Line {
    fn request(&self, user: u32) -> Result<Request, String> {
        check_lengths(self.input_length, self.output_length)?;
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

#[derive(Deserialize)]
struct LogLine {
    start_time: StartTime,
    prompt_tokens: u32,
    completion_tokens: u32,
    #[serde(default)]
    session: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StartTime {
    Seconds(f64),
    Text(String),
}

/// What an access log's sessions said so far.
#[derive(Default)]
struct Sessions {
    first_ms: Option<f64>,
    /// By session: its number, and the last prompt with its answer.
    last: AHashMap<String, (u32, Vec<Piece>)>,
}

impl Sessions {
    /// Time since the first line; lines are written when requests end, so a little before is 0.
    fn at_ms(&mut self, line: &LogLine) -> Result<f64, String> {
        let at_ms = match &line.start_time {
            StartTime::Seconds(seconds) if seconds.is_finite() => seconds * 1e3,
            StartTime::Seconds(_) => return Err("`start_time` must be finite".to_owned()),
            StartTime::Text(text) => {
                rfc3339_ms(text).ok_or("`start_time` is neither RFC 3339 nor a number")?
            }
        };
        let first_ms = *self.first_ms.get_or_insert(at_ms);
        Ok((at_ms - first_ms).max(0.0))
    }

    fn request(&mut self, line: LogLine, number: u32) -> Result<Request, String> {
        check_lengths(line.prompt_tokens, line.completion_tokens)?;
        let key = line.session.unwrap_or_else(|| format!("#{number}"));
        let (user, mut pieces) = self.last.remove(&key).unwrap_or((number, Vec::new()));
        let said = u32::try_from(text::length(&pieces)).unwrap_or(u32::MAX);
        if said > line.prompt_tokens {
            pieces.clear();
        }
        let said = u32::try_from(text::length(&pieces)).unwrap_or(u32::MAX);
        let id = mix(u64::from(number));
        let added = Piece::Text { id, tokens: line.prompt_tokens - said };
        pieces.push(added);
        // What it will have said by the next turn. The simulated answer is other text; the next
        // turn computes it, which errs on the side of too few cached tokens.
        let output_tokens = line.completion_tokens.max(1);
        let mut next = pieces.clone();
        next.push(Piece::Text { id: mix(!u64::from(number)), tokens: output_tokens });
        self.last.insert(key, (user, next));
        Ok(Request { user, pieces, output_tokens, output_tokens_max: None })
    }
}

fn check_lengths(prompt_tokens: u32, output_tokens: u32) -> Result<(), String> {
    if prompt_tokens == 0 || prompt_tokens.max(output_tokens) > TRACE_TOKENS_MAX {
        return Err(format!("a prompt has 1 to {TRACE_TOKENS_MAX} tokens"));
    }
    Ok(())
}

/// Milliseconds since the epoch of `2026-01-31T12:34:56.789Z`, or of an offset's time.
fn rfc3339_ms(text: &str) -> Option<f64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute) = (number(11, 13)?, number(14, 16)?);
    let separators = [(4, '-'), (7, '-'), (13, ':'), (16, ':')];
    let has =
        |&(at, sign): &(usize, char)| text.get(at..).is_some_and(|rest| rest.starts_with(sign));
    let well_formed = separators.iter().all(has);
    if !well_formed || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let rest = text.get(17..)?;
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let seconds: f64 = rest.get(..zone)?.parse().ok()?;
    let offset = rest.get(zone..)?;
    let offset_minutes = if offset.eq_ignore_ascii_case("z") {
        0
    } else {
        let sign = if offset.starts_with('-') { -1 } else { 1 };
        sign * (offset.get(1..3)?.parse::<i64>().ok()? * 60
            + offset.get(4..6)?.parse::<i64>().ok()?)
    };
    // Days of the civil calendar since 1970 (Hinnant's algorithm), years beginning in March.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let minutes = (days * 24 + hour) * 60 + minute - offset_minutes;
    Some((minutes as f64 * 60.0 + seconds) * 1e3)
}

/// Calls `each` with the number and text of every line that is not empty, while it says to go on.
fn for_each_line(
    path: &Path,
    mut each: impl FnMut(usize, &str) -> Result<bool, String>,
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
            let go_on = each(line, text.trim()).map_err(|what| TraceError::Line {
                path: name.clone(),
                line,
                what,
            })?;
            if !go_on {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("warmpath-trace-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn mooncake_lines_become_prompts_that_share_their_beginnings() {
        let path = file(
            "mooncake.jsonl",
            concat!(
                r#"{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}"#,
                "\n\n",
                r#"{"timestamp":3000,"input_length":513,"output_length":0,"hash_ids":[1,3]}"#,
            ),
        );
        assert_eq!(TraceFormat::of(&path).unwrap(), TraceFormat::Mooncake);
        let arrivals = read(&path, TraceFormat::Mooncake, 2.0).unwrap();
        assert_eq!(arrivals.len(), 2);
        assert_eq!(arrivals[1].at, SimTime::from_millis_f64(1_500.0));
        let tokens: Vec<_> =
            arrivals.iter().map(|arrival| text::tokens(&arrival.request.pieces)).collect();
        assert_eq!((tokens[0].len(), tokens[1].len()), (600, 513));
        assert_eq!(tokens[0][..512], tokens[1][..512]);
        assert_ne!(tokens[0][512], tokens[1][512]);
        assert_eq!(arrivals[1].request.output_tokens, 1);
    }

    #[test]
    fn a_session_goes_on_where_it_left_off() {
        let path = file(
            "log.jsonl",
            concat!(
                r#"{"start_time":"2026-01-31T23:59:59.5Z","prompt_tokens":100,"completion_tokens":20,"session":"a"}"#,
                "\n",
                r#"{"start_time":"2026-02-01T01:00:00+01:00","prompt_tokens":150,"completion_tokens":9,"session":"a"}"#,
                "\n",
                r#"{"start_time":"2026-02-01T00:00:01Z","prompt_tokens":100,"completion_tokens":9,"session":"a"}"#,
                "\n",
                r#"{"start_time":"2026-02-01T00:00:01Z","prompt_tokens":100,"completion_tokens":9}"#,
            ),
        );
        assert_eq!(TraceFormat::of(&path).unwrap(), TraceFormat::AccessLog);
        let arrivals = read(&path, TraceFormat::AccessLog, 1.0).unwrap();
        let at: Vec<f64> = arrivals.iter().map(|arrival| arrival.at.as_millis_f64()).collect();
        assert_eq!(at, [0.0, 500.0, 1_500.0, 1_500.0]);
        let tokens: Vec<_> =
            arrivals.iter().map(|arrival| text::tokens(&arrival.request.pieces)).collect();
        assert_eq!(tokens[1].len(), 150);
        assert_eq!(tokens[1][..100], tokens[0][..]);
        assert_ne!(tokens[2][..50], tokens[1][..50], "shorter: not the same conversation");
        let users: Vec<u32> = arrivals.iter().map(|arrival| arrival.request.user).collect();
        assert_eq!(users, [1, 1, 1, 4]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, part) in [
            ("", "no requests"),
            ("{}", "neither"),
            (r#"{"hash_ids":[1]}"#, "timestamp"),
            (r#"{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}"#, "1 to"),
            (r#"{"timestamp":-1,"input_length":9,"output_length":1,"hash_ids":[1]}"#, "negative"),
            (r#"{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}"#, "512"),
            (r#"{"start_time":"yesterday","prompt_tokens":1,"completion_tokens":1}"#, "RFC 3339"),
            (r#"{"start_time":1,"prompt_tokens":0,"completion_tokens":1}"#, "1 to"),
        ] {
            let path = file("bad.jsonl", text);
            let error = TraceFormat::of(&path)
                .and_then(|format| read(&path, format, 1.0))
                .expect_err(text)
                .to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(TraceFormat::of(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn times_are_read_to_the_millisecond() {
        assert_eq!(rfc3339_ms("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(rfc3339_ms("2024-02-29T12:30:15.250Z"), Some(1_709_209_815_250.0));
        assert_eq!(rfc3339_ms("2024-02-29T12:30:15.250-02:30"), Some(1_709_218_815_250.0));
        for bad in ["", "2024-02-29", "2024-13-01T00:00:00Z", "2024-02-29T12:30:15", "2024-02-29 é"]
        {
            assert_eq!(rfc3339_ms(bad), None, "{bad}");
        }
    }
}

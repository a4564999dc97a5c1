//! Answer bytes -> the engine's own `usage`.
//!
//! In: the chunks of a response body as they pass by. Out: the last `usage` object seen, or the
//! counts that Ollama writes beside its answer. Nothing is held back or changed, and no more is kept
//! than the tail of a JSON answer or one incomplete line of an SSE stream. Linear in the answer.

use serde::{Deserialize, Deserializer};

use crate::limits::{ANSWER_TAIL_BYTES_MAX, SSE_LINE_BYTES_MAX};
use crate::request::Api;

/// What the engine says about one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt as the engine counted them; 0 when it does not say, or not reliably.
    pub prompt_tokens: u32,
    /// Tokens it did not have to compute; `None` when the engine does not say.
    pub cached_tokens: Option<u32>,
    /// Tokens of output.
    pub completion_tokens: u32,
}

/// How an answer is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One JSON document, or one a line (`application/x-ndjson`): the last one has the counts, and
    /// has them at its end.
    Json,
    /// `text/event-stream`.
    Sse,
}

impl Framing {
    /// The framing that a `content-type` header announces; `None` when no usage can be read.
    #[must_use]
    pub fn from_content_type(content_type_bytes: &[u8]) -> Option<Self> {
        let essence = content_type_bytes.split(|&byte| byte == b';').next()?;
        let essence = essence.trim_ascii().to_ascii_lowercase();
        match essence.as_slice() {
            b"application/json" | b"application/x-ndjson" => Some(Self::Json),
            b"text/event-stream" => Some(Self::Sse),
            _ => None,
        }
    }
}

/// A kind of answer, of which an engine says the same every time: that of an API, whole or streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerKind {
    /// The API.
    pub api: Api,
    /// Whole or streamed.
    pub framing: Framing,
}

impl AnswerKind {
    /// One bit for each kind.
    #[must_use]
    pub fn bit(self) -> u32 {
        let bits = match self.framing {
            Framing::Json => 1,
            Framing::Sse => 2,
        };
        bits << (2 * self.api as u32)
    }
}

/// Collects the usage of one answer.
#[derive(Debug)]
pub struct UsageScanner {
    framing: Framing,
    /// JSON: the answer's tail. SSE: the current line, without its end.
    kept: Vec<u8>,
    /// SSE: what is kept is only the end of the current line; whether the line is data.
    cut: Option<bool>,
    /// What was cut off before what is kept had this.
    passed: Option<Usage>,
    last: Option<Usage>,
    /// SSE: whether the current event says no more than that the request came.
    is_notice: bool,
    has_begun: bool,
}

impl UsageScanner {
    /// A scanner at the start of an answer.
    #[must_use]
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            kept: Vec::new(),
            cut: None,
            passed: None,
            last: None,
            is_notice: false,
            has_begun: false,
        }
    }

    /// Whether anything came that took the engine some work. Streams may open with notices that the request
    /// was received, and have comments that keep the connection open.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Takes the next chunk, cut anywhere.
    pub fn push(&mut self, chunk: &[u8]) {
        match self.framing {
            Framing::Json => {
                self.has_begun |= !chunk.is_empty();
                self.keep(chunk, ANSWER_TAIL_BYTES_MAX);
            }
            Framing::Sse => self.push_sse(chunk),
        }
    }

    /// The answer ended: its usage, if it had one.
    #[must_use]
    pub fn finish(mut self) -> Option<Usage> {
        match self.framing {
            Framing::Json => {
                let start = self.kept.len().saturating_sub(ANSWER_TAIL_BYTES_MAX);
                let tail = self.kept.get(start..).unwrap_or_default();
                last_usage(&self.kept).or(self.passed).or_else(|| ollama_usage(tail))
            }
            Framing::Sse => {
                self.end_line();
                self.last
            }
        }
    }

    fn push_sse(&mut self, chunk: &[u8]) {
        let mut lines = chunk.split(|&byte| byte == b'\n');
        let unfinished = lines.next_back().unwrap_or_default();
        for line in lines {
            self.append(line);
            self.end_line();
        }
        self.append(unfinished);
    }

    fn append(&mut self, part: &[u8]) {
        if self.cut.is_none() && self.kept.len() + part.len() > SSE_LINE_BYTES_MAX {
            self.cut = Some(is_data(&self.kept, part));
        }
        self.keep(part, SSE_LINE_BYTES_MAX);
    }

    /// Keeps the last `bytes_max` bytes at least, twice as many at most, and the usage in what goes: an answer
    /// may repeat its prompt behind it.
    fn keep(&mut self, part: &[u8], bytes_max: usize) {
        // Short beside what is kept: no usage lies on both sides of a cut.
        for piece in part.chunks(bytes_max / 2) {
            let bytes = self.kept.len() + piece.len();
            // Cutting only at twice the limit keeps the cost linear.
            if bytes > 2 * bytes_max {
                self.passed = last_usage(&self.kept).or(self.passed);
                self.kept.drain(..bytes - bytes_max);
            }
            if self.kept.len() + piece.len() > bytes_max {
                self.kept.reserve_exact((2 * bytes_max).saturating_sub(self.kept.len()));
            }
            self.kept.extend_from_slice(piece);
        }
    }

    fn end_line(&mut self) {
        let is_data = self.cut.take().unwrap_or_else(|| is_data(&self.kept, &[]));
        let passed = self.passed.take();
        if let Some(event) = self.kept.strip_prefix(SSE_EVENT) {
            self.is_notice = NOTICES.contains(&event.trim_ascii());
        } else if is_data {
            self.has_begun |= !self.is_notice;
        } else if self.kept.trim_ascii().is_empty() {
            self.is_notice = false;
        }
        if is_data && let Some(usage) = last_usage(&self.kept).or(passed) {
            self.last = Some(usage);
        }
        self.kept.clear();
    }
}

/// Whether a line that begins so is an event's data.
fn is_data(kept: &[u8], part: &[u8]) -> bool {
    let start = kept.iter().chain(part).take(SSE_DATA.len());
    start.eq(SSE_DATA)
}

/// Begins a line of an event's data.
pub(crate) const SSE_DATA: &[u8] = b"data:";

/// Begins a line that names an event.
const SSE_EVENT: &[u8] = b"event:";

/// Events of OpenAI's responses that come before any work is done.
const NOTICES: [&[u8]; 3] = [b"response.created", b"response.in_progress", b"response.queued"];

/// The usage of all APIs: OpenAI's two, Anthropic's, SGLang's.
#[derive(Deserialize)]
struct RawUsage {
    /// OpenAI's completions and chats; SGLang.
    #[serde(default, deserialize_with = "count")]
    prompt_tokens: Option<u32>,
    /// OpenAI's responses: all of the prompt. Anthropic: its part that was not read from the cache.
    #[serde(default, deserialize_with = "count")]
    input_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    completion_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    output_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<RawDetails>,
    /// The same of OpenAI's responses; gateways write both.
    #[serde(default)]
    input_tokens_details: Option<RawDetails>,
    /// SGLang.
    #[serde(default, deserialize_with = "count")]
    cached_tokens: Option<u32>,
    /// Anthropic.
    #[serde(default, deserialize_with = "count")]
    cache_read_input_tokens: Option<u32>,
    /// Anthropic.
    #[serde(default, deserialize_with = "count")]
    cache_creation_input_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct RawDetails {
    #[serde(default, deserialize_with = "count")]
    cached_tokens: Option<u32>,
}

/// A number of tokens; what is none counts as not said, and costs no other member.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let whole = |number: f64| (number.fract() == 0.0 && number >= 0.0).then_some(number as u64);
    let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    Ok(number.and_then(|number| u32::try_from(number).ok()))
}

impl RawUsage {
    /// `None` when it does not say how long the prompt was, as in the last events of an Anthropic
    /// stream.
    fn usage(self) -> Option<Usage> {
        let cache_read = self.cache_read_input_tokens;
        let cache_written = self.cache_creation_input_tokens.unwrap_or(0);
        let prompt_tokens = self.prompt_tokens.or_else(|| {
            let uncached = self.input_tokens?;
            Some(uncached.saturating_add(cache_read.unwrap_or(0)).saturating_add(cache_written))
        })?;
        let details = self.prompt_tokens_details.or(self.input_tokens_details);
        let details = details.and_then(|details| details.cached_tokens);
        Some(Usage {
            prompt_tokens,
            cached_tokens: details.or(self.cached_tokens).or(cache_read),
            completion_tokens: self.completion_tokens.or(self.output_tokens).unwrap_or(0),
        })
    }
}

/// Keys whose value is a usage object; SGLang has its own.
const KEYS: [&[u8]; 2] = [b"\"usage\"", b"\"meta_info\""];

/// Parses the last `"usage": {...}` in `bytes` that names the prompt's length. Inside a JSON string
/// the key's quotes would be escaped, so text that talks of usage is not mistaken for it.
fn last_usage(bytes: &[u8]) -> Option<Usage> {
    let quotes = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'"');
    quotes.map(|(start, _)| start).find_map(|start| usage_at(bytes, start))
}

fn usage_at(bytes: &[u8], start: usize) -> Option<Usage> {
    let rest = bytes.get(start..)?;
    let value = KEYS.iter().find_map(|key| rest.strip_prefix(*key))?.trim_ascii_start();
    let escaped = start.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'\\');
    let value = value.strip_prefix(b":").filter(|_| !escaped)?;
    let raw = serde_json::Deserializer::from_slice(value).into_iter::<RawUsage>().next()?;
    raw.ok()?.usage()
}

/// The counts of an Ollama answer, whose members they are.
///
/// `prompt_eval_count` is documented as the number of tokens in the prompt, and is that in versions
/// that write `prompt_eval_cached_count` beside it. Older ones have at times left cached tokens out
/// of it, or left it out for a prompt that was cached (ollama/ollama#2068, #16428), and nothing in
/// an answer tells these from the others: there the prompt's length counts as unknown. `eval_count`,
/// the tokens of output, is right in all of them.
fn ollama_usage(bytes: &[u8]) -> Option<Usage> {
    let completion_tokens = last_count(bytes, b"\"eval_count\"")?;
    let cached_tokens = last_count(bytes, b"\"prompt_eval_cached_count\"");
    let prompt_tokens = last_count(bytes, b"\"prompt_eval_count\"");
    let prompt_tokens = prompt_tokens.filter(|_| cached_tokens.is_some()).unwrap_or(0);
    Some(Usage { prompt_tokens, cached_tokens, completion_tokens })
}

/// The number after the last such key, which comes with its quotes: inside a JSON string they would
/// be escaped.
fn last_count(bytes: &[u8], key: &[u8]) -> Option<u32> {
    let start = bytes.windows(key.len()).rposition(|window| window == key)?;
    let value = bytes.get(start + key.len()..)?.trim_ascii_start().strip_prefix(b":")?;
    serde_json::Deserializer::from_slice(value).into_iter().next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(framing: Framing, answer: &[u8], chunk_bytes: usize) -> Option<Usage> {
        let mut scanner = UsageScanner::new(framing);
        answer.chunks(chunk_bytes).for_each(|chunk| scanner.push(chunk));
        scanner.finish()
    }

    const USAGE: Usage = Usage { prompt_tokens: 41, cached_tokens: Some(32), completion_tokens: 7 };

    #[test]
    fn json_usage_is_found_however_the_answer_is_cut() {
        let answer =
            br#"{"choices":[{"message":{"content":"the \"usage\": {\"prompt_tokens\":1}"}}],
            "usage" : {"prompt_tokens":41,"total_tokens":48,"completion_tokens":7,
            "prompt_tokens_details":{"cached_tokens":32}},"kv_transfer_params":null}"#;
        for chunk_bytes in [1, 2, 3, 7, 64, 1_000] {
            assert_eq!(scan(Framing::Json, answer, chunk_bytes), Some(USAGE));
        }
    }

    #[test]
    fn the_usage_of_a_long_json_answer_is_in_its_tail() {
        let mut answer = br#"{"choices":[{"text":""#.to_vec();
        answer.extend(std::iter::repeat_n(b'x', 200_000));
        answer.extend_from_slice(br#""}],"usage":{"prompt_tokens":3}}"#);
        let usage = scan(Framing::Json, &answer, 4_096);
        assert_eq!(usage.map(|usage| (usage.prompt_tokens, usage.cached_tokens)), Some((3, None)));
    }

    #[test]
    fn what_follows_usage_may_be_long() {
        let ids = "100000,".repeat(40_000);
        let answer = format!(
            r#"{{"choices":[{{"text":"{}"}}],"usage":{{"prompt_tokens":41,"completion_tokens":7,
            "prompt_tokens_details":{{"cached_tokens":32}}}},"prompt_token_ids":[{ids}0]}}"#,
            "x".repeat(100_000)
        );
        let line = format!("data: {}\n\n", answer.replace('\n', ""));
        for chunk_bytes in [100, 4_096, 8_192, 8_193, 100_001, 1 << 20] {
            assert_eq!(scan(Framing::Json, answer.as_bytes(), chunk_bytes), Some(USAGE));
            assert_eq!(scan(Framing::Sse, line.as_bytes(), chunk_bytes), Some(USAGE));
        }
    }

    #[test]
    fn notices_and_comments_are_not_yet_an_answer() {
        let notices =
            b": ping\n\nevent: response.created\ndata: {\"response\":{\"usage\":null}}\n\n\
            event:response.in_progress\r\ndata: {}\r\n\r\n: ping\n\n";
        let first = [
            (Framing::Sse, &notices[..], &b"event: response.output_item.added\ndata: {}\n"[..]),
            (Framing::Sse, notices, b"data: {}\n"),
            (Framing::Sse, b"", b"data: {\"choices\":[]}\n"),
            (Framing::Json, b"", b"{"),
        ];
        for (framing, before, first) in first {
            for chunk_bytes in [1, 7, 1_000] {
                let mut scanner = UsageScanner::new(framing);
                before.chunks(chunk_bytes).for_each(|chunk| scanner.push(chunk));
                assert!(!scanner.has_begun());
                first.chunks(chunk_bytes).for_each(|chunk| scanner.push(chunk));
                assert!(scanner.has_begun());
            }
        }
    }

    #[test]
    fn sse_usage_is_the_last_one_and_null_is_none() {
        let answer =
            b"data: {\"choices\":[],\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":1,\
            \"completion_tokens\":1}}\r\n\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":41,\
            \"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n\
            data: [DONE]\n\n";
        for chunk_bytes in [1, 2, 5, 50, 1_000] {
            assert_eq!(scan(Framing::Sse, answer, chunk_bytes), Some(USAGE));
        }
    }

    #[test]
    fn a_line_without_end_costs_bounded_memory_and_later_lines_still_count() {
        let mut scanner = UsageScanner::new(Framing::Sse);
        for _ in 0..100 {
            scanner.push(&[b'x'; 10_000]);
            assert!(scanner.kept.capacity() <= 2 * SSE_LINE_BYTES_MAX);
        }
        scanner.push(b"\ndata: {\"usage\":{\"prompt_tokens\":5}}\n\n");
        assert_eq!(scanner.finish().map(|usage| usage.prompt_tokens), Some(5));
    }

    #[test]
    fn a_line_that_repeats_the_answer_has_its_usage_at_its_end() {
        let usage = br#"","usage":{"input_tokens":41,"output_tokens":7,
            "input_tokens_details":{"cached_tokens":32}}}"#;
        let usage: Vec<u8> = usage.iter().copied().filter(|byte| *byte != b'\n').collect();
        let text = [b'x'; 300_000];
        for (field, expected) in [("data:", Some(USAGE)), ("event:", None)] {
            let head = format!("event: response.completed\n{field} {{\"output\":\"");
            let answer = [head.as_bytes(), &text, &usage, b"\n\n"].concat();
            for chunk_bytes in [100, 4_096, 1 << 20] {
                assert_eq!(scan(Framing::Sse, &answer, chunk_bytes), expected, "{chunk_bytes}");
            }
        }
    }

    #[test]
    fn odd_members_cost_nothing_but_themselves() {
        let both = br#"{"usage":{"prompt_tokens":41.0,"completion_tokens":7,
            "prompt_tokens_details":null,"input_tokens_details":{"cached_tokens":32}}}"#;
        assert_eq!(scan(Framing::Json, both, 9), Some(USAGE));
        let odd = br#"{"usage":{"prompt_tokens":41,"completion_tokens":7,
            "cached_tokens":-1,"cache_read_input_tokens":"all"}}"#;
        assert_eq!(scan(Framing::Json, odd, 9), Some(Usage { cached_tokens: None, ..USAGE }));
        let huge = br#"{"usage":{"prompt_tokens":41,"completion_tokens":1e99}}"#;
        assert_eq!(scan(Framing::Json, huge, 9).map(|usage| usage.completion_tokens), Some(0));
    }

    #[test]
    fn every_api_names_its_numbers_in_its_own_way() {
        let usage = |prompt_tokens, cached_tokens, completion_tokens| {
            Some(Usage { prompt_tokens, cached_tokens, completion_tokens })
        };
        let responses = br#"{"output":[],"usage":{"input_tokens":41,"input_tokens_details":
            {"cached_tokens":32},"output_tokens":7,"total_tokens":48}}"#;
        assert_eq!(scan(Framing::Json, responses, 9), usage(41, Some(32), 7));
        let messages =
            br#"{"usage":{"input_tokens":9,"cache_read_input_tokens":32,"output_tokens":7}}"#;
        assert_eq!(scan(Framing::Json, messages, 9), usage(41, Some(32), 7));
        let sglang = br#"{"text":"","meta_info":{"prompt_tokens":41,"cached_tokens":32,
            "completion_tokens":7}}"#;
        assert_eq!(scan(Framing::Json, sglang, 9), usage(41, Some(32), 7));
        let stream = b"event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":41,\
            \"output_tokens\":0}}}\n\nevent: message_delta\ndata: {\"usage\":{\"output_tokens\":7}}\n\n";
        assert_eq!(scan(Framing::Sse, stream, 9), usage(41, None, 0));
    }

    #[test]
    fn ollama_counts_the_prompt_reliably_where_it_names_the_cached_part() {
        let end = |prompt: &str| {
            format!(
                r#""done":true,"done_reason":"stop","context":[1,2],"total_duration":9,
                "load_duration":1,{prompt}"prompt_eval_duration":2,"eval_count":7,"eval_duration":3}}"#
            )
        };
        let part = "{\"message\":{\"content\":\"\\\"eval_count\\\":1\"},\"done\":false}\n";
        let usage = |prompt_tokens, cached_tokens| {
            Some(Usage { prompt_tokens, cached_tokens, completion_tokens: 7 })
        };
        for (prompt, expected) in [
            (r#""prompt_eval_count":41,"prompt_eval_cached_count":32,"#, usage(41, Some(32))),
            (r#""prompt_eval_count":41,"prompt_eval_cached_count":0,"#, usage(41, Some(0))),
            (r#""prompt_eval_count":41,"#, usage(0, None)),
            ("", usage(0, None)),
        ] {
            let whole = format!(r#"{{"response":"hi",{}"#, end(prompt));
            let last = format!(r#"{{"message":{{"content":""}},{}"#, end(prompt)).replace('\n', "");
            let streamed = format!("{}{last}\n", part.repeat(500));
            for answer in [whole, streamed] {
                for chunk_bytes in [1, 7, 1_000, 100_000] {
                    assert_eq!(scan(Framing::Json, answer.as_bytes(), chunk_bytes), expected);
                }
            }
        }
        assert_eq!(scan(Framing::Json, part.as_bytes(), 9), None);
        for wrong in ["\"eval_count\"", "\"eval_count\":", "\"eval_count\":-1", "\"eval_count\":{}"]
        {
            assert_eq!(scan(Framing::Json, wrong.as_bytes(), 9), None);
        }
    }

    #[test]
    fn garbage_gives_none() {
        for answer in
            [&b""[..], b"\"usage\"", b"\"usage\":", b"\"usage\":{", b"\xff\xfe\"usage\":[]"]
        {
            assert_eq!(scan(Framing::Json, answer, 3), None);
            assert_eq!(scan(Framing::Sse, answer, 3), None);
        }
        assert_eq!(scan(Framing::Json, br#"{"usage":{"prompt_tokens":-1}}"#, 9), None);
    }

    #[test]
    fn content_types() {
        assert_eq!(Framing::from_content_type(b"application/json"), Some(Framing::Json));
        let lines = Framing::from_content_type(b"application/x-ndjson; charset=utf-8");
        assert_eq!(lines, Some(Framing::Json));
        assert_eq!(
            Framing::from_content_type(b"Text/Event-Stream; charset=utf-8"),
            Some(Framing::Sse)
        );
        assert_eq!(Framing::from_content_type(b"text/html"), None);
        assert_eq!(Framing::from_content_type(b"\xff"), None);
    }
}

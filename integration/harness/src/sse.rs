//! Server-sent events out of arbitrary chunks.
//!
//! In: the bytes of a streamed answer, cut anywhere. Out: the data of each complete event. Lines may end
//! in LF or CR LF; fields other than `data` are ignored, as no LLM API uses them for content.

/// Longer events are a sign that the stream is something else.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Collects chunks and gives events back.
#[derive(Debug, Default)]
pub struct SseReader {
    line: Vec<u8>,
    data: Vec<u8>,
    overlong: bool,
}

impl SseReader {
    /// Takes the next chunk and calls `event` with the data of each event that it completes.
    pub fn push(&mut self, chunk: &[u8], mut event: impl FnMut(&[u8])) {
        for byte in chunk {
            if *byte != b'\n' {
                if self.line.len() < EVENT_BYTES_MAX {
                    self.line.push(*byte);
                } else {
                    self.overlong = true;
                }
                continue;
            }
            let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
            if line.is_empty() {
                if !self.data.is_empty() {
                    event(&self.data);
                    self.data.clear();
                }
            } else if let Some(data) = line.strip_prefix(b"data:") {
                let data = data.strip_prefix(b" ").unwrap_or(data);
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                if self.data.len() + data.len() <= EVENT_BYTES_MAX {
                    self.data.extend_from_slice(data);
                } else {
                    self.overlong = true;
                }
            }
            self.line.clear();
        }
    }

    /// Whether an event was too long and is cut.
    pub fn overlong(&self) -> bool {
        self.overlong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut reader = SseReader::default();
        let mut events = Vec::new();
        for chunk in chunks {
            reader.push(chunk, |data| events.push(String::from_utf8(data.to_vec()).unwrap()));
        }
        events
    }

    #[test]
    fn any_cut_gives_the_same_events() {
        let stream = "data: {\"a\":\"\u{e9}\"}\n\n: comment\r\ndata:b\r\ndata: c\r\n\r\nevent: x\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\":\"\u{e9}\"}", "b\nc", "[DONE]"];
        let bytes = stream.as_bytes();
        for cut in 0..bytes.len() {
            let (left, right) = bytes.split_at(cut);
            assert_eq!(events(&[left, right]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn an_unfinished_event_is_not_given() {
        assert!(events(&[b"data: x\n"]).is_empty());
    }
}

//! Paths as servers behind might read them.

/// A path with this segment is internal, and never served on a listener with this filter.
const INTERNAL_SEGMENT: &[u8] = b"_warmpath";

/// Whether any segment of the path is the internal one, in any spelling that a server behind might
/// read so: percent-encoded, in capitals, after backslashes, with parameters.
pub fn is_internal(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let decoded = percent_decoded(path.as_bytes());
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        name.eq_ignore_ascii_case(INTERNAL_SEGMENT)
    })
}

/// A path or a query with its escapes resolved; what is no escape stays.
pub fn percent_decoded(mut bytes: &[u8]) -> Vec<u8> {
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

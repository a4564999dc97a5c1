use proptest::prelude::*;

use super::*;

fn through(stream: &[u8], chunk_bytes: usize) -> Vec<u8> {
    let mut withholder = Withholder::default();
    let mut out = Vec::new();
    for chunk in stream.chunks(chunk_bytes) {
        out.extend(withholder.push(chunk));
    }
    out.extend(withholder.finish());
    out
}

/// The stream passes, whatever its chunks, as `expected`.
#[track_caller]
fn passes_as(stream: &str, expected: &str) {
    for chunk_bytes in [1, 2, 3, 7, 50, 100_000] {
        let out = through(stream.as_bytes(), chunk_bytes);
        assert_eq!(String::from_utf8_lossy(&out), expected, "chunks of {chunk_bytes}");
    }
}

const CHUNK: &str = r#"data: {"id":"x","choices":[{"index":0,"text":"a"}]}"#;
const EXTRA: &str = r#"data: {"id":"x","choices":[],"usage":{"prompt_tokens":3}}"#;

#[test]
fn the_extra_event_is_taken_out_with_either_line_end() {
    for end in ["\n", "\r\n"] {
        let stream = |events: &[&str]| -> String {
            events.iter().map(|event| format!("{event}{end}{end}")).collect()
        };
        let with = stream(&[CHUNK, EXTRA, "data: [DONE]"]);
        passes_as(&with, &stream(&[CHUNK, "data: [DONE]"]));
        // Nothing after it, its last line's end missing, or all of it.
        passes_as(&stream(&[CHUNK, EXTRA]), &stream(&[CHUNK]));
        passes_as(&format!("{}{EXTRA}{end}", stream(&[CHUNK])), &stream(&[CHUNK]));
        passes_as(&format!("{}{EXTRA}", stream(&[CHUNK])), &stream(&[CHUNK]));
    }
}

#[test]
fn a_null_usage_is_taken_out_with_its_comma() {
    for (with, without) in [
        (r#"data: {"choices":[{}],"usage":null}"#, r#"data: {"choices":[{}]}"#),
        (r#"data:{"usage": null, "choices":[{}]}"#, r#"data:{"choices":[{}]}"#),
        (r#"data: {"a":1 , "usage" : null ,"b":2}"#, r#"data: {"a":1 ,"b":2}"#),
        (r#"data: { "usage":null }"#, r#"data: {  }"#),
    ] {
        passes_as(&format!("{with}\n\n{with}"), &format!("{without}\n\n{without}"));
    }
}

#[test]
fn all_else_passes() {
    for stream in [
        "",
        "\n\n\n",
        "data",
        ": a comment\n\ndata: [DONE]\n\nrest",
        // A usage with choices, of other types, within something else, twice, in a text.
        "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[],\"usage\":7}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"usage\":null}]}\n\n",
        "data: {\"choices\":[],\"usage\":null,\"usage\":{}}\n\n",
        "data: {\"choices\":[],\"choices\":[],\"usage\":{}}\n\n",
        "data: {\"choices\":[{\"text\":\"\\\"usage\\\":null\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{}\n\n",
        // The extra event's line in an event of several.
        "event: x\ndata: {\"choices\":[],\"usage\":{}}\n\n",
        "data: {\"choices\":[],\"usage\":{}}\ndata: x\n\n",
        "data: {\"choices\":[],\"usage\":{}}\nid: 1\n\ndata: x\n\n",
        "data: {\"choices\":[],\"usage\":{}}\n\rx\n",
        // Other fields than data.
        "datax: {\"choices\":[],\"usage\":{}}\n\n",
        " data: {\"choices\":[],\"usage\":{}}\n\n",
    ] {
        passes_as(stream, stream);
    }
    let not_text = b"data: \xff \"usage\" \xfe\n\ndata: \xff";
    assert_eq!(through(not_text, 3), not_text);
}

#[test]
fn no_more_than_a_data_line_is_held() {
    let mut withholder = Withholder::default();
    assert_eq!(withholder.push(b": comment"), b": comment");
    assert_eq!(withholder.push(b"\n\nevent: x"), b"\n\nevent: x");
    assert_eq!(withholder.push(b"\ndata: in the same event"), b"\ndata: in the same event");
    assert_eq!(withholder.push(b"\n\nda"), b"\n\n");
    assert_eq!(withholder.push(b"ta: {\"a\":"), b"");
    assert_eq!(withholder.push(b"1}\n"), b"data: {\"a\":1}\n");
    assert_eq!(withholder.push(b"\ndata: "), b"\n");
    let mut passed = 0;
    for _ in 0..100 {
        passed += withholder.push(&[b'x'; 10_000]).len();
        assert!(withholder.held.capacity() <= 2 * SSE_LINE_BYTES_MAX + 20_000);
    }
    assert_eq!(passed, 100 * 10_000 + "data: ".len());
    assert_eq!(withholder.finish(), b"");
}

/// An event as it is without `include_usage`, and as it is with it.
fn event() -> impl Strategy<Value = (String, String)> {
    let chunk =
        ("[a-z\"\\\\ é]{0,12}", 0..3_usize, any::<bool>()).prop_map(|(text, at, is_null)| {
            let text = serde_json::Value::String(text).to_string();
            let mut members =
                vec![r#""id":"x""#.to_owned(), format!(r#""choices":[{{"text":{text}}}]"#)];
            let without = format!("data: {{{}}}", members.join(","));
            if is_null {
                members.insert(at, r#""usage":null"#.to_owned());
            }
            (without, format!("data: {{{}}}", members.join(",")))
        });
    let other = prop_oneof![
        Just(": ping"),
        Just("event: x\ndata: {\"usage\":null}"),
        Just("data: a\ndata: b"),
        Just("data:"),
        Just(""),
    ];
    prop_oneof![4 => chunk, 1 => other.prop_map(|text| (text.to_owned(), text.to_owned()))]
}

fn in_chunks(stream: &str, cuts: &[prop::sample::Index]) -> Vec<u8> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    let mut withholder = Withholder::default();
    let mut out = Vec::new();
    for pair in cuts.windows(2) {
        out.extend(withholder.push(&stream.as_bytes()[pair[0]..pair[1]]));
    }
    out.extend(withholder.finish());
    out
}

proptest! {
    #[test]
    fn the_client_sees_what_it_would_without_the_question(
        events in prop::collection::vec(event(), 0..12),
        is_done: bool,
        is_crlf: bool,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let end = if is_crlf { "\r\n" } else { "\n" };
        let done = if is_done { "data: [DONE]\n\n" } else { "" };
        let (mut without, mut with) = (String::new(), String::new());
        for (one_without, one_with) in &events {
            without += &format!("{one_without}\n\n");
            with += &format!("{one_with}\n\n");
        }
        without += done;
        with += &format!("{EXTRA}\n\n{done}");
        let out = in_chunks(&with.replace('\n', end), &cuts);
        prop_assert_eq!(String::from_utf8(out).unwrap(), without.replace('\n', end));
    }

    #[test]
    fn streams_without_usage_pass(
        stream in "(data: ?|event|[a-z{}:\\r\\n\"]|\\n\\n){0,60}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        prop_assert_eq!(String::from_utf8(in_chunks(&stream, &cuts)).unwrap(), stream);
    }
}

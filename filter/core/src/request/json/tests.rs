use super::*;

fn value(text: &str) -> Result<Value, RequestError> {
    read(text)?.to_value()
}

fn shown(text: &str) -> String {
    value(text).unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
}

#[test]
fn what_json_has() {
    for text in [
        "null",
        "true",
        "false",
        "0",
        "-7",
        "18446744073709551615",
        "-9223372036854775808",
        "1.5",
        r#""""#,
        r#""a\nb\"c\\d""#,
        "[]",
        "{}",
        "[[],{},[1,2],[1,\"a\"]]",
        r#"{"b":1,"a":[null]}"#,
    ] {
        assert_eq!(shown(text), text);
        let spaced = format!(" \t\r\n{text}\n ");
        assert_eq!(shown(&spaced), text);
    }
}

#[test]
fn what_is_not_json() {
    for text in [
        "",
        " ",
        "nul",
        "nullx",
        "tru",
        "+1",
        "01",
        "-",
        "-x",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "1 2",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "{}}",
        "{a:1}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a" 1}"#,
        r#"{1:2}"#,
        "\"",
        r#""\""#,
        r#""\x""#,
        r#""\u12"#,
        r#""\u12g4""#,
        "\"\u{1}\"",
        "\"\n\"",
        "'a'",
        "\u{a0}1",
        "NaNN",
        "-Inf",
        "[1,2",
        "[1,2}",
        "// x\n1",
    ] {
        assert_eq!(read(text).err(), Some(RequestError::NotJson), "{text:?}");
    }
}

#[test]
fn escapes() {
    assert_eq!(value(r#""\u0041\u00e9\u4e2d\ud83d\ude00\/\b\f""#), Ok("Aé中😀/\u{8}\u{c}".into()));
    assert_eq!(value(r#""\u0000""#), Ok("\0".into()));
    assert_eq!(value(r#""é\\u0041""#), Ok("é\\u0041".into()));
    for lone in [
        r#""\ud800""#,
        r#""\ud800x""#,
        r#""\ud800\n""#,
        r#""\ud800\ud800""#,
        r#""\ud800\u0041""#,
        r#""\udc00""#,
        r#""\udc00\ud800""#,
    ] {
        let node = read(lone).expect("is read");
        assert_eq!(node.to_value(), Err(RequestError::LoneSurrogate), "{lone}");
    }
}

#[test]
fn a_string_ends_where_it_ends_however_long_it_is() {
    for length in 0..40 {
        for end in ["\"", "\\n\"", "é\"", "\u{7f}\"", "\u{80}\""] {
            let plain = "x".repeat(length);
            let text = format!("\"{plain}{end}");
            let expected = format!("{plain}{}", end.trim_end_matches('"').replace("\\n", "\n"));
            assert_eq!(value(&text), Ok(expected.into()), "{text}");
            let control = format!("\"{plain}\u{1f}{end}");
            assert_eq!(read(&control).err(), Some(RequestError::NotJson));
        }
    }
    // Every byte in every place of an eight-byte word.
    for character in ' '..='~' {
        for at in 0..9 {
            let text = format!("\"{}{character}zzzzzzzz\"", "y".repeat(at));
            let ours = value(&text).ok();
            assert_eq!(ours, serde_json::from_str(&text).ok(), "{text}");
        }
    }
}

#[test]
fn numbers_as_python_has_them() {
    assert_eq!(shown("-0"), "0");
    assert_eq!(shown("-0.0"), "-0.0");
    assert_eq!(shown("1e2"), "100.0");
    assert_eq!(shown("1.50"), "1.5");
    // Correctly rounded, unlike a quick conversion.
    assert_eq!(value("7.0420557077594588e-21").unwrap().as_f64(), Some(7.042_055_707_759_459e-21));
    for beyond in [
        "18446744073709551616",
        "-9223372036854775809",
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "-Infinity",
        &"9".repeat(10_000),
    ] {
        let node = read(beyond).expect("is read");
        assert_eq!(node.to_value(), Err(RequestError::Number), "{beyond}");
    }
}

#[test]
fn token_ids_stay_compact() {
    assert_eq!(read("[1, 2 ,4294967295]"), Ok(Node::Ids(vec![1, 2, u32::MAX])));
    for other in ["[]", "[1,4294967296]", "[1,-2]", "[1,2.0]", "[1,\"a\"]", "[1,[2]]", "[1e2]"] {
        assert!(matches!(read(other), Ok(Node::Array(_))), "{other}");
        assert_eq!(shown(other), serde_json::from_str::<Value>(other).unwrap().to_string());
    }
    assert_eq!(read("[1,02]").err(), Some(RequestError::NotJson));
}

#[test]
fn the_last_of_equal_keys_counts_in_the_first_ones_place() {
    assert_eq!(shown(r#"{"a":1,"b":2,"\u0061":3}"#), r#"{"a":3,"b":2}"#);
    let node = read(r#"{"a":1,"a":null}"#).unwrap();
    let object = node.as_object().unwrap();
    assert_eq!((object.given("a"), object.get("a")), (Some(&Node::Null), None));
}

#[test]
fn bounds() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(&nested(JSON_DEPTH_MAX)).is_ok());
    assert_eq!(read(&nested(JSON_DEPTH_MAX + 1)).err(), Some(RequestError::TooDeep));
    assert_eq!(read(&"[".repeat(1_000_000)).err(), Some(RequestError::TooDeep));
    let many = |count: usize| format!("[{}null]", "null,".repeat(count - 1));
    assert!(read(&many(JSON_VALUES_MAX - 1)).is_ok());
    assert_eq!(read(&many(JSON_VALUES_MAX)).err(), Some(RequestError::TooManyValues));
    let ids = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    assert!(read(&ids(TOKEN_IDS_MAX)).is_ok());
    assert_eq!(read(&ids(TOKEN_IDS_MAX + 1)).err(), Some(RequestError::TooManyValues));
}

#[test]
fn strings_are_borrowed() {
    let text = format!(r#"{{"a":"{}"}}"#, "x".repeat(100));
    let node = read(&text).unwrap();
    let borrowed = node.as_object().unwrap().get("a").unwrap().as_text().unwrap().decode().unwrap();
    assert!(matches!(borrowed, Cow::Borrowed(_)));
}

//! Bodies that are meant to hurt: each ends in a pick or in a named fallback, within bounds.

use std::rc::Rc;

use warmpath_core::config::Config;
use warmpath_core::ids::NowMs;
use warmpath_core::limits::PROMPT_BLOCKS_MAX;
use warmpath_core::load::Ledger;
use warmpath_core::metrics::Reason;
use warmpath_core::model::Model;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Router};
use warmpath_core::store::MemoryStore;

#[path = "support/model.rs"]
mod support;

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
    {{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}\n\
    {% endfor %}";

/// What becomes of a body.
fn decide(path: &str, body: &[u8]) -> Reason {
    let config = br#"{"body_bytes_max":67108864,
        "backends":[{"name":"a","cluster":"a"},{"name":"b","cluster":"b"}],
        "models":[{"name":"m","bundle":{"cluster":"c","path":"/m"}}]}"#;
    let config = Config::parse(config).expect("a configuration");
    let model = Model::from_bundle(support::bundle(TEMPLATE), 1).expect("loads");
    let router = Router {
        config: &config,
        models: &[Some(Rc::new(model))],
        store: &MemoryStore::default(),
        ledger: &Ledger::new(1),
        reported: &NOTHING,
        explorer: None,
        now: NowMs(1),
        random: 1,
        turn: 1,
    };
    let decision = router.route(path, body);
    if let Decision::Pick(pick) = &decision {
        assert!(pick.prompt.hashes.len() <= PROMPT_BLOCKS_MAX);
    }
    assert_eq!(decision.order().len(), 2, "a backend is named whatever the body is");
    decision.reason()
}

fn chat(messages: &str, rest: &str) -> String {
    format!(r#"{{"model":"m","messages":[{messages}]{rest}}}"#)
}

fn user(content: &str) -> String {
    format!(r#"{{"role":"user","content":{content}}}"#)
}

fn decide_chat(messages: &str, rest: &str) -> Reason {
    decide("/v1/chat/completions", chat(messages, rest).as_bytes())
}

#[test]
fn ten_megabytes_of_one_letter() {
    let letters = "a".repeat(10 << 20);
    let completion = format!(r#"{{"model":"m","prompt":"{letters}"}}"#);
    assert_eq!(decide("/v1/completions", completion.as_bytes()), Reason::PrefixMiss);
    // A template's output has a bound of its own.
    let reason = decide_chat(&user(&format!("\"{letters}\"")), "");
    assert!(matches!(reason, Reason::PrefixMiss | Reason::TemplateFailed), "{reason:?}");
    assert_eq!(decide("/v1/completions", letters.as_bytes()), Reason::NotJson);
    let digits = "1".repeat(10 << 20);
    assert_eq!(decide("/v1/completions", digits.as_bytes()), Reason::WrongShape);
    let brackets = "[".repeat(10 << 20);
    assert_eq!(decide("/v1/completions", brackets.as_bytes()), Reason::TooManyValues);
    let quotes = "\"".repeat(10 << 20);
    assert_eq!(decide("/v1/completions", quotes.as_bytes()), Reason::NotJson);
    let backslashes = format!(r#"{{"model":"m","prompt":"{}"}}"#, "\\".repeat(10 << 20));
    assert_eq!(decide("/v1/completions", backslashes.as_bytes()), Reason::PrefixMiss);
}

#[test]
fn a_hundred_thousand_messages() {
    let messages = vec![user("\"hi\""); 100_000].join(",");
    let reason = decide_chat(&messages, "");
    assert!(matches!(reason, Reason::PrefixMiss | Reason::TemplateFailed), "{reason:?}");
    let parts = vec![r#"{"type":"text","text":"a"}"#; 100_000].join(",");
    let reason = decide_chat(&user(&format!("[{parts}]")), "");
    assert!(matches!(reason, Reason::PrefixMiss | Reason::TemplateFailed), "{reason:?}");
    let images = vec![r#"{"type":"image_url","image_url":{"url":"u"}}"#; 100_000].join(",");
    let reason = decide_chat(&user(&format!("[{images}]")), "");
    assert!(matches!(reason, Reason::PrefixMiss | Reason::TemplateFailed), "{reason:?}");
}

#[test]
fn ten_thousand_tools() {
    let tool = r#"{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}"#;
    let tools = vec![tool; 10_000].join(",");
    let reason = decide_chat(&user("\"hi\""), &format!(r#","tools":[{tools}]"#));
    assert!(matches!(reason, Reason::PrefixMiss | Reason::TemplateFailed), "{reason:?}");
}

#[test]
fn lone_surrogates() {
    let lone = r#""a\ud800b""#;
    assert_eq!(decide_chat(&user(lone), ""), Reason::LoneSurrogate);
    let tools = format!(r#","tools":[{{"type":"function","function":{{"name":{lone}}}}}]"#);
    assert_eq!(decide_chat(&user("\"a\""), &tools), Reason::LoneSurrogate);
    let arguments = r#"{"role":"assistant","tool_calls":[{"id":"i","type":"function",
        "function":{"name":"f","arguments":"{\"a\":\"\\ud800\"}"}}]}"#;
    assert_eq!(decide_chat(arguments, ""), Reason::LoneSurrogate);
    let completion = format!(r#"{{"model":"m","prompt":{lone}}}"#);
    assert_eq!(decide("/v1/completions", completion.as_bytes()), Reason::LoneSurrogate);
    // Not of the prompt.
    assert_eq!(decide_chat(&user("\"a\""), &format!(r#","user":{lone}"#)), Reason::PrefixMiss);
}

#[test]
fn nul_bytes() {
    assert_eq!(decide_chat(&user(r#""a\u0000b""#), ""), Reason::PrefixMiss);
    assert_eq!(decide_chat(&user("\"a\0b\""), ""), Reason::NotJson);
    assert_eq!(decide("/v1/chat/completions", &[0; 1_000]), Reason::NotJson);
}

#[test]
fn duplicate_keys() {
    let twice = r#"{"role":"user","role":"user","content":"a","content":"b"}"#;
    assert_eq!(decide_chat(twice, r#","model":"m","model":"m""#), Reason::PrefixMiss);
    assert_eq!(decide_chat(twice, r#","model":"other""#), Reason::UnknownModel);
    let many = r#""k":1,"#.repeat(200_000);
    let kwargs = format!(r#","chat_template_kwargs":{{{many}"k":2}}"#);
    assert_eq!(decide_chat(&user("\"a\""), &kwargs), Reason::PrefixMiss);
}

#[test]
fn numbers_of_ten_thousand_digits() {
    let digits = "9".repeat(10_000);
    assert_eq!(decide_chat(&user("\"a\""), &format!(r#","seed":{digits}"#)), Reason::PrefixMiss);
    let kwargs = format!(r#","chat_template_kwargs":{{"n":{digits}}}"#);
    assert_eq!(decide_chat(&user("\"a\""), &kwargs), Reason::NumberOutOfRange);
    let limit = format!(r#","max_tokens":{digits}"#);
    assert_eq!(decide_chat(&user("\"a\""), &limit), Reason::PrefixMiss);
    let ids = format!(r#"{{"model":"m","prompt":[1,{digits}]}}"#);
    assert_eq!(decide("/v1/completions", ids.as_bytes()), Reason::WrongShape);
    let float = format!("0.{digits}e-{digits}");
    let kwargs = format!(r#","chat_template_kwargs":{{"n":{float}}}"#);
    assert_eq!(decide_chat(&user("\"a\""), &kwargs), Reason::PrefixMiss);
}

#[test]
fn token_ids_out_of_range() {
    for ids in ["260", "4294967295"] {
        let body = format!(r#"{{"model":"m","prompt":[1,{ids}]}}"#);
        assert_eq!(decide("/v1/completions", body.as_bytes()), Reason::TokenOutOfRange);
        let body = format!(r#"{{"model":"m","input_ids":[{ids}]}}"#);
        assert_eq!(decide("/generate", body.as_bytes()), Reason::TokenOutOfRange);
        let body = format!(r#"{{"model":"m","token_ids":[{ids}],"sampling_params":{{}}}}"#);
        assert_eq!(decide("/inference/v1/generate", body.as_bytes()), Reason::TokenOutOfRange);
    }
    for ids in ["4294967296", "-1", "1.5", "\"1\"", "null"] {
        let body = format!(r#"{{"model":"m","prompt":[1,{ids}]}}"#);
        assert_eq!(decide("/v1/completions", body.as_bytes()), Reason::WrongShape, "{ids}");
    }
    let many = "1,".repeat(3 << 20);
    let body = format!(r#"{{"model":"m","prompt":[{many}1]}}"#);
    assert_eq!(decide("/v1/completions", body.as_bytes()), Reason::TooManyValues);
}

#[test]
fn deep_nesting() {
    let nested = format!("{}{}", r#"{"a":"#.repeat(100), "1".to_owned() + &"}".repeat(100));
    let kwargs = format!(r#","chat_template_kwargs":{{"n":{nested}}}"#);
    assert_eq!(decide_chat(&user("\"a\""), &kwargs), Reason::TemplateFailed);
    let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let kwargs = format!(r#","chat_template_kwargs":{{"n":{nested}}}"#);
    assert_eq!(decide_chat(&user("\"a\""), &kwargs), Reason::TooManyValues);
    let arguments = r#"{\"a\":"#.repeat(200);
    let call = format!(
        r#"{{"role":"assistant","tool_calls":[{{"id":"i","type":"function",
        "function":{{"name":"f","arguments":"{arguments}"}}}}]}}"#
    );
    assert_eq!(decide_chat(&call, ""), Reason::TooManyValues);
}

//! Requests for models that speak Harmony, through the router: who gets it, and bodies meant to hurt.

use std::rc::Rc;

use serde_json::{Value, json};
use warmpath_core::config::Config;
use warmpath_core::harmony::Mark;
use warmpath_core::ids::NowMs;
use warmpath_core::load::Ledger;
use warmpath_core::model::Model;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::Router;
use warmpath_core::store::MemoryStore;

#[path = "support/model.rs"]
mod support;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}";

/// What a request comes to: the reason of its decision, and its prompt's tokens.
fn explained(
    added: &[&str],
    format: Option<&str>,
    path: &str,
    body: &str,
) -> (&'static str, usize) {
    let mut model = json!({"name": "m", "bundle": {"cluster": "c", "path": "/m"}});
    if let Some(format) = format {
        model["chat_format"] = format.into();
    }
    let config = json!({"backends": [{"name": "a", "cluster": "a"}], "models": [model],
        "body_bytes_max": 67_108_864});
    let config = Config::parse(config.to_string().as_bytes()).expect("a configuration");
    let bundle = support::bundle_with(TEMPLATE, added);
    let router = Router {
        config: &config,
        models: &[Some(Rc::new(Model::from_bundle(bundle, 1).expect("loads")))],
        store: &MemoryStore::default(),
        ledger: &Ledger::new(1),
        reported: &NOTHING,
        explorer: None,
        now: NowMs(1_750_000_000_000),
        random: 1,
        turn: 1,
    };
    let explanation = router.explain(path, body.as_bytes(), None);
    (explanation.reason, explanation.prompt.map_or(0, |prompt| prompt.tokens))
}

fn marks() -> Vec<&'static str> {
    ["<s>"].into_iter().chain(Mark::ALL.map(Mark::text)).collect()
}

fn in_harmony(body: &Value) -> (&'static str, usize) {
    explained(&marks(), None, "/v1/chat/completions", &body.to_string())
}

#[test]
fn the_tokenizer_tells_unless_the_configuration_does() {
    let chat = "/v1/chat/completions";
    let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    let tokens = |added: &[&str], format, path| explained(added, format, path, &body).1;
    let (with_marks, without) = (marks(), support::ADDED);
    let (of_template, of_harmony) = ("user:hi\n".len(), tokens(&with_marks, None, chat));
    assert!(of_harmony > 200, "{of_harmony}");
    assert_eq!(tokens(&without, None, chat), of_template);
    assert_eq!(tokens(&with_marks, Some("auto"), chat), of_harmony);
    assert_eq!(tokens(&with_marks, Some("template"), chat), of_template);
    assert_eq!(tokens(&with_marks, Some("harmony"), chat), of_harmony);
    let impossible = explained(&without, Some("harmony"), chat, &body);
    assert_eq!(impossible, ("no_template", 0));
    // What only other engines have is not written in it.
    assert_ne!(tokens(&with_marks, None, "/api/chat"), of_harmony);
    assert_eq!(explained(&with_marks, None, "/v1/completions", r#"{"prompt":"hi"}"#).1, 3);
    let responses = explained(&with_marks, None, "/v1/responses", r#"{"input":"hi"}"#);
    assert_eq!(responses.1, of_harmony);
    let stored = r#"{"input":"hi","previous_response_id":"r"}"#;
    assert_eq!(explained(&with_marks, None, "/v1/responses", stored).0, "stored_history");
}

#[test]
fn what_the_engine_refuses_goes_by_load() {
    let user = json!({"role": "user", "content": "hi"});
    for body in [
        json!({"messages": [user], "reasoning_effort": "none"}),
        json!({"messages": [{"role": "stranger", "content": "hi"}]}),
        json!({"messages": [user, {"role": "tool", "tool_call_id": "c", "content": [{"type": "output_text", "text": "t"}]}]}),
    ] {
        let (reason, tokens) = in_harmony(&body);
        assert!(["unsupported", "wrong_shape"].contains(&reason), "{body}: {reason}");
        assert_eq!(tokens, 0);
    }
}

#[test]
fn schemas_that_are_meant_to_hurt_are_bounded() {
    let chat = |parameters: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}}],"tools":[{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}]}}"#
        )
    };
    let of =
        |parameters: &str| explained(&marks(), None, "/v1/chat/completions", &chat(parameters));
    let nested = |open: &str, close: &str, depth: usize| {
        format!("{}{{}}{}", open.repeat(depth), close.repeat(depth))
    };
    // As deep as bodies may be, in each way that a schema nests, and asking at each depth whether it says null.
    for (open, close, depth) in [
        (r#"{"type":"object","nullable":true,"properties":{"a":"#, "}}", 60),
        (r#"{"type":"array","nullable":true,"items":"#, "}", 110),
        (r#"{"nullable":true,"oneOf":["#, "]}", 55),
    ] {
        let (reason, tokens) = of(&nested(open, close, depth));
        assert_eq!(reason, "prefix_miss", "{open}");
        assert!(tokens > 300);
    }
    let (reason, _) = of(&nested(r#"{"items":"#, "}", 1_000));
    assert_eq!(reason, "too_many_values");
    // Many members far inside: what the indentation makes of them is longer than a prompt may be.
    let members: Vec<String> =
        (0..60_000).map(|at| format!(r#""{at:0400}":{{"type":"string"}}"#)).collect();
    let wide = format!(r#"{{"type":"object","properties":{{{}}}}}"#, members.join(","));
    let deep = nested(r#"{"type":"object","properties":{"a":"#, "}}", 58).replacen("{}", &wide, 1);
    let (reason, tokens) = of(&deep);
    assert_eq!((reason, tokens), ("tokenizer_failed", 0));
    let tools: Vec<String> = (0..10_000)
        .map(|at| format!(r#"{{"type":"function","function":{{"name":"f{at}"}}}}"#))
        .collect();
    let body = format!(r#"{{"messages":[],"tools":[{}]}}"#, tools.join(","));
    let (reason, tokens) = explained(&marks(), None, "/v1/chat/completions", &body);
    assert_eq!(reason, "prefix_miss");
    assert!(tokens > 100_000);
}

//! What keeps prefixes apart: requests that differ only in their model, adapter, salt or media do
//! not share, and equal ones do. Through the router and the tree, with a real tokenizer.

use std::rc::Rc;

use serde_json::{Value, json};
use warmpath_core::config::Config;
use warmpath_core::dispatch::Writer;
use warmpath_core::ids::NowMs;
use warmpath_core::load::Ledger;
use warmpath_core::metrics::Reason;
use warmpath_core::model::Model;
use warmpath_core::reported::NOTHING;
use warmpath_core::route::{Decision, Router};
use warmpath_core::store::MemoryStore;

#[path = "support/model.rs"]
mod support;

const BLOCK_TOKENS: usize = 16;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}\
    {% if p.type == 'image' %}<|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}\n\
    {% endfor %}";

/// A filter in front of one backend, so that nothing but the prompt decides what is found.
struct Bed {
    config: Config,
    models: Vec<Option<Rc<Model>>>,
    store: MemoryStore,
    ledger: Ledger,
    turn: u64,
}

impl Bed {
    fn new() -> Self {
        let bundle = json!({"cluster": "c", "path": "/m"});
        let config = json!({
            "kv_capacity_tokens": 1_000_000,
            "backends": [{"name": "a", "cluster": "a"}],
            "models": [
                {"name": "m", "aliases": ["also m"], "adapters": ["m-x", "m-y"], "bundle": bundle},
                {"name": "n", "bundle": bundle},
            ],
        });
        let model =
            || Some(Rc::new(Model::from_bundle(support::bundle(TEMPLATE), 1).expect("loads")));
        Self {
            config: Config::parse(config.to_string().as_bytes()).expect("a configuration"),
            models: vec![model(), model()],
            store: MemoryStore::default(),
            ledger: Ledger::new(1),
            turn: 0,
        }
    }

    /// Routes a request and enters its blocks; gives the blocks that were found, or the fallback's
    /// reason.
    fn found(&mut self, path: &str, body: &Value) -> Result<usize, Reason> {
        self.turn += 1;
        let now = NowMs(1_000_000);
        let router = Router {
            config: &self.config,
            models: &self.models,
            store: &self.store,
            ledger: &self.ledger,
            reported: &NOTHING,
            explorer: None,
            now,
            random: self.turn,
            turn: self.turn,
        };
        let decision = router.route(path, body.to_string().as_bytes());
        let found = match &decision {
            Decision::Pick(pick) => {
                let found = pick.prompt.matched.resident_blocks.round() as usize;
                let is_hit = pick.reason != Reason::PrefixMiss;
                assert_eq!(is_hit, found > 0, "{:?} with {found} blocks", pick.reason);
                Ok(found)
            }
            other => return Err(other.reason()),
        };
        let mut writer =
            Writer { config: &self.config, store: &self.store, ledger: &mut self.ledger, now };
        writer.dispatch(decision);
        found
    }
}

/// Two requests share nothing with each other, and each shares with itself.
fn assert_apart(path: &str, one: &Value, other: &Value) {
    let mut bed = Bed::new();
    assert_eq!(bed.found(path, one), Ok(0));
    assert_eq!(bed.found(path, other), Ok(0), "{other} shares with {one}");
    let again = [bed.found(path, one), bed.found(path, other)];
    assert!(again.iter().all(|found| *found > Ok(0)), "{again:?}");
}

/// Two requests share all their blocks.
fn assert_shared(path: &str, one: &Value, other: &Value) {
    let mut bed = Bed::new();
    assert_eq!(bed.found(path, one), Ok(0));
    assert!(bed.found(path, other) > Ok(0), "{other} does not share with {one}");
}

fn chat(fields: &Value) -> Value {
    let mut body =
        json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(200)}]});
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn models() {
    assert_apart(CHAT, &chat(&json!({"model": "m"})), &chat(&json!({"model": "n"})));
    assert_shared(CHAT, &chat(&json!({"model": "m"})), &chat(&json!({"model": "also m"})));
}

#[test]
fn adapters() {
    let of = |model: &str| chat(&json!({ "model": model }));
    assert_apart(CHAT, &of("m"), &of("m-x"));
    assert_apart(CHAT, &of("m-x"), &of("m-y"));
    assert_shared(CHAT, &of("m-x"), &of("m-x"));
    let sglang =
        |adapter: Value| json!({"model": "m", "text": "y".repeat(200), "lora_path": adapter});
    assert_apart("/generate", &sglang(json!("x")), &sglang(json!("y")));
    assert_apart("/generate", &sglang(json!("x")), &sglang(Value::Null));
    assert_shared("/generate", &sglang(json!("x")), &sglang(json!(["x"])));
}

#[test]
fn salts() {
    let of = |salt: &str| chat(&json!({ "cache_salt": salt }));
    assert_apart(CHAT, &of("a"), &of("b"));
    assert_apart(CHAT, &of("a"), &chat(&json!({})));
    assert_shared(CHAT, &of("a"), &of("a"));
    for (path, mut body) in [
        ("/v1/completions", json!({"prompt": "z".repeat(200)})),
        ("/v1/responses", json!({"input": "z".repeat(200)})),
        (
            "/v1/messages",
            json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": "z".repeat(200)}]}),
        ),
        ("/generate", json!({"text": "z".repeat(200)})),
        ("/inference/v1/generate", json!({"token_ids": vec![7; 200], "sampling_params": {}})),
    ] {
        body["model"] = "m".into();
        let mut salted = body.clone();
        salted["cache_salt"] = "a".into();
        assert_apart(path, &body, &salted);
    }
}

/// A text of five blocks, an image, and more text.
fn picture(url: &str) -> Value {
    chat(&json!({"messages": [{"role": "user", "content": [
        // With the role before it, the placeholder is the first token of the sixth block.
        {"type": "text", "text": "t".repeat(5 * BLOCK_TOKENS - "user:".len())},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "u".repeat(5 * BLOCK_TOKENS)},
    ]}]}))
}

#[test]
fn media_parts_prefixes_in_the_block_where_it_falls() {
    let mut bed = Bed::new();
    let (one, other) = ("data:image/png;base64,AAAA", "data:image/png;base64,AAAB");
    assert_eq!(bed.found(CHAT, &picture(one)), Ok(0));
    assert_eq!(bed.found(CHAT, &picture(other)), Ok(5), "what comes before it is shared");
    assert_eq!(bed.found(CHAT, &picture(one)), Ok(10));
    assert_eq!(bed.found(CHAT, &picture(other)), Ok(10));
    // The same text without an image shares its beginning, too.
    let mut plain = picture(one);
    if let Some(parts) = plain["messages"][0]["content"].as_array_mut() {
        parts.remove(1);
    }
    assert_eq!(bed.found(CHAT, &plain), Ok(5));
}

#[test]
fn media_whose_place_is_not_known_keeps_whole_prompts_apart() {
    let of = |image: &str| json!({"model": "m", "text": "v".repeat(200), "image_data": [image]});
    assert_apart("/generate", &of("a"), &of("b"));
    assert_shared("/generate", &of("a"), &of("a"));
    let raw = |image: &str| json!({"model": "m", "prompt": "v".repeat(200), "raw": true, "images": [image]});
    assert_apart("/api/generate", &raw("a"), &raw("b"));
}

#[test]
fn media_in_token_prompts_goes_by_its_own_hash_and_place() {
    let of = |hash: &str, offset: usize| {
        json!({"model": "m", "token_ids": vec![7; 160], "sampling_params": {}, "features": {
            "mm_hashes": {"image": [hash]},
            "mm_placeholders": {"image": [{"offset": offset, "length": 8}]}}})
    };
    let mut bed = Bed::new();
    let path = "/inference/v1/generate";
    assert_eq!(bed.found(path, &of("a", 40)), Ok(0));
    assert_eq!(bed.found(path, &of("b", 40)), Ok(2));
    assert_eq!(bed.found(path, &of("a", 40)), Ok(10));
    assert_eq!(bed.found(path, &of("a", 100)), Ok(2), "the same image elsewhere");
}

#[test]
fn an_api_that_is_off_or_has_no_prefixes_goes_by_load() {
    let mut bed = Bed::new();
    for path in ["/v1/embeddings", "/v1/rerank", "/score"] {
        assert_eq!(bed.found(path, &chat(&json!({}))), Err(Reason::LoadOnlyApi), "{path}");
    }
    let off = json!({
        "backends": [{"name": "a", "cluster": "a"}],
        "apis": {"chat_completions": false, "completions": true},
        "models": [{"name": "m", "bundle": {"cluster": "c", "path": "/m"}}],
    });
    bed.config = Config::parse(off.to_string().as_bytes()).expect("a configuration");
    assert_eq!(bed.found(CHAT, &chat(&json!({}))), Err(Reason::LoadOnlyApi));
    let completion = json!({"model": "m", "prompt": "w".repeat(200)});
    assert_eq!(bed.found("/v1/completions", &completion), Ok(0));
    let stored = json!({"model": "m", "input": "x", "previous_response_id": "r"});
    assert_eq!(bed.found("/v1/responses", &stored), Err(Reason::StoredHistory));
}

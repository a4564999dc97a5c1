use serde_json::{Value, json};
use warmpath_bundle::{MistralEfforts, MistralVersion};

use super::*;
use crate::harmony::Mark;
use crate::request::{Api, ChatFormat, parse, parse_for};

#[path = "../../tests/support/model.rs"]
mod support;

const NOW: NowMs = NowMs(1_750_000_000_000);

fn model(template: &str) -> Model {
    Model::from_bundle(support::bundle(template), 7).expect("loads")
}

fn prompt_of(model: &Model, api: Api, body: &Value) -> Result<Prompt, PromptError> {
    let request = parse(api, body.to_string().as_bytes()).expect("parses");
    prompt(Some(model), request, &ChatConfig::default(), NOW)
}

/// Tokens as text, special ones spelt out.
fn spelt(tokens: &[TokenId], added: &[&str]) -> String {
    let mut text = String::new();
    for token in tokens {
        match token.checked_sub(256) {
            Some(at) => text.push_str(added[at as usize]),
            None => text.push(char::from(*token as u8)),
        }
    }
    text
}

/// The prompt as text, special tokens spelt out.
fn shown(model: &Model, api: Api, body: &Value) -> String {
    spelt(&prompt_of(model, api, body).expect("a prompt").tokens, &support::ADDED)
}

const PLAIN: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}\
    {% if add_generation_prompt %}a:{% endif %}";

#[test]
fn completions_get_the_tokenizers_special_tokens_and_chats_the_templates() {
    let model = model(PLAIN);
    assert_eq!(shown(&model, Api::Completions, &json!({"prompt": "hi"})), "<s>hi");
    let bare = json!({"prompt": "hi", "add_special_tokens": false});
    assert_eq!(shown(&model, Api::Completions, &bare), "hi");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(shown(&model, Api::ChatCompletions, &chat), "<s>user:hi\na:");
    // This API asks for them although the template writes its own.
    assert_eq!(shown(&model, Api::Responses, &json!({"input": "hi"})), "<s><s>user:hi\na:");
}

/// A model that speaks Harmony: what begins with `<s>` is its template's.
fn harmony_model() -> (Model, Vec<&'static str>) {
    let added: Vec<&str> = ["<s>"].into_iter().chain(Mark::ALL.map(Mark::text)).collect();
    (Model::from_bundle(support::bundle_with(PLAIN, &added), 7).expect("loads"), added)
}

fn in_harmony(model: &Model, config: &ChatConfig, body: &Value) -> Result<Vec<u32>, PromptError> {
    let body = body.to_string();
    let request = parse_for(Api::ChatCompletions, body.as_bytes(), |_| ChatFormat::Harmony);
    Ok(prompt(Some(model), request.expect("parses"), config, NOW)?.tokens)
}

#[test]
fn marks_in_a_text_are_its_letters() {
    let (model, added) = harmony_model();
    assert!(model.speaks_harmony() && !self::model(PLAIN).speaks_harmony());
    let body = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
    let ids = |text: &str| in_harmony(&model, &ChatConfig::default(), &body(text)).unwrap();
    let marks = |ids: &[u32]| ids.iter().filter(|id| **id >= 256).count();
    let (plain, marked) = (ids(""), ids("<|end|><|start|>"));
    assert_eq!(marks(&plain), marks(&marked));
    assert_eq!(plain.len() + "<|end|><|start|>".len(), marked.len());
    // Again, now that the memo knows the texts.
    assert_eq!(ids("<|end|><|start|>"), marked);
    let text = spelt(&plain, &added);
    assert!(text.starts_with("<|start|>system<|message|>You are ChatGPT"), "{text}");
    assert!(text.contains("Current date: 2025-06-15\n\nReasoning: medium\n"), "{text}");
    assert!(text.ends_with("<|end|><|start|>user<|message|><|end|><|start|>assistant"), "{text}");
}

#[test]
fn functions_are_shown_in_harmony_as_the_configuration_says() {
    let (model, _) = harmony_model();
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let ids = |choice: Value, hides_unused_tools: bool, shows_named_tool_only: bool| {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "tool_choice": choice,
            "tools": [function("a"), function("b")]});
        let config =
            ChatConfig { hides_unused_tools, shows_named_tool_only, ..ChatConfig::default() };
        in_harmony(&model, &config, &body).unwrap().len()
    };
    let named = json!({"type": "function", "function": {"name": "b"}});
    let all = ids(json!("auto"), false, false);
    assert_eq!(ids(json!("none"), false, false), all);
    assert_eq!(ids(named.clone(), false, false), all);
    assert!(ids(json!("none"), true, false) < ids(named, false, true));
}

#[test]
fn what_harmony_cannot_show_has_a_name() {
    let (model, _) = harmony_model();
    let chat = |tools: Value| json!({"messages": [], "tools": tools});
    let long = "x".repeat(PROMPT_BYTES_MAX);
    let tools = json!([{"type": "function", "function": {"name": "f", "description": long}}]);
    let result = in_harmony(&model, &ChatConfig::default(), &chat(tools));
    assert!(matches!(result, Err(PromptError::TooLong(_))), "{result:?}");
    // A model without the marks cannot speak it.
    let result = in_harmony(&self::model(PLAIN), &ChatConfig::default(), &chat(json!([])));
    assert!(matches!(result, Err(PromptError::NoTemplate)), "{result:?}");
}

/// What a model makes of a chat in a version of Mistral's format, special tokens spelt out.
fn in_mistral(version: MistralVersion, body: &Value) -> Result<String, PromptError> {
    let added = [
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[IMG]",
        "[MODEL_SETTINGS]",
        "[/MODEL_SETTINGS]",
    ];
    let efforts =
        MistralEfforts { values: vec!["none".into(), "high".into()], default: "none".into() };
    let efforts = Some(efforts).filter(|_| version == MistralVersion::V15);
    let format = MistralFormat { version, efforts };
    let bundle = support::bundle_for(PLAIN, &added, Some(&format));
    let model = Model::from_bundle(bundle, 7).expect("loads");
    let prompt = prompt_of(&model, Api::ChatCompletions, body)?;
    for item in &prompt.media {
        assert_eq!(prompt.tokens[item.token_index], 256 + 10);
    }
    Ok(spelt(&prompt.tokens, &added))
}

#[test]
fn mistrals_chats_are_written_by_their_version() {
    use MistralVersion::{V3, V13, V15};
    let call = |id: &str| {
        json!({"id": id, "type": "function",
        "function": {"name": "f", "arguments": "{\"a\":1}"}})
    };
    let chat = json!({"messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "[INST] a"},
        {"role": "assistant", "tool_calls": [call("call_000000001"), call("000000002")]},
        {"role": "tool", "tool_call_id": "000000002", "content": "two"},
        {"role": "tool", "tool_call_id": "call_000000001", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]});
    assert_eq!(
        in_mistral(V13, &chat).unwrap(),
        "<s>[SYSTEM_PROMPT]s[/SYSTEM_PROMPT][INST][INST] a[/INST]\
         [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]f[ARGS]{\"a\": 1}</s>\
         [TOOL_RESULTS]1[/TOOL_RESULTS][TOOL_RESULTS]two[/TOOL_RESULTS][INST]b\n\nc[/INST]"
    );
    assert_eq!(
        in_mistral(V3, &chat).unwrap(),
        "<s>[INST][INST] a[/INST][TOOL_CALLS][\
         {\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"000000001\"}, \
         {\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"000000002\"}]</s>\
         [TOOL_RESULTS]{\"content\": \"two\", \"call_id\": \"000000002\"}[/TOOL_RESULTS]\
         [TOOL_RESULTS]{\"content\": 1, \"call_id\": \"000000001\"}[/TOOL_RESULTS][INST]s\n\nb\n\nc[/INST]"
    );
    let image = json!({"type": "image_url", "image_url": {"url": "u"}});
    let text = json!({"type": "text", "text": "b"});
    let shown = json!({"messages": [{"role": "user", "content": [text, image]}], "reasoning_effort": "high"});
    assert_eq!(
        in_mistral(V15, &shown).unwrap(),
        "<s>[MODEL_SETTINGS]{\"reasoning_effort\": \"high\"}[/MODEL_SETTINGS][INST][IMG]b[/INST]"
    );
}

#[test]
fn what_mistrals_format_cannot_show_has_a_name() {
    let ask = |version, message: Value, more: Value| {
        let mut body = json!({"messages": [message]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        in_mistral(version, &body).unwrap_err()
    };
    let user = json!({"role": "user", "content": "a"});
    for (message, more) in [
        (json!({"role": "user"}), json!({})),
        (json!({"role": "other", "content": "a"}), json!({})),
        (user.clone(), json!({"reasoning_effort": "low"})),
        (user, json!({"chat_template_kwargs": {"a": 1}})),
    ] {
        let error = ask(MistralVersion::V15, message.clone(), more);
        assert!(matches!(error, PromptError::Unwritable(_)), "{message}: {error}");
    }
    let thinking = json!({"role": "assistant", "content": "a", "reasoning": "r"});
    let error = ask(MistralVersion::V13, thinking, json!({}));
    assert!(matches!(error, PromptError::NoMark("[THINK]")), "{error}");
}

#[test]
fn prompts_are_shortened_as_the_engine_does() {
    let model = model("");
    let of = |tokens_max: i64, side: Option<&str>| {
        let body = json!({"prompt": "abcdef", "truncate_prompt_tokens": tokens_max,
            "truncation_side": side});
        shown(&model, Api::Completions, &body)
    };
    assert_eq!(of(4, None), "<s>def");
    assert_eq!(of(4, Some("left")), "cdef");
    assert_eq!(of(4, Some("right")), "<s>abc");
    assert_eq!(of(7, None), "<s>abcdef");
    assert_eq!(of(-1, None), "<s>abcdef");
    assert_eq!(of(0, None), "<s>");
    let ids = json!({"prompt": [1, 2, 3], "truncate_prompt_tokens": 2});
    assert_eq!(prompt_of(&model, Api::Completions, &ids).unwrap().tokens, [2, 3]);
}

#[test]
fn what_gives_no_prompt_is_named() {
    let bare = model("");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let refused = |model: &Model, api: Api, body: &Value| prompt_of(model, api, body).unwrap_err();
    assert!(matches!(refused(&bare, Api::ChatCompletions, &chat), PromptError::NoTemplate));
    let ids = json!({"prompt": [1, 260]});
    assert!(matches!(refused(&bare, Api::Completions, &ids), PromptError::TokenOutOfRange));
    let stored = json!({"input": "x", "previous_response_id": "r"});
    assert!(matches!(refused(&bare, Api::Responses, &stored), PromptError::Stored));
    let strict = model("{{ raise_exception('no') }}");
    assert!(matches!(refused(&strict, Api::ChatCompletions, &chat), PromptError::Template(_)));
    let request = parse(Api::Completions, br#"{"prompt":"a"}"#).unwrap();
    let none = prompt(None, request, &ChatConfig::default(), NOW);
    assert!(matches!(none, Err(PromptError::NoTokenizer)));
    let request = parse(Api::Completions, br#"{"prompt":[9999999]}"#).unwrap();
    let ids = prompt(None, request, &ChatConfig::default(), NOW).unwrap();
    assert_eq!(ids.tokens, [9_999_999]);
}

#[test]
fn media_falls_where_its_placeholder_is() {
    let template = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}\
        <|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
    let model = model(template);
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let content = json!(["ab", image("u"), "c", image("v")]);
    let body = json!({"messages": [{"role": "user", "content": content}]});
    let prompt = prompt_of(&model, Api::ChatCompletions, &body).unwrap();
    let places: Vec<usize> = prompt.media.iter().map(|item| item.token_index).collect();
    assert_eq!(places, [2, 4]);
    assert_ne!(prompt.media[0].content_hash, prompt.media[1].content_hash);
    // Without a placeholder the prompt is set apart from its start.
    let audio = json!({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}});
    let body = json!({"messages": [{"role": "user", "content": ["ab", audio]}]});
    let prompt = prompt_of(&model, Api::ChatCompletions, &body).unwrap();
    assert_eq!(prompt.media[0].token_index, 0);
}

#[test]
fn a_template_of_strings_gets_placeholders_in_its_text() {
    let model = model("{% for m in messages %}{{ m.content }}{% endfor %}");
    let content = json!(["ab", {"type": "image_url", "image_url": {"url": "u"}}]);
    let body = json!({"messages": [{"role": "user", "content": content}]});
    assert_eq!(shown(&model, Api::ChatCompletions, &body), "<|image_pad|>\nab");
    let prompt = prompt_of(&model, Api::ChatCompletions, &body).unwrap();
    assert_eq!(prompt.media[0].token_index, 0);
}

const SYSTEM_FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('system first') }}{% endif %}{{ m.role }}:{{ m.content }}\n{% endfor %}";

#[test]
fn late_system_prompts_move_to_the_front_where_the_template_refuses_them() {
    let body = json!({"model": "m", "max_tokens": 1, "system": "s", "messages": [
        {"role": "user", "content": "u"}, {"role": "system", "content": "late"}]});
    let strict = shown(&model(SYSTEM_FIRST), Api::Messages, &body);
    assert_eq!(strict, "system:slate\nuser:u\n");
    let lenient = model("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}");
    let lenient = shown(&lenient, Api::Messages, &body);
    assert_eq!(lenient, "system:s\nuser:u\nsystem:late\n");
    // The engine tries the template without its special tokens.
    let adding = model("{% for m in messages %}{{ bos_token + m.content }}{% endfor %}");
    assert_eq!(shown(&adding, Api::Messages, &body), "<s>slate<s>u");
}

#[test]
fn thinking_is_turned_off_in_the_templates_own_terms() {
    let body = json!({"model": "m", "max_tokens": 1, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "u"}]});
    let knows = model("{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}");
    assert_eq!(shown(&knows, Api::Messages, &body), "u|none|False");
    let ignores = model("{{ messages[0].content }}");
    assert_eq!(shown(&ignores, Api::Messages, &body), "u");
    // "none" means the highest effort here, which is not what was asked for.
    let picky = model(
        "{{ messages[0].content }}|{% if reasoning_effort in ['low', 'high'] %}\
         {{ reasoning_effort }}{% else %}max{% endif %}",
    );
    assert_eq!(shown(&picky, Api::Messages, &body), "u|low");
}

#[test]
fn configurations_that_share_a_model_share_no_answer_about_thinking() {
    let model =
        model("{{ messages[0].content }}|{% if efforts %}{{ reasoning_effort }}{% endif %}");
    let body = json!({"model": "m", "max_tokens": 1, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "u"}]});
    for (efforts, expected) in [(false, "u|"), (true, "u|none"), (false, "u|")] {
        let template_kwargs = json!({"efforts": efforts}).as_object().unwrap().clone();
        let config = ChatConfig { template_kwargs, ..ChatConfig::default() };
        let request = parse(Api::Messages, body.to_string().as_bytes()).unwrap();
        let tokens = prompt(Some(&model), request, &config, NOW).unwrap().tokens;
        let bytes: Vec<u8> = tokens.into_iter().map(|token| token as u8).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}

#[test]
fn configured_variables_are_defaults() {
    let model = model("{{ enable_thinking }}|{{ x }}");
    let config = ChatConfig {
        template_kwargs: json!({"enable_thinking": false, "x": 1}).as_object().unwrap().clone(),
        ..ChatConfig::default()
    };
    let of = |body: Value| {
        let request = parse(Api::ChatCompletions, body.to_string().as_bytes()).unwrap();
        let tokens = prompt(Some(&model), request, &config, NOW).unwrap().tokens;
        let bytes: Vec<u8> = tokens.into_iter().map(|token| token as u8).collect();
        String::from_utf8(bytes).unwrap()
    };
    let messages = json!([{"role": "user", "content": "u"}]);
    assert_eq!(of(json!({"messages": messages})), "False|1");
    let own =
        json!({"messages": messages, "chat_template_kwargs": {"x": 2, "enable_thinking": null}});
    assert_eq!(of(own), "False|2");
}

use super::*;

use serde_json::json;

fn request(api: Api, body: &Value) -> Result<Request, RequestError> {
    parse(api, body.to_string().as_bytes())
}

fn chat_of(api: Api, body: &Value) -> Chat {
    match request(api, body).unwrap().prompt {
        PromptInput::Chat(chat) => *chat,
        other => panic!("{other:?}"),
    }
}

fn tokens(tokens: &[TokenId]) -> PromptInput {
    PromptInput::Tokens { tokens: tokens.to_vec(), media: Vec::new() }
}

fn text(text: &str, special_tokens: bool) -> PromptInput {
    PromptInput::Text { text: text.to_owned(), special_tokens }
}

#[test]
fn paths() {
    assert_eq!(Api::from_path("/v1/chat/completions"), Some(Api::ChatCompletions));
    assert_eq!(Api::from_path("/v1/completions?x=1"), Some(Api::Completions));
    assert_eq!(Api::from_path("/v1/embeddings"), Some(Api::Embeddings));
    for other in
        ["/v1/models", "/", "", "/v1/chat/completions/", "/tokenize", "/v1/messages/batches"]
    {
        assert_eq!(Api::from_path(other), None);
    }
    let mut names: Vec<&str> = Api::ALL.iter().map(|api| api.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Api::ALL.len());
}

#[test]
fn a_chat_request() {
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "cache_salt": "s",
        "tools": [{"type": "function", "function": {"name": "f"}}], "max_tokens": 9, "stream": true,
        "chat_template_kwargs": {"enable_thinking": false}, "session_id": "x",
    });
    let request = request(Api::ChatCompletions, &body).unwrap();
    assert_eq!(request.model.as_deref(), Some("m"));
    assert_eq!(request.cache_salt, "s");
    assert_eq!(request.session.as_deref(), Some("x"));
    assert_eq!(request.output_tokens_max, Some(9));
    assert_eq!(request.approximation, None);
    let PromptInput::Chat(chat) = request.prompt else { panic!() };
    assert_eq!(chat.messages, [Message::of("user", "hi".to_owned())]);
    assert!(chat.tools.is_some() && chat.documents.is_none());
    assert!(chat.add_generation_prompt && !chat.continue_final_message);
    assert_eq!(chat.kwargs.get("enable_thinking"), Some(&Value::Bool(false)));
}

#[test]
fn null_is_absent() {
    let body = json!({
        "model": null, "messages": [], "tools": null, "add_generation_prompt": null,
        "chat_template_kwargs": null, "chat_template": null, "kv_transfer_params": null,
    });
    let chat = chat_of(Api::ChatCompletions, &body);
    assert!(chat.tools.is_none() && chat.add_generation_prompt && chat.kwargs.is_empty());
}

#[test]
fn completion_prompts() {
    let prompt = |body: Value| Ok(request(Api::Completions, &body)?.prompt);
    assert_eq!(prompt(json!({"prompt": "a"})), Ok(text("a", true)));
    assert_eq!(prompt(json!({"prompt": ["a", "b"]})), Ok(text("a", true)));
    assert_eq!(prompt(json!({"prompt": [1, 2]})), Ok(tokens(&[1, 2])));
    assert_eq!(prompt(json!({"prompt": [[3], [4]]})), Ok(tokens(&[3])));
    assert_eq!(prompt(json!({"prompt": "a", "add_special_tokens": false})), Ok(text("a", false)));
    for bad in [
        json!({}),
        json!({"prompt": []}),
        json!({"prompt": [[]]}),
        json!({"prompt": 5}),
        json!({"prompt": [1, -2]}),
        json!({"prompt": [1, 4_294_967_296_u64]}),
        json!({"prompt": [1, "a"]}),
        json!({"prompt": [1.5]}),
        json!({"prompt": [{}]}),
    ] {
        assert_eq!(prompt(bad.clone()), Err(RequestError::WrongShape("prompt")), "{bad}");
    }
    for field in ["suffix", "prompt_embeds"] {
        let body = json!({"prompt": "a", field: "x"});
        assert_eq!(prompt(body), Err(RequestError::Unsupported(field)));
    }
}

#[test]
fn truncation() {
    let of = |body: Value| request(Api::Completions, &body).unwrap().truncation;
    assert_eq!(of(json!({"prompt": "a"})), None);
    assert_eq!(of(json!({"prompt": "a", "truncate_prompt_tokens": -1})), None);
    assert_eq!(
        of(json!({"prompt": "a", "truncate_prompt_tokens": 7, "truncation_side": "right"})),
        Some(Truncation { tokens_max: 7, side: Some(Side::Right) })
    );
    assert_eq!(
        of(json!({"prompt": "a", "truncate_prompt_tokens": "7"})),
        Some(Truncation { tokens_max: 7, side: None })
    );
}

#[test]
fn what_is_not_understood_is_named() {
    let error = |body: &[u8]| parse(Api::ChatCompletions, body).unwrap_err();
    assert_eq!(error(b""), RequestError::Empty);
    assert_eq!(error(b"\xff\xfe{}"), RequestError::NotUtf8);
    assert_eq!(error(b"{\"messages\":[}"), RequestError::NotJson);
    assert_eq!(error(b"{} {}"), RequestError::NotJson);
    assert_eq!(error(&[b'['; 100_000]), RequestError::TooDeep);
    assert_eq!(
        error(br#"{"messages":[{"role":"user","content":"\ud800"}]}"#),
        RequestError::LoneSurrogate
    );
    assert_eq!(
        error(br#"{"messages":[],"chat_template_kwargs":{"x":1e999}}"#),
        RequestError::Number
    );
    assert_eq!(error(b"[]"), RequestError::WrongShape("(body)"));
    assert_eq!(error(b"{}"), RequestError::WrongShape("messages"));
    assert_eq!(error(br#"{"messages":[1]}"#), RequestError::WrongShape("messages"));
    assert_eq!(error(br#"{"messages":[],"tools":{}}"#), RequestError::WrongShape("tools"));
    assert_eq!(error(br#"{"messages":[],"model":7}"#), RequestError::WrongShape("model"));
    assert_eq!(error(br#"{"messages":[],"cache_salt":7}"#), RequestError::WrongShape("cache_salt"));
    assert_eq!(error(br#"{"messages":[],"chat_template":"x"}"#), RequestError::OwnTemplate);
    for api in [Api::Embeddings, Api::Rerank] {
        assert_eq!(parse(api, b"{}"), Err(RequestError::LoadOnly));
    }
}

#[test]
fn what_the_prompt_does_not_depend_on_is_not_judged() {
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"a"}}],"seed":{},"user":"\ud800","x":NaN}}"#,
        "9".repeat(10_000)
    );
    assert!(parse(Api::ChatCompletions, body.as_bytes()).is_ok());
}

#[test]
fn the_newer_name_of_the_output_limit_wins_and_nonsense_is_no_limit() {
    let max = |body: Value| request(Api::Completions, &body).unwrap().output_tokens_max;
    assert_eq!(max(json!({"prompt": "a", "max_tokens": 5, "max_completion_tokens": 6})), Some(6));
    assert_eq!(max(json!({"prompt": "a", "max_tokens": 99_999_999_999_u64})), Some(u32::MAX));
    assert_eq!(max(json!({"prompt": "a", "max_tokens": "x"})), None);
    assert_eq!(max(json!({"prompt": "a", "max_tokens": 7.0})), Some(7));
}

#[test]
fn tokens_passed_on_from_a_prefill_stage() {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "kv_transfer_params": {"prompt_token_ids": [5, 6]},
    });
    assert_eq!(request(Api::ChatCompletions, &body).unwrap().prompt, tokens(&[5, 6]));
    body["echo"] = true.into();
    assert!(matches!(request(Api::ChatCompletions, &body).unwrap().prompt, PromptInput::Chat(_)));
}

#[test]
fn stored_history_gives_a_session_and_no_prompt() {
    let body = json!({"input": "hi", "previous_response_id": "resp_1"});
    let request = request(Api::Responses, &body).unwrap();
    assert_eq!(request.prompt, PromptInput::Stored);
    assert_eq!(request.session.as_deref(), Some("resp_1"));
    let body = json!({"prompt": "hi", "context": [1, 2]});
    let prompt = super::parse(Api::OllamaGenerate, body.to_string().as_bytes()).unwrap().prompt;
    assert_eq!(prompt, PromptInput::Stored);
}

#[test]
fn sglang() {
    let of = |body: Value| request(Api::SglangGenerate, &body).unwrap();
    assert_eq!(of(json!({"text": "a"})).prompt, text("a", true));
    assert_eq!(of(json!({"text": ["a", "b"]})).prompt, text("a", true));
    assert_eq!(of(json!({"input_ids": [1, 2]})).prompt, tokens(&[1, 2]));
    assert_eq!(of(json!({"input_ids": [[1], [2]]})).prompt, tokens(&[1]));
    let rich = of(json!({
        "text": ["a", "b"], "lora_path": ["l", null], "cache_salt": "s", "extra_key": "k",
        "sampling_params": [{"max_new_tokens": 3}, {}], "image_data": [["u"], ["v"]],
    }));
    assert_eq!(rich.adapter.as_deref(), Some("l"));
    assert_eq!(rich.cache_salt, "sk");
    assert_eq!(rich.output_tokens_max, Some(3));
    assert_eq!((rich.media.len(), rich.approximation), (1, Some(Approximation::Batch)));
    let media = of(json!({"text": ["a"], "image_data": ["u"]}));
    assert_eq!((media.media.len(), media.approximation), (1, Some(Approximation::Media)));
    let error = request(Api::SglangGenerate, &json!({"prompt": "a"}));
    assert_eq!(error, Err(RequestError::WrongShape("text")));
}

#[test]
fn ollama() {
    let body = json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "hi", "images": ["AAAA"]},
            {"role": "assistant", "content": "", "thinking": "t",
             "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "r", "tool_name": "f"},
        ],
        "think": false, "options": {"num_predict": 12}, "stream": false,
    });
    let request = request(Api::OllamaChat, &body).unwrap();
    assert_eq!(request.output_tokens_max, Some(12));
    assert_eq!(request.approximation, Some(Approximation::ForeignTemplate));
    let PromptInput::Chat(chat) = request.prompt else { panic!() };
    assert_eq!(chat.messages.len(), 4);
    assert!(matches!(
        chat.messages[1].content.as_deref(),
        Some([Part::Text { .. }, Part::Media { .. }])
    ));
    assert_eq!(chat.messages[2].reasoning.as_deref(), Some("t"));
    assert_eq!(chat.messages[2].tool_calls[0]["function"]["arguments"], json!({"a": 1}));
    assert_eq!(chat.kwargs.get("enable_thinking"), Some(&Value::Bool(false)));

    let body = json!({"prompt": "hi", "system": "s", "options": {"num_predict": -1}});
    let chat = chat_of(Api::OllamaGenerate, &body);
    let roles: Vec<&str> = chat.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user"]);
    let raw = super::parse(Api::OllamaGenerate, br#"{"prompt":"hi","raw":true}"#).unwrap();
    assert_eq!((raw.prompt, raw.approximation), (text("hi", true), None));
}

#[test]
fn batches_are_known_as_such_and_batches_of_one_are_none() {
    for (api, field) in [
        (Api::Completions, "prompt"),
        (Api::SglangGenerate, "text"),
        (Api::SglangGenerate, "input_ids"),
    ] {
        let of = |given: Value| request(api, &json!({ field: given })).unwrap().approximation;
        let batch = Some(Approximation::Batch);
        assert_eq!(of(json!(["a", "b"])), batch);
        assert_eq!(of(json!([[1, 2], [3]])), batch);
        assert_eq!(of(json!([[1, 2], "b"])), batch);
        for one in [json!("a"), json!(["a"]), json!([1, 2]), json!([[1, 2]])] {
            assert_eq!(of(one), None);
        }
    }
}

#[test]
fn vllm_generate_has_its_media_in_place() {
    let body = json!({
        "token_ids": [1, 2, 3, 4], "sampling_params": {"max_tokens": 8}, "cache_salt": "s",
        "features": {
            "mm_hashes": {"image": ["b", "a"], "audio": ["a"]},
            "mm_placeholders": {
                "image": [{"offset": 3, "length": 1}, {"offset": 0, "length": 1}],
                "audio": [{"offset": 1, "length": 2}],
            },
        },
    });
    let request = request(Api::VllmGenerate, &body).unwrap();
    assert_eq!((request.output_tokens_max, request.approximation), (Some(8), None));
    let PromptInput::Tokens { tokens, media } = request.prompt else { panic!() };
    assert_eq!(tokens, [1, 2, 3, 4]);
    let places: Vec<usize> = media.iter().map(|item| item.token_index).collect();
    assert_eq!(places, [0, 1, 3]);
    // The same hash means another thing in another modality.
    assert_ne!(media[0].content_hash, media[1].content_hash);
    let error = super::parse(Api::VllmGenerate, br#"{"token_ids":[]}"#);
    assert_eq!(error, Err(RequestError::WrongShape("token_ids")));
}

#[test]
fn media_is_told_apart_by_content_and_not_by_the_way_it_is_written() {
    let hash = |api: Api, content: Value| {
        let chat = chat_of(
            api,
            &json!({"model": "m", "max_tokens": 1, "messages": [
            {"role": "user", "content": content}]}),
        );
        match chat.messages[0].content.as_deref() {
            Some([Part::Media { content_hash, .. }]) => *content_hash,
            other => panic!("{other:?}"),
        }
    };
    let openai = |url: &str| {
        hash(Api::ChatCompletions, json!([{"type": "image_url", "image_url": {"url": url}}]))
    };
    let a = openai("data:image/png;base64,AAAA");
    assert_eq!(a, openai("data:image/png;base64,AAAA"));
    assert_ne!(a, openai("data:image/png;base64,AAAB"));
    // The engine makes the same URL of it.
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    assert_eq!(a, hash(Api::Messages, json!([{"type": "image", "source": source}])));
    let named = |url: &str, id: &str| {
        let part = json!({"type": "image_url", "image_url": {"url": url}, "uuid": id});
        hash(Api::ChatCompletions, json!([part]))
    };
    assert_eq!(named("u", "i"), named("v", "i"));
    assert_ne!(named("u", "i"), named("u", "j"));
    let audio = json!([{"type": "audio_url", "audio_url": {"url": "data:image/png;base64,AAAA"}}]);
    assert_ne!(a, hash(Api::ChatCompletions, audio));
    let escaped = br#"{"messages":[{"role":"user","content":[{"type":"image_url",
        "image_url":{"url":"data:image\/png;base64,AAAA"}}]}]}"#;
    let PromptInput::Chat(chat) = parse(Api::ChatCompletions, escaped).unwrap().prompt else {
        panic!()
    };
    let parts = chat.messages[0].content.as_deref();
    assert!(matches!(parts, Some([Part::Media { content_hash, .. }]) if *content_hash == a));
}

#[test]
fn the_fuzz_target_takes_every_api() {
    let bodies = [
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"},"b"]}]}"#,
        r#"{"prompt":[1,2,3],"max_tokens":1.0}"#,
        r#"{"input":[{"role":"user","content":"x"}],"tools":[{"type":"function","name":"f"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"\ud800"}]}"#,
        r#"{"token_ids":[1],"n":NaN,"a":{"b":[[],{},null,-0.0]}}"#,
        "{",
        "\u{feff}{}",
        "",
    ];
    for api in 0..Api::ALL.len() {
        for body in bodies {
            let mut data = vec![api as u8];
            data.extend_from_slice(body.as_bytes());
            fuzz_request(&data);
            crate::fuzzing::request(&data);
        }
        fuzz_request(&[api as u8, 0xff]);
    }
}

#[test]
fn every_cut_of_a_good_body_ends_well() {
    let bodies = [
        r#"{"messages":[{"role":"system","content":"é😀"},{"role":"user","content":[{"type":"text",
            "text":"a"},{"type":"image_url","image_url":{"url":"data:,x"}}]},{"role":"assistant",
            "tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":
            "{\"a\":1}"}}]}],"tools":[{"type":"function","function":{"name":"f"}}],"n":1e-3}"#,
        r#"{"model":"m","input":[{"type":"reasoning","summary":[]},{"role":"user","content":"x"}],
            "prompt":[[1,2],[3]],"text":["a"],"token_ids":[1]}"#,
    ];
    for body in bodies {
        for end in 0..=body.len() {
            for api in 0..Api::ALL.len() {
                let mut data = vec![api as u8];
                data.extend_from_slice(&body.as_bytes()[..end]);
                fuzz_request(&data);
            }
        }
    }
}

mod random {
    use proptest::prelude::*;

    use super::super::*;

    proptest! {
        #[test]
        fn what_serde_json_reads_is_read_alike(api in 0_u8..10, text in "[\\[\\]{},:\"0-9a-c\\\\u. -]{0,40}") {
            let mut data = vec![api];
            data.extend_from_slice(text.as_bytes());
            fuzz_request(&data);
            crate::fuzzing::request(&data);
        }

        #[test]
        fn no_text_breaks_a_prompt(text in "\\PC*") {
            let body = serde_json::json!({"prompt": text}).to_string();
            let parsed = parse(Api::Completions, body.as_bytes()).unwrap().prompt;
            prop_assert_eq!(parsed, PromptInput::Text { text, special_tokens: true });
        }
    }
}

/// `body` with `more` members.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn log_probabilities_of_the_prompt_keep_the_engine_from_its_cache() {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let text = json!({"prompt": "hi"});
    let ids = json!({"token_ids": [1, 2]});
    let sglang = json!({"text": "hi"});
    for (api, body, more, expected) in [
        (Api::ChatCompletions, &chat, json!({}), None),
        (Api::ChatCompletions, &chat, json!({"logprobs": true, "top_logprobs": 5}), None),
        (Api::ChatCompletions, &chat, json!({"prompt_logprobs": null}), None),
        (Api::ChatCompletions, &chat, json!({"prompt_logprobs": 0}), Some(0)),
        (Api::ChatCompletions, &chat, json!({"echo": true}), Some(0)),
        (Api::ChatCompletions, &chat, json!({"echo": true, "top_logprobs": null}), None),
        (Api::Completions, &text, json!({"logprobs": 5}), None),
        (Api::Completions, &text, json!({"echo": true}), None),
        (Api::Completions, &text, json!({"echo": true, "logprobs": 0}), Some(0)),
        (Api::Completions, &text, json!({"echo": false, "logprobs": 0}), None),
        (Api::Completions, &text, json!({"prompt_logprobs": 1}), Some(0)),
        (Api::VllmGenerate, &ids, json!({"sampling_params": {"logprobs": 1}}), None),
        (Api::VllmGenerate, &ids, json!({"sampling_params": {"prompt_logprobs": 1}}), Some(0)),
        (
            Api::VllmGenerate,
            &ids,
            json!({"sampling_params": {"prompt_logprobs": 1, "skip_reading_prefix_cache": false}}),
            None,
        ),
        (
            Api::VllmGenerate,
            &ids,
            json!({"sampling_params": {"skip_reading_prefix_cache": true}}),
            Some(0),
        ),
        (Api::SglangGenerate, &sglang, json!({"return_logprob": true}), None),
        (
            Api::SglangGenerate,
            &sglang,
            json!({"return_logprob": true, "logprob_start_len": -1}),
            None,
        ),
        (
            Api::SglangGenerate,
            &sglang,
            json!({"return_logprob": [true], "logprob_start_len": [7]}),
            Some(7),
        ),
        (Api::SglangGenerate, &sglang, json!({"logprob_start_len": 7}), None),
    ] {
        let body = with(body, &more);
        let request = request(api, &body).unwrap();
        assert_eq!(request.cache_read_tokens_max, expected, "{body}");
    }
}

#[test]
fn answers_that_say_nothing_of_the_work_on_the_prompt() {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let text = json!({"prompt": "hi"});
    let ids = json!({"token_ids": [1, 2]});
    for (api, body, more, expected) in [
        (Api::ChatCompletions, &chat, json!({"n": 1, "best_of": null}), false),
        (Api::ChatCompletions, &chat, json!({"n": 2}), true),
        (Api::ChatCompletions, &chat, json!({"n": "many"}), false),
        (Api::Completions, &text, json!({"best_of": 3}), true),
        (Api::Completions, &text, json!({"use_beam_search": true}), true),
        (Api::Completions, &text, json!({"kv_transfer_params": {"do_remote_prefill": true}}), true),
        (Api::Completions, &text, json!({"kv_transfer_params": {"do_remote_decode": true}}), false),
        (Api::VllmGenerate, &ids, json!({"sampling_params": {"n": 2}}), true),
        (Api::SglangGenerate, &json!({"text": "hi"}), json!({"sampling_params": {"n": 2}}), true),
        (Api::Responses, &json!({"input": "hi"}), json!({"background": true}), true),
        (Api::Responses, &json!({"input": "hi"}), json!({"stream": true}), false),
    ] {
        let body = with(body, &more);
        assert_eq!(request(api, &body).unwrap().is_opaque, expected, "{body}");
    }
}

#[test]
fn what_other_engines_take_beside_vllm() {
    let chat = |more: Value| {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "cache_salt": "s"});
        request(Api::ChatCompletions, &with(&body, &more)).unwrap()
    };
    assert_eq!(chat(json!({"tools": []})), chat(json!({})));
    assert_eq!(chat(json!({"extra_key": "k"})).cache_salt, "sk");
    assert_eq!(chat(json!({"cache_prompt": false})).cache_read_tokens_max, Some(0));
    assert_eq!(chat(json!({"cache_prompt": true})).cache_read_tokens_max, None);
    for field in ["input_ids", "prompt_token_ids"] {
        assert_eq!(chat(json!({field: [5, 6]})).prompt, tokens(&[5, 6]));
    }
    let adapter = |more| chat(more).adapter;
    assert_eq!(adapter(json!({"lora_request": {"lora_name": "a"}})).as_deref(), Some("a"));
    assert_eq!(adapter(json!({"lora_path": "b"})).as_deref(), Some("b"));
    assert_eq!(adapter(json!({"lora": []})), None);
    let scaled = |scale: f64| adapter(json!({"lora": [{"id": 0, "scale": scale}]}));
    assert_ne!(scaled(1.0), scaled(0.5));
    assert_eq!(scaled(1.0), scaled(1.0));
    let session = json!({"text": "more", "session_params": {"id": "s", "rid": "r"}});
    let session = request(Api::SglangGenerate, &session).unwrap();
    assert_eq!((session.prompt, session.session.as_deref()), (PromptInput::Stored, Some("s")));
    let first = json!({"text": "first", "session_params": {"id": "s", "rid": null}});
    assert!(matches!(
        request(Api::SglangGenerate, &first).unwrap().prompt,
        PromptInput::Text { .. }
    ));
}

#[test]
fn a_tool_call_may_lack_what_only_vllm_asks_for() {
    let call = |call: Value| -> Result<String, RequestError> {
        let body = json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
        let PromptInput::Chat(chat) = request(Api::ChatCompletions, &body)?.prompt else {
            panic!()
        };
        Ok(chat.messages[0].tool_calls[0].to_string())
    };
    assert_eq!(
        call(json!({"function": {"name": "f", "arguments": {"a": 1}}})).unwrap(),
        r#"{"function":{"arguments":{"a":1},"name":"f"},"type":"function"}"#
    );
    for wrong in [
        json!({"type": "other", "function": {"name": "f", "arguments": "{}"}}),
        json!({"function": {"name": "f", "arguments": 1}}),
        json!({"id": 7, "function": {"name": "f", "arguments": "{}"}}),
    ] {
        assert_eq!(call(wrong).unwrap_err(), RequestError::WrongShape("tool_calls"));
    }
}

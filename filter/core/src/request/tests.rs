use super::*;

fn chat_of(body: &str) -> Result<Chat, RequestError> {
    match parse(Api::ChatCompletions, body.as_bytes())?.prompt {
        PromptInput::Chat(chat) => Ok(*chat),
        other => panic!("{other:?}"),
    }
}

fn completion_of(body: &str) -> Result<PromptInput, RequestError> {
    Ok(parse(Api::Completions, body.as_bytes())?.prompt)
}

#[test]
fn paths() {
    assert_eq!(Api::from_path("/v1/chat/completions"), Some(Api::ChatCompletions));
    assert_eq!(Api::from_path("/v1/completions?x=1"), Some(Api::Completions));
    for other in ["/v1/models", "/", "", "/v1/chat/completions/", "/v1/embeddings"] {
        assert_eq!(Api::from_path(other), None);
    }
}

#[test]
fn a_chat_request() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"a":1}],
        "chat_template_kwargs":{"enable_thinking":false},"cache_salt":"s","max_tokens":9,
        "stream":true}"#;
    let request = parse(Api::ChatCompletions, body.as_bytes()).unwrap();
    assert_eq!(request.model.as_deref(), Some("m"));
    assert_eq!(request.cache_salt, "s");
    assert_eq!(request.output_tokens_max, Some(9));
    let PromptInput::Chat(chat) = request.prompt else { panic!() };
    assert_eq!(chat.messages.to_string(), r#"[{"role":"user","content":"hi"}]"#);
    assert!(chat.tools.is_some() && chat.documents.is_none());
    assert!(chat.add_generation_prompt && !chat.continue_final_message);
    assert_eq!(chat.kwargs.get("enable_thinking"), Some(&Value::Bool(false)));
}

#[test]
fn null_is_absent() {
    let chat = chat_of(
        r#"{"model":null,"messages":[],"tools":null,"add_generation_prompt":null,
        "chat_template_kwargs":null,"chat_template":null}"#,
    )
    .unwrap();
    assert!(chat.tools.is_none() && chat.add_generation_prompt && chat.kwargs.is_empty());
}

#[test]
fn completion_prompts() {
    let text = |text: &str| PromptInput::Text { text: text.to_owned(), special_tokens: true };
    assert_eq!(completion_of(r#"{"prompt":"a"}"#), Ok(text("a")));
    assert_eq!(completion_of(r#"{"prompt":["a","b"]}"#), Ok(text("a")));
    assert_eq!(completion_of(r#"{"prompt":[1,2]}"#), Ok(PromptInput::Tokens(vec![1, 2])));
    assert_eq!(completion_of(r#"{"prompt":[[3],[4]]}"#), Ok(PromptInput::Tokens(vec![3])));
    assert_eq!(
        completion_of(r#"{"prompt":"a","add_special_tokens":false}"#),
        Ok(PromptInput::Text { text: "a".to_owned(), special_tokens: false })
    );
    for bad in [
        r#"{}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":5}"#,
        r#"{"prompt":[1,-2]}"#,
        r#"{"prompt":[1,4294967296]}"#,
        r#"{"prompt":[1,"a"]}"#,
        r#"{"prompt":[1.5]}"#,
        r#"{"prompt":[{}]}"#,
    ] {
        assert_eq!(completion_of(bad), Err(RequestError::WrongShape("prompt")), "{bad}");
    }
}

#[test]
fn what_is_not_understood_is_named() {
    let error = |body: &[u8]| parse(Api::ChatCompletions, body).unwrap_err();
    assert_eq!(error(b""), RequestError::Empty);
    assert_eq!(error(b"\xff\xfe{}"), RequestError::NotUtf8);
    assert_eq!(error(b"{\"messages\":[}"), RequestError::NotJson);
    assert_eq!(error(b"{} {}"), RequestError::NotJson);
    assert_eq!(error(&[b'['; 100_000]), RequestError::NotJson);
    assert_eq!(error(br#"{"messages":["\ud800"]}"#), RequestError::NotJson);
    assert_eq!(error(b"[]"), RequestError::WrongShape("(body)"));
    assert_eq!(error(b"{}"), RequestError::WrongShape("messages"));
    assert_eq!(error(br#"{"messages":[1]}"#), RequestError::WrongShape("messages"));
    assert_eq!(error(br#"{"messages":[],"tools":{}}"#), RequestError::WrongShape("tools"));
    assert_eq!(error(br#"{"messages":[],"model":7}"#), RequestError::WrongShape("model"));
    assert_eq!(error(br#"{"messages":[],"cache_salt":7}"#), RequestError::WrongShape("cache_salt"));
    assert_eq!(error(br#"{"messages":[],"chat_template":"x"}"#), RequestError::OwnTemplate);
}

#[test]
fn the_newer_name_of_the_output_limit_wins_and_nonsense_is_no_limit() {
    let max = |body: &str| parse(Api::Completions, body.as_bytes()).unwrap().output_tokens_max;
    assert_eq!(max(r#"{"prompt":"a","max_tokens":5,"max_completion_tokens":6}"#), Some(6));
    assert_eq!(max(r#"{"prompt":"a","max_tokens":99999999999}"#), Some(u32::MAX));
    assert_eq!(max(r#"{"prompt":"a","max_tokens":"x"}"#), None);
}

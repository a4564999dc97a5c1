use serde_json::json;

use super::*;
use crate::request::{Api, PromptInput, parse};

fn traits(content_format: ContentFormat) -> TemplateTraits {
    TemplateTraits {
        content_format,
        has_developer_role: false,
        is_system_first: false,
        is_verbatim: false,
        thinking_off_effort: "none",
        placeholders: Placeholders { image: "<image>".to_owned(), ..Placeholders::default() },
    }
}

fn prepared(body: &Value, config: &ChatConfig, format: ContentFormat) -> Conversation {
    let request = parse(Api::ChatCompletions, body.to_string().as_bytes()).expect("parses");
    let PromptInput::Chat(chat) = request.prompt else { panic!("no chat") };
    prepare(*chat, &traits(format), config)
}

#[test]
fn the_configured_format_wins_over_the_templates() {
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let config =
        ChatConfig { content_format: Some(ContentFormat::OpenAi), ..ChatConfig::default() };
    let forced = prepared(&body, &config, ContentFormat::String);
    assert_eq!(forced.messages[0]["content"], json!([{"type": "text", "text": "hi"}]));
    let detected = prepared(&body, &ChatConfig::default(), ContentFormat::String);
    assert_eq!(detected.messages[0]["content"], "hi");
}

#[test]
fn tools_hide_only_where_configured_and_forbidden() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let body = |choice: &str| {
        json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool],
            "tool_choice": choice})
    };
    for (hides_unused_tools, choice, are_shown) in
        [(false, "none", true), (true, "none", false), (true, "auto", true)]
    {
        let config = ChatConfig { hides_unused_tools, ..ChatConfig::default() };
        let tools = prepared(&body(choice), &config, ContentFormat::String).tools;
        assert_eq!(tools.is_some(), are_shown, "{hides_unused_tools} {choice}");
    }
}

#[test]
fn only_the_named_tool_shows_where_configured() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let body = |choice: Value| {
        json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool("f"), tool("g")],
            "tool_choice": choice})
    };
    let named = json!({"type": "function", "function": {"name": "g"}});
    for (shows_named_tool_only, choice, shown) in
        [(false, named.clone(), 2), (true, named, 1), (true, json!("auto"), 2)]
    {
        let config = ChatConfig { shows_named_tool_only, ..ChatConfig::default() };
        let tools = prepared(&body(choice), &config, ContentFormat::String).tools.unwrap();
        assert_eq!(tools.as_array().unwrap().len(), shown);
        assert_eq!(tools[shown - 1]["function"]["name"], "g");
    }
}

#[test]
fn media_is_listed_in_order_with_its_modality() {
    let content = json!([
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]);
    let body = json!({"messages": [
        {"role": "user", "content": content}, {"role": "user", "content": content}]});
    let media = prepared(&body, &ChatConfig::default(), ContentFormat::OpenAi).media;
    let modalities: Vec<Modality> = media.iter().map(|item| item.modality).collect();
    assert_eq!(modalities, [Modality::Image, Modality::Audio, Modality::Image, Modality::Audio]);
    assert_eq!(media[0], media[2]);
}

#[test]
fn llama_cpp_continues_the_answer_and_knows_no_developer() {
    let body = json!({"messages": [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": " a"}, {"type": "text", "text": "b "}]},
    ], "add_special_tokens": true});
    let config = ChatConfig { engine: Engine::LlamaCpp, ..ChatConfig::default() };
    let prepared = prepared(&body, &config, ContentFormat::String);
    assert_eq!(prepared.messages[1], json!({"role": "system", "content": "D"}));
    assert_eq!(prepared.messages[0]["content"], "S");
    assert_eq!(prepared.begun_answer.as_deref(), Some(" a\nb "));
    assert!(!prepared.add_generation_prompt && !prepared.continue_final_message);
    let answer = prepared.messages[3]["content"].as_str().unwrap();
    let rendered = format!("<user>hi, not {answer}<assistant>{answer}<end>");
    let text = llama_cpp::continued(rendered, " a\nb ");
    assert_eq!(text, format!("<user>hi, not {answer}<assistant> a\nb "));
}

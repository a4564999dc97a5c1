//! What happens around the template: selection, variables, message rules, time.

mod support;

use serde_json::{Map, Value, json};
use warmpath_template::{
    ChatRequest, ChatTemplates, CivilTime, ConversationError, MessageRules, RenderError,
    RenderLimits, SpecialTokens,
};

fn named(sources: &[(&str, &str)]) -> ChatTemplates {
    let sources: Vec<_> =
        sources.iter().map(|(name, source)| (name.to_string(), source.to_string())).collect();
    ChatTemplates::compile(&sources, support::special_tokens()).unwrap()
}

fn request<'a>(messages: &'a Value, kwargs: &'a Map<String, Value>) -> ChatRequest<'a> {
    ChatRequest {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: false,
        continue_final_message: false,
        kwargs,
        template_name: None,
        now: support::NOW,
    }
}

fn render(templates: &ChatTemplates, chat: &ChatRequest<'_>) -> Result<String, RenderError> {
    templates.render(chat, &RenderLimits::default())
}

#[test]
fn tools_select_the_tool_use_template() {
    let templates = named(&[("default", "plain"), ("tool_use", "tools"), ("rag", "documents")]);
    let (messages, kwargs) = (json!([{"role": "user"}]), Map::new());
    let chat = request(&messages, &kwargs);
    assert_eq!(render(&templates, &chat).unwrap(), "plain");
    let tools = json!([]);
    let with_tools = ChatRequest { tools: Some(&tools), ..chat };
    assert_eq!(render(&templates, &with_tools).unwrap(), "tools");
    let null_tools = ChatRequest { tools: Some(&Value::Null), ..chat };
    assert_eq!(render(&templates, &null_tools).unwrap(), "plain");
    let by_name = ChatRequest { template_name: Some("rag"), tools: Some(&tools), ..chat };
    assert_eq!(render(&templates, &by_name).unwrap(), "documents");
    let unknown = ChatRequest { template_name: Some("nosuch"), ..chat };
    assert_eq!(render(&templates, &unknown), Err(RenderError::NoSuchTemplate));
    let without_default = named(&[("a", "x"), ("b", "y")]);
    assert_eq!(render(&without_default, &chat), Err(RenderError::NoSuchTemplate));
}

#[test]
fn variables_come_from_tokens_and_arguments() {
    let extra = Map::from_iter([("image_token".to_owned(), json!("<img>"))]);
    let special =
        SpecialTokens { bos_token: Some("<s>".to_owned()), extra, ..SpecialTokens::default() };
    let source = "{{ bos_token }}{{ eos_token is defined }}{{ image_token }}{{ more }}".to_owned();
    let templates = ChatTemplates::compile(&[("default".to_owned(), source)], special).unwrap();
    let messages = json!([{"role": "user"}]);
    let kwargs = Map::from_iter([("more".to_owned(), json!({"a": [1.0, null]}))]);
    let chat = request(&messages, &kwargs);
    assert_eq!(render(&templates, &chat).unwrap(), "<s>False<img>{'a': [1.0, None]}");
    let kwargs = Map::from_iter([("bos_token".to_owned(), json!("<b>"))]);
    let chat = request(&messages, &kwargs);
    assert_eq!(render(&templates, &chat).unwrap(), "<b>False<img>");
    let kwargs = Map::from_iter([("messages".to_owned(), json!([]))]);
    let chat = request(&messages, &kwargs);
    assert!(matches!(render(&templates, &chat), Err(RenderError::Operation(_))));
}

#[test]
fn message_rules_differ_by_version() {
    let source = "{% for m in messages %}{{ m.keys()|list }}{% endfor %}";
    let messages = json!([{"role": "assistant", "content": null, "reasoning": "r"}]);
    let kwargs = Map::new();
    let chat = request(&messages, &kwargs);
    let v5 = named(&[("default", source)]);
    let expected = "['thinking', 'role', 'reasoning', 'reasoning_content']";
    assert_eq!(render(&v5, &chat).unwrap(), expected);
    let v4 = named(&[("default", source)]).with_rules(MessageRules::V4);
    assert_eq!(render(&v4, &chat).unwrap(), "['role', 'content', 'reasoning']");
}

#[test]
fn bad_shapes_are_named() {
    let templates = named(&[("default", "{{ messages[0].content }}")]);
    let kwargs = Map::new();
    let error = |chat: &ChatRequest<'_>| match render(&templates, chat) {
        Err(RenderError::Conversation(error)) => error,
        other => panic!("{other:?}"),
    };
    for messages in [json!(null), json!({}), json!(["x"]), json!([1])] {
        assert_eq!(error(&request(&messages, &kwargs)), ConversationError::MessagesShape);
    }
    assert_eq!(error(&request(&json!([]), &kwargs)), ConversationError::Empty);
    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = request(&messages, &kwargs);
    let bad = json!(["x"]);
    assert_eq!(error(&ChatRequest { tools: Some(&bad), ..chat }), ConversationError::ToolsShape);
    let documents = ChatRequest { documents: Some(&bad), ..chat };
    assert_eq!(error(&documents), ConversationError::DocumentsShape);
    let both = ChatRequest { continue_final_message: true, add_generation_prompt: true, ..chat };
    assert_eq!(error(&both), ConversationError::ContinueAndPrompt);
    let empty = json!([{"role": "user", "content": [{"type": "image"}]}]);
    let chat = ChatRequest { continue_final_message: true, ..request(&empty, &kwargs) };
    assert_eq!(error(&chat), ConversationError::NothingToContinue);
}

#[test]
fn a_dropped_final_message_is_an_error() {
    let templates = named(&[("default", "{{ messages[0].content[:3] }}")]);
    let messages = json!([{"role": "assistant", "content": "a long text"}]);
    let kwargs = Map::new();
    let chat = ChatRequest { continue_final_message: true, ..request(&messages, &kwargs) };
    let expected = RenderError::Conversation(ConversationError::FinalMessageDropped);
    assert_eq!(render(&templates, &chat), Err(expected));
}

#[test]
fn the_templates_own_refusal_is_kept() {
    let templates = named(&[("default", "{{ raise_exception('only users, ' ~ 1) }}")]);
    let messages = json!([{"role": "user"}]);
    let kwargs = Map::new();
    let expected = RenderError::Raised("only users, 1".to_owned());
    assert_eq!(render(&templates, &request(&messages, &kwargs)), Err(expected));
}

#[test]
fn civil_time_follows_the_calendar() {
    let format = |unix_s, offset_s| {
        let time = CivilTime::from_unix(unix_s, 5, offset_s);
        time.strftime("%Y-%m-%d %H:%M:%S.%f %a %j %U %W %G-%V %u").unwrap()
    };
    // Expected texts are those of Python's datetime.
    assert_eq!(format(0, 0), "1970-01-01 00:00:00.000005 Thu 001 00 00 1970-01 4");
    assert_eq!(format(951_782_399, 0), "2000-02-28 23:59:59.000005 Mon 059 09 09 2000-09 1");
    assert_eq!(format(951_782_400, 0), "2000-02-29 00:00:00.000005 Tue 060 09 09 2000-09 2");
    assert_eq!(format(1_609_459_199, 0), "2020-12-31 23:59:59.000005 Thu 366 52 52 2020-53 4");
    assert_eq!(format(1_609_459_199, 1), "2021-01-01 00:00:00.000005 Fri 001 00 00 2020-53 5");
    assert_eq!(format(1_735_603_200, 0), "2024-12-31 00:00:00.000005 Tue 366 52 53 2025-01 2");
    assert_eq!(format(-1, 0), "1969-12-31 23:59:59.000005 Wed 365 52 52 1970-01 3");
    assert_eq!(CivilTime::from_unix(0, 0, 0).strftime("%Q"), None);
}

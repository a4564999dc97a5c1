//! What an engine finds out about a template by rendering small conversations with it.

use warmpath_template::{ChatRequest, ChatTemplates, RenderLimits, SpecialTokens};

use crate::ids::NowMs;
use crate::request::{Chat, Message, Part};

/// Names under which a model's chat templates go, the ones that a chat may choose.
const CHAT_TEMPLATES: [&str; 2] = ["default", "tool_use"];

/// Efforts that a template might know, but for "none".
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Put before a template that is rendered without the functions that transformers adds.
const WITHOUT_FUNCTIONS: &str = "{%- set strftime_now = a_name_without_value -%}";

/// Whether the default template mentions the role `developer`.
pub(super) fn has_developer_role(sources: &[(String, String)]) -> bool {
    let default = sources.iter().find(|(name, _)| name == "default").or_else(|| sources.first());
    default.is_some_and(|(_, source)| {
        source.contains("\"developer\"") || source.contains("'developer'")
    })
}

/// Whether a template fails when a system message comes after others.
///
/// The engine tries this in a plainer environment than the real one, so a template may fail for
/// other reasons, such as a special token that is not there; it counts all the same.
pub(super) fn is_system_first(sources: &[(String, String)], now: NowMs) -> bool {
    let mut chosen = sources
        .iter()
        .filter(|(name, _)| sources.len() == 1 || CHAT_TEMPLATES.contains(&name.as_str()));
    chosen.any(|(_, source)| !takes_late_system(source, now))
}

fn takes_late_system(source: &str, now: NowMs) -> bool {
    if source.contains("{% generation") || source.contains("{%- generation") {
        return false;
    }
    let source = format!("{WITHOUT_FUNCTIONS}{source}");
    let compiled =
        ChatTemplates::compile(&[("default".to_owned(), source)], SpecialTokens::default());
    let messages = serde_json::json!([
        {"role": "system", "content": "t"},
        {"role": "user", "content": "t"},
        {"role": "system", "content": "t"},
        {"role": "user", "content": "t"},
    ]);
    let request = ChatRequest {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: false,
        continue_final_message: false,
        kwargs: &serde_json::Map::new(),
        template_name: None,
        now: super::civil_time(now),
    };
    compiled.is_ok_and(|templates| templates.render(&request, &RenderLimits::default()).is_ok())
}

/// The reasoning effort that turns thinking off: "none", unless `render` refuses it or renders it
/// as it does another one; then "low".
pub(super) fn thinking_off_effort(render: impl Fn(Chat) -> Option<String>) -> &'static str {
    let render = |effort: &str| {
        render(Chat {
            messages: vec![Message {
                role: "user".to_owned(),
                content: Some(vec![Part::text("Hi".to_owned())]),
                ..Message::default()
            }],
            add_generation_prompt: true,
            reasoning_effort: Some(effort.to_owned()),
            ..Chat::default()
        })
    };
    let none = render("none");
    if none.is_some() && EFFORTS.iter().all(|effort| render(effort) != none) {
        "none"
    } else {
        "low"
    }
}

//! What llama.cpp's server makes of a chat, where it is not what vLLM makes of it.
//!
//! Its request model keeps less of messages and tools, and its JSON writer shortens numbers. The recorded
//! token ids in `integration/vectors/llama-cpp` hold this to the server's.
//!
//! Not followed: that it does not know the name `reasoning` for an assistant's thoughts; numbers from a
//! million up that are written as fractions (it prints `1e+06`, Python `1000000.0`); integers beyond 64 bits;
//! that it does not normalize text.

use serde_json::{Map, Number, Value};
use warmpath_template::CivilTime;

use crate::request::{Chat, Part};

/// Significant digits of a fraction, less one.
const FRACTION_DIGITS: usize = 5;

/// From here on it prints an exponent.
const EXPONENT_FROM: f64 = 1e6;

/// Stands in the rendering for an answer that the client has begun.
const ANSWER: &str = "begun-answer";

/// Changes `chat` to what llama.cpp hands to the template. An answer that ends it is to be continued: its text is
/// returned, and something else is in its place, where [`continued`] writes it as it is.
pub(super) fn adapt(chat: &mut Chat) -> Option<String> {
    chat.documents = None;
    for message in &mut chat.messages {
        if message.role == "developer" {
            "system".clone_into(&mut message.role);
        }
        message.tools = None;
        message.task = None;
        message.tool_calls.iter_mut().for_each(call);
    }
    for tool in chat.tools.iter_mut().flatten() {
        if let Some(Value::Object(function)) = tool.get_mut("function") {
            definition(function);
        }
    }
    chat.continue_final_message = false;
    let last = chat.messages.last_mut().filter(|message| message.role == "assistant")?;
    let parts = last.content.take()?;
    last.content = Some(vec![Part::text(ANSWER.to_owned())]);
    chat.add_generation_prompt = false;
    Some(parts.into_iter().filter_map(Part::into_text).collect::<Vec<_>>().join("\n"))
}

/// The rendering up to the answer that it ends with, and that answer.
pub(crate) fn continued(mut text: String, answer: &str) -> String {
    let end = text.rfind(ANSWER).unwrap_or(text.len());
    text.truncate(end);
    text.push_str(answer);
    text
}

/// Adds the variables that the template always has: whether the assistant may think, and the day.
pub(crate) fn add_variables(variables: &mut Map<String, Value>, now: CivilTime) {
    variables.entry("enable_thinking").or_insert(Value::Bool(true));
    for (name, format) in [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")] {
        if let Some(text) = now.strftime(format) {
            variables.entry(name).or_insert(Value::String(text));
        }
    }
}

/// A function keeps its name, its description and its parameters, empty ones where it has none.
fn definition(function: &mut Map<String, Value>) {
    function.retain(|field, _| ["name", "description", "parameters"].contains(&field.as_str()));
    for (field, value) in function.iter_mut() {
        match (field.as_str(), &value) {
            ("description", Value::Null) => *value = Value::String(String::new()),
            ("parameters", Value::Null) => *value = Value::Object(Map::new()),
            _ => numbers(value),
        }
    }
}

/// A call's fields come in another order, and unknown ones are dropped.
fn call(call: &mut Value) {
    let mut function = Map::new();
    for field in ["name", "arguments"] {
        if let Some(value) = call.pointer_mut(&format!("/function/{field}")) {
            numbers(value);
            function.insert(field.to_owned(), value.take());
        }
    }
    let id = call.get_mut("id").map(Value::take);
    let mut fields = Map::new();
    fields.insert("type".to_owned(), "function".into());
    fields.insert("function".to_owned(), Value::Object(function));
    fields.extend(id.map(|id| ("id".to_owned(), id)));
    *call = Value::Object(fields);
}

/// Makes numbers such that they are printed as C++ prints them: fractions with six digits, as whole
/// numbers where they are, and integers as signed ones of 64 bits.
fn numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(shown) = shown(number) {
                *number = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(numbers),
        Value::Object(members) => members.values_mut().for_each(numbers),
        _ => {}
    }
}

/// The number that is printed for `number`; `None` for itself.
fn shown(number: &Number) -> Option<Number> {
    if number.is_i64() {
        return None;
    }
    if let Some(large) = number.as_u64() {
        return Some(large.cast_signed().into());
    }
    let rounded: f64 = format!("{:.FRACTION_DIGITS$e}", number.as_f64()?).parse().ok()?;
    if rounded.fract() == 0.0 && rounded.abs() < EXPONENT_FROM {
        return Some((rounded as i64).into());
    }
    Number::from_f64(rounded)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_lose_what_is_not_printed() {
        let mut value =
            json!([1.0, 1e3, 1.5, 0.123_456_789, 7, -2.0, 1e-7, u64::MAX, [{"k": 0.0}]]);
        numbers(&mut value);
        let text = "[1,1000,1.5,0.123457,7,-2,1e-7,-1,[{\"k\":0}]]";
        assert_eq!(value.to_string(), text);
    }

    #[test]
    fn a_function_keeps_what_llama_cpp_knows() {
        let mut function =
            json!({"name": "f", "description": null, "parameters": null, "strict": true});
        definition(function.as_object_mut().unwrap());
        assert_eq!(function.to_string(), r#"{"name":"f","description":"","parameters":{}}"#);
    }

    #[test]
    fn a_call_is_written_anew() {
        let mut value = json!({"id": "7", "function": {"arguments": {"n": 2.0}, "name": "f", "x": 1},
            "type": "function", "index": 0});
        call(&mut value);
        let text = r#"{"type":"function","function":{"name":"f","arguments":{"n":2}},"id":"7"}"#;
        assert_eq!(value.to_string(), text);
    }
}

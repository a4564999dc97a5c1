//! Tool definitions, as vLLM writes them out for templates: the fields of its own models, in their
//! order, absent ones as null, others dropped.

use serde_json::{Map, Value, json};

use super::json::{Node, Object};
use super::{RequestError, chat, fields};

const TOOLS: RequestError = RequestError::WrongShape("tools");

/// A tool of the chat API.
pub(super) fn chat_tool(node: &Node<'_>) -> Result<Value, RequestError> {
    let given = node.as_object().ok_or(TOOLS)?;
    if !given.given("type").is_none_or(|kind| kind.as_text().is_some_and(|it| it.is("function"))) {
        return Err(TOOLS);
    }
    let function = fields::object(given, "function")?.ok_or(TOOLS)?;
    let defer_loading = fields::boolean(given, "defer_loading")?;
    let mut definition = Definition::read(function, "parameters")?;
    definition.defer_loading = definition.defer_loading.or(defer_loading);
    Ok(definition.write(defer_loading))
}

/// A function as its API describes it.
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) parameters: Option<Map<String, Value>>,
    pub(super) strict: Option<bool>,
    pub(super) defer_loading: Option<bool>,
}

impl Definition {
    /// Reads a description whose parameters are called `parameters`.
    pub(super) fn read(given: &Object<'_>, parameters: &'static str) -> Result<Self, RequestError> {
        let parameters = fields::object(given, parameters)?.map(Object::to_map).transpose()?;
        Ok(Self {
            name: fields::needed_string(given, "name")?,
            description: fields::string(given, "description")?,
            parameters,
            strict: fields::boolean(given, "strict")?,
            defer_loading: fields::boolean(given, "defer_loading")?,
        })
    }

    /// The tool for the template.
    pub(super) fn write(self, defer_loading_of_tool: Option<bool>) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), Value::String(self.name));
        function.insert("description".to_owned(), self.description.into());
        function.insert("parameters".to_owned(), self.parameters.into());
        let optional = [("strict", self.strict), ("defer_loading", self.defer_loading)];
        for (field, value) in optional {
            if let Some(value) = value {
                function.insert(field.to_owned(), Value::Bool(value));
            }
        }
        let mut tool = Map::new();
        tool.insert("type".to_owned(), json!("function"));
        tool.insert("function".to_owned(), Value::Object(function));
        if let Some(value) = defer_loading_of_tool {
            tool.insert("defer_loading".to_owned(), Value::Bool(value));
        }
        Value::Object(tool)
    }
}

/// The tools of a developer message, which are not written anew: put in the request model's order if
/// they fit it, else left as they are.
pub(super) fn developer_tools(node: &Node<'_>) -> Result<Value, RequestError> {
    let tools = node.as_array().ok_or(TOOLS)?;
    if !tools.iter().all(is_plain) {
        return node.to_value();
    }
    tools.iter().map(developer_tool).collect::<Result<_, _>>().map(Value::Array)
}

fn is_plain(node: &Node<'_>) -> bool {
    let Some(tool) = node.as_object() else { return false };
    let Some(function) = tool.get("function").and_then(Node::as_object) else { return false };
    let fits = |field: &str, fits: fn(&Node<'_>) -> bool| function.given(field).is_none_or(fits);
    tool.get("type").and_then(Node::as_text).is_some_and(|kind| kind.is("function"))
        && function.get("name").is_some_and(|name| name.as_text().is_some())
        && fits("description", |it| it.as_text().is_some())
        && fits("parameters", |it| it.as_object().is_some())
        && fits("strict", |it| matches!(it, Node::Null | Node::Bool(_)))
}

fn developer_tool(node: &Node<'_>) -> Result<Value, RequestError> {
    let given = node.as_object().ok_or(TOOLS)?;
    let mut tool = Map::new();
    for field in ["function", "type"] {
        let value = match given.given(field).ok_or(TOOLS)? {
            Node::Object(function) => Value::Object(in_order(function)?),
            other => other.to_value()?,
        };
        tool.insert(field.to_owned(), value);
    }
    chat::add_rest(&mut tool, given)?;
    Ok(Value::Object(tool))
}

fn in_order(function: &Object<'_>) -> Result<Map<String, Value>, RequestError> {
    let mut ordered = Map::new();
    for field in ["name", "description", "parameters", "strict"] {
        if let Some(value) = function.given(field) {
            ordered.insert(field.to_owned(), value.to_value()?);
        }
    }
    chat::add_rest(&mut ordered, function)?;
    Ok(ordered)
}

/// A call of the function `name`, its fields in the order of the chat API's request model.
pub(super) fn call(id: String, name: String, arguments: Map<String, Value>) -> Value {
    let mut function = Map::new();
    function.insert("arguments".to_owned(), Value::Object(arguments));
    function.insert("name".to_owned(), Value::String(name));
    let mut call = Map::new();
    call.insert("id".to_owned(), Value::String(id));
    call.insert("function".to_owned(), Value::Object(function));
    call.insert("type".to_owned(), json!("function"));
    Value::Object(call)
}

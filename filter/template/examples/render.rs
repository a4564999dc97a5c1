//! Prints the prompt of one official template and one conversation of the golden vectors.
//!
//! `cargo run -p warmpath-template --example render -- TEMPLATE.jinja CONVERSATION [v4]`

#[path = "../tests/support/mod.rs"]
mod support;

use warmpath_template::MessageRules;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [template, name, rest @ ..] = args.as_slice() else {
        eprintln!("usage: render TEMPLATE.jinja CONVERSATION [v4]");
        std::process::exit(2);
    };
    let rules = match rest {
        [version] if version == "v4" => MessageRules::V4,
        _ => MessageRules::V5,
    };
    let source = std::fs::read_to_string(support::templates().join(template)).unwrap();
    let templates = support::compile(&source, rules).unwrap();
    let conversations = support::read_json("conversations.json");
    let mut found = conversations.as_array().unwrap().iter();
    let conversation = found.find(|conversation| conversation["name"] == name.as_str()).unwrap();
    match support::render(&templates, conversation) {
        Ok(prompt) => print!("{prompt}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

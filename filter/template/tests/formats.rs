//! The content format of every official template is the one that vLLM detects.

mod support;

use warmpath_template::{ContentFormat, MessageRules};

#[test]
fn formats_are_those_of_vllm() {
    let folder = support::templates();
    let golden = support::read_json("golden.formats.json");
    let mut counts = [0_usize; 2];
    for (name, expected) in golden["formats"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let Some(expected) = expected.as_str() else {
            continue;
        };
        let templates = support::compile(&source, MessageRules::V5).unwrap();
        let ours = match templates.content_format() {
            ContentFormat::String => "string",
            ContentFormat::OpenAi => "openai",
        };
        assert_eq!(ours, expected, "{name}");
        counts[usize::from(expected == "openai")] += 1;
    }
    assert!(counts[0] > 10 && counts[1] > 10, "both formats occur: {counts:?}");
}

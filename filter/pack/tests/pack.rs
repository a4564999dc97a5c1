//! Model directories of the shapes that models are published in.

use std::path::Path;
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use warmpath_bundle::{Bundle, MistralVersion};
use warmpath_pack::{ModelFiles, PackError, Packed, pack};

fn tokenizer() -> Value {
    let added = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(0, "<s>"), added(6, "<end>")],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
            ],
            "pair": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
        },
        "decoder": null,
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": false, "byte_fallback": false,
            "vocab": {"<s>": 0, "<unk>": 1, "a": 2, "b": 3, "ab": 4, "<own>": 5},
            "merges": ["a b"],
        },
    })
}

struct ModelDir(TempDir);

impl ModelDir {
    fn new(config: &Value) -> Self {
        let dir = Self(TempDir::new().expect("a directory"));
        dir.put("tokenizer.json", &tokenizer().to_string());
        dir.put("tokenizer_config.json", &config.to_string());
        dir
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn put(&self, name: &str, content: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, content).expect("writes");
    }

    fn pack(&self) -> Result<Packed, PackError> {
        pack("test", &ModelFiles::find(self.path(), None, None, None)?)
    }

    fn packed(&self) -> Packed {
        self.pack().expect("packs")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_warmpath-pack"))
            .args(["--name", "test", "--output"])
            .arg(self.path().join("out.wpb"))
            .arg("--model-dir")
            .arg(self.path())
            .args(arguments)
            .output()
            .expect("runs")
    }
}

fn names(packed: &Packed) -> Vec<(&str, &str)> {
    packed.templates.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect()
}

fn ids(packed: &Packed, text: &str, special: bool) -> Vec<u32> {
    let bundle = Bundle::read(packed.bytes.clone()).expect("reads");
    let mut ids = Vec::new();
    bundle.tokenizer.encode_into(text, special, &mut ids).expect("encodes");
    ids
}

#[test]
fn tokens_may_be_text_or_objects() {
    let packed = ModelDir::new(&json!({
        "bos_token": {"content": "<s>", "lstrip": false},
        "eos_token": "<end>",
        "pad_token": null,
        "unk_token": "<unk>",
        "sep_token": "<end>",
        "image_token": "<own>",
        "extra_special_tokens": {"video_token": "<own>"},
        "additional_special_tokens": ["<end>"],
        "chat_template": "{{ messages[0].content }}",
    }))
    .packed();
    let special = &packed.special;
    assert_eq!(special.bos_token.as_deref(), Some("<s>"));
    assert_eq!(special.eos_token.as_deref(), Some("<end>"));
    assert_eq!(special.pad_token, None);
    let extra: Vec<&str> = special.extra.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(extra, ["sep_token", "image_token", "video_token"]);
    assert_eq!(special.additional, ["<end>"]);
    assert_eq!(names(&packed), [("default", "{{ messages[0].content }}")]);
    assert!(packed.texts_checked > 100);
}

#[test]
fn truncation_is_left_out_and_bos_is_kept() {
    let packed = ModelDir::new(&json!({})).packed();
    assert_eq!(ids(&packed, "abababababab", true), [0, 4, 4, 4, 4, 4, 4]);
    assert!(packed.notes.iter().any(|note| note.contains("truncation")), "{:?}", packed.notes);
    assert!(packed.notes.iter().any(|note| note.contains("no chat template")));
}

#[test]
fn templates_may_be_a_list_of_named_ones() {
    let packed = ModelDir::new(&json!({"chat_template": [
        {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"},
    ]}))
    .packed();
    assert_eq!(names(&packed), [("default", "d"), ("tool_use", "t")]);
}

#[test]
fn template_files_win_over_the_configuration() {
    let dir = ModelDir::new(&json!({"chat_template": "old"}));
    dir.put("chat_template.json", &json!({"chat_template": "older"}).to_string());
    assert_eq!(names(&dir.packed()), [("default", "older")]);
    dir.put("chat_template.jinja", "new");
    dir.put("additional_chat_templates/rag.jinja", "r");
    dir.put("additional_chat_templates/notes.txt", "no template");
    assert_eq!(names(&dir.packed()), [("default", "new"), ("rag", "r")]);
}

#[test]
fn special_tokens_that_only_the_configuration_has_are_added() {
    let packed = ModelDir::new(&json!({
        "eos_token": "<new>",
        "pad_token": "<own>",
        "added_tokens_decoder": {
            "8": {"content": "<late>", "special": false, "normalized": false},
            "0": {"content": "<s>", "special": true},
        },
    }))
    .packed();
    // Those of `added_tokens_decoder` first, then the named ones; what the vocabulary has keeps
    // its id.
    assert_eq!(ids(&packed, "a<late>b<new>ab<own>", false), [2, 7, 3, 8, 4, 5]);
    assert_eq!(packed.meta.vocab_size, 9);
    let added = packed.notes.iter().filter(|note| note.starts_with("added token")).count();
    assert_eq!(added, 3, "{:?}", packed.notes);
}

#[test]
fn the_special_tokens_map_of_old_models_counts() {
    let dir = ModelDir::new(&json!({"eos_token": "<s>"}));
    dir.put("special_tokens_map.json", &json!({"eos_token": {"content": "<end>"}}).to_string());
    assert_eq!(dir.packed().special.eos_token.as_deref(), Some("<end>"));
}

#[test]
fn what_versions_of_transformers_disagree_on_is_noted() {
    let dir = ModelDir::new(&json!({
        "bos_token": "<end>", "add_bos_token": true, "auto_map": {}, "split_special_tokens": true,
    }));
    let notes = dir.packed().notes.join("\n");
    for word in ["add_bos_token", "auto_map", "split_special_tokens"] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_file() {
    let dir = ModelDir::new(&json!({"chat_template": 5}));
    let error = dir.pack().expect_err("a number is no template");
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
    dir.put("tokenizer_config.json", "{");
    assert!(matches!(dir.pack(), Err(PackError::Json { .. })));
    dir.put("tokenizer_config.json", &json!({"chat_template": "{% if %}"}).to_string());
    assert!(matches!(dir.pack(), Err(PackError::Compile(_))));
    let mut broken = tokenizer();
    broken["model"]["merges"] = json!(["a c"]);
    dir.put("tokenizer_config.json", "{}");
    dir.put("tokenizer.json", &broken.to_string());
    assert!(matches!(dir.pack(), Err(PackError::Write(_))));
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("removes");
    let error = dir.pack().expect_err("no tokenizer");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert_eq!(error.exit_code(), 1);
}

#[test]
fn the_program_writes_a_bundle_and_reports() {
    let dir = ModelDir::new(&json!({"eos_token": "<end>", "chat_template": "x"}));
    let output = dir.run(&[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    for part in ["test", "BPE, 7 ids, 2 added tokens", "EOS <end>", "default (1 bytes)", "checked"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let bytes = std::fs::read(dir.path().join("out.wpb")).expect("a bundle");
    assert_eq!(Bundle::read(bytes).expect("reads").meta.name, "test");
}

#[test]
fn the_program_takes_a_template_from_elsewhere() {
    let dir = ModelDir::new(&json!({"chat_template": "x"}));
    dir.put("other.jinja", "yy");
    let other = dir.path().join("other.jinja");
    let output = dir.run(&["--chat-template", &other.to_string_lossy()]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("default (2 bytes)"), "{text}");
}

#[test]
fn the_program_fails_with_a_reason_and_writes_nothing() {
    let dir = ModelDir::new(&json!({}));
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("removes");
    let output = dir.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tokenizer.json"));
    assert!(!dir.path().join("out.wpb").exists());
}

#[test]
fn what_the_filter_must_be_told_of_a_model_is_noted() {
    let notes = |config: Option<Value>| {
        let dir = ModelDir::new(&json!({}));
        if let Some(config) = config {
            dir.put("config.json", &config.to_string());
        }
        dir.pack().expect("packs").notes.join("\n")
    };
    let window = "a window of 1024 tokens";
    let mixed = json!(["sliding_attention", "full_attention"]);
    let config = json!({"sliding_window": 1024, "layer_types": mixed});
    assert!(notes(Some(config.clone())).contains(window));
    assert!(notes(Some(json!({"text_config": config}))).contains(window));
    let older = json!({"sliding_window": 1024, "sliding_window_pattern": 6});
    assert!(notes(Some(older)).contains(window));
    let none = json!({"sliding_window": null, "layer_types": mixed});
    let all = json!({"sliding_window": 1024, "layer_types": ["sliding_attention"]});
    for config in [None, Some(json!({})), Some(none), Some(all)] {
        let notes = notes(config);
        assert!(!notes.contains("window") && !notes.contains("Harmony"), "{notes}");
    }
    let dir = ModelDir::new(&json!({}));
    dir.put("config.json", "{");
    assert!(matches!(dir.pack(), Err(PackError::Json { .. })));
}

#[test]
fn a_model_that_speaks_harmony_is_noted() {
    let marks = ["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"];
    let decoder: serde_json::Map<String, Value> = (6..)
        .zip(marks)
        .map(|(id, mark)| (id.to_string(), json!({"content": mark, "special": true})))
        .collect();
    let dir = ModelDir::new(&json!({"added_tokens_decoder": decoder}));
    assert!(dir.pack().expect("packs").notes.join("\n").contains("Harmony"));
}

#[test]
fn chats_that_the_engine_writes_by_code_get_its_encoding() {
    let dir = ModelDir::new(&json!({"chat_template": "unused"}));
    dir.put("config.json", &json!({"architectures": ["DeepseekV4ForCausalLM"]}).to_string());
    let packed = dir.packed();
    let [(name, source)] = names(&packed)[..] else { panic!("{:?}", packed.templates) };
    assert_eq!(name, "encoding");
    assert!(source.contains("deepseek_v4)"), "{source}");
    assert!(packed.notes.join("\n").contains("tokenizer mode deepseek_v4"));
    // For engines that run a template after all.
    dir.put("own.jinja", "own");
    let own = dir.path().join("own.jinja");
    let files = ModelFiles::find(dir.path(), None, None, Some(&own)).expect("finds");
    assert_eq!(names(&pack("test", &files).expect("packs")), [("default", "own")]);
}

#[test]
fn the_program_takes_an_encoding_by_name() {
    let dir = ModelDir::new(&json!({}));
    let output = dir.run(&["--encoding", "deepseek_v41"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(shown.contains("verbatim_encoding ("), "{shown}");
    let output = dir.run(&["--encoding", "deepseek"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("deepseek_v32"), "{output:?}");
}

/// How all tekken.jsons known cut texts into words.
const PATTERN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// A tekken.json of 256 bytes, two tokens made of them, and 3 special tokens before them.
fn tekken() -> Value {
    let token = |bytes: &[u8]| json!({"rank": 0, "token_bytes": STANDARD.encode(bytes)});
    let mut vocab: Vec<Value> = (0..=255_u8).map(|byte| token(&[byte])).collect();
    vocab.extend([token(b"ab"), token(b"aba"), token(b"left out")]);
    json!({
        "config": {
            "pattern": PATTERN, "num_vocab_tokens": 259, "default_vocab_size": 261,
            "default_num_special_tokens": 3, "version": "v13",
        },
        "vocab": vocab,
        "special_tokens": [
            {"rank": 0, "token_str": "<unk>", "is_control": true},
            {"rank": 1, "token_str": "<s>", "is_control": true},
            {"rank": 2, "token_str": "[INST]", "is_control": true},
        ],
        "image": {"image_patch_size": 16},
    })
}

#[test]
fn a_tekken_json_comes_before_a_tokenizer_json() {
    let dir = ModelDir::new(&json!({"chat_template": "{{ 1 }}"}));
    dir.put("tekken.json", &tekken().to_string());
    let packed = dir.packed();
    let meta = &packed.meta;
    assert_eq!(meta.mistral.as_ref().unwrap().version, MistralVersion::V13);
    assert_eq!((meta.vocab_size, meta.added_tokens), (261, 3));
    assert!(names(&packed).is_empty());
    // No text has a special token in it; one opens the sequence.
    let byte = |byte: u8| 3 + u32::from(byte);
    assert_eq!(ids(&packed, "[INST]", false), b"[INST]".map(byte));
    assert_eq!(ids(&packed, "aba", true), [1, 260]);
    assert_eq!(ids(&packed, "abab", false), [259, 259]);
    // A template, or that file, says that engines do otherwise.
    dir.put("own.jinja", "own");
    let find = |tokenizer: Option<&Path>, template: Option<&Path>| {
        pack("test", &ModelFiles::find(dir.path(), tokenizer, None, template).unwrap()).unwrap()
    };
    assert_eq!(names(&find(None, Some(&dir.path().join("own.jinja")))), [("default", "own")]);
    let other = find(Some(&dir.path().join("tokenizer.json")), None);
    assert_eq!(names(&other), [("default", "{{ 1 }}")]);
    assert!(other.meta.mistral.is_none());
}

#[test]
fn efforts_of_a_tekken_json_are_kept() {
    let dir = ModelDir::new(&json!({}));
    let mut file = tekken();
    file["config"]["version"] = "v15".into();
    file["model_settings_builder"] = json!({"reasoning_effort": {
        "type": "enum", "accepts_none": true, "values": ["none", "high"], "default": "none",
    }});
    dir.put("tekken.json", &file.to_string());
    let efforts = dir.packed().meta.mistral.unwrap().efforts.unwrap();
    assert_eq!(
        (efforts.values, efforts.default),
        (vec!["none".into(), "high".into()], "none".into())
    );
}

#[test]
fn a_tekken_json_that_is_not_understood_is_refused() {
    let dir = ModelDir::new(&json!({}));
    let broken: [(&str, Value); 7] = [
        ("/config/version", "v99".into()),
        ("/config/default_vocab_size", 9_000.into()),
        ("/config/default_vocab_size", 1.into()),
        ("/config/pattern", "(".into()),
        ("/vocab/256/token_bytes", "?".into()),
        ("/special_tokens/2/rank", 7.into()),
        ("/image", json!(1)),
    ];
    for (pointer, value) in broken {
        let mut file = tekken();
        *file.pointer_mut(pointer).unwrap() = value;
        if pointer == "/image" {
            file["model_settings_builder"] = json!({"json_schema": {}});
        }
        dir.put("tekken.json", &file.to_string());
        let error = dir.pack().expect_err(pointer);
        assert_eq!(error.exit_code(), 1, "{pointer}: {error}");
    }
    dir.put("tekken.json", "[]");
    assert!(matches!(dir.pack(), Err(PackError::Json { .. })));
}

#[test]
fn patterns_that_are_not_known_are_refused_with_a_reason() {
    for (member, value) in [
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "ab?"}, "behavior": "Isolated", "invert": false}),
        ),
    ] {
        let dir = ModelDir::new(&json!({}));
        let mut file = tokenizer();
        file[member] = value;
        dir.put("tokenizer.json", &file.to_string());
        let error = dir.pack().expect_err(member);
        assert!(error.to_string().contains("regular expression"), "{error}");
        assert_eq!(error.exit_code(), 1, "{error}");
    }
}

//! Compares a bundle's tokenizer with its source.

use serde_json::Value;
use tokenizers::pipeline::{EncodeOptions, PipelineTokenizer};
use tokenizers::utils::byte_level::char_to_byte;
use warmpath_bundle::Tokenizer;

use crate::PackError;

/// Added tokens that are tried, each in several surroundings. Some models have thousands of a kind.
const ADDED_TOKENS_MAX: usize = 2000;
/// Characters of a text and ids that a message shows.
const SHOWN: usize = 80;

/// Texts that tokenizers stumble over.
const TEXTS: [&str; 42] = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n\r\n \t",
    "\0",
    "a\0b\u{7f}\u{85}\u{200b}c",
    "\u{feff}BOM",
    "Hello, world!",
    "it's I'LL we've DON'T you'd",
    "  leading and trailing  ",
    "tabs\t\tand   runs    of     spaces",
    "line\nbreaks\r\nof\rall\u{2028}kinds\u{2029}",
    "1234567890 3.14159 1,000,000 0x1F 1e-9 ١٢٣ 一二三",
    "Übergröße fließend naïve œuvre ẞ",
    "Zażółć gęślą jaźń İstanbul ılık",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία ἀρχῇ",
    "السلام عليكم مَرْحَبًا ٱلْكِتَابُ",
    "שלום בְּרֵאשִׁית",
    "नमस्ते क्षत्रिय श्रीमान्",
    "வணக்கம் ஸ்ரீ",
    "สวัสดีชาวโลกภาษาไทยไม่มีช่องว่าง",
    "你好，世界！中华人民共和国繁體字龘",
    "こんにちは世界カタカナﾊﾝｶｸ食べさせられたくなかった",
    "안녕하세요 세계 뷁 ᄒᆞᆫ글",
    "😀👨‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪🇫🇷1️⃣❤️",
    "e\u{301}e\u{301}\u{323}n\u{303} c\u{327} \u{301}\u{308}",
    "\u{1e9b}\u{323} ﬁ ½ ™ Ⅷ ㎏ ﷺ",
    "\u{fffd}\u{fffe}\u{ffff}\u{e000}\u{10ffff}\u{fdd0}",
    "\\ud83d\\ude00 \\u0000 &#x41; %ED%A0%80",
    "def f(x):\n    return x**2  # sq\n\n\nclass A:\n\tpass\n",
    "for(int i=0;i<n;++i){a[i]&=0xFF;}//!==>>>=",
    "<div class=\"a\">&nbsp;</div> </ </p><br/>",
    "{\"a\":[1,2.5e-10,null],\"b\":\"\\n\"}",
    "C:\\Users\\me /usr/lib/../x ~ https://a.b/c?d=e&f#g",
    "!!!???...---===___***###@@@$$$%%%^^^&&&",
    "«“‘quotes’”» ‹—– …•‣ ‽⁂",
    "<s></s><unk><pad><|endoftext|><|im_start|>user\n<|im_end|>",
    "[INST] <<SYS>> x <</SYS>> [/INST] <0x0A> <think></think>",
    "▁▁a ▁b▁ c▁",
    "supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis",
];

/// Runs both tokenizers over all texts; returns how many there were. `is_special_text` tells whether a text
/// that is spelled like a special token is one.
pub(crate) fn compare(
    json: &mut Value,
    tokenizer: &Tokenizer,
    is_special_text: bool,
) -> Result<usize, PackError> {
    let reference = reference(json)?;
    let mut count = 0;
    let mut check = |text: &str| {
        count += 1;
        compare_one(&reference, tokenizer, is_special_text, text)
    };
    for text in TEXTS {
        check(text)?;
        check(&text.repeat(40))?;
        check(&format!("x{text} {text}\n{text}9"))?;
    }
    let added = json.get("added_tokens").and_then(Value::as_array);
    for token in added.into_iter().flatten().take(ADDED_TOKENS_MAX) {
        let token = token.get("content").and_then(Value::as_str).unwrap_or_default();
        check(&format!("{token}a{token} {token}\n{token}{token}"))?;
        check(&format!(" {}", token.to_uppercase()))?;
    }
    for text in vocabulary(json) {
        check(&text)?;
    }
    Ok(count)
}

/// The library's own tokenizer of the source.
fn reference(json: &mut Value) -> Result<PipelineTokenizer, PackError> {
    let failed = |detail: String| PackError::Reference { detail };
    tokenizers::canonicalize_value(json).map_err(|error| failed(error.to_string()))?;
    for unused in ["truncation", "padding"] {
        json[unused] = Value::Null;
    }
    tokenizers::from_json(&json.to_string()).map_err(|error| failed(error.to_string()))
}

/// Every token of the vocabulary as the text that it stands for.
fn vocabulary(json: &Value) -> Vec<String> {
    let byte_level = json.pointer("/model/byte_level") == Some(&Value::Bool(true));
    let spell = |token: &str| {
        let bytes: Option<Vec<u8>> = token.chars().map(char_to_byte).collect();
        match bytes {
            Some(bytes) if byte_level => String::from_utf8(bytes).ok(),
            _ => Some(token.replace('▁', " ")),
        }
    };
    match json.pointer("/model/vocab") {
        Some(Value::Object(map)) => map.keys().filter_map(|token| spell(token)).collect(),
        Some(Value::Array(list)) => {
            list.iter().filter_map(|entry| spell(entry.get(0)?.as_str()?)).collect()
        }
        _ => Vec::new(),
    }
}

fn compare_one(
    reference: &PipelineTokenizer,
    tokenizer: &Tokenizer,
    is_special_text: bool,
    text: &str,
) -> Result<(), PackError> {
    for special in [false, true] {
        let options = EncodeOptions {
            add_special_tokens: special,
            encode_special_tokens: !is_special_text,
            ..EncodeOptions::default()
        };
        let failed = |detail: String| PackError::Reference { detail };
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        reference
            .encode_into(text, &options, &mut expected)
            .map_err(|error| failed(error.to_string()))?;
        let expected: Vec<u32> = expected.iter().map(|token| token.id()).collect();
        tokenizer
            .encode_into(text, special, &mut found)
            .map_err(|error| failed(error.to_string()))?;
        if found != expected {
            return Err(PackError::Mismatch {
                text: text.chars().take(SHOWN).collect(),
                found: found.into_iter().take(SHOWN).collect(),
                expected: expected.into_iter().take(SHOWN).collect(),
            });
        }
    }
    Ok(())
}

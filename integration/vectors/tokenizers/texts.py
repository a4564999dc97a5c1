"""The hostile texts of the golden vectors: made by rule from a fixed seed, so that they are ours.

A text is a list of [piece, count] pairs, each piece repeated count times; long runs stay short in
the file that way.
"""

import random
import unicodedata

SEED = 20260229

WORDS = {
    "english": "the quick brown fox jumps over lazy dogs while it's raining, isn't it? I'LL we've "
    "don't CAN'T you're he'd antidisestablishmentarianism co-operate e.g. i.e. rate-limiting".split(),
    "german": "Übergröße Straße Donaudampfschifffahrtsgesellschaftskapitän äöü ẞ fließend größer".split(),
    "french": "l'été où ça garçon naïve œuvre aujourd'hui qu'est-ce déjà-vu à côté".split(),
    "russian": "Съешь же ещё этих мягких французских булок да выпей чаю Ёлка объявление".split(),
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία ἀρχῇ ἦν ὁ λόγος".split(),
    "polish": "Zażółć gęślą jaźń źdźbło łódź".split(),
    "turkish": "İstanbul'da ılık ışık pijamalı hasta yağız şoföre çabucak güvendi".split(),
    "vietnamese": "Tôi có thể ăn thủy tinh mà không hại gì Nguyễn được".split(),
    "arabic": "السلام عليكم كيف حالك اليوم مَرْحَبًا ٱلْكِتَابُ ١٢٣ لا إله".split(),
    "hebrew": "שלום עולם בְּרֵאשִׁית בָּרָא אֱלֹהִים".split(),
    "hindi": "नमस्ते दुनिया क्षत्रिय श्रीमान् हिन्दी १२३ विद्यार्थी".split(),
    "bengali": "আমি বাংলায় গান গাই স্ত্রী".split(),
    "tamil": "வணக்கம் உலகம் ஸ்ரீ".split(),
    "thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง กำลัง น้ำ".split(),
    "chinese": "你好世界 人工智能 繁體中文字 的了是不 龘靐齉 中华人民共和国 〇一二三 《红楼梦》".split(),
    "japanese": "こんにちは 世界 カタカナ ﾊﾝｶｸ 食べさせられたくなかった 々〆ヶ 「引用」 がぎぐげご".split(),
    "korean": "안녕하세요 세계 뷁쀍 ᄒᆞᆫ글 한국어".split(),
    "georgian": "გამარჯობა მსოფლიო ᲒᲐᲛᲐᲠᲯᲝᲑᲐ".split(),
    "amharic": "ሰላም ልዑል አማርኛ".split(),
    "burmese": "မင်္ဂလာပါ ကမ္ဘာ".split(),
}
CODE = [
    "def f(x: int) -> int:\n    return x**2 + 1  # note\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] & 0xFF;\n}\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    println!(\"{:?}\", v?);\n}\n",
    "SELECT * FROM t WHERE a='it''s' AND b<>NULL;--x\n",
    "<div class=\"a b\" data-x='1'>&nbsp;&lt;p&gt;</div>\r\n",
    "{\"a\":[1,2.5e-10,null,true],\"\\u00e9\":\"\\ud83d\\ude00\",\"k\":{}}",
    "if [[ $x -gt 1 ]]; then echo \"${y:-z}\" | sed 's/a\\/b/c/g'; fi\n",
    "C:\\Users\\me\\file.txt /usr/local/bin/../lib ~/.config http://a.b/c?d=e&f=%20#g",
    "x=1;y=2;;z+=-3e5;a&&b||!c??d?.e\n\n\n\n",
    "\\begin{equation} \\frac{a_{i}^{2}}{\\sqrt{x}} \\end{equation}",
    "@@ -1,3 +1,4 @@\n-old\n+new\n \t ctx\n",
    "0x1F 0b1010 1_000_000 1e9 .5 5. 3.14159 -0 +1 1/2 10% $9.99 €5 #123 v1.2.3-rc.4",
    "[INFO] 2024-01-31T23:59:59.999Z pid=123 (a.b.C) - ok\n\tat x.y(Z.java:12)\n",
    "| a | b |\n|---|:-:|\n| 1 | **x** |\n\n- [ ] t\n1. `c`\n```py\nx\n```\n",
]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", "\v", "\f", "\u00a0", "\u2003",
          "\u3000", "\u200b", "\u2028", "\u0085", " \n", "\n ", "\t \t", "    \n\n  ", "\ufeff"]
SPECIALS = [
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<start_of_turn>", "<end_of_turn>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
    "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|fim_prefix|>",
    "<|python_tag|>", "[INST]", "[/INST]", "<<SYS>>", "<image_soft_token>", "<unused42>",
    "<|reserved_special_token_7|>", "<h1>", "</table>", "<0x0A>", "<0xE2>", "[toxicity=0]",
]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "☺", "1️⃣", "🫠", "🧑🏿‍🚀", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "©️"]
CONTROLS = [chr(c) for c in range(32)] + ["\x7f", "\x80", "\x9f", "\u00ad", "\u200c", "\u200d",
            "\u200e", "\u202e", "\u2060", "\ufffd", "\ufffe", "\uffff", "\ue000", "\U000f0000",
            "\U0010ffff", "\ufdd0"]
MARKS = ["\u0301", "\u0308", "\u0327", "\u0323", "\u20dd", "\ufe0f", "\ufe0e", "\u0e49", "\u094d",
         "\u05b0", "\u3099", "\u0345", "\u1ab0"]
ESCAPES = ["\\ud83d\\ude00", "\\ud800", "\\udc00\\ud800", "&#xD83D;", "%ED%A0%80", "\\x00\\xff",
           "\\u0000", "\\N{DASH}", "U+D800", "=?UTF-8?B?4pyT?="]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿«»“”‘’–—…‰′″‹›※‼⁇₤℃™→∑≠⌘■☃✓、。〈〉！？～"


def words(rng, language, count):
    return " ".join(rng.choice(WORDS[language]) for _ in range(count))


def rule_texts():
    """Texts that follow a list: each item alone, after a space, doubled, inside a word."""
    yield []
    for group in (SPACES, SPECIALS, EMOJI, CONTROLS, MARKS, ESCAPES, CODE):
        for item in group:
            yield [[item, 1]]
            yield [["a" + item + "b " + item + " " + item + item + "\n" + item, 1]]
    for language in WORDS:
        yield [[" ".join(WORDS[language]), 1]]
        yield [[" " + "".join(WORDS[language]) + "  ", 1]]
        yield [[" ".join(WORDS[language]).upper(), 1]]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        for language in ("german", "vietnamese", "korean", "hindi", "japanese", "greek"):
            yield [[unicodedata.normalize(form, " ".join(WORDS[language])), 1]]


def run_texts():
    """Long runs, where quadratic or length-limited code shows."""
    for piece in ("a", " ", "\n", "\t", "0", "!", "=", "-", "▁", "é", "中", "😀", "ab", " a", "\r\n",
                  "\u0301", "ก", "<", ">", "A1", "\0", "' ", "\u00a0", "ha", "xyz9"):
        for count in (2, 3, 17, 31, 32, 33, 257, 2500):
            yield [[piece, count]]
    yield [["a" * 40 + " ", 60], ["z", 1]]
    yield [["> </", 50]]
    yield [[" >\u2581</", 20]]


def mixed_texts(rng, count):
    """Pieces of all kinds joined at random."""
    def piece():
        kind = rng.randrange(12)
        if kind < 3:
            return words(rng, rng.choice(list(WORDS)), rng.randint(1, 6))
        if kind == 3:
            return rng.choice(CODE)
        if kind == 4:
            return rng.choice(SPECIALS)
        if kind == 5:
            return rng.choice(SPACES)
        if kind == 6:
            return rng.choice(EMOJI)
        if kind == 7:
            return rng.choice(CONTROLS)
        if kind == 8:
            return rng.choice("aeioucnsż中가") + "".join(rng.choices(MARKS, k=rng.randint(1, 4)))
        if kind == 9:
            return "".join(rng.choices("0123456789", k=rng.randint(1, 12)))
        if kind == 10:
            return "".join(rng.choices(PUNCTUATION, k=rng.randint(1, 8)))
        return rng.choice(ESCAPES)

    for _ in range(count):
        yield [["".join(piece() + rng.choice(["", "", " "]) for _ in range(rng.randint(2, 14))), 1]]


def random_texts(rng, count):
    """Random characters of all planes, some scripts preferred."""
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x250), (0x370, 0x530), (0x590, 0x780), (0x900, 0xE80),
              (0x1E00, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
              (0xF900, 0xFFFF), (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF)]
    for _ in range(count):
        low, high = rng.choice(ranges)
        text = ""
        for _ in range(rng.randint(1, 80)):
            if rng.random() < 0.1:
                low, high = rng.choice(ranges)
            code = rng.randrange(low, high)
            text += " " if 0xD800 <= code < 0xE000 else chr(code)
        yield [[text, 1]]


def chat_texts(rng, count):
    """Whole conversations as templates render them, with what users paste."""
    for _ in range(count):
        open_, mid, close = rng.choice([
            ("<|im_start|>", "\n", "<|im_end|>\n"),
            ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
            ("<start_of_turn>", "\n", "<end_of_turn>\n"),
            ("<｜User｜>", "", "<｜end▁of▁sentence｜>"),
            ("<|start|>", "<|message|>", "<|end|>"),
            ("[INST] ", "", " [/INST]"),
        ])
        text = ""
        for turn in range(rng.randint(1, 5)):
            body = rng.choice([
                words(rng, rng.choice(list(WORDS)), rng.randint(3, 40)),
                "".join(rng.choices(CODE, k=3)),
                words(rng, "english", 5) + rng.choice(SPECIALS) + words(rng, "chinese", 3),
            ])
            text += open_ + ("user", "assistant")[turn % 2] + mid + body + close
        yield [[text, 1]]


def texts():
    rng = random.Random(SEED)
    yield from rule_texts()
    yield from run_texts()
    yield from mixed_texts(rng, 260)
    yield from random_texts(rng, 120)
    yield from chat_texts(rng, 80)

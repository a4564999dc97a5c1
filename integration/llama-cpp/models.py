"""Makes a tiny model of random weights for each family of integration/vectors/vllm/families.json whose
tokenizer llama.cpp reads from a plain list of tokens and merges: DIR/<family>.gguf.

    DIR/bin/python models.py DIR [FAMILY ...]

Tokenizers and templates come from .cache/, where the fetch scripts of integration/vectors put them.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
FAMILIES = json.loads((ROOT / "integration/vectors/vllm/families.json").read_text(encoding="utf-8"))

# llama.cpp's names for how a tokenizer splits text, and whether it puts its first token before a text.
PRE_TOKENIZERS = {"llama3_1": ("llama-bpe", True), "qwen3": ("qwen2", False)}

WIDTH = 64
INNER = 2 * WIDTH


def add_tokenizer(writer, family, name):
    """Returns the id of a token that is a word."""
    source = CACHE / "tokenizers" / family["tokenizer"]
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    size = family["vocab_size"]
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    vocabulary = tokenizer["model"]["vocab"]
    for token, number in vocabulary.items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        tokens[token["id"]], types[token["id"]] = token["content"], kind
    merges = tokenizer["model"]["merges"]
    pre, begins = PRE_TOKENIZERS[name]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_bos_token_id(family["bos_token_id"])
    writer.add_eos_token_id(family["eos_token_id"])
    writer.add_add_bos_token(begins)
    template = CACHE / "templates" / f"{family['template']}.jinja"
    writer.add_chat_template(template.read_text(encoding="utf-8"))
    return vocabulary["Ġa"]


def add_weights(writer, size, answer):
    """Weights with which every answer is the token `answer` again and again: of random tokens some are parts
    of characters, or begin a call of a tool, and llama.cpp answers such output with an error."""
    draw = np.random.default_rng(1)

    def add(name, *shape):
        writer.add_tensor(name, (draw.standard_normal(shape) / 20).astype(np.float16))

    def add_zeros(name, *shape):
        writer.add_tensor(name, np.zeros(shape, np.float16))

    # The layer adds nothing, so what comes out is the last token's embedding: positive numbers.
    embeddings = np.abs(draw.standard_normal((size, WIDTH))) + 0.1
    writer.add_tensor("token_embd.weight", embeddings.astype(np.float16))
    for part in ("attn_q", "attn_k", "attn_v"):
        add(f"blk.0.{part}.weight", WIDTH, WIDTH)
    add_zeros("blk.0.attn_output.weight", WIDTH, WIDTH)
    add("blk.0.ffn_gate.weight", INNER, WIDTH)
    add("blk.0.ffn_up.weight", INNER, WIDTH)
    add_zeros("blk.0.ffn_down.weight", WIDTH, INNER)
    for part in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{part}.weight", np.ones(WIDTH, np.float32))
    output = np.zeros((size, WIDTH), np.float16)
    output[answer] = 1
    writer.add_tensor("output.weight", output)


def make(target, name):
    """Writes one model and returns its path."""
    family = FAMILIES[name]
    path = target / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(65_536)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_vocab_size(family["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    word = add_tokenizer(writer, family, name)
    add_weights(writer, family["vocab_size"], word)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("family", nargs="*", default=list(PRE_TOKENIZERS))
    arguments = parser.parse_args()
    for name in arguments.family:
        print(make(arguments.dir, name))


if __name__ == "__main__":
    main()

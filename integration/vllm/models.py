"""Makes a tiny model of random weights for each family of integration/vectors/vllm/families.json:
its own tokenizer and chat template, and a configuration that vLLM fills with dummy weights.

    python3 models.py DIR [FAMILY ...]

Tokenizers and templates come from .cache/, where the fetch scripts of integration/vectors put them;
a template of null is the tokenizer's own, if it has one: vLLM writes the chats of a family with an
encoding by its own code, and Mistral's library those of one with a tekken.json.
"""

import argparse
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
VECTORS = ROOT / "integration/vectors/vllm"
FAMILIES = json.loads((VECTORS / "families.json").read_text(encoding="utf-8"))
VERSIONS = json.loads((VECTORS / "mistral.versions.json").read_text(encoding="utf-8"))


# What a gpt-oss model has beyond a Llama. vLLM writes the chats of this type in Harmony.
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


def config(family):
    """The smallest model of its type that vLLM takes on a CPU."""
    more = GPT_OSS if family.get("model_type") == "gpt_oss" else {}
    sizes = {key: family[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
    return {
        **sizes,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 65_536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        **more,
    }


def make(target, name):
    family = FAMILIES[name]
    folder = target / name
    folder.mkdir(parents=True, exist_ok=True)
    source = CACHE / "tokenizers" / family["tokenizer"]
    (folder / "config.json").write_text(json.dumps(config(family)), encoding="utf-8")
    if "tekken_version" in family:
        tekken = json.loads((source / "tekken_240911.json").read_text(encoding="utf-8"))
        # No model of text alone has it.
        del tekken["image"]
        tekken |= VERSIONS[family["tekken_version"]]
        tekken["config"]["version"] = family["tekken_version"]
        (folder / "tekken.json").write_text(json.dumps(tekken), encoding="utf-8")
        return folder
    shutil.copy(source / "tokenizer.json", folder)
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = settings.pop("chat_template", None)
    if family["template"] is not None:
        template = (CACHE / "templates" / f"{family['template']}.jinja").read_text(encoding="utf-8")
    if settings["tokenizer_class"].startswith("LlamaTokenizer"):
        # For the type of the real models transformers takes tokenizer.json as it is; for the type
        # "llama" it would build another tokenizer from the vocabulary.
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    args = parser.parse_args()
    for family in args.families:
        print(make(args.target, family))


if __name__ == "__main__":
    main()

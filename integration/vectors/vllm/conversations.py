"""Writes conversations.jsonl: request bodies, and what vLLM hands to the template for each.

    PYTHON conversations.py [--random COUNT] [--seed SEED] [--out FILE]

PYTHON is the one of a vLLM installation. Each line is [api, body, traits, expected]; `expected` is
null where vLLM refuses the request, and what is equal to a default is left out.
"""

import json

import cases
import oracle

DEFAULTS = {
    "tools": None,
    "documents": None,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "kwargs": {},
    "special_tokens": False,
    "truncate": None,
    "truncate_side": None,
}


def main():
    args = cases.options(__doc__, "conversations.jsonl", 300)
    accepted = 0
    with args.out.open("w", encoding="utf-8") as out:
        for api, body, traits in [*cases.fixed(), *cases.made(args.seed, args.random)]:
            expected = oracle.conversation(api, body, {**cases.TRAITS, **traits})
            if expected is not None:
                accepted += 1
                expected = {k: v for k, v in expected.items() if k not in DEFAULTS or v != DEFAULTS[k]}
            # ASCII only, as some bodies hold what an editor would not show.
            out.write(json.dumps([api, body, traits, expected], separators=(",", ":")) + "\n")
    print(f"{accepted} accepted")


if __name__ == "__main__":
    main()

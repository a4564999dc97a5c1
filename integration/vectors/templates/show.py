"""Prints what transformers renders for one template and one conversation, or its error.

Usage: python3 show.py TEMPLATE.jinja CONVERSATION
"""

import sys

import reference


def main() -> None:
    template = (reference.TEMPLATES / sys.argv[1]).read_bytes().decode("utf-8")
    for conversation in reference.conversations():
        if conversation["name"] == sys.argv[2]:
            try:
                sys.stdout.write(reference.render(template, conversation))
            except Exception as error:
                sys.exit(f"{type(error).__name__}: {error}")
            return
    sys.exit("no such conversation")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""python -m ballast_torch demo | tokens | version"""

from __future__ import annotations

import sys

USAGE = """usage: python -m ballast_torch demo [--store ADDRESS] [--picture FILE.svg] [--layers N]
       python -m ballast_torch tokens --help
       python -m ballast_torch version

demo     trains a small GPT with and without a store: memory, time, the same bits, a picture
tokens   text files and a model's tokenizer to token files that a job reads (needs: pip install tokenizers)
version  of this package
"""


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "demo":
        from .demo import main as run
    elif command == "tokens":
        from .tokens import main as run
    elif command in ("version", "--version"):
        from . import __version__
        print(__version__)
        return 0
    else:
        wanted = command in ("help", "--help", "-h")
        print(USAGE if wanted else f"ballast_torch: {command or 'a command'} is {'unknown' if command else 'missing'}\n{USAGE}",
              end="", file=sys.stdout if wanted else sys.stderr)
        return 0 if wanted else 2
    try:
        return run(rest) or 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

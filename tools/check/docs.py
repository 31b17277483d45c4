#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of the documentation that the programs write themselves, from the tables of their commands, flags, keys, metrics and
exit codes.

    tools/check/docs.py BIN [FILE...]           compares; exit code 1 names what is out of date
    tools/check/docs.py BIN --write [FILE...]   brings it up to date

A part stands between "<!-- NAME: begin -->" and "<!-- NAME: end -->"; the part WHOLE is a file from its first line to its last.
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVICES = ("stage-service", "activation-store", "ballast-driver")
WHOLE = ""
PARTS = {
    "docs/configuration.md": {WHOLE: ["ballastctl", "configuration", "--markdown"]},
    "docs/exit-codes.md": {"exit-codes": ["ballastctl", "manual", "--format", "exit-codes"]},
    "docs/ballastctl.md": {"ballastctl": ["ballastctl", "manual", "--format", "markdown"]},
    "docs/metrics.md": {**{name: [name, "--describe", "metrics"] for name in SERVICES},
                        "process": [SERVICES[0], "--describe", "process"]},
    "docs/operations.md": {name: [name, "--describe", "flags"] for name in SERVICES},
}


def main():
    words = [word for word in sys.argv[1:] if word != "--write"]
    if not words or any(word not in PARTS for word in words[1:]):
        sys.exit(__doc__)
    write, stale = "--write" in sys.argv, []
    for path in words[1:] or PARTS:
        with open(os.path.join(ROOT, path)) as file:
            text = old = file.read()
        for name, (program, *arguments) in PARTS[path].items():
            made = subprocess.run([os.path.join(words[0], program), *arguments], text=True, check=True,
                                  stdout=subprocess.PIPE, timeout=60).stdout
            if name == WHOLE:
                text = made
                continue
            begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
            text = text[:text.index(begin) + len(begin)] + made + text[text.index(end):]
        if text != old:
            stale.append(path)
            if write:
                with open(os.path.join(ROOT, path), "w") as file:
                    file.write(text)
    if stale and not write:
        sys.exit(f"{', '.join(stale)}: not what the programs say; 'tools/check/docs.py {words[0]} --write' writes it")


main()

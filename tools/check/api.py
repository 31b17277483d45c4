#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: every public header of the libraries that programs of others may use, with the first sentence of it.

    tools/check/api.py            compares; exit code 1 where it is out of date
    tools/check/api.py --write    brings it up to date

A header is public when no name in it begins with bl__ (what files of one library share) and it does not say that it lies
between those.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "api.md")
LIBRARIES = ("client", "schedule", "policy", "simulate", "plan", "model", "formats", "config", "lease", "step", "base")
HEAD = """# Headers

What programs of others may include, by library: each header is the manual of what it declares (purpose, threads, ownership,
units, failures). `client` is libballast-client (docs/client-library.md, examples/client); the others have no clock, thread, socket or
file inside. Link a library as `bl_<name>` of this tree's CMake; include a header as it is written here. Nothing of them is
stable before version 1.0. `tools/check/api.py --write` writes this page from the headers.
"""


def folder_of(library):
    """Its folder in lib/, at whatever depth."""
    return next(base for base, _, names in os.walk(os.path.join(ROOT, "lib"))
                if os.path.basename(base) == library and "CMakeLists.txt" in names)


def purpose_of(text):
    """The first sentence of the comment that a header opens with, after its licence."""
    lines = []
    for line in text.splitlines()[1:]:
        if not line.startswith("//") or line.rstrip() == "//":
            break
        lines.append(line[2:].strip())
    return re.split(r"(?<!\bal)\.(?=\s|$)", " ".join(lines), maxsplit=1)[0] + "."


def headers_of(folder):
    for base, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            if name.endswith(".h"):
                with open(os.path.join(base, name)) as file:
                    text = file.read()
                if "bl__" not in text and not re.match(r"//.*\n// (Private to|Between the files|Shared inside|Inside)", text):
                    yield os.path.relpath(os.path.join(base, name), os.path.dirname(folder)), purpose_of(text)


def main():
    page = HEAD
    for library in LIBRARIES:
        page += f"\n## {library}\n\n| header | what it is |\n| --- | --- |\n"
        for name, purpose in headers_of(folder_of(library)):
            purpose = purpose.replace("|", "\\|")
            page += f"| `{name}` | {purpose} |\n"
    if "--write" in sys.argv:
        with open(PAGE, "w") as file:
            file.write(page)
        return
    with open(PAGE) as file:
        if file.read() != page:
            sys.exit("docs/api.md: not what the headers say; 'tools/check/api.py --write' writes it")


main()

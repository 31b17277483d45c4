#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Circles among files: sets of files of which each calls, through the others, itself.

    tools/check/circles.py [ROOT]                 prints the circles, largest first; exit code 1 names what breaks the rule
    tools/check/circles.py [ROOT] --why WORD      and who calls what in those of which a file's path contains WORD

A circle can be understood only as a whole: a large one is a large file in pieces. More than three files are too many.
"""
import os
import re
import sys

FOLDERS = ("lib", "stage-service", "activation-store", "tools")
ENOUGH = 3
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DEFINITION = re.compile(r"^(?!static\b|typedef\b|extern\b)\w[\w\s*]*?\b(bl_\w+)\([^;{}]*?\)\s*\{", re.M)
NAME = re.compile(r"\bbl_\w+")


def read_sources():
    """path -> text without comments and strings"""
    codes = {}
    for folder in FOLDERS:
        for path in (os.path.join(home, name) for home, _, names in os.walk(folder) for name in names):
            if path.endswith((".c", ".cu")):
                with open(path, encoding="utf-8") as file:
                    codes[path] = NOT_CODE.sub(" ", file.read())
    return codes


def find_calls(codes):
    """caller -> called file -> one of the functions. What several files define is a seam and is nobody's."""
    defined = {}
    for path, code in codes.items():
        for name in DEFINITION.findall(code):
            defined.setdefault(name, set()).add(path)
    calls = {path: {} for path in codes}
    for path, code in codes.items():
        for name in sorted(set(NAME.findall(code))):
            homes = defined.get(name, ())
            if len(homes) == 1 and path not in homes:
                calls[path].setdefault(*homes, name)
    return calls


def find_circles(calls):
    """Strongly connected components of more than one file (Tarjan)."""
    order, lowest, open_files, found = {}, {}, [], []

    def visit(path):
        order[path] = lowest[path] = len(order)
        open_files.append(path)
        for called in calls[path]:
            if called not in order:
                visit(called)
            if called in open_files:
                lowest[path] = min(lowest[path], lowest[called])
        if lowest[path] == order[path]:
            circle = open_files[open_files.index(path):]
            del open_files[len(open_files) - len(circle):]
            if len(circle) > 1:
                found.append(sorted(circle))

    for path in sorted(calls):
        if path not in order:
            visit(path)
    return sorted(found, key=lambda circle: (-len(circle), circle))


def main():
    words = sys.argv[1:]
    why = words.pop(words.index("--why") + 1) if "--why" in words else None
    roots = [word for word in words if word != "--why"]
    os.chdir(roots[0] if roots else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    sys.setrecursionlimit(100000)
    calls = find_calls(read_sources())
    circles = find_circles(calls)
    for circle in circles:
        folder = os.path.commonpath(circle)
        print(f"{len(circle):3} {folder}:", *(os.path.relpath(path, folder) for path in circle))
        for path in circle if why and any(why in path for path in circle) else ():
            for called, name in sorted(calls[path].items()):
                if called in circle:
                    print(f"      {os.path.relpath(path, folder)} -> {os.path.relpath(called, folder)} ({name})")
    if any(len(circle) > ENOUGH for circle in circles):
        sys.exit(f"circles of more than {ENOUGH} files: see above")


main()

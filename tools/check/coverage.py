#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which lines ran, per folder, of a build with -DBALLAST_COVERAGE=ON whose tests have run (preset coverage).

    tools/check/coverage.py BUILD             a line per folder, worst first
    tools/check/coverage.py BUILD FOLDER      its files, and which of their lines did not run
"""
import collections
import concurrent.futures
import gzip
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AT_ONCE = 50  # data files a call of gcov


def data_files(build):
    return [os.path.join(base, name) for base, _, names in os.walk(build) for name in names if name.endswith(".gcda")]


def lines_of(paths):
    """(source, line) -> how often it ran, of what these data files say."""
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["gcov", "--json-format", "--hash-filenames", *paths], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in os.listdir(folder):
            with gzip.open(os.path.join(folder, name)) as file:
                for source in json.load(file)["files"]:
                    path = os.path.relpath(source["file"], ROOT)
                    if not path.startswith(("..", "tests/", "build")):
                        for line in source["lines"]:
                            found[path, line["line_number"]] += line["count"]
    return found


def ranges(numbers):
    text, numbers = [], sorted(numbers)
    while numbers:
        end = next((i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers))
        text.append(f"{numbers[0]}-{numbers[end - 1]}" if end > 1 else str(numbers[0]))
        numbers = numbers[end:]
    return " ".join(text)


def table(groups):
    rows = [(sum(1 for n in counts if n) / len(counts), name, len(counts)) for name, counts in groups.items()]
    for part, name, count in sorted(rows, key=lambda row: (row[1] == "all", row)):
        print(f"{100 * part:5.1f} %  {round(part * count):6d} of {count:6d} lines  {name}")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    paths = data_files(os.path.abspath(sys.argv[1]))
    if not paths:
        sys.exit(f"{sys.argv[1]}: no tests have run in a build that counts: ctest --preset coverage")
    parts = [paths[i:i + AT_ONCE] for i in range(0, len(paths), AT_ONCE)]
    found = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        for lines in threads.map(lines_of, parts):
            found.update(lines)
    if len(sys.argv) == 3:
        files = collections.defaultdict(list)
        for (path, line), count in found.items():
            if path.startswith(sys.argv[2].rstrip("/") + "/") and count == 0:
                files[path].append(line)
        for path in sorted(files):
            print(f"{path}: {ranges(files[path])}")
        return
    folders = collections.defaultdict(list)
    for (path, _), count in found.items():
        folders[os.path.dirname(path)].append(count)
    folders["all"] = list(found.values())
    table(folders)


main()

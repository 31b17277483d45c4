#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libballast-client as it is installed, with a prefix, with DESTDIR, and moved elsewhere afterwards: both libraries show what
lib/client/exports.txt names and nothing else, the headers declare just that, each compiles alone as C11 and C++ and includes
nothing internal; examples/client, copied out of the tree, is built by pkg-config and by find_package, with the shared and
with the static library, and parks blocks at a store over shared memory and tcp."""
import os
import re
import shutil

import packaging
from ballast import scratch
from packaging import BUILD, CC, CMAKE, build_by_find_package, build_by_pkg_config, run

CALL = re.compile(r"\b(bl_[a-z0-9_]+)\s*\(")


def install(*arguments, **environment):
    for component in ("client", "client-dev"):
        run(CMAKE, "--install", BUILD, "--component", component, *arguments, env=dict(os.environ, **environment))


def folder_with(root, name):
    """Where a file of that name lies below a folder."""
    return next(base for base, _, names in os.walk(root) if name in names)


def check_libraries(libraries):
    shared = os.path.join(libraries, "libballast-client.so")
    assert packaging.visible("-D", "--defined-only", shared) == packaging.exported()
    assert packaging.visible("--defined-only", os.path.join(libraries, "libballast-client.a")) == packaging.exported()
    assert not [name for name in packaging.exported() if name.startswith("bl__")]
    assert "[libballast-client.so.0]" in run("readelf", "-d", shared)
    assert os.readlink(shared) == "libballast-client.so.0"


def check_headers(include):
    headers = sorted(os.listdir(os.path.join(include, "ballast")))
    assert headers == ["client.h", "error.h", "heap.h", "runtime.h", "status.h"], headers
    plain = "#include <ballast/{}>\n"
    inside = 'extern "C" {{\n#include <ballast/{}>\n}}\n'
    compilers = [(CC, "c", ("-std=c11", "-Wpedantic"), plain)]
    if shutil.which("g++"):
        compilers += [("g++", "c++", ("-std=c++11",), plain), ("g++", "c++", ("-std=c++11",), inside)]
    for header in headers:
        for compiler, language, arguments, text in compilers:
            run(compiler, "-x", language, *arguments, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{include}", "-",
                input=text.format(header))
        needed = run(CC, "-std=c11", "-M", "-x", "c", f"-I{include}", "-", input=plain.format(header))
        assert "stdatomic.h" not in needed, needed
    # What is declared can be called: functions of the library, and those that are in the headers themselves.
    text = run(CC, "-std=c11", "-E", "-P", "-x", "c", f"-I{include}", "-", input="".join(map(plain.format, headers)))
    inline = set(re.findall(r"static inline [a-z_0-9 *]*\b(bl_[a-z0-9_]+)\s*\(", text))
    declared = {name for name in CALL.findall(text) if not name.endswith("_t")} - inline
    assert declared == packaging.exported(), declared ^ packaging.exported()


def check_programs(folder, prefix, libraries):
    where = packaging.relative_to(prefix, libraries)
    example = packaging.copy_example(folder)
    for build in (build_by_pkg_config, build_by_find_package):
        for static in (False, True):
            program = build(example, static, where)
            assert packaging.needs_library(program) != static
            packaging.LIBRARY_PATH = {} if static or build is build_by_find_package else {"LD_LIBRARY_PATH": libraries}
            packaging.park_everywhere(folder, program)
            print(f"ok: {build.__name__}, {'static' if static else 'shared'}")
    shutil.rmtree(example)


def main():
    with scratch() as folder:
        first = os.path.join(folder, "first")
        install("--prefix", first)
        prefix = shutil.move(first, os.path.join(folder, "second"))  # what is in it finds itself
        libraries = folder_with(prefix, "libballast-client.a")
        check_libraries(libraries)
        check_headers(os.path.join(prefix, "include"))
        check_programs(folder, prefix, libraries)
        root = os.path.join(folder, "root")
        install(DESTDIR=root)
        libraries = folder_with(root, "libballast-client.a")
        prefix = os.path.dirname(os.path.dirname(folder_with(root, "client.h")))
        where = packaging.relative_to(prefix, libraries)
        example = packaging.copy_example(folder)
        packaging.LIBRARY_PATH = {"LD_LIBRARY_PATH": libraries}
        packaging.park_everywhere(folder, build_by_pkg_config(example, False, where))
        assert folder in run("pkg-config", "--variable=prefix", "ballast-client", env=where)
        run(CMAKE, "-S", example, "-B", os.path.join(example, "b"), env=where)
        print("ok: DESTDIR")


main()

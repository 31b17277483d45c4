# SPDX-License-Identifier: Apache-2.0
"""What the tests of installed files share: commands, and examples/client built and run outside of the tree."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import BUILD, ROOT, Service, environment  # noqa: E402

CMAKE, CC = os.environ.get("CMAKE", "cmake"), os.environ.get("CC", "cc")


def run(*words, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    assert done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def exported():
    with open(os.path.join(ROOT, "lib", "client", "exports.txt")) as file:
        return set(file.read().split())


def visible(*words):
    """Names that a library defines for others, without the versions they stand under."""
    lines = (line.split() for line in run("nm", *words).splitlines())
    return {words[2].split("@")[0] for words in lines if len(words) == 3 and words[1] not in "aAU" and words[1].isupper()}


def relative_to(prefix, *folders):
    """Of an environment that knows of one installation, wherever it lies."""
    return dict(os.environ, PKG_CONFIG_PATH=os.path.join(folders[0], "pkgconfig"), CMAKE_PREFIX_PATH=prefix,
                LD_LIBRARY_PATH=folders[0])


def build_by_pkg_config(example, static, where):
    """The program, by the line that docs/client-library.md gives."""
    program = os.path.join(example, f"by-pkg-config-{'static' if static else 'shared'}")
    words = run("pkg-config", *(["--static"] if static else []), "--cflags", "--libs", "ballast-client", env=where).split()
    if static:
        words = ["-l:libballast-client.a" if word == "-lballast-client" else word for word in words]
    run(CC, "-std=c11", "-Wall", "-Wextra", "-Werror", os.path.join(example, "park.c"), "-o", program, *words, env=where)
    return program


def build_by_find_package(example, static, where):
    build = os.path.join(example, f"build-{'static' if static else 'shared'}")
    run(CMAKE, "-S", example, "-B", build, f"-DSTATIC={'ON' if static else 'OFF'}", env=where)
    run(CMAKE, "--build", build, env=where)
    return os.path.join(build, "examples", "ballast-park")


def copy_example(folder):
    return shutil.copytree(os.path.join(ROOT, "examples", "client"), os.path.join(folder, "example"))


def needs_library(program):
    return "libballast-client.so.0" in run("readelf", "-d", program)


def park_everywhere(folder, program, store_program="activation-store"):
    """On a unix socket over shared memory and over tcp, and on a port over both."""
    for listen in (f"unix:{folder}/store", "127.0.0.1:0"):
        store = Service(folder, store_program, "--listen", listen, "--data-tcp", "127.0.0.1:0", "--capacity", "32 MiB")
        try:
            for arguments, path in (((), "shm"), (("--tcp",), "tcp")):
                said = run(program, store.address, "16", *arguments, env=dict(environment(folder), **LIBRARY_PATH))
                assert f"came back as they were ({path}" in said, said
        finally:
            store.end()


LIBRARY_PATH = {}  # LD_LIBRARY_PATH of programs that were built without an rpath

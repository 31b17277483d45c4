#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian packages as cpack makes them: what is in each, whom they depend on (the packages of the libraries that their files
are linked to), no file in two of them, nothing of the build folder in them. dpkg unpacks them into a folder of its own; from
there the programs train a few steps of the demo, and examples/client is built by pkg-config and parks blocks at the store. Skipped where
dpkg-dev or file is not."""
import functools
import os
import re
import shutil
import subprocess

import packaging
from ballast import environment, read_report, scratch, skip
from packaging import BUILD, run

with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
    CACHE = dict(re.findall(r"^([A-Z_]+):[A-Z]+=(.*)$", cache.read(), re.M))
VERSION = CACHE["CMAKE_PROJECT_VERSION"]
PROGRAMS = {"activation-store", "ballast-bench", "ballast-driver", "ballastctl", "stage-service"}
LIBRARY = {"usr/lib/libballast-client.so.0", f"usr/lib/libballast-client.so.{VERSION}",
           "usr/share/doc/libballast-client0/copyright"}
DEVELOPMENT = {f"usr/include/ballast/{name}.h" for name in ("client", "error", "heap", "runtime", "status")} | {
    "usr/lib/libballast-client.so", "usr/lib/libballast-client.a", "usr/lib/pkgconfig/ballast-client.pc",
    "usr/lib/cmake/Ballast/BallastConfig.cmake", "usr/lib/cmake/Ballast/BallastConfigVersion.cmake",
    "usr/share/doc/libballast-client-dev/copyright"}


def make_packages(folder):
    run(CACHE["CMAKE_CPACK_COMMAND"], "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", folder, "-D",
        "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")  # xz takes twice as long
    made = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".deb")]
    return {field(path, "Package"): path for path in made}


def field(package, name):
    return run("dpkg-deb", "-f", package, name).strip()


def files_of(package):
    """Files and links, without folders."""
    lines = [line.split(None, 5) for line in run("dpkg-deb", "-c", package).splitlines()]
    assert all(line[1] == "root/root" for line in lines), lines
    return {line[5].split(" -> ")[0][2:] for line in lines if not line[0].startswith("d")}


@functools.cache
def owners_of(name):
    where = subprocess.run(["dpkg", "-S", f"*/{name}"], capture_output=True, text=True).stdout
    return frozenset(line.split(":")[0] for line in where.splitlines() if line.endswith("/" + name))


def packages_of_libraries(files):
    """Debian packages of everything that ELF files are linked to, as this system has it."""
    found = set()
    for path in files:
        for line in run("ldd", path).splitlines():
            if "not found" in line:
                raise AssertionError(f"{path}: {line}")
        names = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path))
        for name in names:
            owners = owners_of(name)
            assert owners, f"{path}: {name} is of no package"
            found.add(owners)
    return found


def check_dependencies(package, elf_files, more=()):
    words = {re.split(r"[ (]", one.strip())[0] for one in field(package, "Depends").split(",")}
    wanted = packages_of_libraries(elf_files)
    for owners in wanted:
        assert owners & words, f"{package}: depends on {words}, not on {set(owners)}"
    assert all(any(word in owners for owners in wanted) for word in words - set(more)), (words, wanted)


def check(packages, root):
    """`root` has all of them unpacked."""
    assert set(packages) == {"ballast", "libballast-client0", "libballast-client-dev"}, packages
    files = {name: files_of(path) for name, path in packages.items()}
    assert files["libballast-client0"] == LIBRARY, files["libballast-client0"]
    assert files["libballast-client-dev"] == DEVELOPMENT, files["libballast-client-dev"]
    programs = {path for path in files["ballast"] if path.startswith("usr/bin/")}
    assert programs == {f"usr/bin/{name}" for name in PROGRAMS}, programs
    assert {"usr/share/man/man1/ballastctl.1", "usr/share/doc/ballast/copyright",
            "usr/share/bash-completion/completions/ballastctl", "usr/share/zsh/vendor-completions/_ballastctl",
            "usr/share/fish/vendor_completions.d/ballastctl.fish"} <= files["ballast"], files["ballast"]
    assert all(path.startswith(("usr/bin/", "usr/share/")) for path in files["ballast"]), files["ballast"]
    assert sum(map(len, files.values())) == len(set().union(*files.values()))
    for name, path in packages.items():
        assert field(path, "Version") == VERSION
        assert field(path, "Architecture") == run("dpkg", "--print-architecture").strip()
        assert field(path, "Description").splitlines()[1].startswith(" "), field(path, "Description")
    check_dependencies(packages["ballast"], [os.path.join(root, path) for path in programs])
    check_dependencies(packages["libballast-client0"], [os.path.join(root, f"usr/lib/libballast-client.so.{VERSION}")])
    assert f"libballast-client0 (= {VERSION})" in field(packages["libballast-client-dev"], "Depends")
    shlibs = run("dpkg-deb", "-I", packages["libballast-client0"], "shlibs")
    assert shlibs.strip() == f"libballast-client 0 libballast-client0 (>= {VERSION})", shlibs
    assert "ldconfig" in run("dpkg-deb", "-I", packages["libballast-client0"], "postinst")
    for path in programs | {f"usr/lib/libballast-client.so.{VERSION}"}:
        dynamic = run("readelf", "-d", "-S", os.path.join(root, path))
        assert "RPATH" not in dynamic and "RUNPATH" not in dynamic and ".debug_info" not in dynamic, path


def install(packages, root):
    """By dpkg, with a database of its own, in which the dependencies are not: those are the machine's. Not configured: the one
    script there is, ldconfig, has no place in a folder."""
    database = os.path.join(root, "var", "lib", "dpkg")
    os.makedirs(os.path.join(database, "updates"))
    os.makedirs(os.path.join(database, "info"))
    open(os.path.join(database, "status"), "w").close()
    run("dpkg", f"--root={root}", "--force-not-root", "--force-depends", "--log=/dev/null", "--unpack", *packages.values())
    listed = run("dpkg-query", f"--admindir={database}", "-W", "-f", "${db:Status-Abbrev}${Package}\n").splitlines()
    assert listed == [f"iU {name}" for name in sorted(packages)], listed
    assert run("dpkg", f"--root={root}", "--verify") == ""


def use(folder, root):
    programs, libraries = os.path.join(root, "usr", "bin"), os.path.join(root, "usr", "lib")
    assert VERSION in run(os.path.join(programs, "ballastctl"), "--version")
    report = os.path.join(folder, "report.jsonl")
    demo = os.path.join(root, "usr", "share", "doc", "ballast", "examples", "demo.yaml")
    run(os.path.join(programs, "ballastctl"), "run", demo, "--set", "train.steps=3", "--local", "--report", report,
        env=environment(folder))
    steps = [line for line in read_report(report) if line.get("event") == "step"]
    assert len(steps) == 3, steps
    where = packaging.relative_to(os.path.join(root, "usr"), libraries)
    packaging.LIBRARY_PATH = {"LD_LIBRARY_PATH": libraries}
    example = packaging.copy_example(folder)
    for build in (packaging.build_by_pkg_config, packaging.build_by_find_package):
        packaging.park_everywhere(folder, build(example, False, where), os.path.join(programs, "activation-store"))


def main():
    for program in ("dpkg-deb", "dpkg-shlibdeps", "dpkg-query", "file"):
        if shutil.which(program) is None:
            skip(f"no {program}")
    with scratch() as folder:
        packages = make_packages(os.path.join(folder, "packages"))
        root = os.path.join(folder, "root")
        install(packages, root)
        check(packages, root)
        use(folder, root)
        print("ok: " + ", ".join(os.path.basename(path) for path in packages.values()))


main()

# SPDX-License-Identifier: Apache-2.0
"""Images are reproducible: each target of deploy/docker for CPUs is built twice, in storages that know nothing of each
other, from copies of the sources with other paths, other times and files in another order; layers and image must have
the same digests. Where they have not, the files that differ are named. From the same base image and the same mirror: what
packages there are is not ours to fix. Needs what images_test.py needs."""
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import time

from podman import ROOT, build, inspect, make_base, make_base_tar, run, set_up, storage

TARGETS = ("store", "driver", "stage", "tools", "debug")


def copy_sources(to, backwards):
    """What git knows, or would: tracked files and new ones."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=True).stdout
    for name in sorted(filter(None, listed.split("\0")), reverse=backwards):
        if os.path.lexists(os.path.join(ROOT, name)):
            os.makedirs(os.path.dirname(os.path.join(to, name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), os.path.join(to, name), follow_symlinks=False)


def describe(root):
    """What layers record of every file, as far as it can differ."""
    found = {}
    for base, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(base, name)
            info = os.lstat(path)
            content = ""
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, root)] = (info.st_mode, info.st_uid, info.st_gid, int(info.st_mtime), content)
    return found


def files_of(folder, target):
    set_up(folder)
    name = f"localhost/ballast-{target}:test"
    root = run("podman", "image", "mount", name).stdout.strip()
    try:
        return describe(root)
    finally:
        run("podman", "image", "unmount", name)


def explain(folders, target):
    one, two = (files_of(folder, target) for folder in folders)
    names = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    return "\n".join(f"  {name}: {one.get(name)} {two.get(name)}" for name in names[:30])


def let_go(work):
    """What overlay mounted below a folder: it could not be removed."""
    with open("/proc/mounts") as file:
        mounted = [line.split()[1] for line in file]
    for place in sorted((place for place in mounted if place.startswith(work + "/")), reverse=True):
        run("umount", "-l", place)


def main():
    with storage() as folder, tempfile.TemporaryDirectory(prefix="ballast-twice-") as work:
        tar = make_base_tar(folder)
        folders, digests = [], []
        for i, context in enumerate(("sources", "elsewhere/and-deeper/sources")):
            place = os.path.join(work, f"storage-{i}")
            context = os.path.join(work, context)
            os.makedirs(place)
            copy_sources(context, backwards=i == 1)
            begin = time.monotonic()
            set_up(place)
            make_base(tar)
            for target in TARGETS:
                build(target, context=context)
            digests.append({target: (inspect(target)["RootFS"]["Layers"], inspect(target)["Digest"]) for target in TARGETS})
            folders.append(place)
            print(f"built {len(TARGETS)} targets in {time.monotonic() - begin:.0f} s", flush=True)
        wrong = [target for target in TARGETS if digests[0][target] != digests[1][target]]
        try:
            assert not wrong, "not the same twice:\n" + "\n".join(f"{target}:\n{explain(folders, target)}" for target in wrong)
        finally:
            let_go(work)
        print(f"ok {', '.join(TARGETS)}: the same layers and images twice")


if __name__ == "__main__":
    main()

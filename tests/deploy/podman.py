# SPDX-License-Identifier: Apache-2.0
"""What the tests of images share: storage of their own for buildah and podman, a base made by debootstrap, builds of
deploy/docker. BALLAST_IMAGES=FOLDER keeps storage and base there for the next time."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE = "localhost/debian:12"
REVISION = "0123abcd"
SOURCE = "https://sources.example/ballast"
NAME = f"ballast-{os.getpid()}"  # of networks and containers


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def run(*command, check=True, **options):
    done = subprocess.run(command, text=True, capture_output=True, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def set_up(folder):
    """Storage and configuration of our own: nothing of the machine's containers is touched."""
    with open(os.path.join(folder, "containers.conf"), "w") as file:
        file.write('[engine]\nruntime="runc"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
                   '[containers]\ndefault_ulimits=["nofile=4096:4096","nproc=1000:1000"]\n'
                   f'[network]\nnetwork_backend="netavark"\nnetwork_config_dir="{folder}/networks"\n')
    with open(os.path.join(folder, "storage.conf"), "w") as file:
        file.write(f'[storage]\ndriver="overlay"\nrunroot="{folder}/run"\ngraphroot="{folder}/graph"\n')
    os.environ["CONTAINERS_CONF"] = os.path.join(folder, "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = os.path.join(folder, "storage.conf")


def make_base_tar(folder):
    """A Debian 12 as a tar file; the same bytes for every image that is made from it."""
    tar = os.path.join(folder, "base.tar")
    if os.path.exists(tar):
        return tar
    root = os.path.join(folder, "root")
    shutil.rmtree(root, ignore_errors=True)
    done = run("debootstrap", "--variant=minbase", "bookworm", root, check=False)
    if done.returncode != 0:
        skip(f"debootstrap: {done.stdout[-300:]}")
    for name in os.listdir("/etc/apt/apt.conf.d"):  # how this machine reaches its package mirror
        if name.startswith("99"):
            shutil.copy(os.path.join("/etc/apt/apt.conf.d", name), os.path.join(root, "etc/apt/apt.conf.d", name))
    run("tar", "-C", root, "--exclude=./var/cache/apt/archives/*.deb", "-cf", tar + ".part", ".")
    os.rename(tar + ".part", tar)
    shutil.rmtree(root)
    return tar


def make_base(tar):
    """The image that builds begin with, in the storage that is set up."""
    if run("buildah", "inspect", BASE, check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory(prefix="ballast-base-", dir=os.path.dirname(tar)) as context:
        os.link(tar, os.path.join(context, "base.tar"))
        with open(os.path.join(context, "Dockerfile"), "w") as file:
            file.write("FROM scratch\nADD base.tar /\n")
        run("buildah", "bud", "--isolation", "chroot", "--timestamp", "0", "-t", BASE, context)


@contextlib.contextmanager
def storage():
    """Ready to build and run; the folder that it is in. Skips where containers cannot run."""
    for program in ("debootstrap", "buildah", "podman", "runc"):
        if shutil.which(program) is None:
            skip(f"no {program}")
    if os.geteuid() != 0:
        skip("not root")
    with contextlib.ExitStack() as stack:
        folder = os.environ.get("BALLAST_IMAGES")
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ballast-images-"))
        tar = make_base_tar(folder)
        set_up(folder)
        make_base(tar)
        if run("podman", "run", "--rm", "--network", "none", BASE, "/bin/true", check=False).returncode != 0:
            skip("podman cannot run a container here")
        yield folder


def build(target, *arguments, tag="test", context=ROOT):
    """Builds ballast-TARGET:TAG; its description."""
    run("buildah", "bud", "--layers", "--isolation", "chroot", "--timestamp", "0", "--build-arg", f"BASE={BASE}",
        "--build-arg", f"REVISION={REVISION}", "--build-arg", f"SOURCE={SOURCE}", "-f", os.path.join(context, "deploy/docker/Dockerfile"), "--target", target,
        "-t", f"localhost/ballast-{target}:{tag}", *arguments, context)
    return json.loads(run("buildah", "inspect", f"localhost/ballast-{target}:{tag}").stdout)


def inspect(target, tag="test"):
    """What podman says of it: Size, RootFS."""
    return json.loads(run("podman", "image", "inspect", f"localhost/ballast-{target}:{tag}").stdout)[0]


def run_once(target, *arguments, entrypoint=None, check=True, options=(), tag="test"):
    """A container of it without a network, as restricted as a pod, to its end."""
    chosen = () if entrypoint is None else ("--entrypoint", entrypoint)
    return run("podman", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "all", *chosen, *options,
               f"localhost/ballast-{target}:{tag}", *arguments, check=check)


def check_common(image, config_user="65532:65532"):
    """User and labels of an image."""
    config = image["OCIv1"]["config"]
    assert config["User"] == config_user, config
    for key in ("title", "licenses", "version", "revision"):
        assert config["Labels"].get(f"org.opencontainers.image.{key}"), (key, config)
    assert config["Labels"]["org.opencontainers.image.revision"] == REVISION
    assert config["Labels"].get("org.opencontainers.image.source") == SOURCE


def check_bill(target, more=frozenset()):
    """Its bill of materials names every package of Debian that is in it, and `more`, in the versions that are there."""
    text = run_once(target, "/usr/share/ballast/sbom.spdx", entrypoint="/bin/cat").stdout
    listed = re.findall(r"^PackageName: (\S+)\nSPDXID: (SPDXRef-[A-Za-z0-9.-]+)\nPackageVersion: (\S+)\n", text, re.M)
    installed = run_once(target, "-W", "-f", "${Package} ${Version}\n", entrypoint="/usr/bin/dpkg-query").stdout.splitlines()
    assert text.startswith("SPDXVersion: SPDX-2.3\n") and len(listed) == text.count("\nPackageName: "), text[:2000]
    assert len({name for _, name, _ in listed}) == len(listed), listed
    debian = {f"{name} {version}" for name, key, version in listed if key.startswith("SPDXRef-Debian-")}
    assert debian == set(installed) and len(installed) > 50, debian ^ set(installed)
    others = {name for name, key, _ in listed if not key.startswith("SPDXRef-Debian-")}
    assert others >= {"ballast", *more}, others
    assert f"PackageName: ballast\nSPDXID: SPDXRef-Ballast\nPackageVersion: 0.1.0+{REVISION}\n" in text, text[:2000]
    assert text.count("\nRelationship: ") == len(listed), text[-2000:]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ballast-torch as somebody installs it: an sdist of this tree, a wheel of that alone, installed in a clean virtual
environment where nothing of this tree can be found; import, the demo, and what a wheel must not be."""
import importlib.util
import os
import subprocess
import sys
import sysconfig
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import ROOT, need_torch, scratch, skip  # noqa: E402

need_torch()
if importlib.util.find_spec("scikit_build_core") is None:
    skip("scikit-build-core, which builds the package, is not in this Python")


def run(*words, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    assert done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


def main():
    with scratch() as folder:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("BALLAST_", "PYTHON"))}
        run(sys.executable, "-c", f"from scikit_build_core.build import build_sdist; build_sdist({folder!r})", cwd=ROOT)
        sdist, = [name for name in os.listdir(folder) if name.endswith(".tar.gz")]
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, f"{folder}/{sdist}",
            env=clean, cwd=folder)
        wheel, = [name for name in os.listdir(folder) if name.endswith(".whl")]
        size = os.path.getsize(f"{folder}/{wheel}")
        assert "-py3-none-linux_" in wheel and size < 5_000_000, (wheel, size)
        with zipfile.ZipFile(f"{folder}/{wheel}") as archive:
            names = {name for name in archive.namelist() if "dist-info" not in name}
        assert all(name.startswith("ballast_torch/") for name in names), names
        assert {"ballast_torch/libballast-client.so.0", "ballast_torch/bin/activation-store",
                "ballast_torch/bin/ballastctl"} <= names, names
        print(f"ok a wheel of {size} bytes from the sdist alone")

        run(sys.executable, "-m", "venv", f"{folder}/venv")
        python = f"{folder}/venv/bin/python"
        run(python, "-m", "pip", "install", "--no-deps", "--no-index", f"{folder}/{wheel}", env=clean, cwd=folder)
        packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", env=clean).strip()
        with open(f"{packages}/torch-of-others.pth", "w") as file:  # stands for pip install torch
            file.write(sysconfig.get_path("purelib") + "\n")
        found = run(python, "-c", "import ballast_torch as bt; print(bt.__file__, bt.__version__)", env=clean, cwd=folder)
        assert f"{folder}/venv" in found, found
        told = run(python, "-m", "ballast_torch", "demo", "--layers", "2", "--steps", "2", env=clean, cwd=folder)
        assert "the same bits" in told and os.path.getsize(f"{folder}/ballast-torch-demo.svg") > 1000, told
        assert run(python, "-m", "ballast_torch", "version", env=clean, cwd=folder).strip() in found
        print("ok installed in a clean environment, the demo runs")


if __name__ == "__main__":
    main()

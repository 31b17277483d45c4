# SPDX-License-Identifier: Apache-2.0
"""A machine whose GPU cannot be used: a run is refused at once with the cause, its exit code and nothing left behind;
stage-service --list-devices and ballastctl version say what is here. The machine is that of tests/late, whose troubles are
said by the CUDA back end's own words; of its modules one is missing, one of another version, one lacks a library."""
import json
import os
import shutil
import subprocess

from ballast import BIN, BUILD, CTL, LATE, ON_DEVICE, environment, on_late_device, run_job, write_job

TROUBLES = (({"LATE_DRIVER": "0"}, 2, "no NVIDIA driver: libcuda.so.1 is not on this machine"),
            ({"LATE_DRIVER": "12040"}, 2, "the NVIDIA driver is too old: it serves CUDA 12.4, this build needs 13.0"),
            ({"LATE_DEVICES": "0"}, 3, "no NVIDIA device: the driver (CUDA 13.0) sees none"),
            ({"LATE_CAPABILITY": "75"}, 2, "has compute capability 7.5: 8.0 or later is needed"))


def list_devices(folder):
    return subprocess.run([os.path.join(BIN, "stage-service"), "--list-devices"], env=environment(folder),
                          capture_output=True, text=True, timeout=120)


def version(folder):
    done = subprocess.run([CTL, "version", "-o", "json"], env=environment(folder), capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def devices_are_listed(folder):
    done = list_devices(folder)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done
    assert lines[0].startswith("cuda:0 late, 8.00 GiB, compute capability 9.0"), lines
    assert lines[1].startswith("libraries: driver 0.1, cuda 0.1, cublaslt none, cudnn none, nccl none"), lines
    done = subprocess.run([os.path.join(BIN, "stage-service"), "--version"], env=environment(folder), capture_output=True,
                          text=True, timeout=120)
    assert "  driver 0.1\n  cuda 0.1\n" in done.stdout and "nccl" not in done.stdout, done
    found = version(folder)
    assert found["driver"] == "0.1" and found["cudnn"] == "none", found
    done = subprocess.run([CTL, "version"], env=environment(folder), capture_output=True, text=True, timeout=120)
    assert "DRIVER" not in done.stdout, done.stdout
    print("ok devices and libraries are listed")


def troubles_are_said(folder):
    job = write_job(folder)
    for trouble, code, words in TROUBLES:
        os.environ.update(trouble)
        _, done = run_job(folder, job, "--local", *ON_DEVICE, expect=code)
        assert words in done.stderr, f"{trouble}: {done.stderr}"
        listed = list_devices(folder)
        if "LATE_CAPABILITY" not in trouble:  # an old one is listed, and not used
            assert listed.returncode == code and words in listed.stderr, f"{trouble}: {listed}"
            assert "libraries: " in listed.stdout, listed
        for name in trouble:
            del os.environ[name]
        print(f"ok {trouble}")


def modules_that_do_not_fit(folder):
    job, modules = write_job(folder), os.path.join(folder, "modules")
    fakes = os.path.join(BUILD, "tests", "modules")
    os.environ["BALLAST_MODULES"] = modules
    for fake, expected in (("version", ["install those of one version"]),  # of the needy one's library there may be another
                           ("needy", ["needs libcudnn.so.7, ", ": install cuDNN"])):
        source = os.path.join(fakes, f"libballast-{fake}.so")
        if not os.path.exists(source):  # built with the tests of the loader
            continue
        os.makedirs(modules)
        shutil.copy(source, os.path.join(modules, "libballast-cuda.so"))
        _, done = run_job(folder, job, "--local", *ON_DEVICE, expect=2)
        assert all(words in done.stderr for words in expected), f"{fake}: {done.stderr}"
        shutil.rmtree(modules)
        print(f"ok {expected}")
    os.makedirs(modules)
    shutil.copy(os.path.join(LATE, "libballast-cuda.so"), modules)
    _, done = run_job(folder, job, "--local", *ON_DEVICE, expect=2)
    assert f"libballast-cuda-compute.so is not in {modules}" in done.stderr, done.stderr
    listed = version(folder)
    assert listed["driver"] == "0.1", listed
    os.environ["BALLAST_MODULES"] = folder
    assert version(folder)["driver"] == "none"
    print("ok a module is missing")


on_late_device(devices_are_listed, troubles_are_said, modules_that_do_not_fit)

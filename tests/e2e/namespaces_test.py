# SPDX-License-Identifier: Apache-2.0
"""Two stages in two network namespaces, joined by a veth pair: they fall back to tcp by themselves and give the same
bits as a local run. Skipped where namespaces cannot be made."""
import os
import subprocess

from ballast import losses, run_job, scratch, skip, stages, write_job

NAMES = [f"ballast-{os.getpid()}-{i}" for i in range(2)]


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def make():
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", "blv0", "netns", NAMES[0], "type", "veth", "peer", "name", "blv1", "netns", NAMES[1])
        for i, name in enumerate(NAMES):
            ip("-n", name, "addr", "add", f"10.199.77.{i + 1}/24", "dev", f"blv{i}")
            ip("-n", name, "link", "set", f"blv{i}", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as cause:
        remove()
        skip(f"cannot make network namespaces: {getattr(cause, 'stderr', b'') or cause}")


def remove():
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    make()
    try:
        with scratch() as folder:
            reference, _ = run_job(folder, write_job(folder), "--local")
            prefixes = [(("ip", "netns", "exec", name), f"10.199.77.{i + 1}:0", "--plaintext")
                        for i, name in enumerate(NAMES)]
            with stages(folder, 2, prefixes=prefixes) as services:
                job = write_job(folder, services={"stages": [s.address for s in services]})
                # The command and its driver run on the first host.
                import ballast
                plain = ballast.CTL
                wrapper = os.path.join(folder, "ctl")
                with open(wrapper, "w") as file:
                    file.write(f"#!/bin/sh\nexec ip netns exec {NAMES[0]} {plain} \"$@\"\n")
                os.chmod(wrapper, 0o755)
                ballast.CTL = wrapper
                report, done = run_job(folder, job, "--plaintext")
                assert losses(report) == losses(reference), "two hosts give other bits than one"
                print("ok: two hosts, same bits")
    finally:
        remove()


main()

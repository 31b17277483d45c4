# SPDX-License-Identifier: Apache-2.0
"""A store and its client in two network namespaces without shared memory: auto falls back to tcp by itself. The link is
rate-limited (tbf), cut in the middle of transfers and restored: every block comes back as it was. Skipped where
namespaces cannot be made."""
import os
import subprocess
import time

from ballast import BIN, Service, environment, scratch, skip, wait_until

NAMES = [f"ballast-{os.getpid()}-s{i}" for i in range(2)]
PARK = os.path.join(os.path.dirname(BIN), "examples", "ballast-park")
BLOCKS = 48


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def remove():
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make():
    try:
        for name in NAMES:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "bls0", "netns", NAMES[0], "type", "veth", "peer", "name", "bls1", "netns", NAMES[1])
        for i, name in enumerate(NAMES):
            run("ip", "-n", name, "addr", "add", f"10.199.78.{i + 1}/24", "dev", f"bls{i}")
            run("ip", "-n", name, "link", "set", f"bls{i}", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            # 30 MB/s: slow enough that a cut comes in the middle.
            run("tc", "-n", name, "qdisc", "add", "dev", f"bls{i}", "root", "tbf", "rate", "240mbit", "burst", "256kb",
                "latency", "50ms")
    except (OSError, subprocess.CalledProcessError) as cause:
        remove()
        skip(f"cannot make rate-limited network namespaces: {getattr(cause, 'stderr', '') or cause}")


def sent_bytes(i):
    return int(run("ip", "netns", "exec", NAMES[i], "cat", f"/sys/class/net/bls{i}/statistics/tx_bytes"))


def cut(client, i, beyond_bytes):
    """Cuts the link once side i has sent that much more, while the client is at work; restores it after a while."""
    before = sent_bytes(i)
    wait_until(lambda: client.poll() is not None or sent_bytes(i) - before > beyond_bytes, 60, "nothing moves")
    assert client.poll() is None, f"it was over before the link could be cut: {client.communicate()}"
    run("ip", "-n", NAMES[0], "link", "set", "bls0", "down")
    time.sleep(1.5)
    assert client.poll() is None, f"it ended when the link was cut: {client.communicate()}"
    run("ip", "-n", NAMES[0], "link", "set", "bls0", "up")


def main():
    if not os.path.exists(PARK):
        skip(f"{PARK} is not built")
    make()
    try:
        with scratch() as folder:
            shm = os.path.join(folder, "data")
            store = Service(folder, "activation-store", "--listen", "10.199.78.2:0", "--plaintext", "--capacity",
                            "256 MiB", "--data-listen", f"unix:{shm}", "--ttl", "60", "--grace", "60",
                            prefix=("ip", "netns", "exec", NAMES[1]))
            try:
                os.unlink(shm)  # as on another machine
                client = subprocess.Popen(["ip", "netns", "exec", NAMES[0], PARK, store.address, str(BLOCKS), "--plaintext"],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                          env=environment(folder))
                try:
                    cut(client, 0, 8 << 20)  # while blocks leave
                    cut(client, 1, 8 << 20)  # while they come back
                    output = client.communicate(timeout=120)[0]
                finally:
                    if client.poll() is None:
                        client.kill()
                        client.wait()
                assert client.returncode == 0, output
                assert "came back as they were (tcp: " in output, output
                print(f"ok: {output.strip()}")
            finally:
                store.kill()
    finally:
        remove()


main()

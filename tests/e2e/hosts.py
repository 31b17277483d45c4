# SPDX-License-Identifier: Apache-2.0
"""Network namespaces as hosts, all on one switch: links can be limited, and a host can be cut off and come back.

    with Hosts(4) as hosts:
        Service(folder, "stage-service", "--listen", f"{hosts.address(2)}:7700", "--plaintext", prefix=hosts.prefix(2))
        hosts.cut(2); hosts.mend(2)
"""
import os
import shutil
import subprocess

from ballast import skip


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Hosts:
    made = 0

    def __init__(self, count):
        Hosts.made += 1
        self.names = [f"ballast-{os.getpid()}-{Hosts.made}-{i}" for i in range(count)]
        self.switch = f"ballast-{os.getpid()}-{Hosts.made}-switch"

    def __enter__(self):
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for i, name in enumerate(self.names):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
                run("ip", "-n", self.switch, "link", "set", f"port{i}", "master", "bridge")
                run("ip", "-n", self.switch, "link", "set", f"port{i}", "up")
                run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
                run("ip", "-n", name, "link", "set", "eth0", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as cause:
            self.__exit__()
            skip(f"cannot make network namespaces: {getattr(cause, 'stderr', b'') or cause}")
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def address(i):
        return f"10.199.78.{i + 1}"

    def prefix(self, i):
        """In front of a command on host i. Each has a /dev/shm of its own, by which machines are told apart."""
        return ("ip", "netns", "exec", self.names[i], "sh", "-c",
                'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "sh")

    def limit(self, i, rate):
        """What host i sends, at most; False where the kernel or the tools cannot."""
        if shutil.which("tc") is None:
            return False
        done = subprocess.run(["ip", "netns", "exec", self.names[i], "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst",
                               "256kb", "latency", "100ms"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def cut(self, i):
        run("ip", "-n", self.switch, "link", "set", f"port{i}", "down")

    def mend(self, i):
        run("ip", "-n", self.switch, "link", "set", f"port{i}", "up")

# SPDX-License-Identifier: Apache-2.0
"""Each program on fixed ports, ended by SIGTERM or SIGKILL after hundreds of connections, some of them still open, and
started again on the same ports: it serves again within a second, although the system still has the old connections. A
second process on the ports of one that lives is refused, with the port."""
import os
import signal
import socket
import subprocess
import time

from ballast import BIN, Service, environment, scratch, write_job

CONNECTIONS = 300
HELD = 100  # still open when the process ends
LIMIT_S = 1.0 * float(os.environ.get("BALLAST_TEST_PATIENCE", "1"))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def knock(port, count):
    """Connections that say nothing a server understands; some of them are ended by it, and linger at its side."""
    held = []
    for i in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=10)
        try:
            if i % 2 == 0:
                one.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 200)
                one.settimeout(10)
                while one.recv(4096):
                    pass
                one.close()
            else:
                held.append(one)
        except OSError:
            one.close()  # refused: as it should be
        while len(held) > HELD // 5:
            held.pop(0).close()
    return held


def wait_for_port(port, deadline):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1)
        except OSError as cause:
            assert time.monotonic() < deadline, f"port {port}: {cause}"
            time.sleep(0.005)


def lingering(ports):
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return sum(1 for row in rows if int(row[1].split(":")[1], 16) in ports and row[3] != "0A")


def start_again(folder, program, ports, flags, number):
    first = Service(folder, program, *flags)
    held = [one for port in ports for one in knock(port, CONNECTIONS // len(ports))]
    first.kill(number)
    left = lingering(ports)
    begin = time.monotonic()
    again = Service(folder, program, *flags)
    for port in ports:
        wait_for_port(port, begin + LIMIT_S).close()
    took = time.monotonic() - begin
    assert took < LIMIT_S, f"{program} took {took:.2f} s"
    for one in held:
        one.close()
    print(f"{program}, signal {number}: {left} old connections, served again after {took * 1000:.0f} ms")
    second = subprocess.run([os.path.join(BIN, program), *flags], env=environment(folder), stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, timeout=60)
    assert second.returncode != 0 and any(str(port) in second.stderr for port in ports), (second.returncode, second.stderr)
    again.end()
    return left


def main():
    left = 0
    with scratch() as folder:
        nowhere = [f"unix:{folder}/{i}" for i in range(2)]  # stages that never come: the driver serves meanwhile
        job = write_job(folder, services={"stages": nowhere})
        for number in (signal.SIGTERM, signal.SIGKILL):
            for program in ("activation-store", "stage-service", "ballast-driver"):
                ports = free_ports(4 if program == "activation-store" else 3)
                flags = [word for flag, port in zip(("--listen", "--health-listen", "--metrics-listen", "--data-tcp"), ports)
                         for word in (flag, f"127.0.0.1:{port}")]
                if program == "activation-store":
                    flags += ["--capacity", "16MiB", "--drain", "0"]
                elif program == "ballast-driver":
                    flags += ["--job", job, "--linger"]
                left += start_again(folder, program, ports, flags, number)
        assert left > 0, "nothing lingered: the test shows nothing"


if __name__ == "__main__":
    main()

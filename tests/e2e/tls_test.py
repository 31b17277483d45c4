# SPDX-License-Identifier: Apache-2.0
"""Runs over mutual TLS: the same bits as in plaintext; every kind of wrong certificate is refused with its name, its cause
and what to do; roles are kept apart; certificates are replaced while services run."""
import contextlib
import os
import socket
import ssl
import subprocess
import threading

import ballast
from ballast import (CTL, GOLDEN, ROOT, Service, assert_nothing_left, environment, losses, run_job, scratch,
                     shared_memory_files, small_inline, stages, wait_until, write_job)

DENIED, UNAVAILABLE = 7, 5


def certificates(folder, *arguments):
    subprocess.run([os.path.join(ROOT, "deploy", "certificates.sh"), folder, *arguments], check=True,
                   stderr=subprocess.DEVNULL)


def files(folder, name):
    return {"ca": f"{folder}/ca.pem", "certificate": f"{folder}/{name}.pem", "key": f"{folder}/{name}.key"}


def flags(folder, name, **other):
    return [word for key, path in {**files(folder, name), **other}.items() for word in (f"--tls-{key}", path)]


def ctl(folder, *words, expect):
    done = subprocess.run([CTL, *words], env=environment(folder), text=True, stdin=subprocess.DEVNULL, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == expect, f"{words}: exit code {done.returncode}, expected {expect}\n{done.stderr}"
    return done.stdout + done.stderr


def expect_text(text, *parts):
    for part in parts:
        assert part in text, f"no '{part}' in:\n{text}"


def refuses_to_start(folder, program, parts, *arguments, listen="127.0.0.1:0"):
    done = subprocess.run([os.path.join(ballast.BIN, program), "--listen", listen, *arguments], text=True,
                          env=environment(folder), stdin=subprocess.DEVNULL, timeout=60, stderr=subprocess.PIPE)
    assert done.returncode != 0, f"{program} {arguments} started"
    expect_text(done.stderr, *parts)


@contextlib.contextmanager
def expired_server(folder, ours):
    """Something that speaks TLS with a certificate of ours that is over."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{ours}/stage-old.pem", f"{ours}/stage-old.key")
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as secure:
                    secure.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(120)


def wrong_files(folder, ours, others):
    missing = f"{ours}/none.pem"
    for parts, more in (
            (("TLS certificate", missing, "No such file"), flags(ours, "stage", certificate=missing)),
            (("does not belong to the certificate",), flags(ours, "stage", key=f"{ours}/store.key")),
            (("has expired on", "deploy/certificates.sh"), flags(ours, "stage-old")),
            (("issued by another authority", "--tls-ca"), flags(others, "stage", ca=f"{ours}/ca.pem")),
            (("is for the role store", "must be stage"), flags(ours, "store")),
            (("go together",), ["--tls-ca", f"{ours}/ca.pem"])):
        refuses_to_start(folder, "stage-service", parts, *more)
    refuses_to_start(folder, "activation-store", ("is for the role stage", "must be store"), *flags(ours, "stage"))
    expect_text(ctl(folder, "status", *flags(ours, "stage"), expect=DENIED), "must be driver or operator")
    print("ok: wrong files and roles are named before anything is served")


def plaintext_stays_at_home(folder):
    refuses_to_start(folder, "stage-service", ("plaintext is refused", "--tls-ca", "--plaintext"),
                     listen="0.0.0.0:0")
    expect_text(ctl(folder, "status", "--endpoint", "192.0.2.1:7600", expect=DENIED), "--plaintext")
    print("ok: plaintext is refused off the loopback interface")


def refused_driver(folder, services, tls):
    where = {"stages": [s.address for s in services]}
    _, done = run_job(folder, write_job(folder, services=where | ({"tls": tls} if tls else {})), expect=DENIED)
    return done.stderr


def wrong_peers(folder, ours, others, services):
    address = services[0].address
    ask = ["status", "--endpoint", address, "--timeout", "20"]
    expect_text(ctl(folder, *ask, *flags(ours, "operator"), expect=DENIED), "is for the role stage, but a driver")
    expect_text(ctl(folder, *ask, *flags(others, "operator"), expect=DENIED), "issued by another authority")
    expect_text(ctl(folder, *ask, expect=DENIED), address, "it speaks TLS there, and this program does not", "--tls-ca")
    both = f"{folder}/both.pem"  # trusts our stages, but is of the other authority
    with open(both, "w") as bundle:
        bundle.writelines(open(f"{authority}/ca.pem").read() for authority in (ours, others))
    expect_text(refused_driver(folder, services, files(others, "driver") | {"ca": both}),
                "the peer refuses this program's certificate: it was issued by '/CN=Ballast authority",
                "the peer trusts '/CN=Ballast authority", "--tls-ca")
    expect_text(refused_driver(folder, services, None), "it speaks TLS there, and this program does not", "--tls-ca")
    with stages(folder, 1) as (plain,):
        expect_text(ctl(folder, "status", "--endpoint", plain.address, "--timeout", "20", *flags(ours, "operator"),
                        expect=UNAVAILABLE), "does not speak TLS there", "--tls-")
    with expired_server(folder, ours) as old:
        expect_text(ctl(folder, "status", "--endpoint", old, "--timeout", "20", *flags(ours, "operator"), expect=DENIED),
                    "the server's certificate", "has expired on")
    job = write_job(folder, services={"stages": [s.address for s in services], "tls": files(others, "driver")})
    _, done = run_job(folder, job, expect=DENIED)
    expect_text(done.stderr, "another authority")
    job = write_job(folder, services={"stages": [s.address for s in services], "tls": files(ours, "operator")})
    _, done = run_job(folder, job, expect=DENIED)
    expect_text(done.stderr, "must be driver")
    print("ok: wrong peers are refused with the reason")


def nobody_without_a_certificate(ours, services):
    context = ssl.create_default_context(cafile=f"{ours}/ca.pem")
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    host, port = services[0].address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            with context.wrap_socket(connection) as secure:
                heard = secure.recv(1)  # a server that took us would begin with its settings
        except (ssl.SSLError, ConnectionError):
            heard = b""
    assert heard == b"", f"a client without a certificate heard {heard}"
    print("ok: a client without a certificate hears nothing")


def roles_are_kept_apart(ours, services):
    try:
        import grpc
    except ImportError as error:
        print(f"left out: calls with a wrong role by grpcio: {error}")
        return
    def read(name):
        with open(f"{ours}/{name}", "rb") as file:
            return file.read()
    for role, method, code in (("store", "Takeover", grpc.StatusCode.PERMISSION_DENIED),
                               ("stage", "Stop", grpc.StatusCode.PERMISSION_DENIED),
                               ("operator", "Commit", grpc.StatusCode.PERMISSION_DENIED),
                               ("operator", "Status", None), ("driver", "Status", None)):
        credentials = grpc.ssl_channel_credentials(read("ca.pem"), read(f"{role}.key"), read(f"{role}.pem"))
        # grpcio checks a name: certificates.sh writes one that says the role.
        with grpc.secure_channel(services[0].address, credentials,
                                 (("grpc.ssl_target_name_override", "stage.ballast"),)) as channel:
            call = channel.unary_unary(f"/ballast.v1.Stage/{method}")
            try:
                call(b"", timeout=60)
                got = None
            except grpc.RpcError as error:
                got = error.code()
                expect_text(error.details(), f"role ({role})")
            assert got == code, f"{role} calls {method}: {got}, expected {code}"
    print("ok: roles are kept apart")


def job_certificates(folder, ours):
    """Stages whose certificates are for one job park blocks at stores under every plan of it, and under no other job."""
    certificates(ours, "stage/bound")
    with stages(folder, 4, prefixes=[((), "127.0.0.1:0", *flags(ours, "stage-bound"))] * 4) as services:
        stores = []
        try:
            for _ in range(4):
                stores.append(Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "16 MiB",
                                      *flags(ours, "store")))
            job = write_job(folder, model=small_inline(hidden=32, layers=4, seq=16),
                            data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                            train={"steps": 2, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4},
                            memory={"slots": 3}, balance={"policy": "bpipe"},
                            services={"stages": [s.address for s in services], "stores": [s.address for s in stores],
                                      "tls": files(ours, "driver")})
            for path in ("auto", "tcp"):
                report, _ = run_job(folder, job, "--set", "name=bound", "--set", f"balance.data_path={path}")
                assert sum(stage["loaded"] for stage in report[-1]["stages"]) > 0, report[-1]
            _, done = run_job(folder, job, "--set", "name=another", expect=DENIED)
            expect_text(done.stderr, "your certificate is for job bound, not for another", "store of device")
        finally:
            for store in stores:
                store.end()
    print("ok: certificates of one job")


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        ours, others = f"{folder}/ours", f"{folder}/others"
        certificates(ours)
        certificates(ours, "--days", "0", "stage/old")
        certificates(others)
        reference, _ = run_job(folder, write_job(folder), "--local")
        wrong_files(folder, ours, others)
        plaintext_stays_at_home(folder)
        prefixes = [((), "127.0.0.1:0", *flags(ours, "stage"))] * 2
        with stages(folder, 2, prefixes=prefixes) as services:
            secure = {"stages": [s.address for s in services], "tls": files(ours, "driver")}
            for path in ("auto", "tcp"):
                report, _ = run_job(folder, write_job(folder, services=secure, balance={"data_path": path}))
                assert losses(report) == losses(reference), f"{path}: TLS gives other bits than plaintext"
            wait_until(lambda: any("tcp: asked for, encrypted" in s.log() for s in services), 60,
                       "the data path does not say that it is encrypted")
            print("ok: a run over TLS gives the same bits")
            wrong_peers(folder, ours, others, services)
            nobody_without_a_certificate(ours, services)
            roles_are_kept_apart(ours, services)
            certificates(ours)  # all new, of the same authority
            job = write_job(folder, services={"stages": secure["stages"]})
            report, _ = run_job(folder, job, *flags(ours, "driver"))
            assert losses(report) == losses(reference), "with new certificates: other bits"
            for service in services:
                def taken_up(service=service):  # files are looked at when somebody connects, once a second at most
                    ctl(folder, "status", "--endpoint", service.address, "--timeout", "20", *flags(ours, "operator"),
                        expect=DENIED)
                    return "was read again" in service.log()
                wait_until(taken_up, 60, "new certificates are not taken up")
            print("ok: certificates are replaced without a restart")
            pids = [s.pid for s in services]
        job_certificates(folder, ours)
        assert_nothing_left(folder, pids, shared)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""ballastctl preflight before a run on services that were started by themselves: well, it says so check by check; a stage
that does not run, one that is a store, a name that does not resolve, a store without room, one that drains,
a certificate that has expired, one of another role and a data path that does not work are each named with what to do, exit
code 9; SIGTERM ends it as process 1 of a container, too; paths are tried by the stages themselves, and shown with what they are worth; a job that names no services is 2; a
service that comes up meanwhile is waited for."""
import json
import os
import signal
import subprocess
import threading

from ballast import CTL, GOLDEN, ROOT, Service, descendants, environment, program_of, scratch, small_inline, stages, \
    wait_until, write_job

STAGES = 4
# As if on another machine: shared memory is a folder of its own.
ELSEWHERE = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "sh")


def preflight(folder, job, *arguments, expect=0, timeout="60"):
    done = subprocess.run([CTL, "preflight", job, "-o", "json", "--timeout", timeout, *arguments],
                          env=environment(folder), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=240)
    assert done.returncode == expect, f"exit code {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}"
    checks = json.loads(done.stdout) if done.stdout else []
    failed = [check for check in checks if check["state"] == "failed"]
    assert bool(failed) == (expect == 9), failed
    return checks, failed, done.stderr


def addresses(key, services):
    return ("--set", f"services.{key}=[" + ", ".join(f'"{address}"' for address in services) + "]")


def expect_one(failed, check, subject, words):
    assert [(row["check"], row["subject"]) for row in failed] == [(check, subject)], failed
    assert words in failed[0]["says"], failed


def gpus_missing(folder, job, both):
    """The stages of this test look for modules of GPUs where there are none."""
    checks, failed, _ = preflight(folder, job, *both, "--set", "pipeline.device=cuda", expect=9)
    assert sorted(row["subject"] for row in failed if row["check"] == "gpu") == [f"stage {i}" for i in range(STAGES)], checks
    assert all("the CUDA image" in row["says"] for row in failed if row["check"] == "gpu"), failed
    assert {row["check"] for row in failed} <= {"gpu", "shared memory"}, failed  # /dev/shm is as large as it is


def wrong_certificates(folder, job, both):
    for role, days, words in (("stage", "30", "must be driver or operator"), ("driver", "0", "has expired on")):
        ours = os.path.join(folder, f"certificates-{role}")
        subprocess.run([os.path.join(ROOT, "deploy", "certificates.sh"), ours, "--days", days, role], check=True,
                       stderr=subprocess.DEVNULL)
        files = [word for key, path in (("ca", "ca.pem"), ("certificate", f"{role}.pem"), ("key", f"{role}.key"))
                 for word in ("--set", f"services.tls.{key}={ours}/{path}")]
        _, failed, _ = preflight(folder, job, *both, *files, expect=9)
        expect_one(failed, "certificate", f"{ours}/{role}.pem", words)


def stopped(folder, job):
    """Process 1 has no default actions of signals."""
    contained = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*contained, "true"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode != 0:
        print("-- no namespaces: process 1 was not looked at")
        return
    with open(os.path.join(folder, "stopped.log"), "w") as log:
        waiting = subprocess.Popen([*contained, CTL, "preflight", job, "--timeout=300",
                                    *addresses("stages", [f"127.0.0.1:{port + 1}" for port in range(STAGES)])],
                                   env=environment(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ended():  # a signal that comes before the program has begun is lost
        for pid in descendants(waiting.pid):
            if program_of(pid) == "ballastctl":
                os.kill(pid, signal.SIGTERM)
        return waiting.poll() is not None

    try:
        wait_until(ended, 30, "preflight is process 1 and does not end by SIGTERM")
        assert waiting.returncode == 130, waiting.returncode
    finally:
        waiting.kill()
        waiting.wait()
    print("ok process 1 ends by SIGTERM")


def host_stores(folder, job, ranks, lenders):
    """A store of the host has its answer, room, path of each stage that parks there, and the machine that it should be on."""
    host = Service(folder, "activation-store", "--listen", f"unix:{folder}/host-0", "--capacity", "1 MiB", "--drain", "0")
    other = Service(folder, "activation-store", "--listen", f"unix:{folder}/host-1", "--capacity", "64 KiB", "--drain", "0")
    offload = ("--set", "balance.policy=offload", "--set", "memory.slots=2", "--set", "balance.mode=fewest",
               *addresses("stages", ranks))
    both = (*offload, *addresses("stores", lenders), "--set", "balance.host=1MiB")
    try:
        for stores in (("--set", "balance.host=1MiB", *offload), both):  # alone, and beside those of devices
            checks, _, _ = preflight(folder, job, *stores, *addresses("host_stores", [host.address]))
            said = {(check["check"], check["subject"]): check["says"] for check in checks}
            assert said[("room", "host store 0")] == "the plan takes 320 KiB, 1.00 MiB are free", checks
            assert said[("machine", "host store 0")] == "the machine of the 4 stages that it serves", checks
            paths = {subject for check, subject in said if check == "path" and " to host" in subject}
            assert paths == {f"stage {stage} to host store 0" for stage in (0, 1)}, checks
            assert len([check for check in checks if check["check"] == "answers"]) == \
                STAGES * (2 if stores is both else 1) + 1, checks
        two = addresses("host_stores", [host.address, other.address])  # the second for stages 2 and 3, which park nothing
        _, failed, _ = preflight(folder, job, *both, *two, expect=9)
        expect_one(failed, "room", "host store 1", "balance.host is 1.00 MiB, the store may lend 64.0 KiB")
        _, failed, _ = preflight(folder, job, *both, *addresses("host_stores", [other.address]), expect=9)
        expect_one(failed, "room", "host store 0", "the plan takes 320 KiB, 64.0 KiB are free")
        _, failed, stderr = preflight(folder, job, *both, expect=2)
        assert "services.host_stores: is missing" in stderr, stderr
        _, _, stderr = preflight(folder, job, *both, *addresses("host_stores", [host.address, other.address, "a:1"]), expect=2)
        assert "services.host_stores: names 3 for 4 ranks" in stderr, stderr
        if subprocess.run([*ELSEWHERE, "true"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode == 0:
            away = Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "1 MiB", "--drain", "0",
                           "--data-tcp", "127.0.0.1:0", prefix=ELSEWHERE)
            checks, _, _ = preflight(folder, job, *both, *addresses("host_stores", [away.address]))
            away.kill(signal.SIGKILL)
            warned = [(check["check"], check["subject"]) for check in checks if check["state"] == "warning"]
            assert warned == [("machine", "host store 0")], checks
            assert "it shares no memory with stage 0 and others: blocks cross the network" in checks[[*map(lambda c: c["check"], checks)].index("machine")]["says"]
        else:
            print("-- no namespaces: a host store on another machine was not looked at")
        host.kill(signal.SIGKILL)
        _, failed, _ = preflight(folder, job, *both, *addresses("host_stores", [host.address]), expect=9, timeout="6")
        expect_one(failed, "answers", "host store 0", "start it")
    finally:
        host.kill(signal.SIGKILL)
        other.kill(signal.SIGKILL)
    print("ok stores of hosts")


def main():
    os.environ["BALLAST_MODULES"] = "/nowhere"
    with scratch() as folder, stages(folder, STAGES) as services:
        stores = [Service(folder, "activation-store", "--listen", f"unix:{folder}/store-{i}", "--capacity", "64 MiB",
                          "--drain", "0") for i in range(STAGES)]
        try:
            job = write_job(folder, model=small_inline(hidden=32, layers=STAGES, seq=16),
                            data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                            train={"steps": 3, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": STAGES},
                            memory={"slots": 3}, balance={"policy": "bpipe"})
            ranks, lenders = [s.address for s in services], [s.address for s in stores]
            both = (*addresses("stages", ranks), *addresses("stores", lenders), "--set", "services.driver=localhost:7600")

            checks, _, _ = preflight(folder, job, *both)
            kinds = [check["check"] for check in checks]
            # Of the only name, clock, certificate, an answer of each, and room of each store; of the others' clocks; of
            # GPUs nothing; and of each stage's paths.
            begin = ["name", "clock", "certificate", *["answers"] * STAGES, *["answers", "room"] * STAGES, "clock"]
            assert kinds[:len(begin)] == begin, checks
            assert checks[len(begin) - 4]["says"] == "the plan takes 0 B, 64.0 MiB are free", checks
            assert checks[len(begin) - 2]["says"] == "the plan takes 128 KiB, 64.0 MiB are free", checks
            skipped = [check["check"] for check in checks if check["state"] == "not asked"]
            assert skipped == [*["shared memory"] * STAGES, "gpu", "peer access", "nccl"], checks
            paths = {check["subject"]: check["says"] for check in checks if check["check"] == "path"}
            # 1F1B's neighbours, the two ends of the tied embedding, and the store that stage 0 parks at.
            assert set(paths) == {f"stage {a} to stage {b}" for a in range(STAGES) for b in range(STAGES)
                                  if abs(a - b) in (1, STAGES - 1)} | {"stage 0 to store 3"}, paths
            assert all(says.startswith("shm: same machine;") and "for a block there and back" in says
                       for says in paths.values()), paths
            # Stores at unix sockets have no path over tcp.
            checks, failed, _ = preflight(folder, job, *both, "--set", "balance.data_path=tcp", expect=9)
            expect_one(failed, "path", "stage 0 to store 3", "--data-tcp")
            assert sum(check["says"].startswith("tcp: asked for;") for check in checks) == 2 * STAGES, checks
            preflight(folder, job, *both, "--set", "balance.policy=auto")
            gpus_missing(folder, job, both)
            print("ok well")

            stopped(folder, job)
            _, _, stderr = preflight(folder, job, expect=2)
            assert "services.stages" in stderr, stderr
            for key, many in (("stages", ranks[:3]), ("stages", ranks * 3), ("stores", lenders[:2]), ("stores", lenders * 16)):
                _, _, stderr = preflight(folder, job, *both, *addresses(key, many), expect=2)
                assert f"services.{key}: names {len(many)}; the pipeline has 4 stages" in stderr, stderr
            small = Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64 KiB", "--drain", "0")
            stores.append(small)
            _, failed, _ = preflight(folder, job, *addresses("stages", [*ranks[:3], small.address]),
                                     *addresses("stores", lenders), expect=9)
            expect_one(failed, "answers", "stage 3", "an activation-store answers here, not a stage-service")
            twin = ranks[0].replace("127.0.0.1:", "localhost:")
            _, failed, _ = preflight(folder, job, *addresses("stages", [*ranks[:3], twin]),
                                     *addresses("stores", lenders), expect=9)
            expect_one(failed, "answers", "stage 3", f"{twin} is the process of stage 0 ({ranks[0]}), pid {services[0].pid}")
            twin = f"unix:{folder}/./store-0"
            _, failed, _ = preflight(folder, job, *addresses("stages", ranks),
                                     *addresses("stores", [*lenders[:3], twin]), expect=9)
            expect_one(failed, "answers", "store 3", f"{twin} is the process of store 0 ({lenders[0]})")
            _, failed, _ = preflight(folder, job, *addresses("stages", [*ranks[:3], "a" * 70 + ".example:7700"]),
                                     *addresses("stores", lenders), expect=9, timeout="6")
            expect_one(failed, "name", "stage 3", "publish")
            _, failed, _ = preflight(folder, job, *addresses("stages", ranks), expect=9)
            expect_one(failed, "room", "store 3", "services.stores names 0")
            print("ok wrong addresses")

            _, failed, _ = preflight(folder, job, *addresses("stages", ranks),
                                     *addresses("stores", [*lenders[:3], small.address]), expect=9)
            expect_one(failed, "room", "store 3", "--capacity")
            subprocess.run([CTL, "drain", "--store", lenders[3]], env=environment(folder), check=True, timeout=60,
                           stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            _, failed, _ = preflight(folder, job, *both, expect=9)
            expect_one(failed, "room", "store 3", "--undrain")
            subprocess.run([CTL, "drain", "--undrain", "--store", lenders[3]], env=environment(folder), check=True,
                           timeout=60, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            print("ok room")
            host_stores(folder, job, ranks, lenders)
            wrong_certificates(folder, job, both)
            print("ok certificates")

            stores[0].kill(signal.SIGKILL)
            _, failed, _ = preflight(folder, job, *both, expect=9, timeout="6")
            expect_one(failed, "answers", "store 0", "start it")
            # It is waited for: a service that comes up while preflight runs is well.
            result = []
            waiting = threading.Thread(target=lambda: result.append(preflight(folder, job, *both)))
            waiting.start()
            stores[0] = Service(folder, "activation-store", "--listen", lenders[0], "--capacity", "64 MiB", "--drain", "0")
            waiting.join(240)
            assert result, "a store that came up was not seen"
            print("ok a store that is away, and comes")
        finally:
            for store in stores:
                store.kill(signal.SIGKILL)


if __name__ == "__main__":
    main()

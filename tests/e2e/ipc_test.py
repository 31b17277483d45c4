# SPDX-License-Identifier: Apache-2.0
"""Tensors between stages of one machine go by cuda-ipc, pulled by the receiver's copy engine (a device that is not there,
tests/late): by choice and as asked for, the same bits as on the host for every schedule and beside blocks that are parked, without
twins in memory of the host; every view names the path. Beside a stage that cannot, pairs go by what each can. A stage that is
killed ends the run with its name and leaves nothing, the run goes on from its checkpoint; one that stands still costs time."""
import json
import os
import re
import signal
import subprocess
import time

from ballast import (CTL, LONG, ON_DEVICE, Run, assert_nothing_left, descendants, environment, losses, on, on_late_device, program_of,
                     read_report, run_job, shared_memory_files, small_inline, stages, wait_until, write_job)
from prometheus import scrape

IPC = (*ON_DEVICE, "--set", "balance.data_path=cuda-ipc")
INLINE = {"init": None, "family": "gpt2", "layers": 8, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
TRAIN = {"steps": 3, "micro_batch": 1, "micro_batches": 8, "validate_every": 2}


def paths_of(log):
    return re.findall(r"data path: (?:stage \d+, |link to stage \d+ is up, )([a-z-]+: [^\n]*)", log)


def same_bits(folder):
    more = ((2, "1f1b", "auto"), (4, "zb-v", "cuda-ipc")) if LONG else ()
    parts = {"model": INLINE, "train": TRAIN, "data": {"validation": 0.1}}
    expected, _ = run_job(folder, write_job(folder, **parts, pipeline={"stages": 1}), "--local")
    for count, schedule, asked in ((4, "interleaved", "cuda-ipc"), (2, "zb-v", "auto"), (4, "1f1b", "auto"),
                                   (3, "gpipe", "cuda-ipc"), *more):
        job = write_job(folder, **parts, pipeline={"stages": count, "schedule": schedule})
        report, done = run_job(folder, job, "--local", "-v", *ON_DEVICE, "--set", f"balance.data_path={asked}")
        assert losses(report) == losses(expected), f"{schedule}:\n {losses(report)}\n {losses(expected)}"
        chosen = paths_of(done.stderr)
        words = "cuda-ipc: asked for" if asked != "auto" else "cuda-ipc: same machine"
        assert len(chosen) >= 2 and set(chosen) == {words}, (schedule, chosen, done.stderr[-3000:])
        assert "communicators (counted: 0 B)" in done.stderr, done.stderr[-3000:]
        print(f"ok {count} stages, {schedule}, {asked}: the same bits")


def beside_blocks(folder):
    job = write_job(folder, model=small_inline(hidden=32, seq=32), train={"steps": 3, "micro_batch": 1, "micro_batches": 8},
                    data={"train": [__file__], "format": "text"}, pipeline={"stages": 4})
    expected, _ = run_job(folder, job, "--local")
    for policy in ("bpipe", "cap", "drop", "auto"):
        more = {"cap": ("--set", "balance.cap=3"), "drop": ("--set", "memory.slots=2")}.get(policy, ())
        report, _ = run_job(folder, job, "--local", *IPC, "--set", f"balance.policy={policy}", *more)
        assert losses(report) == losses(expected), f"{policy}:\n {losses(report)}\n {losses(expected)}"
        assert policy != "bpipe" or report[-1]["stages"][0]["evicted"] > 0, report[-1]
    print("ok beside blocks that are parked, dropped, or neither")


def ask(folder, *words):
    done = subprocess.run([CTL, *words, "-o", "json", "--timeout", "60"], env=environment(folder), text=True,
                          capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def views(folder):
    job = write_job(folder, model=INLINE, train={**TRAIN, "steps": 1000000}, pipeline={"stages": 2})
    with stages(folder, 2, prefixes=[((), "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")] * 2) as services:
        run = Run(folder, job, *on(services), *ON_DEVICE)
        try:
            run.wait_for(bool, "no step ended")
            wait_until(lambda: json.dumps([ask(folder, "stages"), ask(folder, "status")]).count("cuda-ipc: same machine") >= 4,
                       60, "stages and status do not name the path")
            for stage in ask(folder, "stages"):
                assert stage["memory"]["staging"] == 0 and stage["memory"]["edges"] > 0, stage
            for service in services:
                address = re.search(r"metrics on http://(\S+)/metrics", service.log())[1]
                metrics = scrape(address)
                counts = {path: metrics.get("ballast_data_path_peers", path=path) for path in ("cuda-ipc", "nccl", "shm", "tcp")}
                assert counts == {"cuda-ipc": 1, "nccl": 0, "shm": 0, "tcp": 0}, counts
        finally:
            run.end(130, signal.SIGINT)
    print("ok views name the path")


def mixed(folder):
    """The last of three stages keeps its memory: to it tensors go by NCCL, between the others by cuda-ipc."""
    job = write_job(folder, model=INLINE, train=TRAIN, pipeline={"stages": 3})
    expected, _ = run_job(folder, job, "--local")
    shared, closed = "--nccl-shared-gpu", ("env", "LATE_CLOSED=1")
    with stages(folder, 3, prefixes=[((), "127.0.0.1:0", shared)] * 2 + [(closed, "127.0.0.1:0", shared)]) as services:
        report, _ = run_job(folder, job, *on(services), *ON_DEVICE)
        assert losses(report) == losses(expected)
        chosen = [" ".join(paths_of(service.log())) for service in services]
        assert "cuda-ipc: same machine" in chosen[0] and "cuda-ipc: same machine" in chosen[1], chosen
        assert all("nccl: both ends have NCCL" in words for words in chosen[1:]), chosen
        assert "not cuda-ipc: refused: stage 2: what is not there keeps its memory" in chosen[1], chosen
        _, done = run_job(folder, job, *on(services), *IPC, expect=4)
        assert "cuda-ipc is asked for: " in done.stderr and "what is not there keeps its memory" in done.stderr, done.stderr
    _, done = run_job(folder, job, "--local", "--set", "balance.data_path=cuda-ipc", expect=2)
    assert "it needs pipeline.device cuda" in done.stderr, done.stderr
    print("ok beside a stage that cannot")


def killed(folder):
    job = write_job(folder, model=small_inline(), data={"train": [__file__], "format": "text"},
                    train={"steps": 100000, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 3})
    shared = shared_memory_files()
    for rank in range(3):
        run = Run(folder, job, "--local", *IPC, start_new_session=True)
        run.wait_for(lambda steps: len(steps) >= 2, "the run did not make two steps")
        pids = descendants(run.pid)
        victim = [stage["pid"] for stage in run.steps()[-1]["stages"]][rank]
        assert program_of(victim) == "stage-service"
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        message = run.end(5)
        assert f"stage {rank}" in message, f"does not name stage {rank}:\n{message[-3000:]}"
        assert time.monotonic() - begin < 30
        read_report(run.report)
        assert_nothing_left(folder, pids, shared)
    print("ok each stage killed: exit 5 with its name, nothing left")


def goes_on(folder):
    """A killed service's neighbours stay; a new one takes its place, and its memory."""
    job = write_job(folder, "kept.yaml", model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 30, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 3},
                    checkpoint={"folder": os.path.join(folder, "kept"), "every": 2})
    expected, _ = run_job(folder, job, "--local", "--set", "checkpoint.folder=null", "--set", "checkpoint.every=0")
    with stages(folder, 3) as services:
        run = Run(folder, job, *IPC, *on(services))
        run.wait_for(lambda steps: len(steps) >= 5, "step 5")
        services[1].kill(signal.SIGKILL)
        assert "stage 1" in run.end(5)
        wait_until(lambda: "link to stage 1 ended: stage 1 closed the connection" in services[0].log(), 60, services[0].log())
        os.unlink(os.path.join(folder, "ballast", f"stage-{services[1].pid}.data"))  # nobody else can
        services[1].__init__(folder, "stage-service", "--listen", services[1].address)
        rest = Run(folder, job, *IPC, *on(services), "--resume")
        rest.end(0)
        bits = [(event["loss"].hex(), event["grad_norm"].hex()) for event in read_report(rest.report) if event["event"] == "step"]
        assert bits == losses(expected)[-len(bits):], "other bits after the run went on"
    print(f"ok gone on with {len(bits)} steps to go")


def survives(folder):
    """A stage whose neighbour is gone ends its step for that alone: what it still gets from another one goes nowhere."""
    job = write_job(folder, model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 100000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 3, "schedule": "gpipe"})
    with stages(folder, 3) as services:
        run = Run(folder, job, *IPC, *on(services))
        run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        stopped = [services[0].pid] + [pid for pid in descendants(run.pid) if program_of(pid) == "ballast-driver"]
        assert len(stopped) == 2, stopped
        for pid in stopped:  # stage 1 waits for stage 0
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.3)
        services[2].kill(signal.SIGKILL)
        wait_until(lambda: "link to stage 2 ended" in services[1].log(), 30, services[1].log())
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.3)
        message = run.end(5)
        assert "stage 2" in message, message
        assert services[0].process.poll() is None and services[1].process.poll() is None, services[1].log()[-3000:]
        os.unlink(os.path.join(folder, "ballast", f"stage-{services[2].pid}.data"))  # nobody else can
    print("ok the neighbours of a killed stage live")


def stands_still(folder):
    job = write_job(folder, model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 40, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 3})
    expected, _ = run_job(folder, job, "--local")
    run = Run(folder, job, "--local", *IPC)
    for rank in range(3):
        steps = run.wait_for(lambda steps: len(steps) >= 3 * rank + 3, "no steps")
        os.kill(steps[-1]["stages"][rank]["pid"], signal.SIGSTOP)
        time.sleep(1)
        os.kill(steps[-1]["stages"][rank]["pid"], signal.SIGCONT)
    run.end(0)
    assert losses(read_report(run.report)) == losses(expected), "other bits after stages stood still"
    print("ok each stage stopped for a second: the same bits")


on_late_device(same_bits, beside_blocks, views, mixed, killed, goes_on, survives, stands_still)

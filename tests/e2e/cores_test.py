# SPDX-License-Identifier: Apache-2.0
"""Four stages that take turns on one core, on two, and on as many as they like, have the same bits; on one core their
operations do not overlap; a stage that is killed while others wait for its core ends the run as always. With a token for
each processor that the run may use, stages compute on one processor each, else wherever they may. Idle threads of stages
do not spin for long, unless the user wants them to."""
import os
import signal
import subprocess

from ballast import (CTL, Run, assert_nothing_left, descendants, environment, losses, program_of, read_report, run_job, scratch,
                     shared_memory_files, wait_until, write_job)

MODEL = {"init": None, "family": "gpt2", "layers": 4, "hidden": 64, "heads": 2, "vocab": 128, "seq": 64}


def processors_of(pids):
    """For each of the threads of these stages the processors that it may use now."""
    found = set()
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                found.add(frozenset(os.sched_getaffinity(int(thread))))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def binding(folder, job, allowed, bound, name):
    """A run on these processors, whose stages are seen on one each, or never."""
    report = os.path.join(folder, f"{name}.jsonl")
    run = subprocess.Popen([CTL, "run", job, "--local", "--report", report], env=environment(folder),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                           preexec_fn=lambda: os.sched_setaffinity(0, allowed))
    wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was made")
    pids = descendants(run.pid)
    stages = [pid for pid in pids if program_of(pid) == "stage-service"]
    wanted, seen = {frozenset([one]) for one in allowed}, set()

    def look():
        seen.update(processors_of(stages))
        return bound and wanted <= seen

    if bound:
        wait_until(look, 60, f"of the processors {sorted(allowed)} stages were bound to {sorted(map(sorted, seen))} only")
    else:
        for _ in range(200):
            look()
    run.send_signal(signal.SIGINT)
    run.wait(60)
    run.stderr.close()
    assert seen <= wanted | {frozenset(allowed)} if bound else seen == {frozenset(allowed)}, seen
    return pids


def spin_counts(folder, job, given):
    """A run in an environment with this setting: what its stages have of GOMP_SPINCOUNT, and its report."""
    run = Run(folder, job, "--local", prefix=["env", "-u", "GOMP_SPINCOUNT", "-u", "OMP_WAIT_POLICY", *given])
    run.wait_for(lambda steps: len(steps) >= 3, "three steps")
    found = set()
    for pid in descendants(run.pid):
        if program_of(pid) == "stage-service":
            with open(f"/proc/{pid}/environ") as file:
                settings = dict(entry.split("=", 1) for entry in file.read().split("\0") if "=" in entry)
            found.add(settings.get("GOMP_SPINCOUNT"))
    run.end(expect=130, number=signal.SIGINT)
    return found, read_report(run.report)


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        def job(cores, steps=3, threads=1):
            return write_job(folder, model=MODEL, data={"train": [__file__], "format": "text"},
                             train={"steps": steps, "micro_batch": 1, "micro_batches": 6},
                             pipeline={"stages": 4, "cores": cores, "threads": threads})

        reference = None
        for cores in (1, 2, 64, None):
            report, _ = run_job(folder, job(cores), "--local")
            reference = reference or losses(report)
            assert losses(report) == reference, f"{cores} cores"
            for event in report:
                busy = sum(stage["busy_seconds"] for stage in event.get("stages", []))
                # Squares and tied gradients at the end of a step take no turns: room for them, and for clocks.
                assert cores != 1 or busy < 1.5 * event["seconds"], event
            print(f"ok cores: {cores or 'as many as the machine has'}")

        for given, wanted in ([], "1000"), (["GOMP_SPINCOUNT=5"], "5"), (["OMP_WAIT_POLICY=passive"], None):
            found, report = spin_counts(folder, job(1, 100000, threads=2), given)
            assert found == {wanted}, (given, found)
            assert losses(report)[:3] == reference, given
        print("ok idle threads")

        report = os.path.join(folder, "killed.jsonl")
        run = subprocess.Popen([CTL, "run", job(1, 100000), "--local", "--report", report], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was made")
        pids = descendants(run.pid)
        os.kill(next(pid for pid in pids if program_of(pid) == "stage-service"), signal.SIGKILL)
        assert run.wait(60) == 5, run.stderr.read()
        run.stderr.close()
        read_report(report)
        assert_nothing_left(folder, pids, shared)
        print("ok a killed stage")

        allowed = sorted(os.sched_getaffinity(0))[:2]
        if len(allowed) < 2:
            print("stages were not bound: there is one processor")
            return
        for cores, bound in ((None, True), (2, True), (1, False), (3, False)):
            pids = binding(folder, job(cores, 100000), set(allowed), bound, f"bound-{cores}")
            assert_nothing_left(folder, pids, shared)
            print(f"ok {'one processor each' if bound else 'any processor'}: {cores or 'as many tokens'} of 2")


main()

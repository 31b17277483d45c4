# SPDX-License-Identifier: Apache-2.0
"""Services that compute on a GPU, all on the first one: losses beside the host's, the same bits with and without
eviction and for every number of stages, a checkpoint there and back. Exit code 77 and the reason where there is no GPU."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import BIN, run_job, losses, scratch, write_job, skip  # noqa: E402

ON_GPU = ("--set", "pipeline.device=cuda")
TOLERANCE = 1e-3


def numbers(report):
    return [event["loss"] for event in report if event["event"] == "step"]


def main():
    survey = subprocess.run([os.path.join(BIN, "stage-service"), "--list-devices"], capture_output=True, text=True)
    print(survey.stdout.strip())
    if survey.returncode != 0:
        skip(survey.stderr.strip())
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 128, "heads": 4, "vocab": 128, "seq": 64}
    train = {"steps": 20, "micro_batch": 2, "micro_batches": 8}
    with scratch() as folder:
        for dtype in ("fp32", "bf16"):
            for attention in ("naive", "flash"):
                kept = None
                for stages, schedule, policy in ((1, "1f1b", "none"), (2, "1f1b", "none"), (4, "1f1b", "none"),
                                                 (4, "1f1b", "bpipe"), (2, "zb-v", "none")):
                    job = write_job(folder, model=inline, train={**train, "dtype": dtype}, balance={"policy": policy},
                                    pipeline={"stages": stages, "schedule": schedule, "attention": attention})
                    report, _ = run_job(folder, job, "--local", *ON_GPU, timeout=600)
                    if kept is None:
                        kept = losses(report)
                        host, _ = run_job(folder, job, "--local", timeout=600)
                        worst = max(abs(a - b) / abs(b) for a, b in zip(numbers(report), numbers(host)))
                        assert worst <= TOLERANCE, f"{dtype}, {attention}: {worst} from the host's losses"
                        print(f"ok {dtype}, {attention}: at most {worst:.2g} from the host's losses")
                    assert losses(report) == kept, f"{dtype}, {attention}, {stages} stages, {schedule}, {policy}"
                    if policy == "bpipe":
                        assert report[-1]["stages"][0]["evicted"] > 0
                    print(f"ok {dtype}, {attention}, {stages} stages, {schedule}, {policy}: the same bits")
        job = write_job(folder, model=inline, train={**train, "steps": 6}, checkpoint={"folder": f"{folder}/kept", "every": 3})
        whole, _ = run_job(folder, write_job(folder, name="whole.yaml", model=inline, train={**train, "steps": 6}),
                           "--local", *ON_GPU)
        run_job(folder, job, "--local", "--steps", "3", *ON_GPU)
        rest, _ = run_job(folder, job, "--local", "--resume", *ON_GPU)
        assert numbers(rest) == numbers(whole)[3:], "a resumed run"
        print("ok a resumed run has the same losses")


main()

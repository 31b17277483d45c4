# SPDX-License-Identifier: Apache-2.0
"""A driver that is killed at random points and started again goes on with the same losses, and its report has every
committed step once. Stages are separate services that live on. BALLAST_TEST_KILLS sets how often (default 6)."""
import os
import signal
import subprocess
import time

from ballast import CTL, environment, losses, read_report, run_job, scratch, seed, stages, write_job


def main():
    choice = seed()
    kills = int(os.environ.get("BALLAST_TEST_KILLS", "6"))
    with scratch() as folder:
        steps = 30 + 5 * kills
        train = {"steps": steps, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3, "clip": 1.0}
        reference, _ = run_job(folder, write_job(folder, train=train), "--local")
        with stages(folder, 2) as services:
            job = write_job(folder, train=train, services={"stages": [s.address for s in services]})
            report = os.path.join(folder, "interrupted.jsonl")
            started = time.monotonic()
            for number in range(kills):
                arguments = ["--report", report] + (["--resume"] if number > 0 else [])
                process = subprocess.Popen([CTL, "run", job, *arguments], env=environment(folder), text=True,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                           start_new_session=True)
                time.sleep(choice.uniform(0.05, 0.6))
                # Driver and ballastctl at once, as when their machine dies.
                os.killpg(process.pid, signal.SIGKILL)
                kill_drivers(folder)
                process.wait(10)
            arguments = ["--report", report, "--resume"]
            done = subprocess.run([CTL, "run", job, *arguments], env=environment(folder), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            print(f"{kills} kills in {time.monotonic() - started:.1f} s")
            got = read_report(report)
            assert losses(got) == losses(reference), "the report of an interrupted run differs"
            for service in services:
                assert service.process.poll() is None, "stages live on"


def kill_drivers(folder):
    """Drivers of this test run that have a process group of their own."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{entry}/environ", "rb") as file:
                    ours = f"XDG_RUNTIME_DIR={folder}".encode() in file.read().split(b"\0")
                if ours and os.path.basename(words[0]) == b"ballast-driver":
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                pass


main()

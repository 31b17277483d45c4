# SPDX-License-Identifier: Apache-2.0
"""While a stage is stopped (SIGSTOP), `ballastctl doctor` says within seconds that it does not answer, and which stages
wait for it, for which micro-batch; once it goes on, so does the run, and doctor is content."""
import json
import os
import signal
import subprocess
import threading

import ballast

STOPPED_S = 4  # that a stage is stopped: less than the 6 s after which the run gives it up


def doctor(folder):
    done = subprocess.run([ballast.CTL, "doctor", "-o", "json"], env=ballast.environment(folder), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, stdin=subprocess.DEVNULL)
    return done.returncode, json.loads(done.stdout) if done.stdout else [], done.stderr


def main():
    with ballast.scratch() as folder:
        job = ballast.write_job(folder, model=ballast.small_inline(), data={"train": [__file__], "format": "text"},
                                train={"steps": 100000, "micro_batch": 4, "micro_batches": 8}, pipeline={"stages": 3})
        report = os.path.join(folder, "report.jsonl")
        run = subprocess.Popen([ballast.CTL, "run", job, "--local", "--report", report], start_new_session=True,
                               env=ballast.environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            def steps():
                return ballast.steps_so_far(report)

            def content():
                code, rows, _ = doctor(folder)
                return code == 0 and {row["who"] for row in rows} == {"driver", "stage 0", "stage 1", "stage 2"}

            def go_on():
                before = len(steps())
                ballast.wait_until(lambda: len(steps()) > before + 1, 120, "the run did not go on")

            def stuck():
                code, rows, text = doctor(folder)
                silent = [row for row in rows if row["who"] == "stage 1" and row["state"] == "does not answer"]
                waiting = [row for row in rows if row.get("peer") == 1 and row.get("seconds", 0) > 0.2]
                return code == 9 and silent and (silent, waiting, text)

            ballast.wait_until(steps, 120, "no step was made")
            ballast.wait_until(content, 60, "doctor is not content")
            victim = steps()[0]["stages"][1]["pid"]
            waiting, tries = [], 0
            while not waiting:  # between two steps no other stage waits for it: then again
                tries += 1
                assert tries <= 20, "doctor did not find the stopped stage, or nobody who waits for it"
                os.kill(victim, signal.SIGSTOP)
                goes_on = threading.Timer(STOPPED_S, os.kill, (victim, signal.SIGCONT))
                goes_on.start()
                found = None
                while goes_on.is_alive() and not found:
                    found = stuck()
                goes_on.cancel()
                os.kill(victim, signal.SIGCONT)
                silent, waiting, text = found or ([], [], "")
                go_on()
            assert silent[0]["cause"] and f"pid {victim}" in text, (silent, text)
            assert silent[0]["age_seconds"] >= 2, f"an answer is awaited for 2 s before a stage is silent: {silent}"
            for row in waiting:
                assert row["age_seconds"] >= 0, row
            for row in waiting:
                assert row["who"] in ("stage 0", "stage 2") and "stage 1" in row["waits_for"], row
                assert row["micro_batch"] in range(8), row
            print(f"{waiting[0]['who']} waits for {waiting[0]['waits_for']}, micro-batch {waiting[0]['micro_batch']}")
            ballast.wait_until(content, 60, "doctor is not content")
        finally:
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(120) in (0, 130)


main()

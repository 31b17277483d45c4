# SPDX-License-Identifier: Apache-2.0
"""Policy auto on a path whose speed changes in the middle of a run: stores that stand still most of the time make copies
slow, and the run goes over to recomputing blocks and says what a copy would take; when the stores go on, a trial finds
that out, and what is chosen then is the fastest of what is told. A store that dies changes nothing. The losses are those of a run in which nothing moves."""
import json
import os
import re
import signal
import subprocess
import threading
import time

from ballast import CTL, environment, losses, read_report, run_job, scratch, small_inline, wait_until, write_job

STOPPED, RUNNING = 0.04, 0.002  # seconds
SLOWER = 4                      # times, at least, that a path is slower with such stores


class Brake:
    """Stops the processes again and again until it is let go."""

    def __init__(self, pids):
        self.pids = pids
        self.held = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def signal(self, number):
        for pid in self.pids:
            os.kill(pid, number)

    def run(self):
        while self.held:
            self.signal(signal.SIGSTOP)
            time.sleep(STOPPED)
            self.signal(signal.SIGCONT)
            time.sleep(RUNNING)

    def release(self):
        self.held = False
        self.thread.join()


def get(folder):
    done = subprocess.run([CTL, "policy", "get", "-o", "json", "--timeout", "60"], env=environment(folder), text=True,
                          timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rate(now):
    """Bytes per second of the path of stage 0 in its reason; None where it says none."""
    found = re.search(r"at ([0-9.e+-]+) MB/s", now["devices"][0].get("reason", ""))
    return 1e6 * float(found.group(1)) if found else None


def weighed(now):
    """What a step takes under each option that fits, by its name."""
    told = now["decision"].split("Predicted: ")[1]
    return {name: float(ms) for name, ms in re.findall(r"((?:none|bpipe|cap|drop|mix)(?: overlap| fewest)?) ([0-9.e+-]+) ms,", told)}


def check_choice(now):
    options = weighed(now)
    name = now["chosen"] if now["chosen"] in ("drop", "none") else f"{now['chosen']} {now['mode']}"
    assert options[name] <= 1.025 * min(options.values()), (name, options)


def decided(folder, condition):
    now = get(folder)
    whole = "Predicted: " in now.get("decision", "") and rate(now) is not None
    return now if whole and condition(now) else None


def record(path):
    """The whole lines so far."""
    with open(path) as file:
        text = file.read()
    with open(path + ".whole", "w") as file:
        file.write(text[:text.rfind("\n") + 1])
    return [event for event in read_report(path + ".whole") if event["event"] == "step"]


def main():
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=128, layers=4, seq=32),
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4})
        report = os.path.join(folder, "live.jsonl")
        run = subprocess.Popen([CTL, "run", job, "--local", "--report", report, "--set", "balance.policy=auto",
                                "--set", "memory.slots=3", "--set", "balance.trials=0.5"], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        brake = None
        try:
            wait_until(lambda: os.path.exists(report) and record(report), 60, "no step was recorded")
            first = wait_until(lambda: decided(folder, lambda now: True), 120, "nothing was decided")
            check_choice(first)
            fast = rate(first)
            print(f"ok measured: {first['chosen']} at {fast * 1e-6:.0f} MB/s")
            brake = Brake([store["pid"] for store in record(report)[-1]["stores"]])
            slow = wait_until(lambda: decided(folder, lambda now: now["chosen"] == "drop" and SLOWER * rate(now) < fast),
                              120, "a slow path changes nothing")
            check_choice(slow)
            assert "recomputes " in slow["devices"][0]["reason"], slow
            print(f"ok slow: {slow['decision']}; {slow['devices'][0]['reason']}")
            brake.release()
            brake = None
            again = wait_until(lambda: decided(folder, lambda now: rate(now) > SLOWER * rate(slow)), 120,
                               "a path that is fast again is not noticed")
            check_choice(again)
            print(f"ok fast again: {again['decision']}; {again['devices'][0]['reason']}")
            before = record(report)
            os.kill(before[-1]["stores"][3]["pid"], signal.SIGKILL)  # where stage 0 parks, if it does
            wait_until(lambda: len(record(report)) > len(before) + 5, 120, "no step after the death of a store")
            assert get(folder)["policy"] == "auto"
            print("ok a store dies")
        finally:
            if brake is not None:
                brake.release()
            run.send_signal(signal.SIGINT)
            run.wait(120)
        steps = record(report)
        assert {step["policy"] for step in steps} == {"auto"}
        assert any(step["stages"][0]["dropped"] > 0 for step in steps), "no block was given up"
        plain, _ = run_job(folder, job, "--local", "--steps", str(len(steps)), "--set", "pipeline.stages=1")
        assert losses(steps) == losses(plain), "other losses while the policy changes"
        print(f"ok {len(steps)} steps, the same losses")


if __name__ == "__main__":
    main()

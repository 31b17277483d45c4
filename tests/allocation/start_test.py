# SPDX-License-Identifier: Apache-2.0
"""Every program starts while its k-th own allocation fails (fail_nth.c), for every k where they are few and evenly spaced
ones where they are many: it ends with an exit code of its own and words, or does without that memory, and never by a
signal. So does a stage that is configured and runs two steps, and the run that it is part of. BALLAST_SOAK=1 tries more of
them."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import ballast  # noqa: E402

LIBRARY = os.environ["BALLAST_FAIL_LIBRARY"]
MOST = 2000 if os.environ.get("BALLAST_SOAK") else 25
LIMIT = 100
PATIENCE = 20


def end(process):
    """Its words. One that cannot listen to the first signal for want of memory hears the second; not both at once, because one
    that ends already listens to none any more."""
    try:
        return process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=LIMIT)[1]


def start(folder, command, nth, serves, job=None):
    """Runs a program until it ends; one that serves is ended once it is ready, or has been part of a run. Its exit code,
    words, allocations."""
    count_read, count_write = os.pipe()
    ready_read, ready_write = os.pipe()
    passed = [count_write, ready_write] if serves else [count_write]
    ready = ["--ready-fd", str(ready_write)] if serves else []
    environment = dict(ballast.environment(folder), LD_PRELOAD=LIBRARY, BALLAST_FAIL_NTH=str(nth),
                       BALLAST_FAIL_FD=str(count_write))
    process = subprocess.Popen([os.path.join(ballast.BIN, command[0]), *command[1:], *ready], env=environment,
                               pass_fds=passed, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    os.close(count_write)
    os.close(ready_write)
    try:
        with os.fdopen(ready_read) as ready_file, os.fdopen(count_read) as count_file:
            if serves and ready_file.readline():
                if job is not None:
                    use(folder, job, nth)
                process.send_signal(signal.SIGINT)
            words = end(process)
            count = count_file.read()
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{command} with allocation {nth} failing does not end:\n{process.communicate()[1]}")
    return process.returncode, words, int(count or 0)


def use(folder, job, nth):
    """A run on the stage that has been started; an end of its own, and words if it failed."""
    done = subprocess.run([ballast.CTL, "run", job], env=ballast.environment(folder), stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert 0 <= done.returncode <= 10 and (nth != 0 or done.returncode == 0), f"exit code {done.returncode}\n{done.stderr}"
    assert done.returncode == 0 or done.stderr.strip(), f"allocation {nth}: code {done.returncode} without words"


def try_all(folder, command, serves=False, job=None):
    code, words, count = start(folder, command, 0, serves, job)
    assert code in (0, 130) and count > 0, f"{command}: exit code {code}, {count} allocations\n{words}"
    codes = {}
    for nth in range(1, count + 1, max(1, count // MOST)):
        code, words, _ = start(folder, command, nth, serves, job)
        assert 0 <= code <= 10 or code == 130, f"{command}, allocation {nth} of {count}: exit code {code}\n{words}"
        assert code in (0, 130) or words.strip(), f"{command}, allocation {nth} of {count}: code {code} without words"
        codes[code] = codes.get(code, 0) + 1
    print(f"ok: {' '.join(command[:2])}: {count} allocations, exit codes {codes}")


def main():
    with ballast.scratch() as folder:
        job = ballast.write_job(folder)
        far = ballast.write_job(folder, name="far.yaml", services={"stages": [f"unix:{folder}/a", f"unix:{folder}/b"]})
        try_all(folder, ["ballastctl", "run", job, "--local", "--check"])
        try_all(folder, ["ballastctl", "schedule", "show", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8"])
        try_all(folder, ["stage-service", "--listen", f"unix:{folder}/stage"], serves=True)
        alone = ballast.write_job(folder, name="alone.yaml", model=ballast.small_inline(layers=1), pipeline={"stages": 1},
                                  train={"steps": 2}, services={"stages": [f"unix:{folder}/stage"]})
        try_all(folder, ["stage-service", "--listen", f"unix:{folder}/stage"], serves=True, job=alone)
        try_all(folder, ["activation-store", "--listen", f"unix:{folder}/store", "--capacity", "1 MiB"], serves=True)
        try_all(folder, ["ballast-driver", "--job", far, "--listen", f"unix:{folder}/driver"], serves=True)


if __name__ == "__main__":
    main()

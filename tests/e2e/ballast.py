# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: jobs, runs, separately started services, and what a run may leave behind (nothing).

Standard library only. Every test script is a program: it exits 0, or 77 with a reason when it must be skipped.
"""
import contextlib
import glob
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
CTL = os.path.join(BIN, "ballastctl")
BUILD = os.path.dirname(BIN.rstrip("/"))
GOLDEN = os.path.join(ROOT, "tests", "golden")
LATE = os.path.join(BUILD, "tests", "late")  # modules of a device that is not there
ON_DEVICE = ("--set", "pipeline.device=cuda")
LONG = os.environ.get("BALLAST_TEST_LONG") == "1"  # sweeps that only ./ballast soak makes as a whole
LONGEST_S = 12  # until a run that has lost a rank has ended: 10, and 2 for a machine that is busy with other tests


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def seed():
    """The seed of this run's random choices: always the same one, so that a test means the same on every machine, unless
    BALLAST_TEST_SEED says another, or "random" as the soak does; printed so that a failure can be repeated."""
    value = os.environ.get("BALLAST_TEST_SEED", "1")
    value = random.SystemRandom().randrange(1 << 32) if value == "random" else int(value)
    print(f"seed: BALLAST_TEST_SEED={value}")
    return random.Random(value)


@contextlib.contextmanager
def races_told():
    """Under the thread sanitizer (TSAN_OPTIONS is set) what any process reports fails the test, whatever became of the
    process and of what it said. A signal that a test sends is no report."""
    options = os.environ.get("TSAN_OPTIONS")
    if options is None or "log_path=" in options:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ballast-races-") as folder:
        os.environ["TSAN_OPTIONS"] = f"{options} handle_segv=0 handle_abort=0 log_path={folder}/race"
        try:
            yield
        finally:
            os.environ["TSAN_OPTIONS"] = options
        reports = []
        for path in sorted(glob.glob(f"{folder}/race*")):
            with open(path, errors="replace") as file:
                reports.append(file.read())
        assert not reports, f"{len(reports)} processes have reports of the thread sanitizer:\n" + "\n".join(reports)


@contextlib.contextmanager
def scratch():
    """A folder of our own, also the run-time folder of everything started in it."""
    with races_told(), tempfile.TemporaryDirectory(prefix="ballast-e2e-") as folder:
        os.chmod(folder, 0o700)
        yield folder


def environment(folder):
    return dict(os.environ, XDG_RUNTIME_DIR=folder, BALLAST_LOG="info")


def write_job(folder, name="job.yaml", **sections):
    """A job on the golden GPT-2 model; `sections` replaces or adds keys: train=dict(steps=3), ..."""
    job = {
        "model": {"init": f"{GOLDEN}/gpt2", "seq": 32},
        "data": {"train": f"{GOLDEN}/gpt2/tokens.bin", "format": "bin", "order": "sequential"},
        "train": {"steps": 6, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3, "clip": 1.0},
        "pipeline": {"stages": 2, "schedule": "1f1b", "threads": 1},
    }
    for section, keys in sections.items():
        merged = {**job.get(section, {}), **keys}
        job[section] = {key: value for key, value in merged.items() if value is not None}
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        json.dump(job, file, indent=1)  # YAML is a superset of JSON
    return path


def small_inline(hidden=64, layers=4, seq=64, vocab=256):
    """A model from nothing, for runs that must last a while."""
    return {"init": None, "family": "gpt2", "layers": layers, "hidden": hidden, "heads": 4, "vocab": vocab, "seq": seq}


def masked_tokens(folder):
    """A copy of the golden tokens, with the golden mask beside it."""
    path = os.path.join(folder, "masked.bin")
    shutil.copyfile(f"{GOLDEN}/gpt2/tokens.bin", path)
    shutil.copyfile(f"{GOLDEN}/gpt2/tokens.mask", path + ".mask")
    return path


def read_report(path):
    with open(path) as file:
        return [json.loads(line) for line in file.read().splitlines()]


def steps_so_far(report):
    """The steps that a run has reported; its last line may be on its way."""
    try:
        with open(report) as file:
            text = file.read()  # at once: a loop over lines would give a line that grows meanwhile in two pieces
    except OSError:
        return []
    events = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
    return [event for event in events if event["event"] == "step"]


def stages_of(report):
    """What every stage did in every step."""
    return [stage for event in report if event["event"] == "step" for stage in event["stages"]]


def losses(report):
    steps = [event for event in report if event["event"] == "step"]
    numbers = [event["step"] for event in steps]
    wrong = next((i for i, number in enumerate(numbers) if number != i + 1), None)
    assert wrong is None, f"every step once, in order: line {wrong + 1} of {len(numbers)} is step {numbers[wrong]}"
    return [(event["loss"].hex(), event["grad_norm"].hex()) for event in steps]


def state_of(folder, step):
    """Every tensor file of a checkpoint."""
    files = sorted(glob.glob(os.path.join(folder, f"step-{step:06d}", "*.safetensors")))
    assert files, f"no checkpoint of step {step}: {os.listdir(folder)}"
    found = {}
    for path in files:
        with open(path, "rb") as file:
            found[os.path.basename(path)] = file.read()
    return found


def run_job(folder, job, *arguments, expect=0, timeout=120):
    report = os.path.join(folder, f"report-{time.monotonic_ns()}.jsonl")
    done = subprocess.run([CTL, "run", job, "--report", report, *arguments], env=environment(folder), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, stdin=subprocess.DEVNULL)
    if expect is not None and done.returncode != expect:
        print(done.stdout[-3000:], done.stderr[-6000:], sep="\n")
        raise AssertionError(f"ballastctl run {job} {arguments}: exit code {done.returncode}, expected {expect}")
    return read_report(report) if os.path.exists(report) else [], done


class Run:
    """`ballastctl run` while a test does something to it. Its report and what it says are files."""

    def __init__(self, folder, job, *arguments, prefix=(), **more):
        self.report = os.path.join(folder, f"report-{time.monotonic_ns()}.jsonl")
        self.log_path = self.report + ".log"
        with open(self.log_path, "w") as file:
            self.process = subprocess.Popen([*prefix, CTL, "run", job, "--report", self.report, *arguments],
                                            env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=file, **more)

    @property
    def pid(self):
        return self.process.pid

    def steps(self):
        return steps_so_far(self.report)

    def log(self):
        with open(self.log_path) as file:
            return file.read()

    def wait_for(self, condition, what, seconds=120):
        """The steps, once `condition` is true of them."""
        found = []

        def look():
            ended = self.process.poll() is not None
            steps = self.steps()
            if condition(steps):
                found.append(steps)
            return found or ended

        wait_until(look, seconds, what)
        assert found, f"the run ended: {what}\n{self.log()[-4000:]}"
        return found[0]

    def end(self, expect=0, number=None, seconds=300):
        """Waits for its end, which that signal brings about; what it said."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        assert code == expect, f"exit code {code}, expected {expect}\n{self.log()[-4000:]}"
        return self.log()

    def kill(self):
        """Leaves nothing running, whatever the test came to."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def held_memory(folder, job):
    """Bytes of every stage by use, while the job runs."""
    def reported():  # as the driver knows them by now; empty until it has asked all
        done = subprocess.run([CTL, "stages", "-o", "json", "--timeout", "60"], env=environment(folder), text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        stages = [stage["memory"] for stage in json.loads(done.stdout)]
        return stages if all(stages) else []

    run = Run(folder, job, "--local", "--steps", "1000000")
    try:
        run.wait_for(lambda steps: len(steps) >= 1, "no step ended")
        found = wait_until(reported, 120, "no stage told its memory")
        run.end(expect=130, number=signal.SIGINT)
    finally:
        run.kill()
    return found


def descendants(pid):
    """All living descendants of a process, by /proc."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
                children.setdefault(int(fields[1]), []).append((int(entry), fields[0]))
    found, queue = [], [pid]
    while queue:
        for child, state in children.get(queue.pop(), []):
            queue.append(child)
            if state != "Z":
                found.append(child)
    return found


def program_of(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.path.basename(file.read().split(b"\0")[0].decode())
    return ""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"after {seconds} s: {what}")


def shared_memory_files():
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def assert_nothing_left(folder, pids, shared_before):
    """No process of the run, no socket, no run folder, no shared memory."""
    wait_until(lambda: not any(alive(pid) for pid in pids), 60,
               f"processes are still there: {[(p, program_of(p)) for p in pids if alive(p)]}")
    left = [os.path.join(base, name) for base, _, names in os.walk(os.path.join(folder, "ballast")) for name in names]
    assert not left, f"files are left: {left}"
    new = shared_memory_files() - shared_before
    assert not new, f"shared memory is left: {new}"


class Service:
    """A stage-service or ballast-driver started by hand, ready when the constructor returns."""

    def __init__(self, folder, program, *arguments, prefix=(), log=None):
        reading, writing = os.pipe()
        self.environment = environment(folder)
        self.log_path = log or os.path.join(folder, f"{program}-{time.monotonic_ns()}.log")
        with open(self.log_path, "w") as log_file:
            self.process = subprocess.Popen([*prefix, os.path.join(BIN, program), *arguments, "--ready-fd", str(writing)],
                                            pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=log_file,
                                            stderr=log_file, env=self.environment)
        os.close(writing)
        with os.fdopen(reading) as file:
            words = file.readline().split()
        if not words:
            self.process.wait(60)
            raise AssertionError(f"{program} did not start:\n{self.log()}")
        self.address = words[1]
        self.health_address = words[2] if len(words) > 2 else ""

    def log(self):
        with open(self.log_path) as file:
            return file.read()

    def serves(self, *name):
        """What a probe of the process, or of the service of that name, is told."""
        asked = [word for value in name for word in ("--service", value)]
        done = subprocess.run([CTL, "health", "--port", self.health_address, *asked, "--timeout", "30"], env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 9), done.stderr
        return done.returncode == 0

    @property
    def pid(self):
        return self.process.pid

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(120)

    def end(self):
        if self.process.poll() is None:
            self.kill(signal.SIGTERM)


def on(services, stores=()):
    """The arguments of a run on these stage services and stores, or their addresses."""
    places = [f"services.{kind}=" + json.dumps([getattr(one, "address", one) for one in ones])
              for kind, ones in (("stages", services), ("stores", stores)) if ones]
    return [word for place in places for word in ("--set", place)]


class Place:
    """Stage services and stores that stay, for one run after the other, started as they are needed: most of a small run
    is the start of its processes. place(4) are the words of a run on four ranks."""

    def __init__(self, folder):
        self.folder, self.stages, self.stores, self.host = folder, [], [], None

    def store(self):
        return Service(self.folder, "activation-store", "--listen", "127.0.0.1:0", "--data-tcp", "127.0.0.1:0", "--capacity",
                       "64 MiB")

    def __call__(self, ranks, stores=False, host=False):
        while len(self.stages) < ranks:
            self.stages.append(Service(self.folder, "stage-service", "--listen", "127.0.0.1:0"))
        while stores and len(self.stores) < ranks:
            self.stores.append(self.store())
        if host and self.host is None:
            self.host = self.store()
        return on(self.stages[:ranks], self.stores[:ranks] if stores else ()) + (
            ["--set", f"services.host_stores=['{self.host.address}']"] if host else [])

    def end(self):
        for service in self.stages + self.stores + ([self.host] if self.host else []):
            service.end()


@contextlib.contextmanager
def served(folder):
    place = Place(folder)
    try:
        yield place
    finally:
        place.end()


class Proxy:
    """A port that leads to another address of this machine; nobody else gets through while `open` is clear."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.target, self.open, self.ended = (host, int(port)), threading.Event(), False
        self.open.set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.join, args=(near,), daemon=True).start()

    def join(self, near):
        self.open.wait()  # nobody says that nobody is there
        try:
            with near, socket.create_connection(self.target, 60) as far:
                ways = {near: far, far: near}
                while not self.ended:
                    for one in select.select(list(ways), [], [], 1)[0]:
                        data = one.recv(65536)
                        if not data:
                            return
                        ways[one].sendall(data)
        except OSError:
            pass

    def end(self):
        self.ended = True
        self.open.set()
        self.server.close()


@contextlib.contextmanager
def stages(folder, count, listen="127.0.0.1:0", prefixes=None):
    services = []
    try:
        for i in range(count):
            prefix, address, *more = prefixes[i] if prefixes else ((), listen)
            services.append(Service(folder, "stage-service", "--listen", address, *more, prefix=prefix))
        yield services
    finally:
        for service in services:
            service.end()


def on_late_device(*checks):
    """The whole of a test on a device that is not there: each check gets the folder of the test."""
    if not os.path.exists(os.path.join(LATE, "libballast-cuda.so")):
        skip("tests/late is not built")
    shared = shared_memory_files()
    os.environ["BALLAST_MODULES"] = LATE
    with scratch() as folder:
        for check in checks:
            check(folder)
        assert_nothing_left(folder, [], shared)

# SPDX-License-Identifier: Apache-2.0
"""Everything at once, at random points: processes that stand still for a while (SIGSTOP), alone and together; stores and
drivers that are killed and started again, also while others stand still; policies that change meanwhile, so that slots are
being granted. After each disturbance the run goes on. In the end every step was told once, with the bits of an undisturbed
run; each stage's counters say what the report says; what the report says adds up; and the last of the checkpoints, which were
written all the time, has the weights and the optimizer of an undisturbed run.

Then many jobs drawn at random (stages, tensor ranks, replicas, schedule, slices, policy, data path, recomputation, precision), each
disturbed a few times.

Then a stage is killed while it is configured: the driver ends with 5 and names it, or never saw it; the next one goes on.

BALLAST_TEST_ROUNDS: disturbances (30). BALLAST_TEST_JOBS: random jobs (20). BALLAST_TEST_SEED as everywhere."""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import prometheus  # noqa: E402
from ballast import CTL, GOLDEN, Service, environment, losses, run_job, scratch, seed, small_inline, state_of, \
    steps_so_far, wait_until, write_job  # noqa: E402
from combinations_test import BOTH, SLICED, SLOTS  # noqa: E402

USUAL = {"stages": 4, "tensor": 1, "data": 1, "layers": 4, "micro_batches": 16, "pipeline": {}, "slots": 4,
         "balance": {"policy": "bpipe"}}
POLICIES = [["none"], ["bpipe"], ["cap", "4"], ["cap", "3"]]
COUNTERS = {"evicted": "evictions", "loaded": "loads", "lost": "lost_blocks", "dropped": "dropped_blocks",
            "recomputed": "recomputed_blocks"}
JOBS_AT_ONCE = 3
LONGEST_S = 1.5  # that a process stands still; a driver gives a stage up after 6 s


class World:
    def __init__(self, folder, choice, shape):
        self.folder, self.choice = folder, choice
        self.driver_at, self.report = f"unix:{folder}/driver.sock", os.path.join(folder, "report.jsonl")
        ranks = shape["stages"] * shape["tensor"] * shape["data"]
        self.stages = [Service(folder, "stage-service", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
                       for _ in range(ranks)]
        hosts = 1 if shape["balance"].get("host") else 0  # its store is the last one
        self.stores = [self.start_store(i) for i in range(ranks + hosts)]
        self.job = write_job(folder, model=small_inline(hidden=32, layers=shape["layers"], seq=16),
                             data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                             train={"steps": 1000000, "micro_batch": 1, "micro_batches": shape["micro_batches"],
                                    "dtype": shape.get("dtype")},
                             pipeline={"stages": shape["stages"], **shape["pipeline"]},
                             parallel={"tensor": shape["tensor"], "data": shape["data"]},
                             memory={"slots": shape["slots"]},
                             balance=shape["balance"],
                             checkpoint={"folder": os.path.join(folder, "kept"), "every": 10},
                             services={"stages": [stage.address for stage in self.stages], "driver": self.driver_at,
                                       "stores": [f"unix:{folder}/store-{i}" for i in range(ranks)],
                                       "host_stores": [f"unix:{folder}/store-{ranks}"] if hosts else None})
        self.driver = self.start_driver()
        self.errors = open(os.path.join(folder, "stderr.txt"), "w+")
        self.control = subprocess.Popen([CTL, "run", self.job, "--report", self.report], env=environment(folder),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors)

    def start_store(self, i):
        return Service(self.folder, "activation-store", "--listen", f"unix:{self.folder}/store-{i}", "--capacity", "64 MiB",
                       "--data-tcp", "127.0.0.1:0", "--drain", "1", f"--turns={str(i == len(self.stages)).lower()}")

    def start_driver(self):
        return Service(self.folder, "ballast-driver", "--job", self.job, "--listen", self.driver_at, "--linger")

    def services(self):
        return [*self.stages, *self.stores, self.driver]

    def logs(self):
        self.errors.seek(0)
        ends = [f"{service.log_path}:\n{service.log()[-3000:]}" for service in self.services()]
        return "\n".join([self.errors.read()[-3000:], *ends])

    def go_on(self, what):
        """Two more steps than now."""
        before = len(steps_so_far(self.report))
        ended = [False]

        def more():
            ended[0] = self.control.poll() is not None
            return ended[0] or len(steps_so_far(self.report)) >= before + 2
        try:
            wait_until(more, 180, "no further step")
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}\n{self.logs()}") from error
        assert not ended[0], f"{what}: the run ended\n{self.logs()}"

    def counters(self):
        found = []
        for stage in self.stages:
            metrics = prometheus.scrape(re.search(r"metrics on http://([^/]+)/metrics", stage.log())[1])
            found.append({**{key: metrics.get(f"ballast_{name}_total") for key, name in COUNTERS.items()},
                          "steps": metrics.get("ballast_steps_total")})
        return found

    def end(self):
        for service in self.services():
            with contextlib.suppress(ProcessLookupError):
                service.process.send_signal(signal.SIGCONT)
            if service.process.poll() is None:
                service.kill(signal.SIGKILL)
        if self.control.poll() is None:
            self.control.kill()
            self.control.wait()
        self.errors.close()

    # Disturbances: each says what it was.

    def stand_still(self, services, seconds):
        for service in services:
            service.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        for service in services:
            service.process.send_signal(signal.SIGCONT)

    def some_stand_still(self):
        services = self.choice.sample(self.services(), self.choice.randint(1, min(4, len(self.services()))))
        seconds = self.choice.uniform(0.02, LONGEST_S)
        self.stand_still(services, seconds)
        return f"{len(services)} processes stood still for {seconds:.2f} s"

    def a_store_dies(self):
        i = self.choice.randrange(len(self.stores))
        self.stores[i].kill(signal.SIGKILL)
        time.sleep(self.choice.choice([0, self.choice.uniform(0, 1)]))
        self.stores[i] = self.start_store(i)
        return f"store {i} was killed"

    def a_store_is_drained(self):
        i = self.choice.randrange(len(self.stores))
        self.stores[i].kill(signal.SIGTERM)
        self.stores[i] = self.start_store(i)
        return f"store {i} was drained"

    def the_driver_dies(self):
        self.driver.kill(signal.SIGKILL)
        self.driver = self.start_driver()
        return "the driver was killed"

    def the_driver_dies_beside_a_still_stage(self):
        i = self.choice.randrange(len(self.stages))
        self.stages[i].process.send_signal(signal.SIGSTOP)
        time.sleep(self.choice.uniform(0, 0.3))
        self.driver.kill(signal.SIGKILL)
        self.driver = self.start_driver()
        time.sleep(self.choice.uniform(0, 1))
        self.stages[i].process.send_signal(signal.SIGCONT)
        return f"the driver was killed while stage {i} stood still"

    def driver_and_store_die(self):
        i = self.choice.randrange(len(self.stores))
        self.stores[i].process.send_signal(signal.SIGKILL)
        self.driver.kill(signal.SIGKILL)
        self.stores[i].process.wait(60)
        self.stores[i], self.driver = self.start_store(i), self.start_driver()
        return f"driver and store {i} were killed"


def flip(world, over, answers, failures, policies, refusals):
    """Sets one policy after the other until `over`."""
    i = 0
    while not over.is_set():
        done = subprocess.run([CTL, "policy", "set", *policies[i % len(policies)], "-o", "json", "--endpoint",
                               world.driver_at, "--timeout", "60"], env=environment(world.folder), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
        i += 1
        if done.returncode == 0:
            answers.append(json.loads(done.stdout))
        elif done.returncode not in refusals:
            failures.append(f"exit code {done.returncode}: {done.stderr}")
            return
        over.wait(world.choice.uniform(0, 0.3))


def check_events(events, usual):
    for event in events:
        for stage, store in zip(event["stages"], event["stores"]):
            assert stage["recomputed"] == stage["lost"] + stage["dropped"], event
            assert stage["loaded"] == stage["evicted"] - stage["lost"], event
            assert stage["own_slots"] > 0 and stage["busy_seconds"] > 0, event
        moved = [stage["evicted"] + stage["dropped"] for stage in event["stages"]]
        assert not usual or event["policy"] != "bpipe" or moved[0] > 0, f"the first stage parks nothing under bpipe: {event}"
        assert event["policy"] != "none" or sum(moved) == 0, event


def disturb(folder, choice, rounds, shape=None, policies=POLICIES):
    usual, shape = shape is None, shape or USUAL
    world = World(folder, choice, shape)
    refusals = {4, 5, 8}  # a store is away, or has not the room yet; or nobody is there
    if shape["pipeline"].get("recompute") == "full" or not shape["balance"].get("host"):
        refusals.add(2)  # blocks of which nothing is kept cannot move, nor go to a host that lends nothing
    over, answers, failures = threading.Event(), [], []
    flipper = threading.Thread(target=flip, args=(world, over, answers, failures, policies, refusals))
    disturbances = [world.some_stand_still, world.some_stand_still, world.a_store_dies, world.a_store_is_drained,
                    world.the_driver_dies, world.the_driver_dies_beside_a_still_stage, world.driver_and_store_die]
    try:
        world.go_on("at the start")
        flipper.start()
        for number in range(rounds):
            time.sleep(choice.uniform(0, 0.5))
            what = choice.choice(disturbances)()
            print(f"{number + 1}: {what}", flush=True)
            world.go_on(f"{number + 1}: {what}")
            assert not failures, failures[0]
        over.set()
        flipper.join(300)
        world.go_on("at the end")
        world.driver.process.send_signal(signal.SIGTERM)
        assert world.driver.process.wait(120) == 130, world.logs()
        assert world.control.wait(120) == 130, world.logs()
        counted = world.counters()
    finally:
        over.set()
        world.end()
        if flipper.is_alive():
            flipper.join(300)
    events = steps_so_far(world.report)
    check_events(events, usual)
    for rank, moved in enumerate(counted):
        said = {key: sum(event["stages"][rank][key] for event in events) for key in COUNTERS}
        assert moved == {**said, "steps": len(events)}, f"stage {rank}: counted {moved}, reported {said}"
    kept, local = os.path.join(folder, "kept"), os.path.join(folder, "local")
    expected = losses(run_job(folder, world.job, "--local", "--steps", str(len(events)), "--set", "balance.policy=none",
                              "--set", "memory.slots=null", "--set", "balance.cap=null",
                              "--set", f"checkpoint.folder={local}", "--set", "checkpoint.every=0",
                              "--set", "services.stages=[]", "--set", "services.stores=[]", "--set", "services.driver=null",
                              "--set", "services.host_stores=[]", "--set", "balance.host=null",
                              timeout=600 + len(events))[0])
    assert losses(events) == expected, "other losses"
    assert state_of(kept, len(events)) == state_of(local, len(events)), "other weights, or another state of the optimizer"
    left = [name for name in os.listdir(kept) if not re.fullmatch(r"step-\d{6}", name)]
    assert not left, f"half written: {left}"
    print(f"ok {rounds} disturbances and {len(answers)} changes of policy in {len(events)} steps: {shape}", flush=True)


def draw(choice):
    """The shape of a job: any that runs. Where stages have too few slots they are as few as can be."""
    slices = choice.choice([1, 1, 2])
    fewest = SLICED if slices > 1 else SLOTS
    schedule, stages = choice.choice(sorted(fewest)), choice.randint(1, 4)
    if schedule in BOTH:  # as many stages for each direction
        stages = 2 if stages < 3 else 4
    recompute = choice.choice(["none", "attention", "full"])
    policy = choice.choice(["none", "bpipe", "cap", "drop", "offload", "auto"])
    if recompute == "full" and policy in ("bpipe", "cap", "drop", "offload"):
        policy = "none"
    slots = None if policy == "none" or stages < 4 else fewest[schedule][{"drop": 1, "offload": 2}.get(policy, 0)]
    host = "64MiB" if policy == "offload" else choice.choice([None, "64MiB"])
    balance = {"policy": policy, "host": host, "data_path": choice.choice(["auto", "shm", "tcp"])}
    if policy in ("bpipe", "cap"):
        balance["cap"] = slots or 2 * 8 * slices  # no less than any schedule needs
    tensor, data = choice.choice([1, 1, 2]), choice.choice([1, 1, 2])
    return {"stages": stages, "tensor": tensor, "data": data, "layers": 8, "micro_batches": 8 * data,
            "dtype": choice.choice(["fp32", "bf16"]), "slots": slots,
            "pipeline": {"schedule": schedule, "recompute": recompute, "slices": slices}, "balance": balance}


def random_jobs(folder, choice, count):
    """Several at a time, each in a folder of its own; all of them, whatever becomes of one."""
    numbers = [choice.randrange(1 << 32) for _ in range(count)]
    policies = [["none"], ["bpipe"], ["cap", "3"], ["drop", "1"], ["offload", "2"], ["auto"]]

    def one(number):
        drawn, own = random.Random(number), os.path.join(folder, str(number))
        os.mkdir(own, 0o700)
        shape = draw(drawn)
        try:
            disturb(own, drawn, drawn.randint(1, 3), shape, policies)
        except Exception as wrong:  # of one job; told with its shape
            print(f"WRONG job {number}, {shape}: {wrong}", flush=True)
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        right = list(pool.map(one, numbers))
    assert all(right), f"{right.count(False)} of {count} random jobs went wrong"
    print(f"ok {count} random jobs with the bits of undisturbed runs")


def step_of(folder, driver):
    done = subprocess.run([CTL, "status", "--endpoint", driver.address, "-o", "json", "--timeout", "20"], text=True,
                          env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    return json.loads(done.stdout)["step"] if done.returncode == 0 else 0


def killed_while_configured(folder, choice, rounds):
    services = [Service(folder, "stage-service", "--listen", "127.0.0.1:0") for _ in range(2)]
    job = write_job(folder, "configured.yaml", train={"steps": 1000000},
                    checkpoint={"folder": os.path.join(folder, "kept"), "every": 50},
                    services={"stages": [service.address for service in services]})
    codes = []
    try:
        for number in range(rounds):
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0", "--resume")
            time.sleep(choice.uniform(0, 0.15))
            victim = choice.randrange(2)
            services[victim].kill(signal.SIGKILL)
            services[victim] = Service(folder, "stage-service", "--listen", services[victim].address)
            wait_until(lambda: driver.process.poll() is not None or step_of(folder, driver) > 0, 180,
                       f"round {number + 1}: neither an end nor a step: {driver.log()[-3000:]}")
            if driver.process.poll() is None:  # it never saw the one that was killed
                driver.process.send_signal(signal.SIGTERM)
            codes.append(driver.process.wait(180))
            assert codes[-1] in (130, 5), f"round {number + 1}: exit code {codes[-1]}\n{driver.log()[-3000:]}"
            assert codes[-1] == 130 or f"stage {victim}" in driver.log(), driver.log()[-3000:]
    finally:
        for service in services:
            service.kill(signal.SIGKILL)
    print(f"ok {rounds} stages killed around Configure: exit codes {codes}")


def main():
    choice = seed()
    rounds = int(os.environ.get("BALLAST_TEST_ROUNDS", "30"))
    with scratch() as folder:
        disturb(folder, choice, rounds)
    with scratch() as folder:
        random_jobs(folder, choice, int(os.environ.get("BALLAST_TEST_JOBS", "20")))
    with scratch() as folder:
        killed_while_configured(folder, choice, rounds)


if __name__ == "__main__":
    main()

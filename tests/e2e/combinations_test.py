# SPDX-License-Identifier: Apache-2.0
"""Every combination of policy, data path, path required of blocks, schedule, recomputation, slices of sequences, memory of the
host, tokens with a loss, compute threads and place (processes of the run, or services that already run) on a tiny job: it runs
with the bits of 1f1b on one stage of as many threads (of two parts, with two copies of the model), or is refused with 2 before
anything starts, where it is known to be impossible and nowhere else.

A sample in which every two values that can meet do meet; BALLAST_TEST_LONG=1 takes the whole product of all but threads and losses.
BALLAST_TEST_SEED as everywhere."""
import collections
import concurrent.futures
import itertools
import os
import queue
import subprocess
import sys

from ballast import Service, losses, masked_tokens, on, run_job, scratch, seed, small_inline, stages_of, write_job

STAGES, LAYERS, MICRO_BATCHES = 4, 8, 8
WORKERS = 4  # runs at a time: they wait more than they compute
# The fewest slots of a device that parking at devices, dropping, and parking at the host can do with; others say the least
# that works, too.
SLOTS = {"gpipe": (8, 1, 2), "1f1b": (3, 1, 2), "eager-1f1b": (5, 1, 2), "interleaved": (9, 1, 2),
         "grouped-interleaved": (7, 7, 7), "zb-h1": (3, 4, 4), "zb-h2": (4, 4, 4), "zb-v": (7, 8, 8), "v-min": (4, 2, 3),
         "v-half": (6, 4, 5), "v-zb": (8, 8, 8), "1f1b-v": (6, 1, 2), "adaptive": (7, 8, 8), "dualpipe-v": (9, 4, 4),
         "chimera": (4, 1, 2), "dualpipe": (5, 3, 3)}
# The same of sequences in two slices, each a block; more where the search for an order of the fewest takes most of a second.
SLICED = {"gpipe": (16, 1, 2), "1f1b": (4, 1, 2), "eager-1f1b": (6, 1, 2), "interleaved": (10, 1, 2), "seq1f1b": (4, 1, 2),
          "grouped-interleaved": (8, 7, 7), "zb-h1": (5, 5, 5), "zb-h2": (5, 5, 5), "zb-v": (10, 10, 10), "v-min": (6, 2, 2),
          "v-half": (7, 4, 4), "v-zb": (10, 8, 8), "1f1b-v": (8, 1, 2), "adaptive": (10, 10, 10), "dualpipe-v": (10, 4, 4)}
# Schedules with split backwards that park at the host have an order within more slots than the cap, or one made for the
# host: blocks keep their slots from I to W. (memory.slots, balance.cap)
SPLIT = {"zb-h1": (3, 3), "zb-v": (6, 4), "adaptive": (4, 4)}

Combination = collections.namedtuple("Combination", "policy path require schedule recompute slices host loss threads place")
AXES = Combination(
    policy=("none", "bpipe", "cap", "drop", "offload", "auto"),
    path=("auto", "shm", "tcp", "cuda-ipc", "nccl"),
    require=("any", "shm", "tcp", "cuda-ipc", "nccl"),
    schedule=("gpipe", "1f1b", "eager-1f1b", "interleaved", "grouped-interleaved", "seq1f1b", "zb-h1", "zb-h2", "zb-v",
              "v-min", "v-half", "v-zb", "1f1b-v", "adaptive", "chimera", "dualpipe", "dualpipe-v"),
    recompute=("none", "attention", "full"),
    slices=("1", "2"),
    host=("no host", "16MiB"),
    loss=("all", "masked"),
    threads=("1", "2"),
    place=("local", "services"))
OF_GPUS = ("cuda-ipc", "nccl")
BOTH = ("chimera", "dualpipe")  # two copies of the model: the bits of two parts
OFFLOADING = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "1f1b-v")
OFFLOADING_WHOLE = (*OFFLOADING, *SPLIT)  # with sequences that are not in slices
PARKING = ("1f1b", "eager-1f1b", "interleaved", "grouped-interleaved", "zb-h1", "zb-v", "adaptive")  # within SLOTS
DEAR = ("grouped-interleaved", "zb-v", "adaptive")  # an order to park by takes a second to find, within SLOTS
PARKING_SLICED = ("1f1b", "eager-1f1b", "seq1f1b")  # within SLICED


def reason_to_refuse(one):
    """The key that the refusal names; None: it runs."""
    if one.path in OF_GPUS or one.require in OF_GPUS or ("auto" != one.path != one.require != "any"):
        return "balance."
    if one.policy == "offload" and one.host == "no host":
        return "balance.host"
    if one.schedule in BOTH and one.slices != "1":
        return "pipeline.slices"
    if one.recompute == "full" and one.policy in ("bpipe", "cap", "drop", "offload"):
        return "balance.policy"
    return None


def parks(one):
    parking = PARKING_SLICED if one.slices == "2" else PARKING
    offloading = OFFLOADING if one.slices == "2" else OFFLOADING_WHOLE
    at = {"bpipe": parking, "cap": parking, "offload": offloading}.get(one.policy, ())
    return one.schedule in at and reason_to_refuse(one) is None


def write(folder, tokens, one, name="job.yaml"):
    balance, memory = {"policy": one.policy, "data_path": one.path, "require": one.require,
                       "host": None if one.host == "no host" else one.host}, {}
    parking, dropping, offloading = (SLICED if one.slices == "2" else SLOTS).get(one.schedule, (4, 1, 2))
    if one.policy != "none":
        memory["slots"] = {"drop": dropping, "offload": offloading}.get(one.policy, parking)
    if one.policy in ("bpipe", "cap"):
        balance["cap"] = parking
    if one.policy == "offload" and one.slices == "1" and one.schedule in SPLIT:
        memory["slots"], balance["cap"] = SPLIT[one.schedule]
    return write_job(folder, name, model=small_inline(hidden=16, layers=LAYERS, seq=8, vocab=256),
                     data={"train": tokens, "order": "shuffled", "loss": one.loss},
                     train={"steps": 2, "micro_batch": 1, "micro_batches": MICRO_BATCHES},
                     pipeline={"stages": STAGES, "schedule": one.schedule, "recompute": one.recompute,
                               "slices": int(one.slices), "threads": int(one.threads)},
                     memory=memory, balance=balance)


class Worker:
    """Runs one combination after the other; its services stay, as a cluster's do."""

    def __init__(self, folder, tokens):
        self.folder, self.tokens, self.runs = folder, tokens, 0
        self.stages = [Service(folder, "stage-service", "--listen", "127.0.0.1:0") for _ in range(STAGES)]
        self.stores = [Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--data-tcp", "127.0.0.1:0",
                               "--capacity", "16 MiB") for _ in range(STAGES + 1)]
        self.host = self.stores.pop()

    def sizes(self):
        return [os.path.getsize(service.log_path) for service in self.stages + self.stores + [self.host]]

    def run(self, one, expected):
        """What is wrong with that combination (None: nothing), and how many blocks it parked."""
        self.runs += 1
        folder = os.path.join(self.folder, f"run-{self.runs}")
        os.mkdir(folder, 0o700)
        place = ["--local"] if one.place == "local" else on(self.stages, self.stores)
        if one.place == "services" and one.host != "no host":
            place += ["--set", f"services.host_stores=['{self.host.address}']"]
        said_before, reason = self.sizes(), reason_to_refuse(one)
        try:
            report, done = run_job(folder, write(folder, self.tokens, one), *place, expect=None, timeout=240)
        except subprocess.TimeoutExpired as late:
            return f"no end in {late.timeout} s: {(late.stderr or b'')[-2000:]}", 0
        if reason is None:
            if done.returncode != 0:
                return f"exit code {done.returncode}: {done.stderr[-2000:]}", 0
            if losses(report) != expected:
                return f"other losses: {losses(report)}, expected {expected}", 0
            lost, loaded = (sum(stage[key] for stage in stages_of(report)) for key in ("lost", "loaded"))
            return (f"{loaded} blocks parked, {lost} lost" if lost or (parks(one) and not loaded) else None), loaded
        if done.returncode != 2:
            return f"exit code {done.returncode}, should be refused: {done.stderr[-2000:]}", 0
        if reason not in done.stderr:
            return f"the refusal does not name {reason}: {done.stderr[-2000:]}", 0
        started = os.path.exists(os.path.join(folder, "ballast")) or self.sizes() != said_before or report
        return ("something had started" if started else None), 0

    def end(self):
        for service in self.stages + self.stores + [self.host]:
            service.end()


def pairs(one):
    return itertools.combinations(enumerate(one), 2)


def covering(choice, combinations, chosen=()):
    """`chosen` and some of `combinations`, so that every pair of values that any of these holds is in one of them. On
    services where either would do: a run that starts its own costs twice as much."""
    combinations, chosen = list(combinations), list(chosen)
    missing = {pair for one in combinations for pair in pairs(one)}.difference(*map(pairs, chosen))
    while missing:
        (i, a), (j, b) = choice.choice(sorted(missing))  # still to come; as many others as can be with it
        holding = [one for one in combinations if one[i] == a and one[j] == b]
        chosen.append(max(choice.sample(holding, min(len(holding), 200)),
                          key=lambda one: (sum(pair in missing for pair in pairs(one)), one.place == "services")))
        missing.difference_update(pairs(chosen[-1]))
    return chosen


def check(folder, chosen):
    expected, tokens = {}, masked_tokens(folder)
    for slices, loss, threads, parts in itertools.product(AXES.slices, AXES.loss, AXES.threads, (1, 2)):
        plain = write(folder, tokens, Combination("none", "auto", "any", "1f1b", "none", slices, "no host", loss, threads, "local"))
        expected[slices, loss, threads, parts] = losses(run_job(folder, plain, "--local", "--set", "pipeline.stages=1", "--set",
                                                 f"parallel.data_parts={parts}")[0])
    workers, found, parked, ran, refused = queue.Queue(), [], 0, 0, 0
    made = []

    def work(one):
        worker = workers.get()
        try:
            return (one, *worker.run(one, expected[one.slices, one.loss, one.threads, 2 if one.schedule in BOTH else 1]))
        finally:
            workers.put(worker)

    try:
        for i in range(WORKERS):
            own = os.path.join(folder, f"worker-{i}")
            os.mkdir(own, 0o700)
            made.append(Worker(own, tokens))
            workers.put(made[-1])
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            for one, wrong, blocks in pool.map(work, chosen):
                refused, ran = refused + (reason_to_refuse(one) is not None), ran + (reason_to_refuse(one) is None)
                parked += blocks
                if wrong:
                    found.append(one)
                    print(f"WRONG {' '.join(one)}: {wrong}", flush=True)
    finally:
        for worker in made:
            worker.end()
    print(f"{ran} ran with the bits of one stage, {refused} were refused, {parked} blocks were parked")
    assert not found, f"{len(found)} combinations are wrong"


def main():
    choice = seed()
    os.environ["GOMP_SPINCOUNT"] = "1000"  # the services share processors
    product = [Combination(*values) for values in itertools.product(*AXES)]
    running = [one for one in product if reason_to_refuse(one) is None]
    refused = [one for one in product if reason_to_refuse(one) is not None]
    if os.environ.get("BALLAST_TEST_LONG") == "1":
        choice.shuffle(product)
        chosen = list({one._replace(threads="", loss=""): one for one in product}.values())
    else:
        dear = [one for one in running if one.schedule in DEAR and parks(one)]
        others = sorted(set(running).difference(dear))
        parked = [choice.choice([one for one in dear if (one.schedule, one.policy) == pair])
                  for pair in sorted({(one.schedule, one.policy) for one in dear})]
        parked = covering(choice, filter(parks, others), parked)
        chosen = covering(choice, others, parked) + covering(choice, refused)
    print(f"{len(chosen)} of {len(product)} combinations", flush=True)
    with scratch() as folder:
        check(folder, chosen)


if __name__ == "__main__":
    sys.exit(main())

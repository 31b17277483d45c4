# SPDX-License-Identifier: Apache-2.0
"""Every policy with every schedule, recomputation, data path for boundaries and for blocks, in local runs and on services
that already run: each job trains with the bits of 1f1b on one stage, or is refused with 2 before anything starts.

A sample in which every two values of different keys meet, in random order of a printed seed (BALLAST_TEST_SEED);
BALLAST_TEST_LONG=1 runs all of them."""
import collections
import itertools
import os
import queue
import threading

from ballast import Service, losses, on, run_job, scratch, seed, small_inline, write_job

STAGES = 4
KEYS = {
    "policy": ("none", "bpipe", "cap", "drop", "auto"),
    "path": ("auto", "shm", "tcp"),
    "require": ("any", "shm", "tcp"),  # of blocks
    "schedule": ("gpipe", "1f1b", "eager-1f1b", "interleaved", "grouped-interleaved", "zb-h1", "zb-h2", "zb-v", "v-min",
                 "v-half", "v-zb", "1f1b-v", "adaptive", "dualpipe-v"),
    "recompute": ("none", "attention", "full"),
    "place": ("local", "services"),
}
CHUNKS = {name: 2 for name in ("interleaved", "grouped-interleaved", "zb-v", "v-min", "v-half", "v-zb", "1f1b-v",
                               "dualpipe-v")}
COMMON = {
    "model": small_inline(hidden=32, layers=2 * STAGES, seq=16),
    "data": {"train": __file__, "format": "text"},
    "train": {"steps": 2, "micro_batch": 1, "micro_batches": 2 * STAGES},
}
Case = collections.namedtuple("Case", KEYS)


def pairs_of(case):
    return set(itertools.combinations(enumerate(case), 2))


def sample(choice):
    """Cases until every pair of values was seen: each the best of some that were drawn around a pair that is missing."""
    values = list(KEYS.values())
    missing = {pair for (i, a), (j, b) in itertools.combinations(enumerate(values), 2)
               for pair in (((i, x), (j, y)) for x in a for y in b)}
    cases = []
    while missing:
        fixed = dict(choice.choice(sorted(missing)))
        drawn = [Case(*(fixed.get(i, choice.choice(value)) for i, value in enumerate(values))) for _ in range(20)]
        best = max(drawn, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases


class Place:
    """Services that one worker runs its cases on, one after the other."""

    def __init__(self, folder):
        os.makedirs(folder, mode=0o700)
        self.folder = folder
        self.stages = [Service(folder, "stage-service", "--listen", f"unix:{folder}/stage-{i}") for i in range(STAGES)]
        self.stores = [Service(folder, "activation-store", "--listen", f"unix:{folder}/store-{i}", "--capacity", "64 MiB",
                               "--data-tcp", "127.0.0.1:0", "--drain", "0") for i in range(STAGES)]

    def end(self):
        for service in self.stages + self.stores:
            service.end()


def write(folder, name, case):
    chunks = CHUNKS.get(case.schedule, 1)
    balance = {"policy": case.policy, "data_path": case.path, "require": case.require}
    if case.policy in ("cap", "drop"):
        balance["cap"] = 3 * chunks
    return write_job(folder, name, **COMMON, balance=balance,
                     pipeline={"stages": STAGES, "schedule": case.schedule, "threads": 1, "recompute": case.recompute,
                               "chunks": chunks if chunks > 1 else None})


def run(place, number, case, expected):
    """What happened: "trained", "refused", or what must not be."""
    job = write(place.folder, f"job-{number}.yaml", case)
    where = ["--local"] if case.place == "local" else on(place.stages, place.stores)
    report, done = run_job(place.folder, job, *where, expect=None, timeout=300)
    if done.returncode == 2:
        return "refused" if not report and done.stderr.strip() else f"refused after it had begun: {done.stderr[-600:]}"
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr[-1200:]}"
    return "trained" if losses(report) == expected else "other bits than 1f1b on one stage"


def work(place, cases, expected, outcomes):
    while True:
        try:
            number, case = cases.get_nowait()
        except queue.Empty:
            return
        try:
            outcome = run(place, number, case, expected)
        except Exception as cause:  # noqa: BLE001: told below, with its case
            outcome = repr(cause)
        outcomes.append((case, outcome))
        if outcome not in ("trained", "refused"):
            print(f"{case}: {outcome}", flush=True)


def main():
    choice = seed()
    whole = os.environ.get("BALLAST_TEST_LONG") is not None
    chosen = [Case(*values) for values in itertools.product(*KEYS.values())] if whole else sample(choice)
    choice.shuffle(chosen)
    with scratch() as folder:
        one = write_job(folder, "one.yaml", **COMMON, pipeline={"stages": 1, "schedule": "1f1b", "threads": 1})
        report, _ = run_job(folder, one, "--local")
        expected = losses(report)
        cases, outcomes = queue.Queue(), []
        for numbered in enumerate(chosen):
            cases.put(numbered)
        places = [Place(os.path.join(folder, str(i))) for i in range(2)]
        workers = [threading.Thread(target=work, args=(place, cases, expected, outcomes)) for place in places]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for place in places:
            place.end()
    counts = collections.Counter(outcome if outcome in ("trained", "refused") else "wrong" for _, outcome in outcomes)
    print(f"{len(chosen)} cases: {dict(counts)}")
    refused = sorted({(case.policy, case.schedule, case.recompute, case.require, case.path) for case, outcome in outcomes
                      if outcome == "refused"})
    for case in refused[:40]:
        print("refused:", *case)
    assert len(outcomes) == len(chosen) and counts["wrong"] == 0, f"{counts['wrong']} cases went wrong"
    assert counts["trained"] > len(chosen) / 4, "many of them train"


if __name__ == "__main__":
    main()

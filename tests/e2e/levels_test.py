# SPDX-License-Identifier: Apache-2.0
"""Balanced runs are level and change nothing: with 4, 6 and 8 stages and 16 micro-batches, in both modes, own and lent
slots of every device stay within ceil((p + 2) / 2) at every step, the losses are those of unlimited memory bit by bit,
and evictions are as many as the published bound says (mode fewest) or at most the numbers for mode overlap."""
from ballast import GOLDEN, losses, run_job, scratch, small_inline, write_job

FEWEST = {4: [5], 8: [6, 4, 3]}  # reference: derived from the bound of BPipe (ICML 2023); none is known for 6
OVERLAP = {4: [8], 6: [8, 5], 8: [7, 6, 4]}


def padded(numbers, count):
    return numbers + [0] * (count - len(numbers))


def check(report, p, mode):
    cap = (p + 3) // 2
    for step in (event for event in report if event["event"] == "step"):
        stages, stores = step["stages"], step["stores"]
        assert [store["device"] for store in stores] == list(range(p)) == [store["store"] for store in stores], stores
        assert all(store["pid"] > 0 for store in stores) and len({store["pid"] for store in stores}) == p, stores
        for stage, store in zip(stages, stores):
            assert stage["peak_slots"] <= stage["own_slots"], stage
            assert stage["own_slots"] + store["lent_slots"] <= cap, (p, mode, stage, store)
            assert store["peak_leased"] <= store["lent_slots"], store
            assert stage["loaded"] == stage["evicted"], stage
            assert stage["lost"] == stage["dropped"] == stage["recomputed"] == 0, stage
        found = [stage["evicted"] for stage in stages]
        if mode == "fewest" and p in FEWEST:
            assert found == padded(FEWEST[p], p), (p, found)
        assert all(a <= b for a, b in zip(found, padded(OVERLAP[p], p))) and sum(found) > 0, (p, mode, found)
        assert sum(store["peak_leased"] for store in stores) > 0


def main():
    for p in (4, 6, 8):
        with scratch() as folder:
            job = write_job(folder, model=small_inline(hidden=32, layers=p, seq=16),
                            data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                            train={"steps": 3, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": p})
            expected = losses(run_job(folder, job, "--local")[0])
            for mode in ("overlap", "fewest"):
                report, _ = run_job(folder, job, "--local", "--set", "balance.policy=bpipe",
                                    "--set", f"balance.mode={mode}", "--set", f"memory.slots={(p + 3) // 2}")
                assert losses(report) == expected, f"{p} stages, {mode}: other losses"
                check(report, p, mode)
                print(f"ok {p} stages, {mode}")


if __name__ == "__main__":
    main()

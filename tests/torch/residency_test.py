#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which blocks a rank parks (ballast_torch/residency.py, which needs no torch): never more than the cap here, loads before
uses, BPipe's counts for 1F1B, and for random orders about as few parked as the best choice there is."""
import importlib.util
import itertools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import ROOT  # noqa: E402
from ballast import seed  # noqa: E402

spec = importlib.util.spec_from_file_location("residency", os.path.join(ROOT, "python", "ballast_torch", "residency.py"))
residency = importlib.util.module_from_spec(spec)
sys.modules["residency"] = residency
spec.loader.exec_module(residency)
plan = residency.plan_residency


def one_f_one_b(rank, stages, count):
    warm_up = min(count, stages - rank)
    order = [("F", rank, i) for i in range(warm_up)]
    for i in range(count):
        order.append(("B", rank, i))
        if warm_up + i < count:
            order.append(("F", rank, warm_up + i))
    return order


def replay(order, made):
    """What would be here at each action if the plan were followed, and whether every use finds its block."""
    here, most = set(), 0
    last = {(stage, i): at for at, (_, stage, i) in enumerate(order)}
    for at, (kind, stage, i) in enumerate(order):
        here |= set(made.loads.get(at, ()))
        block = stage, i
        if kind == "F":
            if block not in made.parked:
                here.add(block)
        else:
            assert block in here, f"{block} is used at {at} and is not there"
        most = max(most, len(here))
        if kind != "F" and (last[block] == at or made.drops.get(at) == block):
            here.discard(block)
    assert not here
    return most


def test_one_f_one_b():
    for stages in (2, 4, 8):
        for rank in range(stages):
            order = one_f_one_b(rank, stages, 3 * stages)
            whole = plan(order, 10**6)
            assert not whole.parked and whole.without == stages - rank == replay(order, whole), whole
            level = stages // 2 + 1  # BPipe: ceil((p + 2) / 2)
            leveled = plan(order, level)
            assert leveled.peak == replay(order, leveled) <= level and bool(leveled.parked) == (stages - rank > level), leveled
            assert plan(order, 2, prefetch=1).peak <= 2 and plan(order, 1, prefetch=0).peak == 1
    print("ok 1f1b: BPipe's level, and less")


def random_order(random):
    """Of a rank with one to three stages, with backward passes in one piece or in two."""
    blocks = [(stage, i) for stage in range(random.randint(1, 3)) for i in range(random.randint(1, 5))]
    split = random.random() < 0.5
    waiting = [[("F", *block), ("B", *block)] + ([("W", *block)] if split else []) for block in blocks]
    order = []
    while waiting:
        pick = random.randrange(min(len(waiting), 4))
        order.append(waiting[pick].pop(0))
        if not waiting[pick]:
            waiting.pop(pick)
    return blocks, order


def fewest(order, blocks, cap, prefetch):
    """The smallest set of parked blocks, by trying all of them."""
    for count in range(len(blocks) + 1):
        for parked in itertools.combinations(blocks, count):
            lives = residency._lives(order)
            here = [0] * len(order)
            for block, life in lives.items():
                life.cut(prefetch)
                spans = life.windows + ([] if block in parked else [(begin, end - 1) for begin, end in life.gaps])
                for begin, last in spans:
                    for at in range(begin, last + 1):
                        here[at] += 1
            if max(here) <= cap:
                return count
    return None


def test_random_orders(random):
    cases = best = 0
    for _ in range(400):
        blocks, order = random_order(random)
        prefetch = random.randint(0, 3)
        needed = plan(order, 10**6, prefetch).needed
        for cap in range(1, len(blocks) + 1):
            made = plan(order, cap, prefetch)
            assert replay(order, made) <= max(cap, needed), (order, cap, prefetch)
            assert made.peak <= max(cap, needed) and made.needed == needed and made.parked <= set(blocks)
            if cap >= needed and len(blocks) <= 8:
                least = fewest(order, blocks, cap, prefetch)
                split = any(kind == "W" for kind, _, _ in order)
                assert len(made.parked) == least or (split and len(made.parked) <= least + 2), (order, cap, prefetch)
                cases, best = cases + 1, best + (len(made.parked) == least)
    assert cases > 500 and best > 0.95 * cases, (cases, best)
    print(f"ok random orders: {best} of {cases} park as few as can be")


def test_refusals():
    for order, cap, prefetch, words in (
            ([("B", 0, 0)], 1, 1, "before its forward pass"), ([("F", 0, 0)], 1, 1, "runs no backward pass"),
            ([("F", 0, 0), ("F", 0, 0)], 1, 1, "twice"), ([], 0, 1, "cap: 0"), ([], 1, -1, "prefetch: -1")):
        try:
            plan(order, cap, prefetch)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{order}, {cap}, {prefetch} is taken")
    print("ok what contradicts itself is refused")


def main():
    test_one_f_one_b()
    test_random_orders(seed())
    test_refusals()


if __name__ == "__main__":
    main()

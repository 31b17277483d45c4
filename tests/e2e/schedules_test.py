#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Verifies what `ballastctl schedule show` prints against an evaluator of its own: for every schedule name the printed
order is complete, can run, and has the end, bubble, peaks, evictions and loads that are printed; the bound holds."""
import json
import os
import subprocess
import sys
import tempfile

LONG = os.environ.get("BALLAST_TEST_LONG") == "1"
CTL = os.path.join(os.environ.get("BALLAST_BIN", "build/bin"), "ballastctl")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OP_TYPES = "FBIWREL"


def run(*args):
    """Standard output as JSON; (status, standard error) of a command that fails."""
    done = subprocess.run([CTL, "schedule", *args], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else (done.returncode, done.stderr)


def parse(cell):
    """ "12F3.1@4" as (virtual stage, operation type, (micro-batch, slice))."""
    at = next(i for i, letter in enumerate(cell) if letter in OP_TYPES)
    micro_batch, _, piece = cell[at + 1:].partition("@")[0].partition(".")
    return int(cell[:at]), cell[at], (int(micro_batch), int(piece or 0))


class Order:
    """The printed lists, timed by the definitions of the reference schedules (transfers take no time here)."""

    def __init__(self, lists, cost, bidirectional):
        self.lists = [[parse(cell) for cell in row] for row in lists]
        self.forward, self.input, self.weight, self.boundary = cost[:4]
        self.recompute = cost[4] if len(cost) > 4 else self.forward
        self.stage_of = {}
        for stage, row in enumerate(self.lists):
            for chunk, _, _ in row:
                assert self.stage_of.setdefault(chunk, stage) == stage, f"virtual stage {chunk} on two devices"
        count = len(self.stage_of)
        assert sorted(self.stage_of) == list(range(count))
        self.depth = count // 2 if bidirectional else count
        self.end = {}
        self.spans = [[None] * len(row) for row in self.lists]
        self.time()

    def cost_of(self, op_type):
        return {"F": self.forward, "R": self.recompute, "I": self.input, "W": self.weight,
                "B": self.input + self.weight, "E": 0, "L": 0}[op_type]

    def needs(self, chunk, op_type, unit):
        """Keys in `end` of what an operation waits for; backwards are under "I"."""
        if op_type == "F":
            return [] if chunk % self.depth == 0 else [(chunk - 1, "F", unit)]
        if op_type in "BI":
            own = [(chunk, "F", unit)]
            return own if (chunk + 1) % self.depth == 0 else own + [(chunk + 1, "I", unit)]
        return [(chunk, "I" if op_type == "W" else "F", unit)]

    def time(self):
        free, place = [0.0] * len(self.lists), [0] * len(self.lists)
        moved = True
        while moved:
            moved = False
            for stage, row in enumerate(self.lists):
                while place[stage] < len(row):
                    chunk, op_type, unit = row[place[stage]]
                    needed = [] if op_type in "EL" else self.needs(chunk, op_type, unit)
                    if any(key not in self.end for key in needed):
                        break
                    start = max([free[stage]] + [self.end[key] + (self.boundary if self.stage_of[key[0]] != stage else 0)
                                                 for key in needed])
                    free[stage] = start + self.cost_of(op_type)
                    self.spans[stage][place[stage]] = (start, free[stage])
                    if op_type in "FBIW":
                        key = (chunk, "I" if op_type in "BI" else op_type, unit)
                        assert key not in self.end, f"{key} twice"
                        self.end[key] = free[stage]
                    place[stage] += 1
                    moved = True
        assert all(place[s] == len(row) for s, row in enumerate(self.lists)), "a cycle"
        self.t_end = max(free)

    def busy(self):
        return [sum(end - start for start, end in row) for row in self.spans]

    def peaks(self, overlap):
        result = []
        for row in self.lists:
            recomputed = {(chunk, unit) for chunk, op_type, unit in row if op_type == "R"}
            held = leaving = most = 0
            for chunk, op_type, unit in row:
                held += op_type in "LR" or (op_type == "F" and (chunk, unit) not in recomputed)
                most = max(most, held)
                if op_type == "E" and overlap:
                    leaving += 1
                    continue
                held -= op_type in "WBE"
                if op_type not in "EL":
                    held, leaving = held - leaving, 0
            result.append(most)
        return result

    def check_complete(self, micro_batches, slices):
        units = [(i, k) for i in range(micro_batches) for k in range(slices)]
        for pipe in range(len(self.stage_of) // self.depth):
            mine = {unit for chunk, op_type, unit in self.end if chunk // self.depth == pipe}
            for chunk in range(pipe * self.depth, (pipe + 1) * self.depth):
                for unit in mine:
                    assert (chunk, "F", unit) in self.end and (chunk, "I", unit) in self.end, (chunk, unit)
        assert {unit for _, _, unit in self.end} == set(units)
        split = {chunk for row in self.lists for chunk, op_type, _ in row if op_type == "I"}
        for row in self.lists:
            for chunk, op_type, unit in row:
                if op_type == "I":
                    assert (chunk, "W", unit) in self.end
                assert op_type != "W" or chunk in split


def near(a, b, what):
    assert abs(a - b) <= 1e-9 * max(1, abs(b)), f"{what}: printed {a}, retimed {b}"


def check(name, stages, micro_batches, cost, *options, overlap=False):
    shown = run("show", "--schedule", name, "--stages", str(stages), "--micro-batches", str(micro_batches), "--cost",
                ",".join(map(str, cost)), *options, "-o", "json")
    what = f"{name} p={stages} m={micro_batches} {cost} {options}"
    if isinstance(shown, tuple):
        assert shown[0] == 2 and len(shown[1]) > 40, f"{what}: {shown}"
        return False
    bidirectional = name in ("chimera", "dualpipe")
    order = Order(shown["order"], cost, bidirectional)
    slices = 2 if name == "seq1f1b" else 1
    order.check_complete(micro_batches, slices)
    chunks = len(order.stage_of) // stages
    weight = 1 if bidirectional else 1 / (chunks * slices)
    near(shown["t_end"], order.t_end, f"{what}: end")
    near(shown["bubble"], 1 - max(order.busy()) / order.t_end, f"{what}: bubble")
    assert shown["lower_bound"] <= order.t_end * (1 + 1e-9), what
    for printed, peak in zip(shown["peak"], order.peaks(overlap)):
        near(printed, peak * weight, f"{what}: peak")
    for key, op_type in (("evictions", "E"), ("loads", "L")):
        assert shown[key] == [sum(v == op_type for _, v, _ in row) for row in order.lists], what
    return True


def refuse(reason, *args):
    """Exit code 2 and a message that says why."""
    shown = run(*args)
    assert isinstance(shown, tuple) and shown[0] == 2 and reason in shown[1], f"{args}: \"{reason}\" is not in {shown}"


def check_bad_input():
    show = ["show", "--stages", "4", "--micro-batches", "8", "--schedule"]
    refuse("B must be a number from 0 upwards", *show, "1f1b", "--cost", "1,-2,3,0")
    refuse("W must be a number", *show, "1f1b", "--cost", "1,2,three,0")
    refuse("COMM must be a number", *show, "1f1b", "--cost", "1,2,3,nan")
    refuse("--chunk-cost: \"4=1,1,1\": there is no such virtual stage, they go from 0 to 3", *show, "1f1b", "--chunk-cost",
           "4=1,1,1")
    refuse("W must be a number", *show, "1f1b", "--chunk-cost", "2=1,1,x")
    for name in ("zb-h1", "zb-h2", "zb-v", "adaptive"):
        refuse("below 1, the smallest that works", *show, name, "--memory", "0.5")
    for name, least in (("1f1b", "4"), ("gpipe", "8"), ("interleaved", "5.5"), ("v-min", "2"), ("seq1f1b", "2.5")):
        refuse(f"the smallest limit that works is {least}", *show, name, "--memory", "0.5")
        kept = run(*show, name, "--memory", least, "-o", "json")
        assert max(kept["peak"]) == float(least), (name, kept)
    refuse("add --recompute", *show, "adaptive", "--slots", "2")
    refuse("add --balance", *show, "1f1b", "--cap", "3")
    refuse("add --balance", *show, "1f1b", "--path-cost", "1")
    refuse("same order for balancing as without", *show, "1f1b", "--pooled")
    refuse("give the limit that is pooled", *show, "zb-h1", "--pooled")
    refuse("belongs to grouped-interleaved and seq1f1b, not to interleaved", *show, "interleaved", "--group", "2")
    refuse("no such schedule; did you mean '1f1b'?", *show, "1f2b")
    for name in ("2f2b", "nix"):  # near none
        refuse("no such schedule; ballastctl schedule list names all", *show, name)
    refuse("add --balance", *show, "1f1b", "--mode", "fewest")
    refuse("which --balance drop does not do", *show, "1f1b", "--mode", "fewest", "--balance", "drop", "--cap", "3")
    refuse("\"0=2,2,2\": the costs of virtual stage 0 are given twice", *show, "1f1b", "--chunk-cost", "0=1,1,1",
           "--chunk-cost", "0=2,2,2")
    refuse("--slow-path: \"1-0=3\": the path between stages 1 and 0 is given twice", *show, "1f1b", "--balance", "cap",
           "--cap", "3", "--path-cost", "1", "--slow-path", "0-1=2", "--slow-path", "1-0=3")
    for limits, reason in (("4,x,3,3", "that of stage 1 must be a number above 0"), ("4,4,3,-1", "that of stage 3"),
                           ("4,4", "has 2 limits; give one for all or one for each of the 4 stages"),
                           ("2,2,2,0.25", "stage 3"), ("nan", "must be a number above 0")):
        refuse(reason, *show, "adaptive", "--memory", limits)
    refuse("keeps 4 device-micro-batches at once on stage 0, whose limit is 3", *show, "1f1b", "--memory", "3,3,2,1")
    assert run(*show, "1f1b", "--memory", "4,3,2,1", "-o", "json")["peak"] == [4, 3, 2, 1]
    refuse("from R on; the smallest limit that works is 1", *show, "zb-h1", "--recompute", "--slots", "0.5")
    refuse("has 1 chunk a stage, not 3", *show, "1f1b", "--chunks", "3")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bad.csv")
        for text, reason in (
                ("0F0,0B0\n1F0\n", "row 2, column 1: 1F0: virtual stage 1, micro-batch 0: its backward is missing"),
                ("0F0,0B0\n\n1F0,1B0\n", "row 2: no operation"),
                ("0F0,0E0@9,0L0@9,0B0\n1F0,1B0\n", "row 1, column 2: 0E0@9: there is no store 9"),
                ("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", 'row 1, column 3, cell "0B0": its 0RECV_B0 is missing'),
                ("0F0,0B0,0B0\n1F0,1B0\n", "row 1, column 3: 0B0: a second backward"),
                ("0F0,0B0\n1B0,1F0\n", "row 2, column 1: 1B0: a backward before its forward"),
                ("0F0,0B0\n1F0,0F1,1B0\n", 'row 2, column 2, cell "0F1": virtual stage 0 is already on row 1'),
                ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "a cycle: "),
                ("0F0,0B0\n1F0,1X0\n", 'row 2, column 2, cell "1X0"'),
                ("0F0,0SEND_F0,0B0\n1F0,1B0\n", 'row 1, column 2, cell "0SEND_F0": nobody receives')):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            refuse(reason, "check", path)
            refuse(reason, "show", "--schedule", path)
        with open(path, "w", encoding="ascii") as file:
            file.write("0F0,0F1\n1F0,1F1\n")
        done = subprocess.run([CTL, "schedule", "check", path, "-o", "json"], capture_output=True, text=True, check=True)
        checked = json.loads(done.stdout)
        assert checked["forward_only"] and checked["losses"] == "no backward" and "forward-only" in done.stderr, done
        done = subprocess.run([CTL, "schedule", "show", "--schedule", path], capture_output=True, text=True, check=True)
        assert "2 micro-batches, forward-only; end 3," in done.stdout, done
        check_files(folder)


def check_files(folder):
    """Limits hold for orders that files give, which nothing is searched for."""
    path, block = os.path.join(folder, "1f1b.csv"), os.path.join(ROOT, "examples", "building-block.yaml")
    subprocess.run([CTL, "schedule", "export", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--to", path],
                   check=True)
    assert run("show", "--schedule", path, "--memory", "4", "-o", "json")["peak"] == [4, 3, 2, 1]
    assert run("show", "--schedule", path, "--memory", "4,3,2,1", "-o", "json")["peak"] == [4, 3, 2, 1]
    refuse("the smallest limit that works is 4", "show", "--schedule", path, "--memory", "3")
    refuse("has 3 limits; give one for all or one for each of the 4 stages", "show", "--schedule", path, "--memory", "4,3,2")
    refuse("--chunks 2: ", "show", "--schedule", path, "--chunks", "2")
    refuse("every --schedule is a file", "frontier", "--stages", "4", "--micro-batches", "8", "--schedule", path, "--effort",
           "0.5")
    kept = max(run("show", "--block", block, "--micro-batches", "6", "-o", "json")["peak"])
    refuse(f"the smallest limit that works is {kept:g}", "show", "--block", block, "--micro-batches", "6", "--memory", "0.5")
    assert run("show", "--block", block, "--micro-batches", "6", "--memory", str(kept), "-o", "json")["peak"]


def check_limits_of_stages():
    """A limit for each stage is kept by each, and what is allowed on one stage alone is used."""
    show = ["show", "--stages", "3", "--micro-batches", "4", "-o", "json", "--schedule"]
    for name, limits in (("adaptive", (3, 2, 1.5)), ("zb-v", (1.5, 2, 3)), ("zb-h1", (2, 3, 1))):
        shown = run(*show, name, "--memory", ",".join(map(str, limits)))
        assert all(peak <= limit for peak, limit in zip(shown["peak"], limits)), (name, limits, shown["peak"])
    even, uneven = (run(*show, "adaptive", "--memory", k) for k in ("1.5", "1.5,1.5,3"))
    assert uneven["t_end"] <= even["t_end"] and max(uneven["peak"][:2]) <= 1.5, (uneven, even)


def check_costs_and_formats():
    """R, costs of single chunks, a placement that follows the costs, and both forms of CSV."""
    for name in ("1f1b", "zb-h1", "v-half", "grouped-interleaved", "adaptive"):
        if LONG or name not in ("grouped-interleaved", "adaptive"):  # seconds of search
            assert check(name, 3, 6, (10, 14, 6, 2, 25), "--recompute")
        assert check(name, 2, 4, (10, 14, 6, 2), "--recompute")
    slow = run("show", "--schedule", "gpipe", "--stages", "2", "--micro-batches", "1", "--chunk-cost", "1=3,4,5", "-o", "json")
    assert slow["t_end"] == 1 + 3 + 9 + 2, slow["t_end"]
    assert check("adaptive", 2, 4, (10, 14, 6, 30), "--memory", "2")
    far = run("show", "--schedule", "adaptive", "--stages", "2", "--micro-batches", "4", "--cost", "10,14,6,30", "--memory",
              "2", "-o", "json")
    whole = run("show", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "4", "--cost", "20,28,12,30", "-o", "json")
    assert far["t_end"] <= whole["t_end"] == 420, (far["t_end"], whole["t_end"])
    with tempfile.TemporaryDirectory() as folder:
        for form in ("compute_only", "compute_comms", "compute_comms_no_wait"):
            path = os.path.join(folder, form + ".csv")
            subprocess.run([CTL, "schedule", "export", "--schedule", "v-half", "--stages", "4", "--micro-batches", "8",
                            "--format", form, "--to", path], check=True)
            checked = run("check", path, "-o", "json")
            assert checked["operations"] == 3 * 2 * 4 * 8, checked
            with open(path, encoding="ascii") as file:
                text = file.read()
            assert ("SEND_F" in text, "WAIT_SEND_B" in text) == (form != "compute_only", form == "compute_comms"), form


def host_takes_what_leaves():
    """Blocks of a capped device go to the host: 1f1b ends as early as without a cap while copies hide, and the room that
    the host must have is said; without room, or beside what moves nothing, the flags are refused."""
    show = ["show", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--cap", "2"]
    free = run("show", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "-o", "json")
    parked = run(*show, "--balance", "offload", "--host", "9", "--host-cost", "0.5", "-o", "json")
    assert parked["t_end"] == free["t_end"] and max(parked["peak"]) == 2, parked["t_end"]
    assert parked["host_slots"] == 5 and sum(parked["evictions"]) == 15, parked
    slow = run(*show, "--balance", "offload", "--host", "9", "--host-cost", "2", "-o", "json")
    assert slow["t_end"] > free["t_end"], slow["t_end"]
    pairs = run(*show, "--balance", "bpipe", "--host", "9", "-o", "json")
    assert 0 < pairs["host_slots"] < 5, pairs["host_slots"]
    for words, reason in [
        (["--balance", "offload"], "--balance offload needs --host"),
        (["--balance", "drop", "--host", "3"], "--host 3: is room for blocks that leave; add --balance offload"),
        (["--balance", "cap", "--host-cost", "3"], "--host-cost 3: is what an evict or load at the host takes; add --host"),
    ]:
        refuse(reason, *show, *words)


def main():
    listed = run("list", "-o", "json")
    names = [row["name"] for row in listed]
    assert len(names) == 17, names
    shown = 0
    for name in names:
        for stages, micro_batches, cost in ((1, 3, (1, 1, 1, 0)), (2, 1, (10, 11, 9, 1)), (3, 5, (10, 14, 6, 2)),
                                            (4, 8, (1, 1, 1, 0)), (4, 6, (10, 14, 6, 2))):
            shown += check(name, stages, micro_batches, cost)
    assert shown >= 70, shown
    for mode in ("fewest", "overlap"):
        for policy in ("bpipe", "cap"):
            cap = ["--cap", "3"] if policy == "cap" else []
            assert check("1f1b", 4, 8, (1, 1, 1, 0), "--balance", policy, "--mode", mode, *cap,
                         overlap=mode == "overlap")
    check_costs_and_formats()
    check_bad_input()
    check_limits_of_stages()
    host_takes_what_leaves()
    print(f"schedules: {shown} orders of {len(names)} names retimed")


if __name__ == "__main__":
    sys.exit(main())

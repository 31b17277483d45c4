# SPDX-License-Identifier: Apache-2.0
"""In which phase of a step a rank stands still, by what the others wait for."""
import os
import re
import time

PHASES = ["gather", "layer", "reduction", "commit", "checkpoint"]
WAITS = [("gather", r"weights of chunk"), ("reduction", r"gradients of chunk"), ("operations", r"of boundary"),
         ("layer", r"of collective|collective \d+")]


def half_written(kept):
    return {name for name in os.listdir(kept) if ".partial-" in name} if os.path.isdir(kept) else set()


def phase_of(told, kept, name, since, seconds=2.5):
    """The phase in which the rank of that name stands still since then, or None. told(): the status of the run, or None;
    stages are asked once a second. kept: the folder of checkpoints."""
    writing = half_written(kept)
    while time.monotonic() < since + seconds:
        if writing and time.monotonic() > since + 1 and writing & half_written(kept):
            return "checkpoint"
        status = told()
        if status is None:
            return None
        if f"{name}: Commit" in status["waiting_for"]:
            return "commit"
        for stage in status["stages"] if not writing else []:
            if stage.get("age_seconds", 99) >= time.monotonic() - since:
                continue
            for wait in stage.get("waits", []):
                for phase, pattern in WAITS:
                    if re.search(f"({pattern}).* (from|to|with) {name}$", wait["what"]):
                        return phase
    return None


def took(seen, steps):
    """Every step has the same bits whenever it is made."""
    for step in steps:
        bits = (step["loss"].hex(), step["grad_norm"].hex())
        assert seen.setdefault(step["step"], bits) == bits, f"step {step['step']} has other bits when it is made again"

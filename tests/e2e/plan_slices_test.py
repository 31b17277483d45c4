# SPDX-License-Identifier: Apache-2.0
"""`ballastctl plan` cuts long sequences into slices where whole ones are refused. The written job runs, keeps on its fullest
stage what was planned, to the byte, and is simulated in the planned time and memory. The smallest limit that a refusal of
whole sequences names is one that slices go below; one flag gives the numbers of slices to try. Plans from profiles of whole
sequences and of slices, which are predicted from the nearest of both. Two pipes have no slices."""
import json
import os
import re
import subprocess

import ballast


def ctl(folder, *arguments, expect=0):
    done = subprocess.run([ballast.CTL, *arguments], env=ballast.environment(folder), text=True, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def plan(folder, job, *arguments):
    return json.loads(ctl(folder, "plan", job, "-o", "json", *arguments).stdout)


# For questions that are not about which schedule is the best: those whose order need not be searched.
GENERATED = ("--schedule", "1f1b", "--schedule", "seq1f1b", "--schedule", "interleaved")


def write(folder, name="job.yaml", seq=4096):
    return ballast.write_job(folder, name, model=ballast.small_inline(hidden=32, layers=4, seq=seq),
                             data={"train": [os.path.join(ballast.ROOT, "LICENSE")] * 4, "format": "text"},
                             train={"steps": 3, "micro_batch": 1, "micro_batches": 3},
                             pipeline={"stages": 2, "attention": "flash"})


def check_written(folder, planned, best):
    simulated = json.loads(ctl(folder, "simulate", planned, "-o", "json").stdout)
    assert abs(simulated["step_seconds"] / best["step_seconds"] - 1) < 1e-9, (simulated["step_seconds"], best)
    memory = [stage["memory_bytes"] for stage in simulated["stages"]]
    assert memory == best["stage_memory_bytes"], (memory, best["stage_memory_bytes"])
    assert all(stage["memory"]["kv-cache"] > 0 for stage in simulated["stages"]), simulated["stages"]


def check_budget(folder, job):
    """One byte less than any whole sequences take."""
    planned = os.path.join(folder, "planned.yaml")
    refused = ctl(folder, "plan", job, "--slices", "1", "--memory", "1MiB", expect=8).stderr
    limit = int(re.search(r"smallest limit that works is [^(]*\((\d+) bytes\)", refused).group(1)) - 1
    again = ctl(folder, "plan", job, "--slices", "1", "--memory", str(limit), expect=8).stderr
    assert "slices" not in again, again
    answer = plan(folder, job, "--memory", str(limit), "--write", planned)
    best = answer["best"]
    assert best["slices"] in (2, 4) and best["memory_bytes"] <= limit, best
    assert "Whole sequences do not fit" in answer["why"], answer["why"]
    rows = {row["value"]: row["fits"] for row in answer["families"] if row["kind"] == "slices"}
    assert rows[str(best["slices"])] and not rows["1"], rows
    check_written(folder, planned, best)
    found = [sum(stage.values()) for stage in ballast.held_memory(folder, planned)]
    assert max(found) == best["memory_bytes"] or best["policy"] in ("bpipe", "cap", "auto"), (best, found)
    assert max(found) <= limit, (limit, found)
    print(f"ok {limit} bytes, in which whole sequences are refused: {best['schedule']} in {best['slices']} slices, recompute "
          f"{best['recompute']}, policy {best['policy']}: {max(found)}")
    # The smallest limit of all is one for slices, and works.
    refused = ctl(folder, "plan", job, "--memory", "1MiB", expect=8).stderr
    least = int(re.search(r"smallest limit that works is [^(]*\((\d+) bytes\)", refused).group(1))
    assert " slices, recompute " in refused and least < limit, (refused, limit)
    assert plan(folder, job, "--memory", str(least))["best"]["slices"] > 1
    print(f"ok smallest limit {least}")


def check_flag(folder, job):
    planned = os.path.join(folder, "flag.yaml")
    for words, slices in ((("--slices", "8", *GENERATED), {8}), (("--slices", "1", "--slices", "2", *GENERATED), {1, 2}),
                          ((), {1, 2, 4})):
        answer = plan(folder, job, *words)
        assert {candidate["slices"] for candidate in answer["candidates"]} <= slices, (words, answer["candidates"])
        rows = {int(row["value"]) for row in answer["families"] if row["kind"] == "slices"}
        assert rows <= slices and (not words or rows == slices), (words, rows)
    for schedule in ("seq1f1b", "1f1b", "zb-h1", "interleaved", "gpipe"):
        best = plan(folder, job, "--slices", "4", "--schedule", schedule, "--write", planned)["best"]
        assert (best["schedule"], best["slices"]) == (schedule, 4), best
        check_written(folder, planned, best)
    table = ctl(folder, "plan", job, "--slices", "4", "--schedule", "seq1f1b").stdout
    assert "seq1f1b, 4 slices" in table, table
    for words, said in ((("--slices", "3"), "3 slices do not divide sequences of 4096 tokens"),
                        (("--slices", "256"), "--slices"), (("--slices", "0"), "--slices"),
                        (("--schedule", "seq1f1b", "--slices", "1"), "only whole sequences are asked for"),
                        (("--schedule", "chimera", "--slices", "2"), "plans are of one copy of the model")):
        assert said in ctl(folder, "plan", job, *words, expect=2).stderr, words
    print("ok flags")


def check_profiles(folder):
    """A profile of whole sequences plans slices, and one of slices whole sequences, each with a warning; with both, the
    nearest is taken, whose slices are those of the plan."""
    job, paths = write(folder, "short.yaml", seq=1024), {}
    for slices in (1, 4):
        paths[slices] = os.path.join(folder, f"profile-{slices}.json")
        ballast.run_job(folder, job, "--local", "--profile", paths[slices], "--set", f"pipeline.slices={slices}")
        assert json.load(open(paths[slices])).get("slices", 1) == slices
    for recorded, wanted in ((1, 4), (4, 1), (4, 4), (1, 1)):
        planned = os.path.join(folder, "measured.yaml")
        answer = plan(folder, job, "--profile", paths[recorded], "--slices", str(wanted), *GENERATED, "--write", planned)
        warned = any(f"slices is {recorded}, the job's pipeline.slices {wanted}" in line for line in answer["warnings"])
        assert answer["best"]["slices"] == wanted and warned == (recorded != wanted), (recorded, wanted, answer["warnings"])
        simulated = json.loads(ctl(folder, "simulate", planned, "--profile", paths[recorded], "-o", "json").stdout)
        assert abs(simulated["step_seconds"] / answer["best"]["step_seconds"] - 1) < 1e-9, (recorded, wanted)
    both = [word for path in paths.values() for word in ("--profile", path)]
    for wanted in (1, 4):
        answer = plan(folder, job, *both, "--slices", str(wanted), *GENERATED)
        alone = plan(folder, job, "--profile", paths[wanted], "--slices", str(wanted), *GENERATED)
        warned = any("slices is" in line for line in answer["warnings"])
        assert answer["best"]["step_seconds"] == alone["best"]["step_seconds"] and not warned, answer["warnings"]
    print("ok profiles")


def main():
    with ballast.scratch() as folder:
        job = write(folder)
        check_budget(folder, job)
        check_flag(folder, job)
        check_profiles(folder)


main()

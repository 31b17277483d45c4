# SPDX-License-Identifier: Apache-2.0
"""One table of what `run.sh claims` measured, as Markdown: the GPU, its clocks and the versions as its head, then a row for
each stage and micro-batch.

    table.py LOGS NAME:B,B,...  [NAME:B,B,...]...    LOGS/NAME.jsonl has a line for each B

Beside the lines of results it reads, where they are there, LOGS/devices.log (GPU and libraries), gpu.csv and clocks.csv (of
nvidia-smi, before and meanwhile), and of LOGS/*.log what was predicted of pipelines, parking and copies. A row that is not
there is drawn as not measured and named, and the exit code is 1.
"""
import csv
import json
import os
import re
import statistics
import sys

COLUMNS = ("model", "layers", "seq", "attention", "recompute", "b", "F ms", "B ms", "R ms", "MFU", "HFU", "block MiB")
BUSY = 50  # % of the GPU, from which on a sample of its clocks counts


def text_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def head(logs):
    lines = [line.strip() for line in text_of(os.path.join(logs, "devices.log")).splitlines() if line.strip()]
    gpu = list(csv.reader(text_of(os.path.join(logs, "gpu.csv")).splitlines(), skipinitialspace=True))
    if len(gpu) > 1:
        lines += [f"{name}: {value}" for name, value in zip(gpu[0], gpu[1])]
    samples = list(csv.DictReader(text_of(os.path.join(logs, "clocks.csv")).splitlines(), skipinitialspace=True))
    busy = [row for row in samples if number(row.get("utilization.gpu [%]")) >= BUSY]
    for name in [name for name in (samples[0] if samples else {}) if name and "utilization" not in name]:
        found = [number(row[name]) for row in busy if row[name]]
        if found:
            lines.append(f"{name} while it computed: {statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f}, "
                         f"{len(found)} samples)")
    return lines or ["no GPU was described"]


def number(text):
    match = re.match(r"-?[\d.]+", text or "")
    return float(match.group()) if match else 0.0


def row_of(run):
    model = run["model"] + (f", 1 of {run['shard']} parts" if run["shard"] > 1 else "") + (" and head" if run.get("head") else "")
    return (model, run["layers"], run["seq"], run["attention"], run["recompute"], run["micro_batch"],
            f"{1e3 * run['forward']:.3f}", f"{1e3 * (run['input'] + run['weight']):.3f}", f"{1e3 * run['recomputed']:.3f}",
            f"{100 * run['mfu']:.1f} %", f"{100 * run['hfu']:.1f} %", f"{run['slot_bytes'] / 2**20:.1f}")


def rows(logs, wanted):
    """Those that were asked for, and the names of those that are not there."""
    found, missing, peaks = [], [], set()
    for name, sizes in wanted:
        runs = {}
        for line in text_of(os.path.join(logs, f"{name}.jsonl")).splitlines():
            run = json.loads(line)
            runs[run["micro_batch"]] = run
        for size in sizes:
            if size in runs and runs[size]["forward"] > 0 and runs[size]["mfu"] > 0:
                found.append(row_of(runs[size]))
                peaks.add(f"{runs[size]['peak'] * 1e-12:.1f}")
            else:
                found.append((name, "", "", "", "", size) + ("not measured",) * 6)
                missing.append(f"{name} b {size}")
    return found, missing, peaks


def others(logs):
    """Lines of other checks that belong to it, each with the check's name."""
    for name in sorted(os.listdir(logs)):
        for line in text_of(os.path.join(logs, name)).splitlines() if name.endswith(".log") else ():
            if re.match(r"b \d+ to \d+: at most |parking: |copies ", line):
                yield f"{name[:-len('.log')]}: {line}"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    logs = sys.argv[1]
    wanted = [(name, [int(size) for size in sizes.split(",")]) for name, _, sizes in
              (word.partition(":") for word in sys.argv[2:])]
    found, missing, peaks = rows(logs, wanted)
    print("\n".join(f"- {line}" for line in head(logs)))
    print(f"- MFU and HFU of {' or '.join(sorted(peaks)) or 'no'} TFLOP/s; B is I and W; F, B, R of one micro-batch\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("| " + " | ".join("---" for _ in COLUMNS) + " |")
    for row in found:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print("".join(f"\n- {line}" for line in others(logs)))
    if missing:
        sys.exit("not measured: " + "; ".join(missing))


main()

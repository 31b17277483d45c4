# SPDX-License-Identifier: Apache-2.0
"""table.py draws what was measured, names what was not, and then ends with 1."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def run_of(size, **more):
    return json.dumps({"model": "llama-7b", "shard": 1, "layers": 4, "seq": 2048, "micro_batch": size, "attention": "flash",
                       "recompute": "none", "forward": 0.001 * size, "input": 0.001, "weight": 0.0005, "recomputed": 0,
                       "mfu": 0.5, "hfu": 0.6, "peak": 989e12, "slot_bytes": 3 << 20, **more}) + "\n"


def draw(folder, expect, *wanted):
    done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "table.py"), folder, *wanted], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == expect, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return done


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "a.jsonl", run_of(1) + run_of(2))
        write(folder, "devices.log", "NVIDIA H100\ncublaslt 13.1\n")
        write(folder, "gpu.csv", "name, driver_version\nNVIDIA H100, 580.1\n")
        write(folder, "clocks.csv", "utilization.gpu [%], clocks.sm [MHz]\n0 %, 345 MHz\n99 %, 1980 MHz\n97 %, 1800 MHz\n")
        write(folder, "claims-parking.log", "ok\nparking: 2 stages\n")
        said = draw(folder, 0, "a:1,2").stdout
        assert "| llama-7b | 4 | 2048 | flash | none | 2 | 2.000 | 1.500 | 0.000 | 50.0 % | 60.0 % | 3.0 |" in said, said
        for words in ("- cublaslt 13.1\n", "- driver_version: 580.1\n", "- claims-parking: parking: 2 stages\n", "of 989.0 TFLOP/s",
                      "- clocks.sm [MHz] while it computed: 1890 (1800 to 1980, 2 samples)\n"):
            assert words in said, said
        done = draw(folder, 1, "a:1,2,4", "b:1")
        assert done.stderr.strip() == "not measured: a b 4; b b 1", done.stderr
        assert "| b |  |  |  |  | 1 | not measured |" in done.stdout, done.stdout
        write(folder, "b.jsonl", run_of(1, mfu=0))
        assert "b b 1" in draw(folder, 1, "b:1").stderr
        write(folder, "b.jsonl", run_of(1, shard=4, model="gpt3-96b"))
        assert "| gpt3-96b, 1 of 4 parts |" in draw(folder, 0, "b:1").stdout
    print("ok")


main()

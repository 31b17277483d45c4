# SPDX-License-Identifier: Apache-2.0
"""Data of whole runs: Megatron's files, several files with weights, shuffled, on one stage and on three, and resumed in
the middle of an epoch, give the same bits; a run reads its files to their ends and goes on; bad files are refused before
anything starts."""
import os
import random
import struct

from ballast import losses, run_job, scratch, shared_memory_files, assert_nothing_left, write_job

MODEL = {"init": None, "family": "gpt2", "layers": 3, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
TRAIN = {"steps": 8, "micro_batch": 2, "micro_batches": 3, "lr_schedule": "constant", "seed": 11}


def write_megatron(path, documents, version=1):
    """NAME.bin and NAME.idx of uint16 tokens, one sequence per document, as preprocess_data.py leaves them."""
    with open(path + ".bin", "wb") as file:
        for document in documents:
            file.write(struct.pack(f"<{len(document)}H", *document))
    lengths = [len(document) for document in documents]
    offsets = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    with open(path + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, 8, len(lengths), len(lengths) + 1))
        file.write(struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *offsets))
        file.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))


def main():
    shared = shared_memory_files()
    numbers = random.Random(5)
    with scratch() as folder:
        first, second = os.path.join(folder, "first"), os.path.join(folder, "second")
        for path, count in ((first, 12), (second, 5)):  # small: read several times in these steps
            write_megatron(path, [[numbers.randrange(128) for _ in range(numbers.randrange(10, 60))] for _ in range(count)])
        data = {"train": [first, second + ".bin"], "weights": [1, 3], "format": "megatron", "order": "shuffled",
                "validation": 0.2}

        def run(stages, *more, **sections):
            job = write_job(folder, model=MODEL, train={**TRAIN, "validate_every": 4}, data=data,
                            pipeline={"stages": stages}, **sections)
            return run_job(folder, job, "--local", *more)[0]

        def plain(report):
            return [(event["step"], event["loss"], event["grad_norm"]) for event in report if event["event"] == "step"]

        single = run(1)
        assert len(plain(single)) == TRAIN["steps"]
        assert losses(run(3)) == losses(single), "three stages"
        kept = {"folder": os.path.join(folder, "kept"), "every": 3}
        run(2, "--steps", "3", checkpoint=kept)
        assert plain(run(3, "--resume", checkpoint=kept)) == plain(single)[3:], "resumed"
        print("ok megatron files with weights: one stage, three, and resumed")

        # The same tokens as one .bin and as Megatron's files are the same data.
        with open(first + ".bin", "rb") as file:
            raw = os.path.join(folder, "raw")
            with open(raw, "wb") as copy:
                copy.write(file.read())
        data = {"train": first, "format": "megatron", "order": "sequential"}
        indexed = run(1)
        data = {"train": raw, "format": "bin", "order": "sequential"}
        assert losses(run(2)) == losses(indexed)
        print("ok the same tokens without an index")

        with open(first + ".bin", "ab") as file:
            file.write(b"xx")
        data = {"train": first, "format": "megatron"}
        job = write_job(folder, model=MODEL, train=TRAIN, data=data, pipeline={"stages": 1})
        _, done = run_job(folder, job, "--local", expect=2)
        assert "first.bin: does not belong to its index" in done.stderr, done.stderr
        write_megatron(first, [[1] * 40], version=2)
        _, done = run_job(folder, job, "--local", expect=2)
        assert "first.idx: index: version 2 is not known" in done.stderr, done.stderr
        print("ok foreign files are refused")
        assert_nothing_left(folder, [], shared)


main()

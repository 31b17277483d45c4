# SPDX-License-Identifier: Apache-2.0
"""A local run whose job asks for blocks over tcp: its stores listen there, blocks go that way, and losses are those of a
run that parks nothing."""
from ballast import losses, run_job, scratch, small_inline, stages_of, write_job

PATHS = ("shm", "tcp", "auto")


def main():
    with scratch() as folder:
        pipeline = {"stages": 4, "schedule": "1f1b", "threads": 1}
        common = {"model": small_inline(hidden=32, seq=16), "pipeline": pipeline, "train": {"steps": 3, "micro_batches": 8},
                  "data": {"train": __file__, "format": "text"}}
        plain = write_job(folder, "plain.yaml", **common)
        expected, _ = run_job(folder, plain, "--local")
        for path in PATHS:
            job = write_job(folder, f"{path}.yaml", **common, memory={"slots": 3},
                            balance={"policy": "bpipe", "data_path": path})
            report, _ = run_job(folder, job, "--local")
            assert losses(report) == losses(expected), path
            loaded = sum(stage["loaded"] for stage in stages_of(report))
            lost = sum(stage["lost"] for stage in stages_of(report))
            assert loaded > 0 and lost == 0, (path, loaded, lost)
            print(f"blocks over {path}: {loaded} loaded, losses of a run that parks nothing")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What is copied beside a checkpoint's weights so that it is served as it is: tokenizer, generation config and chat template of
model.init, through links, also when that folder has changed meanwhile; token ids and positions in config.json; going on and
beginning anew from it; refusals before anything starts. And examples/finetune.yaml trains."""
import json
import os
import shutil
import subprocess

from ballast import (CTL, GOLDEN, ROOT, Run, environment, losses, run_job, scratch, small_inline, write_job)

COPIED = {"tokenizer.json": '{"version": "1.0"}', "tokenizer_config.json": '{"eos_token": "<end>"}',
          "chat_template.jinja": "{{ messages }}", "generation_config.json": '{"eos_token_id": [7, 9]}'}
TRAIN = {"steps": 4, "micro_batch": 1, "micro_batches": 2, "lr": 1e-3}


def content(path):
    with open(path) as file:
        return file.read()


def make_model(folder):
    """The golden Qwen2 with a tokenizer; one file of it is a link into a store of blobs, as a hub's cache has them."""
    model = os.path.join(folder, "model")
    shutil.copytree(f"{GOLDEN}/qwen2", model)
    os.mkdir(f"{folder}/blobs")
    for name, text in {**COPIED, "README.md": "not copied"}.items():
        with open(f"{folder}/blobs/{name}", "w") as file:
            file.write(text)
        (os.symlink if name == "tokenizer.json" else shutil.copy)(f"{folder}/blobs/{name}", f"{model}/{name}")
    config = json.loads(content(f"{model}/config.json"))
    config.update(eos_token_id=[7, 9], pad_token_id=7, bos_token_id=None, max_position_embeddings=4096)
    with open(f"{model}/config.json", "w") as file:
        json.dump(config, file)
    return model


def job_of(folder, init, name, **sections):
    data = {"train": f"{GOLDEN}/qwen2/tokens.bin"}
    return write_job(folder, name=f"{name}.yaml", **{"model": {"init": init, "seq": 32}, "data": data, "train": TRAIN, **sections})


def check(path, where):
    for name, text in COPIED.items():
        assert content(f"{path}/{name}") == text, f"{where}: {name}"
        assert not os.path.islink(f"{path}/{name}"), f"{where}: {name} is a link"
    assert not os.path.exists(f"{path}/README.md")
    config = json.loads(content(f"{path}/config.json"))
    found = [config[key] for key in ("eos_token_id", "pad_token_id", "bos_token_id", "max_position_embeddings", "model_type")]
    assert found == [[7, 9], 7, None, 4096, "qwen2"], f"{where}: {found}"
    files = json.loads(content(f"{path}/ballast.json"))["files"]
    assert set(COPIED) <= set(files), f"{where}: checksums of {sorted(files)}"


def copies(folder, model):
    kept = f"{folder}/kept"
    job = job_of(folder, model, "kept", checkpoint={"folder": kept, "every": 2})
    expected = losses(run_job(folder, job, "--local")[0])
    for step in (2, 4):
        check(f"{kept}/step-{step:06}", f"step {step}")
    shutil.rmtree(f"{kept}/step-000004")
    report, _ = run_job(folder, job, "--local", "--resume", "--set", "pipeline.stages=1")
    found = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    assert found == expected[2:], "what is resumed"
    check(f"{kept}/step-000004", "a resumed run")
    anew = job_of(folder, f"{kept}/step-000004", "anew", checkpoint={"folder": f"{folder}/anew"})
    run_job(folder, anew, "--local")
    check(f"{folder}/anew/step-000004", "a run that begins with a checkpoint")
    with open(f"{kept}/step-000004/tokenizer.json", "a") as file:
        file.write(" ")
    done = run_job(folder, job, "--local", "--resume", "--steps", "5", expect=None)[1]
    assert done.returncode != 0 and "tokenizer.json" in done.stderr, done.stderr
    print("ok copies, ids, positions, going on, beginning anew")


def copies_of_a_folder_that_changes(folder, model):
    """They are those of the start of the run, also where the folder has gone in the middle of it."""
    kept, moving = f"{folder}/late", f"{folder}/moving"
    shutil.copytree(model, moving, symlinks=True)
    job = job_of(folder, moving, "late", checkpoint={"folder": kept})
    run = Run(folder, job, "--local", "--steps", "1000000", "--set", "pipeline.stages=2")
    try:
        run.wait_for(lambda steps: len(steps) >= 3, "no steps")
        shutil.rmtree(moving)
        run.end(130, 2)
    finally:
        run.kill()
    [name] = [name for name in os.listdir(kept) if name.startswith("step-")]
    check(f"{kept}/{name}", "a run whose model has gone")
    print("ok a model that has gone")


def refusals(folder, model):
    broken = f"{folder}/broken"
    shutil.copytree(model, broken, symlinks=True)
    os.remove(f"{broken}/tokenizer_config.json")
    os.symlink("nowhere", f"{broken}/tokenizer_config.json")
    job = job_of(folder, broken, "broken", checkpoint={"folder": f"{folder}/never"})
    for more in ([], ["--check"]):
        done = run_job(folder, job, "--local", *more, expect=2)[1]
        words = f"model.init: {broken}/tokenizer_config.json: is a link to a file that is not there"
        assert words in done.stderr and "remove it to continue without" in done.stderr, done.stderr
    run_job(folder, job, "--local", "--set", "checkpoint.folder=null")  # nothing is saved, so nothing is copied
    print("ok refusals")


def without_a_model(folder):
    """From nothing there is nothing to copy; beside model.config there may be."""
    run_job(folder, job_of(folder, None, "none", model=small_inline(hidden=32, layers=2, seq=16, vocab=101),
                           checkpoint={"folder": f"{folder}/none"}), "--local")
    assert set(COPIED).isdisjoint(os.listdir(f"{folder}/none/step-000004"))
    job = job_of(folder, None, "config", checkpoint={"folder": f"{folder}/config"},
                 model={"init": None, "config": f"{folder}/model/config.json", "seq": 32})
    run_job(folder, job, "--local")
    check(f"{folder}/config/step-000004", "a model of a config.json")
    print("ok models that begin with nothing")


def example(folder, model):
    """The job that docs/finetuning.md begins with, on small sequences."""
    place = f"{folder}/example"
    os.mkdir(place)
    shutil.copy(f"{ROOT}/examples/finetune.yaml", f"{place}/job.yaml")
    shutil.copytree(model, f"{place}/model")
    report = f"{place}/report.jsonl"
    subprocess.run([CTL, "run", f"{place}/job.yaml", "--local", "--steps", "4", "--report", report, "--set", "model.seq=32",
                    "--set", "data.format=bin", "--set", f"data.train={GOLDEN}/qwen2/tokens.bin", "--set",
                    "train.validate_every=2"], check=True, env=environment(folder), stderr=subprocess.PIPE)
    events = [json.loads(line)["event"] for line in content(report).splitlines()]
    assert events.count("step") == 4 and events.count("validation") == 2, events
    check(f"{place}/tuned/step-000004", "examples/finetune.yaml")
    print("ok examples/finetune.yaml")


def main():
    with scratch() as folder:
        model = make_model(folder)
        copies(folder, model)
        copies_of_a_folder_that_changes(folder, model)
        refusals(folder, model)
        without_a_model(folder)
        example(folder, model)


main()

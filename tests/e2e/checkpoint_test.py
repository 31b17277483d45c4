# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of whole runs: what is in a folder, going on bit for bit (also on another number of stages, with another
schedule, after a dead stage and after Ctrl-C), reports with every step once, the newest kept, damaged and foreign ones
refused with file and tensor, and a disk that is too small."""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time

from ballast import (CTL, Service, assert_nothing_left, descendants, environment, losses, program_of, read_report,
                     run_job, scratch, seed, shared_memory_files, stages, wait_until, write_job)

STEPS = 12
TRAIN = {"steps": STEPS, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3, "clip": 1.0, "warmup": 9,
         "weight_decay": 0.1}  # a rate that does not depend on --steps, which these tests use to stop early


def checkpoints(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("step-") and ".partial-" not in name)


def run(folder, job, report, *arguments, expect=0, **options):
    done = subprocess.run([CTL, "run", job, "--local", "--report", report, *arguments], env=environment(folder),
                          text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, **options)
    assert done.returncode == expect, f"{arguments}: exit code {done.returncode}, expected {expect}\n{done.stderr[-4000:]}"
    return done


def tensors_of(path):
    """Names and shapes from a safetensors header; every tensor is fp32 and the file has no holes."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    assert header.pop("__metadata__") == {"format": "pt"}, "transformers wants to know whose it is"
    end = max(entry["data_offsets"][1] for entry in header.values())
    assert os.path.getsize(path) == 8 + length + end and all(e["dtype"] == "F32" for e in header.values())
    return {name: entry["shape"] for name, entry in header.items()}


def expected_tensors(layers, hidden, vocab, seq, ffn):
    shapes = {"transformer.wte.weight": [vocab, hidden], "transformer.wpe.weight": [seq, hidden],
              "transformer.ln_f.weight": [hidden], "transformer.ln_f.bias": [hidden]}
    for i in range(layers):
        for name, shape in {"ln_1.weight": [hidden], "ln_1.bias": [hidden], "ln_2.weight": [hidden],
                            "ln_2.bias": [hidden], "attn.c_attn.weight": [hidden, 3 * hidden],
                            "attn.c_attn.bias": [3 * hidden], "attn.c_proj.weight": [hidden, hidden],
                            "attn.c_proj.bias": [hidden], "mlp.c_fc.weight": [hidden, ffn], "mlp.c_fc.bias": [ffn],
                            "mlp.c_proj.weight": [ffn, hidden], "mlp.c_proj.bias": [hidden]}.items():
            shapes[f"transformer.h.{i}.{name}"] = shape
    return shapes


def test_contents(path, stages):
    files = set(os.listdir(path))
    shards = {f"{kind}-{i + 1:05}-of-{stages:05}.safetensors" for kind in ("model", "optimizer") for i in range(stages)}
    assert files == shards | {"config.json", "job.yaml", "model.safetensors.index.json", "ballast.json"}, files
    expected = expected_tensors(3, 48, 101, 32, 192)
    with open(f"{path}/model.safetensors.index.json") as file:
        index = json.load(file)
    assert set(index["weight_map"]) == set(expected), "the index names every tensor once, the tied embedding too"
    weights, moments = {}, {}
    for shard in sorted(shards):
        for name, shape in tensors_of(f"{path}/{shard}").items():
            target = weights if shard.startswith("model-") else moments
            assert name not in target, f"{name} stands in two shards"
            target[name] = shape
            if target is weights:
                assert index["weight_map"][name] == shard
    assert weights == expected
    assert moments == {f"{name}{part}": shape for name, shape in expected.items()
                       for part in (".exp_avg", ".exp_avg_sq")}
    with open(f"{path}/config.json") as file:
        config = json.load(file)
    assert (config["architectures"], config["n_layer"], config["n_embd"], config["n_head"], config["n_positions"]) == \
        (["GPT2LMHeadModel"], 3, 48, 4, 32), config
    print(f"ok contents of {os.path.basename(path)}: {len(weights)} tensors")


def test_resume(folder, reference):
    for i, change in enumerate(([], ["pipeline.stages=3"], ["pipeline.stages=1", "pipeline.schedule=gpipe"],
                                ["pipeline.schedule=gpipe"])):
        place, report = f"{folder}/resume-{i}", f"{folder}/resume-{i}.jsonl"
        job = write_job(folder, train=TRAIN, checkpoint={"folder": place, "every": 2, "keep": 2})
        run(folder, job, report, "--steps", "7")
        assert checkpoints(place) == ["step-000006", "step-000007"], checkpoints(place)
        shutil.rmtree(f"{place}/step-000007")  # so that the report is ahead of the newest checkpoint
        run(folder, job, report, "--resume", *(word for setting in change for word in ("--set", setting)))
        assert losses(read_report(report)) == reference, f"resumed with {change}"
        assert checkpoints(place) == ["step-000010", "step-000012"], checkpoints(place)
        run(folder, job, report, "--resume")  # nothing is left to do
        assert losses(read_report(report)) == reference
        print(f"ok resumed bit for bit: {change or 'unchanged'}")
    test_contents(f"{place}/step-000012", 2)
    done = run(folder, job, f"{folder}/anew.jsonl", "--steps", "2")
    said = f"ballastctl: this run starts from the beginning: checkpoints of an earlier one are in {place}/earlier-1 now\n"
    assert done.stderr.count(said) == 1 and not done.stdout, (done.stdout, done.stderr)
    assert checkpoints(place) == ["step-000002"] and checkpoints(f"{place}/earlier-1") == ["step-000010", "step-000012"]
    print("ok a run that begins anew sets earlier checkpoints aside")


def test_validation(folder):
    text = f"{folder}/text.txt"
    with open(text, "w") as file:
        file.write("the quick brown fox jumps over the lazy dog. " * 400)
    inline = {"init": None, "family": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    reports = []
    for name, parts in (("whole", [[]]), ("parts", [["--steps", "4"], ["--resume"]])):
        job = write_job(folder, model=inline, data={"train": text, "format": "text", "validation": 0.1},
                        train=dict(TRAIN, steps=8, validate_every=2),
                        checkpoint={"folder": f"{folder}/validation-{name}", "every": 2})
        report = f"{folder}/validation-{name}.jsonl"
        for arguments in parts:
            run(folder, job, report, *arguments)
        events = read_report(report)
        reports.append([(e["event"], e["step"], e["loss"].hex()) for e in events])
        assert [e["step"] for e in events if e["event"] == "validation"] == [2, 4, 6, 8]
    assert reports[0] == reports[1]
    print("ok held-out loss every 2 steps, the same after a resume")


def start(folder, job, report, steps):
    process = subprocess.Popen([CTL, "run", job, "--local", "--report", report], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or (os.path.exists(report) and open(report).read().count("\n") >= steps),
               120, f"the run did not make {steps} steps")
    assert process.poll() is None, process.stderr.read()
    return process


def test_ends(folder, choice):
    """A killed stage, a killed everything, Ctrl-C: --resume goes on from each, to the same losses."""
    train = dict(TRAIN, steps=120)
    reference, _ = run_job(folder, write_job(folder, train=train), "--local")
    place, report = f"{folder}/ends", f"{folder}/ends.jsonl"
    job = write_job(folder, train=train, checkpoint={"folder": place, "every": 5, "keep": 3})
    shared = shared_memory_files()

    process = start(folder, job, report, choice.randrange(8, 30))
    wait_until(lambda: os.path.exists(place) and checkpoints(place), 60, "no checkpoint")
    pids = descendants(process.pid)
    os.kill(choice.choice([pid for pid in pids if program_of(pid) == "stage-service"]), signal.SIGKILL)
    code, message = process.wait(120), process.stderr.read()
    assert code == 5, f"exit code {code}\n{message}"
    assert_nothing_left(folder, pids, shared)
    last = checkpoints(place)[-1]
    assert f"the same command with --resume continues from step {int(last[5:])} ({place}/{last})" in \
        message.splitlines()[-1], message
    assert not [name for name in os.listdir(place) if "partial" in name], os.listdir(place)
    done = run(folder, job, report, "--resume", "--steps", "60")
    assert losses(read_report(report)) == losses(reference)[:60], done.stderr
    print("ok a dead stage, then --resume")

    os.rename(report, f"{report}.half")
    shutil.copy(f"{report}.half", report)
    process = subprocess.Popen([CTL, "run", job, "--local", "--resume", "--report", report], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or open(report).read().count("\n") >= 70, 120, "no progress")
    process.send_signal(signal.SIGINT)
    code, message = process.wait(120), process.stderr.read()
    assert code in (130, 0), f"Ctrl-C: {code}\n{message}"
    last = read_report(report)[-1]["step"]
    assert checkpoints(place)[-1] == f"step-{last:06}", f"{checkpoints(place)} after step {last}\n{message}"
    run(folder, job, report, "--resume")
    assert losses(read_report(report)) == losses(reference)
    assert len(checkpoints(place)) == 3
    print(f"ok Ctrl-C after step {last} leaves its checkpoint, then --resume")


def test_driver_deaths(folder, choice):
    """A driver killed while it takes checkpoints all the time: its successors finish, and leave nothing half written."""
    train = dict(TRAIN, steps=120)
    reference, _ = run_job(folder, write_job(folder, train=train), "--local")
    place, report, address = f"{folder}/deaths", f"{folder}/deaths.jsonl", f"unix:{folder}/driver.sock"
    with stages(folder, 2) as services:
        job = write_job(folder, train=train, checkpoint={"folder": place, "every": 2, "keep": 3},
                        services={"stages": [s.address for s in services], "driver": address})

        def driver():
            return Service(folder, "ballast-driver", "--job", job, "--listen", address, "--linger", "--resume")

        running = driver()
        control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder), text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            # Before somebody listens, steps of a driver that is killed are told to nobody.
            wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was reported")
            for _ in range(4):
                time.sleep(choice.uniform(0.05, 0.3))
                running.kill(signal.SIGKILL)
                running = driver()
            code = control.wait(60)
            assert code == 0, f"exit code {code}\n{control.stderr.read()}\n{running.log()[-3000:]}"
        finally:
            if control.poll() is None:
                control.kill()
            running.end()
    assert losses(read_report(report)) == losses(reference)
    assert sorted(os.listdir(place)) == ["step-000116", "step-000118", "step-000120"], os.listdir(place)
    print("ok a driver killed 4 times while it took checkpoints")


def test_stage_deaths(folder, choice):
    """Stages and driver that are services: a killed stage ends the driver, and when both are there again, --resume makes
    all stages begin from the checkpoint; without a checkpoint, from the first step."""
    train = dict(TRAIN, steps=60)
    reference, _ = run_job(folder, write_job(folder, train=train), "--local")
    for every in (4, 0):
        place, address = f"{folder}/stage-deaths-{every}", f"unix:{folder}/driver-{every}.sock"
        with stages(folder, 2, listen="127.0.0.1:0") as services:
            job = write_job(folder, train=train, checkpoint={"folder": place, "every": every},
                            services={"stages": [s.address for s in services], "driver": address})

            def driver():
                return Service(folder, "ballast-driver", "--job", job, "--listen", address, "--resume")

            running, report = driver(), f"{folder}/stage-deaths-{every}.jsonl"
            control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder), text=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            wait_until(lambda: os.path.exists(report) and open(report).read().count("\n") >= 10, 60, "no progress")
            victim = choice.randrange(2)
            services[victim].kill(signal.SIGKILL)
            assert running.process.wait(60) == 5 and control.wait(60) == 5, running.log()
            services[victim] = Service(folder, "stage-service", "--listen", services[victim].address)
            running = driver()
            code = running.process.wait(60)
            assert code == 0 and "all stages restart" in running.log(), f"exit {code}: {running.log()[-2000:]}"
        first = read_report(report)
        assert losses(first) == losses(reference)[:len(losses(first))]
        saved = checkpoints(place)
        assert saved[-1:] == (["step-000060"] if every else saved[-1:]), saved
        print(f"ok stage {victim} killed under a driver of its own, checkpoints every {every}: begun again")


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_refusals(folder):
    place = f"{folder}/refusals"
    job = write_job(folder, train=TRAIN, checkpoint={"folder": place, "every": 2})
    report = f"{folder}/refusals.jsonl"
    done = run(folder, job, report, "--resume", expect=3)
    assert place in done.stderr, done.stderr
    run(folder, job, report, "--steps", "4")
    good = f"{place}/step-000004"
    shutil.copytree(good, f"{folder}/good")

    def newer(path):
        with open(f"{path}/ballast.json") as file:
            state = json.load(file)
        with open(f"{path}/ballast.json", "w") as file:
            json.dump(dict(state, version=3), file)

    weights, optimizer = "model-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"
    cases = [
        ("a cut file", lambda p: os.truncate(f"{p}/{weights}", 1000), [weights, "cut short"]),
        ("a missing file", lambda p: os.unlink(f"{p}/{optimizer}"), [optimizer, "missing"]),
        ("a damaged tensor", lambda p: flip(f"{p}/{optimizer}", -1), [optimizer, "tensor '", "checksum"]),
        ("a damaged head", lambda p: flip(f"{p}/{weights}", 100), [weights]),
        ("a damaged index", lambda p: flip(f"{p}/model.safetensors.index.json", 40), ["model.safetensors.index.json"]),
        ("a damaged state", lambda p: os.truncate(f"{p}/ballast.json", 100), ["ballast.json"]),
        ("a newer format", newer, ["ballast.json", "version 3"]),
        ("another program's", lambda p: os.unlink(f"{p}/ballast.json"), ["model.init"]),
        ("a shard of another step", lambda p: shutil.copy(f"{place}/step-000002/{weights}", f"{p}/{weights}"),
         [weights, "tensor '", "another step"]),
    ]
    for what, change, words in cases:
        shutil.rmtree(good)
        shutil.copytree(f"{folder}/good", good)
        change(good)
        done = run(folder, job, report, "--resume", expect=2)
        assert all(word in done.stderr for word in words), f"{what}: {done.stderr}"
        advised = f"move {good} away to continue from step 2" in done.stderr
        assert advised == (what != "a newer format"), f"{what}: {done.stderr}"
        print(f"ok refused: {what}")
    shutil.rmtree(good)
    run(folder, job, report, "--resume", "--steps", "4")
    os.truncate(f"{place}/step-000004/{weights}", 1000)
    shutil.rmtree(f"{place}/step-000002")
    done = run(folder, job, report, "--resume", expect=2)
    assert "no checkpoint before it: without --resume the run starts from the beginning" in done.stderr, done.stderr
    shutil.rmtree(good)
    shutil.copytree(f"{folder}/good", good)
    inline = {"init": None, "family": "gpt2", "layers": 3, "hidden": 64, "heads": 4, "vocab": 101, "seq": 32}
    other = write_job(folder, "other.yaml", model=inline, train=TRAIN, checkpoint={"folder": place})
    done = run(folder, other, report, "--resume", expect=2)
    assert f"{good}/config.json: n_embd is 48, the job's model has 64; give the job the model of the" in done.stderr, done.stderr
    done = run(folder, job, report, "--set", f"checkpoint.folder={report}/below-a-file", expect=2)
    assert "checkpoint.folder: " in done.stderr and "Not a directory" in done.stderr, done.stderr
    done = run(folder, job, report, "--resume", "--set", "train.seed=5", expect=2)
    assert "seed" in done.stderr, done.stderr
    print("ok refused: another shape, another seed")
    test_other_models(folder)
    test_tensors_too_many(folder, good)


def test_other_models(folder):
    """Models that read every tensor that they need from the checkpoint, and would train something else."""
    place, report = f"{folder}/models", f"{folder}/models.jsonl"
    own = {"init": None, "family": "llama", "layers": 4, "hidden": 48, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 101,
           "seq": 32}

    def resume(expect=2, **model):
        other = write_job(folder, "models.yaml", model={**own, **model}, train=TRAIN, checkpoint={"folder": place})
        return run(folder, other, report, "--resume", "--steps", "2", expect=expect).stderr

    run(folder, write_job(folder, "models.yaml", model=own, train=TRAIN, checkpoint={"folder": place}), report, "--steps", "2")
    for model, message in (({"layers": 2}, "num_hidden_layers is 4, the job's model has 2"),
                           ({"tied": True}, "tie_word_embeddings is false, the job's model has true"),
                           ({"heads": 8, "kv_heads": 4}, "num_attention_heads is 4, the job's model has 8")):
        assert message in (said := resume(**model)), said
    with open(f"{place}/step-000002/config.json") as file:
        config = json.load(file)
    for change, message in (({"rope_theta": 500.0, "rope_parameters": None}, "rope_theta is 10000, the job's model has 500"),
                            ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-05, the job's model has 1e-06"),
                            ({"model_type": "mistral", "sliding_window": 8}, 'model_type is "llama", the job\'s model has "mistral"')):
        with open(f"{folder}/other.json", "w") as file:
            json.dump({**config, **change}, file)
        assert message in (said := resume(**{key: None for key in own if key != "seq"}, config=f"{folder}/other.json")), said
    said = resume(expect=0, seq=16)  # which this model may be trained with, too
    assert checkpoints(place) == ["step-000002"], said
    print("ok refused: models that compute something else from the same tensors")


def test_tensors_too_many(folder, good):
    """A checkpoint whose config.json, changed together with the state, leaves out a layer of its files."""
    place, report = f"{folder}/many", f"{folder}/many.jsonl"
    shutil.copytree(good, f"{place}/step-000004")
    for name, change in (("ballast.json", lambda it: it["files"].pop("config.json")), ("config.json", lambda it: it.update(n_layer=2))):
        with open(f"{place}/step-000004/{name}") as file:
            content = json.load(file)
        change(content)
        with open(f"{place}/step-000004/{name}", "w") as file:
            json.dump(content, file)
    less = {"init": None, "family": "gpt2", "layers": 2, "hidden": 48, "heads": 4, "vocab": 101, "seq": 32, "ffn": 192}
    job = write_job(folder, "many.yaml", model=less, train=TRAIN, checkpoint={"folder": place})
    done = run(folder, job, report, "--resume", expect=2)
    assert "tensor 'transformer.h.2." in done.stderr and "is none of the job's model" in done.stderr, done.stderr
    folder_of_weights = write_job(folder, "many.yaml", model={"init": f"{place}/step-000004"}, train=TRAIN)
    done = run(folder, folder_of_weights, report, expect=2)
    assert "is none of the 2-layer model that config.json describes" in done.stderr, done.stderr
    print("ok refused: tensors that the model does not have")


def test_other_bits(folder):
    """What goes on to other bits says so."""
    for change, message in (("pipeline.attention=naive", "with flash attention, the job has naive (pipeline.attention)"),
                            ("pipeline.slices=1", "whose sequences have 2 slices, the job has 1 (pipeline.slices)")):
        place, report = f"{folder}/bits", f"{folder}/bits.jsonl"
        job = write_job(folder, train=TRAIN, checkpoint={"folder": place},
                        pipeline={"attention": "flash", "schedule": "seq1f1b", "slices": 2})
        run(folder, job, report, "--steps", "2")
        assert "warning" not in (said := run(folder, job, report, "--resume", "--steps", "3").stderr), said
        assert message in (said := run(folder, job, report, "--resume", "--steps", "4", "--set", change).stderr), said
    print("ok warned: other attention, other slices")


def test_other_settings(folder):
    """A job that names other data or numbers than the checkpoint's own says which, once; others may change silently."""
    place, report, text = f"{folder}/settings", f"{folder}/settings.jsonl", f"{folder}/settings text.txt"
    with open(text, "w") as file:
        file.write("the quick brown fox jumps over the lazy dog. " * 400)
    shutil.copy(text, f"{folder}/other.txt")
    inline = {"init": None, "family": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    job = write_job(folder, model=inline, data={"train": text, "format": "text"}, train=TRAIN, checkpoint={"folder": place})
    run(folder, job, report, "--steps", "2")
    for steps, changes, expected in (
            (3, ["balance.policy=bpipe", "checkpoint.keep=2", "train.post_validation=true", "pipeline.stages=1"], None),
            (4, [f"data.train={folder}/other.txt", "train.lr=2e-3", "train.clip=null", "train.warmup=9"],
             f'data.train "{text}" (now "{folder}/other.txt"), train.lr 0.001 (now 0.002), train.clip 1 (now 0): it continues'),
            (5, [], f'data.train "{folder}/other.txt" (now "{text}"), train.lr 0.002 (now 0.001), train.clip 0 (now 1): it'),
            (6, ["train.lr_schedule=cosine", "data.validation=0.1"],
             "data.validation none (now 0.1), train.steps 5 (now 6), train.lr_schedule constant (now cosine): it"),
            (7, ["train.lr_schedule=cosine", "data.validation=0.1", "train.dtype=bf16"],
             "with train.steps 6 (now 7), train.dtype fp32 (now bf16): it")):
        said = run(folder, job, report, "--resume", "--steps", str(steps), *(w for c in changes for w in ("--set", c))).stderr
        lines = [line for line in said.splitlines() if "warning" in line and "was written by a run" in line]
        assert len(lines) == (expected is not None) and (expected is None or expected in lines[0]), said
    print("ok warned: other data, other numbers of training")


def test_driver_settings(folder):
    """The same of a driver over stages that already run: it logs both."""
    place, address, init = f"{folder}/driven", f"unix:{folder}/driven.sock", f"{folder}/driven init"
    with open(write_job(folder)) as file:
        shutil.copytree(json.load(file)["model"]["init"], init)
    with stages(folder, 2, listen="127.0.0.1:0") as services:
        for steps, rate in ((4, 1e-3), (6, 2e-3)):
            job = write_job(folder, model={"init": init}, train=dict(TRAIN, steps=steps, lr=rate), checkpoint={"folder": place},
                            services={"stages": [s.address for s in services], "driver": address})
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", address, "--resume")
            assert driver.process.wait(60) == 0, driver.log()
            shutil.rmtree(init, ignore_errors=True)
    assert f"model.init is gone; the model and its other files are those of {place}/step-000004" in driver.log(), driver.log()
    assert "was written by a run with train.lr 0.001 (now 0.002): it" in driver.log(), driver.log()
    assert checkpoints(place) == ["step-000004", "step-000006"], checkpoints(place)
    print("ok the same of a driver")


def test_init_gone_of_a_driver(folder):
    """A driver that is killed after the folder of model.init is gone: its successors find the stages with this job, and
    go on with what they hold, whichever checkpoint is the newest by then; the report has every step once."""
    place, address, init = f"{folder}/bereft", f"unix:{folder}/bereft.sock", f"{folder}/bereft init"
    report, train = f"{folder}/bereft.jsonl", dict(TRAIN, steps=100000)  # stopped by hand
    reference, _ = run_job(folder, write_job(folder, train=train), "--local", "--steps", "40")
    with open(write_job(folder)) as file:
        shutil.copytree(json.load(file)["model"]["init"], init)
    with stages(folder, 2, listen="127.0.0.1:0") as services:
        job = write_job(folder, model={"init": init}, train=train, checkpoint={"folder": place, "every": 4, "keep": 1},
                        services={"stages": [s.address for s in services], "driver": address})

        def driver():
            return Service(folder, "ballast-driver", "--job", job, "--listen", address, "--resume")

        def reported(lines):
            wait_until(lambda: os.path.exists(report) and open(report).read().count("\n") >= lines, 60, "no progress")

        running = driver()
        control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder), text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for lines in (10, 30):
            reported(lines)
            running.kill(signal.SIGKILL)
            shutil.rmtree(init, ignore_errors=True)
            running = driver()
            wait_until(lambda: "running" in running.log(), 60, "it does not go on")
            assert "stages hold this job at step" in running.log(), running.log()
        reported(50)
        running.process.terminate()
        running.process.wait(60)
        control.wait(60)
    assert losses(read_report(report))[:40] == losses(reference)
    with open(f"{place}/{checkpoints(place)[-1]}/job.yaml") as file:
        assert init in file.read(), "the job of a checkpoint names what its owner named"
    print("ok drivers killed without the folder of model.init")


def test_init_gone(folder, reference):
    """A run that began with weights of a folder goes on when that is gone; without a checkpoint it is needed."""
    place, report, init = f"{folder}/gone", f"{folder}/gone.jsonl", f"{folder}/init gone"
    job = write_job(folder, train=TRAIN, checkpoint={"folder": place, "every": 2})
    with open(job) as file:
        before = json.load(file)["model"]["init"]
    shutil.copytree(before, init)
    with open(f"{init}/tokenizer.json", "w") as file:
        file.write("{}")
    job = write_job(folder, model={"init": init}, train=TRAIN, checkpoint={"folder": place, "every": 2})
    run(folder, job, report, "--steps", "4")
    shutil.rmtree(init)
    for steps in (6, 8):
        said = run(folder, job, report, "--resume", "--steps", str(steps)).stderr
        assert f"model.init: {init} is gone" in said and "was written by a run" not in said, said
        assert "tokenizer.json" in os.listdir(f"{place}/step-{steps:06}")
    assert losses(read_report(report)) == reference[:8]
    assert "model.init" in run(folder, job, report, expect=2).stderr
    shutil.rmtree(place)
    assert "model.init" in run(folder, job, report, "--resume", expect=2).stderr
    print("ok resumed without the folder of model.init")


def test_not_finite(folder):
    """A rate that ruins the weights: the run ends, and the checkpoint before stays, whatever is to be kept."""
    text = f"{folder}/ruined.txt"
    with open(text, "w") as file:
        file.write("the quick brown fox jumps over the lazy dog. " * 400)
    inline = {"init": None, "family": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    for validation in (None, 0.1):
        place, report = f"{folder}/ruined-{validation}", f"{folder}/ruined-{validation}.jsonl"
        job = write_job(folder, model=inline, data={"train": text, "format": "text", "validation": validation},
                        train={"steps": 4, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3, "clip": None},
                        checkpoint={"folder": place, "every": 1, "keep": 1})
        run(folder, job, report)
        # Finite weights of 1e38, of which only a loss tells; 1e39 is infinite in fp32.
        for rate, steps in (("1e38", "9"), ("1e39", "9"), ("1e39", "5")) + ((("1e38", "5"),) if validation else ()):
            done = run(folder, job, report, "--resume", "--steps", steps, "--set", f"train.lr={rate}", expect=4)
            assert "not finite" in done.stderr and "lower train.lr or set train.clip" in done.stderr, done.stderr
            assert "the same command with --resume continues from step 4" in done.stderr, done.stderr
            assert checkpoints(place) == ["step-000004"], (rate, steps, checkpoints(place))
            assert all("nan" not in line.lower() for line in open(report)), "JSON has no NaN"
        run(folder, job, report, "--resume", "--steps", "6")
        assert checkpoints(place) == ["step-000006"], checkpoints(place)
    print("ok weights that are not finite, or make a loss that is not, are not saved")


def test_small_disk(folder, reference):
    """Files may not grow beyond what a shard needs: every checkpoint fails, the run goes on, its end is an error."""
    place, report = f"{folder}/small", f"{folder}/small.jsonl"
    job = write_job(folder, train=TRAIN, checkpoint={"folder": place, "every": 3})
    run(folder, job, report, "--steps", "4")
    before = checkpoints(place)
    limit = 400_000  # more than shared memory needs, less than the optimizer of a stage

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = run(folder, job, report, "--resume", expect=8, preexec_fn=limited)
    assert losses(read_report(report)) == reference, "training goes on without its checkpoints"
    assert sorted(os.listdir(place)) == before, f"the earlier ones stay, and nothing else: {os.listdir(place)}"
    for step in (6, 9, 12):
        assert f"no checkpoint of step {step}: " in done.stderr, done.stderr
    assert "could not be saved" in done.stderr and ".safetensors" in done.stderr, done.stderr
    assert "the same command with --resume continues from step 4" in done.stderr.splitlines()[-1], done.stderr
    run(folder, job, report, "--resume")
    assert losses(read_report(report)) == reference and checkpoints(place)[-1] == "step-000012"
    assert not [name for name in os.listdir(place) if "partial" in name], os.listdir(place)
    print("ok a disk too small: the run goes on, ends with exit 8, and resumes once there is room")


def test_full_disk(folder, reference):
    """The same on a file system that is full, which only a user namespace can make here."""
    place, report, listing = f"{folder}/full", f"{folder}/full.jsonl", f"{folder}/full.txt"
    job = write_job(folder, train=TRAIN, checkpoint={"folder": place, "every": 3})
    os.mkdir(place)
    # Room for one shard, not for all.
    inside = (f'mount -t tmpfs -o size=600k none {place} || exit 77; "$@"; code=$?; ls -A {place} >{listing}; '
              f'df --output=used {place} >>{listing}; exit $code')
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh", CTL, "run", job,
                           "--local", "--report", report], env=environment(folder), text=True, timeout=120,
                          stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode in (1, 77) and not os.path.exists(listing):
        print(f"left out: a full disk: no file system can be mounted here: {done.stderr.strip()}")
        return
    assert done.returncode == 8, f"exit code {done.returncode}\n{done.stderr[-3000:]}"
    assert losses(read_report(report)) == reference, "training goes on without its checkpoints"
    assert "No space left on device" in done.stderr and "no checkpoint was finished" in done.stderr, done.stderr
    with open(listing) as file:
        assert file.read().split() == ["Used", "0"], "something is left on the full disk"
    print("ok a full disk: the run goes on, ends with exit 8 and leaves nothing there")


def main():
    choice = seed()
    with scratch() as folder:
        reference, _ = run_job(folder, write_job(folder, train=TRAIN), "--local")
        reference = losses(reference)
        test_resume(folder, reference)
        test_validation(folder)
        test_ends(folder, choice)
        test_driver_deaths(folder, choice)
        test_stage_deaths(folder, choice)
        test_refusals(folder)
        test_other_bits(folder)
        test_other_settings(folder)
        test_init_gone(folder, reference)
        test_driver_settings(folder)
        test_init_gone_of_a_driver(folder)
        test_not_finite(folder)
        test_small_disk(folder, reference)
        test_full_disk(folder, reference)


main()

# SPDX-License-Identifier: Apache-2.0
"""Reports and the files around them: what is no report is never emptied, an earlier report is set aside, one file has one
use, and a report that cannot be written costs no step, because the run stops with a checkpoint, from which it resumes."""
import json
import os
import subprocess

from ballast import CTL, environment, losses, read_report, run_job, scratch, write_job

TRAIN = {"steps": 12, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3}
MANY = 1_000_000  # steps; a run that is not stopped ends with the timeout


def run(folder, job, *arguments, expect=0):
    done = subprocess.run([CTL, "run", job, "--local", *arguments], env=environment(folder), text=True, timeout=120,
                          stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == expect, f"{arguments}: exit code {done.returncode}, expected {expect}\n{done.stderr[-4000:]}"
    return done


def content(path):
    with open(path, "rb") as file:
        return file.read()


def newest(place):
    return max(int(name[5:]) for name in os.listdir(place) if name.startswith("step-") and "." not in name)


def test_files_that_are_kept(folder):
    text, held, notes = f"{folder}/text.txt", f"{folder}/held.txt", f"{folder}/notes.txt"
    for path in (text, held, notes):
        with open(path, "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 100)
    inline = {"init": None, "family": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    job = write_job(folder, "kept.json", model=inline, data={"train": text, "validation": held, "format": "text"}, train=TRAIN)
    other = f"{folder}/./other"
    for arguments, word in ((["--report", text], "--report"), (["--profile", text], "data.train"),
                            (["--profile", held], "data.validation"),
                            (["--report", notes], "is not that of a report; name another file"),
                            (["--report", job], "is the job itself"), (["--profile", job], "is the job itself"),
                            (["--profile", other, "--report", f"{folder}/other"], "is the file of --report, too")):
        before = [content(path) for path in (text, held, notes, job)]
        done = run(folder, job, *arguments, expect=2)
        assert word in done.stderr and arguments[1] in done.stderr, done.stderr
        assert [content(path) for path in (text, held, notes, job)] == before, f"{arguments} changed a file"
    assert not os.path.exists(other)
    link = f"{folder}/link"
    os.symlink("profile.json", link)
    run(folder, job, "--report", "/dev/null", "--profile", link)
    assert os.path.islink(link) and "ballast_profile" in json.loads(content(f"{folder}/profile.json")), "a link is followed"
    done = run(folder, job, "--report", "/dev/stdout")
    steps = [line["step"] for line in map(json.loads, done.stdout.splitlines()) if line["event"] == "step"]
    assert steps == list(range(1, 13)), done.stdout
    print("ok job, data and other files are no reports; devices and pipes are, and links stay")


def test_earlier_report(folder):
    job, report = write_job(folder, train=TRAIN), f"{folder}/twice.jsonl"
    done = run(folder, job, "--report", report, "--steps", "3")
    assert "earlier" not in done.stderr, done.stderr
    first = content(report)
    done = run(folder, job, "--report", report, "--steps", "5")
    said = f"ballastctl: the report of an earlier run is {report}.earlier-1 now\n"
    assert done.stderr.count(said) == 1, done.stderr
    assert content(f"{report}.earlier-1") == first and len(losses(read_report(report))) == 5
    print("ok the report of an earlier run is set aside")


def resume(folder, job, place, report, reference):
    """Goes on a few steps from the checkpoint of a stopped run: they are those of a run that never stopped."""
    step = newest(place)
    done = run(folder, job, "--resume", "--steps", str(step + 2), "--report", report)
    expected, _ = reference(step + 2)
    assert [(e["loss"].hex(), e["grad_norm"].hex()) for e in read_report(report)][-2:] == losses(expected)[-2:], \
        f"resumed from step {step}"
    return done


def test_full_disk(folder, reference):
    """The file system of the report is full, that of the checkpoints is not."""
    mounted, place, kept = f"{folder}/mounted", f"{folder}/full", f"{folder}/full.jsonl"
    os.mkdir(mounted)
    job = write_job(folder, train=dict(TRAIN, steps=MANY), checkpoint={"folder": place})
    inside = f'mount -t tmpfs -o size=64k none {mounted} || exit 77; "$@"; code=$?; cp {mounted}/r {kept}; exit $code'
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh", CTL, "run", job,
                           "--local", "--report", f"{mounted}/r"], env=environment(folder), text=True, timeout=120,
                          stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode in (1, 77) and not os.path.exists(kept):
        print(f"left out: a full disk: no file system can be mounted here: {done.stderr.strip()}")
        return
    assert done.returncode == 8, f"exit code {done.returncode}\n{done.stderr[-3000:]}"
    assert f"cannot write the report {mounted}/r: No space left on device; stopping after this step" in done.stderr, \
        done.stderr
    last, step = len(losses(read_report(kept))), newest(place)
    assert step > last > 0, f"step {step} was saved, step {last} reported"
    assert f"the same command with --resume continues from step {step} " in done.stderr, done.stderr
    done = resume(folder, job, place, kept, reference)
    assert f"warning: the report {kept} ends at step {last} and the checkpoint is of step {step}: " in done.stderr, \
        done.stderr
    print(f"ok a full disk at step {last + 1}: step {step} is saved, and its report warned of")


def test_lost_reader(folder, reference):
    """`--report - | head -1`: the reader ends, and the run with a checkpoint."""
    place = f"{folder}/reader"
    job = write_job(folder, train=dict(TRAIN, steps=MANY), checkpoint={"folder": place})
    control = subprocess.Popen([CTL, "run", job, "--local", "--report", "-"], env=environment(folder), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert json.loads(control.stdout.readline())["step"] == 1
    control.stdout.close()
    message = control.stderr.read()
    assert control.wait(120) == 5, message
    assert message.count("cannot write the report -: Broken pipe; stopping after this step\n") == 1, message
    assert "asked to stop" not in message, message
    resume(folder, job, place, f"{folder}/reader.jsonl", reference)
    print("ok a reader that ends costs no step")


def main():
    with scratch() as folder:
        def reference(steps):
            return run_job(folder, write_job(folder, "reference.json", train=dict(TRAIN, steps=steps)), "--local")

        test_files_that_are_kept(folder)
        test_earlier_report(folder)
        test_full_disk(folder, reference)
        test_lost_reader(folder, reference)


main()

# SPDX-License-Identifier: Apache-2.0
"""Verifies ballastctl leases, stores and drain on real stores: every form of output, exit codes, watches that resume by
revision without gaps and end rather than leave one out; and the five faults that etcdctl 3.4 shows in the same place: it
waits for ever for a dead server, ends with 0 for what has expired or is missing, has commands that do not take every -o,
and answers a wrong flag with a page of help. Also that faults of a store move their counters in its metrics."""
import json
import os
import re
import signal
import subprocess
import time

import ballast
import prometheus
from ballast import CTL, Service

HOLDER = os.path.join(os.path.dirname(ballast.BIN), "tests", "ballast-holder")
FORMS = ("table", "wide", "json", "ndjson", "yaml", "name")
BYTES = 100000


class Holder:
    def __init__(self, store, job, stage, slots):
        self.process = subprocess.Popen([HOLDER, store.address, job, str(stage), str(slots), str(BYTES)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == "ok\n"

    def tell(self, command, expect="ok"):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.split()[0] == expect, f"{command}: {answer}"

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            assert self.process.wait(60) == 0
        self.process.stdout.close()


def start_store(folder, name, *arguments):
    return Service(folder, "activation-store", "--listen", f"unix:{folder}/{name}", "--capacity", "64 MiB",
                   "--metrics-listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", *arguments)


def ctl(*words, expect=0, message=""):
    """Runs ballastctl; the limit is many times its own deadline: a hang is a fault."""
    done = subprocess.run([CTL, *words], text=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, f"{words}: exit code {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}"
    assert message in done.stderr, f"{words}: '{message}' is not in:\n{done.stderr}"
    return done.stdout


def leases_of(store, *more):
    return json.loads(ctl("leases", "list", "--store", store.address, "-o", "json", *more))


def forms(store):
    """Every command takes every -o, and says the same in each."""
    for command in (["leases", "list"], ["leases", "get", "0/1"], ["stores"], ["leases", "revoke", "0/1", "--dry-run"],
                 ["leases", "watch", "--from-revision", "1", "--events", "3"]):
        for form in FORMS:
            text = ctl(*command, "--store", store.address, "-o", form)
            assert text.endswith("\n") and text.strip(), f"{command} -o {form}: nothing"
            if form == "ndjson":
                assert [json.loads(line) for line in text.splitlines()], command
            if form == "name":
                assert all(re.fullmatch(r"0|0/(\d+|session)", line) for line in text.splitlines()), text
    names = ctl("leases", "list", "--store", store.address, "-o", "name").split()
    assert names == ["0/1", "0/2", "0/3"], names
    sealed = leases_of(store, "--state", "sealed")
    assert [(lease["lease"], lease["micro_batch"], lease["block_bytes"]) for lease in sealed] == \
        [("0/1", 0, BYTES), ("0/2", 1, BYTES)]
    assert leases_of(store, "--job", "another") == []


def faults_of_etcdctl(store, folder):
    nobody = f"unix:{folder}/nobody"
    ctl("leases", "list", "--store", nobody, "--timeout", "5", expect=5, message=nobody)  # no server: ends, says who
    ctl("leases", "get", "0/99", "--store", store.address, expect=3, message="lease 99")  # expired or missing
    ctl("leases", "watch", "0/99", "--store", store.address, expect=3, message="lease 99")
    ctl("leases", "revoke", "0/99", "--store", store.address, expect=3, message="lease 99")
    done = subprocess.run([CTL, "leases", "list", "--stroe", "x"], text=True, capture_output=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean '--store'?" in done.stderr, done.stderr


def a_store_that_stands_still(store):
    """etcdctl waits for ever: here every command ends with exit code 6 (deadline) soon after its --timeout."""
    store.process.send_signal(signal.SIGSTOP)
    try:
        for command in (["leases", "list"], ["leases", "get", "0/1"], ["stores"]):
            begin = time.monotonic()
            ctl(*command, "--store", store.address, "--timeout", "1", expect=6)
            took = time.monotonic() - begin
            assert 1 <= took < 60, f"{command} --timeout 1 took {took:.1f} s"  # a busy machine may be slow to start it
    finally:
        store.process.send_signal(signal.SIGCONT)
    assert len(leases_of(store)) == 3


def wrong_words(store, folder):
    at = ("--store", store.address)
    ctl("leases", "get", "seven", *at, expect=2, message="STORE/NUMBER")
    ctl("leases", "get", "4/1", *at, expect=3, message="there is no store 4")
    ctl("leases", "get", "1", *at, "--store", f"unix:{folder}/nobody", expect=2, message="such as 0/1")
    ctl("leases", "get", *at, expect=2, message="usage: ballastctl leases get")
    ctl("leases", "list", *at, "--state", "sealde", expect=2, message="did you mean 'sealed'?")
    ctl("leases", "revoke", *at, expect=2, message="name leases")
    ctl("leases", "wtach", *at, expect=2, message="did you mean 'watch'?")
    ctl("leases", "list", "--store", "nonsense", expect=2, message="nonsense")
    ctl("drain", "7", *at, expect=3, message="there is no store '7'")
    ctl("leases", "revoke", "0/1", "--generation", "77", *at, expect=4, message="generation")
    partly = ctl("stores", *at, "--store", f"unix:{folder}/nobody", "-o", "json", expect=10, message="store 1")
    assert [row["state"] for row in json.loads(partly)] == ["serving", "unreachable"]
    ctl("stores", "--store", f"unix:{folder}/nobody", expect=5, message="nobody")


def revisions(lines):
    return [json.loads(line)["revision"] for line in lines]


def a_watch_resumes_without_gaps(store, holder):
    """A watch that is stopped and one that goes on from its last revision have seen, together, every change once."""
    at = ("--store", store.address, "-o", "ndjson")
    begun = ctl("leases", "watch", *at, "--from-revision", "1", "--events", "4").splitlines()
    assert revisions(begun) == [1, 2, 3, 4]
    follower = subprocess.Popen([CTL, "leases", "watch", *at, "--from-revision", "5"], text=True,
                                stdout=subprocess.PIPE)
    for _ in range(20):
        holder.tell("evict 2")
        holder.tell("load 2")
    last = json.loads(ctl("stores", "--store", store.address, "-o", "json"))[0]["revision"]
    seen = []
    while not seen or seen[-1]["revision"] < last:
        seen.append(json.loads(follower.stdout.readline()))
    follower.send_signal(signal.SIGINT)
    assert follower.wait(60) == 130, "interrupted"
    follower.stdout.close()
    assert [event["revision"] for event in seen] == list(range(5, last + 1)), "no gap, nothing twice"
    states = [(e["from"], e["to"]) for e in seen if e.get("lease") == "0/3"]
    assert all(before[1] == after[0] for before, after in zip(states, states[1:])), "each change begins where one ended"
    ctl("leases", "watch", *at, "--from-revision", str(last + 1000), expect=2, message="not there yet")


def a_watch_is_of_one_store_process(folder):
    """A store that was started again counts anew: a watch over it says so instead of mixing two histories."""
    store = start_store(folder, "again")
    watch = subprocess.Popen([CTL, "leases", "watch", "--store", store.address, "--from-revision", "1", "-o", "ndjson"],
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    holder = None
    try:
        holder = Holder(store, "again", 0, 1)
        assert json.loads(watch.stdout.readline())["revision"] == 1, "the watch is connected"
        store.kill()
        store = start_store(folder, "again")
        _, error = watch.communicate(timeout=120)
        assert watch.returncode == 4 and "was restarted" in error, (watch.returncode, error)
    finally:
        if watch.poll() is None:
            watch.kill()
            watch.wait()
        if holder is not None:
            holder.process.kill()
            holder.process.wait()
            holder.process.stdin.close()
            holder.process.stdout.close()
        store.end()


def a_closed_pipe_ends_a_watch(store):
    watch = subprocess.Popen([CTL, "leases", "watch", "--store", store.address, "--from-revision", "1"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch.stdout.readline()
    watch.stdout.close()
    assert watch.wait(120) == 0
    assert watch.stderr.read() == ""
    watch.stderr.close()


def revoke_and_drain(store, holder):
    at = ("--store", store.address)
    address = re.search(r"metrics on http://(\S+)/metrics", store.log())[1]
    before = prometheus.scrape(address)
    assert ctl("leases", "revoke", "0/1", *at, "-o", "name") == "0/1\n"
    holder.tell("load 0", expect="DATA_LOSS")  # its holder learns that it is gone
    after = prometheus.scrape(address)
    moved = {key for key in after.values if after.values[key] > before.values[key] and key[0].endswith("_total")}
    assert ("ballast_store_revocations_total", ()) in moved
    assert ("ballast_store_refusals_total", (("reason", "lost"),)) in moved, moved
    assert ("ballast_store_checksum_failures_total", ()) not in moved
    assert after.get("ballast_store_call_seconds_count", call="evict") >= 3
    assert after.get("ballast_store_data_copied_bytes_total") == after.get("ballast_store_evicted_bytes_total") > 0
    assert after.get("ballast_store_leases", state="sealed") == 1
    prometheus.promtool(after.text)
    assert store.serves("ballast.v1.Store")
    assert "draining" in ctl("drain", *at)
    assert not store.serves("ballast.v1.Store") and store.serves(), "a store that drains is alive and not ready"
    holder.tell("plan 2", expect="PRECONDITION")
    assert "serving" in ctl("drain", "0", "--undrain", *at)
    assert store.serves("ballast.v1.Store")
    ctl("drain", *at, "--wait", "0.3", expect=6, message="still held")
    holder.end()
    rows = json.loads(ctl("drain", "0", *at, "--wait", "60", "-o", "json"))
    assert rows["state"] == "drained", rows
    end = prometheus.scrape(address)
    assert end.get("ballast_store_draining") == 1 and end.get("ballast_store_held_bytes") == 0
    assert end.get("ballast_store_session_ends_total", cause="closed") == 1
    assert end.get("ballast_store_refusals_total", reason="draining") >= 1
    assert set(end.values) == set(before.values), "series come and go"


def main():
    if not os.path.exists(HOLDER):
        ballast.skip(f"{HOLDER} is not built")
    with ballast.scratch() as folder:
        store = start_store(folder, "store")
        holder = None
        try:
            holder = Holder(store, "demo", 2, 3)
            holder.tell("evict 0")
            holder.tell("evict 1")
            forms(store)
            faults_of_etcdctl(store, folder)
            wrong_words(store, folder)
            a_store_that_stands_still(store)
            a_watch_resumes_without_gaps(store, holder)
            a_closed_pipe_ends_a_watch(store)
            revoke_and_drain(store, holder)
            a_watch_is_of_one_store_process(folder)
        finally:
            if holder is not None and holder.process.poll() is None:
                holder.process.kill()
                holder.process.wait()
            store.end()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Steps of the wall clock, an hour forward and back, in store and holder alike: a session that is renewed lives on and
keeps its block for many times its life, and one whose holder is stopped ends, not earlier than its life and grace."""
import json
import os
import signal
import subprocess
import time

import ballast
from ballast import CTL, Service, scratch, skip, wait_until

TESTS = os.path.join(os.path.dirname(ballast.BIN), "tests")
SHIM = os.path.join(TESTS, "ballast-clock-steps.so")
TTL, GRACE = 3.0, 2.0


def leases(store):
    done = subprocess.run([CTL, "leases", "list", "--store", store.address, "-o", "json", "--timeout", "60"], text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["leases"] if isinstance(found, dict) else found


def main():
    if not os.path.exists(SHIM):
        skip("the clock that jumps is not built with sanitizers")
    with scratch() as folder:
        os.environ["LD_PRELOAD"] = SHIM
        store = Service(folder, "activation-store", "--listen", f"unix:{folder}/store", "--capacity", "16 MiB", "--ttl",
                        str(TTL), "--grace", str(GRACE))
        holder = subprocess.Popen([os.path.join(TESTS, "ballast-holder"), store.address, "job", "0", "2", "100000"],
                                  text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        del os.environ["LD_PRELOAD"]
        try:
            assert holder.stdout.readline() == "ok\n"
            holder.stdin.write("evict 0\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "ok\n"
            end = time.monotonic() + 3 * TTL
            while time.monotonic() < end:
                assert len(leases(store)) == 2, "a lease is gone although its session is renewed"
                time.sleep(0.1)
            holder.stdin.write("load 0\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "ok\n"
            stopped = time.monotonic()
            holder.send_signal(signal.SIGSTOP)
            wait_until(lambda: not leases(store), 60, "the session of a stopped holder does not end")
            lived = time.monotonic() - stopped
            # The last renewal was at most a third of the TTL before the stop; 1 s: for a machine that was late with it.
            promised = TTL * 2 / 3 + GRACE
            assert lived > promised - 1, f"it ended after {lived:.1f} s, {promised:.1f} s are promised"
            print(f"ok: a session lives through steps of the clock; without renewals for {lived:.1f} s")
        finally:
            holder.kill()
            holder.communicate()
            store.kill()


main()

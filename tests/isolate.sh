#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test as if the machine were its own, so that others may run beside it: its own /dev/shm, loopback, ports, network
# namespaces and processes. What it leaves running fails it, and is ended. It ends with the process that started it.
#   isolate.sh COMMAND...
# Where namespaces may not be made (no root, or a container without the right) such tests take turns instead.
turns=${TMPDIR:-/tmp}/ballast-tests-$(id -u).lock

if [ "$1" != --inside ]; then
  if unshare --mount --net --pid --fork true 2>/dev/null; then
    exec setpriv --pdeathsig KILL unshare --mount --net --pid --fork --mount-proc --kill-child=KILL "$0" --inside "$@"
  fi
  exec setpriv --pdeathsig KILL flock --close "$turns" setpriv --pdeathsig KILL "$@"
fi
shift

running() { # whatever is neither of this script nor over
  ps -e -o pid=,state=,comm= | awk '$2 != "Z" && $3 !~ /^(isolate\.sh|ps|awk)$/'
}

mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t tmpfs -o mode=1777 none /dev/shm && ip link set lo up ||
  exit 1
"$@"
code=$?
for _ in $(seq 100); do # what was told to end may be at it
  left=$(running)
  [ -n "$left" ] || exit "$code"
  sleep 0.1
done
printf 'processes are left:\n%s\n' "$left" >&2
[ "$code" != 0 ] && [ "$code" != 77 ] || code=1
exit "$code"

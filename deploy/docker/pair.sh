#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The four programs of a pair (s, p - 1 - s) in one container: stage and store of s at ports 7700 and
# 7800, those of its partner at 7710 and 7810, health and metrics beside them. Ends when one of them does, with its exit
# code, after having asked the others to; SIGTERM goes to all. Arguments go to every program.
set -u
export POD_IP="${POD_IP:-127.0.0.1}"
pids=
start() { # program, arguments...
  "$@" &
  pids="$pids $!"
  echo "ballast-pair: $* (pid $!)" >&2
}
# shellcheck disable=SC2086
ask_all() { kill -TERM $pids 2>/dev/null; }
trap ask_all TERM INT

for device in 0 1; do
  start stage-service --listen="0.0.0.0:77${device}0" --health-listen="0.0.0.0:77${device}1" \
    --metrics-listen="0.0.0.0:96${device}0" --data-listen=0.0.0.0 --data-advertise="$POD_IP" "$@"
  start activation-store --listen="0.0.0.0:78${device}0" --health-listen="0.0.0.0:78${device}1" \
    --metrics-listen="0.0.0.0:96${device}5" --data-tcp="0.0.0.0:78${device}2" \
    --capacity="${STORE_CAPACITY:-1 GiB}" "$@"
done

# The first that ends decides; the others get to end by themselves.
code=0
while :; do
  for pid in $pids; do
    if ! kill -0 "$pid" 2>/dev/null; then
      wait "$pid"
      code=$?
      break 2
    fi
  done
  sleep 1 &
  wait $!
done
ask_all
wait
exit "$code"

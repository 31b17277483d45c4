#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The four programs of a pair (s, p - 1 - s) in one container: stage and store of s at ports 7700 and
# 7800, those of its partner at 7710 and 7810, health and metrics beside them; with HOST_CAPACITY a fifth, a store at 7820
# that lends both so much memory of the host. Ends when one of them does, with its exit
# code, after having asked the others to; SIGTERM goes to all. Arguments go to every program.
#
# STORE_CAPACITY says what each store lends; with STORE_DEVICE=cuda it is memory of the pod's
# GPUs: the first is that of the first stage and its store, the second that of its partner. The host store then lends pinned
# memory of the host, which the GPUs reach by themselves.
#
# STORE_TLS is the folder with ca.crt, tls.crt and tls.key of the stores, where the arguments have --tls-*: these are of the
# stages then, since a certificate says which program it is of.
#
# POD_INDEX, or the number at the end of POD_NAME, says which pair this is: its stages then know which ones they should be.
set -u
export POD_IP="${POD_IP:-127.0.0.1}"
name="${POD_NAME:-}"
pair="${POD_INDEX:-${name##*-}}"
unset POD_INDEX POD_NAME # they number pods, stages are two in each
case $pair in '' | *[!0-9]*) pair= ;; esac
pids=
asked=

start() { # program, arguments...
  "$@" &
  pids="$pids $!"
  echo "ballast-pair: $* (pid $!)" >&2
}

start_store() { # number, capacity, word for its device or none, arguments...
  number=$1 capacity=$2 lends=$3
  shift 3
  for argument in "$@"; do # the list is made anew behind its own front
    shift
    case $argument in --tls-*) [ -n "${STORE_TLS:-}" ] && continue ;; esac
    set -- "$@" "$argument"
  done
  if [ -n "${STORE_TLS:-}" ]; then
    set -- "$@" --tls-ca="$STORE_TLS/ca.crt" --tls-certificate="$STORE_TLS/tls.crt" --tls-key="$STORE_TLS/tls.key"
  fi
  start activation-store --listen="0.0.0.0:78${number}0" --health-listen="0.0.0.0:78${number}1" \
    --metrics-listen="0.0.0.0:96${number}5" --data-tcp="0.0.0.0:78${number}2" \
    --capacity="$capacity" ${lends:+"$lends"} "$@"
}

# Once: a second SIGTERM would keep a store from waiting for those who still have blocks in it.
ask_all() {
  [ -n "$asked" ] && return
  asked=yes
  # shellcheck disable=SC2086
  kill -TERM $pids 2>/dev/null
}
trap ask_all TERM INT

for device in 0 1; do
  index=-1
  [ -n "$pair" ] && index=$((2 * pair + device))
  start stage-service --listen="0.0.0.0:77${device}0" --health-listen="0.0.0.0:77${device}1" \
    --metrics-listen="0.0.0.0:96${device}0" --data-listen=0.0.0.0 --data-advertise="$POD_IP" \
    --pod-index="$index" ${STORE_DEVICE:+--gpu="$device"} "$@"
  start_store "$device" "${STORE_CAPACITY:-1 GiB}" "${STORE_DEVICE:+--device=$STORE_DEVICE:$device}" "$@"
done
if [ -n "${HOST_CAPACITY:-}" ] && [ -n "${STORE_DEVICE:-}" ]; then
  start_store 2 "64 KiB" "--device=$STORE_DEVICE:0" --spill="$HOST_CAPACITY" --threads=2 "$@"
elif [ -n "${HOST_CAPACITY:-}" ]; then
  start_store 2 "$HOST_CAPACITY" "" --threads=2 "$@"
fi

# The first that ends decides; the others get to end by themselves.
code=
while [ -z "$code" ]; do
  for pid in $pids; do
    if [ -z "$code" ] && ! kill -0 "$pid" 2>/dev/null; then
      wait "$pid"
      code=$?
    fi
  done
  if [ -z "$code" ]; then
    sleep 1 &
    wait $!
  fi
done
ask_all
for pid in $pids; do
  while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
  done
done
exit "$code"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one command.
#
#   tests/gpu/run.sh [quick|claims|1|2]      default: parts 1 and 2
#
# quick and claims are for a GPU that is lent for a short time: each is over within 8 minutes (BALLAST_RUN_SECONDS).
# quick is a first look: it builds for this GPU alone (or takes the programs of BALLAST_BIN), runs every operation and every small
# model in a process of its own, a few at once beside the smallest cases under compute-sanitizer, again with
# CUDA_LAUNCH_BLOCKING=1 what failed, then paths, figures and, where programs were brought, services. Each check has a limit of
# its own, so that none hides another.
# claims measures what papers say, on the build of quick, or with the programs of BALLAST_BIN: stages of GPT-2 1.5B and LLaMA 7B,
# whole, with the ways of attention and recomputation and micro-batches of 1 to 8; where services are, losses to the bit on 1, 2
# and 4 stages and what parking costs; copies to the host beside products; parts of GPT-3 96B and LLaMA 65B for the table of
# predictions in docs/gpu.md. What matters most comes first. All of it is one table, build-gpu/logs/table.md, whose lack of a row
# is a failure.
# Part 1 needs a GPU with its driver, the CUDA toolkit 13, NCCL, cuDNN 9, CMake and a C and C++ compiler: it builds
# without services into build-gpu, checks every operation and 20 steps of small models against the fp64 reference and
# the host's losses, moves memory between processes, and measures operations and a stage, beside PyTorch where that is. With
# python3 it also judges what it measured.
# Part 2 needs what packages.txt names too: it builds everything and runs services on the GPU; or, where BALLAST_BIN names a
# folder of programs that were built elsewhere (tests/gpu/pack.sh), runs these.
# Where there is no GPU it says so and ends with 77: before it builds, if a program that can tell is there (in BALLAST_BIN,
# build or build-gpu), else after the first build. `run.sh device` does no more than that. Logs are in build-gpu/logs; where OUT
# names a folder, all of them come there as logs.tar.gz. The last lines say of every check how it ended.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
parts=${1:-1 2}
case $parts in
quick | claims | device | 1 | 2 | "1 2") ;;
*) echo "tests/gpu/run.sh: '$parts' is no part: quick, claims, 1, 2 or device; without one, 1 and 2" >&2 && exit 2 ;;
esac
jobs=$(nproc)
passed=0 failed=0 skipped=0 measured=no sampler=
if [[ $parts == quick || $parts == claims ]]; then
  BALLAST_RUN_SECONDS=${BALLAST_RUN_SECONDS:-480}
  export CUDA_MODULE_LOADING=${CUDA_MODULE_LOADING:-LAZY} # a process with all kernels takes three seconds longer to begin
fi
limit=${BALLAST_CHECK_SECONDS:-3600} # of one check
ends=()                              # a line for each
AT_ONCE=4                            # checks: contexts on one GPU take turns, and are made one after the other
started=() wrong=()                   # what goes on in the background, and what of the last to end failed
# BALLAST_TRY=1: tiny sizes, to try this script on a device that is not there (BALLAST_MODULES=build/tests/late); whatever
# is measured then is below what is promised.
ops_sizes=() stage_sizes=() path_sizes=() copy_sizes=()
if [ -n "${BALLAST_TRY:-}" ]; then
  ops_sizes=(--hidden 64 --seq 32 --micro-batch 1 --vocab 100 --samples 1)
  stage_sizes=(--hidden 512 --seq 32 --samples 1)
  path_sizes=(--tensor 1MiB --pairs 1 --product 64 --pace 1)
  copy_sizes=(--block 1MiB --pairs 1 --product 64 --pace 1)
fi

need_device() { # the program that can tell, with arguments; ends with 77 and the reason where there is no GPU
  local answer
  [ -x "$1" ] || return 0 # not built yet
  answer=$("$@" 2>&1) && return 0
  echo "SKIPPED: $answer"
  exit 77
}

seconds_left() { # for the next check
  local left=$limit
  [ -z "${BALLAST_RUN_SECONDS:-}" ] || left=$((BALLAST_RUN_SECONDS - SECONDS))
  echo $((left < limit ? left : limit))
}

say() { # how a check ended
  echo "== $1"
  ends+=("$1")
}

# Runs a command within its time; how it ended is in the log's .end: exit code, seconds, seconds that it had.
perform() { # name, command...
  local end=build-gpu/logs/$1.log.end left began=$SECONDS run=()
  shift
  left=$(seconds_left)
  if [ "$left" -lt 3 ]; then
    echo "SKIPPED: no time left"
    echo 77 0 0 >"$end"
    return
  fi
  [ "$(type -t "$1")" = function ] || run=(timeout -k 5 "$left")
  "${run[@]}" "$@"
  echo $? $((SECONDS - began)) "$left" >"$end"
}

report() { # name; ends with 1 where it failed
  local log=build-gpu/logs/$1.log code seconds left
  read -r code seconds left <"$log.end"
  rm -f "$log.end"
  case $code in
  0) passed=$((passed + 1)) && say "$1: ok ($seconds s)" ;;
  77) skipped=$((skipped + 1)) && say "$1: SKIPPED: $(grep -m1 -o 'SKIPPED: .*' "$log" | cut -c10-)" ;;
  124 | 137) failed=$((failed + 1)) && say "$1: FAILED: not over after $left s, see $log" ;;
  *) failed=$((failed + 1)) && say "$1: FAILED with $code, see $log" ;;
  esac
  [ "$code" = 0 ] || [ "$code" = 77 ]
}

check() { # name, command...: alone
  echo "== $1: ${*:2}"
  perform "$@" 2>&1 | tee "build-gpu/logs/$1.log"
  report "$1"
}

begin() { # name, command...: in the background, few at once
  while [ "$(jobs -rp | wc -l)" -ge $AT_ONCE ]; do
    wait -n
  done
  perform "$@" >"build-gpu/logs/$1.log" 2>&1 &
  started+=("$1")
}

settle() { # those that failed are then in `wrong`
  local name
  wait
  wrong=()
  for name in "${started[@]}"; do
    cat "build-gpu/logs/$name.log"
    report "$name" || wrong+=("$name")
  done
  started=()
}

# What goes on in the background hears no Ctrl-C.
interrupted() {
  local job
  for job in $(jobs -p); do
    pkill -P "$job"
    kill "$job"
  done 2>/dev/null
  exit 130
}
trap interrupted INT TERM

# What is right or wrong, and not fast or slow, at once: every operation and every small model alone, so that what one of them does to
# the GPU another does not see; what fails is tried again with launches that wait.
all_at_once() { # folder of the runner
  local runner=$1/gpu-runner name tool
  echo "== at once: $(date +%T)"
  for name in $("$runner" names); do
    begin "operation-$name" "$runner" operations cuda "$name"
  done
  for name in $("$runner" runs); do
    begin "trajectory-$name" "$runner" trajectories cuda "$name"
  done
  for tool in memcheck racecheck; do
    for name in norm cross_entropy; do
      begin "$tool-$name" sanitized $tool "$runner" $name
    done
  done
  settle
  for name in "${wrong[@]}"; do
    case $name in
    operation-*) begin "$name-blocking" env CUDA_LAUNCH_BLOCKING=1 "$runner" operations cuda "${name#operation-}" ;;
    trajectory-*) begin "$name-blocking" env CUDA_LAUNCH_BLOCKING=1 "$runner" trajectories cuda "${name#trajectory-}" ;;
    esac
  done
  settle
}

sanitized() { # tool, the runner, operation
  command -v compute-sanitizer >/dev/null || { echo "SKIPPED: no compute-sanitizer" && return 77; }
  timeout -k 5 "$(seconds_left)" compute-sanitizer --tool "$1" --error-exitcode 9 "$2" operations cuda "$3"
}

architecture() { # of this GPU, for cmake; both where that cannot be asked
  local found
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
  [ -n "$found" ] && echo "-DBALLAST_CUDA_ARCHITECTURES=$found-real"
}

configure() { # folder, cmake arguments...
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S . -B "$1" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "${@:2}" && cmake --build "$1" -j "$jobs"
}

tests_of_gpu() { # ends well also when every test was skipped: that is a skip
  ctest --test-dir build -L gpu --output-on-failure | tee build-gpu/logs/ctest.txt || return
  grep -q ' Passed ' build-gpu/logs/ctest.txt && return
  echo "SKIPPED: no test labelled gpu ran"
  return 77
}

judge() { # what it judges, its log; python3 is not among what the first part needs
  command -v python3 >/dev/null || { echo "SKIPPED: no python3 to judge what is in $2" && return 77; }
  python3 -B tests/gpu/judge.py "$@"
}

beside_pytorch() {
  command -v python3 >/dev/null || { echo "SKIPPED: no python3" && return 77; }
  timeout -k 5 "$(seconds_left)" python3 -B tools/bench/pytorch_stage.py --faster
}

figures() { # folder of programs: what is promised of operations and of a stage, once
  local bench=$1/ballast-bench
  [ $measured = no ] || return 0
  measured=yes
  check ops "$bench" ops --device cuda "${ops_sizes[@]}"
  check ops-judged judge ops build-gpu/logs/ops.log
  check stage "$bench" stage --model llama-65b --micro-batches 1,2 --write build-gpu/logs/stage "${stage_sizes[@]}"
  check stage-judged judge stage build-gpu/logs/stage.jsonl
  BALLAST_BIN=$1 check pytorch beside_pytorch
}

# ---- claims

wanted=() # rows of the table: NAME:B,B,...

# What MFU and HFU are relative to, TFLOP/s of dense bf16; where it is not known here, the best of the products.
peak() {
  case $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1) in
  *H100*PCIe*) echo 756 ;;
  *NVL*) echo 835 ;;
  *H100* | *H200*) echo 989 ;;
  *A100*) echo 312 ;;
  *) echo 0 ;;
  esac
}

claim_stage() { # ballast-bench, name, model, micro-batches, seq, words of `stage`...
  local name=claims-$2 sizes=(--seq "$5" --samples 7)
  if [ -n "${BALLAST_TRY:-}" ]; then # heads of 96 are to be divided by 4, too
    sizes=(--seq 32 --samples 1 --hidden 512)
    [ "$3" != gpt3-96b ] || sizes[5]=384
  fi
  wanted+=("$name:$4")
  check "$name" "$1" stage --model "$3" --micro-batches "$4" --peak "$peak" --write "build-gpu/logs/$name" "${@:6}" "${sizes[@]}"
}

no_python() {
  echo "SKIPPED: no python3"
  return 77
}

no_services() {
  echo "SKIPPED: there are no services with CUDA: build them, or bring them in BALLAST_BIN (tests/gpu/pack.sh)"
  return 77
}

claim_services() { # name, words of claims.py...
  local name=claims-$1
  shift
  if [ -z "$services" ]; then
    check "$name" no_services
  elif command -v python3 >/dev/null; then
    BALLAST_BIN=$services check "$name" python3 -B tests/gpu/claims.py "$@"
  else
    check "$name" no_python
  fi
}

draw_table() {
  local code
  command -v python3 >/dev/null || { echo "SKIPPED: no python3; tests/gpu/table.py draws it from the logs" && return 77; }
  python3 -B tests/gpu/table.py build-gpu/logs "${wanted[@]}" >build-gpu/logs/table.md
  code=$?
  cat build-gpu/logs/table.md
  return "$code"
}

watch_clocks() {
  command -v nvidia-smi >/dev/null || return 0
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,clocks.max.memory,power.limit,ecc.mode.current \
    --format=csv >build-gpu/logs/gpu.csv 2>/dev/null
  nvidia-smi --query-gpu=utilization.gpu,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv -l 1 \
    >build-gpu/logs/clocks.csv 2>/dev/null &
  sampler=$!
}

# $1: folder of programs. The seconds that the table takes are kept.
claims() {
  local bench=$1/ballast-bench peak services="" model layers way
  peak=$(peak)
  if [ -x "$1/ballastctl" ]; then
    services=$1
  elif [ -x build/bin/ballastctl ] && build/bin/stage-service --list-devices >/dev/null 2>&1; then
    services=$PWD/build/bin
  fi
  rm -f build-gpu/logs/claims-* build-gpu/logs/table.*
  watch_clocks
  BALLAST_RUN_SECONDS=$((BALLAST_RUN_SECONDS - 10))
  limit=60
  for way in "flash none" "naive none" "naive attention" "flash full" "naive full"; do
    for model in "gpt2-1.5b 6" "llama-7b 4"; do
      read -r attention recompute model layers <<<"$way $model"
      claim_stage "$bench" "$model-$attention-$recompute" "$model" 1,2,4,8 2048 --shard 1 --layers "$layers" \
        --attention "$attention" --recompute "$recompute"
    done
  done
  claim_stage "$bench" llama-7b-head llama-7b 1,2,4,8 2048 --shard 1 --layers 4 --head
  limit=120
  claim_services bits-flash bits flash
  claim_services parking-2 parking 2
  limit=60
  check claims-copies "$bench" copies "${copy_sizes[@]}"
  check claims-copies-judged judge copies build-gpu/logs/claims-copies.log
  for way in "gpt3-96b naive attention" "gpt3-96b flash none" "gpt3-96b naive none" "llama-65b naive none" \
    "llama-65b naive attention" "llama-65b flash none"; do
    read -r model attention recompute <<<"$way"
    claim_stage "$bench" "$model-$attention-$recompute" "$model" 1,2,4 2048 --shard 4 --attention "$attention" \
      --recompute "$recompute"
  done
  limit=120
  claim_services parking-1 parking 1
  claim_services bits-naive bits naive
  claim_services parking-4 parking 4
  limit=60 # as it was published, with half the positions
  claim_stage "$bench" gpt2-1.5b-1024-flash-none gpt2-1.5b 1,2,4,8 1024 --shard 1 --layers 6 --attention flash
  [ -z "$sampler" ] || kill "$sampler" 2>/dev/null
  BALLAST_RUN_SECONDS=$((SECONDS + 10))
  check table draw_table
}

end() {
  [ -z "${OUT:-}" ] || tar -C build-gpu -czf "$OUT/logs.tar.gz" logs
  printf '%s\n' "${ends[@]}"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] || exit 1
  [ "$passed" -gt 0 ] || exit 77
  exit 0
}

if [ -n "${BALLAST_BIN:-}" ] && [ -d "$BALLAST_BIN/../deps" ]; then # packed; NVIDIA's libraries may be Python's
  wheels=$(python3 -c "import glob, nvidia; print(':'.join(f for p in nvidia.__path__ for f in glob.glob(p + '/*/lib')))" \
    2>/dev/null || true)
  export LD_LIBRARY_PATH=$wheels${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} BALLAST_GOLDEN=$PWD/tests/gpu/golden.txt
fi
if [ -n "${BALLAST_BIN:-}" ]; then
  need_device "$BALLAST_BIN/stage-service" --list-devices
elif [ ! -e /dev/nvidiactl ]; then # else what was built before may have been built without CUDA
  need_device build/bin/stage-service --list-devices
  need_device build-gpu/tests/gpu-runner devices
fi
[ "$parts" = device ] && exit 0
mkdir -p build-gpu/logs
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv

build_for_this_gpu() {
  local of_this
  read -ra of_this <<<"$(architecture)"
  if ! configure build-gpu -DBALLAST_SERVICES=OFF -DBALLAST_CUDA=ON "${of_this[@]}" >build-gpu/logs/build.log 2>&1; then
    tail -30 build-gpu/logs/build.log
    say "build: FAILED, see build-gpu/logs/build.log"
    failed=1
    end
  fi
  say "build: $SECONDS s"
}

if [ "$parts" = claims ]; then
  bin=${BALLAST_BIN:-$PWD/build-gpu/bin}
  if [ -n "${BALLAST_BIN:-}" ]; then
    "$bin/stage-service" --list-devices >build-gpu/logs/devices.log 2>&1
  else
    build_for_this_gpu
    need_device build-gpu/tests/gpu-runner devices
    build-gpu/tests/gpu-runner devices >build-gpu/logs/devices.log 2>&1
  fi
  claims "$bin"
  end
fi

if [ "$parts" = quick ]; then
  nvidia-smi -q -d CLOCK,POWER,TEMPERATURE >build-gpu/logs/clocks.txt 2>&1 || true
  bin=${BALLAST_BIN:-$PWD/build-gpu/bin}
  tests=$(dirname "$bin")/tests
  [ -n "${BALLAST_BIN:-}" ] || build_for_this_gpu
  need_device "$tests/gpu-runner" devices
  "$tests/gpu-runner" devices >build-gpu/logs/devices.log 2>&1
  limit=60
  [ -z "${BALLAST_TRY:-}" ] || limit=600 # all at once, on whatever processors there are
  all_at_once "$tests"
  check path-ipc "$tests/gpu-paths" ipc
  check path-edges "$tests/gpu-paths" edges
  check path-nccl-stress "$tests/gpu-paths" stress
  check path-nccl "$tests/gpu-paths" nccl
  limit=120
  figures "$bin"
  if [ -n "${BALLAST_BIN:-}" ]; then # each with up to eight processes that take turns on the GPU
    check bits-flash python3 -B tests/gpu/claims.py bits flash
    check stores-2 python3 -B tests/gpu/stores.py 2
    check ranks python3 -B tests/gpu/ranks.py quick
    limit=300
    check services python3 -B tests/gpu/services.py
  fi
  end
fi

if [[ $parts == *1* ]]; then
  if ! configure build-gpu -DBALLAST_SERVICES=OFF -DBALLAST_CUDA=ON >build-gpu/logs/build.log 2>&1; then
    tail -30 build-gpu/logs/build.log
    echo "== build: FAILED, see build-gpu/logs/build.log"
    failed=1
    end
  fi
  need_device build-gpu/tests/gpu-runner devices
  check operations build-gpu/tests/gpu-runner operations cuda
  check trajectories build-gpu/tests/gpu-runner trajectories cuda
  check path-ipc build-gpu/tests/gpu-paths ipc
  check path-ipc-judged judge pulled build-gpu/logs/path-ipc.log
  check path-ipc-legacy env BALLAST_CUDA_LEGACY_IPC=1 build-gpu/tests/gpu-paths ipc
  check path-edges build-gpu/tests/gpu-paths edges
  check path-edges-judged judge edges build-gpu/logs/path-edges.log
  check path-edges-legacy env BALLAST_CUDA_LEGACY_IPC=1 build-gpu/tests/gpu-paths edges
  check path-nccl build-gpu/tests/gpu-paths nccl
  check path-nccl-stress build-gpu/tests/gpu-paths stress
  figures "$PWD/build-gpu/bin"
fi

if [[ $parts == *2* ]]; then
  bin=${BALLAST_BIN:-$PWD/build/bin}
  if [ -z "${BALLAST_BIN:-}" ] && { ! command -v pkg-config >/dev/null || ! pkg-config --exists grpc libprotobuf-c; }; then
    echo "== services: SKIPPED: gRPC and what else packages.txt names are not installed"
    skipped=$((skipped + 1))
    end
  fi
  if [ -z "${BALLAST_BIN:-}" ] && ! configure build -DBALLAST_CUDA=ON >build-gpu/logs/build-services.log 2>&1; then
    tail -30 build-gpu/logs/build-services.log
    echo "== build of the services: FAILED, see build-gpu/logs/build-services.log"
    failed=$((failed + 1))
    end
  fi
  need_device "$bin/stage-service" --list-devices
  [ -n "${BALLAST_BIN:-}" ] || check tests tests_of_gpu
  BALLAST_BIN=$bin check services python3 -B tests/gpu/services.py
  BALLAST_BIN=$bin check ranks python3 -B tests/gpu/ranks.py
  BALLAST_BIN=$bin check stores python3 -B tests/gpu/stores.py
  check path-blocks "$bin/ballast-bench" path --device cuda:0 "${path_sizes[@]}"
  check path-judged judge path build-gpu/logs/path-blocks.log
  figures "$bin"
fi

end

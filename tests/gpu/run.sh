#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one command.
#
#   tests/gpu/run.sh [quick|1|2|3]      default: parts 1 and 2
#
# quick is a first look on a GPU that is lent for a short time: it is over within 8 minutes (BALLAST_RUN_SECONDS), builds for this
# GPU alone, runs every operation in a process of its own, one that fails again with CUDA_LAUNCH_BLOCKING=1, the smallest cases
# under compute-sanitizer where that is, and then as much of part 1 as there is time for. Each check has a limit of its own, so
# that none hides another.
# Part 1 needs a GPU with its driver, the CUDA toolkit 13, NCCL, cuDNN 9, CMake and a C and C++ compiler: it builds
# without services into build-gpu, checks every operation and 20 steps of small models against the fp64 reference and
# the host's losses, moves memory between processes, and measures operations and a stage, beside PyTorch where that is. With
# python3 it also judges what it measured.
# Part 2 needs what packages.txt names too: it builds everything and runs services on the GPU; or, where BALLAST_BIN names a
# folder of programs that were built elsewhere (tests/gpu/pack.sh), runs these.
# Part 3 measures stages of large models, for the table of docs/gpu.md: results in build-gpu/logs/*.jsonl.
# Where there is no GPU it says so and ends with 77: before it builds, if a program that can tell is there (in BALLAST_BIN,
# build or build-gpu), else after the first build. `run.sh device` does no more than that. Logs are in build-gpu/logs; where OUT
# names a folder, all of them come there as logs.tar.gz. The last lines say of every check how it ended.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
parts=${1:-1 2}
jobs=$(nproc)
passed=0 failed=0 skipped=0 measured=no
[ "$parts" = quick ] && BALLAST_RUN_SECONDS=${BALLAST_RUN_SECONDS:-480}
limit=${BALLAST_CHECK_SECONDS:-3600} # of one check
ends=()                              # a line for each
# BALLAST_TRY=1: tiny sizes, to try this script on a device that is not there (BALLAST_MODULES=build/tests/late); whatever
# is measured then is below what is promised.
ops_sizes=() stage_sizes=() path_sizes=()
if [ -n "${BALLAST_TRY:-}" ]; then
  ops_sizes=(--hidden 64 --seq 32 --micro-batch 1 --vocab 100 --samples 1)
  stage_sizes=(--hidden 512 --seq 32 --samples 1)
  path_sizes=(--tensor 1MiB --pairs 1 --product 64 --pace 1)
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

check() { # name, command...
  local name=$1 log=build-gpu/logs/$1.log code left began=$SECONDS run=()
  shift
  left=$(seconds_left)
  if [ "$left" -lt 3 ]; then
    skipped=$((skipped + 1))
    say "$name: SKIPPED: no time left"
    return 0
  fi
  [ "$(type -t "$1")" = function ] || run=(timeout -k 5 "$left")
  echo "== $name: $*"
  "${run[@]}" "$@" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  case $code in
  0) passed=$((passed + 1)) && say "$name: ok ($((SECONDS - began)) s)" ;;
  77) skipped=$((skipped + 1)) && say "$name: SKIPPED: $(grep -m1 -o 'SKIPPED: .*' "$log" | cut -c10-)" ;;
  124 | 137) failed=$((failed + 1)) && say "$name: FAILED: not over after $left s, see $log" ;;
  *) failed=$((failed + 1)) && say "$name: FAILED with $code, see $log" ;;
  esac
  return "$([ "$code" = 0 ] || [ "$code" = 77 ]; echo $?)"
}

# Every operation alone: what one of them does to the GPU another does not see.
each_operation() { # the runner
  local name
  for name in $("$1" names); do
    check "operation-$name" "$1" operations cuda "$name" ||
      check "operation-$name-blocking" env CUDA_LAUNCH_BLOCKING=1 "$1" operations cuda "$name"
  done
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
  python3 -B tools/bench/pytorch_stage.py --faster
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

end() {
  [ -z "${OUT:-}" ] || tar -C build-gpu -czf "$OUT/logs.tar.gz" logs
  printf '%s\n' "${ends[@]}"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] || exit 1
  [ "$passed" -gt 0 ] || exit 77
  exit 0
}

if [ -n "${BALLAST_BIN:-}" ] && [ -d "$BALLAST_BIN/../deps" ]; then # packed, with its libraries; NVIDIA's may be Python's
  wheels=$(python3 -c "import glob, nvidia; print(''.join(f + ':' for p in nvidia.__path__ for f in glob.glob(p + '/*/lib')))" \
    2>/dev/null || true)
  LD_LIBRARY_PATH=$wheels$(realpath "$BALLAST_BIN/../deps")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
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

if [ "$parts" = quick ]; then
  nvidia-smi -q -d CLOCK,POWER,TEMPERATURE >build-gpu/logs/clocks.txt 2>&1 || true
  read -ra of_this <<<"$(architecture)"
  if ! configure build-gpu -DBALLAST_SERVICES=OFF -DBALLAST_CUDA=ON "${of_this[@]}" >build-gpu/logs/build.log 2>&1; then
    tail -30 build-gpu/logs/build.log
    say "build: FAILED, see build-gpu/logs/build.log"
    failed=1
    end
  fi
  say "build: $SECONDS s"
  runner=$PWD/build-gpu/tests/gpu-runner
  need_device "$runner" devices
  limit=60
  each_operation "$runner"
  for tool in memcheck racecheck; do
    for name in norm cross_entropy; do
      check "$tool-$name" sanitized $tool "$runner" $name
    done
  done
  limit=120
  check trajectories "$runner" trajectories cuda
  check path-ipc build-gpu/tests/gpu-paths ipc
  check path-nccl-stress build-gpu/tests/gpu-paths stress
  check path-nccl build-gpu/tests/gpu-paths nccl
  figures "$PWD/build-gpu/bin"
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
  BALLAST_BIN=$bin check stores python3 -B tests/gpu/stores.py
  check path-blocks "$bin/ballast-bench" path --device cuda:0 "${path_sizes[@]}"
  check path-judged judge path build-gpu/logs/path-blocks.log
  figures "$bin"
fi

if [[ $parts == *3* ]]; then
  bench=$PWD/build-gpu/bin # of the second part where that has CUDA, since it writes profiles too
  build/bin/stage-service --list-devices >/dev/null 2>&1 && bench=$PWD/build/bin
  bench=${BALLAST_BIN:-$bench}/ballast-bench
  for model in gpt3-96b gpt3-175b llama-65b; do
    for attention in naive flash; do
      for recompute in none attention full; do
        name=stage-$model-$attention-$recompute
        check "$name" "$bench" stage --model $model --attention $attention --recompute $recompute \
          --write "build-gpu/logs/$name" "${stage_sizes[@]}"
      done
    done
  done
fi
end

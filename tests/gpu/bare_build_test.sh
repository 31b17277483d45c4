#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first part of run.sh builds and runs where nothing is installed but CMake, compilers and NVIDIA's libraries: all others
# are hidden from it here. Its initial weights, and so its losses, are those of a build that has them.
#   bare_build_test.sh SOURCE FOLDER programs|all     all: the CUDA modules too, where they can be built, and optimized
set -euo pipefail
source=$1 folder=$2 what=$3
targets=(gpu-runner gpu-paths ballast-bench) cuda=OFF
flags=(-DCMAKE_BUILD_TYPE=Bare -DCMAKE_C_FLAGS=-O0) # half the time, and libraries that are found all the same
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
[ "$what" = all ] && targets=(all) cuda=AUTO flags=(-DCMAKE_BUILD_TYPE=Release)
rm -rf "$folder"
cmake -S "$source" -B "$folder" "${generator[@]}" "${flags[@]}" -DBALLAST_SERVICES=OFF -DBALLAST_CUDA=$cuda \
  -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON -DXXHASH_INCLUDE_DIR= >"$folder.log"
for words in "its hash in plain C" "no operations on the host"; do
  grep -q "$words" "$folder.log" || { echo "a library was found that should be hidden: no '$words'" && cat "$folder.log" && exit 1; }
done
cmake --build "$folder" -j 2 --target "${targets[@]}" >>"$folder.log" 2>&1 || { tail -40 "$folder.log" && exit 1; }
allowed='^(lib(c|m|gcc_s|pthread|dl|rt)|ld-linux-[a-z0-9-]+)\.so\.[0-9]+$'
for program in "$folder"/tests/gpu-runner "$folder"/tests/gpu-paths "$folder"/bin/ballast-bench; do
  if readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE "$allowed"; then
    echo "$program needs the above, which a bare machine has not"
    exit 1
  fi
done
"$folder"/tests/gpu-runner trajectories reference gpt2-fp32-naive # from the weights that golden.txt began with
"$folder"/bin/ballast-bench --help
for arguments in "ops --device cuda" "stage --model llama-65b"; do # or the reason
  code=0
  # shellcheck disable=SC2086
  BALLAST_MODULES=$folder/none "$folder"/bin/ballast-bench $arguments 2>"$folder.err" || code=$?
  [ $code != 0 ] && grep -q "libballast-cuda.* is not in " "$folder.err" || { echo "$arguments: $code" && cat "$folder.err" && exit 1; }
done
[ "$what" = all ] && "$(dirname "$0")/linkage_test.sh" "$folder"
echo "ok"

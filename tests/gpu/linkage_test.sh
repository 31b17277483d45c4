#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that no program needs an NVIDIA library, and that the modules show one symbol and need what they should and
# nothing else: no driver, no runtime library, no C++ library.
#   linkage_test.sh BUILD_FOLDER
set -euo pipefail
build=$1
command -v readelf >/dev/null || { echo "SKIPPED: no readelf"; exit 77; }
nvidia='lib(cuda|cudart|cublas|cudnn|nccl|nvidia|nvrtc)'
needed() { readelf -d "$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

count=0
for program in "$build"/bin/* "$build"/tests/gpu-runner; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  [[ $program == */test_flash_plans_* ]] && continue # has a part of the compute module inside, to plan with cuDNN itself
  count=$((count + 1))
  if needed "$program" | grep -E "$nvidia"; then
    echo "$program needs the NVIDIA library above"
    exit 1
  fi
done
[ "$count" -gt 0 ] || { echo "no programs in $build"; exit 1; }
echo "ok: $count programs need no NVIDIA library"

for module in "$build"/lib/libballast-cuda.so "$build"/lib/libballast-cuda-compute.so; do
  [ -f "$module" ] || { echo "not built here: $module"; continue; }
  allowed='^(lib(c|m|gcc_s|pthread|dl|rt|xxhash)|ld-linux-x86-64|ld-linux-aarch64)\.so\.[0-9]+$'
  [[ $module == *-compute.so ]] && allowed="$allowed|^lib(cublasLt|cudnn)\.so\.[0-9]+$"
  if needed "$module" | grep -vE "$allowed"; then
    echo "$module needs the above, which it should load itself, have inside or not use at all"
    exit 1
  fi
  symbols=$(readelf --dyn-syms -W "$module" | awk '$5 == "GLOBAL" && $7 != "UND" && $6 == "DEFAULT" { print $8 }')
  [ "$symbols" = bl_module ] || { echo "$module shows more than bl_module: $symbols"; exit 1; }
  echo "ok: $module"
done

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies --version: the program, its version and revision, and every library that the program is linked with (not of
# ballast-bench), in the version that the distribution has of it.
. "$(dirname "$0")/common.sh"
command -v readelf >/dev/null || skip "no readelf"

# What the linker calls a library, what --version does, and the version that is installed.
known() {
  case $1 in
  libuv.*) echo libuv "$(pkg-config --modversion libuv)" ;;
  libgrpc.*) echo grpc "$(pkg-config --modversion grpc)" ;;
  libprotobuf-c.*) echo protobuf-c "$(pkg-config --modversion libprotobuf-c)" ;;
  libssl.*) echo openssl "$(pkg-config --modversion openssl)" ;;
  libyaml*) echo libyaml "$(pkg-config --modversion yaml-0.1)" ;;
  libjansson.*) echo jansson "$(pkg-config --modversion jansson)" ;;
  libmicrohttpd.*) echo libmicrohttpd "$(pkg-config --modversion libmicrohttpd)" ;;
  libcairo.*) echo cairo "$(pkg-config --modversion cairo)" ;;
  libdnnl.*) echo onednn "$(printf '#include <dnnl_version.h>\nDNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH\n' |
    cc -E -P - | tail -1 | tr -d ' ')" ;;
  libgpr.* | libcrypto.* | libgomp.* | libm.* | libc.* | ld-linux* | libdl.* | libpthread.*) ;; # parts of others
  *) echo "$1" "is not known to this test" ;;
  esac
}

for program in stage-service activation-store ballast-driver ballastctl; do
  try "$bin/$program" --version
  equal "exit code of $program --version" 0 "$code"
  equal "what $program says on stderr" "" "$err"
  contains "first line" "$program $(sed -n 's/^project(ballast VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")" "${out%%$'\n'*}"
  needed=$(readelf -d "$bin/$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  [ -n "$needed" ] || fault "$program is linked with nothing"
  count=0
  for library in $needed; do
    line=$(known "$library")
    [ -z "$line" ] && continue
    contains "libraries of $program" "  $line" "$out"
    count=$((count + 1))
  done
  [ "$count" -ge 5 ] || fault "$program: only $count libraries: $needed"
done
try "$bin/ballast-bench" --version
equal "exit code of ballast-bench --version" 0 "$code"
equal "what ballast-bench says" "$("$ctl" --version | sed -n '1s/ballastctl/ballast-bench/p')" "$out"
contains "stage-service" "  onednn " "$("$bin/stage-service" --version)"
try "$ctl" version -o json
contains "version" '"grpc": "'"$(pkg-config --modversion grpc)" "$out"
contains "version" '"cairo": "'"$(pkg-config --modversion cairo)" "$out"
finish

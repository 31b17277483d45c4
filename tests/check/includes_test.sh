#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that the include rules hold in the tree, and that the script that says so finds each kind of violation.
#   includes_test.sh SOURCE_FOLDER
set -euo pipefail
root=$1
rules=$root/tools/check/includes.awk
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$root"
find lib stage-service tools proto tests -name '*.[ch]' | xargs awk -f "$rules"

fails() { # path, include line, expected text
  local path=$work/$1 output
  mkdir -p "$(dirname "$path")"
  printf '// a file\n#include %s\n' "$2" >"$path"
  if output=$(cd "$work" && awk -f "$rules" "$1"); then
    echo "not found: $1 with $2"
    exit 1
  fi
  case $output in
  "$1:2: "*"$3"*) ;;
  *) echo "unexpected: $output, wanted: $3" && exit 1 ;;
  esac
}

passes() {
  local path=$work/$1
  mkdir -p "$(dirname "$path")"
  printf '#include %s\n' "$2" >"$path"
  (cd "$work" && awk -f "$rules" "$1") || { echo "wrongly found: $1 with $2"; exit 1; }
}

fails lib/base/a.c '"sys/file.h"' 'base may not include sys'
fails lib/config/a.c '"formats/tokens.h"' 'config may not include formats'
fails lib/config/a.c '"schedule/generate.h"' 'config may not include schedule'
fails lib/model/a.c '"schedule/ir/schedule.h"' 'model may not include schedule'
fails lib/step/a.c '<time.h>' 'a pure library may not include <time.h>'
fails lib/rpc/a.c '<uv.h>' 'libuv'
fails lib/loop/a.c '<grpc/grpc.h>' 'gRPC'
fails stage-service/a.c '<dnnl.h>' 'oneDNN'
fails stage-service/a.c '"ballast/v1/stage.pb-c.h"' 'generated messages'
fails stage-service/a_wire.c '"cuda_runtime.h"' 'CUDA'
fails activation-store/a.c '"compute/ops/ops.h"' 'activation-store may not include stage-service'
fails tools/ballast-driver/a.c '"executor/plan.h"' 'tools/ballast-driver may not include stage-service'
fails tools/ballastctl/a.c '"datapath/boundary.h"' 'tools/ballastctl may not include datapath'
fails lib/rpc/a.c '<cairo.h>' 'cairo'
fails lib/client/a.c '"compute/ops/ops.h"' 'client may not include stage-service'
fails lib/schedule/generate/a.c '"schedule/search/dispatch.h"' 'schedule/generate may not include schedule/search'
fails lib/schedule/search/a.c '"schedule/generate.h"' 'schedule/search may not include schedule'

passes lib/schedule/generate.c '"schedule/search/pooled.h"'
passes lib/schedule/search/a.c '"schedule/generate/groups.h"'
passes lib/config/a.c '"schedule/names.h"'
passes lib/schedule/a.c '"model/model.h"'
passes lib/loop/a.c '<uv.h>'
passes lib/rpc/a.c '<grpc/support/log.h>'
passes stage-service/rpc_wire.c '"ballast/v1/stage.pb-c.h"'
passes stage-service/compute/ops/host/a.c '<oneapi/dnnl/dnnl.h>'
passes stage-service/compute/model/a.c '"compute/ops/ops.h"'
passes tools/bench/a.c '"compute/ops/ops.h"'
passes tools/ballastctl/a.c '"a_neighbour.h"'
echo "include rules: ok"

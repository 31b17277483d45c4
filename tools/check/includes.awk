# SPDX-License-Identifier: Apache-2.0
# Who may include whom, enforced from the #include lines.
#
#   cd ROOT && git ls-files '*.c' '*.h' '*.cu' | xargs awk -f tools/check/includes.awk
#
# Three tables: what a folder may include of this tree (components or single headers), which folders of a library stand
# on which, and which folders may include a library's header. Prints "file:line: reason" for each violation and ends
# with 1 if there was any.

function allow(component, uses) {
  allowed[component] = " " component " base " uses " "
}

function layer(folder, uses) {
  layered[folder] = " " folder " " uses " "
}

function restrict(pattern, places, what) {
  seam_pattern[++seams] = pattern
  seam_places[seams] = places
  seam_what[seams] = what
}

BEGIN {
  pure = "policy config formats model schedule simulate plan step lease"
  shells = "sys job tls loop rpc observe device datapath client service collective"

  allow("base", "")
  allow("sys", "")
  allow("policy", "")
  allow("config", "model policy schedule/names.h")
  allow("formats", "model")
  allow("step", "")
  allow("lease", "")
  allow("model", "")
  allow("schedule", "model policy")
  allow("simulate", "schedule model policy")
  allow("plan", "simulate schedule model policy lease")
  allow("job", "config formats model schedule simulate policy lease sys")
  allow("tls", "sys")
  allow("loop", "sys")
  allow("rpc", "tls loop sys")
  allow("observe", "loop sys")
  allow("device", "loop sys")
  allow("datapath", "device tls loop sys")
  allow("collective", "sys")
  allow("service", "rpc tls observe loop config sys")
  allow("client", "rpc tls datapath device loop sys")
  allow("stage-service", pure " " shells)
  allow("activation-store", pure " " shells)
  allow("tools/ballast-driver", pure " " shells)
  allow("tools/ballastctl", pure " sys job tls loop rpc observe device tools/draw")
  allow("tools/draw", pure " sys")
  allow("tools/bench", pure " " shells " stage-service tools/draw")

  # Folders of a library that stand on each other; what lies beside them may include any.
  layer("schedule/ir", "")
  layer("schedule/generate", "schedule/ir")
  layer("schedule/balance", "schedule/ir")
  layer("schedule/csv", "schedule/ir")
  layer("schedule/search", "schedule/ir schedule/generate schedule/balance")

  split(pure " base", names, " ")
  for (i in names) {
    is_pure[names[i]] = 1
  }

  restrict("^uv\\.h$", "^lib/loop/", "libuv")
  restrict("^grpc/", "^lib/rpc/|^tools/bench/bare_rpc/", "gRPC")
  restrict("^openssl/", "^lib/tls/", "OpenSSL")
  restrict("^(dnnl|oneapi/dnnl/)", "^stage-service/compute/ops/host/", "oneDNN")
  restrict("^(cuda|cudnn|cublas|nccl|cupti)", "/cuda/", "CUDA, cuDNN, NCCL and CUPTI")
  restrict("\\.pb-c\\.h$", "_wire\\.[ch]$", "generated messages")
  restrict("^protobuf-c/", "^lib/rpc/|_wire\\.[ch]$", "protobuf-c")
  restrict("^cairo", "^tools/draw/", "cairo")
  restrict("^yaml\\.h$", "^lib/config/", "libyaml")
  restrict("^microhttpd\\.h$", "^lib/observe/", "libmicrohttpd")
}

function report(reason) {
  printf "%s:%d: %s\n", FILENAME, FNR, reason
  violations++
}

# "lib/rpc/x.c" -> "rpc", "stage-service/..." -> "stage-service", "tools/bench/x.c" -> "tools/bench".
function component_of(path, parts) {
  split(path, parts, "/")
  if (parts[1] == "lib") {
    return parts[2]
  }
  return parts[1] == "tools" ? parts[1] "/" parts[2] : parts[1]
}

# The component that an include line names: "rpc/server.h" -> "rpc", "compute/ops/ops.h" -> "stage-service".
function component_included(name, parts) {
  split(name, parts, "/")
  if (parts[1] in allowed) {
    return parts[1]
  }
  if (parts[1] ~ /^(compute|data|executor|checkpoint)$/) {
    return "stage-service"
  }
  if (parts[1] ~ /^(draw|ballastctl)$/) {
    return "tools/" parts[1]
  }
  return ""
}

function check_tree(name, from, to) {
  from = component_of(FILENAME)
  if (!(from in allowed)) {
    return
  }
  to = name ~ /\// ? component_included(name) : from
  if (to != "" && index(allowed[from], " " to " ") == 0 && index(allowed[from], " " name " ") == 0) {
    report(from " may not include " to " (\"" name "\")")
  }
}

# "lib/schedule/ir/op.c" -> "schedule/ir"; "schedule/generate.h" -> "schedule", which stands on all of its folders.
function folder_of(path) {
  sub(/^lib\//, "", path)
  sub(/\/[^\/]*$/, "", path)
  return path
}

function check_layers(name, from, to) {
  from = folder_of(FILENAME)
  to = folder_of(name)
  if (from in layered && component_included(name) == component_of(FILENAME) && index(layered[from], " " to " ") == 0) {
    report(from " may not include " to " (\"" name "\")")
  }
}

function check_seams(name, i) {
  for (i = 1; i <= seams; i++) {
    if (name ~ seam_pattern[i] && FILENAME !~ seam_places[i]) {
      report(seam_what[i] " (<" name ">) may be included only where the path matches " seam_places[i])
    }
  }
  if (is_pure[component_of(FILENAME)] && FILENAME ~ /^lib\// &&
      name ~ /^(pthread|threads|time|sys\/time|sys\/socket|sys\/mman|netinet\/.*|fcntl|unistd|signal|poll)\.h$/) {
    report("a pure library may not include <" name ">: no clock, thread, socket or file inside")
  }
  if (name ~ /^(dnnl|oneapi\/dnnl\/)/ && !(FILENAME in dnnl_files)) {
    dnnl_files[FILENAME] = 1
    if (++dnnl_count == 2) {
      report("oneDNN is included in a second file; one file serves the 2.x and 3.x interfaces")
    }
  }
}

/^[ \t]*#[ \t]*include[ \t]*["<]/ && FILENAME !~ /^tests\// {
  name = $0
  sub(/^[^"<]*["<]/, "", name)
  sub(/[">].*/, "", name)
  check_seams(name)
  if ($0 ~ /include[ \t]*"/) {
    check_tree(name)
    check_layers(name)
  }
}

END {
  exit violations > 0
}

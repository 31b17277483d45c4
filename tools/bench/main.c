// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include "sys/version.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *name, *help;
  int (*run)(int argc, char **argv);
} commands[] = {
#ifdef BALLAST_BENCH_CHECKPOINT
    {"checkpoint", "a stage's snapshot beside memcpy, and writing it to disk", bl_bench_checkpoint},
#endif
    {"collective", "gathers of processes on this machine that share layers", bl_bench_collective},
    {"copies", "copies between a GPU and pinned memory of the host, and products beside them", bl_bench_copies},
    {"lease", "the lease table alone: operations per second, latency, bytes per lease", bl_bench_lease},
#ifdef BALLAST_HOST_OPERATIONS
    {"ops", "every operation alone: time, share of the matmul ceiling or bytes per second", bl_bench_ops},
#else
    {"ops", "operations that are bound by memory, each alone: bytes per second beside a copy", bl_bench_ops_device},
#endif
#ifdef BALLAST_BENCH_PATH
    {"path", "data paths of the host or a GPU against memcpy, a bare socket or a bare copy", bl_bench_path},
#endif
#ifdef BALLAST_BENCH_RPC
    {"rpc", "unary calls per second against gRPC C core alone", bl_bench_rpc},
#endif
    {"schedule", "processor time of generating, balancing and simulating schedules", bl_bench_schedule},
#ifdef BALLAST_HOST_OPERATIONS
    {"stage", "one stage alone: time and share of the matmul ceiling of F, I, W, B and the update", bl_bench_stage},
#else
    {"stage", "a part of a large model's stage: F, I, W, B, R and the update beside its products", bl_bench_shard},
#endif
#ifdef BALLAST_BENCH_STORE
    {"store", "a store through its client: operations per second, bandwidth beside memcpy", bl_bench_store},
#endif
};

static int usage(FILE *stream, int exit_code) {
  fputs("usage: ballast-bench COMMAND [options] | --version; --help after a command explains it\n", stream);
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    fprintf(stream, "  %-12s %s\n", commands[i].name, commands[i].help);
  }
  return exit_code;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    return usage(stderr, 2);
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    return usage(stdout, 0);
  }
  if (strcmp(argv[1], "--version") == 0) {
    bl_version_print("ballast-bench", stdout);
    return 0;
  }
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (strcmp(argv[1], commands[i].name) == 0) {
      return commands[i].run(argc - 2, argv + 2);
    }
  }
  fprintf(stderr, "ballast-bench: no benchmark is called '%s'\n", argv[1]);
  return usage(stderr, 2);
}

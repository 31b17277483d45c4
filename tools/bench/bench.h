// SPDX-License-Identifier: Apache-2.0
// The benchmarks of ballast-bench. Each is a subcommand with its own flags, in the file of its name. Results are
// written to standard output, one per line; docs/performance.md explains them.
#ifndef BALLAST_BENCH_BENCH_H
#define BALLAST_BENCH_BENCH_H

// argv[0] is the first argument after the subcommand. Returns the program's exit code.
int bl_bench_checkpoint(int argc, char **argv); // only if checkpoints are built
int bl_bench_collective(int argc, char **argv);
int bl_bench_copies(int argc, char **argv);
int bl_bench_lease(int argc, char **argv);
int bl_bench_ops(int argc, char **argv);        // only if the host has operations
int bl_bench_ops_device(int argc, char **argv); // `ops` with --device
int bl_bench_path(int argc, char **argv);       // only if the data path is built
int bl_bench_rpc(int argc, char **argv);        // only if the services are built
int bl_bench_shard(int argc, char **argv);      // `stage` with --model
int bl_bench_schedule(int argc, char **argv);
int bl_bench_stage(int argc, char **argv); // only if the host has operations
int bl_bench_store(int argc, char **argv); // only if the client is built

#endif

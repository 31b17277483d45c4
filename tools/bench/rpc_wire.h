// SPDX-License-Identifier: Apache-2.0
// The message that `ballast-bench rpc` sends: Commit of ballast.v1.Stage, a call for which every step waits. The answer
// contains the step of the request.
#ifndef BALLAST_BENCH_RPC_WIRE_H
#define BALLAST_BENCH_RPC_WIRE_H

#include "rpc/channel.h"
#include "rpc/server.h"

#include <stddef.h>
#include <stdint.h>

#define BL_BENCH_COMMIT_PATH "/ballast.v1.Stage/Commit"

// Adds the service, which answers every Commit at once with its step.
BL_MUST_USE bl_status_t bl_bench_commit_serve(bl_rpc_server_t *server, bl_error_t *err);
BL_MUST_USE bl_status_t bl_bench_commit_start(bl_rpc_channel_t *channel, uint64_t step, bl_rpc_done_fn done,
                                              void *context, bl_error_t *err);
uint64_t bl_bench_commit_applied(const ProtobufCMessage *output);
// Writes the same message as bytes, for the baseline; returns the number of bytes.
#define BL_BENCH_COMMIT_BYTES 256
size_t bl_bench_commit_pack(uint64_t step, uint8_t bytes[BL_BENCH_COMMIT_BYTES]);

#endif

// SPDX-License-Identifier: Apache-2.0
// Groups of NCCL between processes without NCCL (nccl.h): every two ranks have a unix socket. A collective is a task of the
// caller's stream that moves the bytes of its pieces, and ends early only if the group is aborted or has failed. What a rank
// sends must be what the other one receives, in the same collective and of the same size, else both fail. An abort returns
// when no task is left on a stream.
#ifndef TESTS_FAKE_GPU_NCCL_GROUP_H
#define TESTS_FAKE_GPU_NCCL_GROUP_H

#include "fake_gpu/nccl.h"

typedef struct fake_group fake_group_t;

// What the ranks of a group tell each other of themselves.
typedef struct fake_identity {
  char host[128], gpu[64];
} fake_identity_t;

fake_group_t *fake_group_create(const char *id, int rank, uint32_t ranks, const fake_identity_t *own);
uint32_t fake_group_rank(const fake_group_t *group);
uint32_t fake_group_ranks(const fake_group_t *group);
// DONE: all ranks are there, and nothing has failed since.
bl_nccl_result_t fake_group_poll(fake_group_t *group, char *text);
// Pieces have addresses of the CPU.
bl_nccl_result_t fake_group_collect(fake_group_t *group, bl_device_stream_t *stream, const bl_nccl_piece_t *pieces,
                                    uint32_t count, char *text);
void fake_group_abort(fake_group_t *group);

#endif

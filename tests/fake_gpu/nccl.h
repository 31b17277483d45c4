// SPDX-License-Identifier: Apache-2.0
// NCCL between processes without NCCL, for modules that are fake devices: bytes go over unix sockets, as strictly as the
// real one goes over wires.
//
//   - A send moves nothing before its receive is queued at the other rank; the n-th send meets the n-th receive, and another
//     size is an error on both sides.
//   - Nothing moves but while somebody asks (poll, over), a piece at a time.
//   - A rank whose process is gone is an error of its peer's; one that stands still is silence.
//   - An id serves one communicator, of two ranks or of a group (nccl_group.h).
//   - Two ranks on one GPU are refused, in NCCL's words, unless NCCL_HOSTID calls them different hosts.
//   - Communicators are non-blocking: a launch is over some questions later, as from a thread of its own. Under
//     NCCL_LAUNCH_ORDER_IMPLICIT a second communicator that launches meanwhile is refused, and a launch is not over before the
//     one before it in this process has started, which takes both its halves.
//
// Faults are planted in this process by fake_nccl_faults, which tests get as interface "fake_nccl" of the module, or, for
// another process, in its environment: FAKE_NCCL_VERSION (22809), FAKE_NCCL_STALL, FAKE_NCCL_NEVER_MADE, and
// FAKE_NCCL_HELD: while a file of that name is there, aborts do not return.
#ifndef TESTS_FAKE_GPU_NCCL_H
#define TESTS_FAKE_GPU_NCCL_H

#include "datapath/nccl/api.h"

#include <stdatomic.h>
#include <stddef.h>

#define FAKE_NCCL_INTERFACE "fake_nccl"

typedef struct fake_nccl_faults {
  atomic_uint stall;      // this transfer of the process, from 1, moves half of its bytes and stops for ever; 0: none
  atomic_bool never_made; // communicators do not get ready
  atomic_bool launch_fails;
  atomic_uint transfers;     // begun in this process
  atomic_uint made, aborted; // communicators
} fake_nccl_faults_t;

extern fake_nccl_faults_t fake_nccl_faults;

// Puts a task with a copy of its arguments on a stream; NULL: collectives run where they are called.
typedef void (*fake_nccl_queue_fn)(bl_device_stream_t *stream, void (*run)(void *arguments), const void *arguments,
                                   size_t bytes);
extern fake_nccl_queue_fn fake_nccl_queue;

// Where the bytes of an address of the device are; NULL: it may not be used so.
typedef uint8_t *(*fake_nccl_translate_fn)(const void *address, uint64_t bytes, bool writes);
// The table; the same for the whole process, whose communicators are on `gpu` from now on. NULL: where they were.
const bl_nccl_api_t *fake_nccl_api(fake_nccl_translate_fn translate, const char *gpu);

#endif

// SPDX-License-Identifier: Apache-2.0
// CUDA without a GPU: the functions of the runtime library and of the driver that the modules call, as a library to which the
// object files of the real modules are linked (build/tests/fake_cuda; BALLAST_MODULES). It computes nothing: kernels and
// products are only looked at; copies and fills happen. It is strict where a GPU is, or stricter:
//
//   - Addresses of the device are not mapped for the CPU: whoever touches one dies. Bytes lie in memfds behind them, which
//     other processes import.
//   - Virtual memory: sizes and addresses are multiples of the granularity, physical memory has one owner per release, what
//     is mapped is unmapped before it is released or its addresses freed, and nothing may be used without access to it.
//   - A stream does nothing until somebody waits or asks, and then one piece a question: a missing wait is seen. A copy from
//     ordinary memory takes its bytes at once, one into ordinary memory waits for its stream; both are for streams
//     without other work, or the thread's own, where the CPU means to wait.
//   - Whatever queued work still needs may not be unmapped, freed, unregistered or closed.
//   - Arguments of kernels that are pointers must be memory of the device that is there and may be used, or memory of the
//     host that is pinned; when they are launched, and again when they run.
//   - Handles that were destroyed, or never made, are refused.
//   - Every thread makes a device current before anything else.
//
// What breaks a rule is said on standard error ("fake CUDA: ..."), counted, and refused with CUDA_ERROR_INVALID_VALUE where
// the call can. At the end of the process what is left is said, and counted as broken too; with any the process ends with 99.
//
// Products are those of cublaslt.c, and plans of cuDNN those of cudnn.c, which know every matrix and so look at all of its memory.
// Whether cuDNN takes a graph is asked of the real one, for GPUs that are described (tests/ops/plans).
//
// The driver itself is not replaced: the runtime library asks it to prove that it is NVIDIA's, and cuBLASLt and cuDNN have that
// library inside; so their heuristics need a real one.
//
// In the environment: FAKE_CUDA_GPUS: devices, 1 if not set. FAKE_CUDA_NO_DESCRIPTORS: memory is handed out by name alone.
// FAKE_CUDNN_VERSION: as cuDNN counts, 91900.
//
// Thread: any; one mutex around everything.
#ifndef TESTS_FAKE_CUDA_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

// What tests ask, by dlsym of libfake-cuda.so, "fake_cuda_figures".
typedef struct fake_cuda_figures {
  uint64_t broken;                  // rules
  uint64_t host_waits;              // times the CPU waited for the device, or asked and it was not ready
  uint64_t pageable_copies;         // of ordinary memory
  uint64_t launches, copies, fills; // launches: of kernels and products
  uint64_t products, odd_rows;      // odd_rows: matrices of them whose rows are no multiple of 16 bytes
  uint64_t live_handles, live_reservations, live_mappings, live_allocations; // physical, addresses, maps, cuMemAlloc
  uint64_t live_streams, live_events, live_pinned;
  uint64_t connections; // queues between host and device, as CUDA_DEVICE_MAX_CONNECTIONS said when it was first asked
  uint64_t loads_early; // CUDA_MODULE_LOADING said EAGER then
} fake_cuda_figures_t;
typedef void (*fake_cuda_figures_fn)(fake_cuda_figures_t *figures);
// The next broken rules are expected: counted in *count, and neither said nor kept against the process. NULL ends that.
typedef void (*fake_cuda_expect_fn)(uint64_t *count);
// What was launched since, by name of the kernel, in order; `count` of them are written. Starts anew.
typedef uint64_t (*fake_cuda_launched_fn)(const char **names, uint64_t capacity);

#endif

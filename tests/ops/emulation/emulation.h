// SPDX-License-Identifier: Apache-2.0
// Runs kernels on the CPU: the words of CUDA C that kernels use, as C++ for the host's compiler. A block's threads are
// fibers of one thread of the CPU, so that barriers and exchanges within warps work as they do on a device; blocks run
// one after the other. Included by compute/ops/cuda/kernels/device.h where nvcc does not compile it.
//
// What it finds: wrong indices, wrong sums, threads that miss a barrier or an exchange (the process aborts and says so),
// copies into shared memory that nobody waited for, and missing barriers, as each warp runs ahead of the others as far as barriers let it, from the first warp and block to
// the last or the other way (bl_emulated_reverse). What it cannot: races within a warp, and between blocks that only
// another mixture of turns shows.
#ifndef BALLAST_TESTS_OPS_EMULATION_H
#define BALLAST_TESTS_OPS_EMULATION_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bl_emulated_index {
  unsigned x, y, z;
} bl_emulated_index_t;

typedef struct bl_emulated {
  bl_emulated_index_t thread, block, threads, blocks;
} bl_emulated_t;

extern bl_emulated_t bl_emulated;  // of the fiber that runs
extern bool bl_emulated_reverse;   // threads and blocks take their turns from the last to the first
extern uint64_t bl_emulated_count; // of launches so far
// Shared memory that a kernel is launched with, and how much of it a multiprocessor has.
#define BL_EMULATED_SHARED_MOST 233472u
extern unsigned bl_emulated_shared_bytes;
extern unsigned bl_emulated_threads; // of a block that holds a row in registers, at most
extern uint64_t bl_emulated_shared[BL_EMULATED_SHARED_MOST / sizeof(uint64_t)];

// Runs body(argument) in every thread of every block; returns 0, or 9 (cudaErrorInvalidConfiguration) for a shape that a
// device refuses.
int bl_emulated_launch(bl_emulated_index_t blocks, unsigned threads, void (*body)(const void *argument),
                       const void *argument);
void bl_emulated_barrier(void); // of the block
// All lanes of the warp give a value of `bytes` (up to 8); each gets that of lane ^ mask.
void bl_emulated_exchange(void *value, unsigned bytes, unsigned mask);
// 16 bytes into shared memory, which are there when this thread waits for their group and not before, or under
// bl_emulated_reverse at once; a thread that ends with some on their way aborts the process.
void bl_emulated_fetch(void *place, const void *from);
void bl_emulated_fetch_group(void);
void bl_emulated_fetch_wait(unsigned left);

#ifdef __cplusplus
}

#define BL_DEVICE inline
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx       bl_emulated.thread
#define blockIdx        bl_emulated.block
#define blockDim        bl_emulated.threads
#define gridDim         bl_emulated.blocks
#define __syncthreads() bl_emulated_barrier()

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
  }
};

struct alignas(8) uint2 {
  uint32_t x, y;
};

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

template <typename T> inline T __shfl_xor_sync(unsigned, T value, int mask) {
  bl_emulated_exchange(&value, sizeof value, (unsigned)mask);
  return value;
}

template <typename F> inline int bl_emulate(dim3 blocks, unsigned threads, const F &body) {
  return bl_emulated_launch(
      {blocks.x, blocks.y, blocks.z}, threads, [](const void *argument) { (*(const F *)argument)(); }, &body);
}

#define BL_UNBRACKET(...) __VA_ARGS__
#define BL_LAUNCH(kernel, blocks, threads, stream, ...)                                                                \
  ((void)(stream), bl_emulate(blocks, threads, [&] { BL_UNBRACKET kernel(__VA_ARGS__); }))
#define BL_LAUNCH_SHARED(kernel, blocks, threads, bytes, stream, ...)                                                  \
  ((bytes) > bl_emulated_shared_bytes ? 1 : BL_LAUNCH(kernel, blocks, threads, stream, __VA_ARGS__))
#define BL_DYNAMIC_SHARED(type, name) type *const name = (type *)bl_emulated_shared
#endif

#endif

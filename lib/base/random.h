// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers. Every value is a pure function of (key, index), so results do not depend on the order
// of calls, on how a model is partitioned, or on threads. The generator is Philox4x32-10 (Salmon et al., SC 2011).
//
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_RANDOM_H
#define BALLAST_BASE_RANDOM_H

#include <stdint.h>

// Returns the key of the stream of a name, e.g. a parameter's global name: (seed, name) -> key.
uint64_t bl_random_key(uint64_t seed, const char *name);
// Returns 64 uniform bits at `index` of the stream `key`.
uint64_t bl_random_bits(uint64_t key, uint64_t index);
// Uniform in [0, 1), 53 bits.
double bl_random_uniform(uint64_t key, uint64_t index);
// Uniform integer in [0, bound), without modulo bias beyond 2^-64 * bound; bound >= 1.
uint64_t bl_random_below(uint64_t key, uint64_t index, uint64_t bound);
// Standard normal at `index`: Box-Muller of two uniforms of one Philox output.
double bl_random_normal(uint64_t key, uint64_t index);

#endif

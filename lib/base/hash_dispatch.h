// SPDX-License-Identifier: Apache-2.0
// Private to lib/base (and its test): builds of bl_hash64 and bl_hash64_copy for different processors. All return the
// same values.
#ifndef BALLAST_BASE_HASH_DISPATCH_H
#define BALLAST_BASE_HASH_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t bl__hash64_baseline(const void *bytes, size_t size_bytes, uint64_t seed);
uint64_t bl__hash64_copy_baseline(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed);
#if defined(__x86_64__)
uint64_t bl__hash64_avx2(const void *bytes, size_t size_bytes, uint64_t seed); // needs AVX2; three times as fast
uint64_t bl__hash64_copy_avx2(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                              bool past_caches); // at least 1 KiB
#endif

#endif

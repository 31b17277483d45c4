// SPDX-License-Identifier: Apache-2.0
// The builds of bl_hash64 for different processors; all give the same values. Inside of lib/base (and its test).
#ifndef BALLAST_BASE_HASH_DISPATCH_H
#define BALLAST_BASE_HASH_DISPATCH_H

#include <stddef.h>
#include <stdint.h>

uint64_t bl__hash64_baseline(const void *bytes, size_t size_bytes, uint64_t seed);
#if defined(__x86_64__)
uint64_t bl__hash64_avx2(const void *bytes, size_t size_bytes, uint64_t seed); // needs AVX2; three times as fast
#endif

#endif

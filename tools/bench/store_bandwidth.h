// SPDX-License-Identifier: Apache-2.0
// Evictions and loads of large blocks, two in flight, on both paths, with and without checksums, each beside its
// reference in the same run: memcpy of the same bytes, or a bare socket.
#ifndef BALLAST_BENCH_STORE_BANDWIDTH_H
#define BALLAST_BENCH_STORE_BANDWIDTH_H

#include "base/error.h"

#include <stdint.h>

#define BL_STORE_BANDWIDTH_BLOCKS 8u // per sample
#define BL_STORE_BANDWIDTH_PAIRS  99

// Prints one line per path and direction. The store at `address` has room for BL_STORE_BANDWIDTH_BLOCKS of `bytes`.
BL_MUST_USE bl_status_t bl_store_bandwidth(const char *address, uint64_t bytes, unsigned pairs, bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
// Numbers for operations that are timed: what is all alike can be faster.
#ifndef BALLAST_BENCH_NUMBERS_H
#define BALLAST_BENCH_NUMBERS_H

#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

// Fills memory of a device with positive numbers about 1, floats or bf16, the same ones every quarter of a million.
BL_MUST_USE bl_status_t bl_bench_spread(bl_device_t *device, void *to, uint64_t bytes, bool bf16, bl_error_t *err);

#endif

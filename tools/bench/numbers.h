// SPDX-License-Identifier: Apache-2.0
// Numbers for operations that are timed. Operations on equal numbers can be faster than usual.
#ifndef BALLAST_BENCH_NUMBERS_H
#define BALLAST_BENCH_NUMBERS_H

#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

// Fills device memory with positive numbers around 1, floats or bf16. The sequence repeats every quarter of a million
// numbers.
BL_MUST_USE bl_status_t bl_bench_spread(bl_device_t *device, void *to, uint64_t bytes, bool bf16, bl_error_t *err);

#endif

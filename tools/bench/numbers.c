// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS (UINT64_C(1) << 18)

bl_status_t bl_bench_spread(bl_device_t *device, void *to, uint64_t bytes, bool bf16, bl_error_t *err) {
  const uint64_t piece = NUMBERS * (bf16 ? sizeof(uint16_t) : sizeof(float));
  float *numbers = malloc(NUMBERS * sizeof *numbers);
  if (numbers == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for numbers");
  }
  for (uint64_t i = 0; i < NUMBERS; i++) {
    numbers[i] = fabsf((float)bl_random_normal(7, i)) + 0.01f; // second moments are not negative
  }
  uint16_t *halves = (uint16_t *)(void *)numbers;
  for (uint64_t i = 0; bf16 && i < NUMBERS; i++) { // a bf16 element is the upper half of a float
    uint32_t bits;
    memcpy(&bits, &numbers[i], sizeof bits);
    halves[i] = (uint16_t)(bits >> 16);
  }
  bl_status_t status = BL_OK;
  for (uint64_t at = 0; at < bytes && status == BL_OK; at += piece) {
    status = bl_device_copy(device, NULL, (char *)to + at, numbers, bytes - at < piece ? bytes - at : piece, err);
  }
  free(numbers);
  return status;
}

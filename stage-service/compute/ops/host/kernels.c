// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/kernels.h"

extern const bl_kernels_t bl__kernels_baseline;

#if defined(__x86_64__)
extern const bl_kernels_t bl__kernels_avx2;
extern const bl_kernels_t bl__kernels_avx512;

// The sets are compiled for x86-64-v3 and x86-64-v4. These are the features of those levels that kernels can use.
static bool has_avx2(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void) {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const bl_kernels_t *bl__kernels_select(bl_instruction_set_t set) {
#if defined(__x86_64__)
  if ((set == BL_ISA_AUTO || set == BL_ISA_AVX512) && has_avx512()) {
    return &bl__kernels_avx512;
  }
  if ((set == BL_ISA_AUTO || set == BL_ISA_AVX2) && has_avx2()) {
    return &bl__kernels_avx2;
  }
#endif
  return set == BL_ISA_AUTO || set == BL_ISA_BASELINE ? &bl__kernels_baseline : NULL;
}

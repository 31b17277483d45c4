// SPDX-License-Identifier: Apache-2.0
// Timing on machines with other load. A sample counts only if the thread had the processor nearly all of the time (CPU
// time / wall time), and results are medians (base/sort.h).
#ifndef BALLAST_BENCH_MEASURE_H
#define BALLAST_BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

// A sample with a smaller share of the processor was disturbed.
#define BL_MEASURE_CPU_SHARE_MIN 0.98

typedef struct bl_sample {
  uint64_t wall_ns;
  uint64_t cpu_ns; // of the process, divided by the number of its compute threads
} bl_sample_t;

void bl_sample_start(bl_sample_t *sample);
void bl_sample_stop(bl_sample_t *sample, unsigned threads);
bool bl_sample_undisturbed(const bl_sample_t *sample);

// Binds the calling thread, and threads that it starts, to one processor. Returns false if that fails.
bool bl_measure_pin(int processor);

#endif

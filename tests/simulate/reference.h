// SPDX-License-Identifier: Apache-2.0
// Reference schedules for tests: reference.csv holds end times and peaks of public generators (zero-bubble, PyTorch,
// Megatron-LM, DeepSpeed, DualPipe, Chimera), timed by one independent evaluator.
#ifndef BALLAST_TESTS_SIMULATE_REFERENCE_H
#define BALLAST_TESTS_SIMULATE_REFERENCE_H

#include "schedule/ir/costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFERENCE_MAX 400

typedef struct reference {
  char name[40], source[20];
  uint32_t p, m, v;
  double forward, input, weight, boundary, t_end;
  double peak[8];
  double worst_peak;
} reference_t;

static inline bl_costs_t reference_costs(const reference_t *record) {
  return (bl_costs_t){.every = {record->forward, record->input, record->weight, record->forward},
                      .boundary = record->boundary};
}

// Fills `records` (room for REFERENCE_MAX) and returns how many there are; ends the program if the file is broken.
static inline size_t reference_read(reference_t *records) {
  FILE *file = fopen(BALLAST_SOURCE_DIR "/tests/simulate/reference.csv", "r");
  char line[256];
  size_t count = 0;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    reference_t *r = &records[count];
    int peaks = 0;
    memset(r, 0, sizeof *r);
    if (line[0] == '#') {
      continue;
    }
    if (count == REFERENCE_MAX ||
        sscanf(line, "%39[^,],%19[^,],%u,%u,%u,%lf,%lf,%lf,%lf,%lf,%n", r->name, r->source, &r->p, &r->m, &r->v,
               &r->forward, &r->input, &r->weight, &r->boundary, &r->t_end, &peaks) != 10) {
      fprintf(stderr, "reference.csv, record %zu: cannot be read: %s", count, line);
      exit(1);
    }
    char *at = line + peaks;
    for (uint32_t s = 0; s < r->p && s < 8; s++) {
      r->peak[s] = strtod(at, &at);
      r->worst_peak = r->peak[s] > r->worst_peak ? r->peak[s] : r->worst_peak;
    }
    count++;
  }
  if (file == NULL || count == 0) {
    fprintf(stderr, "reference.csv: cannot be read\n");
    exit(1);
  }
  fclose(file);
  return count;
}

#endif

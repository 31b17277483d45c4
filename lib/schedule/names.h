// SPDX-License-Identifier: Apache-2.0
// The names of schedules and the default shape of each, for job files (config/job.h) and for the generators
// (generate.c).
#ifndef BALLAST_SCHEDULE_NAMES_H
#define BALLAST_SCHEDULE_NAMES_H

// In the order of DESIGN.md section 7. With two pipes half of the micro-batches run in the other direction, through a
// copy of the model.
// X(identifier, name, chunks a stage, slices, pipes)
#define BL_SCHEDULE_NAMES(X)                                                                                           \
  X(GPIPE, "gpipe", 1, 1, 1)                                                                                           \
  X(1F1B, "1f1b", 1, 1, 1)                                                                                             \
  X(EAGER_1F1B, "eager-1f1b", 1, 1, 1)                                                                                 \
  X(INTERLEAVED, "interleaved", 2, 1, 1)                                                                               \
  X(GROUPED_INTERLEAVED, "grouped-interleaved", 2, 1, 1)                                                               \
  X(SEQ1F1B, "seq1f1b", 1, 2, 1)                                                                                       \
  X(ZB_H1, "zb-h1", 1, 1, 1)                                                                                           \
  X(ZB_H2, "zb-h2", 1, 1, 1)                                                                                           \
  X(ZB_V, "zb-v", 2, 1, 1)                                                                                             \
  X(V_MIN, "v-min", 2, 1, 1)                                                                                           \
  X(V_HALF, "v-half", 2, 1, 1)                                                                                         \
  X(V_ZB, "v-zb", 2, 1, 1)                                                                                             \
  X(1F1B_V, "1f1b-v", 2, 1, 1)                                                                                         \
  X(ADAPTIVE, "adaptive", 2, 1, 1)                                                                                     \
  X(CHIMERA, "chimera", 2, 1, 2)                                                                                       \
  X(DUALPIPE, "dualpipe", 2, 1, 2)                                                                                     \
  X(DUALPIPE_V, "dualpipe-v", 2, 1, 1)

typedef enum bl_schedule_kind {
#define X(id, name, chunks, slices, pipes) BL_SCHEDULE_##id,
  BL_SCHEDULE_NAMES(X)
#undef X
} bl_schedule_kind_t;

#endif

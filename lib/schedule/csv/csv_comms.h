// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the cells of PyTorch's "compute_comms" files that do not compute:
// "<virtual stage><SEND_F|RECV_F|SEND_B|RECV_B|WAIT_SEND_F|WAIT_SEND_B><micro-batch>", and
// "<virtual stage><UNSHARD|RESHARD|REDUCE_GRAD|WAIT_REDUCE_GRAD>" with or without a micro-batch.
#ifndef BALLAST_SCHEDULE_CSV_COMMS_H
#define BALLAST_SCHEDULE_CSV_COMMS_H

#include "schedule/ir/schedule.h"

// Three kinds for each direction: activations forward, gradients back.
typedef enum bl__comm_kind {
  BL__COMM_SEND_F,
  BL__COMM_RECV_F,
  BL__COMM_WAIT_SEND_F,
  BL__COMM_SEND_B,
  BL__COMM_RECV_B,
  BL__COMM_WAIT_SEND_B,
  BL__COMM_UNSHARD, // this kind and the following are not messages
  BL__COMM_RESHARD,
  BL__COMM_REDUCE_GRAD,
  BL__COMM_WAIT_REDUCE_GRAD,
  BL__COMM_KINDS
} bl__comm_kind_t;

typedef struct bl__comm {
  bl__comm_kind_t kind;
  uint16_t virtual_stage;
  uint8_t slice;
  uint32_t micro_batch;
  uint32_t row, column; // of the file, from 1
} bl__comm_t;

// Returns whether the kind is a message or the wait for one.
static inline bool bl__comm_is_message(bl__comm_kind_t kind) {
  return kind < BL__COMM_UNSHARD;
}

#define BL__COMM_TEXT 48
const char *bl__comm_format(bl__comm_t comm, char text[BL__COMM_TEXT]);
// Returns false if the cell of `length` characters is not one of these. Does not set `row` and `column`.
bool bl__comm_parse(const char *text, size_t length, bl__comm_t *comm);
// Writes the comment lines (csv.h) that a file needs, and returns `text`. A schedule without transfers needs none;
// PyTorch does not accept comments.
#define BL__CSV_COMMENTS_TEXT 64
const char *bl__csv_comments(const bl_schedule_t *schedule, char text[BL__CSV_COMMENTS_TEXT]);

#endif

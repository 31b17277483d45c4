// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the messages of a "compute_comms" file beside its operations. What no data path of
// ours needs would still hang PyTorch, whose sends and receives go through one queue per rank: a message passes when it
// is the next of both its rows.
#ifndef BALLAST_SCHEDULE_CSV_MESSAGES_H
#define BALLAST_SCHEDULE_CSV_MESSAGES_H

#include "schedule/csv/csv_comms.h"

// One operation of a file and where it stands.
typedef struct bl__csv_cell {
  bl_op_t op;
  uint32_t row, column; // from 1
} bl__csv_cell_t;

typedef struct bl__csv_messages {
  const bl_schedule_t *schedule; // of the operations, validated
  const bl__csv_cell_t *cells;   // all operations and all other cells, in the order of the file
  size_t cell_count;
  const bl__comm_t *comms;
  size_t comm_count; // below UINT32_MAX
} bl__csv_messages_t;

// Every cell is on the row of its virtual stage; every message is there once at both ends, between two rows, sent after
// the operation that makes it and received before the one that needs it; a wait stands after its send. A file with
// messages has all of them, one with waits of a direction all waits of it. The rows can pass them on in their order.
// BL_INVALID names row, column and cell, or BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__csv_messages_check(const bl__csv_messages_t *messages, bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: checks the messages of a "compute_comms" file against its operations. Ballast's data paths
// do not need them, but a wrong order would hang PyTorch, whose sends and receives use one queue per rank: a message
// passes when it is the next one of both its rows.
#ifndef BALLAST_SCHEDULE_CSV_MESSAGES_H
#define BALLAST_SCHEDULE_CSV_MESSAGES_H

#include "schedule/csv/csv_comms.h"

// One operation of a file and its position.
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

// Checks that every cell is on the row of its virtual stage; that every message has one send and one receive, on
// different rows; that it is sent after the operation that makes it and received before the one that needs it; that a
// wait stands after its send; that a file with messages has all of them, and a file with waits of a direction all waits
// of that direction; and that the rows can pass the messages in their order. BL_INVALID names row, column and cell.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__csv_messages_check(const bl__csv_messages_t *messages, bl_error_t *err);

#endif

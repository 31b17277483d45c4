// SPDX-License-Identifier: Apache-2.0
// Reads and writes schedules in the CSV format of PyTorch's pipelining: no header, row = stage, cell = operation in
// order, empty cell = idle, spaces around a cell allowed, LF or CRLF. Cells with R, E and L (op.h) are an addition.
//
// Both compute_only and compute_comms files are supported. When a file is read, its SEND_*, RECV_*, WAIT_*, UNSHARD,
// RESHARD and REDUCE_GRAD cells are checked and then dropped, since the data path does what they ask for. Checked are
// their form and row. A file has all messages or none, each with both its ends, sent after the operation that makes it
// and received before the one that needs it, in an order that both rows have (else PyTorch would hang). OVERLAP_F_B
// pairs become their two operations in order. The map from virtual stages to stages follows from the rows.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_CSV_H
#define BALLAST_SCHEDULE_CSV_H

#include "schedule/ir/schedule.h"

// Reads and validates a schedule. `text` need not be terminated. BL_INVALID names row and column (from 1) and the cell.
BL_MUST_USE bl_status_t bl_csv_read(const char *text, size_t size_bytes, const char *name, bl_schedule_t **schedule,
                                    bl_error_t *err);
// Writes rows that end in LF into *text (heap, terminated, the caller frees it).
BL_MUST_USE bl_status_t bl_csv_write(const bl_schedule_t *schedule, char **text, size_t *size_bytes);
// The same in the format "compute_comms": a SEND and a RECV cell for each tensor that crosses a boundary between stages
// and, with `waits`, a WAIT_SEND cell, where PyTorch itself places them. PyTorch 2.15 requires the waits; releases
// before WAIT_SEND_F do not know them. UNSHARD, RESHARD and REDUCE_GRAD cells are left out: stages without sharding do
// not need them. BL_EXHAUSTED; BL_INVALID: the lists cannot run.
BL_MUST_USE bl_status_t bl_csv_write_comms(const bl_schedule_t *schedule, bool waits, char **text, size_t *size_bytes);

// Comment lines: the schedule has BL_TRANSFER_OVERLAP; the number of host stores follows.
#define BL_CSV_OVERLAP "# transfers: overlap"
#define BL_CSV_HOSTS   "# host stores: "

#endif

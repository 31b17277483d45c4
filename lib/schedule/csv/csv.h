// SPDX-License-Identifier: Apache-2.0
// Schedules as the CSV that PyTorch's pipelining reads and writes: no header, row = stage, cell = operation in order,
// empty cell = idle, spaces around a cell allowed, LF or CRLF. Ours is a superset: cells with R, E, L (op.h).
//
// PyTorch's compute_only and compute_comms files are both read and written. Read, SEND_*, RECV_*, WAIT_*, UNSHARD,
// RESHARD and REDUCE_GRAD cells are checked and dropped, since here the data path does what they ask for: form, row, all
// messages or none, each with both its ends, sent after the operation that makes it and received before the one that
// needs it, in an order that both rows have (else PyTorch would hang). OVERLAP_F_B pairs become their two operations in order. The map from virtual stages
// to stages follows from the rows.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_CSV_H
#define BALLAST_SCHEDULE_CSV_H

#include "schedule/ir/schedule.h"

// `text` need not be terminated. BL_INVALID names row, column and cell (all from 1). The schedule is validated.
BL_MUST_USE bl_status_t bl_csv_read(const char *text, size_t size_bytes, const char *name, bl_schedule_t **schedule,
                                    bl_error_t *err);
// Writes rows that end in LF into *text (heap, terminated, the caller frees it).
BL_MUST_USE bl_status_t bl_csv_write(const bl_schedule_t *schedule, char **text, size_t *size_bytes);
// The same with a SEND and a RECV cell for everything that passes a boundary between stages, and with `waits` a
// WAIT_SEND, where PyTorch itself places them: format "compute_comms". PyTorch 2.15 asks for the waits, releases before
// WAIT_SEND_F do not know them. UNSHARD, RESHARD and REDUCE_GRAD, which stages without sharding do not need, are left out.
// BL_EXHAUSTED; BL_INVALID: the lists cannot run.
BL_MUST_USE bl_status_t bl_csv_write_comms(const bl_schedule_t *schedule, bool waits, char **text, size_t *size_bytes);

// Comment lines that say BL_TRANSFER_OVERLAP, and how many host stores there are beside those of the devices.
#define BL_CSV_OVERLAP "# transfers: overlap"
#define BL_CSV_HOSTS   "# host stores: "

#endif

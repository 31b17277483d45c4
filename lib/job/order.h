// SPDX-License-Identifier: Apache-2.0
// The order of a job's training step: searched, or taken from another process that has searched it.
//
//   status = bl_job_order_make(&job, pooled, &schedule, &err);            // may take seconds of a core
//   status = bl_csv_write(schedule, &text, &text_bytes);          // how it travels (schedule/csv/csv.h)
//   status = bl_job_order_take(&job, text, text_bytes, &schedule, &err);
//
// One process of a run searches and passes the order on: ballastctl to the driver, the driver to its stages. An order
// from another process is not trusted: it is validated, and must be an order of this job.
// Pure. Thread: any.
#ifndef BALLAST_JOB_ORDER_H
#define BALLAST_JOB_ORDER_H

#include "config/job.h"
#include "schedule/ir/schedule.h"

// Returns whether the order for policies that park is made for memory of the host: a job with balance.host and
// memory.slots whose schedule is searched within a limit has such an order, unless it begins with bpipe, cap or auto,
// which park at devices.
bool bl_job_order_hosted(const bl_job_t *job);
// Returns whether a policy of this job has the order for policies that park. Of offload only in jobs with such an
// order (bl_job_order_hosted), and only where it is faster (simulate/host_order.h).
bool bl_job_order_pooled(const bl_job_t *job, bl_policy_kind_t kind);

// `pooled`: for policies that park (schedule/generate.h). With R if pipeline.recompute is full. BL_INVALID,
// BL_NOT_FOUND: no such schedule can be generated; names pipeline.schedule, or memory.slots if these are too few for
// any order. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_job_order_make(const bl_job_t *job, bool pooled, bl_schedule_t **schedule, bl_error_t *err);
// Returns whether policies that park have another order than those that do not.
bool bl_job_order_pools(const bl_job_t *job);
// Makes both orders of such a job. An order that is searched within a memory limit (zb-*, adaptive) is first searched
// for none, and from there for balancing: both take hardly longer than the second alone. On failure neither is set.
BL_MUST_USE bl_status_t bl_job_orders_make(const bl_job_t *job, bl_schedule_t **unpooled, bl_schedule_t **pooled,
                                           bl_error_t *err);

// Reads an order of this job. BL_INVALID names pipeline.schedule and what is wrong: not a schedule (row, column, cell);
// for other stages, chunks or micro-batches; chunks on other stages than the schedule puts them on; operations that the
// job's schedule does not have (I and W, R, E and L); weight gradients that would be added up in another order.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_job_order_take(const bl_job_t *job, const char *csv, size_t csv_bytes,
                                          bl_schedule_t **schedule, bl_error_t *err);

#endif

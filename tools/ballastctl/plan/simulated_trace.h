// SPDX-License-Identifier: Apache-2.0
// A simulated step as a trace for Chrome and Perfetto, in the form of chrome_trace.h: operations, waits by cause, slots
// in use. Evictions and loads have a row of their own, because they run during operations, and those at host stores one in
// the row of their link, too.
#ifndef BALLAST_BALLASTCTL_SIMULATED_TRACE_H
#define BALLAST_BALLASTCTL_SIMULATED_TRACE_H

#include "simulate/simulate.h"

// `unit_seconds`: seconds in one unit of the simulation's times. `block_bytes` [virtual stages]: what moves of a block;
// NULL: not known. BL_EXHAUSTED, BL_IO, ...
BL_MUST_USE bl_status_t bl_ctl_simulated_trace_write(const bl_schedule_t *schedule, const bl_simulation_t *simulation,
                                                     double unit_seconds, const uint64_t *block_bytes, const char *path,
                                                     bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
// A simulated step as a trace for Chrome and Perfetto, in the form of chrome_trace.h: operations, waits by cause, slots
// in use. Evictions and loads have a row of their own, because they run during operations.
#ifndef BALLAST_BALLASTCTL_SIMULATED_TRACE_H
#define BALLAST_BALLASTCTL_SIMULATED_TRACE_H

#include "simulate/simulate.h"

// `unit_seconds`: seconds in one unit of the simulation's times. BL_EXHAUSTED, BL_IO, ...
BL_MUST_USE bl_status_t bl_ctl_simulated_trace_write(const bl_schedule_t *schedule, const bl_simulation_t *simulation,
                                                     double unit_seconds, const char *path, bl_error_t *err);

#endif

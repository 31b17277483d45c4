// SPDX-License-Identifier: Apache-2.0
// Time against memory: unbalanced schedules as squares, balanced ones as crosses, both frontiers as steps.
// Thread: any; everything is borrowed for the call.
#ifndef BALLAST_DRAW_FRONTIER_PLOT_H
#define BALLAST_DRAW_FRONTIER_PLOT_H

#include "simulate/frontier.h"

// `path` ends in .svg or .png. BL_INVALID: another ending, or nothing to draw; BL_IO.
BL_MUST_USE bl_status_t bl_frontier_plot(const bl_frontier_t *frontier, const char *title, const char *path,
                                         bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
// The picture of time against memory: squares for unbalanced schedules, crosses for balanced ones, step lines for both
// frontiers.
// Thread: any; everything is borrowed for the call.
#ifndef BALLAST_DRAW_FRONTIER_PLOT_H
#define BALLAST_DRAW_FRONTIER_PLOT_H

#include "simulate/frontier.h"

// `path` must end in .svg or .png. BL_INVALID: another ending, or nothing to draw; BL_IO.
BL_MUST_USE bl_status_t bl_frontier_plot(const bl_frontier_t *frontier, const char *title, const char *path,
                                         bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
// Rows of flag tables that commands about schedules share. Values that differ (help, preset, required) follow the
// member.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_FLAGS_H
#define BALLAST_BALLASTCTL_SCHEDULE_FLAGS_H

#include "config/flags.h"
#include "schedule/ir/schedule.h"

#include <stddef.h>

extern const char *const bl_ctl_mode_names[]; // of bl_balance_mode_t

#define BL_CTL_COUNT_FLAG(type_, member, name_, argument_, most, ...)                                                  \
  {                                                                                                                    \
    .name = name_, .type = BL_OPTION_INT, .offset = offsetof(type_, member), .argument = argument_, .minimum = 1,      \
    .maximum = most, __VA_ARGS__                                                                                       \
  }
#define BL_CTL_STAGES_FLAG(type_, member, ...)                                                                         \
  BL_CTL_COUNT_FLAG(type_, member, "stages", "P", BL_STAGES_MAX, __VA_ARGS__)
#define BL_CTL_MICRO_BATCHES_FLAG(type_, member, ...)                                                                  \
  BL_CTL_COUNT_FLAG(type_, member, "micro-batches", "M", BL_MICRO_BATCHES_MAX, __VA_ARGS__)
#define BL_CTL_COST_FLAG(type_, member, ...)                                                                           \
  {                                                                                                                    \
    .name = "cost", .type = BL_OPTION_TEXT, .offset = offsetof(type_, member), .argument = "F,B,W,COMM[,R]",           \
    __VA_ARGS__                                                                                                        \
  }
#define BL_CTL_PATH_COST_FLAG(type_, member, ...)                                                                      \
  {                                                                                                                    \
    .name = "path-cost", .type = BL_OPTION_REAL, .offset = offsetof(type_, member), .argument = "X", .minimum = 0,     \
    .maximum = 1e12, .preset = "0", __VA_ARGS__                                                                        \
  }
#define BL_CTL_MODE_FLAG(type_, member)                                                                                \
  {                                                                                                                    \
    .name = "mode", .type = BL_OPTION_ENUM, .offset = offsetof(type_, member), .choices = bl_ctl_mode_names,           \
    .preset = "overlap",                                                                                               \
    .help = "overlap: transfers run during operations; fewest: evict when full, load just before use."                 \
  }

#endif

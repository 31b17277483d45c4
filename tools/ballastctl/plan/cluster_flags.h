// SPDX-License-Identifier: Apache-2.0
// Flags that describe a cluster, for the commands that predict step times on one.
#ifndef BALLAST_BALLASTCTL_CLUSTER_FLAGS_H
#define BALLAST_BALLASTCTL_CLUSTER_FLAGS_H

#include "config/flags.h"
#include "plan/candidate/nodes.h"
#include "plan/evaluate/hardware.h"

#include <stddef.h>

typedef struct bl_ctl_cluster_flags {
  char *nodes;
  bl_optional_real_t intra_gbps, inter_gbps;
  bl_optional_int_t cards;
} bl_ctl_cluster_flags_t;

#define BL_CTL_RATE_FLAG(type_, member_, name_, help_)                                                                 \
  {                                                                                                                    \
    .name = name_, .type = BL_OPTION_REAL, .offset = offsetof(type_, member_), .optional = true, .argument = "X",      \
    .minimum = 0, .minimum_open = true, .maximum = 1e9, .unit = "gigabits per second",                                 \
    .preset_help = "as the device has", .help = help_                                                                  \
  }

#define BL_CTL_CLUSTER_ROWS 4
// Rows of an option table: `member_` of `type_` is a bl_ctl_cluster_flags_t.
#define BL_CTL_CLUSTER_FLAGS(type_, member_)                                                                           \
  {.name = "nodes",                                                                                                    \
   .type = BL_OPTION_TEXT,                                                                                             \
   .offset = offsetof(type_, member_.nodes),                                                                           \
   .argument = "NxG",                                                                                                  \
   .help = "A cluster of N nodes with G devices each; without it, stages are on this machine."},                       \
      BL_CTL_RATE_FLAG(type_, member_.intra_gbps, "intra-gbps",                                                        \
                       "Between devices of a node, each and in one direction."),                                       \
      BL_CTL_RATE_FLAG(type_, member_.inter_gbps, "inter-gbps",                                                        \
                       "Between nodes, of each network card and in one direction."),                                   \
  {                                                                                                                    \
    .name = "cards", .type = BL_OPTION_INT, .offset = offsetof(type_, member_.cards), .optional = true,                \
    .argument = "C", .minimum = 1, .maximum = 1024, .preset_help = "one for every device",                             \
    .help = "Network cards of a node, which its devices share evenly."                                                 \
  }

// Reads the cluster; without --nodes it has 0 nodes. Gives its links to the device's model, in which tensor ranks use
// them; without --nodes `hardware` is not read. BL_INVALID names the flag.
BL_MUST_USE bl_status_t bl_ctl_cluster_read(const bl_ctl_cluster_flags_t *flags, bl_hardware_t *hardware,
                                            bl_cluster_t *cluster, bl_error_t *err);

#endif

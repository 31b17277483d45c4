// SPDX-License-Identifier: Apache-2.0
// `ballastctl schedule frontier`: time against memory of all schedules, balanced and not, as CSV and picture.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_FRONTIER_H
#define BALLAST_BALLASTCTL_SCHEDULE_FRONTIER_H

int bl_ctl_schedule_frontier(int argc, char *const *argv);

#endif

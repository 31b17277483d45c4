// SPDX-License-Identifier: Apache-2.0
// ballastctl leases watch: changes of stores as they happen. Part of leases.c.
#ifndef BALLAST_BALLASTCTL_LEASE_WATCH_H
#define BALLAST_BALLASTCTL_LEASE_WATCH_H

int bl_ctl_leases_watch(int argc, char *const *argv);

#endif

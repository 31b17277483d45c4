// SPDX-License-Identifier: Apache-2.0
// The run that a command contacts: that of the driver named by --endpoint, else the newest local run.
#ifndef BALLAST_BALLASTCTL_ENDPOINT_H
#define BALLAST_BALLASTCTL_ENDPOINT_H

#include "base/error.h"

#include <jansson.h>

// Gets what a run wrote to its folder (session_processes.c): {"name":..., "driver": ADDRESS, "driver_pid":...,
// "stages": [ADDRESS...], "stores": [ADDRESS...], "store_of": ["device 0", ..., "host 0"]}. If `endpoint` is given,
// only {"driver": endpoint}. *endpoints is a new reference (json_decref). BL_NOT_FOUND: no run is live.
BL_MUST_USE bl_status_t bl_ctl_endpoints_find(const char *endpoint, json_t **endpoints, bl_error_t *err);
const char *bl_ctl_endpoints_driver(const json_t *endpoints); // borrowed; never NULL

#endif

// SPDX-License-Identifier: Apache-2.0
// Which run a verb talks to: the driver named by --endpoint, else that of the newest local run.
#ifndef BALLAST_BALLASTCTL_ENDPOINT_H
#define BALLAST_BALLASTCTL_ENDPOINT_H

#include "base/error.h"

#include <jansson.h>

// What a run left in its folder (session.c writes it): {"name":..., "driver": ADDRESS, "driver_pid":..., "stages":
// [ADDRESS...], "stores": [ADDRESS...], "store_of": ["device 0", ..., "host 0"]}; with `endpoint` given only {"driver": endpoint}. *endpoints is the caller's (json_decref).
// BL_NOT_FOUND: no run is live.
BL_MUST_USE bl_status_t bl_ctl_endpoints_find(const char *endpoint, json_t **endpoints, bl_error_t *err);
const char *bl_ctl_endpoints_driver(const json_t *endpoints); // borrowed; never NULL

#endif

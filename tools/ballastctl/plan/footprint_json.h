// SPDX-License-Identifier: Apache-2.0
// What a device keeps, by the names that metrics have.
#ifndef BALLAST_BALLASTCTL_FOOTPRINT_JSON_H
#define BALLAST_BALLASTCTL_FOOTPRINT_JSON_H

#include "base/error.h"
#include "plan/evaluate/footprint.h"

#include <jansson.h>

// {"weights": bytes, "gradients": bytes, ...}; the caller's reference. NULL: no memory.
json_t *bl_ctl_footprint_json(const bl_footprint_t *footprint);
// Where it is not known what operations ask for, says so in `object`, which may be NULL: "memory_without", "memory_unknown".
void bl_ctl_footprint_left_out(json_t *object, const bl_error_t *unknown);
// "weights 2.1 GiB, gradients ...", without what is nothing; returns `text`.
const char *bl_ctl_footprint_text(const bl_footprint_t *footprint, char *text, size_t bytes);

#endif

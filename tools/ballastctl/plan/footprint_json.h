// SPDX-License-Identifier: Apache-2.0
// The memory of a device, by use, under the names of the metrics.
#ifndef BALLAST_BALLASTCTL_FOOTPRINT_JSON_H
#define BALLAST_BALLASTCTL_FOOTPRINT_JSON_H

#include "ballastctl/plan/operations.h"

#include "plan/evaluate/footprint.h"

#include <jansson.h>

// Returns {"weights": bytes, "gradients": bytes, ...}, a new reference. NULL: no memory.
json_t *bl_ctl_footprint_json(const bl_footprint_t *footprint);
// If memory of operations is unknown, reports this in `object` (NULL is fine) as "memory_without" and "memory_unknown".
void bl_ctl_footprint_left_out(json_t *object, const bl_ctl_operations_t *operations);
// Writes "weights 2.1 GiB, gradients ..." without uses of zero bytes; returns `text`.
const char *bl_ctl_footprint_text(const bl_footprint_t *footprint, char *text, size_t bytes);

#endif

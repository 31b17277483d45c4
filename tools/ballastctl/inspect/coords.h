// SPDX-License-Identifier: Apache-2.0
// Coordinates of ranks, as a driver's status lists them: entries in the order of ranks with `stage` and, if there is
// more than one pipeline of whole layers, with `tensor` and `data`.
#ifndef BALLAST_BALLASTCTL_COORDS_H
#define BALLAST_BALLASTCTL_COORDS_H

#include "ballastctl/output.h"

#include "model/grid.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

// Sets the grid of this many ranks, without parts. False, and *grid is not set: no run has so many, or none.
bool bl_ctl_coords_grid_of(uint32_t stages, uint32_t tensor, uint32_t data, bl_grid_t *grid);
// Returns the grid of all entries, without parts. It has no stages if the list is empty.
bl_grid_t bl_ctl_coords_grid(const json_t *stages);
// "tensor rank 1 of stage 0 of replica 2", with only the coordinates that the grid has.
const char *bl_ctl_coords_name(const bl_grid_t *grid, const json_t *stage, char text[BL_GRID_NAME_BYTES]);

#define BL_CTL_OWNER_BYTES (BL_GRID_NAME_BYTES + 8)
// Writes whose memory store `store` of a run lends: "device 3", "device 1 of replica 0", "tensor rank 1 of stage 0",
// "host 0". The first `devices` stores are those of devices.
const char *bl_ctl_store_owner(const bl_grid_t *grid, size_t devices, size_t store, char text[BL_CTL_OWNER_BYTES]);
// Writes "store 3" or "host store 0", from an entry of a driver's status.
const char *bl_ctl_store_name(const json_t *store, char text[BL_CTL_OWNER_BYTES]);

// The first columns of a table of ranks.
// clang-format off
#define BL_CTL_COORDS_COLUMNS                                                                                          \
  {.key = "data", .title = "REPLICA", .right = true},                                                                  \
  {.key = "tensor", .title = "TENSOR", .right = true},                                                                 \
  {.key = "stage", .title = "STAGE", .right = true}
// clang-format on
// Copies the columns that vary in this grid to `shown` [count]; returns how many.
size_t bl_ctl_coords_columns(const bl_ctl_column_t *columns, size_t count, bool tensor, bool data,
                             bl_ctl_column_t *shown);

#endif

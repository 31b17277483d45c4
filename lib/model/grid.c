// SPDX-License-Identifier: Apache-2.0
#include "model/grid.h"

#include <inttypes.h>
#include <stdio.h>

const char *bl_grid_name(const bl_grid_t *grid, uint32_t rank, char text[BL_GRID_NAME_BYTES]) {
  const bl_coords_t coords = bl_grid_coords(grid, rank);
  char tensor[32] = "", replica[32] = "";
  if (grid->tensor > 1) {
    snprintf(tensor, sizeof tensor, "tensor rank %" PRIu32 " of ", coords.tensor);
  }
  if (grid->data > 1) {
    snprintf(replica, sizeof replica, " of replica %" PRIu32, coords.data);
  }
  snprintf(text, BL_GRID_NAME_BYTES, "%sstage %" PRIu32 "%s", tensor, coords.stage, replica);
  return text;
}

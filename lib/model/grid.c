// SPDX-License-Identifier: Apache-2.0
#include "model/grid.h"

#include <inttypes.h>
#include <stdio.h>

const char *bl_grid_name(const bl_grid_t *grid, uint32_t rank, char text[BL_GRID_NAME_BYTES]) {
  const bl_seat_t seat = bl_grid_seat(grid, rank);
  if (grid->data > 1) {
    snprintf(text, BL_GRID_NAME_BYTES, "stage %" PRIu32 " of replica %" PRIu32, seat.stage, seat.data);
  } else {
    snprintf(text, BL_GRID_NAME_BYTES, "stage %" PRIu32, seat.stage);
  }
  return text;
}

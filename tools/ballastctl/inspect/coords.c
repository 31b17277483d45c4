// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/coords.h"

#include <stdio.h>
#include <string.h>

static uint32_t number_of(const json_t *stage, const char *key) {
  return (uint32_t)json_integer_value(json_object_get(stage, key));
}

bool bl_ctl_coords_grid_of(uint32_t stages, uint32_t tensor, uint32_t data, bl_grid_t *grid) {
  const uint32_t numbers[] = {stages, tensor, data};
  uint64_t ranks = 1;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && ranks <= BL_GRID_RANKS_MAX; i++) {
    ranks *= numbers[i];
  }
  if (ranks == 0 || ranks > BL_GRID_RANKS_MAX) {
    return false;
  }
  *grid = (bl_grid_t){.stages = stages, .tensor = tensor, .data = data};
  return true;
}

bl_grid_t bl_ctl_coords_grid(const json_t *stages) {
  const json_t *last = json_array_get(stages, json_array_size(stages) - 1);
  bl_grid_t grid = {.tensor = number_of(last, "tensor") + 1, .data = number_of(last, "data") + 1};
  grid.stages = last != NULL ? number_of(last, "stage") + 1 : 0;
  return grid;
}

const char *bl_ctl_coords_name(const bl_grid_t *grid, const json_t *stage, char text[BL_GRID_NAME_BYTES]) {
  const bl_coords_t coords = {number_of(stage, "stage"), number_of(stage, "tensor"), number_of(stage, "data")};
  return bl_grid_name(grid, bl_grid_rank(grid, coords), text);
}

const char *bl_ctl_store_owner(const bl_grid_t *grid, size_t devices, size_t store, char text[BL_CTL_OWNER_BYTES]) {
  char rank_name[BL_GRID_NAME_BYTES];
  if (store >= devices) {
    snprintf(text, BL_CTL_OWNER_BYTES, "host %zu", store - devices);
  } else if (grid->tensor > 1) {
    snprintf(text, BL_CTL_OWNER_BYTES, "%s", bl_grid_name(grid, (uint32_t)store, rank_name));
  } else { // "device 2", "device 2 of replica 0"
    snprintf(text, BL_CTL_OWNER_BYTES, "device%s", bl_grid_name(grid, (uint32_t)store, rank_name) + strlen("stage"));
  }
  return text;
}

const char *bl_ctl_store_name(const json_t *store, char text[BL_CTL_OWNER_BYTES]) {
  static const char host[] = "host ";
  const char *of = json_string_value(json_object_get(store, "of"));
  if (of != NULL && strncmp(of, host, strlen(host)) == 0) {
    snprintf(text, BL_CTL_OWNER_BYTES, "host store %.20s", of + strlen(host));
  } else {
    snprintf(text, BL_CTL_OWNER_BYTES, "store %lld", (long long)json_integer_value(json_object_get(store, "store")));
  }
  return text;
}

size_t bl_ctl_coords_columns(const bl_ctl_column_t *columns, size_t count, bool tensor, bool data,
                             bl_ctl_column_t *shown) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if ((tensor || strcmp(columns[i].key, "tensor") != 0) && (data || strcmp(columns[i].key, "data") != 0)) {
      shown[kept++] = columns[i];
    }
  }
  return kept;
}

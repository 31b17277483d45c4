// SPDX-License-Identifier: Apache-2.0
#include "config/options.h"

#include "config/nearest.h"
#include "config/option_value.h"

#include <string.h>

const bl_option_t *bl_options_find(const bl_option_table_t *table, const char *name) {
  for (size_t i = 0; i < table->count; i++) {
    if (strcmp(table->rows[i].name, name) == 0) {
      return &table->rows[i];
    }
  }
  return NULL;
}

static const char *leaf_of(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot != NULL ? dot + 1 : name;
}

// A key may be misspelt, or right but in the wrong section. The cheaper of the two explanations counts.
static size_t key_distance(const char *name, const char *candidate) {
  size_t whole = bl_edit_distance(name, candidate);
  size_t moved = 1 + bl_edit_distance(leaf_of(name), leaf_of(candidate));
  return whole < moved ? whole : moved;
}

const bl_option_t *bl_options_nearest(const bl_option_table_t *table, const char *name) {
  const bl_option_t *best = NULL;
  size_t best_distance = 0;
  for (size_t i = 0; i < table->count; i++) {
    size_t distance = key_distance(name, table->rows[i].name);
    if (!table->rows[i].hidden && (best == NULL || distance < best_distance)) {
      best = &table->rows[i];
      best_distance = distance;
    }
  }
  return best;
}

bl_status_t bl_options_preset(const bl_option_table_t *table, void *values, bl_error_t *err) {
  for (size_t i = 0; i < table->count; i++) {
    bl__option_zero(&table->rows[i], values);
  }
  for (size_t i = 0; i < table->count; i++) {
    bl_status_t status = bl__option_preset(&table->rows[i], values, err);
    if (status != BL_OK) {
      bl_options_cleanup(table, values);
      return status;
    }
  }
  return BL_OK;
}

void bl_options_cleanup(const bl_option_table_t *table, void *values) {
  for (size_t i = 0; i < table->count; i++) {
    bl__option_clear(&table->rows[i], values);
  }
}

bool bl_options_have_sections(const bl_option_table_t *table) {
  return table->count > 0 && strchr(table->rows[table->count - 1].name, '.') != NULL;
}

bl_status_t bl_options_check_required(const bl_option_table_t *table, const bl_option_mark_t *marks,
                                      const char *source_name, bl_error_t *err) {
  for (size_t i = 0; i < table->count; i++) {
    const bl_option_t *row = &table->rows[i];
    if (row->required && marks[i].origin == BL_ORIGIN_PRESET) {
      return bl_options_have_sections(table)
                 ? bl_error_set(err, BL_INVALID, "%s: '%s' is missing; give it in the file or with --set %s=VALUE",
                                source_name, row->name, row->name)
                 : bl_error_set(err, BL_INVALID, "%s: '%s' is missing: %s", source_name, row->name, row->help);
    }
  }
  return BL_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "config/option_value.h"

#include <stdlib.h>
#include <string.h>

bool bl__option_is_list(const bl_option_t *row) {
  return row->type == BL_OPTION_TEXT_LIST || row->type == BL_OPTION_PATH_LIST || row->type == BL_OPTION_INT_LIST ||
         row->type == BL_OPTION_REAL_LIST || row->type == BL_OPTION_FILES_OR_FRACTION;
}

static bool at_power_of_two(size_t count) {
  return (count & (count - 1)) == 0;
}

// Makes room for one more entry. The capacity is the next power of two, so growth costs linear time.
static bl_status_t list_reserve(void **items, size_t count, size_t item_bytes, bl_error_t *err) {
  if (count >= BL_OPTIONS_LIST_COUNT) {
    return bl_error_set(err, BL_INVALID, "has more than %d entries", BL_OPTIONS_LIST_COUNT);
  }
  if (count == 0 || at_power_of_two(count)) {
    void *grown = realloc(*items, (count == 0 ? 1 : 2 * count) * item_bytes);
    if (grown == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "no memory");
    }
    *items = grown;
  }
  return BL_OK;
}

static bl_status_t append_text(const bl_option_t *row, bl_text_list_t *list, const bl__scalar_t *scalar,
                               const char *folder, bl_error_t *err) {
  char *text;
  bl_status_t status = bl__scalar_read_text(row, scalar, folder, &text, err);
  if (status != BL_OK) {
    return status;
  }
  void *items = list->items;
  status = list_reserve(&items, list->count, sizeof list->items[0], err);
  if (status != BL_OK) {
    free(text);
    return status;
  }
  list->items = items;
  list->items[list->count++] = text;
  return BL_OK;
}

static bl_status_t append_int(const bl_option_t *row, bl_int_list_t *list, const bl__scalar_t *scalar,
                              bl_error_t *err) {
  int64_t value;
  bl_status_t status = bl__scalar_read_integer(row, scalar, &value, err);
  if (status != BL_OK) {
    return status;
  }
  void *items = list->items;
  status = list_reserve(&items, list->count, sizeof list->items[0], err);
  if (status != BL_OK) {
    return status;
  }
  list->items = items;
  list->items[list->count++] = value;
  return BL_OK;
}

static bl_status_t append_real(const bl_option_t *row, bl_real_list_t *list, const bl__scalar_t *scalar,
                               bl_error_t *err) {
  double value;
  bl_status_t status = bl__scalar_read_real(row, scalar, &value, err);
  if (status != BL_OK) {
    return status;
  }
  void *items = list->items;
  status = list_reserve(&items, list->count, sizeof list->items[0], err);
  if (status != BL_OK) {
    return status;
  }
  list->items = items;
  list->items[list->count++] = value;
  return BL_OK;
}

bl_status_t bl__option_append(const bl_option_t *row, void *values, const bl__scalar_t *scalar, const char *folder,
                              bl_error_t *err) {
  void *field = bl__option_field(row, values);
  switch (row->type) {
  case BL_OPTION_TEXT_LIST:
  case BL_OPTION_PATH_LIST:
    return append_text(row, field, scalar, folder, err);
  case BL_OPTION_INT_LIST:
    return append_int(row, field, scalar, err);
  case BL_OPTION_REAL_LIST:
    return append_real(row, field, scalar, err);
  case BL_OPTION_FILES_OR_FRACTION:
    return append_text(row, &((bl_files_or_fraction_t *)field)->files, scalar, folder, err);
  default:
    return bl_error_set(err, BL_INTERNAL, "%s is not a list", row->name);
  }
}

static size_t field_bytes(const bl_option_t *row) {
  switch (row->type) {
  case BL_OPTION_BOOL:
    return row->optional ? sizeof(bl_optional_bool_t) : sizeof(bool);
  case BL_OPTION_INT:
  case BL_OPTION_BYTES:
    return row->optional ? sizeof(bl_optional_int_t) : sizeof(int64_t);
  case BL_OPTION_REAL:
    return row->optional ? sizeof(bl_optional_real_t) : sizeof(double);
  case BL_OPTION_ENUM:
    return sizeof(int);
  case BL_OPTION_TEXT:
  case BL_OPTION_PATH:
    return sizeof(char *);
  case BL_OPTION_TEXT_LIST:
  case BL_OPTION_PATH_LIST:
    return sizeof(bl_text_list_t);
  case BL_OPTION_INT_LIST:
    return sizeof(bl_int_list_t);
  case BL_OPTION_REAL_LIST:
    return sizeof(bl_real_list_t);
  case BL_OPTION_FILES_OR_FRACTION:
    return sizeof(bl_files_or_fraction_t);
  }
  return 0;
}

void bl__option_zero(const bl_option_t *row, void *values) {
  memset(bl__option_field(row, values), 0, field_bytes(row));
}

static void text_list_free(bl_text_list_t *list) {
  for (size_t i = 0; i < list->count; i++) {
    free(list->items[i]);
  }
  free(list->items);
}

void bl__option_clear(const bl_option_t *row, void *values) {
  void *field = bl__option_field(row, values);
  switch (row->type) {
  case BL_OPTION_TEXT:
  case BL_OPTION_PATH:
    free(*(char **)field);
    break;
  case BL_OPTION_TEXT_LIST:
  case BL_OPTION_PATH_LIST:
    text_list_free(field);
    break;
  case BL_OPTION_INT_LIST:
    free(((bl_int_list_t *)field)->items);
    break;
  case BL_OPTION_REAL_LIST:
    free(((bl_real_list_t *)field)->items);
    break;
  case BL_OPTION_FILES_OR_FRACTION:
    text_list_free(&((bl_files_or_fraction_t *)field)->files);
    break;
  default:
    break;
  }
  bl__option_zero(row, values);
}

static bl_status_t assign_list(const bl_option_t *row, void *values, const bl__scalar_t *scalar, const char *folder,
                               bl_error_t *err) {
  double fraction = 0;
  bool number = row->type == BL_OPTION_FILES_OR_FRACTION && !scalar->quoted && bl__scalar_is_real_text(scalar->text);
  if (number) {
    bl_status_t status = bl__scalar_read_real(row, scalar, &fraction, err);
    if (status != BL_OK) {
      return status;
    }
  }
  bl__option_clear(row, values);
  if (number) {
    ((bl_files_or_fraction_t *)bl__option_field(row, values))->fraction = fraction;
    return BL_OK;
  }
  return bl__option_append(row, values, scalar, folder, err);
}

bl_status_t bl__option_assign(const bl_option_t *row, void *values, const bl__scalar_t *scalar, const char *folder,
                              bl_error_t *err) {
  void *field = bl__option_field(row, values);
  bl_optional_int_t integer = {.set = true};
  bl_optional_real_t real = {.set = true};
  bl_optional_bool_t truth = {.set = true};
  char *text = NULL;
  bl_status_t status;
  switch (row->type) {
  case BL_OPTION_BOOL:
    status = bl__scalar_read_bool(scalar, &truth.value, err);
    if (status == BL_OK && row->optional) {
      *(bl_optional_bool_t *)field = truth;
    } else if (status == BL_OK) {
      *(bool *)field = truth.value;
    }
    return status;
  case BL_OPTION_INT:
  case BL_OPTION_BYTES:
    status = row->type == BL_OPTION_INT ? bl__scalar_read_integer(row, scalar, &integer.value, err)
                                        : bl__scalar_read_bytes(row, scalar, &integer.value, err);
    if (status == BL_OK && row->optional) {
      *(bl_optional_int_t *)field = integer;
    } else if (status == BL_OK) {
      *(int64_t *)field = integer.value;
    }
    return status;
  case BL_OPTION_REAL:
    status = bl__scalar_read_real(row, scalar, &real.value, err);
    if (status == BL_OK && row->optional) {
      *(bl_optional_real_t *)field = real;
    } else if (status == BL_OK) {
      *(double *)field = real.value;
    }
    return status;
  case BL_OPTION_ENUM:
    return bl__scalar_read_choice(row, scalar, field, err);
  case BL_OPTION_TEXT:
  case BL_OPTION_PATH:
    status = bl__scalar_read_text(row, scalar, folder, &text, err);
    if (status == BL_OK) {
      free(*(char **)field);
      *(char **)field = text;
    }
    return status;
  default:
    return assign_list(row, values, scalar, folder, err);
  }
}

bl_status_t bl__option_preset(const bl_option_t *row, void *values, bl_error_t *err) {
  bl__option_clear(row, values);
  if (row->preset == NULL) {
    return BL_OK;
  }
  bl__scalar_t scalar = {.text = row->preset, .length = strlen(row->preset)};
  bl_status_t status = bl__option_assign(row, values, &scalar, NULL, err);
  if (status == BL_INVALID) {
    status =
        bl_error_set(err, BL_INTERNAL, "the default of '%s' is wrong: %s", row->name, err != NULL ? err->text : "");
  }
  return status;
}

bool bl__option_is_present(const bl_option_t *row, const void *values) {
  const void *field = bl__option_value(row, values);
  switch (row->type) {
  case BL_OPTION_BOOL:
    return !row->optional || ((const bl_optional_bool_t *)field)->set;
  case BL_OPTION_INT:
  case BL_OPTION_BYTES:
    return !row->optional || ((const bl_optional_int_t *)field)->set;
  case BL_OPTION_REAL:
    return !row->optional || ((const bl_optional_real_t *)field)->set;
  case BL_OPTION_ENUM:
    return row->choices[*(const int *)field][0] != '\0';
  case BL_OPTION_TEXT:
  case BL_OPTION_PATH:
    return *(char *const *)field != NULL;
  case BL_OPTION_TEXT_LIST:
  case BL_OPTION_PATH_LIST:
    return ((const bl_text_list_t *)field)->count > 0;
  case BL_OPTION_INT_LIST:
    return ((const bl_int_list_t *)field)->count > 0;
  case BL_OPTION_REAL_LIST:
    return ((const bl_real_list_t *)field)->count > 0;
  case BL_OPTION_FILES_OR_FRACTION:
    return ((const bl_files_or_fraction_t *)field)->files.count > 0 ||
           ((const bl_files_or_fraction_t *)field)->fraction > 0;
  }
  return false;
}

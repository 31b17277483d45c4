// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/block_file.h"

#include "ballastctl/input_file.h"

#include <stdlib.h>
#include <string.h>

#define OFFSET(member) offsetof(bl_ctl_block_file_t, member)
#define OFFSETS(key, member, needed, text)                                                                             \
  {                                                                                                                    \
    .name = key, .type = BL_OPTION_INT_LIST, .offset = OFFSET(member), .required = needed, .minimum = 0,               \
    .maximum = BL_BLOCK_PATTERN_TIME_MAX, .help = text                                                                 \
  }
static const bl_option_t rows[] = {
    {.name = "name", .type = BL_OPTION_TEXT, .offset = OFFSET(name), .preset = "block", .help = "What to call it."},
    {.name = "stages",
     .type = BL_OPTION_INT,
     .offset = OFFSET(stages),
     .required = true,
     .minimum = 1,
     .maximum = BL_STAGES_MAX,
     .help = "Pipeline stages."},
    {.name = "interval",
     .type = BL_OPTION_INT,
     .offset = OFFSET(interval),
     .required = true,
     .minimum = 1,
     .maximum = BL_BLOCK_PATTERN_TIME_MAX,
     .help = "Time from one micro-batch to the next."},
    {.name = "lengths",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(lengths),
     .minimum = 1,
     .maximum = BL_BLOCK_PATTERN_TIME_MAX,
     .preset_help = "[1, 1, 1]",
     .help = "Times of F, I and W."},
    {.name = "placement",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(placement),
     .required = true,
     .minimum = 0,
     .maximum = BL_STAGES_MAX,
     .help = "The stage of every virtual stage."},
    OFFSETS("forward", forward, true, "When F starts, per virtual stage."),
    OFFSETS("input", input, false, "When I starts, per virtual stage."),
    OFFSETS("weight", weight, false, "When W starts, per virtual stage."),
    OFFSETS("backward", backward, false, "When a fused backward starts; in place of input and weight."),
};
#define ROWS (sizeof rows / sizeof rows[0])
static const bl_option_table_t table = {rows, ROWS, "building block"};

static bl_status_t check_list(const char *path, const char *name, const bl_int_list_t *list, size_t count,
                              bl_error_t *err) {
  if (list->count < count) {
    return bl_error_set(err, BL_INVALID, "%s: %s: virtual stage %zu has no offset; there are %zu of them in placement",
                        path, name, list->count, count);
  }
  if (list->count > count) {
    return bl_error_set(err, BL_INVALID, "%s: %s: has %zu offsets; there are %zu in placement", path, name, list->count,
                        count);
  }
  return BL_OK;
}

static bl_status_t check_lists(const char *path, const bl_ctl_block_file_t *file, bl_error_t *err) {
  size_t count = file->placement.count;
  bool fused = file->backward.count > 0;
  if (file->lengths.count != 0 && file->lengths.count != 3) {
    return bl_error_set(err, BL_INVALID, "%s: lengths: must be three, of F, I and W, is %zu", path,
                        file->lengths.count);
  }
  if (fused && (file->input.count > 0 || file->weight.count > 0)) {
    return bl_error_set(err, BL_INVALID, "%s: backward is in place of input and weight; give one or the other", path);
  }
  bl_status_t status = check_list(path, "forward", &file->forward, count, err);
  if (fused) {
    return status == BL_OK ? check_list(path, "backward", &file->backward, count, err) : status;
  }
  if (status == BL_OK) {
    status = check_list(path, "input", &file->input, count, err);
  }
  return status == BL_OK ? check_list(path, "weight", &file->weight, count, err) : status;
}

// Copies the list to *at and advances *at. The caller has checked that all its entries fit.
static const uint32_t *take(const bl_int_list_t *list, uint32_t **at) {
  const uint32_t *first = *at;
  for (size_t i = 0; i < list->count; i++) {
    *(*at)++ = (uint32_t)list->items[i];
  }
  return first;
}

static bl_status_t fill(bl_ctl_block_file_t *file, bl_error_t *err) {
  bool fused = file->backward.count > 0;
  uint32_t *at = file->times = malloc(4 * (file->placement.count + 1) * sizeof *at);
  if (at == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for a building block");
  }
  file->block = (bl_block_pattern_t){.name = file->name,
                                     .stages = (uint32_t)file->stages,
                                     .virtual_stages = (uint32_t)file->placement.count,
                                     .interval = (uint32_t)file->interval};
  for (int k = 0; k < 3; k++) {
    file->block.lengths[k] = file->lengths.count > 0 ? (uint32_t)file->lengths.items[k] : 1;
  }
  file->block.placement = take(&file->placement, &at);
  file->block.forward = take(&file->forward, &at);
  file->block.input = take(fused ? &file->backward : &file->input, &at);
  file->block.weight = fused ? NULL : take(&file->weight, &at);
  return BL_OK;
}

bl_status_t bl_ctl_block_file_parse(const char *path, const char *bytes, size_t size_bytes, bl_ctl_block_file_t *file,
                                    bl_error_t *err) {
  bl_option_mark_t marks[ROWS] = {0};
  memset(file, 0, sizeof *file);
  bl_status_t status = bl_options_preset(&table, file, err);
  if (status == BL_OK) {
    bl_option_source_t source = {.name = path, .bytes = bytes, .size_bytes = size_bytes};
    status = bl_options_read(&table, file, marks, &source, err);
  }
  if (status == BL_OK) {
    status = bl_options_check_required(&table, marks, path, err);
  }
  if (status == BL_OK) {
    status = check_lists(path, file, err);
  }
  if (status == BL_OK) {
    status = fill(file, err);
  }
  if (status == BL_OK && (status = bl_block_pattern_check(&file->block, err)) != BL_OK) {
    bl_error_prefix(err, "%s", path);
  }
  return status;
}

bl_status_t bl_ctl_block_file_read(const char *path, bl_ctl_block_file_t *file, bl_error_t *err) {
  char *bytes = NULL;
  size_t size_bytes;
  memset(file, 0, sizeof *file);
  bl_status_t status = bl_ctl_input_file_read("--block", path, BL_OPTIONS_FILE_BYTES, &bytes, &size_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_ctl_block_file_parse(path, bytes, size_bytes, file, err);
  free(bytes);
  return status;
}

void bl_ctl_block_file_cleanup(bl_ctl_block_file_t *file) {
  free(file->times);
  bl_options_cleanup(&table, file);
  memset(file, 0, sizeof *file);
}

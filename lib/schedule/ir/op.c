// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/op.h"

#include <stdio.h>

char bl_op_type_letter(bl_op_type_t type) {
  switch (type) {
#define X(identifier, letter, meaning)                                                                                 \
  case identifier:                                                                                                     \
    return letter;
    BL_OP_TYPE_TABLE(X)
#undef X
  default:
    return '?';
  }
}

const char *bl_op_format_slice(bl_op_t op, bool with_slice, char text[BL_OP_TEXT]) {
  int used =
      snprintf(text, BL_OP_TEXT, "%u%c%u", op.virtual_stage, bl_op_type_letter((bl_op_type_t)op.type), op.micro_batch);
  if (with_slice || op.slice != 0) {
    used += snprintf(text + used, (size_t)(BL_OP_TEXT - used), ".%u", op.slice);
  }
  if (!bl_op_type_computes((bl_op_type_t)op.type) && op.store != BL_STORE_NONE) {
    snprintf(text + used, (size_t)(BL_OP_TEXT - used), "@%u", op.store);
  }
  return text;
}

const char *bl_op_format(bl_op_t op, char text[BL_OP_TEXT]) {
  return bl_op_format_slice(op, false, text);
}

// Reads digits at *at into *value. Returns false if there are none or the number is above `most`.
static bool read_number(const char *text, size_t length, size_t *at, uint32_t most, uint32_t *value) {
  size_t start = *at;
  uint64_t number = 0;
  while (*at < length && text[*at] >= '0' && text[*at] <= '9') {
    number = number * 10 + (uint64_t)(text[*at] - '0');
    if (number > most) {
      return false;
    }
    (*at)++;
  }
  *value = (uint32_t)number;
  return *at > start;
}

static bool read_type(char letter, bl_op_type_t *type) {
  for (int candidate = 0; candidate < BL_OP_TYPES; candidate++) {
    if (bl_op_type_letter((bl_op_type_t)candidate) == letter) {
      *type = (bl_op_type_t)candidate;
      return true;
    }
  }
  return false;
}

bool bl_op_parse(const char *text, size_t length, bl_op_t *op) {
  size_t at = 0;
  uint32_t virtual_stage, micro_batch, slice = 0, store = 0;
  bl_op_type_t type;
  if (!read_number(text, length, &at, UINT16_MAX - 1, &virtual_stage) || at >= length ||
      !read_type(text[at++], &type) || !read_number(text, length, &at, UINT32_MAX - 1, &micro_batch)) {
    return false;
  }
  if (at < length && text[at] == '.') {
    at++;
    if (!read_number(text, length, &at, UINT8_MAX - 1, &slice)) {
      return false;
    }
  }
  if (!bl_op_type_computes(type)) {
    store = BL_STORE_NONE;
    if (at < length && text[at] == '@') {
      at++;
      if (!read_number(text, length, &at, BL_STORE_NONE - 1, &store)) {
        return false;
      }
    }
  }
  if (at != length) {
    return false;
  }
  *op = (bl_op_t){.type = (uint8_t)type,
                  .slice = (uint8_t)slice,
                  .virtual_stage = (uint16_t)virtual_stage,
                  .micro_batch = micro_batch,
                  .store = (uint16_t)store};
  return true;
}

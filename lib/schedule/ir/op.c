// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/op.h"

#include <stdio.h>

char bl_verb_letter(bl_verb_t verb) {
  switch (verb) {
#define X(identifier, letter, meaning)                                                                                 \
  case identifier:                                                                                                     \
    return letter;
    BL_VERB_TABLE(X)
#undef X
  default:
    return '?';
  }
}

const char *bl_op_format_slice(bl_op_t op, bool with_slice, char text[BL_OP_TEXT]) {
  int used = snprintf(text, BL_OP_TEXT, "%u%c%u", op.virtual_stage, bl_verb_letter((bl_verb_t)op.verb), op.micro_batch);
  if (with_slice || op.slice != 0) {
    used += snprintf(text + used, (size_t)(BL_OP_TEXT - used), ".%u", op.slice);
  }
  if (!bl_verb_computes((bl_verb_t)op.verb) && op.store != BL_STORE_NONE) {
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

static bool read_verb(char letter, bl_verb_t *verb) {
  for (int candidate = 0; candidate < BL_VERB_COUNT; candidate++) {
    if (bl_verb_letter((bl_verb_t)candidate) == letter) {
      *verb = (bl_verb_t)candidate;
      return true;
    }
  }
  return false;
}

bool bl_op_parse(const char *text, size_t length, bl_op_t *op) {
  size_t at = 0;
  uint32_t virtual_stage, micro_batch, slice = 0, store = 0;
  bl_verb_t verb;
  if (!read_number(text, length, &at, UINT16_MAX - 1, &virtual_stage) || at >= length ||
      !read_verb(text[at++], &verb) || !read_number(text, length, &at, UINT32_MAX - 1, &micro_batch)) {
    return false;
  }
  if (at < length && text[at] == '.') {
    at++;
    if (!read_number(text, length, &at, UINT8_MAX - 1, &slice)) {
      return false;
    }
  }
  if (!bl_verb_computes(verb)) {
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
  *op = (bl_op_t){.verb = (uint8_t)verb,
                  .slice = (uint8_t)slice,
                  .virtual_stage = (uint16_t)virtual_stage,
                  .micro_batch = micro_batch,
                  .store = (uint16_t)store};
  return true;
}

// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv/csv_comms.h"

#include <stdio.h>
#include <string.h>

static const char *const names[BL__COMM_KINDS] = {"SEND_F",      "RECV_F",          "WAIT_SEND_F", "SEND_B",
                                                  "RECV_B",      "WAIT_SEND_B",     "UNSHARD",     "RESHARD",
                                                  "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

const char *bl__comm_format(bl__comm_t comm, char text[BL__COMM_TEXT]) {
  int used = snprintf(text, BL__COMM_TEXT, "%u%s", comm.virtual_stage, names[comm.kind]);
  if (bl__comm_is_message(comm.kind) || comm.micro_batch != 0) {
    used += snprintf(text + used, (size_t)(BL__COMM_TEXT - used), "%u", comm.micro_batch);
  }
  if (comm.slice != 0) {
    snprintf(text + used, (size_t)(BL__COMM_TEXT - used), ".%u", comm.slice);
  }
  return text;
}

// Reads digits at *at into *value. Returns false if there are none or the number is above `most`.
static bool read_number(const char *text, size_t length, size_t *at, uint32_t most, uint32_t *value) {
  size_t start = *at;
  uint64_t number = 0;
  for (; *at < length && text[*at] >= '0' && text[*at] <= '9' && number <= most; (*at)++) {
    number = number * 10 + (uint64_t)(text[*at] - '0');
  }
  *value = (uint32_t)number;
  return *at > start && number <= most;
}

bool bl__comm_parse(const char *text, size_t length, bl__comm_t *comm) {
  uint32_t virtual_stage, micro_batch = 0, slice = 0;
  size_t at = 0;
  if (!read_number(text, length, &at, BL_VIRTUAL_STAGES_MAX - 1, &virtual_stage)) {
    return false;
  }
  for (int n = 0; n < BL__COMM_KINDS; n++) {
    size_t name_length = strlen(names[n]);
    if (length - at < name_length || memcmp(text + at, names[n], name_length) != 0) {
      continue;
    }
    at += name_length;
    if ((bl__comm_is_message((bl__comm_kind_t)n) || at < length) &&
        !read_number(text, length, &at, BL_MICRO_BATCHES_MAX - 1, &micro_batch)) {
      return false;
    }
    if (at < length && text[at] == '.') {
      at++;
      if (!read_number(text, length, &at, BL_SLICES_MAX - 1, &slice)) {
        return false;
      }
    }
    comm->kind = (bl__comm_kind_t)n;
    comm->virtual_stage = (uint16_t)virtual_stage;
    comm->micro_batch = micro_batch;
    comm->slice = (uint8_t)slice;
    return at == length;
  }
  return false;
}

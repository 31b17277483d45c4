// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/costs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Reads a decimal number of up to BL_COSTS_MOST at *at and moves *at past it.
static bool read_number(const char **at, double *value) {
  char *end;
  if (strspn(*at, "0123456789.") == 0) {
    return false; // signs, spaces, nan and inf
  }
  *value = strtod(*at, &end);
  const bool decimal = strspn(*at, "0123456789.eE+-") >= (size_t)(end - *at); // not 0x10
  *at = end;
  return decimal && *value <= BL_COSTS_MOST;
}

// Reads `least` to `most` numbers, separated by commas, from `at` on, which is in `text`. Sets *count to their number.
static bl_status_t read_numbers(const char *text, const char *at, const char *const *names, const char *form, int least,
                                int most, double *values, int *count, bl_error_t *err) {
  for (*count = 0;; at++) {
    if (*count == most) {
      return bl_error_set(err, BL_INVALID, "\"%.100s\": has more numbers (expected %s)", text, form);
    }
    if (!read_number(&at, &values[*count]) || (*at != ',' && *at != '\0')) {
      return bl_error_set(err, BL_INVALID, "\"%.100s\": %s must be a number from 0 upwards, at most %g (expected %s)",
                          text, names[*count], BL_COSTS_MOST, form);
    }
    ++*count;
    if (*at == '\0') {
      break;
    }
  }
  return *count >= least
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "\"%.100s\": %s is missing (expected %s)", text, names[*count], form);
}

bl_status_t bl_costs_parse(const char *text, bl_costs_t *costs, bl_error_t *err) {
  static const char *const names[] = {"F", "B", "W", "COMM", "R"};
  double values[5];
  int count;
  bl_status_t status = read_numbers(text, text, names, "F,B,W,COMM or F,B,W,COMM,R", 4, 5, values, &count, err);
  if (status != BL_OK) {
    return status;
  }
  bl_costs_t parsed = {.every = {.forward = values[0],
                                 .input = values[1],
                                 .weight = values[2],
                                 .recompute = count == 5 ? values[4] : values[0]},
                       .boundary = values[3]};
  status = bl_costs_check(&parsed, 1, err);
  if (status == BL_OK) {
    *costs = parsed;
  }
  return status;
}

bl_status_t bl_costs_parse_chunk(const char *text, uint32_t virtual_stages, bl_chunk_costs_t *chunks, bl_error_t *err) {
  static const char *const names[] = {"F", "B", "W", "R"};
  char *end;
  unsigned long virtual_stage = strtoul(text, &end, 10);
  if (end == text || text[0] < '0' || text[0] > '9' || *end != '=') {
    return bl_error_set(err, BL_INVALID, "\"%.100s\": must begin with a virtual stage, as in 2=F,B,W or 2=F,B,W,R",
                        text);
  }
  if (virtual_stage >= virtual_stages) {
    return bl_error_set(err, BL_INVALID, "\"%.100s\": there is no such virtual stage, they go from 0 to %u", text,
                        virtual_stages - 1);
  }
  double values[4];
  int count;
  bl_status_t status = read_numbers(text, end + 1, names, "S=F,B,W or S=F,B,W,R", 3, 4, values, &count, err);
  if (status == BL_OK) {
    chunks[virtual_stage] = (bl_chunk_costs_t){
        .forward = values[0], .input = values[1], .weight = values[2], .recompute = count == 4 ? values[3] : values[0]};
  }
  return status;
}

#define UNSAID (-1.0) // a path that no text has named yet

static bl_status_t parse_path(const char *text, uint32_t stages, double *copies, bl_error_t *err) {
  static const char *const names[] = {"X"};
  uint32_t ends[2];
  const char *at = text;
  for (int i = 0; i < 2; i++) {
    char *end;
    unsigned long stage = strtoul(at, &end, 10);
    if (end == at || at[0] < '0' || at[0] > '9' || *end != (i == 0 ? '-' : '=')) {
      return bl_error_set(err, BL_INVALID, "\"%.100s\": must name two stages and how much longer, as in 0-3=8", text);
    }
    if (stage >= stages) {
      return bl_error_set(err, BL_INVALID, "\"%.100s\": there is no stage %lu, they go from 0 to %u", text, stage,
                          stages - 1);
    }
    ends[i] = (uint32_t)stage;
    at = end + 1;
  }
  double factor;
  int count;
  bl_status_t status = read_numbers(text, at, names, "S-D=X", 1, 1, &factor, &count, err);
  if (status == BL_OK && ends[0] == ends[1]) {
    return bl_error_set(err, BL_INVALID, "\"%.100s\": must be between two stages", text);
  }
  if (status == BL_OK && copies[(size_t)ends[0] * stages + ends[1]] != UNSAID) {
    return bl_error_set(err, BL_INVALID,
                        "\"%.100s\": the path between stages %" PRIu32 " and %" PRIu32 " is given twice", text, ends[0],
                        ends[1]);
  }
  if (status == BL_OK) {
    copies[(size_t)ends[0] * stages + ends[1]] = copies[(size_t)ends[1] * stages + ends[0]] = factor;
  }
  return status;
}

bl_status_t bl_costs_parse_paths(char *const *texts, size_t count, uint32_t stages, double **copies, bl_error_t *err) {
  const size_t pairs = (size_t)stages * stages;
  double *read = count > 0 ? malloc(pairs * sizeof *read) : NULL;
  bl_status_t status = BL_OK;
  if (read == NULL && count > 0) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the paths of %u stages", stages);
  }
  for (size_t i = 0; count > 0 && i < pairs; i++) {
    read[i] = UNSAID;
  }
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    status = parse_path(texts[i], stages, read, err);
  }
  for (size_t i = 0; count > 0 && i < pairs; i++) {
    read[i] = read[i] == UNSAID ? 1 : read[i];
  }
  if (status != BL_OK) {
    free(read);
    return status;
  }
  *copies = read;
  return BL_OK;
}

#define MOST_SUMMED 1e100 // largest cost that a program may compute: sums over any schedule stay finite

static bool can_be_summed(double value) {
  return value >= 0 && value <= MOST_SUMMED; // false for NaN
}

static bl_status_t check_value(double value, const char *name, uint32_t virtual_stage, bl_error_t *err) {
  if (!can_be_summed(value)) {
    return bl_error_set(err, BL_INVALID,
                        "cost of %s on virtual stage %u: must be a number from 0 upwards, at most %g, is %g", name,
                        virtual_stage, MOST_SUMMED, value);
  }
  return BL_OK;
}

static bl_status_t check_latency(double value, const char *name, bl_error_t *err) {
  if (!can_be_summed(value)) {
    return bl_error_set(err, BL_INVALID, "cost of %s: must be a number from 0 upwards, at most %g, is %g", name,
                        MOST_SUMMED, value);
  }
  return BL_OK;
}

bl_status_t bl_costs_check(const bl_costs_t *costs, uint32_t virtual_stages, bl_error_t *err) {
  static const char *const names[] = {"F", "I", "W", "R"};
  bool some_forward = false;
  for (uint32_t s = 0; s < virtual_stages; s++) {
    const bl_chunk_costs_t *chunk = bl_costs_chunk(costs, s);
    const double values[] = {chunk->forward, chunk->input, chunk->weight, chunk->recompute};
    for (int i = 0; i < 4; i++) {
      bl_status_t status = check_value(values[i], names[i], s, err);
      if (status != BL_OK) {
        return status;
      }
    }
    some_forward = some_forward || chunk->forward > 0;
  }
  if (!some_forward) {
    return bl_error_set(err, BL_INVALID, "cost of F: must be above 0 on some virtual stage");
  }
  bl_status_t status = check_latency(costs->boundary, "a boundary", err);
  return status == BL_OK ? check_latency(costs->path, "an evict or load", err) : status;
}

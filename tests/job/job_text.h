// SPDX-License-Identifier: Apache-2.0
// Jobs for the tests of lib/job: a small one that is right, with lines added or replaced by --set assignments.
#ifndef BALLAST_TESTS_JOB_TEXT_H
#define BALLAST_TESTS_JOB_TEXT_H

#include "config/job.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define JOB_TEXT_SETS 16

// Line 3, column 11 is the value of model.family, line 5 that of hidden, and so on.
#define JOB_TEXT                                                                                                       \
  "name: test\n"                                                                                                       \
  "model:\n"                                                                                                           \
  "  family: gpt2\n"                                                                                                   \
  "  layers: 4\n"                                                                                                      \
  "  hidden: 32\n"                                                                                                     \
  "  heads: 4\n"                                                                                                       \
  "  vocab: 256\n"                                                                                                     \
  "  seq: 16\n"                                                                                                        \
  "data:\n"                                                                                                            \
  "  train: " BALLAST_SOURCE_DIR "/tests/job/text.txt\n"                                                               \
  "  order: sequential\n"                                                                                              \
  "train:\n"                                                                                                           \
  "  steps: 10\n"                                                                                                      \
  "  micro_batch: 2\n"                                                                                                 \
  "  micro_batches: 6\n"                                                                                               \
  "  lr: 0.001\n"                                                                                                      \
  "pipeline:\n"                                                                                                        \
  "  stages: 4\n"                                                                                                      \
  "  schedule: 1f1b\n"

// The job of a text with assignments "key=value", separated by newlines.
static inline bl_status_t job_text_parse_text(bl_job_t *job, const char *text, const char *sets, bl_error_t *err) {
  static char copy[4096];
  const char *list[JOB_TEXT_SETS];
  size_t count = 0;
  snprintf(copy, sizeof copy, "%s", sets);
  char *rest = copy, *set;
  while ((set = strsep(&rest, "\n")) != NULL && count < JOB_TEXT_SETS) {
    if (set[0] != '\0') {
      list[count++] = set;
    }
  }
  bl_job_source_t source = {
      .file = {.name = "job.yaml", .bytes = text, .size_bytes = strlen(text)}, .sets = list, .set_count = count};
  return bl_job_parse(job, &source, err);
}

static inline bl_status_t job_text_parse(bl_job_t *job, const char *sets, bl_error_t *err) {
  return job_text_parse_text(job, JOB_TEXT, sets, err);
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the job file: a small complete job, and parsing of texts.
#ifndef BALLAST_TESTS_CONFIG_JOB_TEXT_H
#define BALLAST_TESTS_CONFIG_JOB_TEXT_H

#include "config/job.h"

#include <string.h>

static const char small_job[] = "model:\n"
                                "  family: gpt2\n"
                                "  layers: 4\n"
                                "  hidden: 64\n"
                                "  heads: 4\n"
                                "  vocab: 256\n"
                                "  seq: 32\n"
                                "data:\n"
                                "  train: text.txt\n"
                                "train:\n"
                                "  steps: 10\n";

static inline bl_status_t parse_with(bl_job_t *job, const char *text, const char *const *sets, size_t set_count,
                                     bl_error_t *err) {
  bl_job_source_t source = {
      .file = {"job.yaml", text, strlen(text), "/jobs"}, .sets = sets, .set_count = set_count, .sets_folder = "/here"};
  bl_error_clear(err);
  return bl_job_parse(job, &source, err);
}

static inline bl_status_t parse(bl_job_t *job, const char *text, bl_error_t *err) {
  return parse_with(job, text, NULL, 0, err);
}

#endif

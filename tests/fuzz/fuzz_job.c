// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come as a job file: either a reason, or a job whose canonical text reads back to the same text.
#include "target.h"

#include "config/job.h"

#include <string.h>

static bl_status_t parse(bl_job_t *job, const char *bytes, size_t size_bytes, bl_error_t *err) {
  bl_job_source_t source = {.file = {"job.yaml", bytes, size_bytes, "/jobs"}};
  return bl_job_parse(job, &source, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_job_t job, copy;
  bl_error_t err = {0};
  if (parse(&job, (const char *)bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && strncmp(err.text, "job.yaml", 8) == 0);
    return 0;
  }
  char *text = NULL, *again = NULL;
  size_t text_bytes, again_bytes;
  FUZZ_CHECK(bl_job_dump(&job, &text, &text_bytes) == BL_OK);
  FUZZ_CHECK(parse(&copy, text, text_bytes, &err) == BL_OK);
  FUZZ_CHECK(bl_job_dump(&copy, &again, &again_bytes) == BL_OK);
  FUZZ_CHECK(text_bytes == again_bytes && memcmp(text, again, text_bytes) == 0);
  FUZZ_CHECK(job.model.heads.set == copy.model.heads.set && job.train.lr == copy.train.lr);
  free(text);
  free(again);
  bl_job_cleanup(&job);
  bl_job_cleanup(&copy);
  return 0;
}

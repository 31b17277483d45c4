// SPDX-License-Identifier: Apache-2.0
// Whatever a building block's file holds, reading it ends with words that name the file, or with a block whose repetition is
// a valid schedule within the memory that it promises.
#include "target.h"

#include "ballastctl/plan/block_file.h"

#include "schedule/ir/peaks.h"
#include "schedule/ir/validate.h"

#include <string.h>

#define STAGES_MAX         64
#define MICRO_BATCHES      5
#define VIRTUAL_STAGES_MAX 256

static void repeat(const bl_block_pattern_t *block) {
  bl_schedule_t *schedule;
  bl_error_t err = {0};
  uint32_t peaks[STAGES_MAX];
  bl_status_t status = bl_block_pattern_repeat(block, MICRO_BATCHES, &schedule, &err);
  if (status != BL_OK) {
    FUZZ_CHECK(err.text[0] != '\0');
    return;
  }
  FUZZ_CHECK(bl_schedule_validate(schedule, NULL, &err) == BL_OK);
  FUZZ_CHECK(bl_schedule_peak_slots(schedule, peaks) == BL_OK);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    FUZZ_CHECK(peaks[s] * bl_schedule_block_weight(schedule) <= bl_block_pattern_bound(block, s) * (1 + 1e-9));
  }
  bl_schedule_destroy(schedule);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_ctl_block_file_t file;
  bl_error_t err = {0};
  if (bl_ctl_block_file_parse("block.yaml", (const char *)bytes, size_bytes, &file, &err) != BL_OK) {
    FUZZ_CHECK(strstr(err.text, "block.yaml") != NULL);
  } else if (file.block.stages <= STAGES_MAX && file.block.virtual_stages <= VIRTUAL_STAGES_MAX) {
    repeat(&file.block);
  }
  bl_ctl_block_file_cleanup(&file);
  return 0;
}

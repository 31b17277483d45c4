// SPDX-License-Identifier: Apache-2.0
// Whatever a schedule file holds, reading it ends with a schedule that is written and read back the same, with
// and without messages, or with words
// that say where it is wrong.
#include "target.h"

#include "schedule/csv/csv.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_schedule_t *schedule = NULL, *again = NULL;
  bl_error_t err = {0};
  bl_status_t status = bl_csv_read((const char *)bytes, size_bytes, "input.csv", &schedule, &err);
  if (status != BL_OK) {
    FUZZ_CHECK(err.text[0] != '\0' && schedule == NULL);
    return 0;
  }
  char *text, *text_again;
  size_t text_bytes, again_bytes;
  FUZZ_CHECK(bl_csv_write(schedule, &text, &text_bytes) == BL_OK);
  FUZZ_CHECK(bl_csv_read(text, text_bytes, "written.csv", &again, &err) == BL_OK);
  FUZZ_CHECK(bl_csv_write(again, &text_again, &again_bytes) == BL_OK);
  FUZZ_CHECK(text_bytes == again_bytes && memcmp(text, text_again, text_bytes) == 0);
  free(text_again);
  bl_schedule_destroy(again);
  // With messages it is the same schedule.
  FUZZ_CHECK(bl_csv_write_comms(schedule, size_bytes % 2 == 0, &text_again, &again_bytes) == BL_OK);
  FUZZ_CHECK(bl_csv_read(text_again, again_bytes, "messages.csv", &again, &err) == BL_OK);
  free(text_again);
  FUZZ_CHECK(bl_csv_write(again, &text_again, &again_bytes) == BL_OK);
  FUZZ_CHECK(text_bytes == again_bytes && memcmp(text, text_again, text_bytes) == 0);
  free(text);
  free(text_again);
  bl_schedule_destroy(schedule);
  bl_schedule_destroy(again);
  return 0;
}

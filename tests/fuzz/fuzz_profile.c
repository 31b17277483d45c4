// SPDX-License-Identifier: Apache-2.0
// Whatever a profile holds, reading it ends with one that is written and read back the same, or with words that name it.
#include "target.h"

#include "plan/profile/profile.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_profile_t profile = {0}, again = {0};
  bl_error_t err = {0};
  if (bl_profile_read(&profile, (const char *)bytes, size_bytes, "input.json", &err) != BL_OK) {
    FUZZ_CHECK(strstr(err.text, "input.json") != NULL);
    return 0;
  }
  char *text, *text_again;
  FUZZ_CHECK(bl_profile_write(&profile, &text) == BL_OK);
  FUZZ_CHECK(bl_profile_read(&again, text, strlen(text), "written.json", &err) == BL_OK);
  FUZZ_CHECK(bl_profile_write(&again, &text_again) == BL_OK);
  FUZZ_CHECK(strcmp(text, text_again) == 0);
  free(text);
  free(text_again);
  bl_profile_cleanup(&profile);
  bl_profile_cleanup(&again);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "lease/answer.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>

bl_status_t bl_lease_answer_to_error(const bl_lease_answer_t *answer, const char *what, bl_error_t *err) {
  bl_status_t status = bl_lease_reason_status(answer->reason);
  if (status == BL_OK) {
    bl_error_clear(err);
    return BL_OK;
  }
  char lease[80] = "", space[2 * BL_BYTES_TEXT + 40] = "", arena[2 * BL_BYTES_TEXT + 40] = "", retry[48] = "";
  if (answer->id != 0) {
    snprintf(lease, sizeof lease, " lease %" PRIu64 " (generation %" PRIu64 ")", answer->id, answer->generation);
  }
  const bool quota = answer->reason == BL_LEASE_JOB_QUOTA || answer->reason == BL_LEASE_STAGE_QUOTA;
  if (quota) {
    char size[BL_BYTES_TEXT], needed[BL_BYTES_TEXT];
    snprintf(space, sizeof space, "; the quota is %s, %s are needed", bl_bytes_format(answer->quota_bytes, size),
             bl_bytes_format(answer->needed_bytes, needed));
  } else if (answer->reason >= BL_LEASE_SPACE && answer->reason <= BL_LEASE_CAPACITY) {
    char free_text[BL_BYTES_TEXT], largest[BL_BYTES_TEXT];
    snprintf(space, sizeof space, "; free %s, largest run %s", bl_bytes_format(answer->free_bytes, free_text),
             bl_bytes_format(answer->largest_free_bytes, largest));
  }
  if (answer->reason == BL_LEASE_ARENA || answer->reason == BL_LEASE_BEYOND) {
    char has[BL_BYTES_TEXT], asked[BL_BYTES_TEXT];
    int length = snprintf(arena, sizeof arena, "; it has %s", bl_bytes_format(answer->arena_bytes, has));
    if (answer->reason == BL_LEASE_ARENA) {
      snprintf(arena + length, sizeof arena - (size_t)length, ", and %s were asked for",
               bl_bytes_format(answer->bytes, asked));
    }
  }
  if (answer->retry_after_ms != 0) {
    snprintf(retry, sizeof retry, "; try again in %" PRIu32 " ms", answer->retry_after_ms);
  }
  return bl_error_set(err, status, "cannot %s%s: %s%s%s%s", what, lease, bl_lease_reason_text(answer->reason), space,
                      arena, retry);
}

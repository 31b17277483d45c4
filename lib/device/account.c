// SPDX-License-Identifier: Apache-2.0
#include "device/account.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stddef.h>

const char *bl_memory_tag_name(bl_memory_tag_t tag) {
  static const char *const names[BL_MEMORY_TAGS] = {
#define X(identifier, name) [identifier] = name,
      BL_MEMORY_TAG_TABLE(X)
#undef X
  };
  return (unsigned)tag < BL_MEMORY_TAGS ? names[tag] : "unknown";
}

void bl_memory_plan(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes) {
  atomic_fetch_add(&account->planned_bytes[tag], bytes);
}

void bl_memory_unplan(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes) {
  atomic_fetch_sub(&account->planned_bytes[tag], bytes);
}

static void raise_peak(_Atomic uint64_t *peak, uint64_t value) {
  uint64_t seen = atomic_load(peak);
  while (seen < value && !atomic_compare_exchange_weak(peak, &seen, value)) {
  }
}

bl_status_t bl_memory_acquire(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes, bl_error_t *err) {
  uint64_t planned = atomic_load(&account->planned_bytes[tag]);
  uint64_t held = atomic_load(&account->current_bytes[tag]);
  uint64_t total;
  do {
    if (!bl_add_u64(held, bytes, &total) || total > planned) {
      char wanted[BL_BYTES_TEXT], have[BL_BYTES_TEXT], plan[BL_BYTES_TEXT];
      return bl_error_set(err, BL_EXHAUSTED,
                          "memory %s: %s (%" PRIu64 " bytes) wanted with %s held, but %s (%" PRIu64
                          " bytes) planned; raise the plan of this tag",
                          bl_memory_tag_name(tag), bl_bytes_format(bytes, wanted), bytes, bl_bytes_format(held, have),
                          bl_bytes_format(planned, plan), planned);
    }
  } while (!atomic_compare_exchange_weak(&account->current_bytes[tag], &held, total));
  raise_peak(&account->peak_bytes[tag], total);
  return BL_OK;
}

void bl_memory_release(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes) {
  atomic_fetch_sub(&account->current_bytes[tag], bytes);
}

bl_memory_usage_t bl_memory_usage(const bl_memory_account_t *account, bl_memory_tag_t tag) {
  return (bl_memory_usage_t){.planned_bytes = atomic_load(&account->planned_bytes[tag]),
                             .current_bytes = atomic_load(&account->current_bytes[tag]),
                             .peak_bytes = atomic_load(&account->peak_bytes[tag])};
}

bl_memory_usage_t bl_memory_usage_total(const bl_memory_account_t *account) {
  bl_memory_usage_t total = {0};
  for (int tag = 0; tag < BL_MEMORY_TAGS; tag++) {
    bl_memory_usage_t one = bl_memory_usage(account, (bl_memory_tag_t)tag);
    total.planned_bytes += one.planned_bytes;
    total.current_bytes += one.current_bytes;
    total.peak_bytes += one.peak_bytes;
  }
  return total;
}

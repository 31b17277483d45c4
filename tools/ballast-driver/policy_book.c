// SPDX-License-Identifier: Apache-2.0
#include "policy_book.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void bl_policy_book_add(bl_policy_book_t *book, const bl_policy_record_t *record) {
  const bl_policy_record_t *current = bl_policy_book_current(book);
  bl_policy_record_t added = *record;
  added.version = current != NULL ? current->version + 1 : 1;
  if (book->count == BL_POLICY_HISTORY) {
    memmove(book->records, book->records + 1, (BL_POLICY_HISTORY - 1) * sizeof book->records[0]);
    book->count--;
  }
  book->records[book->count++] = added;
}

const bl_policy_record_t *bl_policy_book_current(const bl_policy_book_t *book) {
  return book->count > 0 ? &book->records[book->count - 1] : NULL;
}

const bl_policy_record_t *bl_policy_book_find(const bl_policy_book_t *book, uint64_t version) {
  for (size_t i = 0; i < book->count; i++) {
    if (book->records[i].version == version) {
      return &book->records[i];
    }
  }
  return NULL;
}

const bl_policy_record_t *bl_policy_book_find_request(const bl_policy_book_t *book, uint64_t request) {
  for (size_t i = book->count; request != 0 && i-- > 0;) {
    if (book->records[i].request == request) {
      return &book->records[i];
    }
  }
  return NULL;
}

const bl_policy_record_t *bl_policy_book_of_step(const bl_policy_book_t *book, uint64_t step) {
  for (size_t i = book->count; i-- > 0;) {
    if (book->records[i].from_step <= step || i == 0) {
      return &book->records[i];
    }
  }
  return NULL;
}

// What auto chose one after the other counts as one policy.
static const bl_policy_record_t *before_current(const bl_policy_book_t *book) {
  const bl_policy_record_t *current = bl_policy_book_current(book);
  for (size_t i = book->count; i-- > 0;) {
    const bl_policy_record_t *record = &book->records[i];
    if (record != current &&
        (record->policy.kind != BL_JOB_POLICY_AUTO || current->policy.kind != BL_JOB_POLICY_AUTO)) {
      return record;
    }
  }
  return NULL;
}

bl_status_t bl_policy_book_rollback(const bl_policy_book_t *book, uint64_t version, const bl_policy_record_t **record,
                                    bl_error_t *err) {
  const bl_policy_record_t *found = version == 0 ? before_current(book) : bl_policy_book_find(book, version);
  if (found == NULL && version == 0) {
    return bl_error_set(err, BL_NOT_FOUND, "no policy was in force before the present one");
  }
  if (found == NULL) {
    return bl_error_set(err, BL_NOT_FOUND,
                        "policy version %" PRIu64 " is not known; the history has versions %" PRIu64 " to %" PRIu64,
                        version, book->records[0].version, book->records[book->count - 1].version);
  }
  *record = found;
  return BL_OK;
}

// ---- policies and their names ----------------------------------------------------------------------------------------

bool bl_policy_equal(const bl_policy_t *a, const bl_policy_t *b) {
  bool same_mode = a->mode == b->mode || a->kind == BL_JOB_POLICY_NONE || a->kind == BL_JOB_POLICY_DROP;
  return a->kind == b->kind && a->chosen == b->chosen && a->cap == b->cap && a->devices == b->devices &&
         a->copy == b->copy && same_mode;
}

const char *bl_policy_mode_name(bl_balance_mode_t mode) {
  return mode == BL_BALANCE_FEWEST ? "fewest" : "overlap";
}

const char *bl_policy_format(const bl_policy_t *policy, char text[BL_POLICY_TEXT]) {
  int length = snprintf(text, BL_POLICY_TEXT, "%s", bl_job_policy_name(policy->kind));
  if (policy->kind == BL_JOB_POLICY_NONE) {
    return text;
  }
  if (policy->cap != 0) {
    length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, " %" PRIu32, policy->cap);
  }
  const bool automatic = policy->kind == BL_JOB_POLICY_AUTO;
  if (automatic && policy->chosen != BL_JOB_POLICY_AUTO) {
    length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, ": %s", bl_job_policy_name(policy->chosen));
  }
  bool moves = policy->kind != BL_JOB_POLICY_DROP && policy->chosen != BL_JOB_POLICY_DROP &&
               !(automatic && policy->chosen == BL_JOB_POLICY_NONE);
  if (policy->mode == BL_BALANCE_FEWEST && moves) {
    length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, ", fewest");
  }
  for (uint32_t i = 0, first = 1; i < BL_POLICY_DEVICES; i++) {
    if ((policy->devices >> i & 1) != 0) {
      length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, "%s %" PRIu32, first ? ", devices" : "", i);
      first = 0;
    }
  }
  return text;
}

static bl_status_t read_mode(const char *mode, bl_balance_mode_t *to, bl_error_t *err) {
  if (strcmp(mode, "overlap") == 0) {
    *to = BL_BALANCE_OVERLAP;
  } else if (strcmp(mode, "fewest") == 0) {
    *to = BL_BALANCE_FEWEST;
  } else {
    return bl_error_set(err, BL_INVALID, "'%.40s' is no mode of balancing: overlap or fewest", mode);
  }
  return BL_OK;
}

bl_status_t bl_policy_read(const char *name, uint32_t cap, const char *mode, bl_balance_mode_t usual,
                           bl_policy_t *policy, bl_error_t *err) {
  bl_policy_t read = {.cap = cap, .mode = usual};
  bool known = false;
  for (int kind = BL_JOB_POLICY_NONE; kind <= BL_JOB_POLICY_AUTO && !known; kind++) {
    read.kind = (bl_job_policy_t)kind;
    known = strcmp(name, bl_job_policy_name(read.kind)) == 0;
  }
  if (!known) {
    return bl_error_set(err, BL_INVALID, "'%.40s' is no policy: none, bpipe, cap, drop or auto", name);
  }
  read.chosen = read.kind == BL_JOB_POLICY_AUTO ? BL_JOB_POLICY_AUTO : BL_JOB_POLICY_NONE;
  if (read.kind == BL_JOB_POLICY_CAP && cap == 0) {
    return bl_error_set(err, BL_INVALID, "the policy cap needs a number of slots from 1 on, for example cap 3");
  }
  if (read.kind == BL_JOB_POLICY_NONE && cap != 0) {
    return bl_error_set(err, BL_INVALID, "the policy none moves nothing and has no cap");
  }
  bl_status_t status = mode[0] == '\0' ? BL_OK : read_mode(mode, &read.mode, err);
  if (status == BL_OK) {
    *policy = read;
  }
  return status;
}

bl_status_t bl_policy_add_device(bl_policy_t *policy, uint32_t device, bl_error_t *err) {
  if (policy->kind == BL_JOB_POLICY_NONE || policy->kind == BL_JOB_POLICY_DROP) {
    return bl_error_set(err, BL_INVALID, "the policy %s moves nothing and names no devices",
                        bl_job_policy_name(policy->kind));
  }
  if (device >= BL_POLICY_DEVICES) {
    return bl_error_set(err, BL_INVALID, "device %" PRIu32 ": a policy can name devices 0 to %d", device,
                        BL_POLICY_DEVICES - 1);
  }
  policy->devices |= UINT64_C(1) << device;
  return BL_OK;
}

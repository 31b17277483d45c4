// SPDX-License-Identifier: Apache-2.0
#include "policy/book.h"

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

static const bl_policy_record_t *find(const bl_policy_book_t *book, uint64_t version) {
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
    if (record != current && (record->policy.kind != BL_POLICY_AUTO || current->policy.kind != BL_POLICY_AUTO)) {
      return record;
    }
  }
  return NULL;
}

bl_status_t bl_policy_book_rollback(const bl_policy_book_t *book, uint64_t version, const bl_policy_record_t **record,
                                    bl_error_t *err) {
  const bl_policy_record_t *found = version == 0 ? before_current(book) : find(book, version);
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

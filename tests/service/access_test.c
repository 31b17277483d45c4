// SPDX-License-Identifier: Apache-2.0
// Verifies the table of who may call what: every method of every service in proto/ has exactly one row and every row is
// such a method; roles are let in and kept out as it says; what takes leases away is not for stages.
#include "service/access.h"

#include "descriptor_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// ---- a reader of serialized FileDescriptorSets: just fields of length-delimited kind -----------------------------------

typedef struct span {
  const uint8_t *at, *end;
} span_t;

static uint64_t read_varint(span_t *span) {
  uint64_t value = 0;
  for (unsigned shift = 0; span->at < span->end && shift < 64; shift += 7) {
    uint8_t byte = *span->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) {
      break;
    }
  }
  return value;
}

// The next length-delimited field; others are skipped.
static bool next_field(span_t *span, unsigned *number, span_t *value) {
  while (span->at < span->end) {
    uint64_t key = read_varint(span);
    *number = (unsigned)(key >> 3);
    if ((key & 7) == 2) {
      uint64_t size = read_varint(span);
      assert_true(size <= (uint64_t)(span->end - span->at));
      *value = (span_t){span->at, span->at + size};
      span->at += size;
      return true;
    }
    assert_int_equal(key & 7, 0);
    (void)read_varint(span);
  }
  return false;
}

// The first field `number` as text.
static void read_text(span_t span, unsigned number, char *text, size_t text_bytes) {
  unsigned found;
  span_t value;
  text[0] = '\0';
  while (text[0] == '\0' && next_field(&span, &found, &value)) {
    if (found == number) {
      snprintf(text, text_bytes, "%.*s", (int)(value.end - value.at), (const char *)value.at);
    }
  }
}

typedef void (*method_fn)(const char *service, const char *method, void *context);

static void for_each_method_of_file(span_t file, method_fn fn, void *context) {
  char package[128], name[128], service_name[256 + 2], method_name[128];
  unsigned number;
  span_t service, method;
  read_text(file, 2, package, sizeof package);
  while (next_field(&file, &number, &service)) {
    if (number != 6) {
      continue;
    }
    read_text(service, 1, name, sizeof name);
    snprintf(service_name, sizeof service_name, "%s.%s", package, name);
    while (next_field(&service, &number, &method)) {
      if (number == 2) {
        read_text(method, 1, method_name, sizeof method_name);
        fn(service_name, method_name, context);
      }
    }
  }
}

static unsigned for_each_method(method_fn fn, void *context) {
  span_t set = {bl_proto_descriptor_set, bl_proto_descriptor_set + bl_proto_descriptor_set_bytes}, file;
  unsigned number, files = 0;
  while (next_field(&set, &number, &file)) {
    for_each_method_of_file(file, fn, context);
    files++;
  }
  return files;
}

// ---- tests -------------------------------------------------------------------------------------------------------------

#define ROWS_MAX 256

static void expect_row(const char *service, const char *method, void *context) {
  unsigned *seen = context, rows = 0;
  size_t count;
  const bl_access_row_t *table = bl_access_table(&count);
  assert_in_range(count, 1, ROWS_MAX);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(table[i].service, service) == 0 && strcmp(table[i].method, method) == 0) {
      rows++;
      seen[i]++;
    }
  }
  if (rows != 1) {
    fail_msg("%s.%s has %u rows in lib/service/access.c; it needs one, which says who may call it", service, method,
             rows);
  }
}

static void every_method_has_its_row(void **state) {
  (void)state;
  unsigned seen[ROWS_MAX] = {0};
  assert_in_range(for_each_method(expect_row, seen), 5, 100);
  size_t count;
  const bl_access_row_t *table = bl_access_table(&count);
  for (size_t i = 0; i < count; i++) {
    if (seen[i] != 1) {
      fail_msg("%s.%s has a row in lib/service/access.c, but proto/ has no such method", table[i].service,
               table[i].method);
    }
    assert_true(table[i].roles != 0 && (table[i].roles & ~BL_EVERY_ROLE) == 0);
  }
}

static bl_status_t ask(const char *service, const char *method, bl_role_t role) {
  bl_identity_t caller = {.role = role};
  bl_error_t err;
  return bl_access_check(service, method, &caller, &err);
}

static void the_table_decides(void **state) {
  (void)state;
  size_t count;
  const bl_access_row_t *table = bl_access_table(&count);
  for (size_t i = 0; i < count; i++) {
    for (bl_role_t role = BL_ROLE_NONE; role < BL_ROLE_COUNT; role++) {
      bl_status_t wanted = (table[i].roles & BL_ROLE_BIT(role)) != 0 ? BL_OK : BL_DENIED;
      assert_int_equal(ask(table[i].service, table[i].method, role), wanted);
    }
  }
  assert_int_equal(ask("ballast.v1.Stage", "Unknown", BL_ROLE_OPERATOR), BL_DENIED);
  assert_int_equal(ask("ballast.v1.Unknown", "Status", BL_ROLE_OPERATOR), BL_DENIED);
}

static void what_takes_from_others_is_for_owners(void **state) {
  (void)state;
  static const char *const methods[][2] = {
      {"ballast.v1.Store", "Revoke"}, {"ballast.v1.Store", "Drain"},    {"ballast.v1.Store", "SetQuota"},
      {"ballast.v1.Stage", "Stop"},   {"ballast.v1.Driver", "Stop"},    {"ballast.v1.Driver", "Pause"},
      {"ballast.v1.Stage", "Commit"}, {"ballast.v1.Stage", "Takeover"}, {"ballast.v1.Driver", "Checkpoint"}};
  for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
    assert_int_equal(ask(methods[i][0], methods[i][1], BL_ROLE_STAGE), BL_DENIED);
    assert_int_equal(ask(methods[i][0], methods[i][1], BL_ROLE_STORE), BL_DENIED);
  }
  bl_error_t err;
  const bl_identity_t stage = {.role = BL_ROLE_STAGE, .job = "gpt2"};
  assert_int_equal(bl_access_check("ballast.v1.Store", "Revoke", &stage, &err), BL_DENIED);
  assert_string_equal(err.text, "ballast.v1.Store.Revoke is not for your certificate's role (stage of job gpt2); it "
                                "wants driver or operator");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_method_has_its_row),
      cmocka_unit_test(the_table_decides),
      cmocka_unit_test(what_takes_from_others_is_for_owners),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Verifies roles and jobs in certificates' URIs: what is read, what is refused, and for which job an owner may act.
#include "tls/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void roles_and_jobs_are_read(void **state) {
  (void)state;
  static const struct {
    const char *uri, *text;
    bl_role_t role;
  } rows[] = {{"ballast://stage", "stage", BL_ROLE_STAGE},
              {"ballast://store", "store", BL_ROLE_STORE},
              {"ballast://driver", "driver", BL_ROLE_DRIVER},
              {"ballast://operator", "operator", BL_ROLE_OPERATOR},
              {"ballast://stage/gpt2", "stage of job gpt2", BL_ROLE_STAGE}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bl_identity_t identity;
    char text[BL_IDENTITY_TEXT_BYTES];
    assert_int_equal(bl_identity_parse(rows[i].uri, &identity, NULL), BL_OK);
    assert_int_equal(identity.role, rows[i].role);
    assert_string_equal(bl_identity_format(&identity, text), rows[i].text);
  }
}

static void what_is_no_identity_is_refused(void **state) {
  (void)state;
  char long_job[BL_IDENTITY_JOB_BYTES + 32] = "ballast://stage/";
  memset(long_job + strlen(long_job), 'x', BL_IDENTITY_JOB_BYTES);
  const char *wrong[] = {"ballast://",       "ballast://none",      "ballast://stages",    "ballast://Stage",
                         "ballast://stage/", "ballast://stage/a/b", "ballast://stage?x",   "ballast://stage/a#b",
                         long_job,           "ballast:///operator", "ballast://operator/x"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    bl_identity_t identity;
    bl_error_t err;
    assert_int_equal(bl_identity_parse(wrong[i], &identity, &err), BL_INVALID);
  }
  bl_identity_t identity;
  assert_int_equal(bl_identity_parse("spiffe://cluster/ns/x", &identity, NULL), BL_NOT_FOUND);
  assert_int_equal(bl_identity_parse("", &identity, NULL), BL_NOT_FOUND);
}

static void a_job_binds_its_owner(void **state) {
  (void)state;
  bl_identity_t bound = {.role = BL_ROLE_STAGE, .job = "gpt2"}, any = {.role = BL_ROLE_STAGE};
  const bl_identity_t nobody = {.role = BL_ROLE_NONE};
  assert_true(bl_identity_is_for_job(&bound, "gpt2"));
  assert_false(bl_identity_is_for_job(&bound, "gpt"));
  assert_false(bl_identity_is_for_job(&bound, "gpt2#3"));
  assert_false(bl_identity_is_for_job(&bound, "gpt22"));
  assert_false(bl_identity_is_for_job(&bound, ""));
  assert_true(bl_identity_is_for_job(&any, "gpt2"));
  assert_true(bl_identity_is_for_job(&nobody, "gpt2")); // no TLS: others guard the connection
}

static void sets_of_roles_have_names(void **state) {
  (void)state;
  char text[BL_IDENTITY_TEXT_BYTES];
  assert_string_equal(bl_roles_format(BL_STAGES, text), "stage");
  assert_string_equal(bl_roles_format(BL_DRIVERS | BL_OPERATORS, text), "driver or operator");
  assert_string_equal(bl_roles_format(BL_EVERY_ROLE, text), "stage or store or driver or operator");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(roles_and_jobs_are_read),
      cmocka_unit_test(what_is_no_identity_is_refused),
      cmocka_unit_test(a_job_binds_its_owner),
      cmocka_unit_test(sets_of_roles_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Verifies the reading of certificates: every kind of wrong file is refused with its name, cause and advice; changed files
// are taken up; wrong ones leave those before in use.
#include "authority.h"
#include "sys/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static authority_t ours, others;

static int start(void **state) {
  (void)state;
  authority_init(&ours, "");
  authority_init(&others, "stage");
  authority_make(&ours, "stage/gpt2");
  authority_make(&ours, "--days 0 stage/old"); // has expired
  return 0;
}

static int stop(void **state) {
  (void)state;
  authority_cleanup(&ours);
  authority_cleanup(&others);
  return 0;
}

static void write_file(const authority_t *authority, const char *name, const char *text) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", authority->folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void expect(const bl_tls_options_t *options, bl_status_t status, const char *part, const char *other_part) {
  bl_tls_t *tls;
  bl_error_t err = {0};
  assert_string_equal(bl_status_name(bl_tls_create(options, &tls, &err)), bl_status_name(status));
  if (strstr(err.text, part) == NULL || strstr(err.text, other_part) == NULL) {
    fail_msg("no '%s' and '%s' in: %s", part, other_part, err.text);
  }
}

static void a_whole_set_is_taken(void **state) {
  (void)state;
  bl_tls_t *tls = authority_tls(&ours, "stage-gpt2");
  bl_identity_t identity;
  bl_tls_identity(tls, &identity);
  assert_int_equal(identity.role, BL_ROLE_STAGE);
  assert_string_equal(identity.job, "gpt2");
  assert_int_equal(bl_tls_judge_own(tls, NULL), BL_OK);
  const int64_t days = (bl_tls_expiry(tls) - (int64_t)time(NULL)) / 86400; // made for 365
  assert_in_range(days, 360, 365);
  bl_tls_release(tls);
}

static void wrong_files_are_named(void **state) {
  (void)state;
  bl_tls_options_t options = authority_options(&ours, "stage");
  char path[128];
  options.key = NULL;
  expect(&options, BL_INVALID, "--tls-key", "go together");
  options.key = ours.certificate; // a certificate, no key
  expect(&options, BL_INVALID, "stage.pem holds no private key", "deploy/certificates.sh");
  snprintf(path, sizeof path, "%s/store.key", ours.folder);
  options.key = path;
  expect(&options, BL_INVALID, "store.key does not belong to", "stage.pem");
  snprintf(path, sizeof path, "%s/missing.key", ours.folder);
  expect(&options, BL_NOT_FOUND, "TLS key", "missing.key");
  options.key = ours.key;
  options.certificate = ours.key;
  expect(&options, BL_INVALID, "stage.key holds no certificate", "PEM");
  options.certificate = "/dev/null";
  write_file(&ours, "garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  snprintf(path, sizeof path, "%s/garbage.pem", ours.folder);
  options.certificate = path;
  expect(&options, BL_INVALID, "garbage.pem holds no certificate", "PEM");
}

static void wrong_certificates_are_named(void **state) {
  (void)state;
  bl_tls_options_t options = authority_options(&ours, "stage");
  options.roles = BL_STORES;
  expect(&options, BL_UNAUTHENTICATED, "is for the role stage", "must be store");
  options = authority_options(&ours, "stage");
  char path[128];
  snprintf(path, sizeof path, "%s/ca.pem", others.folder);
  options.ca = path;
  expect(&options, BL_UNAUTHENTICATED, "issued by another authority", "--tls-ca");
  options = authority_options(&ours, "ca"); // signs, names no role
  expect(&options, BL_UNAUTHENTICATED, "names no role", "subjectAltName");
  options = authority_options(&ours, "stage-old");
  expect(&options, BL_UNAUTHENTICATED, "has expired on", "deploy/certificates.sh");
}

static uint64_t wait_for_change(bl_tls_t *tls, uint64_t before) {
  for (int i = 0; i < 6000; i++) { // files are looked at once a second
    uint64_t now = bl_tls_refresh(tls);
    if (now != before) {
      return now;
    }
    usleep(10000);
  }
  fail_msg("the change was not taken up within a minute");
  return 0;
}

static void changed_files_are_taken_up(void **state) {
  (void)state;
  authority_make(&ours, "driver");
  bl_tls_t *tls = authority_tls(&ours, "driver");
  uint64_t first = bl_tls_refresh(tls);
  assert_true(bl_tls_refresh(tls) == first);
  bl_tls_material_t before, after;
  assert_int_equal(bl_tls_material_init(&before, tls, NULL), BL_OK);
  write_file(&ours, "driver.key", "no key"); // must not be taken, whenever it is looked at
  authority_make(&ours, "driver");
  (void)wait_for_change(tls, first);
  assert_int_equal(bl_tls_material_init(&after, tls, NULL), BL_OK);
  assert_string_not_equal(before.certificate, after.certificate);
  assert_string_not_equal(before.key, after.key);
  assert_string_equal(before.ca, after.ca);
  bl_tls_material_cleanup(&before);
  bl_tls_material_cleanup(&after);
  bl_tls_release(tls);
}

static void servers_are_judged_by_authority_role_and_time(void **state) {
  (void)state;
  bl_tls_t *tls = authority_tls(&ours, "driver"), *foreign = authority_tls(&others, "stage");
  bl_tls_t *stage = authority_tls(&ours, "stage");
  bl_tls_material_t good, bad;
  assert_int_equal(bl_tls_material_init(&good, stage, NULL), BL_OK);
  assert_int_equal(bl_tls_material_init(&bad, foreign, NULL), BL_OK);
  bl_identity_t identity;
  bl_error_t err;
  assert_int_equal(bl_tls_judge_server(tls, good.certificate, BL_STAGES, &identity, &err), BL_OK);
  assert_int_equal(identity.role, BL_ROLE_STAGE);
  assert_int_equal(bl_tls_judge_server(tls, good.certificate, BL_STORES, &identity, &err), BL_UNAUTHENTICATED);
  assert_non_null(strstr(err.text, "is for the role stage, but a store is wanted"));
  assert_int_equal(bl_tls_judge_server(tls, bad.certificate, BL_STAGES, &identity, &err), BL_UNAUTHENTICATED);
  assert_non_null(strstr(err.text, "issued by another authority"));
  char *old;
  size_t size;
  authority_options(&ours, "stage-old");
  assert_int_equal(bl_file_read(ours.certificate, BL_TLS_FILE_LIMIT_BYTES, &old, &size, NULL), BL_OK);
  assert_int_equal(bl_tls_judge_server(tls, old, BL_STAGES, &identity, &err), BL_UNAUTHENTICATED);
  assert_non_null(strstr(err.text, "the server's certificate (ballast stage of old) has expired on"));
  free(old);
  assert_int_equal(bl_tls_judge_server(tls, "", BL_STAGES, &identity, &err), BL_INVALID);
  bl_tls_material_cleanup(&good);
  bl_tls_material_cleanup(&bad);
  bl_tls_release(tls);
  bl_tls_release(stage);
  bl_tls_release(foreign);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_whole_set_is_taken),
      cmocka_unit_test(wrong_files_are_named),
      cmocka_unit_test(wrong_certificates_are_named),
      cmocka_unit_test(changed_files_are_taken_up),
      cmocka_unit_test(servers_are_judged_by_authority_role_and_time),
  };
  return cmocka_run_group_tests(tests, start, stop);
}

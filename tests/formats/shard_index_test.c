// SPDX-License-Identifier: Apache-2.0
// Verifies the index of sharded models: one that transformers wrote, and refusals.
#include "formats/shard_index.h"

#include "sys/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void reads_an_index_of_transformers(void **state) {
  (void)state;
  bl_error_t err = {0};
  char *bytes;
  size_t size;
  const char *path = BALLAST_SOURCE_DIR "/tests/golden/sharded-bf16/model.safetensors.index.json";
  assert_int_equal(bl_file_read(path, 1 << 20, &bytes, &size, &err), BL_OK);
  bl_shard_index_t index;
  if (bl_shard_index_parse(&index, bytes, size, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  free(bytes); // the index owns its texts
  assert_int_equal(index.file_count, 3);
  assert_string_equal(index.files[0], "model-00001-of-00003.safetensors");
  assert_string_equal(index.files[2], "model-00003-of-00003.safetensors");
  const bl_shard_entry_t *entry = bl_shard_index_find(&index, "transformer.ln_f.weight");
  assert_non_null(entry);
  assert_int_equal(entry->file, 2);
  assert_null(bl_shard_index_find(&index, "lm_head.weight"));
  bl_shard_index_cleanup(&index);
}

static void refuses(const char *text, const char *message) {
  bl_shard_index_t index;
  bl_error_t err = {0};
  bl_status_t status = bl_shard_index_parse(&index, text, strlen(text), &err);
  if (status != BL_INVALID || strstr(err.text, message) == NULL) {
    fail_msg("%s: expected '%s', got %s '%s'", text, message, bl_status_name(status), err.text);
  }
}

static void malformed_indexes_are_refused(void **state) {
  (void)state;
  refuses("", "line 1");
  refuses("[]", "weight_map");
  refuses("{\"weight_map\": []}", "weight_map");
  refuses("{\"weight_map\": {}}", "weight_map");
  refuses("{\"weight_map\": {\"a\": 7}}", "tensor 'a' needs the name of a file in the same folder, has no text");
  refuses("{\"weight_map\": {\"a\": \"../../etc/passwd\"}}", "has '../../etc/passwd'");
  refuses("{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "same folder");
  refuses("{\"weight_map\": {\"a\": \"..\"}}", "same folder");
  refuses("{\"weight_map\": {\"a\": \"\"}}", "same folder");
  refuses("{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "duplicate");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_an_index_of_transformers),
      cmocka_unit_test(malformed_indexes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

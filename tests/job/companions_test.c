// SPDX-License-Identifier: Apache-2.0
// Verifies what is copied beside a checkpoint's weights: the files of the table and no others, through links, of model.init or
// beside model.config, and none where nothing is saved; what cannot be copied is refused with key and file.
#include "job/companions.h"

#include "job/job_text.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-companions-XXXXXX";
static char path[256];

static const char *in_folder(const char *name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void put(const char *name, const char *text) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  fclose(file);
}

static bl_status_t read_as(bl_companions_t *companions, const char *key, const char *file, bool saves,
                           bl_error_t *err) {
  char sets[512];
  snprintf(sets, sizeof sets, "%s=%s%s\n%s", key, folder, file, saves ? "checkpoint.folder=/tmp/kept" : "");
  bl_job_t job;
  if (job_text_parse(&job, sets, err) != BL_OK) {
    fail_msg("%s: %s", sets, err->text);
  }
  const bl_status_t looked = bl_companions_check(&job, err);
  bl_status_t status = bl_companions_read(companions, &job, err);
  assert_int_equal(looked, status);
  bl_job_cleanup(&job);
  return status;
}

static const bl_companion_t *find(const bl_companions_t *companions, const char *name) {
  for (size_t i = 0; i < companions->count; i++) {
    if (strcmp(companions->files[i].name, name) == 0) {
      return &companions->files[i];
    }
  }
  return NULL;
}

static void files_of_the_table_are_read(void **state) {
  (void)state;
  static const char *const ways[][2] = {{"model.init", ""}, {"model.config", "/config.json"}};
  bl_error_t err = {0};
  put("config.json", "{\"eos_token_id\": 5}");
  put("tokenizer.json", "{\"a\": 1}");
  put("generation_config.json", "{}");
  put("README.md", "of another model");
  put("blob", "{% chat %}");
  put("merges.txt", ""); // an empty one says nothing
  assert_int_equal(symlink("blob", in_folder("chat_template.jinja")), 0);
  for (int i = 0; i < 2; i++) {
    bl_companions_t companions = {0};
    if (read_as(&companions, ways[i][0], ways[i][1], true, &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(companions.count, 3);
    assert_string_equal(find(&companions, "tokenizer.json")->bytes, "{\"a\": 1}");
    assert_int_equal(find(&companions, "tokenizer.json")->size_bytes, 8);
    assert_string_equal(find(&companions, "chat_template.jinja")->bytes, "{% chat %}");
    assert_string_equal(companions.config, "{\"eos_token_id\": 5}");
    bl_companions_cleanup(&companions);
  }
  bl_companions_t none = {0};
  assert_int_equal(read_as(&none, "model.init", "", false, &err), BL_OK);
  assert_int_equal(none.count, 0);
  assert_null(none.config);
}

static void refused(const char *name, const char *cause) {
  bl_companions_t companions = {0};
  bl_error_t err;
  assert_int_equal(read_as(&companions, "model.init", "", true, &err), BL_INVALID);
  if (strstr(err.text, in_folder(name)) == NULL || strstr(err.text, cause) == NULL ||
      strstr(err.text, "model.init: ") == NULL) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(companions.count, 0);
  unlink(in_folder(name));
  rmdir(in_folder(name));
}

static void what_cannot_be_copied_is_refused(void **state) {
  (void)state;
  assert_int_equal(symlink("nowhere", in_folder("tokenizer.model")), 0);
  refused("tokenizer.model", "is a link to a file that is not there");
  assert_int_equal(mkdir(in_folder("vocab.json"), 0700), 0);
  refused("vocab.json", "is no regular file");
  assert_int_equal(mkfifo(in_folder("vocab.txt"), 0600), 0); // reading it would wait
  refused("vocab.txt", "is no regular file");
  put("added_tokens.json", "x");
  assert_int_equal(truncate(in_folder("added_tokens.json"), BL_COMPANIONS_BYTES), 0);
  refused("added_tokens.json", "all together at most 256 MiB are copied");
}

static int make(void **state) {
  (void)state;
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int drop(void **state) {
  (void)state;
  char command[sizeof folder + 16];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(files_of_the_table_are_read),
                                     cmocka_unit_test(what_cannot_be_copied_is_refused)};
  return cmocka_run_group_tests(tests, make, drop);
}

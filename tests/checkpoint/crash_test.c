// SPDX-License-Identifier: Apache-2.0
// Verifies that a checkpoint survives everything that happens to the next one: the writer is killed at every system call
// it makes, and the disk is full after every few bytes. Each time the newest checkpoint is whole, is the old one or the
// new one, and a later writer finishes its work in the same folder.
#include "checkpoint/saved_model.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OLD_STEP      10
#define NEW_STEP      20
#define NEXT_STEP     30
#define CALLS_MAX     100000
#define SKIP          77
#define CHILD_FAILED  1
#define CHILD_REFUSED 2 // the writer reported an error, as it should on a full disk

// In memory where there is such a place: hundreds of checkpoints are synced.
static char in_memory[] = "/dev/shm/ballast-crash-XXXXXX", on_disk[] = "/tmp/ballast-crash-XXXXXX";
static const char *folder;
static saved_model_t saved;

static void empty_folder(void) {
  char command[sizeof in_memory + 32];
  snprintf(command, sizeof command, "rm -rf %s/*", folder);
  assert_int_equal(system(command), 0);
}

static void write_old(void) {
  bl_error_t err = {0};
  saved_model_set(&saved, OLD_STEP);
  if (saved_model_write(&saved, folder, OLD_STEP, 1, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  saved_model_set(&saved, NEW_STEP);
}

// In the child: tries the folder, writes the new checkpoint and deletes the old one.
static void write_new_and_exit(void) {
  bl_error_t err = {0};
  bl_status_t status = bl_checkpoint_folder_try(folder, &err);
  status = status == BL_OK ? saved_model_write(&saved, folder, NEW_STEP, 1, &err) : status;
  _exit(status == BL_OK ? 0 : CHILD_REFUSED);
}

static void check_nothing_hidden(void) {
  DIR *stream = opendir(folder);
  assert_non_null(stream);
  for (const struct dirent *item; (item = readdir(stream)) != NULL;) {
    if (item->d_name[0] == '.' && strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) {
      fail_msg("%s stays", item->d_name);
    }
  }
  closedir(stream);
}

// What must hold whenever the writer stopped. Returns the step of the newest checkpoint.
static uint64_t check_folder(const char *when, long where) {
  bl_error_t err = {0};
  uint64_t step = saved_model_read(folder, &err);
  if (step != OLD_STEP && step != NEW_STEP) {
    fail_msg("%s %ld: %s", when, where, step == 0 ? err.text : "a checkpoint of another step");
  }
  size_t count;
  assert_int_equal(bl_checkpoint_folder_sweep(folder, &count, &err), BL_OK);
  check_nothing_hidden();
  saved_model_set(&saved, NEXT_STEP);
  if (saved_model_write(&saved, folder, NEXT_STEP, 1, &err) != BL_OK || saved_model_read(folder, &err) != NEXT_STEP) {
    fail_msg("%s %ld, the checkpoint after it: %s", when, where, err.text);
  }
  return step;
}

// Lets the child make `calls` system calls and kills it at the entry to the next. False when it ended before.
static bool run_until(long calls, bool *traced) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
      _exit(SKIP);
    }
    raise(SIGSTOP);
    write_new_and_exit();
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) {
    *traced = false;
    return false;
  }
  assert_int_equal(ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)), 0);
  long stops = 0; // two for each call: entry and exit
  while (stops < 2 * calls + 1) {
    assert_int_equal(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      assert_int_equal(WEXITSTATUS(status), 0);
      return false;
    }
    assert_true(WIFSTOPPED(status));
    stops += WSTOPSIG(status) == (SIGTRAP | 0x80);
  }
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  return true;
}

static void test_writer_killed_at_every_system_call(void **state) {
  (void)state;
  long calls = 0, kept_old = 0;
  bool traced = true;
  for (; calls < CALLS_MAX; calls++) {
    empty_folder();
    write_old();
    if (!run_until(calls, &traced)) {
      break;
    }
    kept_old += check_folder("killed at system call", calls) == OLD_STEP;
  }
  if (!traced) {
    print_message("SKIPPED: this place does not allow ptrace\n");
    skip();
  }
  print_message("killed at each of %ld system calls; the old checkpoint was the newest after %ld of them\n", calls,
                kept_old);
  assert_true(calls > 40);
  assert_true(kept_old > 20 && kept_old < calls);
}

static void test_full_disk_after_every_few_bytes(void **state) {
  (void)state;
  uint64_t largest = bl_snapshot_image(saved.snapshots[0], BL_CHECKPOINT_SHARD_OPTIMIZER)->size_bytes + 256;
  unsigned refused = 0, written = 0;
  for (uint64_t limit = 0; limit < largest; limit += 293) {
    empty_folder();
    write_old();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      signal(SIGXFSZ, SIG_IGN);
      struct rlimit bytes = {.rlim_cur = limit, .rlim_max = limit};
      if (setrlimit(RLIMIT_FSIZE, &bytes) != 0) {
        _exit(CHILD_FAILED);
      }
      write_new_and_exit();
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != CHILD_FAILED);
    bool failed = WEXITSTATUS(status) == CHILD_REFUSED;
    assert_int_equal(check_folder("files limited to bytes", (long)limit), failed ? OLD_STEP : NEW_STEP);
    refused += failed;
    written += !failed;
  }
  assert_true(refused > 10);
  assert_true(written > 0);
}

static int make(void **state) {
  (void)state;
  folder = mkdtemp(in_memory);
  folder = folder != NULL ? folder : mkdtemp(on_disk);
  return folder != NULL && saved_model_init(&saved, OLD_STEP) ? 0 : -1;
}

static int drop(void **state) {
  (void)state;
  empty_folder();
  saved_model_cleanup(&saved);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_writer_killed_at_every_system_call),
      cmocka_unit_test(test_full_disk_after_every_few_bytes),
  };
  return cmocka_run_group_tests(tests, make, drop);
}

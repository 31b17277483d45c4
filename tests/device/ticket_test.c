// SPDX-License-Identifier: Apache-2.0
// Verifies tickets of device memory: what was written is read from the descriptor, through another copy of it and at any
// position; files that are none, too short, too long or no files are not taken for one; and nobody takes a ticket for memory
// of the host.
#include "device/ticket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bl_memory_ticket_t example(void) {
  bl_memory_ticket_t ticket = {.offset_bytes = (uint64_t)7 << 33, .bytes = ((uint64_t)1 << 40) - 1};
  for (int i = 0; i < BL_MEMORY_NAME_BYTES; i++) {
    ticket.name[i] = (uint8_t)(i * 37);
  }
  return ticket;
}

static void what_was_written_is_read(void **state) {
  (void)state;
  bl_memory_ticket_t ticket = example(), found;
  bl_error_t err = {0};
  int fd = -1;
  assert_int_equal(bl_memory_ticket_write(&ticket, &fd, &err), BL_OK);
  int other = dup(fd);
  for (int i = 0; i < 2; i++) {
    memset(&found, 0xee, sizeof found);
    assert_true(bl_memory_ticket_read(i == 0 ? fd : other, &found));
    assert_memory_equal(&found, &ticket, sizeof ticket);
    assert_true(lseek(fd, 11, SEEK_SET) == 11);
  }
  int seals = fcntl(fd, F_GET_SEALS);
  assert_int_equal(seals & F_SEAL_SHRINK, 0); // peer_memory.h would map it
  close(fd);
  close(other);
}

static void other_files_are_none(void **state) {
  (void)state;
  bl_memory_ticket_t ticket = example(), found;
  bl_error_t err = {0};
  int fd = -1, pipes[2];
  assert_int_equal(bl_memory_ticket_write(&ticket, &fd, &err), BL_OK);
  off_t size = lseek(fd, 0, SEEK_END);
  assert_int_equal(ftruncate(fd, size + 1), 0);
  assert_false(bl_memory_ticket_read(fd, &found));
  assert_int_equal(ftruncate(fd, size - 1), 0);
  assert_false(bl_memory_ticket_read(fd, &found));
  assert_int_equal(ftruncate(fd, size), 0);
  assert_true(bl_memory_ticket_read(fd, &found)); // a byte of the size is 0 now
  assert_int_equal(pwrite(fd, "B", 1, 0), 1);
  assert_false(bl_memory_ticket_read(fd, &found));
  close(fd);
  assert_int_equal(pipe(pipes), 0);
  assert_false(bl_memory_ticket_read(pipes[0], &found));
  assert_false(bl_memory_ticket_read(-1, &found));
  close(pipes[0]);
  close(pipes[1]);
  fd = memfd_create("memory", MFD_CLOEXEC);
  assert_int_equal(ftruncate(fd, 1 << 20), 0);
  assert_false(bl_memory_ticket_read(fd, &found));
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_written_is_read),
                                     cmocka_unit_test(other_files_are_none)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

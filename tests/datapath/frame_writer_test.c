// SPDX-License-Identifier: Apache-2.0
// Verifies what a writer owns: descriptors that wait to be sent outlive those of the caller, go with the first byte of
// their frame, and leave nothing open; a chunk that was let go of goes on from its copy.
#include "datapath/frame_writer.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static uint8_t sent[2 * BL_FRAME_CHUNK_BYTES];
static size_t sent_bytes, takes; // how much more the stream takes
static ino_t passed[8];
static size_t passed_at[8], passed_count;

static ssize_t take(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds,
                    size_t fd_count) {
  (void)stream;
  size_t moved = 0;
  if (takes == 0) {
    errno = EAGAIN;
    return -1;
  }
  for (size_t i = 0; i < fd_count; i++) {
    struct stat file;
    assert_int_equal(fstat(fds[i], &file), 0);
    passed_at[passed_count] = sent_bytes;
    passed[passed_count++] = file.st_ino;
  }
  for (size_t i = 0; i < part_count && takes > 0; i++) {
    const size_t part = parts[i].iov_len < takes ? parts[i].iov_len : takes;
    memcpy(sent + sent_bytes, parts[i].iov_base, part);
    sent_bytes += part;
    takes -= part;
    moved += part;
  }
  return (ssize_t)moved;
}

static const bl_stream_ops_t ops = {.write = take};
static bl_stream_t stream;
static bl_frame_writer_t writer;

static int set_up(void **state) {
  (void)state;
  stream = (bl_stream_t){.ops = &ops, .fd = -1, .is_unix = true};
  sent_bytes = takes = passed_count = 0;
  bl_frame_writer_init(&writer, &stream);
  return 0;
}

static unsigned count_open(void) {
  unsigned count = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    count += entry->d_name[0] != '.';
  }
  closedir(folder);
  return count;
}

static int make_file(ino_t *inode) {
  struct stat file;
  const int fd = memfd_create("shown", MFD_CLOEXEC);
  assert_int_equal(fstat(fd, &file), 0);
  *inode = file.st_ino;
  return fd;
}

static void descriptors_outlive_the_callers(void **state) {
  (void)state;
  const unsigned before = count_open();
  ino_t inodes[3];
  for (uint32_t i = 0; i < 3; i++) {
    const int fd = make_file(&inodes[i]);
    assert_true(
        bl_frame_writer_put(&writer, &(bl_frame_t){.kind = BL_FRAME_REGISTER, .region = i, .bytes = 1}, NULL, &fd, 1));
    close(fd);
  }
  assert_int_equal(bl_frame_writer_flush(&writer), BL_WRITER_AGAIN);
  takes = BL_FRAME_HEADER_BYTES + 10; // into the second
  assert_int_equal(bl_frame_writer_flush(&writer), BL_WRITER_AGAIN);
  assert_int_equal(passed_count, 2);
  takes = SIZE_MAX;
  assert_int_equal(bl_frame_writer_flush(&writer), BL_WRITER_DONE);
  assert_int_equal(passed_count, 3);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(passed[i], inodes[i]);
    assert_int_equal(passed_at[i], i * BL_FRAME_HEADER_BYTES);
  }
  assert_int_equal(count_open(), before);
}

static void what_was_not_sent_is_closed(void **state) {
  (void)state;
  const unsigned before = count_open();
  ino_t inode;
  const int fd = make_file(&inode), fds[2] = {fd, fd};
  assert_true(bl_frame_writer_put(&writer, &(bl_frame_t){.kind = BL_FRAME_READY}, NULL, fds, 2));
  close(fd);
  bl_frame_writer_cleanup(&writer);
  bl_frame_writer_cleanup(&writer);
  assert_int_equal(count_open(), before);
  assert_false(bl_frame_writer_is_busy(&writer));
}

static void a_chunk_goes_on_from_its_copy(void **state) {
  (void)state;
  static uint8_t memory[BL_FRAME_CHUNK_BYTES], side[BL_FRAME_CHUNK_BYTES], expected[BL_FRAME_CHUNK_BYTES];
  for (size_t i = 0; i < sizeof memory; i++) {
    memory[i] = expected[i] = (uint8_t)(i * 7 + i / 251);
  }
  bl_frame_sender_t sender = {.frame = {.attempt = 3, .bytes = sizeof memory}, .from = memory, .verified = true};
  takes = BL_FRAME_HEADER_BYTES + 1000;
  assert_int_equal(bl_frame_writer_send(&writer, &sender, 1), BL_WRITER_AGAIN);
  assert_int_equal(bl_frame_writer_sent(&writer, &sender), 0);
  assert_int_equal(bl_frame_writer_let_go(&writer, side), sizeof memory - 1000);
  memset(memory, 0xee, sizeof memory); // its owner's again
  assert_int_equal(bl_frame_writer_let_go(&writer, side), 0);
  takes = SIZE_MAX;
  assert_int_equal(bl_frame_writer_flush(&writer), BL_WRITER_DONE);
  assert_int_equal(sent_bytes, BL_FRAME_HEADER_BYTES + sizeof memory);
  assert_memory_equal(sent + BL_FRAME_HEADER_BYTES, expected, sizeof expected);
  assert_int_equal(bl_frame_writer_sent(&writer, &sender), sizeof memory);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(descriptors_outlive_the_callers, set_up),
      cmocka_unit_test_setup(what_was_not_sent_is_closed, set_up),
      cmocka_unit_test_setup(a_chunk_goes_on_from_its_copy, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

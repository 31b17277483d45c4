// SPDX-License-Identifier: Apache-2.0
#include "loop/lifeline.h"

#include "loop/loop_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct bl_lifeline {
  uv_pipe_t uv;
  bl_loop_t *loop;
  bl_lifeline_fn cut;
  void *context;
  char ignored[64]; // for what the parent writes, if it ever writes anything
};

static void on_allocate(uv_handle_t *handle, size_t wanted, uv_buf_t *buffer) {
  (void)wanted;
  bl_lifeline_t *lifeline = handle->data;
  *buffer = uv_buf_init(lifeline->ignored, sizeof lifeline->ignored);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
  (void)buffer;
  if (count < 0) { // end of file, or an error, which means the same
    bl_lifeline_t *lifeline = stream->data;
    uv_read_stop(stream);
    lifeline->cut(lifeline, lifeline->context);
  }
}

static void on_closed(uv_handle_t *handle) {
  free(handle->data);
}

bl_status_t bl_lifeline_create(bl_loop_t *loop, int fd, bl_lifeline_fn cut, void *context, bl_lifeline_t **result,
                               bl_error_t *err) {
  BL__ASSERT_LOOP(loop);
  struct stat status;
  if (fstat(fd, &status) != 0) {
    return bl_error_set(err, BL_INVALID, "lifeline: descriptor %d: %s", fd, strerror(errno));
  }
  if (!S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode)) {
    return bl_error_set(err, BL_INVALID, "lifeline: descriptor %d is not a pipe", fd);
  }
  bl_lifeline_t *lifeline = calloc(1, sizeof *lifeline);
  if (lifeline == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "lifeline: out of memory");
  }
  lifeline->loop = loop;
  lifeline->cut = cut;
  lifeline->context = context;
  uv_pipe_init(&loop->uv, &lifeline->uv, 0); // cannot fail
  lifeline->uv.data = lifeline;
  int error = uv_pipe_open(&lifeline->uv, fd);
  if (error == 0) {
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); // a grandchild must not inherit it
    error = uv_read_start((uv_stream_t *)&lifeline->uv, on_allocate, on_read);
  }
  if (error != 0) {
    uv_close((uv_handle_t *)&lifeline->uv, on_closed);
    return bl_error_set(err, BL_INVALID, "lifeline: descriptor %d cannot be read: %s", fd, uv_strerror(error));
  }
  *result = lifeline;
  return BL_OK;
}

void bl_lifeline_destroy(bl_lifeline_t *lifeline) {
  if (lifeline == NULL) {
    return;
  }
  BL__ASSERT_LOOP(lifeline->loop);
  uv_close((uv_handle_t *)&lifeline->uv, on_closed);
}

bl_status_t bl_ready_send(int fd, const char *line, bl_error_t *err) {
  char text[BL_READY_LINE_BYTES]; // one write below PIPE_BUF: never split, never blocks on an empty pipe
  int length = snprintf(text, sizeof text, "%s\n", line);
  if (length < 0 || (size_t)length >= sizeof text || strchr(line, '\n') != NULL) {
    return bl_error_set(err, BL_INVALID, "ready line: must be one line of less than %zu bytes", sizeof text - 1);
  }
  ssize_t written = write(fd, text, (size_t)length);
  int write_errno = errno;
  close(fd);
  if (written != length) {
    return bl_error_set(err, BL_UNAVAILABLE, "ready line: descriptor %d: %s", fd,
                        written < 0 ? strerror(write_errno) : "short write");
  }
  return BL_OK;
}

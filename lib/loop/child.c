// SPDX-License-Identifier: Apache-2.0
#include "loop/child.h"

#include "loop/lifeline.h"
#include "loop/loop_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STDIO_COUNT 5 // 0, 1, 2, the lifeline, the ready pipe

struct bl_child {
  uv_process_t process;
  uv_pipe_t ready; // open while ready_open
  bl_loop_t *loop;
  bl_child_ready_fn on_ready;
  bl_child_exit_fn on_exit;
  void *context;
  int lifeline_fd; // the writing end, -1 when closed
  bool ready_open;
  bool exited;
  int handles; // open handles; libuv closes them in no particular order; 0 frees the child
  size_t line_used;
  char line[BL_READY_LINE_BYTES];
};

// Descriptors that exist only while the process is being started; -1: not open.
typedef struct spawn_files {
  int lifeline_read;
  int ready_read;
  int ready_write;
  int stdout_fd;
  int stderr_fd;
} spawn_files_t;

static void close_fd(int *fd) {
  if (*fd >= 0) {
    close(*fd);
    *fd = -1;
  }
}

static void close_files(spawn_files_t *files) {
  close_fd(&files->lifeline_read);
  close_fd(&files->ready_read);
  close_fd(&files->ready_write);
  close_fd(&files->stdout_fd);
  close_fd(&files->stderr_fd);
}

static bl_status_t open_output(const char *path, int *fd, bl_error_t *err) {
  if (path == NULL) {
    return BL_OK;
  }
  *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (*fd < 0) {
    return bl_error_set(err, bl_status_from_errno(errno), "output file %s: %s", path, strerror(errno));
  }
  return BL_OK;
}

// Opens what the child inherits. The caller closes `files` in every case.
static bl_status_t open_files(const bl_child_options_t *options, bl_child_t *child, spawn_files_t *files,
                              bl_error_t *err) {
  int ends[2];
  if (options->lifeline) {
    if (pipe2(ends, O_CLOEXEC) != 0) {
      return bl_error_set(err, bl_status_from_errno(errno), "lifeline pipe: %s", strerror(errno));
    }
    files->lifeline_read = ends[0];
    child->lifeline_fd = ends[1];
  }
  if (options->on_ready != NULL) {
    if (pipe2(ends, O_CLOEXEC) != 0) {
      return bl_error_set(err, bl_status_from_errno(errno), "ready pipe: %s", strerror(errno));
    }
    files->ready_read = ends[0];
    files->ready_write = ends[1];
  }
  bl_status_t status = open_output(options->stdout_path, &files->stdout_fd, err);
  if (status == BL_OK) {
    status = open_output(options->stderr_path, &files->stderr_fd, err);
  }
  return status;
}

static void on_closed(uv_handle_t *handle) {
  bl_child_t *child = handle->data;
  if (--child->handles == 0) {
    free(child);
  }
}

static void close_ready(bl_child_t *child) {
  if (child->ready_open) {
    child->ready_open = false;
    uv_close((uv_handle_t *)&child->ready, on_closed);
  }
}

static void report_ready(bl_child_t *child, const char *line) {
  close_ready(child);
  child->on_ready(child, line, child->context);
}

static void on_allocate(uv_handle_t *handle, size_t wanted, uv_buf_t *buffer) {
  (void)wanted;
  bl_child_t *child = handle->data;
  *buffer = uv_buf_init(child->line + child->line_used, (unsigned)(sizeof child->line - child->line_used));
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
  bl_child_t *child = stream->data;
  if (count < 0) {
    report_ready(child, NULL);
    return;
  }
  child->line_used += (size_t)count;
  char *end = memchr(buffer->base, '\n', (size_t)count);
  if (end != NULL) {
    *end = '\0';
    report_ready(child, child->line);
  } else if (child->line_used == sizeof child->line) {
    report_ready(child, NULL);
  }
}

static void on_exited(uv_process_t *process, int64_t exit_code, int term_signal) {
  bl_child_t *child = process->data;
  child->exited = true;
  close_ready(child);
  close_fd(&child->lifeline_fd);
  child->on_exit(child, (int)exit_code, term_signal, child->context);
}

static uv_stdio_container_t inherit(int fd) {
  uv_stdio_container_t container = {.flags = fd >= 0 ? UV_INHERIT_FD : UV_IGNORE};
  container.data.fd = fd;
  return container;
}

static int spawn(bl_child_t *child, const bl_child_options_t *options, const spawn_files_t *files) {
  uv_stdio_container_t stdio[STDIO_COUNT] = {
      inherit(-1), // /dev/null
      inherit(files->stdout_fd >= 0 ? files->stdout_fd : STDOUT_FILENO),
      inherit(files->stderr_fd >= 0 ? files->stderr_fd : STDERR_FILENO),
      [BL_CHILD_LIFELINE_FD] = inherit(files->lifeline_read),
      [BL_CHILD_READY_FD] = inherit(files->ready_write),
  };
  uv_process_options_t uv_options = {
      .exit_cb = on_exited,
      .file = options->argv[0],
      .args = (char **)options->argv, // libuv takes char ** but does not write to it
      .env = (char **)options->environment,
      .cwd = options->folder,
      .flags = options->own_session ? UV_PROCESS_DETACHED : 0,
      .stdio_count = STDIO_COUNT,
      .stdio = stdio,
  };
  return uv_spawn(&child->loop->uv, &child->process, &uv_options);
}

bl_status_t bl_child_create(bl_loop_t *loop, const bl_child_options_t *options, bl_child_t **result, bl_error_t *err) {
  BL__ASSERT_LOOP(loop);
  bl_child_t *child = calloc(1, sizeof *child);
  if (child == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "cannot start %s: out of memory", options->argv[0]);
  }
  *child = (bl_child_t){.loop = loop,
                        .on_ready = options->on_ready,
                        .on_exit = options->on_exit,
                        .context = options->context,
                        .lifeline_fd = -1};
  spawn_files_t files = {-1, -1, -1, -1, -1};
  bl_status_t status = open_files(options, child, &files, err);
  if (status != BL_OK) {
    close_files(&files);
    close_fd(&child->lifeline_fd);
    free(child);
    bl_error_prefix(err, "cannot start %s", options->argv[0]);
    return status;
  }
  child->process.data = child;
  child->handles = 1;
  // Descriptors that a careless parent left open in this process, or that a library opened without close-on-exec, must
  // not reach our children. libuv clears the flag in the child for those that it passes on.
  (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  int error = spawn(child, options, &files);
  if (error == 0 && files.ready_read >= 0) {
    uv_pipe_init(&loop->uv, &child->ready, 0); // cannot fail
    child->ready.data = child;
    child->ready_open = true;
    child->handles++;
    error = uv_pipe_open(&child->ready, files.ready_read);
    if (error == 0) {
      files.ready_read = -1; // the handle owns it now
      error = uv_read_start((uv_stream_t *)&child->ready, on_allocate, on_read);
    }
    if (error != 0) {
      uv_process_kill(&child->process, SIGKILL);
    }
  }
  close_files(&files);
  if (error != 0) {
    bl_child_destroy(child); // libuv requires closing the handle even if nothing was started
    return bl_error_set(err, bl__uv_status(error), "cannot start %s%s%s: %s", options->argv[0],
                        options->folder != NULL ? " in " : "", options->folder != NULL ? options->folder : "",
                        uv_strerror(error));
  }
  *result = child;
  return BL_OK;
}

void bl_child_destroy(bl_child_t *child) {
  if (child == NULL) {
    return;
  }
  BL__ASSERT_LOOP(child->loop);
  close_ready(child);
  close_fd(&child->lifeline_fd);
  uv_close((uv_handle_t *)&child->process, on_closed);
}

pid_t bl_child_pid(const bl_child_t *child) {
  return child->process.pid;
}

bl_status_t bl_child_kill(bl_child_t *child, int number) {
  BL__ASSERT_LOOP(child->loop);
  if (child->exited) { // reaped: another process may have the pid by now
    return BL_NOT_FOUND;
  }
  int error = uv_process_kill(&child->process, number);
  return error == UV_ESRCH ? BL_NOT_FOUND : bl__uv_status(error);
}

void bl_child_close_lifeline(bl_child_t *child) {
  BL__ASSERT_LOOP(child->loop);
  close_fd(&child->lifeline_fd);
}

const char *bl_child_exit_text(int exit_code, int term_signal, char text[BL_CHILD_EXIT_TEXT_BYTES]) {
  if (term_signal != 0) {
    snprintf(text, BL_CHILD_EXIT_TEXT_BYTES, "signal %d (%s)", term_signal, strsignal(term_signal));
  } else {
    snprintf(text, BL_CHILD_EXIT_TEXT_BYTES, "exit code %d", exit_code);
  }
  return text;
}

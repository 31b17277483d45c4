// SPDX-License-Identifier: Apache-2.0
#include "sys/log.h"

#include "sys/clock.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const char *log_program = "ballast";
static bl_log_level_t log_level = BL_LOG_INFO;
static char log_ids[128];

// Opens /dev/null in place of standard streams that were closed.
static void fill_standard_streams(void) {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) {
    close(fd);
  }
}

void bl_log_init(const char *program, bl_log_level_t level) {
  fill_standard_streams();
  log_program = program;
  log_level = level;
  const char *wanted = getenv("BALLAST_LOG");
  for (unsigned i = 0; wanted != NULL && i < sizeof level_names / sizeof level_names[0]; i++) {
    if (strcmp(wanted, level_names[i]) == 0) {
      log_level = (bl_log_level_t)i;
    }
  }
}

void bl_log_context(const char *format, ...) {
  va_list args;
  va_start(args, format);
  log_ids[0] = ' ';
  int length = vsnprintf(log_ids + 1, 120, format, args);
  va_end(args);
  if (length <= 0) {
    log_ids[0] = '\0';
  }
}

bool bl_log_enabled(bl_log_level_t level) {
  return level <= log_level;
}

void bl_log(bl_log_level_t level, const char *format, ...) {
  if (!bl_log_enabled(level)) {
    return;
  }
  char line[LINE_BYTES];
  uint64_t wall_ns = bl_clock_wall_ns();
  time_t seconds = (time_t)(wall_ns / BL_NS_PER_S);
  struct tm utc;
  gmtime_r(&seconds, &utc);
  size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
  used += (size_t)snprintf(line + used, sizeof line - used,
                           ".%03uZ %s %s%s: ", (unsigned)(wall_ns % BL_NS_PER_S / BL_NS_PER_MS), level_names[level],
                           log_program, log_ids);
  va_list args;
  va_start(args, format);
  int length = vsnprintf(line + used, sizeof line - used - 1, format, args);
  va_end(args);
  if (length > 0) {
    used += (size_t)length < sizeof line - used - 1 ? (size_t)length : sizeof line - used - 2;
  }
  line[used++] = '\n';
  ssize_t written = write(STDERR_FILENO, line, used);
  (void)written; // nowhere to report that the log itself is gone
}

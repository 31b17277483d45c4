// SPDX-License-Identifier: Apache-2.0
#include "sys/log.h"

#include "base/utf8.h"
#include "sys/clock.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048
#define TAIL_BYTES 4 // space for the end of a line

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const char *log_program = "ballast";
static bl_log_level_t log_level = BL_LOG_INFO;
#define IDS_BYTES 128
static char log_ids[IDS_BYTES];
static pthread_mutex_t log_ids_lock = PTHREAD_MUTEX_INITIALIZER; // held only while a copy is made
static bool log_as_json;
static atomic_uint_fast64_t log_step, log_attempt;

// Opens /dev/null for standard streams that were closed.
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
  char ids[IDS_BYTES] = " ";
  va_list args;
  va_start(args, format);
  int length = vsnprintf(ids + 1, 120, format, args);
  va_end(args);
  if (length <= 0) {
    ids[0] = '\0';
  }
  pthread_mutex_lock(&log_ids_lock);
  memcpy(log_ids, ids, sizeof log_ids);
  pthread_mutex_unlock(&log_ids_lock);
}

static void get_ids(char ids[IDS_BYTES]) {
  pthread_mutex_lock(&log_ids_lock);
  memcpy(ids, log_ids, sizeof log_ids);
  pthread_mutex_unlock(&log_ids_lock);
}

const char *bl_log_word(const char *name, char word[BL_LOG_WORD]) {
  snprintf(word, BL_LOG_WORD, "%s", name);
  for (char *at = word; *at != '\0'; at++) {
    *at = *at == ' ' ? '_' : *at;
  }
  return word;
}

void bl_log_json(bool json) {
  log_as_json = json;
}

void bl_log_step(uint64_t step, uint64_t attempt) {
  atomic_store_explicit(&log_step, step, memory_order_relaxed);
  atomic_store_explicit(&log_attempt, attempt, memory_order_relaxed);
}

typedef struct line {
  char text[LINE_BYTES];
  size_t used; // always less than LINE_BYTES - TAIL_BYTES
} line_t;

static void put(line_t *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(line_t *line, const char *format, ...) {
  size_t room = LINE_BYTES - TAIL_BYTES - line->used;
  va_list args;
  va_start(args, format);
  int length = vsnprintf(line->text + line->used, room, format, args);
  va_end(args);
  if (length > 0) {
    line->used += (size_t)length < room ? (size_t)length : room - 1;
  }
}

// Writes a JSON string. Bytes that are not UTF-8 become '?', so that a reader of lines can always parse them.
static void put_quoted(line_t *line, const char *text, size_t length) {
  put(line, "\"");
  for (size_t i = 0, taken; i < length && line->used + 8 < LINE_BYTES - TAIL_BYTES; i += taken) {
    uint32_t code;
    taken = bl_utf8_decode(text + i, length - i, &code);
    if (taken == 0) {
      taken = 1;
      put(line, "?");
    } else if (code == '"' || code == '\\') {
      put(line, "\\%c", (char)code);
    } else if (code < 0x20 || code == 0x7f) {
      put(line, "\\u%04x", (unsigned)code);
    } else {
      put(line, "%.*s", (int)taken, text + i);
    }
  }
  line->text[line->used++] = '"'; // TAIL_BYTES reserves space for it
}

static void put_time(line_t *line) {
  uint64_t wall_ns = bl_clock_wall_ns();
  time_t seconds = (time_t)(wall_ns / BL_NS_PER_S);
  struct tm utc;
  gmtime_r(&seconds, &utc);
  line->used += strftime(line->text + line->used, 32, "%Y-%m-%dT%H:%M:%S", &utc);
  put(line, ".%03uZ", (unsigned)(wall_ns % BL_NS_PER_S / BL_NS_PER_MS));
}

// Writes the pairs of the context as members: stage=2 becomes "stage":2.
static void put_members(line_t *line, const char *words) {
  for (words += strspn(words, " "); *words != '\0'; words += strspn(words, " ")) {
    size_t length = strcspn(words, " "), key = strcspn(words, "=");
    if (key < length) {
      const char *value = words + key + 1;
      size_t value_length = length - key - 1;
      put(line, ",");
      put_quoted(line, words, key);
      put(line, ":");
      bool number = value_length > 0 && value_length < 16 && strspn(value, "0123456789") == value_length &&
                    (value[0] != '0' || value_length == 1);
      if (number) {
        put(line, "%.*s", (int)value_length, value);
      } else {
        put_quoted(line, value, value_length);
      }
    }
    words += length;
  }
}

static void begin_text(line_t *line, bl_log_level_t level, const char *ids, uint64_t step, uint64_t attempt) {
  put_time(line);
  put(line, " %s %s%s", level_names[level], log_program, ids);
  if (step != 0) {
    put(line, " step=%" PRIu64 " attempt=%" PRIu64, step, attempt);
  }
  put(line, ": ");
}

static void begin_json(line_t *line, bl_log_level_t level, const char *ids, uint64_t step, uint64_t attempt) {
  put(line, "{\"time\":\"");
  put_time(line);
  put(line, "\",\"level\":\"%s\",\"program\":\"%s\"", level_names[level], log_program);
  put_members(line, ids);
  if (step != 0) {
    put(line, ",\"step\":%" PRIu64 ",\"attempt\":%" PRIu64, step, attempt);
  }
  put(line, ",\"message\":");
}

void bl_log(bl_log_level_t level, const char *format, ...) {
  if (level > log_level) {
    return;
  }
  line_t line;
  line.used = 0;
  uint64_t step = atomic_load_explicit(&log_step, memory_order_relaxed);
  uint64_t attempt = atomic_load_explicit(&log_attempt, memory_order_relaxed);
  char ids[IDS_BYTES], message[LINE_BYTES];
  get_ids(ids);
  va_list args;
  va_start(args, format);
  int length = vsnprintf(message, sizeof message, format, args);
  va_end(args);
  if (length < 0) {
    message[0] = '\0';
  }
  if (log_as_json) {
    begin_json(&line, level, ids, step, attempt);
    put_quoted(&line, message, strlen(message));
    line.text[line.used++] = '}';
  } else {
    begin_text(&line, level, ids, step, attempt);
    put(&line, "%s", message);
  }
  line.text[line.used++] = '\n';
  ssize_t written = write(STDERR_FILENO, line.text, line.used);
  (void)written; // a failure of the log itself cannot be reported
}

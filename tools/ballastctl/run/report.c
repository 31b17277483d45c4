// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/report.h"

#include "sys/lock_file.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EARLIER_MAX 1000          // reports of earlier runs beside this one
#define LINE_START  "{\"event\":" // of every line of a report

struct bl_ctl_report {
  int fd;
  char *path, *notice;
  bool regular; // a file, and not a pipe, a device or whatever standard output is
  uint64_t last_step, last_validation;
};

static bl_status_t cannot(const char *what, const char *path, int cause, bl_error_t *err) {
  return bl_error_set(err, bl_status_from_errno(cause), "cannot %s the report %s: %s", what, path, strerror(cause));
}

static bl_status_t is_taken(const char *path, bl_error_t *err) {
  return bl_error_set(err, BL_PRECONDITION,
                      "cannot write the report %s: another run writes it; name another file, or end that run", path);
}

static bool same_file(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

// Opens the file and locks it while it is open, because two runs would mix their lines. On a file system without locks
// no process is refused.
static bl_status_t open_locked(bl_ctl_report_t *report, struct stat *info, bl_error_t *err) {
  report->fd = open(report->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (report->fd < 0) {
    return cannot("write", report->path, errno, err);
  }
  struct stat now;
  report->regular = fstat(report->fd, info) == 0 && S_ISREG(info->st_mode) &&
                    !(fstat(STDOUT_FILENO, &now) == 0 && same_file(info, &now));
  if (!report->regular) {
    return BL_OK;
  }
  // Another run may have set the file aside since it was opened.
  if (bl_lock_try(report->fd) == BL_PRECONDITION || stat(report->path, &now) != 0 || !same_file(info, &now)) {
    return is_taken(report->path, err);
  }
  return BL_OK;
}

// Refuses a file that something else than a run has written.
static bl_status_t check_start(const char *path, bl_error_t *err) {
  char start[sizeof LINE_START - 1];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return cannot("read", path, errno, err);
  }
  const bool is_report =
      read(fd, start, sizeof start) == (ssize_t)sizeof start && memcmp(start, LINE_START, sizeof start) == 0;
  close(fd);
  return is_report ? BL_OK
                   : bl_error_set(err, BL_INVALID,
                                  "%s: exists, and line 1 is not that of a report; name another file, or move this one",
                                  path);
}

// Renames the report of an earlier run and opens a new file. Holds the lock of the old one until then.
static bl_status_t set_aside(bl_ctl_report_t *report, bl_error_t *err) {
  char aside[PATH_MAX + 32];
  char *target = realpath(report->path, NULL); // of a symbolic link, which stays
  if (target == NULL) {
    return cannot("set aside", report->path, errno, err);
  }
  int number = 0;
  do {
    (void)snprintf(aside, sizeof aside, "%s.earlier-%d", target, ++number);
  } while (number < EARLIER_MAX && access(aside, F_OK) == 0);
  const int cause = number == EARLIER_MAX ? EEXIST : rename(target, aside) != 0 ? errno : 0;
  free(target);
  if (cause != 0) {
    return bl_error_set(err, bl_status_from_errno(cause),
                        "cannot set aside the report %s of an earlier run: %s; name another file", report->path,
                        strerror(cause));
  }
  const int earlier_fd = report->fd;
  struct stat info;
  bl_status_t status = open_locked(report, &info, err);
  close(earlier_fd);
  if (status == BL_OK && asprintf(&report->notice, "the report of an earlier run is %s now", aside) < 0) {
    report->notice = NULL;
  }
  return status;
}

bl_status_t bl_ctl_report_create(const char *path, bool append, bl_ctl_report_t **result, bl_error_t *err) {
  bl_ctl_report_t *report = calloc(1, sizeof *report);
  if (report == NULL || (report->path = strdup(path)) == NULL) {
    free(report);
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory", path);
  }
  bl_status_t status = BL_OK;
  struct stat info = {0};
  if (strcmp(path, "-") == 0) {
    report->fd = STDOUT_FILENO;
  } else {
    status = open_locked(report, &info, err);
  }
  if (status == BL_OK && report->regular && info.st_size > 0) {
    status = check_start(path, err);
    if (status == BL_OK && !append) {
      status = set_aside(report, err);
    }
  }
  if (status != BL_OK) {
    bl_ctl_report_destroy(report);
    return status;
  }
  *result = report;
  return BL_OK;
}

const char *bl_ctl_report_notice(const bl_ctl_report_t *report) {
  return report->notice;
}

// Records the line of an earlier run. Returns false if it is of a step after `step`.
static bool note_line(bl_ctl_report_t *report, const json_t *line, uint64_t step) {
  const char *event = json_string_value(json_object_get(line, "event"));
  uint64_t number = (uint64_t)json_integer_value(json_object_get(line, "step"));
  if (number > step) {
    return false;
  }
  if (event != NULL && strcmp(event, "step") == 0) {
    report->last_step = number;
  } else if (event != NULL && strcmp(event, "validation") == 0) {
    report->last_validation = number;
  }
  return true;
}

// Reads all lines and sets *kept_bytes to the end of the last one to keep.
static bl_status_t read_lines(bl_ctl_report_t *report, FILE *stream, uint64_t step, off_t *kept_bytes,
                              bl_error_t *err) {
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  bl_status_t status = BL_OK;
  for (unsigned number = 1; (length = getline(&line, &capacity, stream)) > 0 && line[length - 1] == '\n'; number++) {
    json_t *value = json_loadb(line, (size_t)length, 0, NULL);
    bool report_line = json_is_object(value) && json_is_integer(json_object_get(value, "step"));
    bool stays = report_line && note_line(report, value, step);
    json_decref(value);
    if (!report_line) {
      status = bl_error_set(err, BL_INVALID, "%s: line %u is not that of a report; name another file, or move this one",
                            report->path, number);
      break;
    }
    if (!stays) {
      break;
    }
    *kept_bytes += length;
  }
  free(line);
  return status;
}

bl_status_t bl_ctl_report_resume(const char *path, uint64_t step, bl_ctl_report_t **result, bl_error_t *err) {
  bl_ctl_report_t *report;
  bl_status_t status = bl_ctl_report_create(path, true, &report, err);
  if (status != BL_OK) {
    return status;
  }
  FILE *stream = report->regular ? fopen(path, "re") : NULL;
  if (stream != NULL) {
    off_t kept_bytes = 0;
    status = read_lines(report, stream, step, &kept_bytes, err);
    fclose(stream);
    if (status == BL_OK && ftruncate(report->fd, kept_bytes) != 0) {
      status = cannot("shorten", path, errno, err);
    }
  }
  if (status == BL_OK && step != UINT64_MAX && report->last_step > 0 && report->last_step < step &&
      asprintf(&report->notice,
               "warning: the report %s ends at step %llu and the checkpoint is of step %llu: it will lack the steps "
               "between",
               path, (unsigned long long)report->last_step, (unsigned long long)step) < 0) {
    report->notice = NULL;
  }
  if (status != BL_OK) {
    bl_ctl_report_destroy(report);
    return status;
  }
  *result = report;
  return BL_OK;
}

void bl_ctl_report_destroy(bl_ctl_report_t *report) {
  if (report == NULL) {
    return;
  }
  if (report->fd >= 0 && report->fd != STDOUT_FILENO) {
    close(report->fd);
  }
  free(report->path);
  free(report->notice);
  free(report);
}

// Writes the line with one write if the system allows, and the rest of a short write after it. If the disk is full,
// truncates the incomplete line, so that a report has complete lines only.
static bl_status_t write_line(bl_ctl_report_t *report, const char *line, size_t line_bytes, bl_error_t *err) {
  const off_t end = report->fd == STDOUT_FILENO ? -1 : lseek(report->fd, 0, SEEK_END);
  while (line_bytes > 0) {
    ssize_t written = write(report->fd, line, line_bytes);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      int cause = errno;
      if (end >= 0) { // not a pipe
        (void)!ftruncate(report->fd, end);
      }
      return cannot("write", report->path, cause, err);
    }
    line += written;
    line_bytes -= (size_t)written;
  }
  return BL_OK;
}

static void print_counter(FILE *stream, const char *key, bl_counter_unit_t unit, uint64_t value) {
  if (key[0] == '\0') {
    return;
  }
  if (unit == BL_COUNTER_NS) {
    fprintf(stream, ",\"%s\":%.9g", key, (double)value * 1e-9);
  } else {
    fprintf(stream, ",\"%s\":%llu", key, (unsigned long long)value);
  }
}

#define PRINT(stream, counters, type, name, key, unit, ...) print_counter(stream, key, unit, (counters)->name);

static void print_coords(FILE *stream, unsigned tensor, unsigned data, bool shown) {
  if (shown) {
    fprintf(stream, "\"tensor\":%u,\"data\":%u,", tensor, data);
  }
}

static void print_stage(FILE *stream, const bl_ctl_stage_step_t *stage, bool first, bool coords) {
  fprintf(stream, "%s{\"stage\":%d,", first ? "" : ",", stage->stage);
  print_coords(stream, stage->tensor, stage->data, coords);
  fprintf(stream, "\"pid\":%lld", (long long)stage->process);
  BL_STAGE_COUNTERS(PRINT, stream, &stage->counters)
  fputc('}', stream);
}

// JSON has no NaN and no infinity.
static void print_real(FILE *stream, const char *key, double value) {
  if (isfinite(value)) {
    fprintf(stream, ",\"%s\":%.17g", key, value);
  } else {
    fprintf(stream, ",\"%s\":null", key);
  }
}

static void print_step(FILE *stream, const bl_ctl_step_t *step) {
  fprintf(stream, "{\"event\":\"step\",\"step\":%llu", (unsigned long long)step->step);
  print_real(stream, "loss", step->loss);
  print_real(stream, "grad_norm", step->grad_norm);
  const uint64_t version = step->ran_under.version;
  fprintf(stream, ",\"tokens\":%llu,\"seconds\":%.9g", (unsigned long long)step->tokens, step->seconds);
  fprintf(stream, ",\"policy\":\"%s\",\"policy_version\":%llu,\"stages\":[",
          version > 0 ? bl_policy_kind_name(step->ran_under.policy.kind) : "", (unsigned long long)version);
  bool coords = false; // there is more than one pipeline of whole layers
  for (size_t i = 0; i < step->stage_count; i++) {
    coords = coords || step->stages[i].tensor > 0 || step->stages[i].data > 0;
  }
  for (size_t i = 0; i < step->stage_count; i++) {
    print_stage(stream, &step->stages[i], i == 0, coords);
  }
  fputs("],\"stores\":[", stream);
  for (size_t i = 0; i < step->store_count; i++) {
    const bl_ctl_store_step_t *store = &step->stores[i];
    fprintf(stream, "%s{\"store\":%u,\"%s\":%u,", i == 0 ? "" : ",", store->store, store->of_host ? "host" : "device",
            store->device);
    if (!store->of_host) {
      print_coords(stream, store->tensor, store->data, coords);
    }
    fprintf(stream, "\"pid\":%lld,\"lent_slots\":%u,\"peak_leased\":%u}", (long long)store->process, store->lent_slots,
            store->peak_leased);
  }
  fputs("]}\n", stream);
}

// A line that is being written.
typedef struct line {
  char *text;
  size_t text_bytes;
  FILE *stream;
} line_t;

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for a line of the report");
}

static bl_status_t line_begin(line_t *line, bl_error_t *err) {
  *line = (line_t){0};
  line->stream = open_memstream(&line->text, &line->text_bytes);
  return line->stream != NULL ? BL_OK : no_memory(err);
}

static bl_status_t line_finish(line_t *line, bl_ctl_report_t *report, bl_error_t *err) {
  bool good = !ferror(line->stream);
  good = fclose(line->stream) == 0 && good;
  bl_status_t status = good ? write_line(report, line->text, line->text_bytes, err) : no_memory(err);
  free(line->text);
  return status;
}

bl_status_t bl_ctl_report_step(bl_ctl_report_t *report, const bl_ctl_step_t *step, bl_error_t *err) {
  if (step->step <= report->last_step) {
    return BL_OK;
  }
  line_t line;
  bl_status_t status = line_begin(&line, err);
  if (status != BL_OK) {
    return status;
  }
  print_step(line.stream, step);
  report->last_step = step->step;
  return line_finish(&line, report, err);
}

bl_status_t bl_ctl_report_validation(bl_ctl_report_t *report, const bl_ctl_validation_t *validation, bl_error_t *err) {
  if (validation->step <= report->last_validation) {
    return BL_OK;
  }
  line_t line;
  bl_status_t status = line_begin(&line, err);
  if (status != BL_OK) {
    return status;
  }
  fprintf(line.stream, "{\"event\":\"validation\",\"step\":%llu", (unsigned long long)validation->step);
  print_real(line.stream, "loss", validation->loss);
  fprintf(line.stream, ",\"tokens\":%llu}\n", (unsigned long long)validation->tokens);
  report->last_validation = validation->step;
  return line_finish(&line, report, err);
}

bl_status_t bl_ctl_report_note(bl_ctl_report_t *report, const char *json, bl_error_t *err) {
  line_t line;
  bl_status_t status = line_begin(&line, err);
  if (status != BL_OK) {
    return status;
  }
  fprintf(line.stream, "%s\n", json);
  return line_finish(&line, report, err);
}

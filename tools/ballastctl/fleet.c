// SPDX-License-Identifier: Apache-2.0
#include "fleet.h"

#include "loop/child.h"
#include "loop/timer.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_BYTES 2048

typedef struct process {
  bl_ctl_fleet_t *fleet;
  bl_child_t *child; // NULL before it starts
  int stage;         // or BL_CTL_DRIVER
  bool ready, exited;
  pid_t pid;
  char name[32]; // "stage 2", "the driver"
  char stem[24]; // of its files: "stage-2", "driver"
  char address[BL_CTL_RUN_PATH_BYTES + 8];
  char health_address[BL_CTL_RUN_PATH_BYTES + 16];
} process_t;

struct bl_ctl_fleet {
  bl_loop_t *loop;
  bl_ctl_fleet_options_t options;
  process_t driver;
  process_t *stages; // [stage_count]
  const char **addresses;
  size_t stage_count, ready_count;
  bl_timer_t *deadline; // for becoming ready, then for ending
  bl_message_t no_stages, all_ended;
  bool ending, ended;
  char words[WORDS_BYTES];
};

static void process_init(process_t *process, bl_ctl_fleet_t *fleet, int stage) {
  process->fleet = fleet;
  process->stage = stage;
  if (stage == BL_CTL_DRIVER) {
    snprintf(process->name, sizeof process->name, "the driver");
    snprintf(process->stem, sizeof process->stem, "driver");
  } else {
    snprintf(process->name, sizeof process->name, "stage %d", stage);
    snprintf(process->stem, sizeof process->stem, "stage-%d", stage);
  }
  const char *folder = fleet->options.folder->path;
  snprintf(process->address, sizeof process->address, "unix:%s/%s", folder, process->stem);
  snprintf(process->health_address, sizeof process->health_address, "unix:%s/%s.health", folder, process->stem);
}

static process_t *find_process(bl_ctl_fleet_t *fleet, int stage) {
  return stage == BL_CTL_DRIVER ? &fleet->driver : &fleet->stages[stage];
}

// ---- ends ----

static bool anything_runs(const bl_ctl_fleet_t *fleet) {
  bool runs = fleet->driver.child != NULL && !fleet->driver.exited;
  for (size_t i = 0; i < fleet->stage_count; i++) {
    runs = runs || (fleet->stages[i].child != NULL && !fleet->stages[i].exited);
  }
  return runs;
}

static void tell_ended(bl_message_t *message) {
  bl_ctl_fleet_t *fleet = BL_MESSAGE_OWNER(message, bl_ctl_fleet_t, all_ended);
  fleet->options.ended(fleet->options.context);
}

static void check_ended(bl_ctl_fleet_t *fleet) {
  if (fleet->ending && !fleet->ended && !anything_runs(fleet)) {
    fleet->ended = true;
    bl_timer_stop(fleet->deadline);
    bl_loop_post(fleet->loop, &fleet->all_ended);
  }
}

static void exited(bl_child_t *child, int exit_code, int term_signal, void *context) {
  (void)child;
  process_t *process = context;
  bl_ctl_fleet_t *fleet = process->fleet;
  process->exited = true;
  if (fleet->ending) {
    check_ended(fleet);
    return;
  }
  char text[BL_CHILD_EXIT_TEXT_BYTES], cause[160];
  snprintf(cause, sizeof cause, "%s (pid %d) ended: %s", process->name, (int)process->pid,
           bl_child_exit_text(exit_code, term_signal, text));
  fleet->options.gone(process->stage, cause, term_signal != 0 ? -1 : exit_code, fleet->options.context);
}

static void kill_all(bl_ctl_fleet_t *fleet) {
  for (int stage = BL_CTL_DRIVER; stage < (int)fleet->stage_count; stage++) {
    process_t *process = find_process(fleet, stage);
    if (process->child != NULL && !process->exited) {
      bl_child_kill(process->child, SIGKILL);
    }
  }
}

static void cut_lifelines(bl_ctl_fleet_t *fleet) {
  for (int stage = BL_CTL_DRIVER; stage < (int)fleet->stage_count; stage++) {
    process_t *process = find_process(fleet, stage);
    if (process->child != NULL && !process->exited) {
      bl_child_close_lifeline(process->child);
    }
  }
}

void bl_ctl_fleet_end(bl_ctl_fleet_t *fleet, bl_ctl_end_t how, uint64_t grace_ms) {
  fleet->ending = true;
  if (how == BL_CTL_END_KILL) {
    kill_all(fleet);
  } else if (how == BL_CTL_END_ASK) {
    cut_lifelines(fleet);
  }
  bl_timer_start(fleet->deadline, grace_ms, 0);
  check_ended(fleet);
}

// ---- starts ----

static void report_late(bl_ctl_fleet_t *fleet, const process_t *process) {
  char cause[160];
  snprintf(cause, sizeof cause, "%s (pid %d) was not ready after %d s", process->name, (int)process->pid,
           BL_CTL_READY_MS / 1000);
  fleet->options.gone(process->stage, cause, -1, fleet->options.context);
}

static void deadline_passed(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_ctl_fleet_t *fleet = context;
  if (fleet->ending) {
    kill_all(fleet);
    return;
  }
  for (int stage = BL_CTL_DRIVER; stage < (int)fleet->stage_count; stage++) {
    const process_t *process = find_process(fleet, stage);
    if (process->child != NULL && !process->ready) {
      report_late(fleet, process);
      return;
    }
  }
}

static void ready(bl_child_t *child, const char *line, void *context) {
  (void)child;
  process_t *process = context;
  bl_ctl_fleet_t *fleet = process->fleet;
  if (line == NULL || process->ready || fleet->ending) {
    return; // it closed the pipe: its end follows, or the deadline
  }
  process->ready = true;
  if (process->stage == BL_CTL_DRIVER) {
    bl_timer_stop(fleet->deadline);
    fleet->options.driver_ready(process->address, fleet->options.context);
    return;
  }
  fleet->ready_count++;
  if (fleet->ready_count == fleet->stage_count) {
    bl_timer_stop(fleet->deadline);
    fleet->options.stages_ready(fleet->addresses, fleet->stage_count, fleet->options.context);
  }
}

// The program of that name beside this one, else wherever PATH has it.
static const char *program_path(const char *name, char path[PATH_MAX]) {
  ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
  if (length > 0) {
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = PATH_MAX - (size_t)(slash + 1 - path);
    if ((size_t)snprintf(slash + 1, room, "%s", name) < room && access(path, X_OK) == 0) {
      return path;
    }
  }
  return name;
}

static bl_status_t start(process_t *process, const char *const *argv, bl_error_t *err) {
  bl_ctl_fleet_t *fleet = process->fleet;
  char log[BL_CTL_RUN_PATH_BYTES], log_name[32];
  snprintf(log_name, sizeof log_name, "%s.log", process->stem);
  bl_ctl_run_folder_path(fleet->options.folder, log_name, log);
  const char *log_path = fleet->options.verbose ? NULL : log;
  bl_child_options_t options = {.argv = argv,
                                .stdout_path = log_path,
                                .stderr_path = log_path,
                                .lifeline = true,
                                .own_session = true,
                                .on_ready = ready,
                                .on_exit = exited,
                                .context = process};
  bl_status_t status = bl_child_create(fleet->loop, &options, &process->child, err);
  if (status == BL_OK) {
    process->pid = bl_child_pid(process->child);
    bl_timer_start(fleet->deadline, BL_CTL_READY_MS, 0);
  }
  return status;
}

static void tell_no_stages(bl_message_t *message) {
  bl_ctl_fleet_t *fleet = BL_MESSAGE_OWNER(message, bl_ctl_fleet_t, no_stages);
  if (!fleet->ending) {
    fleet->options.stages_ready(fleet->addresses, 0, fleet->options.context);
  }
}

bl_status_t bl_ctl_fleet_start_stages(bl_ctl_fleet_t *fleet, bl_error_t *err) {
  char path[PATH_MAX];
  const char *program = program_path("stage-service", path);
  for (size_t i = 0; i < fleet->stage_count; i++) {
    process_t *process = &fleet->stages[i];
    const char *const argv[] = {program,
                                "--listen",
                                process->address,
                                "--health-listen",
                                process->health_address,
                                "--lifeline-fd",
                                BL_CHILD_LIFELINE_FD_TEXT,
                                "--ready-fd",
                                BL_CHILD_READY_FD_TEXT,
                                NULL};
    bl_status_t status = start(process, argv, err);
    if (status != BL_OK) {
      return status;
    }
  }
  if (fleet->stage_count == 0) {
    bl_loop_post(fleet->loop, &fleet->no_stages);
  }
  return BL_OK;
}

bl_status_t bl_ctl_fleet_start_driver(bl_ctl_fleet_t *fleet, const char *job_path, bool own_stages, bool resume,
                                      bl_error_t *err) {
  char path[PATH_MAX];
  const char *argv[] = {program_path("ballast-driver", path),
                        "--job",
                        job_path,
                        "--listen",
                        fleet->driver.address,
                        "--health-listen",
                        fleet->driver.health_address,
                        "--lifeline-fd",
                        BL_CHILD_LIFELINE_FD_TEXT,
                        "--ready-fd",
                        BL_CHILD_READY_FD_TEXT,
                        "--linger",
                        "--metrics-listen",
                        "auto",
                        NULL,
                        NULL,
                        NULL};
  size_t count = sizeof argv / sizeof argv[0] - 3;
  if (own_stages) {
    argv[count++] = "--own-stages";
  }
  if (resume) {
    argv[count++] = "--resume";
  }
  return start(&fleet->driver, argv, err);
}

// ---- life ----

bl_status_t bl_ctl_fleet_create(bl_loop_t *loop, const bl_ctl_fleet_options_t *options, size_t stage_count,
                                bl_ctl_fleet_t **result, bl_error_t *err) {
  bl_ctl_fleet_t *fleet = calloc(1, sizeof *fleet);
  if (fleet == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  fleet->loop = loop;
  fleet->options = *options;
  fleet->stage_count = stage_count;
  fleet->no_stages.handle = tell_no_stages;
  fleet->all_ended.handle = tell_ended;
  fleet->stages = calloc(stage_count + 1, sizeof *fleet->stages);
  fleet->addresses = calloc(stage_count + 1, sizeof *fleet->addresses);
  bl_status_t status = BL_EXHAUSTED;
  if (fleet->stages == NULL || fleet->addresses == NULL) {
    bl_error_set(err, status, "no memory");
    goto free_arrays;
  }
  status = bl_timer_create(loop, deadline_passed, fleet, &fleet->deadline, err);
  if (status != BL_OK) {
    goto free_arrays;
  }
  process_init(&fleet->driver, fleet, BL_CTL_DRIVER);
  for (size_t i = 0; i < stage_count; i++) {
    process_init(&fleet->stages[i], fleet, (int)i);
    fleet->addresses[i] = fleet->stages[i].address;
  }
  *result = fleet;
  return BL_OK;

free_arrays:
  free(fleet->stages);
  free(fleet->addresses);
  free(fleet);
  return status;
}

void bl_ctl_fleet_destroy(bl_ctl_fleet_t *fleet) {
  if (fleet == NULL) {
    return;
  }
  for (int stage = BL_CTL_DRIVER; stage < (int)fleet->stage_count; stage++) {
    bl_child_destroy(find_process(fleet, stage)->child);
  }
  bl_timer_destroy(fleet->deadline);
  free(fleet->stages);
  free(fleet->addresses);
  free(fleet);
}

int64_t bl_ctl_fleet_pid(const bl_ctl_fleet_t *fleet, int stage) {
  return stage == BL_CTL_DRIVER ? fleet->driver.pid : fleet->stages[stage].pid;
}

const char *bl_ctl_fleet_last_words(bl_ctl_fleet_t *fleet, int stage) {
  char path[BL_CTL_RUN_PATH_BYTES], name[32];
  snprintf(name, sizeof name, "%s.log", find_process(fleet, stage)->stem);
  bl_ctl_run_folder_path(fleet->options.folder, name, path);
  fleet->words[0] = '\0';
  FILE *stream = fopen(path, "re");
  if (stream == NULL) {
    return fleet->words;
  }
  if (fseek(stream, -(long)(WORDS_BYTES - 1), SEEK_END) != 0) {
    rewind(stream);
  }
  size_t length = fread(fleet->words, 1, WORDS_BYTES - 1, stream);
  fclose(stream);
  fleet->words[length] = '\0';
  return fleet->words;
}

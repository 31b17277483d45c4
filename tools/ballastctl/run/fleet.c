// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/fleet.h"

#include "ballastctl/program.h"

#include "loop/child.h"
#include "loop/timer.h"
#include "sys/memory.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_BYTES 2048

// A store that died is restarted after this long. The delay doubles while the store does not live for STEADY_MS.
#define AGAIN_FIRST_MS 100
#define AGAIN_LAST_MS  2000
#define STEADY_MS      500
#define STARTS_MAX     3                   // of a store that is killed before it is ready
#define THREADS_MAX    8                   // of a store that many stages use
#define CAPACITY_MAX   (UINT64_C(1) << 50) // if the machine does not report its memory

typedef struct process {
  bl_ctl_fleet_t *fleet;
  bl_child_t *child; // NULL before it starts
  int stage;         // or BL_CTL_DRIVER, or a BL_CTL_STORE
  bool ready, exited;
  bool asked;        // to end
  bl_timer_t *again; // of a store: restarts it
  uint64_t again_ms; // delay of that timer
  unsigned starts;
  uint64_t started_ms;
  pid_t pid;
  char name[96]; // "stage 2", "stage 1 of replica 0", "the driver"
  char stem[24]; // of its files: "stage-2", "driver"
  char address[BL_CTL_RUN_PATH_BYTES + 8];
  char health_address[BL_CTL_RUN_PATH_BYTES + 16];
} process_t;

struct bl_ctl_fleet {
  bl_loop_t *loop;
  bl_ctl_fleet_options_t options;
  process_t driver;
  process_t *stages, *stores; // [stage_count], [store_count]
  const char **addresses;     // of stages, then of stores
  size_t stage_count, store_count, ready_count;
  bl_timer_t *deadline; // for startup, then for shutdown
  bl_message_t no_stages, all_ended;
  bool ending, ended;
  char words[WORDS_BYTES];
};

static bool is_store(int stage) {
  return stage < BL_CTL_DRIVER;
}

static bool is_of_host(const process_t *process) {
  const bl_ctl_fleet_t *fleet = process->fleet;
  return fleet->options.host_bytes > 0 && process == &fleet->stores[fleet->store_count - 1];
}

static void name_store(process_t *process, uint32_t rank) {
  const bl_grid_t *grid = &process->fleet->options.grid;
  char rank_name[BL_GRID_NAME_BYTES];
  if (is_of_host(process)) {
    snprintf(process->name, sizeof process->name, "the host store");
  } else if (grid->tensor > 1) {
    snprintf(process->name, sizeof process->name, "the store of %s", bl_grid_name(grid, rank, rank_name));
  } else { // "device 2", "device 2 of replica 0"
    snprintf(process->name, sizeof process->name, "the store of device%s",
             bl_grid_name(grid, rank, rank_name) + strlen("stage"));
  }
}

static void process_init(process_t *process, bl_ctl_fleet_t *fleet, int stage) {
  process->fleet = fleet;
  process->stage = stage;
  if (stage == BL_CTL_DRIVER) {
    snprintf(process->name, sizeof process->name, "the driver");
    snprintf(process->stem, sizeof process->stem, "driver");
  } else if (is_store(stage)) {
    name_store(process, (uint32_t)BL_CTL_STORE(stage));
    snprintf(process->stem, sizeof process->stem, is_of_host(process) ? "host-store" : "store-%d", BL_CTL_STORE(stage));
  } else {
    char rank_name[BL_GRID_NAME_BYTES];
    snprintf(process->name, sizeof process->name, "%s", bl_grid_name(&fleet->options.grid, (uint32_t)stage, rank_name));
    snprintf(process->stem, sizeof process->stem, "stage-%d", stage);
  }
  const char *folder = fleet->options.folder->path;
  snprintf(process->address, sizeof process->address, "unix:%s/%s", folder, process->stem);
  snprintf(process->health_address, sizeof process->health_address, "unix:%s/%s.health", folder, process->stem);
}

static process_t *find_process(bl_ctl_fleet_t *fleet, int stage) {
  return stage == BL_CTL_DRIVER ? &fleet->driver
         : is_store(stage)      ? &fleet->stores[BL_CTL_STORE(stage)]
                                : &fleet->stages[stage];
}

// Processes are numbered from this to below stage_count.
static int first_process(const bl_ctl_fleet_t *fleet) {
  return BL_CTL_DRIVER - (int)fleet->store_count;
}

// ---- ends ----

static bool runs_from(bl_ctl_fleet_t *fleet, int first) {
  bool runs = false;
  for (int stage = first; stage < (int)fleet->stage_count; stage++) {
    const process_t *process = find_process(fleet, stage);
    runs = runs || (process->child != NULL && !process->exited);
  }
  return runs;
}

static void tell_ended(bl_message_t *message) {
  bl_ctl_fleet_t *fleet = BL_MESSAGE_OWNER(message, bl_ctl_fleet_t, all_ended);
  fleet->options.ended(fleet->options.context);
}

// Asks a process that runs to end, once. Returns whether it did.
static bool ask_to_end(process_t *process) {
  if (process->child == NULL || process->exited || process->asked) {
    return false;
  }
  process->asked = true;
  bl_child_close_lifeline(process->child);
  bl_child_kill(process->child, SIGCONT); // a stopped process would not notice the request
  return true;
}

// Asks those that have lost their purpose to end: stages after the driver, which may have left some behind, and stores
// after the last process that could need them.
static void ask_next(bl_ctl_fleet_t *fleet) {
  const process_t *driver = &fleet->driver;
  bool asked = false;
  for (size_t i = 0; i < fleet->stage_count && (driver->child == NULL || driver->exited); i++) {
    asked = ask_to_end(&fleet->stages[i]) || asked;
  }
  for (size_t i = 0; i < fleet->store_count && !runs_from(fleet, BL_CTL_DRIVER); i++) {
    asked = ask_to_end(&fleet->stores[i]) || asked;
  }
  if (asked) {
    bl_timer_start(fleet->deadline, BL_CTL_END_MS, 0);
  }
}

static void check_ended(bl_ctl_fleet_t *fleet) {
  ask_next(fleet);
  if (!fleet->ended && !runs_from(fleet, first_process(fleet))) {
    fleet->ended = true;
    bl_timer_stop(fleet->deadline);
    bl_loop_post(fleet->loop, &fleet->all_ended);
  }
}

// Restarts a store after a delay, which grows with each death.
static void start_later(process_t *process) {
  bool lived = bl_loop_now_ms(process->fleet->loop) - process->started_ms > STEADY_MS;
  process->again_ms = lived || process->again_ms == 0 ? AGAIN_FIRST_MS : 2 * process->again_ms;
  process->again_ms = process->again_ms < AGAIN_LAST_MS ? process->again_ms : AGAIN_LAST_MS;
  bl_timer_start(process->again, process->again_ms, 0);
}

// A store that exits by itself before it is ready cannot be started at all.
static bool is_to_start_again(const process_t *process, int term_signal) {
  return is_store(process->stage) && (process->ready || (term_signal != 0 && process->starts < STARTS_MAX));
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
  if (is_to_start_again(process, term_signal)) {
    start_later(process);
    return;
  }
  char text[BL_CHILD_EXIT_TEXT_BYTES], cause[160];
  snprintf(cause, sizeof cause, "%s (pid %d) ended: %s", process->name, (int)process->pid,
           bl_child_exit_text(exit_code, term_signal, text));
  fleet->options.gone(process->stage, cause, term_signal != 0 ? -1 : exit_code, fleet->options.context);
}

static void kill_all(bl_ctl_fleet_t *fleet) {
  for (int stage = first_process(fleet); stage < (int)fleet->stage_count; stage++) {
    process_t *process = find_process(fleet, stage);
    if (process->child != NULL && !process->exited) {
      bl_child_kill(process->child, SIGKILL);
    }
  }
}

static void ask_all(bl_ctl_fleet_t *fleet) {
  for (int stage = first_process(fleet); stage < (int)fleet->stage_count; stage++) {
    ask_to_end(find_process(fleet, stage));
  }
}

void bl_ctl_fleet_end(bl_ctl_fleet_t *fleet, bl_ctl_end_t how, uint64_t grace_ms) {
  fleet->ending = true;
  if (how == BL_CTL_END_KILL) {
    kill_all(fleet);
  } else if (how == BL_CTL_END_ASK) {
    ask_all(fleet);
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
  for (int stage = first_process(fleet); stage < (int)fleet->stage_count; stage++) {
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
    return; // the process closed the pipe: its exit or the deadline follows; or a restarted store is ready
  }
  process->ready = true;
  if (process->stage == BL_CTL_DRIVER) {
    bl_timer_stop(fleet->deadline);
    fleet->options.driver_ready(process->address, fleet->options.context);
    return;
  }
  fleet->ready_count++;
  if (fleet->ready_count == fleet->stage_count + fleet->store_count) {
    bl_timer_stop(fleet->deadline);
    fleet->options.stages_ready(fleet->addresses, fleet->stage_count, fleet->addresses + fleet->stage_count,
                                fleet->store_count, fleet->options.context);
  }
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
    process->started_ms = bl_loop_now_ms(fleet->loop);
    process->exited = false;
    process->starts++;
    if (!process->ready) {
      bl_timer_start(fleet->deadline, BL_CTL_READY_MS, 0);
    }
  }
  return status;
}

static void tell_no_stages(bl_message_t *message) {
  bl_ctl_fleet_t *fleet = BL_MESSAGE_OWNER(message, bl_ctl_fleet_t, no_stages);
  if (!fleet->ending) {
    fleet->options.stages_ready(NULL, 0, NULL, 0, fleet->options.context);
  }
}

// Starts a store. It lends what plans reserve at it, up to the memory of the machine, or for the host store up to the
// limit of the job.
static bl_status_t start_store(process_t *process, bl_error_t *err) {
  const bl_ctl_fleet_options_t *fleet = &process->fleet->options;
  char path[PATH_MAX], capacity[32], spill[32], threads[16], rate[32];
  uint64_t bytes = is_of_host(process) ? fleet->host_bytes : bl_memory_available_bytes();
  bytes = bytes < CAPACITY_MAX ? bytes : CAPACITY_MAX;
  snprintf(capacity, sizeof capacity, "%llu", (unsigned long long)bytes);
  // On a GPU, memory is allocated when an arena is created, also for the next plan while the present one runs.
  snprintf(spill, sizeof spill, "%llu", (unsigned long long)(is_of_host(process) ? 2 * bytes : bytes));
  const size_t users = is_of_host(process) ? process->fleet->stage_count : 1; // concurrent clients
  snprintf(threads, sizeof threads, "%zu", users < THREADS_MAX ? users : THREADS_MAX);
  snprintf(rate, sizeof rate, "%llu", (unsigned long long)(is_of_host(process) ? fleet->host_rate : 0));
  const char *device = fleet->store_device;
  const char *const argv[] = {bl_ctl_program_path("activation-store", path),
                              "--device",
                              device != NULL ? device : "host",
                              "--spill", // for clients that cannot reach the device
                              device != NULL ? spill : "0",
                              "--listen",
                              process->address,
                              "--health-listen",
                              process->health_address,
                              "--capacity",
                              device != NULL && is_of_host(process) ? "64KiB" : capacity, // the minimum for a device
                              "--threads",
                              threads,
                              "--rate",
                              rate,
                              "--drain",
                              "0",
                              "--lifeline-fd",
                              BL_CHILD_LIFELINE_FD_TEXT,
                              "--ready-fd",
                              BL_CHILD_READY_FD_TEXT,
                              is_of_host(process) ? "--turns=true" : "--turns=false",
                              fleet->store_tcp ? "--data-tcp" : NULL,
                              "127.0.0.1:0",
                              fleet->nccl_shared_gpu ? "--nccl-shared-gpu" : NULL,
                              NULL};
  return start(process, argv, err);
}

static void start_again(bl_timer_t *timer, void *context) {
  (void)timer;
  process_t *process = context;
  bl_error_t err;
  if (process->fleet->ending) {
    return;
  }
  bl_child_destroy(process->child);
  process->child = NULL;
  if (start_store(process, &err) != BL_OK) {
    start_later(process);
  }
}

bl_status_t bl_ctl_fleet_start_stages(bl_ctl_fleet_t *fleet, bl_error_t *err) {
  char path[PATH_MAX];
  const char *program = bl_ctl_program_path("stage-service", path);
  char tokens[BL_CTL_RUN_PATH_BYTES]; // deleted with the folder
  bl_ctl_run_folder_path(fleet->options.folder, "cores", tokens);
  for (size_t i = 0; i < fleet->stage_count; i++) {
    process_t *process = &fleet->stages[i];
    const char *const argv[] = {program,
                                "--listen",
                                process->address,
                                "--health-listen",
                                process->health_address,
                                "--core-tokens",
                                tokens,
                                "--lifeline-fd",
                                BL_CHILD_LIFELINE_FD_TEXT,
                                "--ready-fd",
                                BL_CHILD_READY_FD_TEXT,
                                fleet->options.nccl_shared_gpu ? "--nccl-shared-gpu" : NULL,
                                NULL};
    bl_status_t status = start(process, argv, err);
    if (status != BL_OK) {
      return status;
    }
  }
  for (size_t i = 0; i < fleet->store_count; i++) {
    bl_status_t status = start_store(&fleet->stores[i], err);
    if (status != BL_OK) {
      return status;
    }
  }
  if (fleet->stage_count == 0) {
    bl_loop_post(fleet->loop, &fleet->no_stages);
  }
  return BL_OK;
}

bl_status_t bl_ctl_fleet_start_driver(bl_ctl_fleet_t *fleet, const char *job_path, const char *const orders[2],
                                      bool own_stages, bool resume, bl_error_t *err) {
  char path[PATH_MAX];
  const char *argv[] = {bl_ctl_program_path("ballast-driver", path),
                        "--job",
                        job_path,
                        "--order",
                        orders[0],
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
                        NULL,
                        NULL,
                        NULL};
  size_t count = sizeof argv / sizeof argv[0] - 5;
  if (orders[1] != NULL) {
    argv[count++] = "--order";
    argv[count++] = orders[1];
  }
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
                                size_t store_count, bl_ctl_fleet_t **result, bl_error_t *err) {
  bl_ctl_fleet_t *fleet = calloc(1, sizeof *fleet);
  if (fleet == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  fleet->loop = loop;
  fleet->options = *options;
  fleet->stage_count = stage_count;
  fleet->store_count = store_count;
  fleet->no_stages.handle = tell_no_stages;
  fleet->all_ended.handle = tell_ended;
  fleet->stages = calloc(stage_count + 1, sizeof *fleet->stages);
  fleet->stores = calloc(store_count + 1, sizeof *fleet->stores);
  fleet->addresses = calloc(stage_count + store_count + 1, sizeof *fleet->addresses);
  bl_status_t status = BL_EXHAUSTED;
  if (fleet->stages == NULL || fleet->stores == NULL || fleet->addresses == NULL) {
    bl_error_set(err, status, "no memory");
    goto free_fleet;
  }
  status = bl_timer_create(loop, deadline_passed, fleet, &fleet->deadline, err);
  for (size_t i = 0; i < store_count && status == BL_OK; i++) {
    process_init(&fleet->stores[i], fleet, BL_CTL_STORE((int)i));
    fleet->addresses[stage_count + i] = fleet->stores[i].address;
    status = bl_timer_create(loop, start_again, &fleet->stores[i], &fleet->stores[i].again, err);
  }
  if (status != BL_OK) {
    goto free_fleet;
  }
  process_init(&fleet->driver, fleet, BL_CTL_DRIVER);
  for (size_t i = 0; i < stage_count; i++) {
    process_init(&fleet->stages[i], fleet, (int)i);
    fleet->addresses[i] = fleet->stages[i].address;
  }
  *result = fleet;
  return BL_OK;

free_fleet:
  bl_ctl_fleet_destroy(fleet);
  return status;
}

void bl_ctl_fleet_destroy(bl_ctl_fleet_t *fleet) {
  if (fleet == NULL) {
    return;
  }
  bl_child_destroy(fleet->driver.child);
  for (size_t i = 0; fleet->stages != NULL && i < fleet->stage_count; i++) {
    bl_child_destroy(fleet->stages[i].child);
  }
  for (size_t i = 0; fleet->stores != NULL && i < fleet->store_count; i++) {
    bl_child_destroy(fleet->stores[i].child);
    bl_timer_destroy(fleet->stores[i].again);
  }
  bl_timer_destroy(fleet->deadline);
  free(fleet->stages);
  free(fleet->stores);
  free(fleet->addresses);
  free(fleet);
}

int64_t bl_ctl_fleet_pid(const bl_ctl_fleet_t *fleet, int stage) {
  return is_store(stage)          ? fleet->stores[BL_CTL_STORE(stage)].pid
         : stage == BL_CTL_DRIVER ? fleet->driver.pid
                                  : fleet->stages[stage].pid;
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

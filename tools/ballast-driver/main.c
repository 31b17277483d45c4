// SPDX-License-Identifier: Apache-2.0
// ballast-driver: drives one run over stages that are already there, as a gRPC service (ballast.v1.Driver).
#include "config/flags.h"
#include "config/job.h"
#include "driver.h"
#include "job/training.h"
#include "loop/lifeline.h"
#include "loop/loop.h"
#include "loop/signal.h"
#include "loop/timer.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/server.h"
#include "service_wire.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/version.h"

#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEALTH_NAME     "ballast.v1.Driver"
#define DRAIN_MS        2000
#define ORPHAN_MS       5000 // for the step that runs when the process that started this one has gone
#define JOB_LIMIT_BYTES (1u << 20)

typedef struct arguments {
  char *job, *listen, *health_listen;
  int64_t lifeline_fd, ready_fd;
  bool own_stages, linger, resume, version;
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)
static const bl_option_t rows[] = {
    {.name = "job",
     .type = BL_OPTION_TEXT,
     .offset = ROW(job),
     .argument = "FILE",
     .help = "The job to run; services.stages names one stage-service per stage."},
    {.name = "listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(listen),
     .argument = "ADDR",
     .preset = "127.0.0.1:7600",
     .help = "Where to serve the driver: unix:/path or host:port (port 0 takes a free one)."},
    {.name = "health-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(health_listen),
     .argument = "ADDR",
     .help = "Where to serve grpc.health.v1, in plaintext. Without it there is no health port."},
    {.name = "own-stages",
     .type = BL_OPTION_BOOL,
     .offset = ROW(own_stages),
     .help = "End the stages' processes with the run. Without it they stay for the next job."},
    {.name = "linger",
     .type = BL_OPTION_BOOL,
     .offset = ROW(linger),
     .help = "Stay after the last step, for Generate and Trace, until Driver.Stop."},
    {.name = "resume",
     .type = BL_OPTION_BOOL,
     .offset = ROW(resume),
     .help =
         "Go on from the newest checkpoint of checkpoint.folder, if there is one. Stages that hold this job already "
         "go on where they are."},
    {.name = "lifeline-fd",
     .type = BL_OPTION_INT,
     .offset = ROW(lifeline_fd),
     .preset = "-1",
     .minimum = -1,
     .maximum = INT_MAX,
     .help = "End when this inherited pipe is closed at its other end."},
    {.name = "ready-fd",
     .type = BL_OPTION_INT,
     .offset = ROW(ready_fd),
     .preset = "-1",
     .minimum = -1,
     .maximum = INT_MAX,
     .help = "Write 'ready ADDR HEALTH_ADDR' to this inherited pipe once serving."},
    {.name = "version", .type = BL_OPTION_BOOL, .offset = ROW(version), .help = "Print the version and end."},
};

static const bl_flags_t flags = {
    .program = "ballast-driver",
    .usage = "--job FILE [options]",
    .about = "Drives one training run: configures the stages, starts steps, decides commits. It may be killed and "
             "started again with the same job at any time: it goes on where the stages are.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
};

typedef struct program {
  arguments_t arguments;
  bl_job_t job;
  bl_training_t training;
  bl_resume_t resume;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_server_t *server;
  bl_rpc_health_t *health;
  bl_driver_service_t *service;
  bl_driver_t *driver;
  bl_signal_t *interrupt, *terminate;
  bl_lifeline_t *lifeline;
  bl_timer_t *orphan;
  int exit_code;
  bool stopping, ending, server_started, health_started;
} program_t;

// ---- the end

static void stop_when_quiet(program_t *self) {
  if (self->loop == NULL) {
    return;
  }
  if (!self->server_started && !self->health_started) {
    bl_loop_stop(self->loop);
  }
}

static void server_stopped(bl_rpc_server_t *server, void *context) {
  program_t *self = context;
  bl_rpc_server_destroy(server);
  self->server = NULL;
  self->server_started = false;
  stop_when_quiet(self);
}

static void health_stopped(bl_rpc_health_t *health, void *context) {
  program_t *self = context;
  bl_rpc_health_destroy(health);
  self->health = NULL;
  self->health_started = false;
  stop_when_quiet(self);
}

static void end(program_t *self, int exit_code) {
  if (self->ending) {
    return;
  }
  self->ending = true;
  self->exit_code = exit_code;
  if (self->health_started) {
    bl_rpc_health_shutdown(self->health, health_stopped, self);
  }
  if (self->server_started) {
    bl_driver_service_end(self->service);
    bl_rpc_server_shutdown(self->server, DRAIN_MS, server_stopped, self);
  }
  stop_when_quiet(self);
}

static void run_ended(int exit_code, void *context) {
  program_t *self = context;
  bl_log(BL_LOG_INFO, "ending with exit code %d", exit_code);
  end(self, exit_code);
}

static void ask_to_stop(program_t *self, const char *why) {
  if (self->stopping) {
    bl_log(BL_LOG_WARNING, "ending at once: %s", why);
    end(self, bl_status_exit_code(BL_CANCELLED));
    return;
  }
  self->stopping = true;
  bl_log(BL_LOG_INFO, "ending after this step: %s", why);
  bl_driver_stop(self->driver);
}

static void signalled(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  ask_to_stop(context, strsignal(number));
}

static void orphan_waited(bl_timer_t *timer, void *context) {
  (void)timer;
  ask_to_stop(context, "the step takes too long");
}

static void parent_gone(bl_lifeline_t *lifeline, void *context) {
  (void)lifeline;
  program_t *self = context;
  bl_timer_start(self->orphan, ORPHAN_MS, 0);
  if (!self->stopping) {
    ask_to_stop(self, "the process that started this one is gone");
  }
}

static void changed(void *context) {
  const program_t *self = context;
  bl_driver_service_changed(self->service);
}

static bool may_commit(void *context, uint64_t *recorder) {
  const program_t *self = context;
  return bl_driver_service_may_commit(self->service, recorder);
}

// ---- the beginning

// Relative paths of the job are joined to the job file's folder, in absolute form: stages run in other folders.
static bl_status_t read_job(program_t *self, bl_error_t *err) {
  const char *path = self->arguments.job;
  if (path == NULL) {
    return bl_error_set(err, BL_INVALID, "ballast-driver: --job FILE is required");
  }
  char *bytes = NULL;
  size_t size;
  bl_status_t status = bl_file_read(path, JOB_LIMIT_BYTES, &bytes, &size, err);
  if (status != BL_OK) {
    return status;
  }
  char absolute[PATH_MAX];
  if (realpath(path, absolute) == NULL) {
    free(bytes);
    return bl_error_set(err, BL_NOT_FOUND, "%s: no such file", path);
  }
  bl_job_source_t source = {.file = {.name = path, .bytes = bytes, .size_bytes = size, .folder = dirname(absolute)}};
  status = bl_job_parse(&self->job, &source, err);
  free(bytes);
  if (status == BL_OK) {
    status = bl_training_init(&self->training, &self->job, err);
  }
  if (status == BL_OK && self->arguments.resume) {
    status = bl_resume_find(&self->resume, &self->job, &self->training.model, false, err);
    status = status == BL_NOT_FOUND ? BL_OK : status;
  }
  return status;
}

static bl_status_t watch_processes(program_t *self, bl_error_t *err) {
  bl_status_t status = bl_timer_create(self->loop, orphan_waited, self, &self->orphan, err);
  if (status == BL_OK && self->arguments.lifeline_fd >= 0) {
    signal(SIGINT, SIG_IGN); // the parent decides what Ctrl-C means
    status = bl_lifeline_create(self->loop, (int)self->arguments.lifeline_fd, parent_gone, self, &self->lifeline, err);
  } else if (status == BL_OK) {
    status = bl_signal_create(self->loop, SIGINT, signalled, self, &self->interrupt, err);
  }
  if (status == BL_OK) {
    status = bl_signal_create(self->loop, SIGTERM, signalled, self, &self->terminate, err);
  }
  return status;
}

static bl_status_t make_driver(program_t *self, bl_error_t *err) {
  const char *name = self->job.name != NULL ? self->job.name : "";
  bl_status_t status = bl_driver_service_create(self->loop, name, &self->service, err);
  if (status != BL_OK) {
    return status;
  }
  bl_driver_options_t options = {.rpc = self->rpc,
                                 .job = &self->job,
                                 .training = &self->training,
                                 .resume = &self->resume,
                                 .own_stages = self->arguments.own_stages,
                                 .linger = self->arguments.linger,
                                 .observer = {self, changed, may_commit, run_ended}};
  status = bl_driver_create(&options, &self->driver, err);
  if (status == BL_OK) {
    bl_driver_service_set_driver(self->service, self->driver);
  }
  return status;
}

static bl_status_t start_health(program_t *self, char address[BL_RPC_ADDRESS_BYTES], bl_error_t *err) {
  address[0] = '\0';
  if (self->arguments.health_listen == NULL) {
    return BL_OK;
  }
  bl_status_t status = bl_rpc_health_create(self->rpc, &self->health, err);
  if (status == BL_OK) {
    status = bl_rpc_health_listen(self->health, self->arguments.health_listen, address, BL_RPC_ADDRESS_BYTES, err);
    self->health_started = status == BL_OK;
  }
  return status;
}

static bl_status_t start_server(program_t *self, char address[BL_RPC_ADDRESS_BYTES],
                                char health_address[BL_RPC_ADDRESS_BYTES], bl_error_t *err) {
  bl_status_t status = bl_rpc_server_create(self->rpc, NULL, &self->server, err);
  if (status == BL_OK) {
    status = bl_driver_service_serve(self->service, self->server, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_reflection_add(self->server, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_listen(self->server, self->arguments.listen, address, BL_RPC_ADDRESS_BYTES, err);
  }
  if (status == BL_OK) {
    status = start_health(self, health_address, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_start(self->server, err);
    self->server_started = status == BL_OK;
  }
  if (status == BL_OK && self->health != NULL) {
    bl_rpc_health_set(self->health, "", true);
    bl_rpc_health_set(self->health, HEALTH_NAME, true);
  }
  return status;
}

static bl_status_t start(program_t *self, bl_error_t *err) {
  signal(SIGXFSZ, SIG_IGN); // a checkpoint over a limit on file sizes fails as on a full disk
  bl_status_t status = read_job(self, err);
  if (status == BL_OK) {
    status = bl_loop_create(&self->loop, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_create(self->loop, &self->rpc, err);
  }
  if (status == BL_OK) {
    status = make_driver(self, err);
  }
  if (status == BL_OK) {
    status = watch_processes(self, err);
  }
  char address[BL_RPC_ADDRESS_BYTES], health_address[BL_RPC_ADDRESS_BYTES];
  if (status == BL_OK) {
    status = start_server(self, address, health_address, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_log(BL_LOG_INFO, "serving on %s", address);
  if (self->arguments.ready_fd >= 0) {
    char line[2 * BL_RPC_ADDRESS_BYTES + 16];
    snprintf(line, sizeof line, "ready %s %s", address, health_address);
    status = bl_ready_send((int)self->arguments.ready_fd, line, err);
  }
  if (status == BL_OK) {
    bl_driver_start(self->driver);
  }
  return status;
}

static void cleanup(program_t *self) {
  bl_driver_destroy(self->driver);
  bl_driver_service_destroy(self->service);
  bl_lifeline_destroy(self->lifeline);
  bl_signal_destroy(self->interrupt);
  bl_signal_destroy(self->terminate);
  bl_timer_destroy(self->orphan);
  if (self->rpc != NULL) {
    bl_rpc_destroy(self->rpc);
  }
  if (self->loop != NULL) {
    bl_loop_destroy(self->loop);
  }
  bl_training_cleanup(&self->training);
  bl_job_cleanup(&self->job);
}

static int run(program_t *self) {
  bl_error_t err = {0};
  bl_status_t status = start(self, &err);
  if (status != BL_OK) {
    fprintf(stderr, "%s\n", err.text);
    end(self, bl_status_exit_code(status));
  }
  if (self->loop != NULL) {
    bl_loop_run(self->loop);
  }
  bl_rpc_server_destroy(self->server); // of a start that failed
  bl_rpc_health_destroy(self->health);
  cleanup(self);
  return self->exit_code;
}

int main(int argc, char **argv) {
  bl_log_init("ballast-driver", BL_LOG_INFO);
  static program_t self;
  bl_error_t err = {0};
  bl_flags_result_t result;
  bl_status_t status = bl_flags_parse(&flags, argc - 1, argv + 1, &self.arguments, &result, &err);
  int exit_code = 0;
  if (status != BL_OK) {
    fprintf(stderr, "%s\n", err.text); // names the program itself
    exit_code = bl_status_exit_code(status);
  } else if (result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (self.arguments.version) {
    bl_version_print("ballast-driver", stdout);
  } else {
    exit_code = run(&self);
  }
  bl_options_cleanup(&flags.table, &self.arguments);
  return exit_code;
}

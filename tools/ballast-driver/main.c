// SPDX-License-Identifier: Apache-2.0
// ballast-driver: drives one run over stages that already run, as a gRPC service (ballast.v1.Driver).
#include "config/job.h"
#include "driver.h"
#include "formats/safetensors.h"
#include "loop/timer.h"
#include "meter.h"
#include "page/page.h"
#include "preparation.h"
#include "service/daemon.h"
#include "service_wire.h"
#include "sys/file.h"
#include "sys/log.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define ORPHAN_MS       5000 // for the current step, when the process that started this one is gone
#define SCRAPES_MS      6000 // for a scrape of the failure of a run: the manifests scrape every 5 s
#define JOB_LIMIT_BYTES (1u << 20)

typedef struct arguments {
  bl_daemon_arguments_t common;
  char *job;
  bl_text_list_t orders;
  bool own_stages, linger, resume;
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)
static const bl_option_t rows[] = {
    {.name = "job",
     .type = BL_OPTION_TEXT,
     .offset = ROW(job),
     .argument = "FILE",
     .help = "The job to run; services.stages names one stage-service per stage."},
    {.name = "order",
     .type = BL_OPTION_TEXT_LIST,
     .offset = ROW(orders),
     .argument = "FILE.csv",
     .help =
         "The order of the job's schedule, as `ballastctl schedule export` writes it; a second one is for policies of "
         "the other kind, if the job's parks blocks those that do not, else those that do. Without it the driver "
         "searches orders when it starts."},
    BL_DAEMON_ROWS(arguments_t, common, "127.0.0.1:7600"),
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
         "Resume from the newest checkpoint of checkpoint.folder, if there is one. Stages that already hold this job "
         "continue where they are. If one has lost it, all restart from the checkpoint, or from the first step."},
};

static const bl_flags_t flags = {
    .program = "ballast-driver",
    .usage = "--job FILE [options]",
    .about = "Drives one training run: configures the stages, starts steps, decides commits. It may be killed and "
             "restarted with the same job at any time: it continues where the stages are.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
};

typedef struct program {
  arguments_t arguments;
  bl_job_t job;
  bl_preparation_t preparation;
  bl_daemon_t *daemon;
  bl_driver_service_t *service;
  bl_driver_t *driver; // NULL until the run is prepared
  bl_timer_t *orphan, *scrapes;
  bl_page_t *page;  // NULL: no address to serve it at
  uint64_t metered; // last revision of the journal in the metrics
  bool stopping;
  bool over; // the run: the process ends with exit_code
  int exit_code;
} program_t;

// ---- the end

static void scraped(bl_timer_t *timer, void *context) {
  (void)timer;
  const program_t *self = context;
  bl_daemon_stop(self->daemon, self->exit_code);
}

// Without these seconds no scrape would see that a run failed. `auto` is for the page of a local run.
static void run_recorded(void *context) {
  program_t *self = context;
  self->over = true;
  const char *metrics = self->arguments.common.metrics_listen;
  const bool failed = self->exit_code != 0 && self->exit_code != bl_status_exit_code(BL_CANCELLED);
  const bool scrapes = failed && !self->stopping && metrics != NULL && strcmp(metrics, "auto") != 0;
  if (!scrapes) {
    bl_log(BL_LOG_INFO, "ending with exit code %d", self->exit_code);
    bl_daemon_stop(self->daemon, self->exit_code);
    return;
  }
  bl_log(BL_LOG_INFO, "ending with exit code %d in %d s, or when told to: until then /metrics has the failure",
         self->exit_code, SCRAPES_MS / 1000);
  bl_checkpoint_claim_release(&self->preparation.claim);
  bl_timer_start(self->scrapes, SCRAPES_MS, 0);
}

static void run_ended(int exit_code, void *context) {
  program_t *self = context;
  self->exit_code = exit_code;
  bl_driver_service_when_recorded(self->service, run_recorded, self);
}

// Stops before any call was made to a stage.
static void stop_starting(program_t *self) {
  bl_error_t err;
  (void)bl_error_set(&err, BL_CANCELLED,
                     "stopped before the first step: no checkpoint was written; what stages hold stays there for the "
                     "next driver");
  bl_log(BL_LOG_ERROR, "%s", err.text);
  bl_driver_service_fail(self->service, &err);
  bl_daemon_stop(self->daemon, bl_status_exit_code(err.status));
}

static void ask_to_stop(program_t *self, const char *why) {
  if (self->over) {
    bl_daemon_stop(self->daemon, self->exit_code);
    return;
  }
  if (self->stopping) {
    bl_log(BL_LOG_WARNING, "ending at once: %s", why);
    bl_daemon_stop(self->daemon, bl_status_exit_code(BL_CANCELLED));
    return;
  }
  self->stopping = true;
  if (self->driver == NULL) {
    stop_starting(self);
    return;
  }
  bl_log(BL_LOG_INFO, "ending after this step: %s", why);
  bl_driver_stop(self->driver);
}

static void told_to_stop(void *context) {
  ask_to_stop(context, "stop requested");
}

static void signalled(bl_daemon_t *daemon, int number, void *context) {
  (void)daemon;
  ask_to_stop(context, strsignal(number));
}

static void orphan_waited(bl_timer_t *timer, void *context) {
  (void)timer;
  ask_to_stop(context, "the step takes too long");
}

static void parent_gone(bl_daemon_t *daemon, void *context) {
  (void)daemon;
  program_t *self = context;
  if (self->arguments.own_stages &&
      !self->over) { // these end for the same reason, at once: there will be no step boundary
    bl_log(BL_LOG_INFO, "ending: the process that started this one is gone, and with it the stages");
    bl_daemon_stop(self->daemon, bl_status_exit_code(BL_CANCELLED));
    return;
  }
  bl_timer_start(self->orphan, ORPHAN_MS, 0);
  if (!self->stopping || self->over) {
    ask_to_stop(self, "the process that started this one is gone");
  }
}

static void changed(void *context) {
  program_t *self = context;
  bl_meter_collect(bl_daemon_registry(self->daemon), self->driver, &self->metered);
  if (self->page != NULL) {
    bl_page_changed(self->page);
  }
  bl_driver_service_changed(self->service);
}

static bool may_commit(void *context, uint64_t *recorder) {
  const program_t *self = context;
  return bl_driver_service_may_commit(self->service, recorder);
}

// ---- the beginning

// Reads the job. Its relative paths are joined to the job file's folder and made absolute, because stages run in other
// folders.
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
  return status;
}

static const char *name_of_run(const program_t *self) {
  return self->job.name != NULL ? self->job.name : "";
}

static bl_status_t make_service(program_t *self, bl_error_t *err) {
  char word[BL_LOG_WORD];
  const char *name = name_of_run(self);
  bl_log_context("%s%s", name[0] != '\0' ? "run=" : "", bl_log_word(name, word));
  bl_driver_start_t start = {
      .run = name, .steps = (uint64_t)self->job.train.steps, .stop = told_to_stop, .context = self};
  snprintf(start.waiting_for, sizeof start.waiting_for, "the order of schedule %s, which the driver searches",
           bl_job_schedule_name(self->job.pipeline.schedule));
  return bl_driver_service_create(bl_daemon_loop(self->daemon), &start, &self->service, err);
}

static bl_status_t make_driver(program_t *self, bl_error_t *err) {
  const bl_driver_options_t options = {.rpc = bl_daemon_rpc(self->daemon),
                                       .job = &self->job,
                                       .training = &self->preparation.training,
                                       .resume = &self->preparation.resume,
                                       .given_init = self->preparation.given_init,
                                       .claim = &self->preparation.claim,
                                       .start_over = self->arguments.resume,
                                       .own_stages = self->arguments.own_stages,
                                       .linger = self->arguments.linger,
                                       .observer = {self, changed, may_commit, run_ended}};
  bl_status_t status = bl_driver_create(&options, &self->driver, err);
  if (status == BL_OK && self->arguments.common.metrics_listen != NULL) {
    status = bl_page_create(bl_daemon_rpc(self->daemon), self->driver, name_of_run(self), &self->page, err);
  }
  return status;
}

// The preparation has ended, with BL_OK or an error. No call was made to a stage before.
static void prepared(void *context) {
  program_t *self = context;
  bl_error_t err = self->preparation.err;
  if (self->stopping) {
    return;
  }
  if (err.status == BL_OK && make_driver(self, &err) == BL_OK) {
    bl_driver_start(self->driver, bl_daemon_address(self->daemon));
    bl_driver_service_set_driver(self->service, self->driver);
    return;
  }
  bl_driver_service_fail(self->service, &err);
  bl_daemon_fail(self->daemon, &err);
}

static bl_status_t create(bl_daemon_t *daemon, void *context, bl_error_t *err) {
  program_t *self = context;
  self->daemon = daemon;
  bl_status_t status = read_job(self, err);
  if (status == BL_OK) {
    const bl_tls_flags_t job = {.ca = self->job.services.tls.ca,
                                .certificate = self->job.services.tls.certificate,
                                .key = self->job.services.tls.key,
                                .plaintext = self->job.services.plaintext};
    status = bl_daemon_secure(daemon, &job, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(bl_daemon_loop(daemon), orphan_waited, self, &self->orphan, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(bl_daemon_loop(daemon), scraped, self, &self->scrapes, err);
  }
  if (status == BL_OK) {
    status = make_service(self, err);
  }
  if (status == BL_OK) { // creates its thread here, where signals are blocked
    self->preparation = (bl_preparation_t){
        .job = &self->job, .order_paths = &self->arguments.orders, .resumes = self->arguments.resume};
    status = bl_preparation_init(&self->preparation, bl_daemon_loop(daemon), prepared, self, err);
  }
  return status;
}

static void http(const char *path, bl_http_answer_t *answer, void *context) {
  const program_t *self = context;
  bl_page_answer(path, answer, self->page);
}

static bl_status_t serve(bl_rpc_server_t *server, void *context, bl_error_t *err) {
  const program_t *self = context;
  return bl_driver_service_serve(self->service, server, err);
}

static void ready(void *context) {
  program_t *self = context;
  bl_driver_service_set_page(self->service, bl_daemon_metrics_address(self->daemon));
  bl_preparation_start(&self->preparation);
}

static void collect(bl_registry_t *registry, void *context) {
  program_t *self = context;
  bl_meter_collect(registry, self->driver, &self->metered);
}

static void end_calls(void *context) {
  const program_t *self = context;
  bl_driver_service_end(self->service);
}

static void destroy(void *context) {
  program_t *self = context;
  if (bl_preparation_is_running(&self->preparation)) {
    // A caller that ends this process need not wait for the search. Nothing is visible to other processes any more, and
    // the kernel frees the rest.
    exit(bl_status_exit_code(BL_CANCELLED));
  }
  bl_page_destroy(self->page);
  bl_driver_destroy(self->driver);
  bl_preparation_cleanup(&self->preparation);
  bl_driver_service_destroy(self->service);
  bl_timer_destroy(self->orphan);
  bl_timer_destroy(self->scrapes);
  bl_job_cleanup(&self->job);
}

int main(int argc, char **argv) {
  static program_t self;
  static const bl_library_t *const libraries[] = {&bl_formats_library};
  const bl_daemon_options_t options = {.flags = &flags,
                                       .arguments = &self.arguments,
                                       .common = &self.arguments.common,
                                       .health_name = "ballast.v1.Driver",
                                       .metrics = bl_meter_rows,
                                       .metric_count = bl_meter_row_count,
                                       .roles = BL_DRIVERS,
                                       .libraries = libraries,
                                       .library_count = 1,
                                       .hooks = {.create = create,
                                                 .serve = serve,
                                                 .ready = ready,
                                                 .collect = collect,
                                                 .http = http,
                                                 .signalled = signalled,
                                                 .orphaned = parent_gone,
                                                 .end_calls = end_calls,
                                                 .destroy = destroy},
                                       .context = &self};
  return bl_daemon_main(&options, argc, argv);
}

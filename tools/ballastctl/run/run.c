// SPDX-License-Identifier: Apache-2.0
// ballastctl run: checks a job completely, then trains it.
#include "ballastctl/commands.h"
#include "ballastctl/job_file.h"
#include "ballastctl/output.h"
#include "ballastctl/output_path.h"
#include "ballastctl/plan/warning.h"
#include "ballastctl/run/session.h"

#include "base/words.h"
#include "config/flags.h"
#include "config/job.h"
#include "device/open.h"
#include "job/balance.h"
#include "job/checkpoint_claim.h"
#include "job/checkpoint_folder.h"
#include "job/resume.h"
#include "job/threads.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROFILED_STEPS_MIN 2
// How often a run tries to claim a folder, and the pause between: the driver of a run that was killed a moment ago ends
// meanwhile.
#define CLAIM_TRIES 20
#define CLAIM_MS    50

typedef struct arguments {
  bool local, resume, verbose, summary, check, nccl_shared_gpu;
  bl_optional_int_t steps;
  bl_text_list_t sets;
  char *report, *timeline, *profile, *predict;
  int64_t sample;
} arguments_t;

#define AT(member) .offset = offsetof(arguments_t, member)

static const bl_option_t rows[] = {
    {.name = "local",
     .type = BL_OPTION_BOOL,
     AT(local),
     .help = "Start the stages and the driver on this machine, and end them with the run."},
    {.name = "steps",
     .type = BL_OPTION_INT,
     AT(steps),
     .optional = true,
     .minimum = 1,
     .maximum = HUGE_VAL,
     .help = "Steps in total; the same as --set train.steps=N."},
    BL_CTL_SET_FLAG(arguments_t, sets),
    {.name = "report",
     .type = BL_OPTION_PATH,
     AT(report),
     .argument = "FILE",
     .help = "Write one JSON line per committed step; - is standard output."},
    {.name = "resume", .type = BL_OPTION_BOOL, AT(resume), .help = "Go on from the newest checkpoint."},
    {.name = "timeline",
     .type = BL_OPTION_PATH,
     AT(timeline),
     .argument = "FILE.svg",
     .help = "Draw the operations of the last step (.svg or .png)."},
    {.name = "profile",
     .type = BL_OPTION_PATH,
     AT(profile),
     .argument = "FILE",
     .help = "Record what operations took, for simulate, plan and estimate; of up to 20 steps after the first."},
    {.name = "predict",
     .type = BL_OPTION_PATH,
     AT(predict),
     .argument = "FILE",
     .help = "Print what this profile predicted and what was measured; --profile alone predicts from itself."},
    {.name = "sample",
     .type = BL_OPTION_INT,
     AT(sample),
     .preset = "0",
     .minimum = 0,
     .maximum = 65536,
     .unit = "tokens",
     .help = "Print text drawn from the trained model."},
    {.name = "summary", .type = BL_OPTION_BOOL, AT(summary), .help = "Print a table of the stages at the end."},
    {.name = "check", .type = BL_OPTION_BOOL, AT(check), .help = "Check the job, say that it is valid, and stop."},
    {.name = "nccl-shared-gpu",
     .type = BL_OPTION_BOOL,
     AT(nccl_shared_gpu),
     .help = "With --local: let processes that share a GPU use NCCL, which then goes over sockets."},
    {.name = "verbose", .type = BL_OPTION_BOOL, AT(verbose), .letter = 'v', .help = "Show what stages and driver log."},
};

static const bl_flags_t flags = {
    .program = "ballastctl run",
    .usage = "JOB.yaml [--local] [--steps N] [--set KEY=VALUE]... [--report FILE] [options]",
    .about = "Trains a job. With --local everything runs on this machine; without it the job's services section names "
             "the stages, or a driver, that already run. Nothing is started before the whole job has been checked.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_minimum = 1,
    .positional_maximum = 1};

static bl_status_t load_job(const arguments_t *arguments, const char *path, bl_job_t *job, bl_error_t *err) {
  char steps[64];
  snprintf(steps, sizeof steps, "train.steps=%lld", (long long)arguments->steps.value);
  return bl_ctl_job_read(path, &arguments->sets, arguments->steps.set ? steps : NULL, job, err);
}

// Checks outputs before the run, so that a path that cannot be written is not found after it.
static bl_status_t check_outputs(const arguments_t *arguments, bl_error_t *err) {
  bl_status_t status = bl_ctl_output_path_check("report", arguments->report, err);
  if (status == BL_OK) {
    status = bl_ctl_output_path_check("profile", arguments->profile, err);
  }
  return status == BL_OK ? bl_ctl_picture_path_check("timeline", arguments->timeline, err) : status;
}

static bool names(const bl_text_list_t *files, const char *path) {
  bool found = false;
  for (size_t i = 0; i < files->count && !found; i++) {
    found = bl_ctl_output_path_same(path, files->items[i]);
  }
  return found;
}

// Checks that no output would replace another one, the job or its data.
static bl_status_t check_overlaps(const arguments_t *arguments, const bl_job_t *job, bl_error_t *err) {
  const struct {
    const char *flag, *path;
  } outputs[] = {{"report", arguments->report}, {"profile", arguments->profile}, {"timeline", arguments->timeline}};
  for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
    const char *path = outputs[i].path, *what = bl_ctl_output_path_same(path, job->file) ? "is the job itself"
                                                : names(&job->data.train, path)          ? "is a file of data.train"
                                                : names(&job->data.validation.files, path)
                                                    ? "is a file of data.validation"
                                                    : NULL;
    if (what != NULL) {
      return bl_error_set(err, BL_INVALID, "--%s %.400s: %s; name another file", outputs[i].flag, path, what);
    }
    for (size_t k = 0; k < i; k++) {
      if (bl_ctl_output_path_same(path, outputs[k].path)) {
        return bl_error_set(err, BL_INVALID, "--%s %.400s: is the file of --%s, too; name another file",
                            outputs[i].flag, path, outputs[k].flag);
      }
    }
  }
  return BL_OK;
}

static bl_status_t check_place(const arguments_t *arguments, const bl_job_t *job, bl_error_t *err) {
  bl_status_t status = check_outputs(arguments, err);
  if (status == BL_OK) {
    status = check_overlaps(arguments, job, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (!arguments->local && job->services.stages.count == 0 && job->services.driver == NULL) {
    return bl_error_set(err, BL_INVALID,
                        "%s names no services to run on; start everything here with --local, or give services.stages: "
                        "[host:port, ...] of stage services that run",
                        job->file);
  }
  return BL_OK;
}

// Stages started here compute on this machine. Services may be anywhere, and report themselves what they lack.
static bl_status_t check_device(const arguments_t *arguments, const bl_job_t *job, bl_error_t *err) {
  bl_error_t cause;
  uint32_t count;
  if (!arguments->local || job->pipeline.device != BL_JOB_DEVICE_CUDA) {
    return BL_OK;
  }
  const bl_status_t status = bl_device_list(BL_DEVICE_CUDA, NULL, 0, &count, &cause);
  if (status != BL_OK) { // the message names the key; the exit code is that of the cause
    (void)bl_job_fail(job, err, "pipeline.device", "%s", cause.text);
    err->status = status;
    return status;
  }
  return count > 0 ? BL_OK : bl_job_fail(job, err, "pipeline.device", "this machine has no GPU");
}

// Only stages that are started here use these processors.
static void doubt_threads(const arguments_t *arguments, const bl_job_t *job) {
  char warning[BL_THREADS_WARNING];
  if (arguments->local && bl_threads_warning(job, warning)) {
    bl_ctl_warning_tell(warning);
  }
}

static void doubt_host(const bl_job_t *job) {
  char warning[BL_HOSTS_WARNING];
  if (bl_hosts_warning(job, warning)) {
    bl_ctl_warning_tell(warning);
  }
}

static void doubt_validation(const bl_job_t *job) {
  if (job->train.validate_every > 0 && job->data.validation.files.count == 0 && !(job->data.validation.fraction > 0)) {
    bl_ctl_warning_tell("train.validate_every does nothing without held-out data; give data.validation a fraction or "
                        "files");
  }
}

static void doubt_masks(const bl_dataset_t *dataset) {
  char warning[512];
  const char *file = bl_dataset_unused_mask(dataset);
  if (file != NULL) {
    snprintf(warning, sizeof warning, "%.300s%s exists, but every token has a loss; data.loss: masked takes it", file,
             BL_DATASET_MASK_SUFFIX);
    bl_ctl_warning_tell(warning);
  }
}

static void doubt_resume(const bl_job_t *job, const bl_resume_t *resume) {
  char warning[BL_RESUME_WARNING];
  if (bl_resume_warning(resume, job, warning)) {
    fprintf(stderr, "ballastctl: warning: %s\n", warning);
  }
  if (bl_resume_changes_warning(resume, warning)) {
    fprintf(stderr, "ballastctl: warning: %s\n", warning);
  }
}

// Returns whether the driver runs already. It knows its job and where it continues; the files of the job may not exist
// here.
static bool attaches(const arguments_t *arguments, const bl_job_t *job) {
  return !arguments->local && job->services.driver != NULL;
}

// Finds every error of a job before anything starts.
static bl_status_t check_job(const arguments_t *arguments, bl_job_t *job, char given_init[PATH_MAX],
                             bl_training_t *training, bl_resume_t *resume, bl_error_t *err) {
  const bool predicts = arguments->profile != NULL || arguments->predict != NULL;
  if (attaches(arguments, job) && !arguments->check && !predicts) {
    return BL_OK;
  }
  const bool resumes = arguments->resume && !attaches(arguments, job);
  if (resumes && bl_resume_replace_init(job, given_init)) {
    fprintf(stderr, "ballastctl: model.init: %s is gone; the model and its other files are those of %s\n", given_init,
            job->model.init);
  }
  bl_status_t status = bl_ctl_job_resolve_run(job, training, err);
  if (status == BL_OK && resumes) {
    status = bl_resume_find(resume, job, &training->model, true, err);
    if (status == BL_NOT_FOUND) {
      bl_error_prefix(err, "--resume");
    } else if (status == BL_DATA_LOSS || status == BL_UNIMPLEMENTED) {
      status = bl_error_set(err, BL_INVALID, "%s", err->text);
    }
  }
  return status;
}

// A local run starts its stores, and a job without stages leaves them to its driver.
static bl_status_t check_stores(const arguments_t *arguments, const bl_job_t *job, const bl_training_t *training,
                                bl_error_t *err) {
  const bool here = !arguments->local && job->services.stages.count > 0;
  const bool checked = training->stage_count > 0; // not if the driver runs already
  return here && checked ? bl_balance_check_stores(training, job, err) : BL_OK;
}

// Checks that there are enough steps; the first one is not traced. A running driver itself knows how many are left.
static bl_status_t check_profile(const arguments_t *arguments, const bl_job_t *job, const bl_resume_t *resume,
                                 bl_error_t *err) {
  const uint64_t steps = (uint64_t)job->train.steps, left = steps > resume->step ? steps - resume->step : 0;
  if (arguments->profile == NULL || attaches(arguments, job) || left >= PROFILED_STEPS_MIN) {
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID,
                      "--profile: needs at least %d steps, the first of which is not recorded; this run has %" PRIu64
                      " to go (train.steps: %" PRIu64 ")",
                      PROFILED_STEPS_MIN, left, steps);
}

// Checkpoints are written on this machine, so check before the run that this is possible. --check creates nothing.
static bl_status_t check_folder(const arguments_t *arguments, const bl_job_t *job, bl_error_t *err) {
  bl_error_t cause;
  const char *folder = job->checkpoint.folder;
  if (folder == NULL || attaches(arguments, job) ||
      (arguments->check ? bl_checkpoint_folder_check(folder, &cause) : bl_checkpoint_folder_try(folder, &cause)) ==
          BL_OK) {
    return BL_OK;
  }
  return bl_job_fail(job, err, "checkpoint.folder", "%s", cause.text);
}

// Claims the folder. While another run writes there, its contents mean nothing for this one. No run writes to a folder
// that does not exist yet.
static bl_status_t claim_folder(bl_checkpoint_claim_t *claim, const bl_job_t *job, bl_error_t *err) {
  const char *folder = job->checkpoint.folder;
  if (folder == NULL || access(folder, F_OK) != 0) {
    return BL_OK;
  }
  bl_error_t cause;
  bl_status_t status = bl_checkpoint_claim_take(claim, job, &cause);
  for (int tries = 1; status == BL_PRECONDITION && tries < CLAIM_TRIES; tries++) {
    nanosleep(&(struct timespec){.tv_nsec = CLAIM_MS * (long)BL_NS_PER_MS}, NULL);
    status = bl_checkpoint_claim_take(claim, job, &cause);
  }
  if (status != BL_PRECONDITION) { // other errors are reported later
    return BL_OK;
  }
  (void)bl_job_fail(job, err, "checkpoint.folder", "%s", cause.text);
  err->status = BL_PRECONDITION; // the job itself is valid
  return err->status;
}

static bl_status_t tell_valid(const bl_job_t *job, bl_error_t *err) {
  const uint64_t steps = (uint64_t)job->train.steps, stages = (uint64_t)job->pipeline.stages;
  printf("%s: valid: %" PRIu64 " step%s on %" PRIu64 " stage%s; nothing was started\n", job->file, steps,
         bl_plural(steps), stages, bl_plural(stages));
  return fflush(stdout) == 0 ? BL_OK : bl_ctl_printed(BL_IO, err);
}

static int train(const arguments_t *arguments, bl_job_t *job, char *given_init, const bl_training_t *training,
                 const bl_resume_t *resume) {
  bl_ctl_session_options_t options = {.job = job,
                                      .given_init = given_init,
                                      .training = training,
                                      .resume = arguments->resume ? resume : NULL,
                                      .local = arguments->local,
                                      .verbose = arguments->verbose,
                                      .nccl_shared_gpu = arguments->nccl_shared_gpu,
                                      .summary = arguments->summary,
                                      .report = arguments->report,
                                      .timeline = arguments->timeline,
                                      .profile = arguments->profile,
                                      .predict = arguments->predict,
                                      .sample = (uint32_t)arguments->sample};
  return bl_ctl_session_run(&options);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments;
  bl_flags_result_t result;
  bl_error_t err;
  bl_job_t job = {0};
  bl_training_t training = {0};
  bl_resume_t resume = {0};
  char given_init[PATH_MAX] = "";
  bl_checkpoint_claim_t claim = {0};
  int exit_code = 0;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &arguments, &result, &err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
    goto cleanup;
  }
  if (status == BL_OK) {
    status = load_job(&arguments, result.positional[0], &job, &err);
  }
  if (status == BL_OK) {
    status = check_place(&arguments, &job, &err);
  }
  if (status == BL_OK) {
    status = check_device(&arguments, &job, &err);
  }
  if (status == BL_OK && !arguments.check && !attaches(&arguments, &job)) {
    status = claim_folder(&claim, &job, &err);
  }
  if (status == BL_OK) {
    status = check_job(&arguments, &job, given_init, &training, &resume, &err);
  }
  if (status == BL_OK) {
    status = check_stores(&arguments, &job, &training, &err);
  }
  if (status == BL_OK) {
    status = check_profile(&arguments, &job, &resume, &err);
  }
  if (status == BL_OK) {
    status = check_folder(&arguments, &job, &err);
  }
  if (status == BL_OK) {
    doubt_threads(&arguments, &job);
    doubt_host(&job);
    doubt_validation(&job);
    doubt_masks(&training.dataset);
    doubt_resume(&job, &resume);
  }
  if (status == BL_OK && arguments.check) {
    status = tell_valid(&job, &err);
  }
  bl_checkpoint_claim_release(&claim); // the driver claims the folder itself
  if (status != BL_OK) {
    exit_code = bl_ctl_finish(status, &err);
  } else if (!arguments.check) {
    exit_code = train(&arguments, &job, given_init, &training, &resume);
  }

cleanup:
  bl_training_cleanup(&training);
  bl_job_cleanup(&job);
  bl_options_cleanup(&flags.table, &arguments);
  return exit_code;
}

const bl_ctl_command_t bl_ctl_run_command = {"run", "train a job", run};

// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/session_core.h"

#include "ballastctl/inspect/coords.h"

#include "schedule/csv/csv.h"

#include <stdlib.h>

// ---- their ends

static void print_last_words(bl__session_t *session, int stage) {
  const char *words = bl_ctl_fleet_last_words(session->fleet, stage);
  if (words[0] != '\0') {
    bl_ctl_progress_finish(session->progress);
    fputs(words, stderr);
  }
}

static void process_gone(int stage, const char *cause, int exit_code, void *context) {
  bl__session_t *session = context;
  int unavailable = bl_status_exit_code(BL_UNAVAILABLE);
  if (session->ending) {
    return;
  }
  if (session->stopping) {
    // The driver exits as requested. Its response may arrive after its exit.
    bl__session_end(session, BL_CTL_END_WAIT, BL_CTL_END_MS);
    return;
  }
  if (session->finished) { // what is still collected fails with it and says so
    if (exit_code != 0) {
      print_last_words(session, stage);
    }
    return;
  }
  if (stage != BL_CTL_DRIVER && exit_code == 0) {
    if (!session->failing) { // a driver that ends its stages in order has a reason, which is still to be received
      bl__session_wait_for_cause(session, unavailable, cause);
      session->guessing = true;
    }
  } else if (stage != BL_CTL_DRIVER) {
    print_last_words(session, stage);
    bl__session_fail(session, unavailable, cause);
  } else if (session->failing && !session->guessing) {
    bl__session_fail(session, session->exit_code, session->failure);
  } else {
    // It may have reported the reason on the watch, which is still to be received.
    print_last_words(session, stage);
    bl__session_wait_for_cause(session, exit_code > 0 && exit_code < 128 ? exit_code : unavailable, cause);
  }
}

static void fleet_ended(void *context) {
  bl__session_t *session = context;
  bl_loop_stop(session->loop);
}

// ---- what is written down

// Writes addresses into the job that the driver reads.
static bl_status_t fill_in(bl__session_t *session, const char *key, const char *const *addresses, size_t count,
                           bl_error_t *err) {
  char *assignment = NULL;
  size_t assignment_bytes = 0;
  FILE *stream = open_memstream(&assignment, &assignment_bytes);
  if (stream == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  fprintf(stream, "%s=[", key);
  for (size_t i = 0; i < count; i++) {
    fprintf(stream, "%s\"%s\"", i > 0 ? ", " : "", addresses[i]);
  }
  fputc(']', stream);
  bl_status_t status = fclose(stream) == 0 ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory");
  if (status == BL_OK) {
    bl_job_t *job = session->options->job;
    status = bl_options_set(bl_job_options(), job, job->marks, assignment, NULL, err);
  }
  free(assignment);
  return status;
}

static bl_status_t write_job(bl__session_t *session, bl_error_t *err) {
  char *text;
  size_t text_bytes;
  bl_status_t status = bl_resume_dump_job(session->options->job, session->options->given_init, &text, &text_bytes);
  if (status != BL_OK) {
    return bl_error_set(err, status, "the job cannot be written down: %s",
                        status == BL_INVALID ? "a path is not UTF-8" : bl_status_text(status));
  }
  status = bl_ctl_run_folder_write(&session->folder, "job.yaml", text, err);
  free(text);
  return status;
}

// Writes an order that was searched when the job was checked, so that the driver need not search it.
static bl_status_t write_order(bl__session_t *session, const bl_schedule_t *order, const char *name, bl_error_t *err) {
  char *text;
  size_t text_bytes;
  if (bl_csv_write(order, &text, &text_bytes) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to write the order of operations down");
  }
  bl_status_t status = bl_ctl_run_folder_write(&session->folder, name, text, err);
  free(text);
  return status;
}

static json_t *list_of(const bl_text_list_t *texts) {
  json_t *list = json_array();
  for (size_t i = 0; i < texts->count; i++) {
    json_array_append_new(list, json_string(texts->items[i]));
  }
  return list;
}

static json_t *list_of_stores(const bl_job_t *job) {
  json_t *list = json_array();
  for (size_t i = 0; i < bl_job_store_count(job); i++) {
    json_array_append_new(list, json_string(bl_job_store(job, i)));
  }
  return list;
}

// Returns whose memory each store lends, in the order of stores.
static json_t *list_of_owners(const bl_job_t *job) {
  const bl_grid_t grid = bl_job_grid(job);
  json_t *list = json_array();
  for (size_t i = 0; i < bl_job_store_count(job); i++) {
    char of[BL_CTL_OWNER_BYTES];
    json_array_append_new(list, json_string(bl_ctl_store_owner(&grid, job->services.stores.count, i, of)));
  }
  return list;
}

// Writes the file by which other commands find the run.
static bl_status_t write_endpoints(bl__session_t *session, const char *driver_address, bl_error_t *err) {
  const bl_job_t *job = session->options->job;
  json_t *endpoints =
      json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "name", job->name, "driver", driver_address, "driver_pid",
                (json_int_t)bl_ctl_fleet_pid(session->fleet, BL_CTL_DRIVER), "stages", list_of(&job->services.stages),
                "stores", list_of_stores(job), "store_of", list_of_owners(job));
  char *text = endpoints != NULL ? json_dumps(endpoints, JSON_INDENT(2)) : NULL;
  bl_status_t status = text != NULL ? bl_ctl_run_folder_write(&session->folder, "endpoints.json", text, err)
                                    : bl_error_set(err, BL_EXHAUSTED, "no memory");
  free(text);
  json_decref(endpoints);
  return status;
}

// ---- their starts

// Returns whether the run starts a store for host memory, after those of devices.
static bool starts_host_store(const bl__session_t *session) {
  const bl_job_t *job = session->options->job;
  return session->options->local && job->balance.host.set && job->services.host_stores.count == 0;
}

static void stages_ready(const char *const *addresses, size_t count, const char *const *stores, size_t store_count,
                         void *context) {
  bl__session_t *session = context;
  bl_error_t err;
  const bl_training_t *training = session->options->training;
  char path[BL_CTL_RUN_PATH_BYTES], own[BL_CTL_RUN_PATH_BYTES], other[BL_CTL_RUN_PATH_BYTES];
  const char *const orders[2] = {own, training->other != NULL ? other : NULL};
  bl_ctl_run_folder_path(&session->folder, "job.yaml", path);
  bl_ctl_run_folder_path(&session->folder, "order.csv", own);
  bl_ctl_run_folder_path(&session->folder, "other-order.csv", other);
  bl_status_t status = count > 0 ? fill_in(session, "services.stages", addresses, count, &err) : BL_OK;
  const size_t hosts = starts_host_store(session);
  if (status == BL_OK && store_count > hosts) {
    status = fill_in(session, "services.stores", stores, store_count - hosts, &err);
  }
  if (status == BL_OK && hosts > 0) {
    status = fill_in(session, "services.host_stores", stores + store_count - hosts, hosts, &err);
  }
  if (status == BL_OK) {
    status = write_job(session, &err);
  }
  if (status == BL_OK) {
    status = write_order(session, training->schedule, "order.csv", &err);
  }
  if (status == BL_OK && training->other != NULL) {
    status = write_order(session, training->other, "other-order.csv", &err);
  }
  if (status == BL_OK) {
    status = bl_ctl_fleet_start_driver(session->fleet, path, orders, session->options->local,
                                       session->options->resume != NULL, &err);
  }
  if (status != BL_OK) {
    bl__session_fail_with(session, &err);
  }
}

static void driver_ready(const char *address, void *context) {
  bl__session_t *session = context;
  bl_error_t err;
  bl_status_t status = write_endpoints(session, address, &err);
  if (status == BL_OK) {
    status = bl__session_attach(session, address, &err);
  }
  if (status != BL_OK) {
    bl__session_fail_with(session, &err);
  }
}

bl_status_t bl__processes_start(bl__session_t *session, bl_error_t *err) {
  bl_status_t status = bl_ctl_run_folder_create(&session->folder, err);
  if (status != BL_OK) {
    return status;
  }
  session->has_folder = true;
  const bl_job_t *job = session->options->job;
  const bl_grid_t grid = bl_job_grid(job);
  const bl_job_data_path_t path = bl_job_block_path(job);
  bool on_gpu = job->pipeline.device == BL_JOB_DEVICE_CUDA && job->balance.policy != BL_POLICY_NONE &&
                path != BL_JOB_DATA_PATH_SHM && path != BL_JOB_DATA_PATH_TCP;
  bl_ctl_fleet_options_t options = {.folder = &session->folder,
                                    .store_device = on_gpu ? "cuda:0" : NULL, // on the stages' device
                                    .grid = grid,
                                    .host_bytes = starts_host_store(session) ? (uint64_t)job->balance.host.value : 0,
                                    .host_rate = job->balance.rate.set ? (uint64_t)job->balance.rate.value : 0,
                                    .store_tcp = on_gpu || path == BL_JOB_DATA_PATH_TCP,
                                    .nccl_shared_gpu = session->options->nccl_shared_gpu,
                                    .verbose = session->options->verbose,
                                    .stages_ready = stages_ready,
                                    .driver_ready = driver_ready,
                                    .gone = process_gone,
                                    .ended = fleet_ended,
                                    .context = session};
  size_t count = session->options->local ? bl_grid_ranks(&grid) : 0;
  size_t store_count = (job->services.stores.count == 0 ? count : 0) + starts_host_store(session);
  status = bl_ctl_fleet_create(session->loop, &options, count, store_count, &session->fleet, err);
  return status == BL_OK ? bl_ctl_fleet_start_stages(session->fleet, err) : status;
}

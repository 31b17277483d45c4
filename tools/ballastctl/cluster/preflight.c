// SPDX-License-Identifier: Apache-2.0
// ballastctl preflight: checks that the services of a job have what it needs, before anything runs.
#include "ballastctl/cluster/checklist.h"
#include "ballastctl/cluster/preflight_paths.h"
#include "ballastctl/cluster/probe_wire.h"
#include "ballastctl/commands.h"
#include "ballastctl/job_file.h"
#include "ballastctl/output.h"
#include "ballastctl/security.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "config/flags.h"
#include "job/balance.h"
#include "job/pods.h"
#include "lease/granule.h"
#include "rpc/rpc.h"
#include "sys/clock.h"

#include <math.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define HOST_BYTES    256
#define SUBJECT_BYTES BL_GRID_NAME_BYTES
// A wall clock that was never set is in 1970; certificates are checked against it.
#define CLOCK_FLOOR_NS (UINT64_C(1704067200) * BL_NS_PER_S) // 2024-01-01
// Tolerated difference between clocks. An answer itself takes up to two seconds.
#define CLOCK_TOLERANCE_SECONDS 5

typedef struct arguments {
  bl_text_list_t sets;
  int output;
  double timeout_seconds;
} arguments_t;

#define AT(member) .offset = offsetof(arguments_t, member)

static const bl_option_t rows[] = {
    BL_CTL_OUTPUT_FLAG(arguments_t, output),
    {.name = "timeout",
     .type = BL_OPTION_REAL,
     AT(timeout_seconds),
     .preset = "10",
     .minimum = 0.001,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long names may take to appear and services to answer; they are retried until then."},
    BL_CTL_SET_FLAG(arguments_t, sets),
};

static const bl_flags_t flags = {
    .program = "ballastctl preflight",
    .usage = "JOB.yaml [--timeout SECONDS] [--set KEY=VALUE]... [-o FORMAT]",
    .about =
        "Checks what a job needs on services that already run: the names in services.*, the certificate, the clocks, "
        "that every stage and store answers as such, that the stores have enough free memory, and the data paths: "
        "every stage sends blocks to the stores and stages that it will use, and gets them back. Host stores on "
        "another machine than their stages give a warning. For a job on GPUs it also checks each stage's GPU, whose "
        "memory it can read directly, and that all have the same NCCL. It prints a line per check; a failed one says "
        "what to do. Exit code 9 if one failed, so that it can be an init container of the driver.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_minimum = 1,
    .positional_maximum = 1};

// ---- names ----------------------------------------------------------------------------------------------------------

// Extracts the host of "host:port" or "[ipv6]:port". Returns false for a unix socket.
static bool host_of(const char *address, char host[HOST_BYTES]) {
  const char *colon = strrchr(address, ':');
  if (strncmp(address, "unix:", 5) == 0 || colon == NULL) {
    return false;
  }
  bool brackets = address[0] == '[' && colon > address && colon[-1] == ']';
  snprintf(host, HOST_BYTES, "%.*s", (int)(colon - address) - (brackets ? 2 : 0), address + (brackets ? 1 : 0));
  return true;
}

// Returns true if the name has an address, or the address needs no name.
static bool check_name(bl_ctl_checklist_t *list, const char *subject, const char *address, uint64_t deadline_ns) {
  char host[HOST_BYTES], numeric[64] = "", text[HOST_BYTES + sizeof numeric + 4];
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
  if (!host_of(address, host)) {
    return true;
  }
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(host, NULL, &hints, &found) == 0) {
    freeaddrinfo(found);
    return true;
  }
  hints.ai_flags = 0;
  int failure = getaddrinfo(host, NULL, &hints, &found);
  // The name server may still be starting, or the name may appear with its pod.
  while ((failure == EAI_AGAIN || failure == EAI_NONAME) && bl_clock_now_ns() < deadline_ns) {
    nanosleep(&(struct timespec){.tv_nsec = 200 * (long)BL_NS_PER_MS}, NULL);
    failure = getaddrinfo(host, NULL, &hints, &found);
  }
  bl_error_t err = {0};
  if (failure != 0) {
    (void)bl_error_set(&err, BL_NOT_FOUND,
                       "%s: %s; correct it in the job, or see that the name is published (a headless service, "
                       "publishNotReadyAddresses) and that this machine asks the right name server",
                       host, gai_strerror(failure));
  } else {
    (void)getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof numeric, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
  }
  snprintf(text, sizeof text, "%s is %s", host, numeric);
  bl_ctl_checklist_note(list, "name", subject, &err, text);
  return failure == 0;
}

// ---- certificate and clock ------------------------------------------------------------------------------------------

// Returns false if the certificate cannot be used for calls.
static bool check_security(bl_ctl_checklist_t *list, bl_job_t *job) {
  bl_error_t err = {0};
  uint64_t wall_ns = bl_clock_wall_ns();
  if (wall_ns < CLOCK_FLOOR_NS) {
    (void)bl_error_set(&err, BL_UNHEALTHY,
                       "the wall clock is %llu s after 1970: set it, certificates are judged by it and checkpoints "
                       "carry it",
                       (unsigned long long)(wall_ns / BL_NS_PER_S));
  }
  bl_ctl_checklist_note(list, "clock", "this machine", &err, "set");
  bl_error_clear(&err);
  bl_status_t status = bl_ctl_security_for_job(job, &err);
  bl_tls_t *tls = bl_rpc_process_tls();
  if (status == BL_OK && tls != NULL) {
    status = bl_tls_judge_own(tls, &err);
  }
  if (status != BL_OK || tls != NULL) {
    bl_ctl_checklist_note(list, "certificate",
                          job->services.tls.certificate != NULL ? job->services.tls.certificate : "own", &err,
                          "valid, of an authority that is trusted, with a role that may drive or operate");
  } else {
    bl_ctl_checklist_note(list, "certificate", "none", NULL,
                          "plaintext; services.tls.* or --tls-* would secure the run");
  }
  return status == BL_OK;
}

// ---- services -------------------------------------------------------------------------------------------------------

// Checks of the services that a job names.
typedef struct services {
  bl_ctl_probe_t *probes; // [count] those with a valid address
  size_t count;
  bool *well;                  // [ranks] stages: no check failed
  bl_ctl_store_seen_t *stores; // [bl_job_store_count]
} services_t;

static const char *subject_of(const bl_job_t *job, const bl_ctl_probe_t *probe, char subject[SUBJECT_BYTES]) {
  const bl_grid_t grid = bl_job_grid(job);
  return probe->store ? bl_ctl_preflight_store_name(job, probe->number, subject)
                      : bl_grid_name(&grid, probe->number, subject);
}

// Returns the bytes that a plan reserves at one of its stores, for one plane.
static uint64_t plan_bytes(const bl_training_t *training, const bl_device_slots_t *device_slots, uint32_t store) {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < device_slots->devices; s++) {
    bytes += bl_device_slots_reserved(device_slots, s, store) *
             bl_align_up(training->stages[s].evict_bytes, BL_LEASE_GRANULE_BYTES);
  }
  return bytes;
}

// Returns the bytes that the plan reserves at the store of a rank; 0 if there is no such device.
static uint64_t reserved_bytes(const bl_training_t *training, const bl_device_slots_t *device_slots, uint32_t rank) {
  const uint32_t device = bl_grid_coords(&training->grid, rank).stage;
  return device < device_slots->devices ? plan_bytes(training, device_slots, device) : 0;
}

// The same for a host store, summed over all planes that share it.
static uint64_t host_bytes(const bl_training_t *training, const bl_device_slots_t *device_slots, uint32_t host) {
  const bl_hosts_t *hosts = &training->hosts;
  uint64_t most = 0;
  for (uint32_t rank = 0; hosts->count > 0 && rank < bl_grid_ranks(&training->grid); rank++) {
    const uint32_t stage = bl_grid_coords(&training->grid, rank).stage;
    if (hosts->of_rank[rank] == host) {
      most = bl_max_u64(most, plan_bytes(training, device_slots, training->stage_count + hosts->of[stage]));
    }
  }
  return most * hosts->planes;
}

static uint64_t needed_bytes(const bl_job_t *job, const bl_training_t *training, const bl_device_slots_t *device_slots,
                             const bl_ctl_probe_t *probe) {
  const uint32_t devices = (uint32_t)job->services.stores.count;
  return !probe->store             ? 0
         : probe->number < devices ? reserved_bytes(training, device_slots, probe->number)
                                   : host_bytes(training, device_slots, probe->number - devices);
}

// Returns the earlier probe that reached the same process, or NULL.
static const bl_ctl_probe_t *same_process(const services_t *services, const bl_ctl_probe_t *probe) {
  static const uint8_t none[BL_CTL_PROBE_INCARNATION_BYTES];
  for (const bl_ctl_probe_t *other = services->probes; other < probe; other++) {
    if (other->store == probe->store && memcmp(probe->incarnation, none, sizeof none) != 0 &&
        memcmp(probe->incarnation, other->incarnation, sizeof none) == 0) {
      return other;
    }
  }
  return NULL;
}

// Refuses a second address of a process. Calls at both at once would look like those of another preflight.
static bool note_twin(bl_ctl_checklist_t *list, const bl_job_t *job, const services_t *services,
                      const bl_ctl_probe_t *probe) {
  const bl_ctl_probe_t *twin = same_process(services, probe);
  char subject[SUBJECT_BYTES], other[SUBJECT_BYTES];
  bl_error_t err;
  if (twin == NULL) {
    return false;
  }
  const char *key = !probe->store ? "stages" : probe->number < job->services.stores.count ? "stores" : "host_stores";
  (void)bl_error_set(&err, BL_INVALID,
                     "%.100s is the process of %s (%.100s), pid %lld; it needs one of its own: correct services.%s",
                     probe->address, subject_of(job, twin, other), twin->address, (long long)probe->process, key);
  bl_ctl_checklist_note(list, "answers", subject_of(job, probe, subject), &err, "");
  return true;
}

static void note_probe(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_ctl_probe_t *probe, uint64_t needed) {
  const bool of_host = probe->store && probe->number >= job->services.stores.count;
  char text[160], has[BL_BYTES_TEXT], needs[BL_BYTES_TEXT], subject[SUBJECT_BYTES];
  (void)subject_of(job, probe, subject);
  if (probe->err.status != BL_OK) {
    bool away = probe->err.status == BL_UNAVAILABLE || probe->err.status == BL_DEADLINE;
    bl_error_t err;
    (void)bl_error_set(&err, probe->err.status, "%.300s; %s", probe->err.text,
                       away ? "start it, correct its address in services, or let its port through"
                            : "see that this is the service and the certificate that are meant");
    bl_ctl_checklist_note(list, "answers", subject, &err, "");
    return;
  }
  snprintf(text, sizeof text, "%s, pid %lld", probe->address, (long long)probe->process);
  bl_ctl_checklist_note(list, "answers", subject, NULL, text);
  if (!probe->store) {
    return;
  }
  bl_error_t err = {0};
  bl_bytes_format(probe->free_bytes, has);
  bl_bytes_format(needed, needs);
  if (needed > 0 && probe->draining) {
    (void)bl_error_set(
        &err, BL_PRECONDITION,
        "it drains and takes nothing new: ballastctl drain --undrain, or take it out of services.%sstores",
        of_host ? "host_" : "");
  } else if (needed > probe->free_bytes) {
    (void)bl_error_set(&err, BL_EXHAUSTED,
                       "the plan takes %s, %s are free: start it with more --capacity, or end what holds its leases "
                       "(ballastctl leases list)",
                       needs, has);
  } else if (of_host && probe->capacity_bytes < (uint64_t)job->balance.host.value) { // another policy may use all of it
    bl_bytes_format(probe->capacity_bytes, has);
    bl_bytes_format((uint64_t)job->balance.host.value, needs);
    (void)bl_error_set(&err, BL_EXHAUSTED,
                       "balance.host is %s, the store may lend %s: start it with --capacity %s, or lower balance.host",
                       needs, has, needs);
  }
  snprintf(text, sizeof text, "the plan takes %s, %s are free", needs, has);
  bl_ctl_checklist_note(list, "room", subject, &err, text);
}

// Notes devices whose store the plan needs but the job does not name.
static void note_missing(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                         const bl_device_slots_t *device_slots) {
  const uint32_t stores = (uint32_t)job->services.stores.count;
  for (uint32_t d = stores; d < bl_grid_ranks(&training->grid); d++) {
    if (reserved_bytes(training, device_slots, d) > 0) {
      char subject[SUBJECT_BYTES];
      bl_error_t err;
      snprintf(subject, sizeof subject, "store %u", d);
      (void)bl_error_set(&err, BL_INVALID, "the plan parks blocks at it, services.stores names %u: name one per stage",
                         stores);
      bl_ctl_checklist_note(list, "room", subject, &err, "");
    }
  }
}

static void note_clocks(bl_ctl_checklist_t *list, const bl_job_t *job, const services_t *services) {
  double most = 0;
  size_t asked = 0, failed = list->failed;
  char text[64], subject[SUBJECT_BYTES];
  for (size_t i = 0; i < services->count; i++) {
    const bl_ctl_probe_t *probe = &services->probes[i];
    const double ahead = probe->ahead_seconds, apart = fabs(ahead);
    bl_error_t err;
    if (probe->err.status != BL_OK) {
      continue;
    }
    asked++;
    most = fmax(most, apart);
    if (apart > CLOCK_TOLERANCE_SECONDS) {
      (void)bl_error_set(&err, BL_UNHEALTHY,
                         "its clock is %.1f s %s this machine's: set both from one source (NTP); certificates are "
                         "judged by them and logs are compared by them",
                         apart, ahead > 0 ? "ahead of" : "behind");
      bl_ctl_checklist_note(list, "clock", subject_of(job, probe, subject), &err, "");
    }
  }
  if (asked > 0 && list->failed == failed) {
    snprintf(text, sizeof text, "at most %.2g s from this machine's", most);
    bl_ctl_checklist_note(list, "clock", "all services", NULL, text);
  }
}

static bl_status_t services_init(services_t *services, const bl_job_t *job, bl_error_t *err) {
  const bl_grid_t grid = bl_job_grid(job);
  const size_t stores = bl_job_store_count(job);
  *services = (services_t){.probes = calloc(job->services.stages.count + stores + 1, sizeof *services->probes),
                           .well = calloc(bl_grid_ranks(&grid), sizeof *services->well),
                           .stores = calloc(stores + 1, sizeof *services->stores)};
  const bool made = services->probes != NULL && services->well != NULL && services->stores != NULL;
  return made ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory");
}

static void services_cleanup(services_t *services) {
  free(services->probes);
  free(services->well);
  free(services->stores);
}

// Resolves the names of services; those with an address become probes.
static void check_names(bl_ctl_checklist_t *list, const bl_job_t *job, bool store, uint64_t deadline_ns,
                        services_t *services) {
  const size_t count = store ? bl_job_store_count(job) : job->services.stages.count;
  for (size_t i = 0; i < count; i++) {
    const bl_ctl_probe_t probe = {.address = store ? bl_job_store(job, i) : job->services.stages.items[i],
                                  .store = store,
                                  .number = (uint32_t)i,
                                  .job = bl_ctl_preflight_run(job)};
    char subject[SUBJECT_BYTES];
    if (check_name(list, subject_of(job, &probe, subject), probe.address, deadline_ns)) {
      services->probes[services->count++] = probe;
    }
  }
}

static void note_probes(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                        const bl_device_slots_t *device_slots, services_t *services) {
  for (size_t i = 0; i < services->count; i++) {
    const bl_ctl_probe_t *probe = &services->probes[i];
    const size_t failed = list->failed;
    if (!note_twin(list, job, services, probe)) {
      note_probe(list, job, probe, needed_bytes(job, training, device_slots, probe));
    }
    const bool well = list->failed == failed;
    if (probe->store) {
      services->stores[probe->number] =
          (bl_ctl_store_seen_t){.well = well, .spare_bytes = probe->spare_bytes, .machine = probe->machine};
    } else {
      services->well[probe->number] = well;
    }
  }
}

static bl_status_t check_services(bl_ctl_checklist_t *list, bl_job_t *job, const bl_training_t *training,
                                  const bl_device_slots_t *device_slots, double timeout_seconds, bl_error_t *err) {
  const uint64_t timeout_ms = (uint64_t)(timeout_seconds * 1000);
  const uint64_t deadline_ns = bl_clock_now_ns() + timeout_ms * BL_NS_PER_MS;
  services_t services;
  bl_status_t status = services_init(&services, job, err);
  if (status != BL_OK) {
    goto cleanup;
  }
  if (job->services.driver != NULL) {
    (void)check_name(list, "driver", job->services.driver, deadline_ns);
  }
  check_names(list, job, false, deadline_ns, &services);
  check_names(list, job, true, deadline_ns, &services);
  if (!check_security(list, job)) {
    goto cleanup;
  }
  note_missing(list, job, training, device_slots);
  status = bl_ctl_probe_all(services.probes, services.count, timeout_ms, err);
  if (status != BL_OK) {
    goto cleanup;
  }
  note_probes(list, job, training, device_slots, &services);
  note_clocks(list, job, &services);
  status = bl_ctl_preflight_paths(list, job, training, device_slots, services.well, services.stores, err);
cleanup:
  services_cleanup(&services);
  return status;
}

// ---- command --------------------------------------------------------------------------------------------------------

static bl_status_t print(bl_ctl_checklist_t *list, bl_ctl_output_t output, bl_error_t *err) {
  static const bl_ctl_column_t columns[] = {{.key = "check", .title = "CHECK"},
                                            {.key = "subject", .title = "SUBJECT"},
                                            {.key = "state", .title = "STATE"},
                                            {.key = "says", .title = "SAYS"}};
  bl_status_t status = bl_ctl_print_rows(output, columns, sizeof columns / sizeof columns[0], list->rows, stdout);
  status = bl_ctl_printed(status, err);
  if (status != BL_OK) {
    return status;
  }
  return list->failed == 0
             ? BL_OK
             : bl_error_set(err, BL_UNHEALTHY, "%zu of %zu checks failed", list->failed, json_array_size(list->rows));
}

static bl_status_t check_job(const arguments_t *arguments, bl_job_t *job, bl_error_t *err) {
  if (job->services.stages.count == 0) {
    return bl_error_set(err, BL_INVALID,
                        "%s names no services.stages: preflight is for runs on services that were started by "
                        "themselves, run --local needs none",
                        job->file);
  }
  bl_training_t training;
  bl_balance_plan_t plan;
  bl_status_t status = bl_ctl_job_resolve(job, &training, err);
  if (status != BL_OK) {
    return status;
  }
  bl_policy_t policy = bl_policy_of_job(job);
  status = bl_balance_plan_init(&plan, &training, &policy, err); // for auto, the first plan
  if (status == BL_OK) {
    bl_ctl_checklist_t list = {.rows = json_array()};
    status = check_services(&list, job, &training, &plan.device_slots, arguments->timeout_seconds, err);
    if (status == BL_OK) {
      status = print(&list, (bl_ctl_output_t)arguments->output, err);
    }
    json_decref(list.rows);
    bl_balance_plan_cleanup(&plan);
  }
  bl_training_cleanup(&training);
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  bl_job_t job;
  bl_status_t status = bl_ctl_job_read(words->positional[0], &a->sets, NULL, &job, err);
  if (status == BL_OK) {
    status = check_job(a, &job, err);
    bl_job_cleanup(&job);
  }
  return status;
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_preflight_command = {"preflight", "is everything there that a job needs of its services",
                                                   run};

// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/preflight_paths.h"

#include "ballastctl/cluster/paths_wire.h"
#include "ballastctl/cluster/preflight_gpus.h"

#include "base/bytes.h"
#include "base/words.h"
#include "job/pods.h"
#include "lease/granule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MOST_BYTES (UINT64_C(256) << 10) // enough to judge a path, and small enough to fit in memory
// NCCL keeps its buffers in /dev/shm; the default of 64 MiB in a container is too small.
#define SHARED_MEMORY_BYTES (UINT64_C(128) << 20)

static uint64_t block_bytes(const bl_training_t *training) {
  uint64_t most = 0;
  for (uint32_t s = 0; s < training->stage_count; s++) {
    most = training->stages[s].evict_bytes > most ? training->stages[s].evict_bytes : most;
  }
  most = bl_align_up(most, BL_LEASE_GRANULE_BYTES);
  return most < BLOCK_MOST_BYTES ? most : BLOCK_MOST_BYTES;
}

// Finds the host store that a rank uses, by its number in the job; false: none.
static bool host_store_of(const bl_job_t *job, const bl_training_t *training, uint32_t rank, uint32_t *number) {
  const bl_hosts_t *hosts = &training->hosts;
  if (hosts->count == 0 || hosts->of_rank[rank] >= job->services.host_stores.count) {
    return false;
  }
  *number = (uint32_t)job->services.stores.count + hosts->of_rank[rank];
  return true;
}

// Sets which stores and stages a rank tests. `numbers` must have capacity for two lists of all ranks, and for a host
// store.
static void plan_tour(bl_ctl_explorer_t *stage, uint32_t number, uint32_t *numbers, const bl_job_t *job,
                      const bl_training_t *training, const bl_device_slots_t *device_slots, const bool *stage_well,
                      const bl_ctl_store_seen_t *stores) {
  const bl_grid_t *grid = &training->grid;
  const bl_coords_t own = bl_grid_coords(grid, number);
  uint32_t *peers = numbers + bl_grid_ranks(grid) + 1;
  stage->stores = numbers;
  stage->peers = peers;
  for (uint32_t d = 0; d < bl_grid_ranks(grid); d++) {
    const bl_coords_t coords = bl_grid_coords(grid, d);
    if (d < job->services.stores.count && stores[d].well && coords.data == own.data && coords.tensor == own.tensor &&
        coords.stage < device_slots->devices && bl_device_slots_reserved(device_slots, own.stage, coords.stage) > 0) {
      numbers[stage->store_count++] = d;
    }
    if (stage_well[d] && bl_training_exchange(training, number, d)) {
      peers[stage->peer_count++] = d;
    }
  }
  uint32_t host;
  if (host_store_of(job, training, number, &host) && stores[host].well &&
      bl_device_slots_reserved(device_slots, own.stage, training->stage_count + training->hosts.of[own.stage]) > 0) {
    numbers[stage->store_count++] = host;
  }
}

static void note_path(bl_ctl_checklist_t *list, const bl_job_t *job, const char *from, const bl_ctl_path_t *path,
                      uint64_t bytes, bool full) {
  char subject[160], to[BL_GRID_NAME_BYTES], text[448];
  const bl_grid_t grid = bl_job_grid(job);
  bl_error_t err = path->err;
  snprintf(subject, sizeof subject, "%s to %s", from,
           path->store ? bl_ctl_preflight_store_name(job, path->number, to) : bl_grid_name(&grid, path->number, to));
  const double seconds = (double)path->round_ns * 1e-9;
  const char *required = bl_job_data_path_name(job->balance.require);
  if (err.status == BL_EXHAUSTED && path->store && full) {
    bl_ctl_checklist_skip(list, "path", subject, "the store is full, of this run itself: no room for a block on trial");
    return;
  }
  if (err.status == BL_EXHAUSTED) {
    (void)bl_error_set(&err, err.status, "%.500s", path->err.text); // the text itself says what to do
  } else if (err.status != BL_OK) {
    (void)bl_error_set(&err, err.status,
                       "%.300s; let every TCP port through between stages (and --data-tcp of stores), and give all "
                       "certificates of one authority",
                       path->err.text);
  } else if (path->store && job->balance.require != BL_JOB_DATA_PATH_AUTO &&
             job->balance.require != BL_JOB_DATA_PATH_NCCL && // no communicator made: preflight_gpus.c
             strcmp(path->data_path, required) != 0) {
    (void)bl_error_set(&err, BL_PRECONDITION,
                       "balance.require is %s, the path is %s; put both into one pod "
                       "(ballastctl render --pairing pod), or require less",
                       required, path->reason);
  }
  snprintf(text, sizeof text, "%s; %.3g ms for a block there and back, %.3g GB/s", path->reason, seconds * 1e3,
           seconds > 0 ? 2 * (double)bytes / seconds * 1e-9 : 0);
  bl_ctl_checklist_note(list, "path", subject, &err, text);
}

static void note_stage(bl_ctl_checklist_t *list, const bl_job_t *job, uint32_t number, const bl_ctl_explorer_t *stage,
                       const bl_ctl_store_seen_t *stores, uint64_t bytes) {
  char subject[BL_GRID_NAME_BYTES], other[BL_GRID_NAME_BYTES], text[96], has[BL_BYTES_TEXT], wants[BL_BYTES_TEXT];
  const bl_grid_t grid = bl_job_grid(job);
  const uint32_t ranks = bl_grid_ranks(&grid);
  (void)bl_grid_name(&grid, number, subject);
  if (stage->address == NULL) {
    return;
  }
  if (stage->err.status != BL_OK) {
    bl_ctl_checklist_note(list, "path", subject, &stage->err, "");
    return;
  }
  bl_bytes_format(stage->shared_memory_bytes, has);
  bl_bytes_format(SHARED_MEMORY_BYTES, wants);
  snprintf(text, sizeof text, "/dev/shm has %s", has);
  if (job->pipeline.device == BL_JOB_DEVICE_HOST) {
    bl_ctl_checklist_skip(list, "shared memory", subject, text);
  } else {
    bl_error_t err = {0};
    if (stage->shared_memory_bytes < SHARED_MEMORY_BYTES) {
      (void)bl_error_set(&err, BL_EXHAUSTED, "/dev/shm has %s, NCCL wants %s: mount an emptyDir of medium Memory there",
                         has, wants);
    }
    bl_ctl_checklist_note(list, "shared memory", subject, &err, text);
  }
  if (stage->pod >= 0) {
    bl_error_t err = {0};
    const uint32_t due = (uint32_t)stage->pod < ranks ? bl_rank_of_pod(&grid, (uint32_t)stage->pod) : ranks;
    if (due != number) {
      (void)bl_error_set(&err, BL_INVALID,
                         "it is pod %d, which should be %s: name pods in services.stages as "
                         "ballastctl render does, or pairs are not neighbours",
                         stage->pod, bl_grid_name(&grid, due, other));
    }
    snprintf(text, sizeof text, "pod %d, with its partner", stage->pod);
    bl_ctl_checklist_note(list, "pod", subject, &err, text);
  }
  for (size_t i = 0; i < stage->path_count; i++) {
    // Other stages may test with a block at the same store meanwhile.
    const bool full = stage->paths[i].store && stage->paths[i].number < bl_job_store_count(job) &&
                      stores[stage->paths[i].number].spare_bytes < ranks * bytes;
    note_path(list, job, subject, &stage->paths[i], bytes, full);
  }
}

// Warns about a host store that is not on the machine of the stages that park there: that works, but slowly.
static void note_machines(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                          const bl_ctl_explorer_t *stages, const bl_ctl_store_seen_t *stores) {
  const uint32_t ranks = bl_grid_ranks(&training->grid), devices = (uint32_t)job->services.stores.count;
  for (uint32_t n = devices; n < bl_job_store_count(job); n++) {
    char subject[BL_GRID_NAME_BYTES], name[BL_GRID_NAME_BYTES], text[320];
    uint32_t users = 0, away = 0, first = 0, number;
    for (uint32_t rank = ranks; rank-- > 0;) {
      const bool asked = stages[rank].address != NULL && stages[rank].err.status == BL_OK && stores[n].well;
      if (asked && host_store_of(job, training, rank, &number) && number == n) {
        const bool same = bl_ctl_machines_are_same(stages[rank].place.machine, stores[n].machine);
        users++;
        away += !same;
        first = same ? first : rank;
      }
    }
    (void)bl_ctl_preflight_store_name(job, n, subject);
    if (away > 0) {
      snprintf(text, sizeof text,
               "it shares no memory with %s%s: blocks cross the network. Start a host store on every machine (in every "
               "pod), with the host name that services.stages has there",
               bl_grid_name(&training->grid, first, name), away > 1 ? " and others" : "");
      bl_ctl_checklist_warn(list, "machine", subject, text);
    } else if (users > 0) {
      snprintf(text, sizeof text, "the machine of the %u stage%s that it serves", users, bl_plural(users));
      bl_ctl_checklist_note(list, "machine", subject, NULL, text);
    }
  }
}

bl_status_t bl_ctl_preflight_paths(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                                   const bl_device_slots_t *device_slots, const bool *well,
                                   const bl_ctl_store_seen_t *stores, bl_error_t *err) {
  const uint32_t count = bl_grid_ranks(&training->grid);
  const size_t capacity = 2 * (size_t)count + 1;
  bl_ctl_explorer_t *stages = calloc(count, sizeof *stages);
  uint32_t *numbers = calloc(count * capacity, sizeof *numbers);
  const char **addresses = calloc(bl_job_store_count(job) + 1, sizeof *addresses);
  bl_status_t status = stages == NULL || numbers == NULL || addresses == NULL
                           ? bl_error_set(err, BL_EXHAUSTED, "no memory to explore paths")
                           : BL_OK;
  for (size_t i = 0; i < bl_job_store_count(job) && status == BL_OK; i++) {
    addresses[i] = bl_job_store(job, i);
  }
  const bl_ctl_exploration_t exploration = {.job = bl_ctl_preflight_run(job),
                                            .data_path = bl_job_data_path_name(job->balance.data_path),
                                            .device = job->pipeline.device == BL_JOB_DEVICE_HOST ? "host" : "cuda",
                                            .stores = addresses,
                                            .block_bytes = block_bytes(training),
                                            .stages = stages,
                                            .count = count};
  for (uint32_t s = 0; s < count && status == BL_OK; s++) {
    if (well[s]) {
      stages[s].address = job->services.stages.items[s];
      plan_tour(&stages[s], s, numbers + s * capacity, job, training, device_slots, well, stores);
    }
  }
  if (status == BL_OK) {
    status = bl_ctl_paths_explore(&exploration, err);
  }
  for (uint32_t s = 0; s < count && status == BL_OK; s++) {
    note_stage(list, job, s, &stages[s], stores, exploration.block_bytes);
  }
  if (status == BL_OK) {
    note_machines(list, job, training, stages, stores);
  }
  if (status == BL_OK) {
    bl_ctl_preflight_gpus(list, job, training, device_slots, stages, count);
  }
  for (uint32_t s = 0; s < count && stages != NULL; s++) {
    bl_ctl_explorer_cleanup(&stages[s]);
  }
  free(stages);
  free(numbers);
  free(addresses);
  return status;
}

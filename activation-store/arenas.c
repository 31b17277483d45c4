// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"

#include "base/bytes.h"
#include "sys/log.h"
#include "sys/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE_BYTES (UINT64_C(1) << 30)  // largest arena whose memory its first session waits for: about a second
#define PART_BYTES    (UINT64_C(64) << 20) // filled at a time, so that blocks are not delayed

// An arena that is being created or filled. It outlives its job if that ends first.
typedef struct work {
  bl_work_t work;
  bl_arenas_t *arenas;
  uint32_t job;
  bool abandoned;
  bl_arena_t tiers[BL_LEASE_TIERS]; // base NULL: none (yet)
  bool whole;                       // created in memory of its own, not of another plan: all of it must be available
  uint64_t filled_bytes;            // of all tiers, one after the other
  bl_error_t err;
} work_t;

typedef struct job {
  bl_arena_t tiers[BL_LEASE_TIERS]; // base NULL: none
  work_t *making, *filling;
} job_t;

struct bl_arenas {
  bl_pool_t *pool;
  bl_device_t *device;
  bl_arena_made_fn made;
  void *context;
  bool stopping;
  uint32_t count;
  job_t jobs[];
};

bl_status_t bl_arenas_create(bl_pool_t *pool, bl_device_t *device, uint32_t max_jobs, bl_arena_made_fn made,
                             void *context, bl_arenas_t **arenas, bl_error_t *err) {
  bl_arenas_t *self = calloc(1, sizeof *self + max_jobs * sizeof self->jobs[0]);
  if (self == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the arenas of %" PRIu32 " jobs", max_jobs);
  }
  self->pool = pool;
  self->device = device;
  self->made = made;
  self->context = context;
  self->count = max_jobs;
  for (uint32_t i = 0; i < max_jobs; i++) {
    self->jobs[i].tiers[0].fd = self->jobs[i].tiers[1].fd = -1;
  }
  *arenas = self;
  return BL_OK;
}

void bl_arenas_stop(bl_arenas_t *arenas) {
  if (arenas != NULL) {
    arenas->stopping = true;
  }
}

void bl_arenas_destroy(bl_arenas_t *arenas) {
  for (uint32_t i = 0; arenas != NULL && i < arenas->count; i++) {
    bl_arenas_close(arenas, i);
  }
  free(arenas);
}

static work_t *begin(bl_arenas_t *arenas, uint32_t job, void (*run)(bl_work_t *), void (*done)(bl_message_t *)) {
  work_t *work = calloc(1, sizeof *work);
  if (work != NULL) {
    *work = (work_t){.work = {.run = run, .done = {.handle = done}}, .arenas = arenas, .job = job};
    memcpy(work->tiers, arenas->jobs[job].tiers, sizeof work->tiers);
  }
  return work;
}

// ---- creating

static void destroy(bl_arena_t tiers[BL_LEASE_TIERS]) {
  for (uint32_t i = 0; i < BL_LEASE_TIERS; i++) {
    if (tiers[i].base != NULL) {
      bl_arena_destroy(&tiers[i]);
    }
    tiers[i] = (bl_arena_t){.fd = -1};
  }
}

static uint64_t bytes_of(const work_t *work) {
  return work->tiers[0].bytes + work->tiers[1].bytes;
}

// Checks that the memory exists: the kernel grants shared memory beyond that, and later kills some process.
static void ask_machine(work_t *work, uint64_t bytes) {
  const uint64_t available_bytes = bl_memory_available_bytes();
  if (bytes > available_bytes) {
    char wanted[BL_BYTES_TEXT], available[BL_BYTES_TEXT];
    (void)bl_error_set(&work->err, BL_EXHAUSTED, "%s wanted, %s available here", bl_bytes_format(bytes, wanted),
                       bl_bytes_format(available_bytes, available));
  }
}

static void make(bl_work_t *base) {
  work_t *work = BL_WORK_OWNER(base, work_t, work);
  if (work->whole) {
    ask_machine(work, bytes_of(work));
  }
  for (uint32_t i = 0; i < BL_LEASE_TIERS && work->err.status == BL_OK; i++) {
    if (work->tiers[i].bytes > 0) {
      work->err.status = bl_arena_create(work->arenas->device, NULL, BL_MEMORY_SLOTS, work->tiers[i].kind,
                                         work->tiers[i].bytes, &work->tiers[i], &work->err);
    }
  }
  if (work->err.status != BL_OK) {
    destroy(work->tiers);
  }
}

static void made(bl_message_t *message) {
  work_t *work = BL_MESSAGE_OWNER(message, work_t, work.done);
  bl_arenas_t *arenas = work->arenas;
  if (work->abandoned) {
    destroy(work->tiers);
    free(work);
    return;
  }
  job_t *job = &arenas->jobs[work->job];
  job->making = NULL;
  char text[BL_BYTES_TEXT];
  if (work->err.status == BL_OK) {
    memcpy(job->tiers, work->tiers, sizeof job->tiers);
    bool later = job->tiers[0].kind == BL_ARENA_SHAREABLE_LATER || job->tiers[1].kind == BL_ARENA_SHAREABLE_LATER;
    bl_log(BL_LOG_INFO, "an arena of %s for job %" PRIu32 "%s",
           bl_bytes_format(job->tiers[0].bytes + job->tiers[1].bytes, text), work->job,
           !later        ? ""
           : work->whole ? ", filled while it is used"
                         : ", in the memory of the plan before");
  } else {
    bl_log(BL_LOG_ERROR, "no arena for job %" PRIu32 ": %s", work->job, work->err.text);
  }
  arenas->made(arenas->context, work->job, &work->err);
  free(work);
}

bool bl_arenas_make(bl_arenas_t *arenas, uint32_t job, const uint64_t bytes[BL_LEASE_TIERS], bool later) {
  work_t *work = begin(arenas, job, make, made);
  if (work == NULL) {
    return false;
  }
  bool host = arenas->device->host_memory;
  work->whole = host && !later && bytes[0] + bytes[1] > AT_ONCE_BYTES;
  const bl_arena_kind_t of_host = later || work->whole ? BL_ARENA_SHAREABLE_LATER : BL_ARENA_SHAREABLE;
  const bl_arena_kind_t kinds[BL_LEASE_TIERS] = {host ? of_host : BL_ARENA_SHAREABLE,
                                                 host ? of_host : BL_ARENA_STAGING_SHAREABLE};
  for (uint32_t i = 0; i < BL_LEASE_TIERS; i++) {
    work->tiers[i] = (bl_arena_t){.fd = -1, .bytes = bytes[i], .kind = kinds[i]};
  }
  arenas->jobs[job].making = work;
  bl_pool_submit(arenas->pool, &work->work);
  return true;
}

bool bl_arenas_is_making(const bl_arenas_t *arenas, uint32_t job) {
  return arenas->jobs[job].making != NULL;
}

// ---- filling

// Fills the next bytes.
static void fill(bl_work_t *base) {
  work_t *work = BL_WORK_OWNER(base, work_t, work);
  const uint64_t first_bytes = work->tiers[0].base != NULL ? work->tiers[0].bytes : 0;
  const bool of_first = work->filled_bytes < first_bytes;
  const bl_arena_t *tier = &work->tiers[of_first ? 0 : 1];
  const uint64_t offset = work->filled_bytes - (of_first ? 0 : first_bytes), left = tier->bytes - offset;
  const uint64_t bytes = left < PART_BYTES ? left : PART_BYTES;
  ask_machine(work, work->filled_bytes == 0 ? bytes_of(work) : bytes);
  if (work->err.status == BL_OK) {
    work->err.status = bl_arena_fill(tier, offset, bytes, &work->err);
    work->filled_bytes += bytes;
  }
}

static void filled(bl_message_t *message) {
  work_t *work = BL_MESSAGE_OWNER(message, work_t, work.done);
  if (work->abandoned) {
    destroy(work->tiers);
    free(work);
    return;
  }
  job_t *job = &work->arenas->jobs[work->job];
  const bool whole = work->filled_bytes == bytes_of(work);
  if (work->err.status == BL_OK && !whole && !work->arenas->stopping) {
    bl_pool_submit(work->arenas->pool, &work->work); // after work that was submitted meanwhile
    return;
  }
  job->filling = NULL;
  if (work->err.status == BL_OK && whole) {
    for (uint32_t i = 0; i < BL_LEASE_TIERS; i++) {
      job->tiers[i].kind = job->tiers[i].kind == BL_ARENA_SHAREABLE_LATER ? BL_ARENA_SHAREABLE : job->tiers[i].kind;
    }
  } else if (!work->arenas->stopping) {
    bl_log(BL_LOG_INFO, "memory for job %" PRIu32 " is taken block by block: %s", work->job, work->err.text);
  }
  free(work);
}

void bl_arenas_fill(bl_arenas_t *arenas, uint32_t job) {
  job_t *entry = &arenas->jobs[job];
  bool due = false;
  for (uint32_t i = 0; i < BL_LEASE_TIERS && entry->filling == NULL && !arenas->stopping; i++) {
    due = due || (entry->tiers[i].base != NULL && entry->tiers[i].kind == BL_ARENA_SHAREABLE_LATER);
  }
  work_t *work = due ? begin(arenas, job, fill, filled) : NULL;
  if (work != NULL) {
    entry->filling = work;
    bl_pool_submit(arenas->pool, &work->work);
  }
}

// ---- closing and reading

void bl_arenas_close(bl_arenas_t *arenas, uint32_t job) {
  job_t *entry = &arenas->jobs[job];
  if (entry->making != NULL) {
    entry->making->abandoned = true;
  }
  if (entry->filling != NULL) {
    entry->filling->abandoned = true; // it then owns the arena
  } else {
    destroy(entry->tiers);
  }
  *entry = (job_t){.tiers = {{.fd = -1}, {.fd = -1}}};
}

const bl_arena_t *bl_arenas_get(const bl_arenas_t *arenas, uint32_t job, uint32_t tier) {
  const bl_arena_t *arena = &arenas->jobs[job].tiers[tier];
  return arena->base != NULL ? arena : NULL;
}

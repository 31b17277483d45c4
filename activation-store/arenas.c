// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"

#include "base/bytes.h"
#include "sys/log.h"
#include "sys/memory.h"

#include <inttypes.h>
#include <stdlib.h>

// An arena that is being made or filled; outlives its job when that ends meanwhile.
typedef struct work {
  bl_work_t work;
  bl_arenas_t *arenas;
  uint32_t job;
  bool abandoned;
  bl_arena_t arena;
  bl_error_t err;
} work_t;

typedef struct job {
  bl_arena_t arena; // base NULL: none
  work_t *making, *filling;
} job_t;

struct bl_arenas {
  bl_pool_t *pool;
  bl_arena_made_fn made;
  void *context;
  uint32_t count;
  job_t jobs[];
};

bl_status_t bl_arenas_create(bl_pool_t *pool, uint32_t max_jobs, bl_arena_made_fn made, void *context,
                             bl_arenas_t **arenas, bl_error_t *err) {
  bl_arenas_t *self = calloc(1, sizeof *self + max_jobs * sizeof self->jobs[0]);
  if (self == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the arenas of %" PRIu32 " jobs", max_jobs);
  }
  self->pool = pool;
  self->made = made;
  self->context = context;
  self->count = max_jobs;
  for (uint32_t i = 0; i < max_jobs; i++) {
    self->jobs[i].arena.fd = -1;
  }
  *arenas = self;
  return BL_OK;
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
    *work = (work_t){
        .work = {.run = run, .done = {.handle = done}}, .arenas = arenas, .job = job, .arena = arenas->jobs[job].arena};
  }
  return work;
}

// ---- making

static void make(bl_work_t *base) {
  work_t *work = BL_WORK_OWNER(base, work_t, work);
  work->err.status = bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, work->arena.kind, work->arena.bytes,
                                     &work->arena, &work->err);
}

static void made(bl_message_t *message) {
  work_t *work = BL_MESSAGE_OWNER(message, work_t, work.done);
  bl_arenas_t *arenas = work->arenas;
  if (work->abandoned) {
    bl_arena_destroy(&work->arena);
    free(work);
    return;
  }
  job_t *job = &arenas->jobs[work->job];
  job->making = NULL;
  char text[BL_BYTES_TEXT];
  if (work->err.status == BL_OK) {
    job->arena = work->arena;
    bl_log(BL_LOG_INFO, "an arena of %s for job %" PRIu32 "%s", bl_bytes_format(job->arena.bytes, text), work->job,
           job->arena.kind == BL_ARENA_SHAREABLE_LATER ? ", in the memory of the plan before" : "");
  } else {
    bl_log(BL_LOG_ERROR, "no arena for job %" PRIu32 ": %s", work->job, work->err.text);
  }
  arenas->made(arenas->context, work->job, &work->err);
  free(work);
}

bool bl_arenas_make(bl_arenas_t *arenas, uint32_t job, uint64_t bytes, bool later) {
  work_t *work = begin(arenas, job, make, made);
  if (work == NULL) {
    return false;
  }
  work->arena = (bl_arena_t){.fd = -1, .bytes = bytes, .kind = later ? BL_ARENA_SHAREABLE_LATER : BL_ARENA_SHAREABLE};
  arenas->jobs[job].making = work;
  bl_pool_submit(arenas->pool, &work->work);
  return true;
}

bool bl_arenas_is_making(const bl_arenas_t *arenas, uint32_t job) {
  return arenas->jobs[job].making != NULL;
}

// ---- filling

static void fill(bl_work_t *base) {
  work_t *work = BL_WORK_OWNER(base, work_t, work);
  // Asked first: the kernel grants shared memory that does not exist and then kills whom it likes.
  if (work->arena.bytes > bl_memory_available_bytes()) {
    (void)bl_error_set(&work->err, BL_EXHAUSTED, "the machine has less than that now");
    return;
  }
  work->err.status = bl_arena_fill(&work->arena, 0, work->arena.bytes, &work->err);
}

static void filled(bl_message_t *message) {
  work_t *work = BL_MESSAGE_OWNER(message, work_t, work.done);
  if (work->abandoned) {
    bl_arena_destroy(&work->arena);
    free(work);
    return;
  }
  job_t *job = &work->arenas->jobs[work->job];
  job->filling = NULL;
  if (work->err.status == BL_OK) {
    job->arena.kind = BL_ARENA_SHAREABLE;
  } else {
    bl_log(BL_LOG_INFO, "memory for job %" PRIu32 " is taken block by block: %s", work->job, work->err.text);
  }
  free(work);
}

void bl_arenas_fill(bl_arenas_t *arenas, uint32_t job) {
  job_t *entry = &arenas->jobs[job];
  bool due = entry->arena.base != NULL && entry->arena.kind == BL_ARENA_SHAREABLE_LATER && entry->filling == NULL;
  work_t *work = due ? begin(arenas, job, fill, filled) : NULL;
  if (work != NULL) {
    entry->filling = work;
    bl_pool_submit(arenas->pool, &work->work);
  }
}

// ---- closing and looking

void bl_arenas_close(bl_arenas_t *arenas, uint32_t job) {
  job_t *entry = &arenas->jobs[job];
  if (entry->making != NULL) {
    entry->making->abandoned = true;
  }
  if (entry->filling != NULL) {
    entry->filling->abandoned = true; // and has the arena
  } else {
    bl_arena_destroy(&entry->arena);
  }
  *entry = (job_t){.arena = {.fd = -1}};
}

const bl_arena_t *bl_arenas_get(const bl_arenas_t *arenas, uint32_t job) {
  const bl_arena_t *arena = &arenas->jobs[job].arena;
  return arena->base != NULL ? arena : NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "run_journal.h"

#include "sys/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 256

bl_status_t bl_run_journal_init(bl_run_journal_t *journal) {
  *journal = (bl_run_journal_t){.capacity = FIRST_CAPACITY};
  journal->events = calloc(journal->capacity, sizeof *journal->events);
  return journal->events != NULL ? BL_OK : BL_EXHAUSTED;
}

static void free_event(bl_event_t *event) {
  free(event->step.stages);
  free(event->step.stores);
  free(event->phase);
  free(event->checkpoint);
  *event = (bl_event_t){0};
}

void bl_run_journal_cleanup(bl_run_journal_t *journal) {
  for (size_t i = 0; i < journal->count; i++) {
    free_event(&journal->events[(journal->first + i) % journal->capacity]);
  }
  free(journal->events);
  *journal = (bl_run_journal_t){0};
}

// Doubles the ring and unwraps it. Returns false if memory is exhausted.
static bool widen(bl_run_journal_t *journal) {
  bl_event_t *events = calloc(journal->capacity * 2, sizeof *events);
  if (events == NULL) {
    return false;
  }
  for (size_t i = 0; i < journal->count; i++) {
    events[i] = journal->events[(journal->first + i) % journal->capacity];
  }
  free(journal->events);
  journal->events = events;
  journal->first = 0;
  journal->capacity *= 2;
  return true;
}

// Returns the slot of a new, numbered event.
static bl_event_t *append(bl_run_journal_t *journal, bl_event_kind_t kind) {
  bool full = journal->count == journal->capacity;
  if (full && (journal->capacity >= BL_RUN_JOURNAL_EVENTS || !widen(journal))) {
    free_event(&journal->events[journal->first]);
    journal->first = (journal->first + 1) % journal->capacity;
    journal->count--;
  }
  bl_event_t *event = &journal->events[(journal->first + journal->count) % journal->capacity];
  journal->count++;
  *event = (bl_event_t){.revision = ++journal->revision, .kind = kind};
  return event;
}

void bl_run_journal_add_step(bl_run_journal_t *journal, const bl_step_event_t *step) {
  bl_stage_share_t *stages = malloc(step->stage_count * sizeof *stages);
  bl_store_share_t *stores = malloc((step->store_count + 1) * sizeof *stores);
  if (stages == NULL || stores == NULL) {
    free(stages);
    free(stores);
    bl_log(BL_LOG_ERROR, "no memory to report step %lu", (unsigned long)step->step);
    return;
  }
  memcpy(stages, step->stages, step->stage_count * sizeof *stages);
  if (step->store_count > 0) {
    memcpy(stores, step->stores, step->store_count * sizeof *stores);
  }
  bl_event_t *event = append(journal, BL_EVENT_STEP);
  event->step = *step;
  event->step.stages = stages;
  event->step.stores = stores;
}

void bl_run_journal_add_validation(bl_run_journal_t *journal, const bl_validation_event_t *validation) {
  append(journal, BL_EVENT_VALIDATION)->validation = *validation;
}

void bl_run_journal_add_phase(bl_run_journal_t *journal, const char *phase, const char *error, int32_t exit_code) {
  bl_phase_event_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    bl_log(BL_LOG_ERROR, "no memory to report phase %s", phase);
    return;
  }
  snprintf(made->phase, sizeof made->phase, "%s", phase);
  snprintf(made->error, sizeof made->error, "%s", error);
  made->exit_code = exit_code;
  append(journal, BL_EVENT_PHASE)->phase = made;
}

void bl_run_journal_add_checkpoint(bl_run_journal_t *journal, const bl_checkpoint_event_t *checkpoint) {
  bl_checkpoint_event_t *made = malloc(sizeof *made);
  if (made == NULL) {
    bl_log(BL_LOG_ERROR, "no memory to report the checkpoint of step %lu", (unsigned long)checkpoint->step);
    return;
  }
  *made = *checkpoint;
  append(journal, BL_EVENT_CHECKPOINT)->checkpoint = made;
}

void bl_run_journal_add_plan(bl_run_journal_t *journal) {
  append(journal, BL_EVENT_PLAN);
}

const bl_event_t *bl_run_journal_after(const bl_run_journal_t *journal, uint64_t revision) {
  if (journal->count == 0 || revision >= journal->revision) {
    return NULL;
  }
  uint64_t oldest = journal->events[journal->first].revision;
  size_t skip = revision < oldest ? 0 : (size_t)(revision + 1 - oldest);
  return &journal->events[(journal->first + skip) % journal->capacity];
}

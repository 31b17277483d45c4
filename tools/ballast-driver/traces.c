// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include <stdlib.h>

// Maximum of a stage's events of one step: bounds what a broken stage can make the driver keep.
#define EVENTS_MAX (1u << 20)

typedef struct bl__trace_wait {
  struct bl__trace_wait *next;
  bl_driver_traced_fn done;
  void *context;
} wait_t;

static void keep(const bl_trace_event_t *event, void *context) {
  const bl_remote_t *stage = context;
  bl_stage_trace_t *trace = &stage->driver->tracing.stages[stage->index];
  if (trace->count == trace->capacity) {
    size_t capacity = trace->capacity == 0 ? 256 : trace->capacity * 2;
    bl_trace_event_t *events = capacity <= EVENTS_MAX ? realloc(trace->events, capacity * sizeof *events) : NULL;
    if (events == NULL) {
      return;
    }
    trace->events = events;
    trace->capacity = capacity;
  }
  trace->events[trace->count++] = *event;
}

static void collected(const bl_stage_answer_t *answer, void *context) {
  const bl_remote_t *stage = context;
  bl_driver_t *driver = stage->driver;
  bl_stage_trace_t *trace = &driver->tracing.stages[stage->index];
  if (answer->err->status != BL_OK) {
    trace->count = 0; // a trace is for people: the run continues without it
  }
  if (--driver->tracing.open == 0 && driver->state < BL__RUN_STOPPING) {
    bl__driver_pump(driver);
  }
}

bool bl__traces_ready(bl_driver_t *driver) {
  if (driver->tracing.open > 0) {
    return false;
  }
  if (driver->step.applied == 0 || driver->tracing.step == driver->step.applied) {
    bl_error_t none = {.status = BL_OK};
    bl__traces_answer(driver, &none);
    return true;
  }
  driver->tracing.open = driver->stage_count;
  driver->tracing.step = driver->step.applied;
  for (size_t i = 0; i < driver->stage_count; i++) {
    driver->tracing.stages[i].count = 0;
    bl_stage_client_trace(driver->stages[i].client, keep, collected, &driver->stages[i]);
  }
  return false;
}

void bl__traces_answer(bl_driver_t *driver, const bl_error_t *err) {
  while (driver->tracing.waits != NULL) {
    wait_t *wait = driver->tracing.waits;
    driver->tracing.waits = wait->next;
    wait->done(driver->tracing.stages, driver->stage_count, err, wait->context);
    free(wait);
  }
}

void bl_driver_trace(bl_driver_t *driver, bl_driver_traced_fn done, void *context) {
  wait_t *wait = malloc(sizeof *wait);
  bl_error_t err;
  if (driver->state >= BL__RUN_STOPPING || wait == NULL) {
    (void)bl_error_set(&err, BL_PRECONDITION, "the run has ended");
    free(wait);
    done(driver->tracing.stages, 0, &err, context);
    return;
  }
  *wait = (wait_t){.next = driver->tracing.waits, .done = done, .context = context};
  driver->tracing.waits = wait;
  bl__driver_pump(driver);
}

void bl_driver_trace_cancel(bl_driver_t *driver, const void *context) {
  for (wait_t **link = &driver->tracing.waits; *link != NULL;) {
    wait_t *wait = *link;
    if (wait->context == context) {
      *link = wait->next;
      free(wait);
    } else {
      link = &wait->next;
    }
  }
}

void bl__traces_cleanup(bl_driver_t *driver) {
  for (size_t i = 0; driver->tracing.stages != NULL && i < driver->stage_count; i++) {
    free(driver->tracing.stages[i].events);
  }
  free(driver->tracing.stages);
  while (driver->tracing.waits != NULL) {
    wait_t *wait = driver->tracing.waits;
    driver->tracing.waits = wait->next;
    free(wait);
  }
}

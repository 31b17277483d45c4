// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/startup_progress.h"

#include "loop/timer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_MS    2000
#define MISSED_TOLD 3 // calls in a row without an answer, as of stages

struct bl_ctl_startup_progress {
  bl_ctl_driver_t *driver;
  bl_timer_t *timer;
  bl_ctl_tell_fn tell;
  void *context;
  char name[48];   // of the driver
  char told[256];  // the last report of a wait
  unsigned missed; // calls in a row that got no answer in time
  bool begun, ended;
};

// Counts calls that a driver did not answer, and reports the beginning and the end of a silence.
static void note_silence(bl_ctl_startup_progress_t *self, bool silent) {
  char text[160];
  const bool told = self->missed >= MISSED_TOLD;
  self->missed = silent ? self->missed + 1 : 0;
  if (!silent && told) {
    snprintf(text, sizeof text, "%s answers again", self->name);
  } else if (silent && self->missed == MISSED_TOLD) {
    snprintf(text, sizeof text, "no answer from %s for %d s: it is stopped, unreachable, or gets no processor time",
             self->name, MISSED_TOLD * EVERY_MS / 1000);
  } else {
    return;
  }
  self->tell(text, self->context);
}

static void answered(json_t *value, const bl_error_t *err, void *context) {
  bl_ctl_startup_progress_t *self = context;
  const char *waits = json_string_value(json_object_get(value, "waiting_for"));
  if (self->ended) {
    return;
  }
  if (err->status == BL_OK || err->status == BL_DEADLINE) {
    note_silence(self, err->status == BL_DEADLINE);
  }
  if (self->begun || err->status != BL_OK || waits == NULL || waits[0] == '\0' ||
      strncmp(waits, self->told, sizeof self->told - 1) == 0) {
    return; // the watch handles a driver that is gone
  }
  snprintf(self->told, sizeof self->told, "%s", waits);
  char text[sizeof self->told + 32];
  snprintf(text, sizeof text, "waiting for %s", self->told);
  self->tell(text, self->context);
}

static void look(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_ctl_startup_progress_t *self = context;
  bl_error_t err;
  (void)!bl_ctl_driver_status(self->driver, EVERY_MS, answered, self, &err);
}

bl_status_t bl_ctl_startup_progress_create(bl_loop_t *loop, bl_ctl_driver_t *driver, int64_t driver_pid,
                                           bl_ctl_tell_fn tell, void *context, bl_ctl_startup_progress_t **startup,
                                           bl_error_t *err) {
  bl_ctl_startup_progress_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  *made = (bl_ctl_startup_progress_t){.driver = driver, .tell = tell, .context = context};
  snprintf(made->name, sizeof made->name, "the driver");
  if (driver_pid != 0) {
    snprintf(made->name, sizeof made->name, "the driver (pid %" PRId64 ")", driver_pid);
  }
  bl_status_t status = bl_timer_create(loop, look, made, &made->timer, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  bl_timer_start(made->timer, EVERY_MS, EVERY_MS);
  *startup = made;
  return BL_OK;
}

void bl_ctl_startup_progress_begun(bl_ctl_startup_progress_t *startup) {
  startup->begun = true;
}

void bl_ctl_startup_progress_end(bl_ctl_startup_progress_t *startup) {
  if (startup != NULL && !startup->ended) {
    startup->ended = true;
    bl_timer_stop(startup->timer);
  }
}

void bl_ctl_startup_progress_destroy(bl_ctl_startup_progress_t *startup) {
  if (startup != NULL) {
    bl_timer_destroy(startup->timer);
    free(startup);
  }
}

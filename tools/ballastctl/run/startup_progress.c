// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/startup_progress.h"

#include "loop/timer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_MS 2000

struct bl_ctl_startup_progress {
  bl_ctl_driver_t *driver;
  bl_timer_t *timer;
  bl_ctl_tell_fn tell;
  void *context;
  char told[256]; // the last report
  bool ended;
};

static void answered(json_t *value, const bl_error_t *err, void *context) {
  bl_ctl_startup_progress_t *self = context;
  const char *waits = json_string_value(json_object_get(value, "waiting_for"));
  if (self->ended || err->status != BL_OK || waits == NULL || waits[0] == '\0' ||
      strncmp(waits, self->told, sizeof self->told - 1) == 0) {
    return; // the watch handles a driver that does not answer
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

bl_status_t bl_ctl_startup_progress_create(bl_loop_t *loop, bl_ctl_driver_t *driver, bl_ctl_tell_fn tell, void *context,
                                           bl_ctl_startup_progress_t **startup, bl_error_t *err) {
  bl_ctl_startup_progress_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  *made = (bl_ctl_startup_progress_t){.driver = driver, .tell = tell, .context = context};
  bl_status_t status = bl_timer_create(loop, look, made, &made->timer, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  bl_timer_start(made->timer, EVERY_MS, EVERY_MS);
  *startup = made;
  return BL_OK;
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

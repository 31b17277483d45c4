// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include <inttypes.h>
#include <string.h>

#define PROMPT_TOKENS 16 // of the data, if no prompt is given

void bl__sampling_end(bl_driver_t *driver, const bl_error_t *err) {
  if (driver->generation.has_caller) {
    driver->generation.has_caller = false;
    driver->generation.request.done(err, driver->generation.request.context);
  }
}

void bl__sampling_take(bl_driver_t *driver) {
  const bl_schedule_t *schedule = driver->options.training->schedule;
  uint32_t head = schedule->stage_of[bl_schedule_depth(schedule) - 1];
  uint32_t token = driver->stages[bl_grid_rank(&driver->options.training->grid, (bl_coords_t){.stage = head})].token;
  bl_driver_step_close(&driver->step);
  driver->attempts.failures = 0;
  if (!driver->generation.has_caller) {
    return; // the caller has gone
  }
  uint32_t seq = driver->options.training->model.seq;
  if (driver->generation.count == seq) {
    memmove(driver->generation.tokens, driver->generation.tokens + 1, (seq - 1) * sizeof *driver->generation.tokens);
    driver->generation.count--;
  }
  driver->generation.tokens[driver->generation.count++] = token;
  driver->generation.generated++;
  driver->generation.request.drawn(token, driver->generation.request.context);
  if (driver->generation.has_caller && driver->generation.generated >= driver->generation.request.tokens) {
    bl_error_t none = {.status = BL_OK};
    bl__sampling_end(driver, &none);
  }
}

// Returns whether an attempt at a token uses the context, perhaps of a caller that has gone.
static bool is_drawing(const bl_driver_t *driver) {
  const bl_driver_phase_t phase = driver->step.phase;
  return driver->step.run.kind == BL_RUN_GENERATE &&
         (phase == BL_DRIVER_RUNNING || phase == BL_DRIVER_DECIDING || phase == BL_DRIVER_ABORTING);
}

static bl_status_t take_prompt(bl_driver_t *driver, const bl_sampling_t *request, bl_error_t *err) {
  const bl_training_t *training = driver->options.training;
  uint32_t seq = training->model.seq;
  if (request->prompt_bytes > 0) {
    if (driver->options.job->data.format != BL_JOB_FORMAT_TEXT) {
      return bl_error_set(err, BL_INVALID, "a prompt needs data.format text: this model's tokens are not bytes");
    }
    size_t skip = request->prompt_bytes > seq ? request->prompt_bytes - seq : 0;
    driver->generation.count = (uint32_t)(request->prompt_bytes - skip);
    for (uint32_t i = 0; i < driver->generation.count; i++) {
      driver->generation.tokens[i] = request->prompt[skip + i];
      if (driver->generation.tokens[i] >= training->model.vocab) {
        return bl_error_set(err, BL_INVALID, "byte %" PRIu32 " of the prompt is not in the vocabulary", i);
      }
    }
    return BL_OK;
  }
  const bl_tokens_t *tokens =
      training->dataset.validation.count > 0 ? &training->dataset.validation : &training->dataset.train;
  int32_t start_tokens[PROMPT_TOKENS];
  uint64_t count = seq < PROMPT_TOKENS ? seq : PROMPT_TOKENS;
  count = tokens->count < count ? tokens->count : count;
  bl_tokens_read(tokens, 0, count, start_tokens);
  for (uint64_t i = 0; i < count; i++) {
    driver->generation.tokens[i] = (uint32_t)start_tokens[i];
  }
  driver->generation.count = (uint32_t)count;
  return BL_OK;
}

bl_status_t bl_driver_generate(bl_driver_t *driver, const bl_sampling_t *request, bl_error_t *err) {
  bool held =
      driver->state == BL__RUN_FINISHED || (driver->state == BL__RUN_STEPS && strcmp(driver->phase, "paused") == 0);
  if (!held) {
    return bl_error_set(err, BL_PRECONDITION, "the run is %s: text is drawn while it is paused or finished",
                        driver->phase);
  }
  if (driver->generation.has_caller || is_drawing(driver)) {
    return bl_error_set(err, BL_PRECONDITION, "another text is being drawn: ask again when it is done");
  }
  if (request->tokens == 0) {
    return bl_error_set(err, BL_INVALID, "tokens: at least 1");
  }
  bl_status_t status = take_prompt(driver, request, err);
  if (status != BL_OK) {
    return status;
  }
  driver->generation.request = *request;
  driver->generation.generated = 0;
  driver->generation.has_caller = true;
  bl__driver_pump(driver);
  return BL_OK;
}

void bl_driver_generate_cancel(bl_driver_t *driver, const void *context) {
  if (driver->generation.has_caller && driver->generation.request.context == context) {
    driver->generation.has_caller = false;
  }
}

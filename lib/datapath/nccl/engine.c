// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/engine.h"

#include "datapath/nccl/engine_core.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/thread.h"

#include <stdio.h>
#include <stdlib.h>

#define MOVES_NS  (UINT64_C(20) * 1000)  // between two polls of moving transfers: a transfer takes longer
#define WAITS_NS  (UINT64_C(100) * 1000) // after many polls without progress
#define LOOKS     256u
#define LISTEN_NS (UINT64_C(100) * BL_NS_PER_MS)
#define LATE_NS   (UINT64_C(500) * BL_NS_PER_MS) // a thread that wakes this much too late was not running

// Steps all channels. Returns the fastest pace that any of them needs.
static bl__nccl_pace_t step_all(bl_nccl_engine_t *engine) {
  bl__nccl_pace_t pace = BL__NCCL_IDLE;
  // Channels are appended at the end. They are removed only when they have ended, and then they are not stepped.
  for (bl_nccl_channel_t *channel = STAILQ_FIRST(&engine->channels), *next; channel != NULL; channel = next) {
    bl__nccl_pace_t own = channel->ended ? BL__NCCL_IDLE : bl__nccl_step(channel);
    next = STAILQ_NEXT(channel, listed);
    pace = own > pace ? own : pace;
  }
  return pace;
}

void bl__nccl_wake(bl_nccl_engine_t *engine) {
  engine->woken = true;
  pthread_cond_signal(&engine->work);
}

static void *launch(void *argument) {
  bl_nccl_engine_t *engine = argument;
  bl_thread_set_name("nccl");
  bl_thread_unpin();
  unsigned quiet = 0;
  pthread_mutex_lock(&engine->mutex);
  while (!engine->ending) {
    engine->woken = false;
    bl__nccl_pace_t pace = step_all(engine);
    uint64_t pause_ns = UINT64_MAX;
    quiet = pace == BL__NCCL_MOVES ? 0 : quiet + 1;
    // Woken during a call or callback, perhaps for a channel that was already stepped.
    if (pace == BL__NCCL_MOVES || engine->woken) {
      continue;
    }
    if (pace == BL__NCCL_WAITS) {
      pause_ns = quiet < LOOKS ? MOVES_NS : WAITS_NS;
    } else if (pace == BL__NCCL_LISTENS) {
      pause_ns = LISTEN_NS;
    }
    (void)bl_condition_wait(&engine->work, &engine->mutex,
                            pause_ns == UINT64_MAX ? UINT64_MAX : bl_clock_now_ns() + pause_ns);
  }
  pthread_mutex_unlock(&engine->mutex);
  return NULL;
}

static void *watch(void *argument) {
  bl_nccl_engine_t *engine = argument;
  bl_thread_set_name("nccl-watchdog");
  bl_thread_unpin();
  pthread_mutex_lock(&engine->mutex);
  uint64_t wanted_ns = UINT64_MAX; // to wake at
  while (!engine->ending) {
    uint64_t now_ns = bl_clock_now_ns(), due_ns = UINT64_MAX;
    // If this process was stopped or the machine was suspended, the peers must not be blamed.
    bl_nccl_channel_t *channel;
    STAILQ_FOREACH(channel, &engine->channels, listed) {
      if (now_ns > wanted_ns && now_ns - wanted_ns > LATE_NS) {
        bl_nccl_life_excuse(&channel->life, now_ns);
      }
    }
    bl_nccl_channel_t *late = NULL;
    STAILQ_FOREACH(channel, &engine->channels, listed) {
      if (channel->life.deadline_ns <= now_ns) {
        late = channel;
        break;
      }
      due_ns = channel->life.deadline_ns < due_ns ? channel->life.deadline_ns : due_ns;
    }
    if (late != NULL) {
      bl__nccl_tick(late, now_ns); // the list may have changed after it
      wanted_ns = UINT64_MAX;
    } else {
      wanted_ns = due_ns;
      (void)bl_condition_wait(&engine->clock, &engine->mutex, due_ns);
    }
  }
  pthread_mutex_unlock(&engine->mutex);
  return NULL;
}

bl_status_t bl_nccl_engine_create(const bl_nccl_engine_options_t *options, bl_nccl_engine_t **out, bl_error_t *err) {
  bl_nccl_engine_t *engine = calloc(1, sizeof *engine);
  if (engine == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the NCCL path");
  }
  bl_nccl_life_t life;
  bl_nccl_life_init(&life, &options->deadlines);
  *engine = (bl_nccl_engine_t){.api = options->api,
                               .deadlines = life.deadlines,
                               .max_ctas = options->max_ctas != 0 ? options->max_ctas : BL_NCCL_MAX_CTAS,
                               .on_stuck = options->on_stuck,
                               .context = options->context};
  STAILQ_INIT(&engine->channels);
  pthread_mutex_init(&engine->mutex, NULL);
  bl_condition_init(&engine->work);
  bl_condition_init(&engine->clock);
  bl_condition_init(&engine->changed);
  bool launches = pthread_create(&engine->launcher, NULL, launch, engine) == 0;
  if (launches && pthread_create(&engine->watchdog, NULL, watch, engine) == 0) {
    *out = engine;
    return BL_OK;
  }
  if (launches) {
    pthread_mutex_lock(&engine->mutex);
    engine->ending = true;
    bl__nccl_wake(engine);
    pthread_mutex_unlock(&engine->mutex);
    pthread_join(engine->launcher, NULL);
  }
  free(engine);
  return bl_error_set(err, BL_EXHAUSTED, "the system gives no threads for the NCCL path");
}

void bl_nccl_engine_destroy(bl_nccl_engine_t *engine) {
  if (engine == NULL) {
    return;
  }
  pthread_mutex_lock(&engine->mutex);
  bool stuck = !STAILQ_EMPTY(&engine->channels);
  engine->ending = true;
  bl__nccl_wake(engine);
  pthread_cond_signal(&engine->clock);
  pthread_mutex_unlock(&engine->mutex);
  if (stuck) {
    // A channel is stuck. The engine's threads may be stuck too, and the process ends.
    return;
  }
  pthread_join(engine->launcher, NULL);
  pthread_join(engine->watchdog, NULL);
  pthread_cond_destroy(&engine->work);
  pthread_cond_destroy(&engine->clock);
  pthread_cond_destroy(&engine->changed);
  pthread_mutex_destroy(&engine->mutex);
  free(engine);
}

void bl_nccl_engine_expect_waits(bl_nccl_engine_t *engine) {
  pthread_mutex_lock(&engine->mutex);
  engine->deadlines.abort_ns = BL_NCCL_WAITING_ABORT_NS;
  pthread_mutex_unlock(&engine->mutex);
}

const bl_nccl_api_t *bl_nccl_engine_api(const bl_nccl_engine_t *engine) {
  return engine->api;
}

bl_status_t bl_nccl_engine_new_id(bl_nccl_engine_t *engine, uint8_t id[BL_NCCL_ID_BYTES], bl_error_t *err) {
  char text[BL_NCCL_TEXT_BYTES] = "";
  if (engine->api->new_id(engine->api, id, text) != BL_NCCL_DONE) {
    return bl_error_set(err, BL_IO, "NCCL gives no unique id: %s", text);
  }
  return BL_OK;
}

bl_nccl_counters_t bl_nccl_engine_counters(bl_nccl_engine_t *engine) {
  pthread_mutex_lock(&engine->mutex);
  bl_nccl_counters_t counters = engine->counters;
  pthread_mutex_unlock(&engine->mutex);
  return counters;
}

// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/probe_wire.h"

#include "ballastctl/calls.h"

#include "loop/timer.h"
#include "rpc/channel.h"
#include "sys/clock.h"

#include "ballast/v1/stage.pb-c.h"
#include "ballast/v1/store.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_MS   2000 // timeout of one call
#define AGAIN_MS 200  // pause between two calls

typedef struct crowd crowd_t;

typedef struct asked {
  crowd_t *crowd;
  bl_ctl_probe_t *probe;
  bl_rpc_channel_t *channel;
  bool again;
} asked_t;

struct crowd {
  bl_ctl_calls_t calls;
  uint64_t deadline_ns;
  asked_t *asked;
  size_t count;
};

static void take_answer(bl_ctl_probe_t *probe, const ProtobufCMessage *output) {
  uint64_t wall_ns;
  if (probe->store) {
    const Ballast__V1__StoreStatusResponse *store = (const Ballast__V1__StoreStatusResponse *)output;
    probe->process = store->process;
    if (store->incarnation.len == sizeof probe->incarnation) {
      memcpy(probe->incarnation, store->incarnation.data, sizeof probe->incarnation);
    }
    bool full = store->arena_bytes >= store->capacity_bytes;
    probe->spare_bytes = full ? 0 : store->capacity_bytes - store->arena_bytes;
    probe->free_bytes = store->arena_bytes_max;
    probe->draining = store->draining;
    probe->capacity_bytes = store->capacity_bytes;
    snprintf(probe->machine, sizeof probe->machine, "%s", store->machine);
    wall_ns = store->wall_ns;
  } else {
    const Ballast__V1__StageStatusResponse *stage = (const Ballast__V1__StageStatusResponse *)output;
    if (stage->state != NULL) {
      probe->process = stage->state->process;
      memcpy(probe->incarnation, &stage->state->incarnation, sizeof stage->state->incarnation);
    }
    wall_ns = stage->wall_ns;
  }
  // The age of the response is not known, except that it is below TRY_MS.
  probe->ahead_seconds = wall_ns == 0 ? 0 : ((double)wall_ns - (double)bl_clock_wall_ns()) / BL_NS_PER_S;
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  asked_t *asked = context;
  asked->probe->err = *err;
  bool passes = err->status == BL_UNAVAILABLE || err->status == BL_DEADLINE;
  if (output != NULL) {
    take_answer(asked->probe, output);
  } else if (passes && bl_clock_now_ns() < asked->crowd->deadline_ns) {
    asked->again = true;
    return;
  }
  bl_ctl_calls_ended(&asked->crowd->calls);
}

static void ask(asked_t *asked) {
  const Ballast__V1__StageStatusRequest stage = BALLAST__V1__STAGE_STATUS_REQUEST__INIT;
  Ballast__V1__StoreStatusRequest store = BALLAST__V1__STORE_STATUS_REQUEST__INIT;
  const bool is_store = asked->probe->store;
  store.job = asked->probe->job != NULL ? (char *)asked->probe->job : (char *)"";
  uint64_t now_ns = bl_clock_now_ns(), deadline_ns = asked->crowd->deadline_ns;
  uint64_t left_ms = (deadline_ns > now_ns ? deadline_ns - now_ns : 0) / BL_NS_PER_MS + 1;
  asked->again = false;
  if (bl_rpc_channel_call(asked->channel, is_store ? &ballast__v1__store__descriptor : &ballast__v1__stage__descriptor,
                          "Status", is_store ? &store.base : &stage.base, left_ms < TRY_MS ? left_ms : TRY_MS, answered,
                          asked, &asked->probe->err) != BL_OK) {
    bl_ctl_calls_ended(&asked->crowd->calls);
  }
}

static void ask_all_again(bl_timer_t *timer, void *context) {
  (void)timer;
  crowd_t *crowd = context;
  for (size_t i = 0; i < crowd->count; i++) {
    if (crowd->asked[i].again) {
      ask(&crowd->asked[i]);
    }
  }
}

// Starts the first call of each probe. A call that cannot be started fails its probe.
static void ask_first(crowd_t *crowd, bl_ctl_probe_t *probes) {
  for (size_t i = 0; i < crowd->count; i++) {
    asked_t *asked = &crowd->asked[i];
    *asked = (asked_t){.crowd = crowd, .probe = &probes[i]};
    bl_rpc_channel_options_t options = {.server_roles = probes[i].store ? BL_STORES : BL_STAGES};
    bl_error_clear(&probes[i].err);
    if (bl_rpc_channel_create(crowd->calls.rpc, probes[i].address, &options, &asked->channel, &probes[i].err) ==
        BL_OK) {
      asked->again = true;
      crowd->calls.open++;
    }
  }
}

bl_status_t bl_ctl_probe_all(bl_ctl_probe_t *probes, size_t count, uint64_t timeout_ms, bl_error_t *err) {
  bl_timer_t *again = NULL;
  crowd_t crowd = {.count = count, .asked = calloc(count + 1, sizeof *crowd.asked)};
  crowd.deadline_ns = bl_clock_now_ns() + timeout_ms * BL_NS_PER_MS;
  bl_status_t status =
      crowd.asked == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory") : bl_ctl_calls_init(&crowd.calls, err);
  if (status == BL_OK) {
    status = bl_timer_create(crowd.calls.loop, ask_all_again, &crowd, &again, err);
  }
  if (status == BL_OK) {
    ask_first(&crowd, probes);
    bl_timer_start(again, 0, AGAIN_MS);
    bl_ctl_calls_wait(&crowd.calls);
    for (size_t i = 0; i < count; i++) {
      bl_rpc_channel_destroy(crowd.asked[i].channel);
    }
  }
  bl_timer_destroy(again);
  bl_ctl_calls_cleanup(&crowd.calls);
  free(crowd.asked);
  return status;
}

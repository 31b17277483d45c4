// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

#include "base/words.h"
#include "sys/clock.h"
#include "sys/log.h"

// Called on the data path's thread.
static void peers_connected(void *user, bl_status_t status, const bl_error_t *err) {
  bl_stage_t *stage = user;
  bl_error_clear(&stage->connect_error);
  if (status != BL_OK) {
    stage->connect_error = *err;
  }
  bl_loop_post(stage->loop, &stage->connect_message);
}

static void connect_done(bl_message_t *message) {
  bl_stage_t *stage = BL_MESSAGE_OWNER(message, bl_stage_t, connect_message);
  if (stage->connect_dropped) {
    (void)bl_error_set(&stage->connect_error, BL_CANCELLED, "the configuration that was to be connected has gone");
  }
  stage->connecting = false;
  stage->connected = stage->connect_error.status == BL_OK;
  if (!stage->connected && !stage->connect_dropped) {
    bl_log(BL_LOG_ERROR, "data path: %s", stage->connect_error.text);
  } else if (stage->connected) {
    const uint32_t peers = bl_engine_peers(stage->engine, NULL, 0);
    bl_log(BL_LOG_INFO, "connected to %u peer%s in %.3f s", peers, bl_plural(peers),
           (double)(bl_clock_now_ns() - stage->connect_since_ns) / BL_NS_PER_S);
  }
  stage->connect_dropped = false;
  if (stage->options.observer.connected != NULL) {
    stage->options.observer.connected(stage->options.observer.context, &stage->connect_error);
  }
}

void bl__peers_init(bl_stage_t *stage) {
  stage->connect_message.handle = connect_done;
}

static bl_status_t check_peers(const bl_stage_t *stage, const bl_transport_peer_t *peers, size_t count,
                               bl_error_t *err) {
  uint32_t needed[BL_TRANSPORT_MAX_PEERS];
  uint32_t needed_count = bl_engine_peers(stage->engine, needed, BL_TRANSPORT_MAX_PEERS);
  for (uint32_t i = 0; i < needed_count && i < BL_TRANSPORT_MAX_PEERS; i++) {
    bool given = false;
    for (size_t k = 0; k < count; k++) {
      given = given || peers[k].stage == (int32_t)needed[i];
    }
    if (!given) {
      const bl_grid_t *grid = &stage->engine->training.grid;
      char name[BL_GRID_NAME_BYTES], other[BL_GRID_NAME_BYTES];
      return bl_error_set(err, BL_INVALID, "%s exchanges tensors with %s, which is not among the peers",
                          bl_grid_name(grid, stage->engine->rank, name), bl_grid_name(grid, needed[i], other));
    }
  }
  return BL_OK;
}

// Tensor ranks on devices have a communicator of their group (executor/device_group.h) and tell each other the rest in
// notes.
static bool notes_only(const bl_stage_t *stage, int32_t peer) {
  const bl_engine_t *engine = stage->engine;
  const bl_grid_t *grid = &engine->training.grid;
  return !engine->device->host_memory && (uint32_t)peer < bl_grid_ranks(grid) &&
         bl_grid_coords(grid, (uint32_t)peer).tensor != engine->coords.tensor;
}

bl_stage_decision_t bl_stage_connect(bl_stage_t *stage, bl_driver_id_t driver, bl_transport_peer_t *peers, size_t count,
                                     bl_path_t path, uint64_t deadline_ns, bl_error_t *err) {
  bl_stage_decision_t decision = bl_stage_step_connect(&stage->step, driver, err);
  if (decision != BL_STAGE_ANSWER) {
    return decision;
  }
  if (stage->connecting) {
    return BL_STAGE_WAIT;
  }
  if (check_peers(stage, peers, count, err) != BL_OK) {
    return BL_STAGE_REFUSE;
  }
  for (size_t i = 0; i < count; i++) {
    peers[i].notes_only = notes_only(stage, peers[i].stage);
  }
  stage->connecting = true;
  stage->connect_since_ns = bl_clock_now_ns();
  if (bl_transport_connect(stage->engine->transport, peers, count, path, deadline_ns, peers_connected, stage, err) !=
      BL_OK) {
    stage->connecting = false;
    return BL_STAGE_REFUSE;
  }
  return BL_STAGE_BEGIN;
}

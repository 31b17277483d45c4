// SPDX-License-Identifier: Apache-2.0
#include "executor/tensor_group.h"

#include "sys/clock.h"

#include <stdlib.h>

// A peer that is alive but silent for so long is broken. The driver notices dead and stopped ones much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)
#define SHORT_WAIT_NS    UINT64_C(50000) // a core is given back after it

static bl_tensor_group_t *self_of(bl_group_t *group) {
  return (bl_tensor_group_t *)(void *)group;
}

static int32_t rank_of(const bl_tensor_group_t *self, uint32_t member) {
  const bl_engine_t *engine = self->engine;
  const bl_seat_t seat = {.stage = engine->stage, .tensor = member, .data = engine->replica};
  return (int32_t)bl_grid_rank(&engine->training.grid, seat);
}

static bl_tensor_key_t key_of(uint32_t number, uint32_t piece) {
  return (bl_tensor_key_t){.boundary = number, .direction = BL_SHARE, .piece = piece};
}

static uint32_t here(const bl_group_t *group) {
  return group->parts / group->ranks;
}

// ---- waiting

typedef bl_status_t (*wait_fn)(bl_hub_t *hub, int32_t peer, bl_tensor_key_t key, uint64_t deadline_ns, bl_error_t *err);

static bl_status_t rest_and_wait(bl_tensor_group_t *self, wait_fn wait, int32_t peer, bl_tensor_key_t key,
                                 bl_error_t *err) {
  const bl_tensor_rest_t *rest = &self->rest;
  if (rest->begin != NULL) {
    rest->begin(rest->context);
  }
  bl_status_t status = wait(self->engine->hub, peer, key, bl_clock_now_ns() + PEER_DEADLINE_NS, err);
  bl_error_t ignored;
  bl_status_t back = rest->end != NULL ? rest->end(rest->context, status == BL_OK ? err : &ignored) : BL_OK;
  return status == BL_OK ? back : status;
}

static bl_status_t wait_for(bl_tensor_group_t *self, wait_fn wait, uint32_t member, bl_tensor_key_t key,
                            bl_error_t *err) {
  const int32_t peer = rank_of(self, member);
  const uint64_t start_ns = bl_stall_begin(self->stall);
  bl_status_t status = wait(self->engine->hub, peer, key, start_ns + SHORT_WAIT_NS, err);
  if (status == BL_DEADLINE) {
    status = rest_and_wait(self, wait, peer, key, err);
  }
  bl_stall_count(self->stall, start_ns);
  return status;
}

// Until the peers have read what was last in the window.
static bl_status_t acquire(bl_group_t *group, uint32_t window, bl_error_t *err) {
  bl_tensor_group_t *self = self_of(group);
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < group->ranks && self->used[window] > 0; member++) {
    for (uint32_t piece = 0; piece < self->sent[window] && member != group->rank && status == BL_OK; piece++) {
      status = wait_for(self, bl_hub_wait_sent, member, key_of(self->used[window], piece), err);
    }
  }
  self->used[window] = 0;
  return status;
}

// ---- moving

static uint32_t begin_next(bl_tensor_group_t *self, uint32_t window, uint32_t pieces) {
  self->used[window] = ++self->count;
  self->sent[window] = pieces;
  return self->count;
}

static bl_status_t gather(bl_group_t *group, uint32_t window, uint64_t block_bytes, bl_error_t *err) {
  bl_tensor_group_t *self = self_of(group);
  bl_hub_t *hub = self->engine->hub;
  const bl_tensor_key_t key = key_of(begin_next(self, window, 1), 0);
  uint8_t *blocks = group->windows[window];
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    const int32_t peer = rank_of(self, member);
    if (member == group->rank) {
      continue;
    }
    status = bl_hub_post_receive(hub, peer, key, blocks + member * block_bytes, block_bytes, err);
    if (status == BL_OK) {
      status = bl_hub_post_send(hub, peer, key, blocks + group->rank * block_bytes, block_bytes, err);
    }
  }
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    status = member == group->rank ? BL_OK : wait_for(self, bl_hub_wait_received, member, key, err);
  }
  return status;
}

// Where a part that another rank has comes to.
static uint8_t *staged(const bl_tensor_group_t *self, uint32_t part, uint64_t block_bytes) {
  const bl_group_t *group = &self->group;
  const uint32_t first = group->rank * here(group);
  return self->engine->windows.base + self->windows.staging_offset_bytes +
         (part < first ? part : part - here(group)) * block_bytes;
}

static bl_status_t post_pieces(bl_tensor_group_t *self, uint32_t window, uint32_t member, uint32_t number,
                               uint64_t block_bytes, const void **blocks, bl_error_t *err) {
  const bl_group_t *group = &self->group;
  bl_hub_t *hub = self->engine->hub;
  const int32_t peer = rank_of(self, member);
  bl_status_t status = BL_OK;
  for (uint32_t piece = 0; piece < here(group) && status == BL_OK; piece++) {
    const uint32_t part = member * here(group) + piece;
    uint8_t *to = staged(self, part, block_bytes);
    blocks[part] = to;
    status = bl_hub_post_receive(hub, peer, key_of(number, piece), to, block_bytes, err);
    if (status == BL_OK) {
      const uint8_t *from = group->windows[window] + ((uint64_t)piece * group->ranks + member) * block_bytes;
      status = bl_hub_post_send(hub, peer, key_of(number, piece), from, block_bytes, err);
    }
  }
  return status;
}

static bl_status_t exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks,
                            bl_error_t *err) {
  bl_tensor_group_t *self = self_of(group);
  const uint32_t number = begin_next(self, window, here(group));
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    status = member == group->rank ? BL_OK : post_pieces(self, window, member, number, block_bytes, blocks, err);
  }
  for (uint32_t member = 0; member < group->ranks; member++) {
    for (uint32_t piece = 0; piece < here(group) && member != group->rank && status == BL_OK; piece++) {
      status = wait_for(self, bl_hub_wait_received, member, key_of(number, piece), err);
    }
  }
  return status;
}

static const bl_group_transport_t over_hub = {.acquire = acquire, .gather = gather, .exchange = exchange};

// ---- life

bl_status_t bl_tensor_group_create(bl_engine_t *engine, bl_tensor_group_t **group, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_split_t split = training->layout.split;
  bool head = false;
  bl_tensor_group_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
  }
  for (uint32_t v = 0; v < training->schedule->virtual_stages; v++) {
    head = head || (training->schedule->stage_of[v] == engine->stage && training->partition.spans[v].head);
  }
  made->engine = engine;
  made->windows = bl_windows_plan(&training->model, training->layout, head);
  made->group = (bl_group_t){
      .parts = bl_split_parts(split), .ranks = bl_split_ranks(split), .rank = split.rank, .transport = &over_hub};
  *group = made;
  return BL_OK;
}

void bl_tensor_group_destroy(bl_tensor_group_t *group) {
  free(group);
}

void bl_tensor_group_begin(bl_tensor_group_t *group, bl_stall_t *stall, const bl_tensor_rest_t *rest) {
  if (group == NULL) {
    return;
  }
  for (int i = 0; i < BL_GROUP_WINDOWS; i++) {
    group->group.windows[i] = group->engine->windows.base + group->windows.offset_bytes[i];
    group->used[i] = 0;
  }
  group->stall = stall;
  group->rest = *rest;
  group->count = 0;
  bl_group_clear(&group->group);
}

bl_status_t bl_tensor_group_settle(bl_tensor_group_t *group, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t window = 0; group != NULL && window < BL_GROUP_WINDOWS && status == BL_OK; window++) {
    status = acquire(&group->group, window, err);
  }
  return status;
}

bl_status_t bl_tensor_group_status(const bl_tensor_group_t *group, bl_error_t *err) {
  return group == NULL ? BL_OK : bl_group_status(&group->group, err);
}

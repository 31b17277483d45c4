// SPDX-License-Identifier: Apache-2.0
#include "executor/tensor_group.h"

#include "executor/device_group.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A peer that is alive but silent for this long is broken. The driver notices dead and stopped peers much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)

_Static_assert(sizeof(bl_group_page_t) <= BL_EXCHANGE_BUFFERS_PAGE_BYTES, "the progress page");
_Static_assert(BL_LAYER_PARTS_MAX <= BL_GROUP_PROGRESS_MEMBERS, "a rank has at least one part");

static bl_tensor_group_t *self_of(bl_group_t *group) {
  return (bl_tensor_group_t *)(void *)group;
}

uint32_t bl_tensor_group_rank(const bl_tensor_group_t *group, uint32_t member) {
  const bl_engine_t *engine = group->engine;
  bl_coords_t coords = engine->coords;
  coords.tensor = member;
  return bl_grid_rank(&engine->training.grid, coords);
}

static int32_t rank_of(const bl_tensor_group_t *self, uint32_t member) {
  return (int32_t)bl_tensor_group_rank(self, member);
}

static bl_tensor_key_t key_of(uint32_t number, uint32_t piece) {
  return (bl_tensor_key_t){.boundary = number, .direction = BL_SHARE, .piece = piece};
}

static uint32_t here(const bl_group_t *group) {
  return group->parts / group->ranks;
}

static bool is_on_machine(const bl_tensor_group_t *self, uint32_t member) {
  return self->peers[member] != NULL;
}

// ---- waiting

static void begin_rest(void *user) {
  bl_tensor_group_t *self = user;
  if (self->rest.begin != NULL) {
    self->rest.begin(self->rest.context);
  }
  self->resting = true;
}

static bl_status_t end_wait(bl_tensor_group_t *self, uint64_t start_ns, bl_status_t status, bl_error_t *err) {
  bl_error_t ignored;
  bl_status_t back = BL_OK;
  bl_stall_count(self->stall, start_ns); // a wait for a core is counted separately
  if (self->resting && self->rest.end != NULL) {
    back = self->rest.end(self->rest.context, status == BL_OK ? err : &ignored);
  }
  self->resting = false;
  return status == BL_OK ? back : status;
}

typedef bl_status_t (*transport_wait_fn)(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                         uint64_t deadline_ns, bl_error_t *err);

static bl_status_t wait_for(bl_tensor_group_t *self, transport_wait_fn wait, uint32_t member, bl_tensor_key_t key,
                            bl_error_t *err) {
  const int32_t peer = rank_of(self, member);
  const uint64_t start_ns = bl_stall_begin(self->stall);
  bl_status_t status = wait(self->engine->transport, peer, key, start_ns + BL_GROUP_PROGRESS_SLOW_NS, err);
  if (status == BL_DEADLINE) {
    begin_rest(self);
    status = wait(self->engine->transport, peer, key, start_ns + PEER_DEADLINE_NS, err);
  }
  return end_wait(self, start_ns, status, err);
}

typedef bl_status_t (*progress_wait_fn)(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                        const bl_group_progress_wait_t *wait, bl_error_t *err);

static bool needs_core(const bl_tensor_group_t *self, uint32_t member) {
  return self->rest.needed != NULL && self->rest.needed(self->rest.context, bl_tensor_group_rank(self, member));
}

static bool is_lost(void *user, uint32_t member) {
  const bl_tensor_group_t *self = user;
  return !bl_transport_peer_arenas_live(self->engine->transport, rank_of(self, member));
}

static bl_status_t wait_on_progress(bl_tensor_group_t *self, progress_wait_fn wait, uint32_t member, uint32_t number,
                                    bl_error_t *err) {
  const uint64_t start_ns = bl_stall_begin(self->stall);
  const bl_group_progress_wait_t how = {.deadline_ns = start_ns + PEER_DEADLINE_NS,
                                        .cancelled = self->cancelled,
                                        .slow = begin_rest,
                                        .at_once = needs_core(self, member),
                                        .lost = is_lost,
                                        .user = self};
  atomic_store_explicit(&self->awaited, (uint64_t)number << 32 | (member + 1), memory_order_relaxed);
  bl_status_t status = wait(&self->progress, member, number, &how, err);
  atomic_store_explicit(&self->awaited, 0, memory_order_relaxed);
  if (status != BL_OK) {
    char name[BL_GRID_NAME_BYTES];
    (void)bl_error_prefix(err, "%s", bl_grid_name(&self->engine->training.grid, (uint32_t)rank_of(self, member), name));
  }
  return end_wait(self, start_ns, status, err);
}

// Marks the result of the last call as no longer read.
static void take_all(bl_tensor_group_t *self) {
  if (self->taken < self->count) {
    bl_group_progress_take(&self->progress, self->count);
    self->taken = self->count;
  }
}

// Waits until the peers have read the last content of the window.
static bl_status_t acquire(bl_group_t *group, uint32_t window, bl_error_t *err) {
  bl_tensor_group_t *self = self_of(group);
  const uint32_t last = self->used[window];
  bl_status_t status = BL_OK;
  take_all(self);
  for (uint32_t member = 0; member < group->ranks && last > 0 && status == BL_OK; member++) {
    if (is_on_machine(self, member)) {
      status = wait_on_progress(self, bl_group_progress_wait_taken, member, last, err);
      continue;
    }
    for (uint32_t piece = 0; piece < self->sent[window] && member != group->rank && status == BL_OK; piece++) {
      status = wait_for(self, bl_transport_wait_sent, member, key_of(last, piece), err);
    }
  }
  self->used[window] = 0;
  return status;
}

// ---- exchanges

// Publishes this rank's contribution, which is in the window. Returns the number of the collective.
static uint32_t publish(bl_tensor_group_t *self, uint32_t window, uint32_t pieces) {
  take_all(self);
  self->used[window] = ++self->count;
  self->sent[window] = pieces;
  bl_group_progress_publish(&self->progress, self->count);
  return self->count;
}

static bl_status_t post_block(bl_tensor_group_t *self, uint32_t member, uint32_t number, uint8_t *blocks,
                              uint64_t block_bytes, bl_error_t *err) {
  bl_transport_t *transport = self->engine->transport;
  const int32_t peer = rank_of(self, member);
  const bl_tensor_key_t key = key_of(number, 0);
  bl_status_t status = bl_transport_post_receive(transport, peer, key, blocks + member * block_bytes, block_bytes, err);
  if (status == BL_OK) {
    status = bl_transport_post_send(transport, peer, key, blocks + self->group.rank * block_bytes, block_bytes, err);
  }
  return status;
}

static bl_status_t copy_block(bl_tensor_group_t *self, uint32_t window, uint32_t member, uint32_t number,
                              uint64_t block_bytes, bl_error_t *err) {
  bl_status_t status = wait_on_progress(self, bl_group_progress_wait_ready, member, number, err);
  if (status == BL_OK) {
    const uint64_t at = member * block_bytes;
    memcpy(self->group.windows[window] + at, self->peers[member] + self->exchange_buffers.offset_bytes[window] + at,
           block_bytes);
  }
  return status;
}

static bl_status_t gather(bl_group_t *group, uint32_t window, uint64_t block_bytes, bl_error_t *err) {
  bl_tensor_group_t *self = self_of(group);
  const uint32_t number = publish(self, window, 1);
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    if (member != group->rank && !is_on_machine(self, member)) {
      status = post_block(self, member, number, group->windows[window], block_bytes, err);
    }
  }
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    if (is_on_machine(self, member)) {
      status = copy_block(self, window, member, number, block_bytes, err);
    } else if (member != group->rank) {
      status = wait_for(self, bl_transport_wait_received, member, key_of(number, 0), err);
    }
  }
  take_all(self);
  return status;
}

uint8_t *bl_tensor_group_staged(const bl_tensor_group_t *group, uint32_t part, uint64_t block_bytes) {
  const bl_group_t *ranks = &group->group;
  const uint32_t first = ranks->rank * here(ranks);
  return group->engine->exchange_buffers.base + group->exchange_buffers.staging_offset_bytes +
         (part < first ? part : part - here(ranks)) * block_bytes;
}

static bl_status_t post_pieces(bl_tensor_group_t *self, uint32_t window, uint32_t member, uint32_t number,
                               uint64_t block_bytes, const void **blocks, bl_error_t *err) {
  const bl_group_t *group = &self->group;
  bl_transport_t *transport = self->engine->transport;
  const int32_t peer = rank_of(self, member);
  bl_status_t status = BL_OK;
  for (uint32_t piece = 0; piece < here(group) && status == BL_OK; piece++) {
    const uint32_t part = member * here(group) + piece;
    uint8_t *to = bl_tensor_group_staged(self, part, block_bytes);
    blocks[part] = to;
    status = bl_transport_post_receive(transport, peer, key_of(number, piece), to, block_bytes, err);
    if (status == BL_OK) {
      const uint8_t *from = group->windows[window] + ((uint64_t)piece * group->ranks + member) * block_bytes;
      status = bl_transport_post_send(transport, peer, key_of(number, piece), from, block_bytes, err);
    }
  }
  return status;
}

static bl_status_t await_pieces(bl_tensor_group_t *self, uint32_t window, uint32_t member, uint32_t number,
                                uint64_t block_bytes, const void **blocks, bl_error_t *err) {
  const bl_group_t *group = &self->group;
  const bool on_progress = is_on_machine(self, member);
  bl_status_t status = on_progress ? wait_on_progress(self, bl_group_progress_wait_ready, member, number, err) : BL_OK;
  for (uint32_t piece = 0; piece < here(group) && status == BL_OK; piece++) {
    if (on_progress) {
      blocks[member * here(group) + piece] = self->peers[member] + self->exchange_buffers.offset_bytes[window] +
                                             ((uint64_t)piece * group->ranks + group->rank) * block_bytes;
    } else {
      status = wait_for(self, bl_transport_wait_received, member, key_of(number, piece), err);
    }
  }
  return status;
}

// Blocks of ranks on the progress page are read in place: the next call releases them.
static bl_status_t exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks,
                            bl_error_t *err) {
  bl_tensor_group_t *self = self_of(group);
  const uint32_t number = publish(self, window, here(group));
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    if (member != group->rank && !is_on_machine(self, member)) {
      status = post_pieces(self, window, member, number, block_bytes, blocks, err);
    }
  }
  for (uint32_t member = 0; member < group->ranks && status == BL_OK; member++) {
    if (member != group->rank) {
      status = await_pieces(self, window, member, number, block_bytes, blocks, err);
    }
  }
  return status;
}

static const bl_group_transport_t between_ranks = {.acquire = acquire, .gather = gather, .exchange = exchange};

// ---- creation and attempts

bl_status_t bl_tensor_group_create(bl_engine_t *engine, bl_tensor_group_t **group, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_layer_parts_t layer_parts = training->layout.layer_parts;
  bool head = false;
  bl_tensor_group_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
  }
  for (uint32_t v = 0; v < training->schedule->virtual_stages; v++) {
    head = head || (training->schedule->stage_of[v] == engine->coords.stage && training->partition.spans[v].head);
  }
  made->engine = engine;
  made->exchange_buffers = bl_exchange_buffers_plan(&training->model, training->layout, head);
  made->group = (bl_group_t){
      .parts = bl_layer_parts_count(layer_parts), .ranks = bl_layer_parts_ranks(layer_parts), .rank = layer_parts.rank};
  *group = made;
  return engine->device->host_memory ? BL_OK : bl_device_group_create(made, &made->device, err);
}

void bl_tensor_group_destroy(bl_tensor_group_t *group) {
  if (group != NULL) {
    bl_device_group_destroy(group->device);
  }
  free(group);
}

void bl_tensor_group_place(bl_tensor_group_t *group) {
  if (group == NULL) {
    return;
  }
  uint8_t *base = group->engine->exchange_buffers.base;
  for (int i = 0; i < BL_GROUP_WINDOWS; i++) {
    group->group.windows[i] = base + group->exchange_buffers.offset_bytes[i];
  }
  if (group->device == NULL) {
    bl_group_progress_init(&group->progress, (bl_group_page_t *)(void *)base, group->group.rank, group->group.ranks);
  }
}

// Maps the exchange buffers of peers on this machine. Exchanges with other peers use the transport.
static bl_status_t find_peers(bl_tensor_group_t *self, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < self->group.ranks && status == BL_OK; member++) {
    uint64_t bytes;
    self->peers[member] = NULL;
    if (member == self->group.rank) {
      continue;
    }
    status = bl_transport_peer_arena(self->engine->transport, rank_of(self, member), BL_EXCHANGE_BUFFERS_ARENA,
                                     &self->peers[member], &bytes, err);
    if (status == BL_PRECONDITION) {
      self->peers[member] = NULL;
      status = BL_OK;
    }
    bl_group_progress_set_peer(&self->progress, member, (const bl_group_page_t *)(const void *)self->peers[member]);
  }
  return status;
}

bl_status_t bl_tensor_group_begin(bl_tensor_group_t *group, uint64_t attempt, const atomic_bool *cancelled,
                                  bl_stall_t *stall, const bl_tensor_rest_t *rest, bl_error_t *err) {
  if (group == NULL) {
    return BL_OK;
  }
  memset(group->used, 0, sizeof group->used);
  group->cancelled = cancelled;
  group->stall = stall;
  group->rest = *rest;
  group->resting = false;
  group->count = group->taken = 0;
  bl_group_clear(&group->group);
  group->group.transport = group->device != NULL ? &bl_device_group_transport : &between_ranks;
  if (group->device != NULL) {
    return bl_device_group_begin(group->device, err);
  }
  bl_group_progress_begin(&group->progress, attempt);
  return find_peers(group, err);
}

bl_status_t bl_tensor_group_wait_read(bl_tensor_group_t *group, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (group == NULL || group->device != NULL) { // the order of the stream is enough
    return BL_OK;
  }
  for (uint32_t window = 0; window < BL_GROUP_WINDOWS && status == BL_OK; window++) {
    status = acquire(&group->group, window, err);
  }
  for (uint32_t member = 0; member < group->group.ranks && status == BL_OK; member++) {
    if (is_on_machine(group, member)) {
      status = wait_on_progress(group, bl_group_progress_wait_taken, member, group->count, err);
    }
  }
  return status;
}

bl_status_t bl_tensor_group_finish(bl_tensor_group_t *group, bl_error_t *err) {
  return group == NULL || group->device == NULL ? BL_OK : bl_device_group_check(group->device, err);
}

void bl_tensor_group_interrupt(bl_tensor_group_t *group) {
  if (group != NULL && group->device != NULL) {
    bl_device_group_interrupt(group->device);
  }
}

bool bl_tensor_group_wait(const bl_tensor_group_t *group, bl_transport_wait_t *wait) {
  const uint64_t awaited = group == NULL ? 0 : atomic_load_explicit(&group->awaited, memory_order_relaxed);
  if (awaited == 0) {
    return false;
  }
  const int32_t peer = rank_of(group, (uint32_t)awaited - 1);
  char name[BL_GRID_NAME_BYTES];
  *wait = (bl_transport_wait_t){.peer = peer, .micro_batch = -1};
  snprintf(wait->what, sizeof wait->what, "collective %u with %s", (uint32_t)(awaited >> 32),
           bl_grid_name(&group->engine->training.grid, (uint32_t)peer, name));
  return true;
}

bl_status_t bl_tensor_group_status(const bl_tensor_group_t *group, bl_error_t *err) {
  return group == NULL ? BL_OK : bl_group_status(&group->group, err);
}

// SPDX-License-Identifier: Apache-2.0
// The control calls as messages of ballast.v1.Store.
#include "client/client_core.h"

#include "ballast/v1/store.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// Submessages of most messages, valid while one is packed.
typedef struct header_wire {
  Ballast__V1__SessionRef session;
  Ballast__V1__RequestHeader header;
} header_wire_t;

static ProtobufCBinaryData bytes_of(const uint8_t id[BL__ID_BYTES]) {
  return (ProtobufCBinaryData){.data = (uint8_t *)id, .len = BL__ID_BYTES};
}

static void fill_header(const bl__control_call_t *call, header_wire_t *wire) {
  const bl_client_t *client = call->client;
  wire->session = (Ballast__V1__SessionRef)BALLAST__V1__SESSION_REF__INIT;
  wire->session.session = client->session;
  wire->session.key = bytes_of(client->key);
  wire->header = (Ballast__V1__RequestHeader)BALLAST__V1__REQUEST_HEADER__INIT;
  wire->header.session = &wire->session;
  wire->header.sequence = call->sequence;
  pthread_mutex_lock(&call->client->mutex);
  wire->header.acknowledged = client->requests.sequences.acknowledged;
  pthread_mutex_unlock(&call->client->mutex);
}

// ---- answers --------------------------------------------------------------------------------------------------------

static bool copy_id(ProtobufCBinaryData bytes, uint8_t id[BL__ID_BYTES]) {
  if (bytes.len == BL__ID_BYTES) {
    memcpy(id, bytes.data, BL__ID_BYTES);
  }
  return bytes.len == BL__ID_BYTES;
}

static void read_opened(bl__control_call_t *call, const Ballast__V1__OpenSessionResponse *output) {
  bl_client_t *client = call->client;
  if (output->data_version != BL_FRAME_VERSION) {
    (void)bl_error_set(&call->err, BL_PRECONDITION,
                       "the store at %s speaks version %" PRIu32
                       " of the data path, this program version %d: use programs "
                       "of one release",
                       client->store, output->data_version, BL_FRAME_VERSION);
  }
  client->session = output->session;
  client->ttl_ms = output->ttl_ms;
  client->grace_ms = output->grace_ms;
  client->arena_bytes = output->arena_bytes;
  client->flow_bytes = output->flow_bytes;
  snprintf(client->data_address, sizeof client->data_address, "%s", output->data_address);
  snprintf(client->data_tcp_address, sizeof client->data_tcp_address, "%s", output->data_tcp_address);
  snprintf(client->machine, sizeof client->machine, "%s", output->machine);
  client->store_memory = (bl_block_memory_t){0};
  if (output->memory != NULL) {
    bl_block_memory_t *store = &client->store_memory;
    snprintf(store->gpu, sizeof store->gpu, "%s", output->memory->gpu);
    snprintf(store->closed, sizeof store->closed, "%s", output->memory->closed);
    store->legacy_ipc = output->memory->legacy_ipc;
    store->nccl = output->memory->nccl_version;
    store->shared_gpu = output->memory->shared_gpu;
  }
  if (!copy_id(output->key, client->key) || !copy_id(output->incarnation, client->incarnation)) {
    (void)bl_error_set(&call->err, BL_INTERNAL, "%s answers with ids of a wrong size", client->store);
  }
}

static void read_slots(bl__control_call_t *call, Ballast__V1__Slot **slots, size_t count) {
  bl_client_t *client = call->client;
  bool whole = true;
  pthread_mutex_lock(&client->mutex);
  bl__slots_begin(&client->requests.slots);
  for (size_t i = 0; i < count; i++) {
    whole =
        bl__slots_add(&client->requests.slots, slots[i]->id, slots[i]->generation, slots[i]->bytes, slots[i]->empty) &&
        whole;
  }
  bl__slots_end(&client->requests.slots);
  pthread_mutex_unlock(&client->mutex);
  if (!whole) {
    (void)bl_error_set(&call->err, BL_EXHAUSTED, "more slots than a client can keep: %zu", count);
  }
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  bl__control_call_t *call = context;
  call->err = *err;
  if (err->status == BL_OK) {
    switch (call->kind) {
    case BL__CALL_OPEN:
      read_opened(call, (const Ballast__V1__OpenSessionResponse *)output);
      break;
    case BL__CALL_KEEP_ALIVE:
      pthread_mutex_lock(&call->client->mutex);
      call->client->draining = ((const Ballast__V1__KeepAliveResponse *)output)->draining;
      pthread_mutex_unlock(&call->client->mutex);
      break;
    case BL__CALL_CLOSE:
      break;
    case BL__CALL_RESERVE: {
      const Ballast__V1__ReserveResponse *reserved = (const Ballast__V1__ReserveResponse *)output;
      read_slots(call, reserved->slots, reserved->n_slots);
      break;
    }
    case BL__CALL_UNRESERVE: {
      const Ballast__V1__UnreserveResponse *left = (const Ballast__V1__UnreserveResponse *)output;
      read_slots(call, left->slots, left->n_slots);
      break;
    }
    }
  }
  bl__control_call_end(call);
}

// ---- control calls --------------------------------------------------------------------------------------------------

static bl_status_t send_call(bl__control_call_t *call, const char *method, const ProtobufCMessage *input,
                             uint64_t deadline_ms, bl_error_t *err) {
  return bl_rpc_channel_call(call->client->channel, &ballast__v1__store__descriptor, method, input, deadline_ms,
                             answered, call, err);
}

static bl_status_t send_open(bl__control_call_t *call, uint64_t deadline_ms, bl_error_t *err) {
  const bl_client_t *client = call->client;
  Ballast__V1__OpenSessionRequest input = BALLAST__V1__OPEN_SESSION_REQUEST__INIT;
  input.job = (char *)client->job;
  input.plan = client->plan;
  input.process = bl__process();
  input.stage = client->stage;
  input.holder = bytes_of(client->holder);
  input.arena_bytes = client->arena_bytes;
  input.ttl_ms = client->asked_ttl_ms;
  Ballast__V1__BlockMemory memory = BALLAST__V1__BLOCK_MEMORY__INIT;
  memory.gpu = (char *)client->block_memory.gpu;
  memory.closed = (char *)client->block_memory.closed;
  memory.legacy_ipc = client->block_memory.legacy_ipc;
  memory.nccl_version = client->block_memory.nccl;
  memory.shared_gpu = client->block_memory.shared_gpu;
  input.memory = &memory;
  input.machine = (char *)client->own_machine;
  input.unit_bytes = client->unit_bytes;
  input.data_version = BL_FRAME_VERSION;
  input.data_path = (char *)bl_path_name((bl_path_t)client->wanted_path);
  return send_call(call, "OpenSession", &input.base, deadline_ms, err);
}

static bl_status_t send_reserve(bl__control_call_t *call, header_wire_t *wire, uint64_t deadline_ms, bl_error_t *err) {
  Ballast__V1__SlotDemand demands[BL__DEMANDS_MAX], *pointers[BL__DEMANDS_MAX]; // bl__demands_check
  for (size_t i = 0; i < call->demand_count; i++) {
    demands[i] = (Ballast__V1__SlotDemand)BALLAST__V1__SLOT_DEMAND__INIT;
    demands[i].bytes = call->demands[i].bytes;
    demands[i].count = call->demands[i].count;
    pointers[i] = &demands[i];
  }
  Ballast__V1__ReserveRequest input = BALLAST__V1__RESERVE_REQUEST__INIT;
  input.header = &wire->header;
  input.plan = call->plan;
  input.demands = pointers;
  input.n_demands = call->demand_count;
  return send_call(call, "Reserve", &input.base, deadline_ms, err);
}

bl_status_t bl__send(bl__control_call_t *call, uint64_t deadline_ms, bl_error_t *err) {
  header_wire_t wire;
  fill_header(call, &wire);
  switch (call->kind) {
  case BL__CALL_OPEN:
    return send_open(call, deadline_ms, err);
  case BL__CALL_RESERVE:
    return send_reserve(call, &wire, deadline_ms, err);
  case BL__CALL_CLOSE: {
    Ballast__V1__CloseSessionRequest input = BALLAST__V1__CLOSE_SESSION_REQUEST__INIT;
    input.session = &wire.session;
    return send_call(call, "CloseSession", &input.base, deadline_ms, err);
  }
  case BL__CALL_KEEP_ALIVE: {
    Ballast__V1__KeepAliveRequest input = BALLAST__V1__KEEP_ALIVE_REQUEST__INIT;
    input.session = &wire.session;
    return send_call(call, "KeepAlive", &input.base, deadline_ms, err);
  }
  default: {
    Ballast__V1__UnreserveRequest input = BALLAST__V1__UNRESERVE_REQUEST__INIT;
    input.header = &wire.header;
    input.plan = call->plan;
    return send_call(call, "Unreserve", &input.base, deadline_ms, err);
  }
  }
}

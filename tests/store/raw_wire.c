// SPDX-License-Identifier: Apache-2.0
#include "store/raw_wire.h"

#include "datapath/frame.h"

#include "ballast/v1/store.pb-c.h"

#include <stdio.h>
#include <string.h>

#define DEADLINE_MS 20000

static ProtobufCBinaryData whole(const uint8_t id[RAW_ID]) {
  return (ProtobufCBinaryData){.data = (uint8_t *)id, .len = RAW_ID};
}

static void add_item(raw_output_t *output, const raw_item_t *item) {
  if (output->count < RAW_ITEMS) {
    output->items[output->count] = *item;
  }
  output->count++;
}

static void add_count(raw_output_t *output, const Ballast__V1__StoreCount *count) {
  raw_item_t item = {.bytes = count->count};
  snprintf(item.name, sizeof item.name, "%s", count->name);
  add_item(output, &item);
}

static void add_slot(raw_output_t *output, const Ballast__V1__Slot *slot) {
  add_item(output, &(raw_item_t){.id = slot->id, .generation = slot->generation, .bytes = slot->bytes});
}

static void read_list(raw_output_t *output, const Ballast__V1__ListLeasesResponse *answer) {
  for (size_t i = 0; i < answer->n_leases; i++) {
    const Ballast__V1__Lease *lease = answer->leases[i];
    raw_item_t item = {.id = lease->id, .generation = lease->generation, .bytes = lease->slot_bytes};
    snprintf(item.name, sizeof item.name, "%s", lease->state);
    add_item(output, &item);
  }
  output->next = answer->next;
  output->revision = answer->revision;
}

static void read_status(raw_output_t *output, const Ballast__V1__StoreStatusResponse *answer) {
  output->held_bytes = answer->held_bytes;
  output->arena_bytes = answer->arena_bytes;
  output->revision = answer->revision;
  for (size_t i = 0; i < answer->n_refusals; i++) {
    add_count(output, answer->refusals[i]);
  }
  for (size_t i = 0; i < answer->n_counters; i++) {
    add_count(output, answer->counters[i]);
  }
}

static void read_answer(raw_call_kind_t kind, raw_output_t *output, const ProtobufCMessage *message) {
  switch (kind) {
  case RAW_OPEN: {
    const Ballast__V1__OpenSessionResponse *answer = (const Ballast__V1__OpenSessionResponse *)message;
    output->session = answer->session;
    memcpy(output->key, answer->key.data, RAW_ID);
    snprintf(output->data_tcp_address, sizeof output->data_tcp_address, "%s", answer->data_tcp_address);
    memcpy(output->incarnation, answer->incarnation.data, RAW_ID);
    break;
  }
  case RAW_RESERVE:
  case RAW_UNRESERVE: { // the same fields
    const Ballast__V1__ReserveResponse *answer = (const Ballast__V1__ReserveResponse *)message;
    for (size_t i = 0; i < answer->n_slots; i++) {
      add_slot(output, answer->slots[i]);
    }
    break;
  }
  case RAW_EVICT:
  case RAW_LOAD:
  case RAW_RELEASE: {
    const Ballast__V1__LeaseAnswer *answer = (const Ballast__V1__LeaseAnswer *)message;
    output->id = answer->id;
    output->generation = answer->generation;
    output->bytes = answer->bytes;
    break;
  }
  case RAW_LIST:
    read_list(output, (const Ballast__V1__ListLeasesResponse *)message);
    break;
  case RAW_GET: {
    const Ballast__V1__Lease *lease = (const Ballast__V1__Lease *)message;
    raw_item_t item = {.id = lease->id, .generation = lease->generation, .bytes = lease->slot_bytes};
    snprintf(item.name, sizeof item.name, "%s", lease->state);
    add_item(output, &item);
    break;
  }
  case RAW_DRAIN:
    output->drained = ((const Ballast__V1__StoreDrainResponse *)message)->drained;
    break;
  case RAW_STATUS:
    read_status(output, (const Ballast__V1__StoreStatusResponse *)message);
    break;
  case RAW_KEEP_ALIVE:
  case RAW_CLOSE:
  case RAW_REVOKE:
  case RAW_QUOTA:
    break;
  }
}

static void done(const ProtobufCMessage *message, const bl_error_t *err, void *context) {
  raw_store_t *store = context;
  store->err = *err;
  if (message != NULL && store->output != NULL) {
    read_answer(store->kind, store->output, message);
  }
  store->over = true;
  bl_loop_stop(store->loop);
}

// The parts that several messages share.
typedef struct parts {
  Ballast__V1__SessionRef session;
  Ballast__V1__RequestHeader header;
  Ballast__V1__LeaseToken token;
  Ballast__V1__SlotDemand demand, *demands[1];
} parts_t;

static void fill_parts(parts_t *parts, const raw_input_t *input) {
  parts->session = (Ballast__V1__SessionRef)BALLAST__V1__SESSION_REF__INIT;
  parts->session.session = input->session;
  parts->session.key = whole(input->key);
  parts->session.key.len = input->key_length != 0 ? input->key_length : RAW_ID;
  parts->header = (Ballast__V1__RequestHeader)BALLAST__V1__REQUEST_HEADER__INIT;
  parts->header.session = &parts->session;
  parts->header.sequence = input->sequence;
  parts->header.acknowledged = input->acknowledged;
  parts->token = (Ballast__V1__LeaseToken)BALLAST__V1__LEASE_TOKEN__INIT;
  parts->token.incarnation = whole(input->incarnation);
  parts->token.id = input->id;
  parts->token.generation = input->generation;
  parts->demand = (Ballast__V1__SlotDemand)BALLAST__V1__SLOT_DEMAND__INIT;
  parts->demand.bytes = input->bytes;
  parts->demand.count = input->count;
  parts->demands[0] = &parts->demand;
}

static bl_status_t send(raw_store_t *store, const char *method, const ProtobufCMessage *message) {
  return bl_rpc_channel_call(store->channel, &ballast__v1__store__descriptor, method, message, DEADLINE_MS, done, store,
                             &store->err);
}

static bl_status_t send_admin(raw_store_t *store, raw_call_kind_t kind, const raw_input_t *input) {
  switch (kind) {
  case RAW_LIST: {
    Ballast__V1__ListLeasesRequest message = BALLAST__V1__LIST_LEASES_REQUEST__INIT;
    message.job = input->job != NULL ? (char *)input->job : message.job;
    message.state = input->state != NULL ? (char *)input->state : message.state;
    message.after = input->after;
    message.limit = input->limit;
    return send(store, "ListLeases", &message.base);
  }
  case RAW_GET: {
    Ballast__V1__GetLeaseRequest message = BALLAST__V1__GET_LEASE_REQUEST__INIT;
    message.id = input->id;
    return send(store, "GetLease", &message.base);
  }
  case RAW_REVOKE: {
    Ballast__V1__RevokeRequest message = BALLAST__V1__REVOKE_REQUEST__INIT;
    message.id = input->id;
    message.generation = input->generation;
    message.session = input->session;
    return send(store, "Revoke", &message.base);
  }
  case RAW_DRAIN: {
    Ballast__V1__StoreDrainRequest message = BALLAST__V1__STORE_DRAIN_REQUEST__INIT;
    message.undrain = input->undrain;
    return send(store, "Drain", &message.base);
  }
  case RAW_QUOTA: {
    Ballast__V1__SetQuotaRequest message = BALLAST__V1__SET_QUOTA_REQUEST__INIT;
    message.job = (char *)input->job;
    message.of_stage = input->of_stage;
    message.stage = input->stage;
    message.bytes = input->bytes;
    return send(store, "SetQuota", &message.base);
  }
  default: {
    Ballast__V1__StoreStatusRequest message = BALLAST__V1__STORE_STATUS_REQUEST__INIT;
    return send(store, "Status", &message.base);
  }
  }
}

static bl_status_t send_request(raw_store_t *store, raw_call_kind_t kind, const raw_input_t *input) {
  parts_t parts;
  fill_parts(&parts, input);
  Ballast__V1__RequestHeader *header = input->no_header ? NULL : &parts.header;
  switch (kind) {
  case RAW_OPEN: {
    Ballast__V1__OpenSessionRequest message = BALLAST__V1__OPEN_SESSION_REQUEST__INIT;
    message.job = (char *)input->job;
    message.stage = input->stage;
    message.holder = whole(input->id_bytes);
    message.arena_bytes = input->arena_bytes;
    message.data_path = input->data_path != NULL ? (char *)input->data_path : message.data_path;
    message.data_version = input->other_version ? BL_FRAME_VERSION - 1 : BL_FRAME_VERSION;
    return send(store, "OpenSession", &message.base);
  }
  case RAW_KEEP_ALIVE: {
    Ballast__V1__KeepAliveRequest message = BALLAST__V1__KEEP_ALIVE_REQUEST__INIT;
    message.session = &parts.session;
    return send(store, "KeepAlive", &message.base);
  }
  case RAW_CLOSE: {
    Ballast__V1__CloseSessionRequest message = BALLAST__V1__CLOSE_SESSION_REQUEST__INIT;
    message.session = &parts.session;
    return send(store, "CloseSession", &message.base);
  }
  case RAW_RESERVE: {
    Ballast__V1__ReserveRequest message = BALLAST__V1__RESERVE_REQUEST__INIT;
    message.header = header;
    message.plan = input->plan;
    message.demands = parts.demands;
    message.n_demands = 1;
    return send(store, "Reserve", &message.base);
  }
  case RAW_UNRESERVE: {
    Ballast__V1__UnreserveRequest message = BALLAST__V1__UNRESERVE_REQUEST__INIT;
    message.header = header;
    message.plan = input->plan;
    return send(store, "Unreserve", &message.base);
  }
  case RAW_EVICT: {
    Ballast__V1__EvictRequest message = BALLAST__V1__EVICT_REQUEST__INIT;
    message.header = header;
    message.token = &parts.token;
    message.bytes = input->bytes;
    message.checksum = input->checksum;
    return send(store, "Evict", &message.base);
  }
  case RAW_LOAD: {
    Ballast__V1__LoadRequest message = BALLAST__V1__LOAD_REQUEST__INIT;
    message.header = header;
    message.token = &parts.token;
    return send(store, "Load", &message.base);
  }
  default: {
    Ballast__V1__ReleaseLeaseRequest message = BALLAST__V1__RELEASE_LEASE_REQUEST__INIT;
    message.header = header;
    message.token = &parts.token;
    message.loaded = input->loaded;
    message.checksum = input->checksum;
    return send(store, "ReleaseLease", &message.base);
  }
  }
}

bl_status_t raw_call(raw_store_t *store, raw_call_kind_t kind, const raw_input_t *input, raw_output_t *output) {
  store->kind = kind;
  store->output = output;
  store->over = false;
  if (output != NULL) {
    *output = (raw_output_t){0};
  }
  bl_status_t status = kind >= RAW_LIST ? send_admin(store, kind, input) : send_request(store, kind, input);
  while (status == BL_OK && !store->over) {
    bl_loop_run(store->loop);
  }
  return status == BL_OK ? store->err.status : status;
}

// ---- watch ----------------------------------------------------------------------------------------------------------

static void on_events(const ProtobufCMessage *message, void *context) {
  raw_store_t *store = context;
  raw_output_t *output = store->output;
  const Ballast__V1__WatchLeasesResponse *answer = (const Ballast__V1__WatchLeasesResponse *)message;
  output->compacted = answer->compacted;
  for (size_t i = 0; i < answer->n_events; i++) {
    const Ballast__V1__LeaseEvent *event = answer->events[i];
    raw_item_t item = {.id = event->id, .generation = event->generation, .revision = event->revision};
    snprintf(item.name, sizeof item.name, "%s", event->kind);
    snprintf(item.from, sizeof item.from, "%s", event->from);
    snprintf(item.to, sizeof item.to, "%s", event->to);
    add_item(output, &item);
  }
  if (output->count >= store->watched) {
    bl__rpc_request_cancel(store->watch);
  }
}

bl_status_t raw_watch(raw_store_t *store, uint64_t from_revision, size_t events, raw_output_t *output) {
  Ballast__V1__WatchLeasesRequest message = BALLAST__V1__WATCH_LEASES_REQUEST__INIT;
  message.from_revision = from_revision;
  *output = (raw_output_t){0};
  store->watched = events;
  store->output = output;
  store->over = false;
  bl_status_t status =
      bl__rpc_request_start(store->channel, &ballast__v1__store__descriptor, "WatchLeases", &message.base, DEADLINE_MS,
                            on_events, done, store, &store->watch, &store->err);
  while (status == BL_OK && !store->over) {
    bl_loop_run(store->loop);
  }
  return status == BL_OK ? store->err.status : status;
}

uint64_t raw_count(const raw_output_t *status, const char *name) {
  for (size_t i = 0; i < status->count && i < RAW_ITEMS; i++) {
    if (strcmp(status->items[i].name, name) == 0) {
      return status->items[i].bytes;
    }
  }
  return UINT64_MAX;
}

// SPDX-License-Identifier: Apache-2.0
#include "service_wire.h"

#include "admin_wire.h"
#include "announce_wire.h"
#include "base/minmax.h"
#include "meter.h"
#include "pending_calls.h"
#include "sys/clock.h"

#include "ballast/v1/store.pb-c.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEMANDS_MAX 64 // per reservation; the table takes BL_LEASE_SIZES different sizes

struct bl_service {
  bl_store_t *store;
  bl_admin_t admin;
  bl_pending_calls_t pending;
  bl_registry_t *registry;         // NULL: no metrics
  bl_policy_proxy_t *policy_proxy; // NULL: drivers are not recorded
};

// ---- from the wire --------------------------------------------------------------------------------------------------

static bool read_id128(ProtobufCBinaryData bytes, bl_id128_t *id) {
  if (bytes.len != BL_ID128_BYTES) {
    return false;
  }
  memcpy(id->bytes, bytes.data, BL_ID128_BYTES);
  return true;
}

static void fail_invalid(bl_rpc_call_t *call, const char *what) {
  bl_error_t err;
  (void)bl_error_set(&err, BL_INVALID, "the request has no whole %s", what);
  bl_rpc_call_fail(call, &err);
}

static bool read_session(bl_rpc_call_t *call, const Ballast__V1__SessionRef *ref, uint64_t *session, bl_id128_t *key) {
  if (ref == NULL || !read_id128(ref->key, key)) {
    fail_invalid(call, "session (number and key of 16 bytes)");
    return false;
  }
  *session = ref->session;
  return true;
}

static bool read_header(bl_rpc_call_t *call, const Ballast__V1__RequestHeader *header, bl_lease_request_t *request) {
  if (header == NULL) {
    fail_invalid(call, "header");
    return false;
  }
  request->sequence = header->sequence;
  request->acknowledged = header->acknowledged;
  request->now_ns = bl_store_now_ns();
  return read_session(call, header->session, &request->session, &request->key);
}

static bool read_token(bl_rpc_call_t *call, const Ballast__V1__LeaseToken *wire, bl_lease_token_t *token) {
  if (wire == NULL || !read_id128(wire->incarnation, &token->incarnation)) {
    fail_invalid(call, "token (incarnation of 16 bytes, id, generation)");
    return false;
  }
  token->id = wire->id;
  token->generation = wire->generation;
  return true;
}

// ---- to the wire ----------------------------------------------------------------------------------------------------

static void fail_refused(bl_rpc_call_t *call, const bl_lease_answer_t *answer, const char *what) {
  bl_error_t err;
  (void)bl_lease_answer_to_error(answer, what, &err);
  bl_rpc_call_fail(call, &err);
}

static void reply_lease(bl_rpc_call_t *call, const bl_lease_answer_t *answer, const char *what) {
  if (answer->reason != BL_LEASE_GRANTED) {
    fail_refused(call, answer, what);
    return;
  }
  Ballast__V1__LeaseAnswer output = BALLAST__V1__LEASE_ANSWER__INIT;
  output.id = answer->id;
  output.generation = answer->generation;
  output.offset_bytes = answer->offset_bytes;
  output.bytes = answer->bytes;
  output.checksum = answer->checksum;
  bl_rpc_call_reply(call, &output.base);
}

// Replies, or keeps the call until the table answers.
static void decide(bl_service_t *self, bl_rpc_call_t *call, const bl_lease_request_t *request,
                   bl_lease_decision_t decision, const bl_lease_answer_t *answer, bl_meter_call_t kind) {
  if (decision == BL_LEASE_DONE) {
    reply_lease(call, answer, bl_meter_call_name(kind));
    bl_meter_answered(self->registry, kind, request->now_ns);
  } else {
    bl_pending_add(&self->pending, &(bl_pending_call_t){.call = call,
                                                        .session = request->session,
                                                        .sequence = request->sequence,
                                                        .kind = kind,
                                                        .began_ns = request->now_ns});
  }
  bl_store_carry_out(self->store);
}

typedef struct slots_wire {
  Ballast__V1__Slot *messages;
  Ballast__V1__Slot **pointers;
  size_t count;
} slots_wire_t;

static void free_slots(slots_wire_t *wire) {
  free(wire->messages);
  free(wire->pointers);
}

// Converts the slots of a session that have memory. False: an allocation failed.
static bool slots_to_wire(const bl_lease_table_t *table, uint64_t session, slots_wire_t *wire) {
  *wire = (slots_wire_t){0};
  uint64_t cursor = 0;
  size_t capacity = 0;
  bl_lease_view_t view;
  while (bl_lease_table_slots(table, session, &cursor, &view)) {
    capacity++;
  }
  wire->messages = calloc(capacity + 1, sizeof *wire->messages);
  wire->pointers = calloc(capacity + 1, sizeof(void *));
  if (wire->messages == NULL || wire->pointers == NULL) {
    free_slots(wire);
    return false;
  }
  cursor = 0;
  while (bl_lease_table_slots(table, session, &cursor, &view)) {
    if (view.slot_bytes != 0) {
      Ballast__V1__Slot *message = &wire->messages[wire->count];
      *message = (Ballast__V1__Slot)BALLAST__V1__SLOT__INIT;
      message->id = view.id;
      message->generation = view.generation;
      message->offset_bytes = view.offset_bytes;
      message->bytes = view.slot_bytes;
      message->empty = view.state == BL_LEASE_RESERVED;
      wire->pointers[wire->count++] = message;
    }
  }
  return true;
}

// ---- sessions -------------------------------------------------------------------------------------------------------

static void read_block_memory(const Ballast__V1__BlockMemory *message, bl_block_memory_t *block_memory) {
  *block_memory = (bl_block_memory_t){0};
  if (message != NULL) {
    snprintf(block_memory->gpu, sizeof block_memory->gpu, "%s", message->gpu);
    snprintf(block_memory->closed, sizeof block_memory->closed, "%s", message->closed);
    block_memory->legacy_ipc = message->legacy_ipc;
    block_memory->nccl = message->nccl_version;
    block_memory->shared_gpu = message->shared_gpu;
  }
}

static void reply_opened(bl_service_t *self, bl_rpc_call_t *call, const bl_lease_opened_t *opened) {
  const bl_block_memory_t *block_memory = bl_store_block_memory(self->store);
  Ballast__V1__BlockMemory memory = BALLAST__V1__BLOCK_MEMORY__INIT;
  memory.gpu = (char *)block_memory->gpu;
  memory.closed = (char *)block_memory->closed;
  memory.legacy_ipc = block_memory->legacy_ipc;
  memory.nccl_version = block_memory->nccl;
  memory.shared_gpu = block_memory->shared_gpu;
  const bl_lease_config_t *config = bl_lease_table_config(bl_store_table(self->store));
  Ballast__V1__OpenSessionResponse output = BALLAST__V1__OPEN_SESSION_RESPONSE__INIT;
  output.session = opened->session;
  output.key = (ProtobufCBinaryData){.data = (uint8_t *)opened->key.bytes, .len = BL_ID128_BYTES};
  output.incarnation = (ProtobufCBinaryData){.data = (uint8_t *)config->incarnation.bytes, .len = BL_ID128_BYTES};
  output.ttl_ms = opened->ttl_ns / BL_NS_PER_MS;
  output.grace_ms = opened->grace_ns / BL_NS_PER_MS;
  output.flow_bytes = opened->flow_bytes;
  output.arena_bytes = opened->arena_bytes;
  output.data_address = (char *)bl_store_data_address(self->store);
  output.machine = (char *)bl_store_machine(self->store);
  output.data_tcp_address = (char *)bl_store_tcp_address(self->store);
  output.memory = &memory;
  output.data_version = BL_FRAME_VERSION;
  bl_rpc_call_reply(call, &output.base);
}

static void fail_other_version(bl_rpc_call_t *call, uint32_t version) {
  bl_error_t err;
  (void)bl_error_set(&err, BL_PRECONDITION,
                     "this store speaks version %d of the data path, your program version %" PRIu32
                     ": use programs of one release",
                     BL_FRAME_VERSION, version);
  bl_rpc_call_fail(call, &err);
}

static void handle_open(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__OpenSessionRequest *request = (const Ballast__V1__OpenSessionRequest *)input;
  bl_lease_open_t open = {.job = request->job,
                          .plan = request->plan,
                          .process = request->process,
                          .stage = request->stage,
                          .arena_bytes = request->arena_bytes,
                          .unit_bytes = request->unit_bytes,
                          .ttl_ns = bl_min_u64(request->ttl_ms, UINT64_MAX / BL_NS_PER_MS) * BL_NS_PER_MS};
  if (!read_id128(request->holder, &open.holder)) {
    fail_invalid(call, "holder (16 bytes)");
    return;
  }
  const bl_identity_t *caller = bl_rpc_call_identity(call);
  if (!bl_identity_is_for_job(caller, request->job)) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_DENIED, "your certificate is for job %s, not for %.100s", caller->job, request->job);
    bl_rpc_call_fail(call, &err);
    return;
  }
  if (request->data_version != BL_FRAME_VERSION) {
    fail_other_version(call, request->data_version);
    return;
  }
  bl_block_memory_t holder;
  bl_path_t asked = BL_PATH_AUTO;
  read_block_memory(request->memory, &holder);
  if (request->data_path[0] != '\0' && !bl_path_parse(request->data_path, &asked)) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_INVALID, "this store knows no data path \"%.32s\"", request->data_path);
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl_lease_opened_t opened;
  bl_lease_answer_t answer;
  bool waits;
  (void)bl_store_open(self->store, &open, &holder, request->machine, asked, &opened, &waits, &answer);
  if (answer.reason != BL_LEASE_GRANTED) {
    fail_refused(call, &answer, "open a session");
  } else if (waits) {
    bl_pending_add(&self->pending, &(bl_pending_call_t){.call = call, .session = opened.session, .job = opened.job});
  } else {
    reply_opened(self, call, &opened);
  }
}

static void on_arena(void *context, uint32_t job, const bl_error_t *err) {
  bl_service_t *self = context;
  bl_rpc_call_t *call;
  uint64_t session;
  while ((call = bl_pending_take_job(&self->pending, job, &session)) != NULL) {
    bl_lease_opened_t opened;
    if (err->status != BL_OK) {
      bl_rpc_call_fail(call, err);
    } else if (bl_lease_table_opened(bl_store_table(self->store), session, &opened)) {
      reply_opened(self, call, &opened);
    } else {
      bl_rpc_call_finish(call, BL_FENCED, "the session ended while the memory of its job was made");
    }
  }
}

static void handle_keep_alive(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__KeepAliveRequest *request = (const Ballast__V1__KeepAliveRequest *)input;
  uint64_t session;
  bl_id128_t key;
  bl_lease_answer_t answer;
  if (!read_session(call, request->session, &session, &key)) {
    return;
  }
  bl_lease_table_t *table = bl_store_table(self->store);
  (void)bl_lease_table_keep_alive(table, session, &key, bl_store_now_ns(), &answer);
  if (answer.reason != BL_LEASE_GRANTED) {
    fail_refused(call, &answer, "renew the session");
  } else {
    Ballast__V1__KeepAliveResponse output = BALLAST__V1__KEEP_ALIVE_RESPONSE__INIT;
    output.draining = bl_lease_table_is_draining(table);
    bl_rpc_call_reply(call, &output.base);
  }
  bl_store_carry_out(self->store);
}

static void handle_close(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__CloseSessionRequest *request = (const Ballast__V1__CloseSessionRequest *)input;
  uint64_t session;
  bl_id128_t key;
  bl_lease_answer_t answer;
  if (!read_session(call, request->session, &session, &key)) {
    return;
  }
  (void)bl_lease_table_close(bl_store_table(self->store), session, &key, bl_store_now_ns(), &answer);
  if (answer.reason != BL_LEASE_GRANTED) {
    fail_refused(call, &answer, "close the session");
  } else {
    Ballast__V1__CloseSessionResponse output = BALLAST__V1__CLOSE_SESSION_RESPONSE__INIT;
    bl_rpc_call_reply(call, &output.base);
  }
  bl_store_carry_out(self->store);
}

// ---- requests -------------------------------------------------------------------------------------------------------

// Converts the slots of a session whose request was granted. False: the call has failed.
static bool slots_or_fail(const bl_service_t *self, bl_rpc_call_t *call, uint64_t session,
                          const bl_lease_answer_t *answer, const char *what, slots_wire_t *slots) {
  if (answer->reason != BL_LEASE_GRANTED) {
    fail_refused(call, answer, what);
    return false;
  }
  if (!slots_to_wire(bl_store_table(self->store), session, slots)) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for the answer: ask again under the same number");
    return false;
  }
  return true;
}

static void handle_reserve(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ReserveRequest *request = (const Ballast__V1__ReserveRequest *)input;
  bl_lease_request_t lease_request;
  if (!read_header(call, request->header, &lease_request)) {
    return;
  }
  if (request->n_demands > DEMANDS_MAX) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_INVALID, "%zu demands in one reservation: at most %d", request->n_demands, DEMANDS_MAX);
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl_lease_demand_t demands[DEMANDS_MAX];
  for (size_t i = 0; i < request->n_demands; i++) {
    demands[i] = (bl_lease_demand_t){.bytes = request->demands[i]->bytes, .count = request->demands[i]->count};
  }
  bl_lease_answer_t answer;
  slots_wire_t slots;
  (void)bl_lease_table_reserve(bl_store_table(self->store), &lease_request, request->plan, demands, request->n_demands,
                               &answer);
  bl_meter_answered(self->registry, BL_METER_RESERVE, lease_request.now_ns);
  if (slots_or_fail(self, call, lease_request.session, &answer, "reserve", &slots)) {
    Ballast__V1__ReserveResponse output = BALLAST__V1__RESERVE_RESPONSE__INIT;
    output.slots = slots.pointers;
    output.n_slots = slots.count;
    bl_rpc_call_reply(call, &output.base);
    free_slots(&slots);
  }
  bl_store_carry_out(self->store);
}

static void handle_unreserve(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__UnreserveRequest *request = (const Ballast__V1__UnreserveRequest *)input;
  bl_lease_request_t lease_request;
  if (!read_header(call, request->header, &lease_request)) {
    return;
  }
  bl_lease_answer_t answer;
  slots_wire_t slots;
  (void)bl_lease_table_unreserve(bl_store_table(self->store), &lease_request, request->plan, &answer);
  if (slots_or_fail(self, call, lease_request.session, &answer, "unreserve", &slots)) {
    Ballast__V1__UnreserveResponse output = BALLAST__V1__UNRESERVE_RESPONSE__INIT;
    output.slots = slots.pointers;
    output.n_slots = slots.count;
    bl_rpc_call_reply(call, &output.base);
    free_slots(&slots);
  }
  bl_store_carry_out(self->store);
}

static void handle_evict(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__EvictRequest *request = (const Ballast__V1__EvictRequest *)input;
  bl_lease_request_t lease_request;
  bl_lease_evict_t evict = {.bytes = request->bytes, .checksum = request->checksum};
  if (!read_header(call, request->header, &lease_request) || !read_token(call, request->token, &evict.token)) {
    return;
  }
  if (request->label != NULL) {
    evict.label = (bl_lease_label_t){
        .step = request->label->step, .chunk = request->label->chunk, .micro_batch = request->label->micro_batch};
  }
  bl_store_region_t region = {.number = request->region, .offset_bytes = request->region_offset};
  bl_lease_decision_t decision;
  bl_lease_answer_t answer;
  bl_error_t err = {0};
  if (bl_store_evict(self->store, &lease_request, &evict, &region, &decision, &answer, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  decide(self, call, &lease_request, decision, &answer, BL_METER_EVICT);
}

static void handle_load(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__LoadRequest *request = (const Ballast__V1__LoadRequest *)input;
  bl_lease_request_t lease_request;
  bl_lease_token_t token;
  if (!read_header(call, request->header, &lease_request) || !read_token(call, request->token, &token)) {
    return;
  }
  bl_lease_answer_t answer;
  bl_lease_decision_t decision = bl_store_load(self->store, &lease_request, &token, &answer);
  decide(self, call, &lease_request, decision, &answer, BL_METER_LOAD);
}

static void handle_release(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ReleaseLeaseRequest *request = (const Ballast__V1__ReleaseLeaseRequest *)input;
  bl_lease_request_t lease_request;
  bl_lease_token_t token;
  if (!read_header(call, request->header, &lease_request) || !read_token(call, request->token, &token)) {
    return;
  }
  bl_lease_answer_t answer;
  bl_lease_decision_t decision = bl_lease_table_release(bl_store_table(self->store), &lease_request, &token,
                                                        request->loaded ? &request->checksum : NULL, &answer);
  decide(self, call, &lease_request, decision, &answer, BL_METER_RELEASE);
}

// ---- later answers of the table -------------------------------------------------------------------------------------

static void on_later_answer(void *context, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer) {
  bl_service_t *self = context;
  bl_pending_call_t pending;
  while (bl_pending_take(&self->pending, session, sequence, &pending)) {
    reply_lease(pending.call, answer, "finish the transfer of");
    bl_meter_answered(self->registry, (bl_meter_call_t)pending.kind, pending.began_ns);
  }
}

static void on_answered(void *context, bl_frame_kind_t kind, uint64_t began_ns) {
  const bl_service_t *self = context;
  bl_meter_answered(self->registry,
                    kind == BL_FRAME_EVICT  ? BL_METER_EVICT
                    : kind == BL_FRAME_LOAD ? BL_METER_LOAD
                                            : BL_METER_RELEASE,
                    began_ns);
}

static void on_session_over(void *context, uint64_t session, bl_session_end_t end) {
  bl_service_t *self = context;
  bl_error_t err;
  (void)bl_error_set(&err, BL_FENCED, "the session is over: %s", bl_session_end_text(end));
  bl_pending_fail(&self->pending, session, &err);
}

static void on_change(void *context) {
  bl_service_t *self = context;
  bl_admin_tell(&self->admin);
}

// ---- operators ------------------------------------------------------------------------------------------------------

#define ADMIN_CALL(method)                                                                                             \
  static void handle_##method(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {                     \
    bl_admin_##method(&((bl_service_t *)context)->admin, call, input);                                                 \
  }
ADMIN_CALL(list)
ADMIN_CALL(get)
ADMIN_CALL(watch)
ADMIN_CALL(revoke)
ADMIN_CALL(drain)
ADMIN_CALL(quota)
ADMIN_CALL(status)

static void handle_announce(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  const bl_service_t *self = context;
  if (self->policy_proxy == NULL) {
    bl_rpc_call_finish(call, BL_UNIMPLEMENTED, "this store relays no policy calls");
    return;
  }
  bl_announce_handle(call, input, self->policy_proxy);
}

static const bl_rpc_method_t methods[] = {
    {"OpenSession", handle_open},  {"KeepAlive", handle_keep_alive}, {"CloseSession", handle_close},
    {"Reserve", handle_reserve},   {"Unreserve", handle_unreserve},  {"Evict", handle_evict},
    {"Load", handle_load},         {"ReleaseLease", handle_release}, {"ListLeases", handle_list},
    {"GetLease", handle_get},      {"WatchLeases", handle_watch},    {"Revoke", handle_revoke},
    {"Drain", handle_drain},       {"SetQuota", handle_quota},       {"Status", handle_status},
    {"Announce", handle_announce},
};

// ---- creation -------------------------------------------------------------------------------------------------------

bl_status_t bl_service_create(bl_loop_t *loop, const bl_store_options_t *options, bl_service_t **out, bl_error_t *err) {
  bl_service_t *self = calloc(1, sizeof *self);
  if (self == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the service");
  }
  bl_store_options_t own = *options;
  own.observer = (bl_store_observer_t){.on_later_answer = on_later_answer,
                                       .on_answered = on_answered,
                                       .on_session_over = on_session_over,
                                       .on_arena = on_arena,
                                       .on_change = on_change,
                                       .context = self};
  bl_status_t status = bl_store_create(loop, &own, &self->store, err);
  if (status != BL_OK) {
    free(self);
    return status;
  }
  self->admin.store = self->store;
  *out = self;
  return BL_OK;
}

bl_status_t bl_service_serve(bl_service_t *self, bl_rpc_server_t *server, bl_error_t *err) {
  return bl_rpc_server_add_service(server, &ballast__v1__store__descriptor, methods, sizeof methods / sizeof methods[0],
                                   self, err);
}

bl_store_t *bl_service_store(bl_service_t *self) {
  return self->store;
}

void bl_service_set_policy_proxy(bl_service_t *self, bl_policy_proxy_t *proxy) {
  self->policy_proxy = proxy;
}

void bl_service_set_on_drain(bl_service_t *self, bl_admin_on_drain_t *on_drain, void *context) {
  self->admin.on_drain = on_drain;
  self->admin.drain_context = context;
}

void bl_service_set_registry(bl_service_t *self, bl_registry_t *registry) {
  self->registry = registry;
}

void bl_service_end_calls(bl_service_t *self) {
  bl_error_t err;
  (void)bl_error_set(&err, BL_UNAVAILABLE, "the store is ending");
  bl_pending_fail(&self->pending, 0, &err);
  bl_admin_end_watches(&self->admin);
}

void bl_service_destroy(bl_service_t *self) {
  if (self == NULL) {
    return;
  }
  bl_store_destroy(self->store);
  free(self);
}

// SPDX-License-Identifier: Apache-2.0
#include "admin_wire.h"

#include "sys/clock.h"

#include "ballast/v1/store.pb-c.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_LEASES   1000
#define EVENT_BATCH   256
#define MAX_SESSIONS  256
#define COUNTER_COUNT 16

// ---- leases ---------------------------------------------------------------------------------------------------------

typedef struct lease_wire {
  Ballast__V1__Lease message;
  Ballast__V1__BlockLabel label;
} lease_wire_t;

static void lease_to_wire(const bl_lease_view_t *view, lease_wire_t *wire) {
  wire->message = (Ballast__V1__Lease)BALLAST__V1__LEASE__INIT;
  wire->label = (Ballast__V1__BlockLabel)BALLAST__V1__BLOCK_LABEL__INIT;
  wire->label.step = view->label.step;
  wire->label.chunk = view->label.chunk;
  wire->label.micro_batch = view->label.micro_batch;
  wire->message.id = view->id;
  wire->message.generation = view->generation;
  wire->message.state = (char *)bl_lease_state_name(view->state);
  wire->message.job = (char *)view->job;
  wire->message.plan = view->plan;
  wire->message.stage = view->stage;
  wire->message.session = view->session;
  wire->message.slot_bytes = view->slot_bytes;
  wire->message.block_bytes = view->block_bytes;
  wire->message.checksum = view->checksum;
  wire->message.label = view->block_bytes != 0 ? &wire->label : NULL;
  wire->message.offset_bytes = view->offset_bytes;
  wire->message.tier = view->tier;
  uint64_t now_ns = bl_store_now_ns();
  wire->message.age_ms = now_ns > view->since_ns ? (now_ns - view->since_ns) / BL_NS_PER_MS : 0;
}

static bool matches(const Ballast__V1__ListLeasesRequest *request, const bl_lease_view_t *view) {
  return (request->job[0] == '\0' || strcmp(request->job, view->job) == 0) &&
         (request->state[0] == '\0' || strcmp(request->state, bl_lease_state_name(view->state)) == 0);
}

void bl_admin_list(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__ListLeasesRequest *request = (const Ballast__V1__ListLeasesRequest *)input;
  const bl_lease_table_t *table = bl_store_table(self->store);
  size_t limit = request->limit == 0 || request->limit > PAGE_LEASES ? PAGE_LEASES : request->limit;
  lease_wire_t *wires = calloc(limit, sizeof *wires);
  Ballast__V1__Lease **pointers = calloc(limit, sizeof(void *));
  if (wires == NULL || pointers == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for a list of leases");
    goto free_wires;
  }
  Ballast__V1__ListLeasesResponse output = BALLAST__V1__LIST_LEASES_RESPONSE__INIT;
  uint64_t cursor = request->after;
  bl_lease_view_t view;
  while (bl_lease_table_list(table, &cursor, &view)) {
    if (!matches(request, &view)) {
      continue;
    }
    if (output.n_leases == limit) {
      output.next = wires[limit - 1].message.id;
      break;
    }
    lease_to_wire(&view, &wires[output.n_leases]);
    pointers[output.n_leases] = &wires[output.n_leases].message;
    output.n_leases++;
  }
  output.leases = pointers;
  output.revision = bl_lease_table_journal(table)->revision;
  bl_rpc_call_reply(call, &output.base);
free_wires:
  free(wires);
  free(pointers);
}

void bl_admin_get(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__GetLeaseRequest *request = (const Ballast__V1__GetLeaseRequest *)input;
  bl_lease_view_t view;
  if (bl_lease_table_get(bl_store_table(self->store), request->id, &view) != BL_OK) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_NOT_FOUND, "lease %" PRIu64 " is not held by any session", request->id);
    bl_rpc_call_fail(call, &err);
    return;
  }
  lease_wire_t wire;
  lease_to_wire(&view, &wire);
  bl_rpc_call_reply(call, &wire.message.base);
}

// ---- watch ----------------------------------------------------------------------------------------------------------

static const char *state_name(const bl_journal_event_t *event, uint8_t state) {
  switch ((bl_journal_kind_t)event->kind) {
  case BL_JOURNAL_LEASE:
    return bl_lease_state_name((bl_lease_state_t)state);
  case BL_JOURNAL_SESSION:
    return bl_session_state_name((bl_session_state_t)state);
  case BL_JOURNAL_STORE:
    break;
  }
  return state != 0 ? "draining" : "serving";
}

static void event_to_wire(const bl_journal_event_t *event, Ballast__V1__LeaseEvent *message) {
  static const char *const kinds[] = {"lease", "session", "store"};
  *message = (Ballast__V1__LeaseEvent)BALLAST__V1__LEASE_EVENT__INIT;
  message->revision = event->revision;
  message->kind = (char *)kinds[event->kind];
  message->id = event->id;
  message->generation = event->generation;
  message->from = (char *)state_name(event, event->from);
  message->to = (char *)state_name(event, event->to);
  message->stage = event->stage;
  message->slot_bytes = event->bytes;
}

static void tell(bl_admin_t *self, bl_watcher_t *watcher);

static void sent(bl_rpc_call_t *call, void *context) {
  bl_admin_t *self = context;
  for (size_t i = 0; i < BL_ADMIN_WATCHERS; i++) {
    if (self->watchers[i].call == call) {
      tell(self, &self->watchers[i]);
      return;
    }
  }
}

static void end_watch(bl_watcher_t *watcher, bl_status_t status, const char *text) {
  bl_rpc_call_t *call = watcher->call;
  watcher->call = NULL;
  bl_rpc_call_finish(call, status, text);
}

// Sends the next events if the call can take them.
static void tell(bl_admin_t *self, bl_watcher_t *watcher) {
  const bl_journal_t *journal = bl_lease_table_journal(bl_store_table(self->store));
  if (!bl_rpc_call_can_send(watcher->call) || watcher->next > journal->revision) {
    return;
  }
  static Ballast__V1__LeaseEvent events[EVENT_BATCH]; // used only by the loop's thread, and packed before send returns
  static Ballast__V1__LeaseEvent *pointers[EVENT_BATCH];
  Ballast__V1__WatchLeasesResponse output = BALLAST__V1__WATCH_LEASES_RESPONSE__INIT;
  if (watcher->next < bl_journal_oldest(journal)) {
    output.compacted = bl_journal_oldest(journal);
    bl_rpc_call_t *call = watcher->call;
    watcher->call = NULL;
    bl_rpc_call_on_cancel(call, NULL, NULL);
    bl_rpc_call_reply(call, &output.base);
    return;
  }
  const bl_journal_event_t *event;
  while (output.n_events < EVENT_BATCH && (event = bl_journal_at(journal, watcher->next)) != NULL) {
    event_to_wire(event, &events[output.n_events]);
    pointers[output.n_events] = &events[output.n_events];
    output.n_events++;
    watcher->next++;
  }
  output.events = pointers;
  bl_status_t status = bl_rpc_call_send(watcher->call, &output.base, sent, self);
  if (status != BL_OK) {
    end_watch(watcher, status, "the events could not be sent");
  }
}

void bl_admin_tell(bl_admin_t *self) {
  for (size_t i = 0; i < BL_ADMIN_WATCHERS; i++) {
    if (self->watchers[i].call != NULL) {
      tell(self, &self->watchers[i]);
    }
  }
}

static void watch_cancelled(bl_rpc_call_t *call, void *context) {
  bl_admin_t *self = context;
  for (size_t i = 0; i < BL_ADMIN_WATCHERS; i++) {
    if (self->watchers[i].call == call) {
      end_watch(&self->watchers[i], BL_CANCELLED, "the caller gave up");
      return;
    }
  }
}

void bl_admin_watch(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__WatchLeasesRequest *request = (const Ballast__V1__WatchLeasesRequest *)input;
  uint64_t revision = bl_lease_table_journal(bl_store_table(self->store))->revision;
  if (request->from_revision > revision + 1) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_INVALID, "revision %" PRIu64 " is not there yet: the last is %" PRIu64,
                       request->from_revision, revision);
    bl_rpc_call_fail(call, &err);
    return;
  }
  for (size_t i = 0; i < BL_ADMIN_WATCHERS; i++) {
    if (self->watchers[i].call == NULL) {
      self->watchers[i].call = call;
      self->watchers[i].next = request->from_revision != 0 ? request->from_revision : revision + 1;
      bl_rpc_call_on_cancel(call, watch_cancelled, self);
      if (self->watchers[i].call == call) {
        tell(self, &self->watchers[i]);
      }
      return;
    }
  }
  bl_rpc_call_finish(call, BL_EXHAUSTED, "too many watchers");
}

void bl_admin_end_watches(bl_admin_t *self) {
  for (size_t i = 0; i < BL_ADMIN_WATCHERS; i++) {
    if (self->watchers[i].call != NULL) {
      bl_rpc_call_on_cancel(self->watchers[i].call, NULL, NULL);
      end_watch(&self->watchers[i], BL_UNAVAILABLE, "the store is ending");
    }
  }
}

// ---- what operators change ------------------------------------------------------------------------------------------

void bl_admin_revoke(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__RevokeRequest *request = (const Ballast__V1__RevokeRequest *)input;
  bl_lease_table_t *table = bl_store_table(self->store);
  bl_error_t err = {0};
  bl_status_t status = request->session != 0
                           ? bl_lease_table_revoke_session(table, request->session, bl_store_now_ns(), &err)
                           : bl_lease_table_revoke(table, request->id, request->generation, bl_store_now_ns(), &err);
  if (status != BL_OK) {
    bl_rpc_call_fail(call, &err);
  } else {
    Ballast__V1__RevokeResponse output = BALLAST__V1__REVOKE_RESPONSE__INIT;
    bl_rpc_call_reply(call, &output.base);
  }
  bl_store_carry_out(self->store);
}

void bl_admin_drain(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__StoreDrainRequest *request = (const Ballast__V1__StoreDrainRequest *)input;
  if (self->on_drain != NULL && !self->on_drain(!request->undrain, self->drain_context)) {
    bl_rpc_call_finish(call, BL_PRECONDITION, "the store is ending: it lends nothing any more");
    return;
  }
  bl_lease_table_drain(bl_store_table(self->store), !request->undrain);
  Ballast__V1__StoreDrainResponse output = BALLAST__V1__STORE_DRAIN_RESPONSE__INIT;
  output.drained = bl_lease_table_is_drained(bl_store_table(self->store));
  bl_rpc_call_reply(call, &output.base);
  bl_store_carry_out(self->store);
}

void bl_admin_quota(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__SetQuotaRequest *request = (const Ballast__V1__SetQuotaRequest *)input;
  bl_error_t err = {0};
  uint64_t bytes = request->unlimited ? BL_LEASE_NO_QUOTA : request->bytes;
  bl_status_t status = bl_lease_table_set_quota(bl_store_table(self->store), request->job,
                                                request->of_stage ? &request->stage : NULL, bytes, &err);
  if (status != BL_OK) {
    bl_rpc_call_fail(call, &err);
  } else {
    Ballast__V1__SetQuotaResponse output = BALLAST__V1__SET_QUOTA_RESPONSE__INIT;
    bl_rpc_call_reply(call, &output.base);
  }
  bl_store_carry_out(self->store);
}

// ---- status ---------------------------------------------------------------------------------------------------------

typedef struct counts_wire {
  Ballast__V1__StoreCount messages[BL_LEASE_REASONS + COUNTER_COUNT];
  Ballast__V1__StoreCount *pointers[BL_LEASE_REASONS + COUNTER_COUNT];
  size_t count;
} counts_wire_t;

static void add_count(counts_wire_t *wire, const char *name, uint64_t count) {
  Ballast__V1__StoreCount *message = &wire->messages[wire->count];
  *message = (Ballast__V1__StoreCount)BALLAST__V1__STORE_COUNT__INIT;
  message->name = (char *)name;
  message->count = count;
  wire->pointers[wire->count++] = message;
}

static void add_counters(const bl_lease_stats_t *stats, counts_wire_t *wire) {
  add_count(wire, "reserved", stats->reserved);
  add_count(wire, "evicted", stats->evicted);
  add_count(wire, "evicted_bytes", stats->evicted_bytes);
  add_count(wire, "loaded", stats->loaded);
  add_count(wire, "loaded_bytes", stats->loaded_bytes);
  add_count(wire, "released", stats->released);
  add_count(wire, "revoked", stats->revoked);
  add_count(wire, "checksum_failures", stats->checksum_failures);
  add_count(wire, "stale_events", stats->stale_events);
  add_count(wire, "repeated", stats->repeated);
  add_count(wire, "suspected", stats->suspected);
  uint64_t fenced = 0;
  for (int i = BL_SESSION_EXPIRED; i < BL_SESSION_ENDS; i++) {
    fenced += stats->ended[i];
  }
  add_count(wire, "sessions_closed", stats->ended[BL_SESSION_CLOSED]);
  add_count(wire, "sessions_expired", stats->ended[BL_SESSION_EXPIRED]);
  add_count(wire, "sessions_replaced", stats->ended[BL_SESSION_REPLACED]);
  add_count(wire, "sessions_fenced", fenced);
}

// The static arrays that the answer points to are used only by the loop's thread, and stay valid until the next answer.
static void fill_tiers(const bl_lease_config_t *config, const bl_lease_stats_t *stats,
                       Ballast__V1__StoreStatusResponse *output) {
  static Ballast__V1__StoreTier tiers[BL_LEASE_TIERS];
  static Ballast__V1__StoreTier *pointers[BL_LEASE_TIERS];
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    tiers[i] = (Ballast__V1__StoreTier)BALLAST__V1__STORE_TIER__INIT;
    tiers[i].name = (char *)bl_lease_tier_name((uint32_t)i);
    tiers[i].capacity_bytes = i == 0 ? config->capacity_bytes : config->spill_bytes;
    tiers[i].arena_bytes = stats->tier_arena_bytes[i];
    tiers[i].held_bytes = stats->tier_held_bytes[i];
    pointers[i] = &tiers[i];
  }
  output->tiers = pointers;
  output->n_tiers = BL_LEASE_TIERS;
}

static void fill_counts(const bl_lease_stats_t *stats, Ballast__V1__StoreStatusResponse *output) {
  static counts_wire_t leases, refusals, counters;
  leases.count = refusals.count = counters.count = 0;
  for (int i = BL_LEASE_RESERVED; i < BL_LEASE_STATES; i++) {
    add_count(&leases, bl_lease_state_name((bl_lease_state_t)i), stats->leases[i]);
  }
  for (int i = 1; i < BL_LEASE_REASONS; i++) {
    add_count(&refusals, bl_lease_reason_name((bl_lease_reason_t)i), stats->refused[i]);
  }
  add_counters(stats, &counters);
  output->leases = leases.pointers;
  output->n_leases = leases.count;
  output->refusals = refusals.pointers;
  output->n_refusals = refusals.count;
  output->counters = counters.pointers;
  output->n_counters = counters.count;
}

static void fill_sessions(const bl_store_t *store, bl_lease_table_t *table, Ballast__V1__StoreStatusResponse *output) {
  static Ballast__V1__StoreSession sessions[MAX_SESSIONS];
  static Ballast__V1__StoreSession *pointers[MAX_SESSIONS];
  uint32_t cursor = 0;
  bl_session_view_t view;
  output->sessions = pointers;
  while (output->n_sessions < MAX_SESSIONS && bl_lease_table_sessions(table, &cursor, &view)) {
    Ballast__V1__StoreSession *session = &sessions[output->n_sessions];
    *session = (Ballast__V1__StoreSession)BALLAST__V1__STORE_SESSION__INIT;
    session->session = view.session;
    session->job = (char *)view.job;
    session->plan = view.plan;
    session->stage = view.stage;
    session->state = (char *)bl_session_state_name(view.state);
    session->slots = view.slots;
    session->held_bytes = view.held_bytes;
    session->in_flight_bytes = view.in_flight_bytes;
    session->path = (char *)bl_store_path_of(store, view.session);
    pointers[output->n_sessions++] = session;
  }
}

void bl_admin_status(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  const Ballast__V1__StoreStatusRequest *request = (const Ballast__V1__StoreStatusRequest *)input;
  bl_lease_table_t *table = bl_store_table(self->store);
  bl_lease_stats_t stats;
  bl_lease_table_advance(table, bl_store_now_ns());
  bl_lease_table_stats(table, &stats);
  const bl_lease_config_t *config = bl_lease_table_config(table);
  Ballast__V1__StoreStatusResponse output = BALLAST__V1__STORE_STATUS_RESPONSE__INIT;
  output.process = getpid();
  output.wall_ns = bl_clock_wall_ns();
  output.machine = (char *)bl_store_machine(self->store);
  output.incarnation = (ProtobufCBinaryData){.data = (uint8_t *)config->incarnation.bytes, .len = BL_ID128_BYTES};
  output.draining = bl_lease_table_is_draining(table);
  output.revision = bl_lease_table_journal(table)->revision;
  output.capacity_bytes = config->capacity_bytes + config->spill_bytes;
  output.arena_bytes_max = bl_lease_table_arena_bytes_max(table, request->job);
  output.device = (char *)bl_store_device(self->store);
  output.arena_bytes = stats.arena_bytes;
  output.held_bytes = stats.held_bytes;
  output.free_bytes = stats.free_bytes;
  output.largest_free_bytes = stats.largest_free_bytes;
  output.quarantined_bytes = stats.quarantined_bytes;
  output.in_flight_bytes = stats.in_flight_bytes;
  fill_tiers(config, &stats, &output);
  fill_counts(&stats, &output);
  fill_sessions(self->store, table, &output);
  bl_rpc_call_reply(call, &output.base);
  bl_store_carry_out(self->store);
}

// SPDX-License-Identifier: Apache-2.0
// Calls of ballast.v1.Store with whatever a test wants to put into them, good or bad; each waits for its answer while
// the loop runs, on which the store under test may live too.
#ifndef TESTS_STORE_RAW_WIRE_H
#define TESTS_STORE_RAW_WIRE_H

#include "rpc/request.h"

#define RAW_ID    16
#define RAW_ITEMS 64

typedef enum raw_call_kind {
  RAW_OPEN,
  RAW_KEEP_ALIVE,
  RAW_CLOSE,
  RAW_RESERVE,
  RAW_UNRESERVE,
  RAW_EVICT,
  RAW_LOAD,
  RAW_RELEASE,
  RAW_LIST,
  RAW_GET,
  RAW_REVOKE,
  RAW_DRAIN,
  RAW_QUOTA,
  RAW_STATUS,
} raw_call_kind_t;

typedef struct raw_input {
  const char *job, *state, *data_path;
  uint32_t stage;
  uint8_t id_bytes[RAW_ID]; // holder
  uint64_t arena_bytes;
  uint64_t session;
  uint8_t key[RAW_ID], incarnation[RAW_ID];
  size_t key_length; // 0: whole
  bool no_header;
  uint64_t sequence, acknowledged;
  uint64_t plan, id, generation, bytes, checksum, after;
  uint32_t count, limit;
  bool loaded, undrain, of_stage, other_version;
} raw_input_t;

typedef struct raw_item { // a slot, lease, event or count
  uint64_t id, generation, bytes, revision;
  char name[32], from[16], to[16];
} raw_item_t;

typedef struct raw_output {
  uint64_t session, id, generation, bytes, next, revision, held_bytes, arena_bytes, compacted;
  uint8_t key[RAW_ID], incarnation[RAW_ID];
  char data_tcp_address[64];
  bool drained;
  size_t count;
  raw_item_t items[RAW_ITEMS]; // the first of them
} raw_output_t;

typedef struct raw_store {
  bl_loop_t *loop;
  bl_rpc_channel_t *channel;
  bool over;
  raw_call_kind_t kind;
  raw_output_t *output;
  size_t watched; // events that a watch waits for
  bl__rpc_request_t *watch;
  bl_error_t err;
} raw_store_t;

// The status of the answer; the text is in store->err.
bl_status_t raw_call(raw_store_t *store, raw_call_kind_t kind, const raw_input_t *input, raw_output_t *output);

// Watches from a revision until `events` have come, or the stream ends.
bl_status_t raw_watch(raw_store_t *store, uint64_t from_revision, size_t events, raw_output_t *output);
// The count of this name in a status.
uint64_t raw_count(const raw_output_t *status, const char *name);

#endif

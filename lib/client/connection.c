// SPDX-License-Identifier: Apache-2.0
// The data connection of a session: choice of the path, greeting, mapping of memory, and reconnecting. All on the loop,
// without waiting: each event continues from the state where the last one stopped.
#include "client/client_core.h"
#include "datapath/greeting.h"
#include "datapath/machine.h"
#include "rpc/rpc.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_MIN_NS (UINT64_C(50) * 1000000) // between attempts to reconnect, growing
#define AGAIN_MAX_NS (UINT64_C(1000) * 1000000)
#define AGAIN_TRY_NS (UINT64_C(300) * 1000000) // for one attempt

// ---- down -----------------------------------------------------------------------------------------------------------

void bl__connection_close(bl_client_t *client) {
  bl_watch_destroy(client->watch);
  client->watch = NULL;
  bl_frame_writer_cleanup(&client->writer);
  bl_stream_close(&client->stream); // so that the store aborts its ends of communicators, too
  bl__nccl_close(client);
  for (size_t i = 0; i < client->part_count; i++) {
    bl_peer_memory_close(&client->parts[i]);
  }
  client->part_count = 0;
  client->link = BL__CONNECTION_DOWN;
  client->coming = client->sending = NULL;
  pthread_mutex_lock(&client->mutex);
  bl__requests_link_down(&client->requests);
  pthread_mutex_unlock(&client->mutex);
}

static void try_path(bl_client_t *client);

// While opening, the next path is tried. Later the store is tried again after a while, unless it reports that this is
// of no use.
static void failed(bl_client_t *client, const bl_error_t *err) {
  const bl_error_t why = *err;
  bl__connection_close(client);
  if (client->phase == BL__PHASE_CONNECTING) {
    client->choice_failure = why;
    if (why.status == BL_FENCED || why.status == BL_DENIED) {
      client->opening_err = why;
    } else {
      client->choices_failed |= 1u << client->choice.path;
      try_path(client);
    }
    return;
  }
  if (client->refused) { // a living store listens
    bl_error_t gone;
    (void)bl_error_set(&gone, BL_UNAVAILABLE, "the store at %s is gone: what it held is lost", client->store);
    bl__lose(client, &gone);
    return;
  }
  if (why.status == BL_FENCED || why.status == BL_NOT_FOUND || why.status == BL_DENIED ||
      why.status == BL_UNAUTHENTICATED) { // another store, or another holder
    bl__lose(client, &why);
    return;
  }
  snprintf(client->link_why, sizeof client->link_why, "%.191s", why.text);
  client->link_at_ns = bl_clock_now_ns() + client->link_wait_ns;
  client->link_wait_ns = client->link_wait_ns * 2 < AGAIN_MAX_NS ? client->link_wait_ns * 2 : AGAIN_MAX_NS;
}

void bl__connection_lost(bl_client_t *client, const char *why) {
  if (client->link != BL__CONNECTION_UP) {
    return;
  }
  char text[sizeof client->link_why];
  snprintf(text, sizeof text, "%s", why); // which may point into what is freed
  memcpy(client->link_why, text, sizeof text);
  bl__connection_close(client);
  if (client->shm) { // the end of a unix connection proves that the store is dead
    bl_error_t err;
    (void)bl_error_set(&err, BL_UNAVAILABLE, "the store at %s is gone (%s): what it held is lost", client->store, text);
    bl__lose(client, &err);
    return;
  }
  client->link_wait_ns = AGAIN_MIN_NS;
  client->link_at_ns = bl_clock_now_ns();
  bl__wake(client);
}

// ---- up -------------------------------------------------------------------------------------------------------------

static void be_up(bl_client_t *client) {
  const bool first = client->phase == BL__PHASE_CONNECTING;
  client->link = BL__CONNECTION_UP;
  client->link_why[0] = '\0';
  client->blocked = false;
  pthread_mutex_lock(&client->mutex);
  bl__requests_t *requests = &client->requests;
  if (first) {
    bl__transfer_kind_t kind = client->by == BL_PATH_CUDA_IPC ? BL__PULL_GPU
                               : client->by == BL_PATH_NCCL   ? BL__PAIRED
                               : client->by == BL_PATH_TCP    ? BL__PUSH
                                                              : BL__PULL;
    bl__requests_begin(requests, kind, !client->unverified && (kind == BL__PULL || kind == BL__PUSH),
                       client->flow_bytes);
  } else {
    requests->counters.reconnects++;
  }
  bl__requests_link_up(requests);
  pthread_mutex_unlock(&client->mutex);
}

// Maps the parts of the job's arena that came with the welcome.
static bl_status_t map_parts(bl_client_t *client, const bl_greeting_t *welcome, bl_error_t *err) {
  bl_device_t *device = client->by == BL_PATH_CUDA_IPC ? client->device : NULL;
  const size_t most = sizeof client->parts / sizeof client->parts[0];
  if (welcome->arena_count == 0 || welcome->arena_count > most) {
    return bl_error_set(err, BL_INTERNAL, "%s: the welcome shows %" PRIu32 " parts of the store's memory",
                        client->link_address, welcome->arena_count);
  }
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < welcome->arena_count && status == BL_OK; i++) {
    const int fd = bl_stream_take_descriptor(&client->stream);
    if (fd < 0) {
      return bl_error_set(err, BL_INTERNAL, "%s: the welcome came without the store's memory", client->link_address);
    }
    status = bl_peer_memory_open(&client->parts[i], device, fd, welcome->arena_bytes[i], err);
    client->part_count += status == BL_OK ? 1 : 0;
    close(fd);
  }
  return status;
}

static bl_status_t on_welcome(bl_client_t *client, bl_error_t *err) {
  const bl_frame_t *frame = &client->reader.frame;
  bl_greeting_t welcome;
  const char *reason = NULL;
  if (frame->kind == BL_FRAME_BYE) {
    return bl_error_set(err, frame->status, "%s: %s", client->link_address, client->reader.text);
  }
  if (frame->kind != BL_FRAME_WELCOME || client->link == BL__CONNECTION_JOINING) {
    return bl_error_set(err, BL_INTERNAL, "%s: a %s came instead of %s", client->link_address,
                        bl_frame_kind_name(frame->kind),
                        client->link == BL__CONNECTION_JOINING ? "communicators" : "a welcome");
  }
  if (bl_greeting_decode(client->reader.body, &welcome, &reason) != BL_OK) {
    return bl_error_set(err, BL_INTERNAL, "%s: the welcome is refused: %s", client->link_address, reason);
  }
  if (client->by == BL_PATH_NCCL) {
    client->link = client->phase == BL__PHASE_CONNECTING ? BL__CONNECTION_JOINING : BL__CONNECTION_UP;
    return bl__nccl_open(client, err);
  }
  client->link = BL__CONNECTION_UP;
  return client->shm ? map_parts(client, &welcome, err) : BL_OK;
}

static bl_status_t explain_end(bl_client_t *client, bool broken, bl_error_t *err) {
  if (broken && client->reader.failure.status == BL_OK) {
    return bl_error_set(err, BL_INTERNAL, "%s: this is no store of our version: %s", client->link_address,
                        client->reader.reason != NULL ? client->reader.reason : "out of turn");
  }
  (void)bl_stream_explain_end(&client->stream, err);
  return bl_error_prefix(err, "%s", client->link_address);
}

// Handles what arrives before the connection is up. BL_DEADLINE: the welcome has not arrived yet. After it, while
// communicators are created, a store sends only the reason why it ends the connection.
static bl_status_t read_welcome(bl_client_t *client, bl_error_t *err) {
  bl_status_t status = BL_OK;
  while (status == BL_OK && client->link < BL__CONNECTION_UP) {
    switch (bl_frame_reader_next(&client->reader)) {
    case BL_READER_AGAIN:
      return client->link == BL__CONNECTION_GREETING ? BL_DEADLINE : BL_OK;
    case BL_READER_FRAME:
      status = on_welcome(client, err);
      break;
    case BL_READER_END:
      return explain_end(client, false, err);
    case BL_READER_BODY:
    case BL_READER_BROKEN:
      return explain_end(client, true, err);
    }
  }
  return status;
}

static bl_status_t greet(bl_client_t *client, bl_error_t *err) {
  bl_greeting_t greeting = {.session = client->session, .path = client->by, .unverified = client->unverified};
  uint8_t body[BL_FRAME_GREETING_BYTES];
  memcpy(greeting.token, client->incarnation, sizeof greeting.token);
  memcpy(greeting.own_token, client->key, sizeof greeting.own_token);
  snprintf(greeting.reason, sizeof greeting.reason, "%s", client->path);
  bl_greeting_encode(&greeting, body);
  client->link = BL__CONNECTION_GREETING;
  if (!bl_frame_writer_put(&client->writer, &(bl_frame_t){.kind = BL_FRAME_GREET}, body, NULL, 0) ||
      bl_frame_writer_flush(&client->writer) != BL_WRITER_DONE) { // the first bytes on this connection: they fit
    (void)bl_stream_failure(&client->stream, errno, err);
    return bl_error_prefix(err, "%s: the store does not take the greeting", client->link_address);
  }
  return BL_OK;
}

// Called when the outcome of connecting is known.
static bl_status_t connected(bl_client_t *client, bl_error_t *err) {
  const int fd = client->stream.fd;
  const int errno_value = bl_socket_error(fd);
  client->refused = errno_value == ECONNREFUSED;
  if (errno_value != 0) {
    return bl_error_set(err, bl_status_from_errno(errno_value), "connect to %s: %s", client->link_address,
                        strerror(errno_value));
  }
  bl_tls_t *tls = client->shm ? NULL : client->security.tls;
  bl_status_t status = BL_OK;
  if (tls == NULL) {
    bl_stream_plain(&client->stream, fd, client->shm);
  } else {
    status = bl_stream_tls(&client->stream, fd, tls, false, BL_STORES, err);
  }
  bl_frame_reader_init(&client->reader, &client->stream);
  bl_frame_writer_init(&client->writer, &client->stream);
  client->link = BL__CONNECTION_SECURING;
  return status;
}

// Continues as far as possible. BL_DEADLINE: something must still arrive.
static bl_status_t advance(bl_client_t *client, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (client->link == BL__CONNECTION_CONNECTING) {
    status = connected(client, err);
  }
  if (status == BL_OK && client->link == BL__CONNECTION_SECURING) {
    status = bl_stream_handshake(&client->stream, err);
    if (status == BL_DEADLINE) {
      return status;
    }
    status = status != BL_OK ? bl_error_prefix(err, "%s", client->link_address) : greet(client, err);
  }
  if (status == BL_OK && client->link >= BL__CONNECTION_GREETING) {
    status = read_welcome(client, err);
  }
  if (status == BL_OK && client->link == BL__CONNECTION_JOINING) {
    status = bl__nccl_made(client, err);
  }
  return status;
}

static void go_on(bl_client_t *client) {
  bl_error_t err = {0};
  const bl_status_t status = advance(client, &err);
  if (status == BL_OK) {
    be_up(client);
  } else if (status != BL_DEADLINE) {
    failed(client, &err);
  } else {
    bl__connection_arm(client);
  }
}

void bl__connection_arm(bl_client_t *client) {
  if (client->watch == NULL) {
    return;
  }
  const bool writes = client->link == BL__CONNECTION_CONNECTING ||
                      (client->link == BL__CONNECTION_SECURING && bl_stream_wants_writable(&client->stream)) ||
                      (client->link == BL__CONNECTION_UP && client->blocked);
  bl_watch_set(client->watch,
               (client->link == BL__CONNECTION_CONNECTING ? 0 : BL_WATCH_READ) | (writes ? BL_WATCH_WRITE : 0));
}

// A store that listens on all interfaces is reached at the host of its control address.
static bl_status_t tcp_address(bl_client_t *client, bl_error_t *err) {
  bl_address_t where;
  if (client->data_tcp_address[0] == '\0') {
    return bl_error_set(err, BL_UNAVAILABLE, "%s: the store has no data path over tcp (its --data-tcp)", client->store);
  }
  bl_status_t status = bl_address_parse(client->data_tcp_address, &where, err);
  const char *colon = strrchr(client->store, ':');
  if (status == BL_OK && bl_address_is_wildcard(&where) && colon != NULL && strncmp(client->store, "unix:", 5) != 0) {
    char host[256];
    uint16_t port = bl_address_port(&where);
    bool brackets = client->store[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(colon - client->store) - (brackets ? 2 : 0),
             client->store + (brackets ? 1 : 0));
    status = bl_address_resolve(host, port, &where, err);
  }
  if (status == BL_OK) {
    bl_address_format(&where, client->link_address, sizeof client->link_address);
  }
  return status;
}

static bl_status_t connect_to(bl_client_t *client, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (client->shm) {
    snprintf(client->link_address, sizeof client->link_address, "%s", client->data_address);
  } else {
    status = tcp_address(client, err);
  }
  bl_address_t where;
  int fd = -1;
  client->refused = false;
  if (status == BL_OK) {
    status = bl_address_parse(client->link_address, &where, err);
  }
  if (status == BL_OK && !client->shm && client->security.tls == NULL && !bl_address_is_local(&where) &&
      !client->security.plaintext_ok) {
    status = bl_error_set(err, BL_DENIED,
                          "%s: plaintext is refused off the loopback interface; give --tls-ca, --tls-certificate and "
                          "--tls-key, or allow it with --plaintext",
                          client->link_address);
  }
  if (status == BL_OK) {
    status = bl_socket_connect(&where, &fd, err);
  }
  if (status == BL_OK) {
    bl_stream_plain(&client->stream, fd, client->shm); // owns the socket; replaced once it is connected
    client->link = BL__CONNECTION_CONNECTING;
    client->blocked = true; // until the outcome is known
    status = bl_watch_create(client->loop, fd, client->on_ready, client, &client->watch, err);
  }
  return status;
}

static void begin(bl_client_t *client, uint64_t deadline_ns) {
  bl_error_t err = {0};
  client->link_deadline_ns = deadline_ns;
  if (connect_to(client, &err) == BL_OK) {
    bl__connection_arm(client);
  } else {
    failed(client, &err);
  }
}

// ---- the choice of the path -----------------------------------------------------------------------------------------

static void try_path(bl_client_t *client) {
  bl_path_end_t own = bl_block_memory_end(&client->block_memory, "this process", client->own_machine, true, true);
  bl_path_end_t peer = bl_block_memory_end(&client->store_memory, "the store", client->machine,
                                           client->data_address[0] != '\0', client->data_tcp_address[0] != '\0');
  bl_error_t none = {0};
  bl_status_t status = bl_path_choose(&own, &peer, (bl_path_t)client->wanted_path, client->choices_failed,
                                      client->choice_failure.text, &client->choice, &none);
  if (status != BL_OK) { // no path is left: the last failure is the better reason
    client->opening_err = client->choice_failure.status != BL_OK ? client->choice_failure : none;
    return;
  }
  if (client->choice.staged && client->device != NULL) {
    (void)bl_error_set(&none, BL_UNIMPLEMENTED, "%s: memory of the GPU does not get there by itself (%s)",
                       client->store, client->choice.reason);
    client->opening_err = none;
    return;
  }
  client->by = client->choice.path;
  client->shm = bl_path_is_unix(client->choice.path);
  const char *reason = client->choice.reason;
  const int why = (int)strcspn(reason, ";"); // what was tried before comes after it
  const bool encrypted = client->by == BL_PATH_TCP && client->security.tls != NULL;
  snprintf(client->path, sizeof client->path, "%.*s%s%.100s", why, reason, encrypted ? ", encrypted" : "",
           reason + why);
  begin(client, client->link_deadline_ns);
}

void bl__connection_begin(bl_client_t *client) {
  client->choices_failed = 0;
  client->choice_failure = (bl_error_t){0};
  client->link_deadline_ns = bl_clock_now_ns() + client->open_ms * BL_NS_PER_MS; // for all paths together
  try_path(client);
}

// ---- time -----------------------------------------------------------------------------------------------------------

static void be_late(bl_client_t *client) {
  bl_error_t err = {0};
  switch (client->link) {
  case BL__CONNECTION_CONNECTING:
    (void)bl_error_set(&err, bl_status_from_errno(ETIMEDOUT), "connect to %s: %s", client->link_address,
                       strerror(ETIMEDOUT));
    break;
  case BL__CONNECTION_SECURING:
    (void)!bl_stream_handshake(&client->stream, &err);
    (void)bl_error_prefix(&err, "%s", client->link_address);
    break;
  case BL__CONNECTION_GREETING:
    (void)bl_error_set(&err, BL_UNAVAILABLE, "%s: the store did not answer in time", client->link_address);
    break;
  default:
    (void)!bl__nccl_made(client, &err);
    break;
  }
  failed(client, &err);
}

void bl__connection_iterate(bl_client_t *client, uint64_t now_ns) {
  if (client->link == BL__CONNECTION_UP) {
    return;
  }
  if (client->link != BL__CONNECTION_DOWN && (client->link != BL__CONNECTION_CONNECTING || !client->blocked)) {
    go_on(client);
  }
  if (client->link > BL__CONNECTION_DOWN && client->link < BL__CONNECTION_UP && now_ns >= client->link_deadline_ns) {
    be_late(client);
  } else if (client->link == BL__CONNECTION_DOWN && client->phase >= BL__PHASE_REGISTERING &&
             client->phase <= BL__PHASE_OPEN && !client->shm && now_ns >= client->link_at_ns) {
    begin(client, now_ns + AGAIN_TRY_NS);
  }
}

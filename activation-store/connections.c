// SPDX-License-Identifier: Apache-2.0
#include "connections.h"

#include "connections_core.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- frames of a connection

// Sends the welcome, on shm with the tiers of the arena. False: the peer does not read it.
static bool welcome(bl_connection_t *connection, const bl_greeting_t *greeting, const bl_connection_arenas_t *arenas) {
  bl_greeting_t answer = {.session = greeting->session, .path = greeting->path};
  int fds[BL_LEASE_TIERS];
  for (unsigned i = 0; i < BL_LEASE_TIERS && connection->stream.is_unix; i++) {
    if (arenas->tiers[i] != NULL) {
      fds[answer.arena_count] = arenas->tiers[i]->fd;
      answer.arena_bytes[answer.arena_count++] = arenas->tiers[i]->bytes;
    }
  }
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(&answer, body);
  // These are the first bytes on this connection: they fit into its buffer.
  return bl_frame_writer_put(&connection->writer, &(bl_frame_t){.kind = BL_FRAME_WELCOME}, body, fds,
                             answer.arena_count) &&
         bl_frame_writer_flush(&connection->writer) == BL_WRITER_DONE;
}

static void greet(bl_connection_t *connection) {
  bl_connections_t *connections = connection->connections;
  bl_greeting_t greeting;
  bl_error_t err = {0};
  const char *reason = NULL;
  bl_connection_arenas_t arenas = {0};
  if (bl_greeting_decode(connection->reader.body, &greeting, &reason) != BL_OK) {
    bl__connection_lose(connection, "%s", reason);
    return;
  }
  if (bl_path_is_unix(greeting.path) != connection->stream.is_unix) {
    (void)bl_error_set(&err, BL_INVALID, "shm requires the unix socket, tcp requires TCP");
  } else {
    err.status = connections->callbacks.admit(connections->context, &greeting, connection->stream.fd, &arenas, &err);
  }
  if (err.status != BL_OK) {
    bl__connection_goodbye(connection, err.status, err.text);
    bl__connection_lose(connection, "%s", err.text);
    return;
  }
  if (!welcome(connection, &greeting, &arenas)) {
    bl__connection_lose(connection, "it does not read its welcome");
    return;
  }
  bl_connections_end(connections, greeting.session, "its holder reconnected");
  connection->greeted = true;
  connections->ungreeted--;
  connection->session = greeting.session;
  connection->shm = bl_path_is_unix(greeting.path);
  connection->by = greeting.path;
  connections->counters.up[connection->by]++;
  connection->unverified = greeting.unverified || greeting.path == BL_PATH_CUDA_IPC || greeting.path == BL_PATH_NCCL;
  connection->arenas = arenas;
  snprintf(connection->path, sizeof connection->path, "%s", greeting.reason);
}

static void on_frame(bl_connection_t *connection) {
  const bl_frame_t *frame = &connection->reader.frame;
  if ((frame->kind == BL_FRAME_GREET) == connection->greeted) {
    bl__connection_lose(connection, "%s out of turn", bl_frame_kind_name(frame->kind));
    return;
  }
  switch (frame->kind) {
  case BL_FRAME_GREET:
    greet(connection);
    return;
  case BL_FRAME_REGISTER:
    bl__region_register(connection, frame);
    return;
  case BL_FRAME_UNREGISTER:
    bl__region_unregister(connection, frame);
    return;
  case BL_FRAME_RENDEZVOUS:
    bl__nccl_channels_meet(connection);
    return;
  case BL_FRAME_EVICT:
  case BL_FRAME_LOAD:
  case BL_FRAME_RELEASE:
  case BL_FRAME_KEEP:
    bl__connection_asked(connection, frame);
    connection->connections->callbacks.on_request(connection->connections->context, connection, frame);
    return;
  case BL_FRAME_DATA:
    (void)bl__store_transfers_data(connection);
    return;
  default:
    bl__connection_lose(connection, "%s is not for a store", bl_frame_kind_name(frame->kind));
    return;
  }
}

static void on_ended(bl_connection_t *connection) {
  bl__nccl_channels_abort(connection);
  bl__store_transfers_lose(connection);
}

static const bl__connection_ops_t connection_ops = {.on_frame = on_frame,
                                                    .on_readable = bl__store_transfers_continue_reading,
                                                    .on_writable = bl__store_transfers_continue_writing,
                                                    .on_ended = on_ended,
                                                    .on_free = bl__regions_free};

// ---- new connections

// Ends the oldest connection that has not greeted: a holder greets at once, and strangers must not keep it out.
static void make_way(bl_connections_t *connections) {
  bl_connection_t *connection, *oldest = NULL;
  LIST_FOREACH(connection, &connections->all, listed) { // the newest is the first
    oldest = connection->greeted || connection->gone ? oldest : connection;
  }
  if (oldest != NULL) {
    bl__connection_lose(oldest, "many others came before it greeted");
  }
}

static void let_in(bl_connections_t *connections, int fd, bool is_unix) {
  bl_error_t err = {0};
  if (connections->ungreeted >= BL_CONNECTIONS_UNGREETED) {
    make_way(connections);
  }
  const bool full = connections->count >= BL_CONNECTIONS_MAX;
  const bool ours = !is_unix || bl_socket_peer_is_us(fd);
  if (full || !ours) {
    (void)bl_error_set(&err, BL_DENIED, full ? "too many connections" : "not our user");
    close(fd);
  } else if (bl__connection_open(connections, fd, is_unix, &err) != NULL) {
    return;
  }
  connections->counters.refused++;
  bl_log(BL_LOG_WARNING, "data path: connection rejected: %s", err.text);
}

static void on_unix(void *context, int fd) {
  let_in(context, fd, true);
}

static void on_tcp(void *context, int fd) {
  let_in(context, fd, false);
}

static void on_second(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_connections_t *connections = context;
  uint64_t now_ms = bl_loop_now_ms(connections->loop);
  for (bl_connection_t *connection = LIST_FIRST(&connections->all), *next; connection != NULL; connection = next) {
    next = LIST_NEXT(connection, listed);
    if (!connection->greeted && !connection->gone && now_ms - connection->since_ms > BL_CONNECTIONS_GREETING_MS) {
      bl__connection_lose(connection, "no greeting in time");
    }
  }
}

// ---- for the store --------------------------------------------------------------------------------------------------

bl_connection_t *bl_connections_find(const bl_connections_t *connections, uint64_t session) {
  bl_connection_t *connection;
  LIST_FOREACH(connection, &connections->all, listed) {
    if (connection->session == session && connection->greeted && !connection->gone) {
      return connection;
    }
  }
  return NULL;
}

void bl_connections_end(bl_connections_t *connections, uint64_t session, const char *why) {
  bl_connection_t *connection = bl_connections_find(connections, session);
  if (connection == NULL) {
    return;
  }
  bl__connection_goodbye(connection, BL_FENCED, why);
  bl__connection_hang_up(connection);
}

const char *bl_connections_path(const bl_connections_t *connections, uint64_t session) {
  const bl_connection_t *connection = bl_connections_find(connections, session);
  return connection == NULL ? "none" : connection->path;
}

uint64_t bl_connection_session(const bl_connection_t *connection) {
  return connection->session;
}

bool bl_connection_is_shm(const bl_connection_t *connection) {
  return connection->shm;
}

bool bl_connection_evict(bl_connection_t *connection, const bl_leased_block_t *leased, uint32_t region,
                         uint64_t region_offset) {
  if (connection->by == BL_PATH_NCCL) {
    return bl__nccl_transfer(connection, BL_PAIR_IN, leased);
  }
  return connection->shm ? bl__store_transfer_pull(connection, leased, region, region_offset)
                         : bl__store_transfer_receive(connection, leased);
}

bool bl_connection_load(bl_connection_t *connection, const bl_leased_block_t *leased) {
  return connection->by == BL_PATH_NCCL ? bl__nccl_transfer(connection, BL_PAIR_OUT, leased)
                                        : bl__store_transfer_send(connection, leased);
}

bool bl_connection_has(const bl_connection_t *connection, uint32_t region, uint64_t offset_bytes, uint64_t bytes) {
  return bl__region_at(connection, region, offset_bytes, bytes) != NULL;
}

const char *bl_connections_unix_address(const bl_connections_t *connections) {
  return connections->unix_address;
}

const char *bl_connections_tcp_address(const bl_connections_t *connections) {
  return connections->tcp_address;
}

const bl_connections_counters_t *bl_connections_counters(const bl_connections_t *connections) {
  return &connections->counters;
}

void bl_connections_answer(bl_connections_t *connections, uint64_t session, uint64_t sequence,
                           const bl_lease_answer_t *answer) {
  bl_connection_t *connection = bl_connections_find(connections, session);
  if (connection != NULL && connection->waiting[sequence % BL__CONNECTION_WINDOW].sequence == sequence) {
    bl_connection_answer(connection, sequence, answer, "finish the transfer of");
  }
}

// ---- creation -------------------------------------------------------------------------------------------------------

static bl_status_t listen_unix(bl_connections_t *connections, const char *address, bl_error_t *err) {
  bl_address_t where, bound;
  bl_status_t status = bl_address_parse(address, &where, err);
  if (status == BL_OK && where.storage.ss_family != AF_UNIX) {
    status = bl_error_set(err, BL_INVALID, "%s: shared memory needs a unix socket", address);
  }
  if (status == BL_OK) {
    status = bl_socket_listen(&where, &connections->unix_fd, &bound, err);
  }
  if (status == BL_OK) {
    bl_address_format(&bound, connections->unix_address, sizeof connections->unix_address);
    status = bl_acceptor_create(connections->loop, connections->unix_fd, on_unix, connections,
                                &connections->unix_acceptor, err);
  }
  return status;
}

static bl_status_t listen_tcp(bl_connections_t *connections, const bl_address_t *where, bl_error_t *err) {
  bl_address_t bound;
  bl_status_t status = bl_socket_listen(where, &connections->tcp_fd, &bound, err);
  if (status == BL_OK) {
    bl_address_format(&bound, connections->tcp_address, sizeof connections->tcp_address);
    status = bl_acceptor_create(connections->loop, connections->tcp_fd, on_tcp, connections, &connections->tcp_acceptor,
                                err);
  }
  return status;
}

bl_status_t bl_connections_create(bl_loop_t *loop, bl_pool_t *pool, const bl_connections_options_t *options,
                                  const bl_connections_callbacks_t *callbacks, void *context, bl_connections_t **out,
                                  bl_error_t *err) {
  bl_connections_t *connections = calloc(1, sizeof *connections);
  if (connections == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the data path");
  }
  *connections = (bl_connections_t){.ops = &connection_ops,
                                    .loop = loop,
                                    .pool = pool,
                                    .callbacks = *callbacks,
                                    .context = context,
                                    .unix_fd = -1,
                                    .tcp_fd = -1,
                                    .tls = options->tls,
                                    .device = options->device,
                                    .nccl = options->nccl};
  LIST_INIT(&connections->all);
  STAILQ_INIT(&connections->unused);
  bl_status_t status = BL_OK;
  if (options->device != NULL && !options->device->host_memory) {
    status = bl_mover_create(options->device, &connections->mover, err);
    if (status != BL_OK) {
      free(connections);
      return status;
    }
  }
  status = bl_timer_create(loop, on_second, connections, &connections->timer, err);
  if (status == BL_OK) {
    status = listen_unix(connections, options->unix_address, err);
  }
  if (status == BL_OK && options->tcp != NULL) {
    status = listen_tcp(connections, options->tcp, err);
  }
  if (status != BL_OK) {
    bl_connections_destroy(connections);
    return status;
  }
  bl_timer_start(connections->timer, 1000, 1000);
  *out = connections;
  return BL_OK;
}

// Returns a connection that is not gone. NULL: there is none.
static bl_connection_t *first_up(const bl_connections_t *connections) {
  bl_connection_t *connection = LIST_FIRST(&connections->all);
  while (connection != NULL && connection->gone) {
    connection = LIST_NEXT(connection, listed);
  }
  return connection;
}

void bl_connections_stop(bl_connections_t *connections) {
  if (connections == NULL || connections->stopped) {
    return;
  }
  connections->stopped = true;
  bl_timer_destroy(connections->timer);
  bl_acceptor_destroy(connections->unix_acceptor);
  bl_acceptor_destroy(connections->tcp_acceptor);
  if (connections->unix_fd >= 0) {
    close(connections->unix_fd);
    unlink(connections->unix_address + strlen("unix:"));
  }
  if (connections->tcp_fd >= 0) {
    close(connections->tcp_fd);
  }
  bl_connection_t *connection;
  while ((connection = first_up(connections)) != NULL) { // the end of one may end others
    bl__connection_hang_up(connection);
  }
  LIST_FOREACH(connection, &connections->all, listed) {
    // Its messages about transfers are posted to the loop. A freed connection has left the list, which the analyzer
    // does not see:
    bl__nccl_channels_close(connection); // NOLINT(clang-analyzer-unix.Malloc)
  }
}

void bl_connections_destroy(bl_connections_t *connections) {
  if (connections == NULL) {
    return;
  }
  bl_connections_stop(connections);
  bl__store_transfers_free(connections);
  bl_mover_destroy(connections->mover);
  free(connections);
}

// SPDX-License-Identifier: Apache-2.0
// Creation and end of the transport: options, listeners, its iterations on the transfer thread.
#include "datapath/transport.h"

#include "datapath/machine.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

// Ends the oldest connection that waits for its handshake: strangers that say nothing must not keep a stage out.
static void make_way(bl_transport_t *transport) {
  bl__link_t *oldest = NULL;
  for (bl__link_t *link = transport->links; link != NULL; link = link->next) { // the newest is the first
    const bool waits = !link->outgoing && link->state != BL__LINK_UP && link->state != BL__LINK_CLOSED;
    oldest = waits ? link : oldest;
  }
  if (oldest != NULL) {
    bl__link_lose(oldest, BL_EXHAUSTED, "%d connections came after it before its handshake was over",
                  BL__TRANSPORT_MAX_UNGREETED);
    bl__link_free_lost(transport);
  }
}

static void on_connection(void *context, int fd) {
  const bl__listener_t *listener = context;
  bl_transport_t *transport = listener->transport;
  if (transport->strangers >= BL__TRANSPORT_MAX_UNGREETED) {
    make_way(transport);
  }
  if (listener->path == BL_PATH_SHM && !bl_socket_peer_is_us(fd)) {
    close(fd);
    bl__transport_count_refused(transport, "a process of another user connected to %s", transport->unix_address);
  } else if (bl__link_open(transport, fd, listener->path, false) == NULL) {
    bl__transport_count_refused(transport, "no memory for another link");
  }
}

static void on_tick(bl_timer_t *timer, void *context) {
  bl_transport_t *transport = context;
  uint64_t now = bl_clock_now_ns();
  bool waiting = false;
  for (bl__link_t *link = transport->links; link != NULL; link = link->next) {
    if (link->state == BL__LINK_UP || link->state == BL__LINK_CLOSED) {
      continue;
    }
    if (now - link->opened_ns > BL__TRANSPORT_HANDSHAKE_NS) {
      bl__link_lose(link, BL_DEADLINE, "the handshake took more than %llu s", BL__TRANSPORT_HANDSHAKE_NS / BL_NS_PER_S);
    } else {
      waiting = true;
    }
  }
  pthread_mutex_lock(&transport->mutex);
  bl__connect_t *connect = transport->connect;
  pthread_mutex_unlock(&transport->mutex);
  if (connect != NULL) {
    waiting = true;
    bl__connect_run(transport);
  }
  if (!waiting) {
    bl_timer_stop(timer);
  }
}

static void on_wake(bl_message_t *message) {
  bl_transport_t *transport = BL_MESSAGE_OWNER(message, bl_transport_t, wake);
  // Cleared first, so that anything that arrives from here on wakes the transport once more.
  atomic_store(&transport->woken, false);
  bl__link_free_lost(transport);
  if (transport->closing) {
    return;
  }
  bl__connect_run(transport);
  bl__nccl_link_sweep(transport);
  bool more = false;
  for (bl__link_t *link = transport->links; link != NULL; link = link->next) {
    bl__nccl_link_iterate(link);
    bl__pull_iterate(link);
    more |= bl__link_iterate(link);
  }
  if (more) {
    bl__transport_wake(transport);
  }
}

static bl_status_t check_options(const bl_transport_options_t *options, bl_error_t *err) {
  if (options->stage < 0) {
    return bl_error_set(err, BL_INVALID, "data path: stage %d is negative", options->stage);
  }
  if (options->unix_path == NULL && options->tcp_host == NULL) {
    return bl_error_set(err, BL_INVALID, "data path: neither a unix socket nor a host to listen on");
  }
  if (options->arena_count > BL_TRANSPORT_MAX_ARENAS) {
    return bl_error_set(err, BL_INVALID, "data path: %zu arenas, at most %d", options->arena_count,
                        BL_TRANSPORT_MAX_ARENAS);
  }
  if (options->device != NULL && (options->block_memory == NULL || options->make_twins == NULL)) {
    return bl_error_set(err, BL_INVALID, "data path: a device without what is said of it, or without twins");
  }
  for (size_t i = 0; i < options->arena_count; i++) {
    const bl_arena_t *arena = &options->arenas[i];
    if (arena->fd < 0 || arena->bytes > BL_FRAME_MAX_BYTES) {
      return bl_error_set(err, BL_INVALID, "data path: arena %zu (%s) cannot be shared", i,
                          bl_memory_tag_name(arena->tag));
    }
  }
  if (options->max_in_flight > BL__TRANSPORT_MAX_IN_FLIGHT) {
    return bl_error_set(err, BL_INVALID, "data path: %u tensors in flight, at most %u", options->max_in_flight,
                        BL__TRANSPORT_MAX_IN_FLIGHT);
  }
  return BL_OK;
}

// Creates the folder of the socket. The run-time folder is removed with the last run in it, while a service may wait
// for the next run.
static bl_status_t make_folder(const char *path, bl_error_t *err) {
  char folder[BL_TRANSPORT_ADDRESS_BYTES];
  snprintf(folder, sizeof folder, "%s", path);
  char *end = strrchr(folder, '/');
  if (end == NULL || end == folder) {
    return BL_OK;
  }
  *end = '\0';
  return bl_folder_create(folder, 0700, err);
}

static bl_status_t listen_unix(bl_transport_t *transport, const char *path, bl_error_t *err) {
  char text[BL_TRANSPORT_ADDRESS_BYTES];
  bl_address_t address, bound;
  if ((size_t)snprintf(text, sizeof text, "unix:%s", path) >= sizeof text) {
    return bl_error_set(err, BL_INVALID, "data path: socket path %s is too long", path);
  }
  bl_status_t status = bl_address_parse(text, &address, err);
  if (status != BL_OK) {
    return status;
  }
  status = make_folder(path, err);
  if (status == BL_OK) {
    status = bl_socket_listen(&address, &transport->unix_listener.fd, &bound, err);
  }
  if (status == BL_OK) {
    (void)snprintf(transport->unix_address, sizeof transport->unix_address, "%s", text);
  }
  return status;
}

static bl_status_t listen_tcp(bl_transport_t *transport, const bl_transport_options_t *options, bl_error_t *err) {
  bl_address_t address, bound, shown;
  bl_status_t status = bl_address_resolve(options->tcp_host, 0, &address, err);
  if (status != BL_OK) {
    return status;
  }
  if (!bl_address_is_local(&address) && options->tls == NULL && !options->plaintext_ok) {
    return bl_error_set(
        err, BL_DENIED,
        "data path: %s is not a loopback address and tcp is not encrypted; give certificates (--tls-ca, "
        "--tls-certificate, --tls-key) or allow plaintext explicitly (--plaintext)",
        options->tcp_host);
  }
  if (bl_address_is_wildcard(&address) && options->tcp_advertise == NULL) {
    return bl_error_set(err, BL_INVALID, "data path: %s is no address peers can use; name the one to advertise",
                        options->tcp_host);
  }
  status = bl_socket_listen(&address, &transport->tcp_listener.fd, &bound, err);
  if (status != BL_OK) {
    return status;
  }
  shown = bound;
  if (options->tcp_advertise != NULL) {
    status = bl_address_resolve(options->tcp_advertise, bl_address_port(&bound), &shown, err);
  }
  bl_address_format(&shown, transport->tcp_address, sizeof transport->tcp_address);
  return status;
}

static void init_locks(bl_transport_t *transport) {
  pthread_mutex_init(&transport->mutex, NULL);
  bl_condition_init(&transport->changed);
  bl_condition_init(&transport->untouched);
}

// Frees everything that is not on the loop.
static void free_transport(bl_transport_t *transport) {
  bl_puller_destroy(transport->puller);
  for (size_t i = 0; i < transport->peer_count; i++) {
    bl_exchange_destroy(transport->peers[i]->exchange);
    bl__nccl_link_free(transport->peers[i]->nccl_link);
    free(transport->peers[i]);
  }
  if (transport->unix_listener.fd >= 0) {
    unlink(transport->unix_address + strlen("unix:"));
    close(transport->unix_listener.fd);
  }
  if (transport->tcp_listener.fd >= 0) {
    close(transport->tcp_listener.fd);
  }
  pthread_cond_destroy(&transport->changed);
  pthread_cond_destroy(&transport->untouched);
  pthread_mutex_destroy(&transport->mutex);
  free(transport);
}

// ---- on the loop ----------------------------------------------------------------------------------------------------

static bl_status_t begin_accepting(bl_transport_t *transport, bl__listener_t *listener, bl_path_t path,
                                   bl_error_t *err) {
  listener->transport = transport;
  listener->path = path;
  return listener->fd < 0
             ? BL_OK
             : bl_acceptor_create(transport->loop, listener->fd, on_connection, listener, &listener->acceptor, err);
}

typedef struct starting {
  bl_transport_t *transport;
  bl_status_t status;
  bl_error_t *err;
} starting_t;

static void start(void *context) {
  starting_t *starting = context;
  bl_transport_t *transport = starting->transport;
  starting->status = bl_timer_create(transport->loop, on_tick, transport, &transport->tick, starting->err);
  if (starting->status == BL_OK) {
    starting->status = begin_accepting(transport, &transport->unix_listener, BL_PATH_SHM, starting->err);
  }
  if (starting->status == BL_OK) {
    starting->status = begin_accepting(transport, &transport->tcp_listener, BL_PATH_TCP, starting->err);
  }
}

// Closes everything that is on the loop. After it only a last iteration may run.
static void shut(void *context) {
  bl_transport_t *transport = context;
  transport->closing = true;
  bl_error_t err;
  bl__connect_finish(transport, bl_error_set(&err, BL_CANCELLED, "the data path of this stage is closing"), &err);
  for (bl__link_t *link = transport->links; link != NULL; link = link->next) {
    bl__link_lose(link, BL_CANCELLED, "the data path of this stage is closing");
  }
  bl_acceptor_destroy(transport->unix_listener.acceptor);
  bl_acceptor_destroy(transport->tcp_listener.acceptor);
  bl_timer_destroy(transport->tick);
}

static void finish(void *context) {
  bl__link_free_lost(context);
}

// Leaves the loop. Before `finish` nothing wakes the transport any more, and an iteration that was posted is over when
// `finish` runs.
static void leave_loop(bl_transport_t *transport) {
  bl_loop_thread_call(transport->thread, shut, transport);
  for (size_t i = 0; i < transport->peer_count; i++) {
    bl__nccl_link_shut(transport->peers[i]->nccl_link);
  }
  bl_puller_destroy(transport->puller);
  transport->puller = NULL;
  bl_loop_thread_call(transport->thread, finish, transport);
  bl_loop_thread_destroy(transport->own_thread);
}

static bl_status_t join_loop(bl_transport_t *transport, bl_loop_thread_t *thread, bl_error_t *err) {
  if (thread == NULL) {
    bl_status_t status = bl_loop_thread_create("bl-transfer", &transport->own_thread, err);
    if (status != BL_OK) {
      bl_error_prefix(err, "data path");
      return status;
    }
    thread = transport->own_thread;
  }
  transport->thread = thread;
  transport->loop = bl_loop_thread_loop(thread);
  transport->wake.handle = on_wake;
  starting_t starting = {.transport = transport, .err = err};
  bl_loop_thread_call(thread, start, &starting);
  if (starting.status != BL_OK) {
    bl_error_prefix(err, "data path");
    leave_loop(transport);
  }
  return starting.status;
}

bl_status_t bl_transport_create(const bl_transport_options_t *options, bl_transport_t **transport, bl_error_t *err) {
  bl_status_t status = check_options(options, err);
  if (status != BL_OK) {
    return status;
  }
  bl_transport_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "data path: no memory for a transport");
  }
  made->link_ops = &bl__transport_link_ops;
  made->stage = options->stage;
  made->replica_stages = options->replica_stages;
  made->tensor_ranks = options->tensor_ranks == 0 ? 1 : options->tensor_ranks;
  made->plaintext_ok = options->plaintext_ok;
  made->tls = options->tls;
  made->nccl = options->nccl;
  if (options->block_memory != NULL) {
    made->block_memory = *options->block_memory;
  }
  made->max_in_flight = options->max_in_flight != 0 ? options->max_in_flight : BL__TRANSPORT_DEFAULT_IN_FLIGHT;
  made->unix_listener.fd = made->tcp_listener.fd = -1;
  made->device = options->device;
  made->make_twins = options->make_twins;
  made->context = options->context;
  bl__arenas_t *arenas = options->device != NULL ? &made->of_device : &made->of_host;
  for (size_t i = 0; i < options->arena_count; i++) {
    if (options->arenas[i].bytes > 0) {
      arenas->at[arenas->count++] = options->arenas[i];
    }
  }
  if (options->machine != NULL) {
    snprintf(made->machine, sizeof made->machine, "%s", options->machine);
  } else {
    bl_machine_text(made->machine, sizeof made->machine);
  }
  init_locks(made);
  if (getrandom(made->token, sizeof made->token, 0) != (ssize_t)sizeof made->token) {
    status = bl_error_set(err, BL_IO, "data path: no random numbers for a token: %s", strerror(errno));
    goto free_made;
  }
  if (options->unix_path != NULL && (status = listen_unix(made, options->unix_path, err)) != BL_OK) {
    goto free_made;
  }
  if (options->tcp_host != NULL && (status = listen_tcp(made, options, err)) != BL_OK) {
    goto free_made;
  }
  if (made->device != NULL && made->block_memory.closed[0] == '\0' &&
      (status = bl_puller_create(made->device, &made->puller, err)) != BL_OK) {
    goto free_made;
  }
  status = join_loop(made, options->thread, err);
  if (status != BL_OK) {
    goto free_made;
  }
  *transport = made;
  return BL_OK;
free_made:
  free_transport(made);
  return status;
}

void bl_transport_destroy(bl_transport_t *transport) {
  if (transport == NULL) {
    return;
  }
  bl_transport_abort(transport);
  leave_loop(transport);
  free_transport(transport);
}

const char *bl_transport_unix_address(const bl_transport_t *transport) {
  return transport->unix_address;
}

const char *bl_transport_tcp_address(const bl_transport_t *transport) {
  return transport->tcp_address;
}

const uint8_t *bl_transport_token(const bl_transport_t *transport) {
  return transport->token;
}

const char *bl_transport_machine(const bl_transport_t *transport) {
  return transport->machine;
}

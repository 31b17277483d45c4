// SPDX-License-Identifier: Apache-2.0
// bl_transport_connect: opens links to higher stages, waits for those of lower ones, and under `auto` falls back from
// cuda-ipc to the next path and from shm to tcp.
#include "datapath/machine.h"
#include "datapath/transport.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bl__connect_peer_t *find_peer(bl__connect_t *connect, int32_t stage) {
  for (size_t i = 0; connect != NULL && i < connect->peer_count; i++) {
    if (connect->peers[i].stage == stage) {
      return &connect->peers[i];
    }
  }
  return NULL;
}

static bl__connect_t *current(bl_transport_t *transport) {
  pthread_mutex_lock(&transport->mutex);
  bl__connect_t *connect = transport->connect;
  pthread_mutex_unlock(&transport->mutex);
  return connect;
}

static void free_connect(bl__connect_t *connect) {
  if (connect != NULL) {
    free(connect->peers);
    free(connect);
  }
}

void bl__connect_finish(bl_transport_t *transport, bl_status_t status, const bl_error_t *err) {
  pthread_mutex_lock(&transport->mutex);
  bl__connect_t *connect = transport->connect;
  transport->connect = NULL;
  for (size_t i = 0; status == BL_OK && connect != NULL && i < connect->peer_count; i++) {
    bl__transport_find(transport, connect->peers[i].stage)->crosses =
        !bl_machine_same(transport->machine, connect->peers[i].machine);
  }
  pthread_mutex_unlock(&transport->mutex);
  transport->connect_started = false;
  if (connect == NULL) {
    return;
  }
  if (!transport->closing) {
    bl__transport_wake(transport); // pairs whose communicators had to wait for this connect
  }
  for (size_t i = 0; i < connect->peer_count; i++) {
    if (connect->peers[i].opening != NULL) {
      bl__link_lose(connect->peers[i].opening, BL_CANCELLED, "the connect it belonged to has ended");
    }
  }
  connect->done(connect->user, status, err);
  free_connect(connect);
}

static void fail(bl_transport_t *transport, const bl__connect_peer_t *peer, bl_status_t status, const char *text) {
  bl_error_t err;
  status = bl_error_set(&err, status, "data path to %s: %s", BL__NAME(transport, peer->stage), text);
  bl__connect_finish(transport, status, &err);
}

// Returns whether the link may be of either kind: on nccl, and for notes, it carries only frames.
static bool is_free(const bl__connect_t *connect, const bl__connect_peer_t *peer) {
  return connect->path == BL_PATH_AUTO || connect->path == BL_PATH_NCCL ||
         (peer->notes_only && connect->path != BL_PATH_TCP);
}

// Returns the path to try now, and why.
static bl_path_t choose(const bl_transport_t *transport, const bl__connect_t *connect, const bl__connect_peer_t *peer,
                        char *reason, size_t reason_bytes) {
  bl_path_t path = BL_PATH_TCP;
  const char *why, *no_ipc = peer->no_ipc;
  if (!is_free(connect, peer)) {
    path = connect->path;
    why = "asked for";
  } else if (transport->unix_address[0] == '\0' || peer->unix_address[0] == '\0') {
    why = "there is no unix socket at both ends";
  } else if (!bl_machine_same(transport->machine, peer->machine)) {
    why = "peer is on another machine";
  } else {
    const bool ipc =
        connect->path == BL_PATH_AUTO && transport->puller != NULL && peer->no_ipc[0] == '\0' && !peer->notes_only;
    path = ipc ? BL_PATH_CUDA_IPC : BL_PATH_SHM;
    why = "same machine";
    const bool closed = transport->device != NULL && transport->puller == NULL && !peer->notes_only;
    no_ipc = closed ? transport->block_memory.closed : no_ipc;
  }
  const char *note = peer->notes_only ? ", notes only" : "";
  if (path == BL_PATH_TCP && transport->tls != NULL) {
    note = ", encrypted";
  } else if (path == BL_PATH_CUDA_IPC && transport->block_memory.legacy_ipc) {
    note = ", legacy handles of memory";
  }
  snprintf(reason, reason_bytes, "%s: %s%s%s%.100s", bl_path_name(path), why, note,
           no_ipc[0] != '\0' ? "; not cuda-ipc: " : "", no_ipc);
  return path;
}

static bl_status_t open_link(bl_transport_t *transport, const bl__connect_t *connect, bl__connect_peer_t *peer,
                             bl_path_t path, const char *reason, bl_error_t *err) {
  const char *text = bl_path_is_unix(path) ? peer->unix_address : peer->tcp_address;
  if (text[0] == '\0') {
    return bl_error_set(err, BL_UNAVAILABLE, "it offers no %s address", bl_path_name(path));
  }
  bl_address_t address;
  bl_status_t status = bl_address_parse(text, &address, err);
  if (status != BL_OK) {
    return status;
  }
  if (bl_path_is_unix(path) != (address.storage.ss_family == AF_UNIX)) {
    return bl_error_set(err, BL_INVALID, "%s is no address for %s", text, bl_path_name(path));
  }
  if (!bl_address_is_local(&address) && transport->tls == NULL && !transport->plaintext_ok) {
    return bl_error_set(err, BL_DENIED,
                        "%s is not a loopback address and tcp is not encrypted; give certificates (--tls-ca, "
                        "--tls-certificate, --tls-key) or allow plaintext explicitly (--plaintext)",
                        text);
  }
  int fd;
  status = bl_socket_connect(&address, &fd, err);
  if (status != BL_OK) {
    return status;
  }
  peer->opening = bl__link_open(transport, fd, path, true);
  if (peer->opening == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a link");
  }
  peer->opening->notes_only = peer->notes_only;
  peer->opening->wants_nccl = is_free(connect, peer) && path != BL_PATH_CUDA_IPC && !peer->notes_only;
  bl__link_name(peer->opening, peer->stage, peer->token, reason);
  return BL_OK;
}

// Opens a tcp link after shm failed, under `auto`. Returns false if the operation has ended.
static bool fall_back(bl_transport_t *transport, const bl__connect_t *connect, bl__connect_peer_t *peer,
                      const char *why) {
  char reason[BL_TRANSPORT_REASON_BYTES];
  bl_error_t err = {0};
  snprintf(reason, sizeof reason, "tcp: shm failed: %.150s", why);
  if (open_link(transport, connect, peer, BL_PATH_TCP, reason, &err) != BL_OK) {
    bl_error_prefix(&err, "neither shm (%.200s) nor tcp", why);
    fail(transport, peer, err.status, err.text);
    return false;
  }
  return true;
}

static bool open_peer(bl_transport_t *transport, const bl__connect_t *connect, bl__connect_peer_t *peer);

// Cuda-ipc failed: ends the operation if it was requested, else tries the next best path. Returns false if the
// operation has ended.
static bool fall_from_ipc(bl_transport_t *transport, const bl__connect_t *connect, bl__connect_peer_t *peer,
                          bl_status_t status, const char *why) {
  char text[BL_TRANSPORT_REASON_BYTES];
  if (connect->path == BL_PATH_CUDA_IPC) {
    snprintf(text, sizeof text, "cuda-ipc is asked for: %.150s", why);
    fail(transport, peer, status, text);
    return false;
  }
  snprintf(peer->no_ipc, sizeof peer->no_ipc, "%s", why);
  return open_peer(transport, connect, peer);
}

// Returns false if the operation has ended.
static bool open_peer(bl_transport_t *transport, const bl__connect_t *connect, bl__connect_peer_t *peer) {
  char reason[BL_TRANSPORT_REASON_BYTES];
  bl_error_t err = {0};
  bl_path_t path = choose(transport, connect, peer, reason, sizeof reason);
  if (path == BL_PATH_CUDA_IPC && !bl_machine_same(transport->machine, peer->machine)) {
    return fall_from_ipc(transport, connect, peer, BL_PRECONDITION, "peer is on another machine");
  }
  if (open_link(transport, connect, peer, path, reason, &err) == BL_OK) {
    return true;
  }
  if (path == BL_PATH_CUDA_IPC) {
    return fall_from_ipc(transport, connect, peer, err.status, err.text);
  }
  if (path == BL_PATH_SHM && is_free(connect, peer)) {
    return fall_back(transport, connect, peer, err.text);
  }
  fail(transport, peer, err.status, err.text);
  return false;
}

// Returns true if the peer's link is already up. Closes a link to an older incarnation of the peer.
static bool has_link(bl_transport_t *transport, const bl__connect_peer_t *wanted, bl_path_t path) {
  pthread_mutex_lock(&transport->mutex);
  bl__peer_t *peer = bl__transport_add(transport, wanted->stage);
  bl__link_t *link = peer != NULL ? peer->link : NULL;
  pthread_mutex_unlock(&transport->mutex);
  if (link == NULL) {
    return false;
  }
  if (memcmp(link->peer_token, wanted->token, BL_TRANSPORT_TOKEN_BYTES) != 0) {
    bl__link_lose(link, BL_UNAVAILABLE, "%s has been restarted", BL__NAME(link->transport, wanted->stage));
    return false;
  }
  if (link->nccl_link != NULL && (path == BL_PATH_AUTO || path == BL_PATH_NCCL)) {
    return bl__nccl_link_is_up(link);
  }
  if (path != BL_PATH_AUTO && !link->notes_only && (link->nccl_link != NULL || link->path != path)) {
    if (transport->stage < wanted->stage) { // the side that opens may change the path
      bl__link_lose(link, BL_UNAVAILABLE, "%s is asked for now", bl_path_name(path));
    }
    return false;
  }
  return true;
}

static void fail_without_nccl(bl_transport_t *transport, const bl__connect_peer_t *peer, const bl__link_t *link) {
  char text[BL_TRANSPORT_REASON_BYTES];
  snprintf(text, sizeof text, "nccl is asked for: %.150s", link->obstacle);
  fail(transport, peer, link->obstacle_status, text);
}

// Returns a link that the lower stage opened for nccl before this connect began, and that cannot use nccl. No other
// link will be opened. NULL: there is none.
static const bl__link_t *link_without_nccl(bl_transport_t *transport, const bl__connect_t *connect,
                                           const bl__connect_peer_t *wanted) {
  pthread_mutex_lock(&transport->mutex);
  const bl__peer_t *peer = bl__transport_find(transport, wanted->stage);
  const bl__link_t *link = peer != NULL ? peer->link : NULL;
  pthread_mutex_unlock(&transport->mutex);
  const bool ours = link != NULL && memcmp(link->peer_token, wanted->token, BL_TRANSPORT_TOKEN_BYTES) == 0;
  const bool cannot = ours && link->nccl_link == NULL && link->wants_nccl && link->obstacle_status != BL_OK;
  return connect->path == BL_PATH_NCCL && transport->stage > wanted->stage && cannot ? link : NULL;
}

// Checks that this end supports the requested path, whichever end opens the link.
static bl_status_t check_asked(const bl_transport_t *transport, const bl__connect_t *connect, bl_error_t *err) {
  if (connect->path != BL_PATH_CUDA_IPC || transport->puller != NULL) {
    return BL_OK;
  }
  return bl_error_set(err, BL_PRECONDITION, "cuda-ipc is asked for: %s: %s", BL__NAME(transport, transport->stage),
                      transport->device != NULL ? transport->block_memory.closed : "its memory is the host's");
}

static void start(bl_transport_t *transport, bl__connect_t *connect) {
  transport->connect_started = true;
  bl_error_t err;
  // Create twins before other stages wait for this end.
  if (connect->peer_count > 0 &&
      (check_asked(transport, connect, &err) != BL_OK ||
       (connect->path == BL_PATH_SHM && bl__transport_hold_twins(transport, &err) != BL_OK))) {
    fail(transport, &connect->peers[0], err.status, err.text);
    return; // the operation has ended and is freed
  }
  for (size_t i = 0; i < connect->peer_count; i++) {
    bl__connect_peer_t *peer = &connect->peers[i];
    bool up = has_link(transport, peer, connect->path);
    pthread_mutex_lock(&transport->mutex);
    peer->up = up;
    pthread_mutex_unlock(&transport->mutex);
  }
  for (size_t i = 0; i < connect->peer_count; i++) {
    bl__connect_peer_t *peer = &connect->peers[i];
    const bl__link_t *without = link_without_nccl(transport, connect, peer);
    if (without != NULL) {
      fail_without_nccl(transport, peer, without);
      return; // the operation has ended and is freed
    }
    if (!peer->up && transport->stage < peer->stage && !open_peer(transport, connect, peer)) {
      return; // as above
    }
  }
}

void bl__connect_run(bl_transport_t *transport) {
  bl__assert_transfer(transport);
  bl__connect_t *connect = current(transport);
  if (connect == NULL) {
    return;
  }
  if (!transport->connect_started) {
    bl__transport_watch_time(transport);
    start(transport, connect);
    connect = current(transport);
    if (connect == NULL) {
      return;
    }
  }
  const bl__connect_peer_t *missing = NULL;
  for (size_t i = 0; i < connect->peer_count && missing == NULL; i++) {
    missing = connect->peers[i].up ? NULL : &connect->peers[i];
  }
  if (missing == NULL) {
    bl__connect_finish(transport, BL_OK, NULL);
  } else if (bl_clock_now_ns() >= connect->deadline_ns) {
    fail(transport, missing, BL_DEADLINE,
         missing->stage > transport->stage ? "it did not answer before the deadline"
                                           : "it did not connect before the deadline; is it connecting too?");
  }
}

void bl__connect_up(bl_transport_t *transport, bl__link_t *link) {
  bl__connect_t *connect = current(transport);
  bl__connect_peer_t *peer = transport->connect_started ? find_peer(connect, link->stage) : NULL;
  if (peer == NULL || memcmp(peer->token, link->peer_token, BL_TRANSPORT_TOKEN_BYTES) != 0) {
    return;
  }
  peer->opening = NULL;
  bl__transport_wake(transport); // later pairs may create their communicators now
  const bl_path_t path = link->nccl_link != NULL ? BL_PATH_NCCL : link->path;
  if (connect->path == BL_PATH_NCCL && link->wants_nccl && link->nccl_link == NULL) {
    fail_without_nccl(transport, peer, link);
    return;
  }
  if (connect->path != BL_PATH_AUTO && connect->path != path && !link->notes_only) {
    char text[96];
    snprintf(text, sizeof text, "it connected by %s, %s is asked for; give all stages the same path",
             bl_path_name(path), bl_path_name(connect->path));
    fail(transport, peer, BL_INVALID, text);
    return;
  }
  pthread_mutex_lock(&transport->mutex);
  peer->up = true;
  pthread_mutex_unlock(&transport->mutex);
  bl__connect_run(transport);
}

void bl__connect_failed(bl_transport_t *transport, bl__link_t *link, bl_status_t status, const char *text) {
  bl__connect_t *connect = current(transport);
  bl__connect_peer_t *peer = find_peer(connect, link->stage);
  if (peer == NULL || peer->opening != link) {
    return;
  }
  peer->opening = NULL;
  if (link->path == BL_PATH_CUDA_IPC) {
    (void)fall_from_ipc(transport, connect, peer, status, text);
  } else if (link->path == BL_PATH_SHM && is_free(connect, peer)) {
    fall_back(transport, connect, peer, text);
  } else {
    fail(transport, peer, status, text);
  }
}

void bl__connect_lost(bl_transport_t *transport, const bl__link_t *link, bl_status_t status, const char *text) {
  bl__connect_peer_t *peer = find_peer(current(transport), link->stage);
  const bool opening = peer != NULL && peer->opening == link; // its communicators were being created
  if (opening) {
    peer->opening = NULL;
  }
  if (opening || (peer != NULL && peer->up)) {
    fail(transport, peer, status, text);
  }
}

static bl_status_t copy_text(char *to, size_t to_bytes, const char *from, const char *what, int32_t stage,
                             bl_error_t *err) {
  int length = snprintf(to, to_bytes, "%s", from != NULL ? from : "");
  if (length < 0 || (size_t)length >= to_bytes) {
    return bl_error_set(err, BL_INVALID, "data path to stage %d: its %s is longer than %zu bytes", stage, what,
                        to_bytes - 1);
  }
  return BL_OK;
}

static bl_status_t copy_peer(const bl_transport_t *transport, bl__connect_t *connect, const bl_transport_peer_t *from,
                             bl_error_t *err) {
  if (from->stage < 0 || from->stage == transport->stage || find_peer(connect, from->stage) != NULL) {
    return bl_error_set(err, BL_INVALID, "data path: %s as a peer of %s: negative, itself or twice",
                        BL__NAME(transport, from->stage), BL__NAME(transport, transport->stage));
  }
  bl__connect_peer_t *to = &connect->peers[connect->peer_count++];
  to->notes_only = from->notes_only;
  to->stage = from->stage;
  memcpy(to->token, from->token, sizeof to->token);
  bl_status_t status =
      copy_text(to->unix_address, sizeof to->unix_address, from->unix_address, "unix address", from->stage, err);
  if (status == BL_OK) {
    status = copy_text(to->tcp_address, sizeof to->tcp_address, from->tcp_address, "tcp address", from->stage, err);
  }
  if (status == BL_OK) {
    status = copy_text(to->machine, sizeof to->machine, from->machine, "machine text", from->stage, err);
  }
  return status;
}

bl_status_t bl_transport_connect(bl_transport_t *transport, const bl_transport_peer_t *peers, size_t peer_count,
                                 bl_path_t path, uint64_t deadline_ns, bl_transport_connected_fn done, void *user,
                                 bl_error_t *err) {
  if (peer_count > BL_TRANSPORT_MAX_PEERS) {
    return bl_error_set(err, BL_INVALID, "data path: %zu peers, at most %d", peer_count, BL_TRANSPORT_MAX_PEERS);
  }
  bl_status_t status = BL_OK;
  bl__connect_t *connect = calloc(1, sizeof *connect);
  if (connect == NULL || (connect->peers = calloc(peer_count + 1, sizeof *connect->peers)) == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "data path: no memory to connect");
    goto free_connect;
  }
  connect->path = path;
  connect->deadline_ns = deadline_ns;
  connect->since_ns = bl_clock_now_ns();
  connect->done = done;
  connect->user = user;
  for (size_t i = 0; i < peer_count; i++) {
    if ((status = copy_peer(transport, connect, &peers[i], err)) != BL_OK) {
      goto free_connect;
    }
  }
  pthread_mutex_lock(&transport->mutex);
  bool busy = transport->connect != NULL;
  if (!busy) {
    transport->connect = connect;
  }
  pthread_mutex_unlock(&transport->mutex);
  if (busy) {
    status = bl_error_set(err, BL_PRECONDITION, "data path: a connect is in progress; wait for it");
    goto free_connect;
  }
  bl__transport_wake(transport);
  return BL_OK;
free_connect:
  free_connect(connect);
  return status;
}

typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t ended;
  bool done;
  bl_status_t status;
  bl_error_t err;
} outcome_t;

static void on_done(void *user, bl_status_t status, const bl_error_t *err) {
  outcome_t *outcome = user;
  pthread_mutex_lock(&outcome->mutex);
  outcome->done = true;
  outcome->status = status;
  if (err != NULL) {
    outcome->err = *err;
  }
  pthread_cond_signal(&outcome->ended);
  pthread_mutex_unlock(&outcome->mutex);
}

bl_status_t bl_transport_connect_wait(bl_transport_t *transport, const bl_transport_peer_t *peers, size_t peer_count,
                                      bl_path_t path, uint64_t deadline_ns, bl_error_t *err) {
  outcome_t outcome = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
  bl_status_t status = bl_transport_connect(transport, peers, peer_count, path, deadline_ns, on_done, &outcome, err);
  if (status != BL_OK) {
    return status;
  }
  pthread_mutex_lock(&outcome.mutex);
  // Ends by the deadline, which the transport watches.
  while (!outcome.done) {
    pthread_cond_wait(&outcome.ended, &outcome.mutex);
  }
  pthread_mutex_unlock(&outcome.mutex);
  if (outcome.status != BL_OK && err != NULL) {
    *err = outcome.err;
  }
  return outcome.status;
}

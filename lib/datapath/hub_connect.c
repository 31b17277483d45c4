// SPDX-License-Identifier: Apache-2.0
// bl_hub_connect: opens links to higher stages, waits for those of lower ones, falls back from shm to tcp.
#include "datapath/hub.h"
#include "datapath/machine.h"
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

static bl__connect_t *current(bl_hub_t *hub) {
  pthread_mutex_lock(&hub->mutex);
  bl__connect_t *connect = hub->connect;
  pthread_mutex_unlock(&hub->mutex);
  return connect;
}

static void free_connect(bl__connect_t *connect) {
  if (connect != NULL) {
    free(connect->peers);
    free(connect);
  }
}

void bl__connect_finish(bl_hub_t *hub, bl_status_t status, const bl_error_t *err) {
  pthread_mutex_lock(&hub->mutex);
  bl__connect_t *connect = hub->connect;
  hub->connect = NULL;
  for (size_t i = 0; status == BL_OK && connect != NULL && i < connect->peer_count; i++) {
    bl__hub_find(hub, connect->peers[i].stage)->crosses = !bl_machine_same(hub->machine, connect->peers[i].machine);
  }
  pthread_mutex_unlock(&hub->mutex);
  hub->connect_started = false;
  if (connect == NULL) {
    return;
  }
  if (!hub->closing) {
    bl__hub_wake(hub); // whoever it kept from making communicators
  }
  for (size_t i = 0; i < connect->peer_count; i++) {
    if (connect->peers[i].opening != NULL) {
      bl__link_lose(connect->peers[i].opening, BL_CANCELLED, "the connect it belonged to has ended");
    }
  }
  connect->done(connect->user, status, err);
  free_connect(connect);
}

static void fail(bl_hub_t *hub, const bl__connect_peer_t *peer, bl_status_t status, const char *text) {
  bl_error_t err;
  status = bl_error_set(&err, status, "data path to %s: %s", BL__NAME(hub, peer->stage), text);
  bl__connect_finish(hub, status, &err);
}

// Whether the connection may be of either kind: on nccl it carries words only.
static bool is_free(const bl__connect_t *connect) {
  return connect->path == BL_PATH_AUTO || connect->path == BL_PATH_NCCL;
}

// Which path to try now, and why.
static bl_path_t choose(const bl_hub_t *hub, const bl__connect_t *connect, const bl__connect_peer_t *peer, char *reason,
                        size_t reason_bytes) {
  bl_path_t path = BL_PATH_TCP;
  const char *why, *no_ipc = peer->no_ipc;
  if (!is_free(connect)) {
    path = connect->path;
    why = "asked for";
  } else if (hub->unix_address[0] == '\0' || peer->unix_address[0] == '\0') {
    why = "there is no unix socket at both ends";
  } else if (!bl_machine_same(hub->machine, peer->machine)) {
    why = "peer is on another machine";
  } else {
    const bool ipc = connect->path == BL_PATH_AUTO && hub->puller != NULL && peer->no_ipc[0] == '\0';
    path = ipc ? BL_PATH_CUDA_IPC : BL_PATH_SHM;
    why = "same machine";
    no_ipc = hub->device != NULL && hub->puller == NULL ? hub->endpoint.closed : no_ipc;
  }
  const char *note = "";
  if (path == BL_PATH_TCP && hub->tls != NULL) {
    note = ", encrypted";
  } else if (path == BL_PATH_CUDA_IPC && hub->endpoint.legacy_ipc) {
    note = ", legacy handles of memory";
  }
  snprintf(reason, reason_bytes, "%s: %s%s%s%.100s", bl_path_name(path), why, note,
           no_ipc[0] != '\0' ? "; not cuda-ipc: " : "", no_ipc);
  return path;
}

static bl_status_t open_link(bl_hub_t *hub, const bl__connect_t *connect, bl__connect_peer_t *peer, bl_path_t path,
                             const char *reason, bl_error_t *err) {
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
  if (!bl_address_is_local(&address) && hub->tls == NULL && !hub->plaintext_ok) {
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
  peer->opening = bl__link_open(hub, fd, path, true);
  if (peer->opening == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a link");
  }
  peer->opening->wants_nccl = is_free(connect) && path != BL_PATH_CUDA_IPC;
  bl__link_name(peer->opening, peer->stage, peer->token, reason);
  return BL_OK;
}

// Opens by tcp after shm did not work out, under `auto`. False when the operation has ended.
static bool fall_back(bl_hub_t *hub, const bl__connect_t *connect, bl__connect_peer_t *peer, const char *why) {
  char reason[BL_HUB_REASON_BYTES];
  bl_error_t err = {0};
  snprintf(reason, sizeof reason, "tcp: shm failed: %.150s", why);
  if (open_link(hub, connect, peer, BL_PATH_TCP, reason, &err) != BL_OK) {
    bl_error_prefix(&err, "neither shm (%.200s) nor tcp", why);
    fail(hub, peer, err.status, err.text);
    return false;
  }
  return true;
}

static bool open_peer(bl_hub_t *hub, const bl__connect_t *connect, bl__connect_peer_t *peer);

// Cuda-ipc did not work out: refused where it is asked for, else the next best. False when the operation has ended.
static bool fall_from_ipc(bl_hub_t *hub, const bl__connect_t *connect, bl__connect_peer_t *peer, bl_status_t status,
                          const char *why) {
  char text[BL_HUB_REASON_BYTES];
  if (connect->path == BL_PATH_CUDA_IPC) {
    snprintf(text, sizeof text, "cuda-ipc is asked for: %.150s", why);
    fail(hub, peer, status, text);
    return false;
  }
  snprintf(peer->no_ipc, sizeof peer->no_ipc, "%s", why);
  return open_peer(hub, connect, peer);
}

// False when the operation has ended.
static bool open_peer(bl_hub_t *hub, const bl__connect_t *connect, bl__connect_peer_t *peer) {
  char reason[BL_HUB_REASON_BYTES];
  bl_error_t err = {0};
  bl_path_t path = choose(hub, connect, peer, reason, sizeof reason);
  if (path == BL_PATH_CUDA_IPC && !bl_machine_same(hub->machine, peer->machine)) {
    return fall_from_ipc(hub, connect, peer, BL_PRECONDITION, "peer is on another machine");
  }
  if (open_link(hub, connect, peer, path, reason, &err) == BL_OK) {
    return true;
  }
  if (path == BL_PATH_CUDA_IPC) {
    return fall_from_ipc(hub, connect, peer, err.status, err.text);
  }
  if (path == BL_PATH_SHM && is_free(connect)) {
    return fall_back(hub, connect, peer, err.text);
  }
  fail(hub, peer, err.status, err.text);
  return false;
}

// True when the peer's link is up already; one to an older incarnation of it is given up.
static bool has_link(bl_hub_t *hub, const bl__connect_peer_t *wanted, bl_path_t path) {
  pthread_mutex_lock(&hub->mutex);
  bl__peer_t *peer = bl__hub_add(hub, wanted->stage);
  bl__link_t *link = peer != NULL ? peer->link : NULL;
  pthread_mutex_unlock(&hub->mutex);
  if (link == NULL) {
    return false;
  }
  if (memcmp(link->peer_token, wanted->token, BL_HUB_TOKEN_BYTES) != 0) {
    bl__link_lose(link, BL_UNAVAILABLE, "%s has been restarted", BL__NAME(link->hub, wanted->stage));
    return false;
  }
  if (link->direct != NULL && (path == BL_PATH_AUTO || path == BL_PATH_NCCL)) {
    return bl__direct_is_up(link);
  }
  if (path != BL_PATH_AUTO && (link->direct != NULL || link->path != path)) {
    if (hub->stage < wanted->stage) { // the side that opens may change its mind
      bl__link_lose(link, BL_UNAVAILABLE, "%s is asked for now", bl_path_name(path));
    }
    return false;
  }
  return true;
}

static void fail_without_nccl(bl_hub_t *hub, const bl__connect_peer_t *peer, const bl__link_t *link) {
  char text[BL_HUB_REASON_BYTES];
  snprintf(text, sizeof text, "nccl is asked for: %.150s", link->obstacle);
  fail(hub, peer, link->obstacle_status, text);
}

// A link that the lower stage made for nccl before this connect began, and on which it cannot be: nobody makes another.
static const bl__link_t *link_without_nccl(bl_hub_t *hub, const bl__connect_t *connect,
                                           const bl__connect_peer_t *wanted) {
  pthread_mutex_lock(&hub->mutex);
  const bl__peer_t *peer = bl__hub_find(hub, wanted->stage);
  const bl__link_t *link = peer != NULL ? peer->link : NULL;
  pthread_mutex_unlock(&hub->mutex);
  const bool ours = link != NULL && memcmp(link->peer_token, wanted->token, BL_HUB_TOKEN_BYTES) == 0;
  const bool cannot = ours && link->direct == NULL && link->wants_nccl && link->obstacle_status != BL_OK;
  return connect->path == BL_PATH_NCCL && hub->stage > wanted->stage && cannot ? link : NULL;
}

// Whether this end can do what is asked for, whoever opens the link.
static bl_status_t check_asked(const bl_hub_t *hub, const bl__connect_t *connect, bl_error_t *err) {
  if (connect->path != BL_PATH_CUDA_IPC || hub->puller != NULL) {
    return BL_OK;
  }
  return bl_error_set(err, BL_PRECONDITION, "cuda-ipc is asked for: %s: %s", BL__NAME(hub, hub->stage),
                      hub->device != NULL ? hub->endpoint.closed : "its memory is the host's");
}

static void start(bl_hub_t *hub, bl__connect_t *connect) {
  hub->connect_started = true;
  bl_error_t err;
  // Twins are made before others wait for this end.
  if (connect->peer_count > 0 && (check_asked(hub, connect, &err) != BL_OK ||
                                  (connect->path == BL_PATH_SHM && bl__hub_hold_twins(hub, &err) != BL_OK))) {
    fail(hub, &connect->peers[0], err.status, err.text);
    return; // the operation has ended and is freed
  }
  for (size_t i = 0; i < connect->peer_count; i++) {
    bl__connect_peer_t *peer = &connect->peers[i];
    bool up = has_link(hub, peer, connect->path);
    pthread_mutex_lock(&hub->mutex);
    peer->up = up;
    pthread_mutex_unlock(&hub->mutex);
  }
  for (size_t i = 0; i < connect->peer_count; i++) {
    bl__connect_peer_t *peer = &connect->peers[i];
    const bl__link_t *without = link_without_nccl(hub, connect, peer);
    if (without != NULL) {
      fail_without_nccl(hub, peer, without);
      return; // the operation has ended and is freed
    }
    if (!peer->up && hub->stage < peer->stage && !open_peer(hub, connect, peer)) {
      return; // as above
    }
  }
}

void bl__connect_run(bl_hub_t *hub) {
  bl__assert_transfer(hub);
  bl__connect_t *connect = current(hub);
  if (connect == NULL) {
    return;
  }
  if (!hub->connect_started) {
    bl__hub_watch_time(hub);
    start(hub, connect);
    connect = current(hub);
    if (connect == NULL) {
      return;
    }
  }
  const bl__connect_peer_t *missing = NULL;
  for (size_t i = 0; i < connect->peer_count && missing == NULL; i++) {
    missing = connect->peers[i].up ? NULL : &connect->peers[i];
  }
  if (missing == NULL) {
    bl__connect_finish(hub, BL_OK, NULL);
  } else if (bl_clock_now_ns() >= connect->deadline_ns) {
    fail(hub, missing, BL_DEADLINE,
         missing->stage > hub->stage ? "it did not answer before the deadline"
                                     : "it did not connect before the deadline; is it connecting too?");
  }
}

void bl__connect_up(bl_hub_t *hub, bl__link_t *link) {
  bl__connect_t *connect = current(hub);
  bl__connect_peer_t *peer = hub->connect_started ? find_peer(connect, link->stage) : NULL;
  if (peer == NULL || memcmp(peer->token, link->peer_token, BL_HUB_TOKEN_BYTES) != 0) {
    return;
  }
  peer->opening = NULL;
  bl__hub_wake(hub); // pairs that come later may make their communicators now
  const bl_path_t path = link->direct != NULL ? BL_PATH_NCCL : link->path;
  if (connect->path == BL_PATH_NCCL && link->wants_nccl && link->direct == NULL) {
    fail_without_nccl(hub, peer, link);
    return;
  }
  if (connect->path != BL_PATH_AUTO && connect->path != path) {
    char text[96];
    snprintf(text, sizeof text, "it connected by %s, %s is asked for; give all stages the same path",
             bl_path_name(path), bl_path_name(connect->path));
    fail(hub, peer, BL_INVALID, text);
    return;
  }
  pthread_mutex_lock(&hub->mutex);
  peer->up = true;
  pthread_mutex_unlock(&hub->mutex);
  bl__connect_run(hub);
}

void bl__connect_failed(bl_hub_t *hub, bl__link_t *link, bl_status_t status, const char *text) {
  bl__connect_t *connect = current(hub);
  bl__connect_peer_t *peer = find_peer(connect, link->stage);
  if (peer == NULL || peer->opening != link) {
    return;
  }
  peer->opening = NULL;
  if (link->path == BL_PATH_CUDA_IPC) {
    (void)fall_from_ipc(hub, connect, peer, status, text);
  } else if (link->path == BL_PATH_SHM && is_free(connect)) {
    fall_back(hub, connect, peer, text);
  } else {
    fail(hub, peer, status, text);
  }
}

void bl__connect_lost(bl_hub_t *hub, int32_t stage, bl_status_t status, const char *text) {
  bl__connect_peer_t *peer = find_peer(current(hub), stage);
  if (peer != NULL && peer->up) {
    fail(hub, peer, status, text);
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

static bl_status_t copy_peer(const bl_hub_t *hub, bl__connect_t *connect, const bl_hub_peer_t *from, bl_error_t *err) {
  if (from->stage < 0 || from->stage == hub->stage || find_peer(connect, from->stage) != NULL) {
    return bl_error_set(err, BL_INVALID, "data path: %s as a peer of %s: negative, itself or twice",
                        BL__NAME(hub, from->stage), BL__NAME(hub, hub->stage));
  }
  bl__connect_peer_t *to = &connect->peers[connect->peer_count++];
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

bl_status_t bl_hub_connect(bl_hub_t *hub, const bl_hub_peer_t *peers, size_t peer_count, bl_path_t path,
                           uint64_t deadline_ns, bl_hub_connected_fn done, void *user, bl_error_t *err) {
  if (peer_count > BL_HUB_MAX_PEERS) {
    return bl_error_set(err, BL_INVALID, "data path: %zu peers, at most %d", peer_count, BL_HUB_MAX_PEERS);
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
    if ((status = copy_peer(hub, connect, &peers[i], err)) != BL_OK) {
      goto free_connect;
    }
  }
  pthread_mutex_lock(&hub->mutex);
  bool busy = hub->connect != NULL;
  if (!busy) {
    hub->connect = connect;
  }
  pthread_mutex_unlock(&hub->mutex);
  if (busy) {
    status = bl_error_set(err, BL_PRECONDITION, "data path: a connect is in progress; wait for it");
    goto free_connect;
  }
  bl__hub_wake(hub);
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

bl_status_t bl_hub_connect_wait(bl_hub_t *hub, const bl_hub_peer_t *peers, size_t peer_count, bl_path_t path,
                                uint64_t deadline_ns, bl_error_t *err) {
  outcome_t outcome = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
  bl_status_t status = bl_hub_connect(hub, peers, peer_count, path, deadline_ns, on_done, &outcome, err);
  if (status != BL_OK) {
    return status;
  }
  pthread_mutex_lock(&outcome.mutex);
  while (!outcome.done) { // ends by the deadline: the hub watches it
    pthread_cond_wait(&outcome.ended, &outcome.mutex);
  }
  pthread_mutex_unlock(&outcome.mutex);
  if (outcome.status != BL_OK && err != NULL) {
    *err = outcome.err;
  }
  return outcome.status;
}

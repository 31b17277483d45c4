// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/nccl.h"

#include "datapath/device_path.h"
#include "fake_gpu/nccl_group.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define IDS         64u
#define PIECE_BYTES (256u << 10) // at most, per question

fake_nccl_faults_t fake_nccl_faults;

// Ids of this process whose second rank has not come: as NCCL does, it listens where an id was drawn.
static struct {
  pthread_mutex_t mutex;
  unsigned next;
  struct {
    char name[BL_NCCL_ID_BYTES];
    int fd;
  } ids[IDS];
} drawn = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// Of this process, under NCCL_LAUNCH_ORDER_IMPLICIT.
#define ORDERED 4096u
static struct {
  pthread_mutex_t mutex;
  unsigned launching, count;
  bool started[ORDERED]; // by number of the launch, a ring
} order = {.mutex = PTHREAD_MUTEX_INITIALIZER};

typedef struct launch {
  uint8_t *at;                 // its bytes
  uint64_t bytes, moved, stop; // stop: where it stalls; UINT64_MAX: nowhere
  unsigned number;             // in the order of the process
  bool over;
} launch_t;

static fake_identity_t own; // as it was when this process asked for NCCL

struct bl_nccl_comm {
  fake_group_t *group;    // NULL: a channel
  int rank, listener, fd; // -1: none
  bool introduced, made;
  fake_identity_t peer;
  size_t peer_bytes;
  bl_nccl_result_t failed; // DONE: it has not
  char why[128];
  launch_t launches[BL_NCCL_IN_FLIGHT]; // by count
  unsigned launched, ended, posted;     // counts; receiver: receives announced, sender: receives heard of
  uint64_t expected[BL_NCCL_IN_FLIGHT]; // sender: sizes of these
  unsigned counts[BL_NCCL_IN_FLIGHT];   // of tickets
  uint8_t heard[8];
  size_t heard_bytes;
  bool launching; // the last one
  uint8_t greeting[BL_NCCL_GREETING_BYTES];
};

static fake_nccl_translate_fn translate;

static struct sockaddr_un address_of(const char *name, socklen_t *length) {
  struct sockaddr_un address = {.sun_family = AF_UNIX}; // abstract: nothing is left of it
  size_t bytes = strnlen(name, BL_NCCL_ID_BYTES - 1);
  bytes = bytes < sizeof address.sun_path - 1 ? bytes : sizeof address.sun_path - 1;
  memcpy(address.sun_path + 1, name, bytes);
  *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

static bl_nccl_result_t new_id(const bl_nccl_api_t *api, uint8_t id[BL_NCCL_ID_BYTES], char *text) {
  (void)api;
  uint64_t random = 0;
  char name[BL_NCCL_ID_BYTES] = "";
  socklen_t length;
  if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
    return BL_NCCL_BROKEN;
  }
  snprintf(name, sizeof name, "ballast-fake-nccl-%ld-%016llx", (long)getpid(), (unsigned long long)random);
  struct sockaddr_un address = address_of(name, &length);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 1) != 0) {
    snprintf(text, BL_NCCL_TEXT_BYTES, "fake id: %s", strerror(errno));
    if (fd >= 0) {
      close(fd);
    }
    return BL_NCCL_BROKEN;
  }
  pthread_mutex_lock(&drawn.mutex);
  unsigned at = drawn.next++ % IDS;
  if (drawn.ids[at].name[0] != '\0') {
    close(drawn.ids[at].fd); // nobody has used it for long
  }
  memcpy(drawn.ids[at].name, name, sizeof name);
  drawn.ids[at].fd = fd;
  pthread_mutex_unlock(&drawn.mutex);
  memcpy(id, name, BL_NCCL_ID_BYTES);
  return BL_NCCL_DONE;
}

// The listening socket of an id that was drawn here and that nobody uses yet; -1: it is another's.
static int take_listener(const char *name) {
  int fd = -1;
  pthread_mutex_lock(&drawn.mutex);
  for (unsigned i = 0; i < IDS && fd < 0; i++) {
    if (drawn.ids[i].name[0] != '\0' && strcmp(drawn.ids[i].name, name) == 0) {
      fd = drawn.ids[i].fd;
      drawn.ids[i].name[0] = '\0';
    }
  }
  pthread_mutex_unlock(&drawn.mutex);
  return fd;
}

static bl_nccl_result_t fail(bl_nccl_comm_t *comm, bl_nccl_result_t result, const char *why, char *text) {
  if (comm->failed == BL_NCCL_DONE) {
    comm->failed = result;
    snprintf(comm->why, sizeof comm->why, "%s", why);
  }
  snprintf(text, BL_NCCL_TEXT_BYTES, "%s", comm->why);
  return comm->failed;
}

static bl_nccl_result_t peer_gone(bl_nccl_comm_t *comm, char *text) {
  return fail(comm, BL_NCCL_PEER_FAILED, "remote process exited or there was a network error", text);
}

static bl_nccl_result_t create(const bl_nccl_api_t *api, const uint8_t id[BL_NCCL_ID_BYTES], int rank,
                               const bl_nccl_config_t *config, bl_nccl_comm_t **made, char *text) {
  (void)api;
  char name[BL_NCCL_ID_BYTES];
  memcpy(name, id, sizeof name);
  name[sizeof name - 1] = '\0';
  bl_nccl_comm_t *comm = calloc(1, sizeof *comm);
  *comm = (bl_nccl_comm_t){.rank = rank, .listener = take_listener(name), .fd = -1};
  *made = comm;
  atomic_fetch_add(&fake_nccl_faults.made, 1);
  if (config->group_ranks > 0) {
    if (comm->listener >= 0) { // the ranks have sockets of their own
      close(comm->listener);
      comm->listener = -1;
    }
    comm->group = fake_group_create(name, rank, config->group_ranks, &own);
    return BL_NCCL_IN_PROGRESS;
  }
  if (comm->listener >= 0) {
    return BL_NCCL_IN_PROGRESS;
  }
  socklen_t length;
  struct sockaddr_un address = address_of(name, &length);
  comm->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return comm->fd >= 0 && connect(comm->fd, (struct sockaddr *)&address, length) == 0 ? BL_NCCL_IN_PROGRESS
                                                                                      : peer_gone(comm, text);
}

static bool is_ordered(void) {
  const char *implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return implicit != NULL && strcmp(implicit, "0") != 0;
}

static bool begin_launch(bl_nccl_comm_t *comm, launch_t *launch) {
  pthread_mutex_lock(&order.mutex);
  const bool alone = order.launching == 0 || !is_ordered();
  order.launching++;
  launch->number = order.count++;
  order.started[launch->number % ORDERED] = false;
  pthread_mutex_unlock(&order.mutex);
  comm->launching = true;
  return alone;
}

// Whether the launch of the last one is over.
static bool end_launch(bl_nccl_comm_t *comm) {
  const unsigned number = comm->launches[(comm->launched - 1) % BL_NCCL_IN_FLIGHT].number;
  pthread_mutex_lock(&order.mutex);
  comm->launching = is_ordered() && number > 0 && !order.started[(number - 1) % ORDERED];
  order.launching -= !comm->launching;
  pthread_mutex_unlock(&order.mutex);
  return !comm->launching;
}

// Both halves of it are there.
static void start(const launch_t *launch) {
  pthread_mutex_lock(&order.mutex);
  order.started[launch->number % ORDERED] = true;
  pthread_mutex_unlock(&order.mutex);
}

// ---- bytes: what can move now, without waiting. Never more than a piece.

static bl_nccl_result_t ended_read(bl_nccl_comm_t *comm, ssize_t got, char *text) {
  return got < 0 && errno == EAGAIN ? BL_NCCL_DONE : peer_gone(comm, text);
}

static uint64_t piece_of(const launch_t *launch) {
  uint64_t end = launch->stop < launch->bytes ? launch->stop : launch->bytes, rest = end - launch->moved;
  return rest < PIECE_BYTES ? rest : PIECE_BYTES;
}

static void finish(bl_nccl_comm_t *comm, launch_t *launch) {
  if (launch->moved == launch->bytes) {
    launch->over = true;
    comm->ended++;
  }
}

static bl_nccl_result_t receive(bl_nccl_comm_t *comm, char *text) {
  while (comm->posted < comm->launched) { // the peer may send for these
    const launch_t *launch = &comm->launches[comm->posted % BL_NCCL_IN_FLIGHT];
    if (send(comm->fd, &launch->bytes, sizeof launch->bytes, MSG_NOSIGNAL) != (ssize_t)sizeof launch->bytes) {
      return peer_gone(comm, text);
    }
    comm->posted++;
  }
  char nothing;
  launch_t *launch = &comm->launches[comm->ended % BL_NCCL_IN_FLIGHT];
  uint64_t piece = comm->ended < comm->launched ? piece_of(launch) : 0;
  if (piece == 0) { // only to see whether the peer lives
    ssize_t got = recv(comm->fd, &nothing, 1, MSG_PEEK);
    return got > 0 ? BL_NCCL_DONE : ended_read(comm, got, text);
  }
  ssize_t got = recv(comm->fd, launch->at + launch->moved, piece, 0);
  if (got <= 0) {
    return ended_read(comm, got, text);
  }
  start(launch);
  launch->moved += (uint64_t)got;
  finish(comm, launch);
  return BL_NCCL_DONE;
}

static bl_nccl_result_t send_some(bl_nccl_comm_t *comm, char *text) {
  ssize_t got = recv(comm->fd, comm->heard + comm->heard_bytes, sizeof comm->heard - comm->heard_bytes, 0);
  if (got <= 0 && ended_read(comm, got, text) != BL_NCCL_DONE) {
    return comm->failed;
  }
  comm->heard_bytes += got > 0 ? (size_t)got : 0;
  if (comm->heard_bytes == sizeof comm->heard) {
    memcpy(&comm->expected[comm->posted++ % BL_NCCL_IN_FLIGHT], comm->heard, sizeof comm->heard);
    comm->heard_bytes = 0;
  }
  launch_t *launch = &comm->launches[comm->ended % BL_NCCL_IN_FLIGHT];
  if (comm->ended == comm->launched || comm->ended == comm->posted) {
    return BL_NCCL_DONE;
  }
  if (comm->expected[comm->ended % BL_NCCL_IN_FLIGHT] != launch->bytes) {
    return fail(comm, BL_NCCL_BROKEN, "the sizes of a send and its receive differ", text);
  }
  start(launch);
  uint64_t piece = piece_of(launch);
  ssize_t sent = piece > 0 ? send(comm->fd, launch->at + launch->moved, piece, MSG_NOSIGNAL) : 0;
  if (sent < 0) {
    return ended_read(comm, sent, text);
  }
  launch->moved += (uint64_t)sent;
  finish(comm, launch);
  return BL_NCCL_DONE;
}

static bl_nccl_result_t advance(bl_nccl_comm_t *comm, char *text) {
  if (comm->failed != BL_NCCL_DONE) {
    return fail(comm, comm->failed, comm->why, text);
  }
  return comm->rank == 0 ? send_some(comm, text) : receive(comm, text);
}

// ---- the table

// Whether both ranks know of each other; they may not be on one GPU of one host.
static bl_nccl_result_t rendezvous(bl_nccl_comm_t *comm, char *text) {
  if (!comm->introduced && send(comm->fd, &own, sizeof own, MSG_NOSIGNAL) != (ssize_t)sizeof own) {
    return peer_gone(comm, text);
  }
  comm->introduced = true;
  if (comm->peer_bytes < sizeof comm->peer) {
    ssize_t got = recv(comm->fd, (char *)&comm->peer + comm->peer_bytes, sizeof comm->peer - comm->peer_bytes, 0);
    if (got <= 0 && ended_read(comm, got, text) != BL_NCCL_DONE) {
      return comm->failed;
    }
    comm->peer_bytes += got > 0 ? (size_t)got : 0;
  }
  if (comm->peer_bytes < sizeof comm->peer) {
    return BL_NCCL_IN_PROGRESS;
  }
  if (strcmp(own.host, comm->peer.host) == 0 && strcmp(own.gpu, comm->peer.gpu) == 0) {
    char why[sizeof comm->why];
    snprintf(why, sizeof why, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %.48s", comm->rank,
             !comm->rank, own.gpu);
    return fail(comm, BL_NCCL_BROKEN, why, text);
  }
  return BL_NCCL_DONE;
}

static bl_nccl_result_t poll_comm(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, char *text) {
  (void)api;
  if (comm->group != NULL) {
    return fake_group_poll(comm->group, text);
  }
  if (comm->failed != BL_NCCL_DONE) {
    return fail(comm, comm->failed, comm->why, text);
  }
  if (!comm->made) {
    if (comm->fd < 0) {
      comm->fd = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    bl_nccl_result_t met = comm->fd >= 0 ? rendezvous(comm, text) : BL_NCCL_IN_PROGRESS;
    if (met != BL_NCCL_DONE) {
      return met;
    }
    comm->made = !atomic_load(&fake_nccl_faults.never_made);
    return comm->made ? BL_NCCL_DONE : BL_NCCL_IN_PROGRESS;
  }
  bl_nccl_result_t result = advance(comm, text);
  return result == BL_NCCL_DONE && comm->launching && !end_launch(comm) ? BL_NCCL_IN_PROGRESS : result;
}

static bl_nccl_result_t launch(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, void *buffer, uint64_t bytes,
                               uint32_t ticket, char *text) {
  (void)api;
  if (comm->group != NULL) {
    return BL_NCCL_DONE; // all ranks have met
  }
  const bool greets = buffer == NULL; // faults are of what users send
  if (!greets && atomic_load(&fake_nccl_faults.launch_fails)) {
    return fail(comm, BL_NCCL_BROKEN, "unhandled cuda error", text);
  }
  unsigned number = greets ? 0 : atomic_fetch_add(&fake_nccl_faults.transfers, 1) + 1;
  bool stalls = !greets && number == atomic_load(&fake_nccl_faults.stall);
  comm->counts[ticket] = comm->launched;
  launch_t *launched = &comm->launches[comm->launched++ % BL_NCCL_IN_FLIGHT];
  *launched = (launch_t){.at = greets ? comm->greeting : translate(buffer, bytes, comm->rank == 1),
                         .bytes = bytes,
                         .stop = stalls ? bytes / 2 : UINT64_MAX};
  if (!begin_launch(comm, launched)) {
    return fail(comm, BL_NCCL_BROKEN, "invalid usage: host threads racing to launch", text);
  }
  bl_nccl_result_t result = advance(comm, text);
  return result == BL_NCCL_DONE ? BL_NCCL_IN_PROGRESS : result;
}

static bl_nccl_result_t over(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, uint32_t ticket, char *text) {
  (void)api;
  if (comm->group != NULL) {
    return BL_NCCL_DONE;
  }
  bl_nccl_result_t result = advance(comm, text);
  if (result != BL_NCCL_DONE) {
    return result;
  }
  return comm->counts[ticket] < comm->ended ? BL_NCCL_DONE : BL_NCCL_IN_PROGRESS;
}

static bl_nccl_result_t exchange(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, bl_device_stream_t *stream,
                                 const bl_nccl_piece_t *pieces, uint32_t count, char *text) {
  (void)api;
  bl_nccl_piece_t *found = calloc(count, sizeof *found);
  bool known = true;
  for (uint32_t i = 0; i < count; i++) {
    found[i] = pieces[i];
    found[i].buffer = translate(pieces[i].buffer, pieces[i].bytes, !pieces[i].sends);
    known = known && found[i].buffer != NULL;
  }
  bl_nccl_result_t result = BL_NCCL_BROKEN;
  if (known) {
    result = fake_group_collect(comm->group, stream, found, count, text);
  } else {
    snprintf(text, BL_NCCL_TEXT_BYTES, "invalid argument: no memory of the device");
  }
  free(found);
  return result;
}

static bl_nccl_result_t gather(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, bl_device_stream_t *stream, void *window,
                               uint64_t block_bytes, char *text) {
  bl_nccl_piece_t pieces[2 * BL_NCCL_GROUP_RANKS];
  const uint32_t own_rank = fake_group_rank(comm->group), ranks = fake_group_ranks(comm->group);
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < ranks; rank++) {
    for (int sends = 0; sends < 2 && rank != own_rank; sends++) {
      pieces[count++] = (bl_nccl_piece_t){.buffer = (char *)window + (sends ? own_rank : rank) * block_bytes,
                                          .bytes = block_bytes,
                                          .rank = rank,
                                          .sends = sends != 0};
    }
  }
  return exchange(api, comm, stream, pieces, count, text);
}

static void abort_comm(const bl_nccl_api_t *api, bl_nccl_comm_t *comm) {
  (void)api;
  const char *held = getenv("FAKE_NCCL_HELD");
  while (held != NULL && access(held, F_OK) == 0) {
    usleep(2000);
  }
  if (comm->group != NULL) {
    fake_group_abort(comm->group);
  }
  if (comm->launching) {
    pthread_mutex_lock(&order.mutex);
    order.launching--;
    pthread_mutex_unlock(&order.mutex);
  }
  if (comm->fd >= 0) {
    close(comm->fd);
  }
  if (comm->listener >= 0) {
    close(comm->listener);
  }
  free(comm);
  atomic_fetch_add(&fake_nccl_faults.aborted, 1);
}

static void introduce(const char *gpu) {
  const char *host = getenv("NCCL_HOSTID");
  own = (fake_identity_t){0};
  if (host != NULL) {
    snprintf(own.host, sizeof own.host, "%s", host);
  } else {
    (void)gethostname(own.host, sizeof own.host - 1);
  }
  snprintf(own.gpu, sizeof own.gpu, "%s", gpu);
}

const bl_nccl_api_t *fake_nccl_api(fake_nccl_translate_fn where, const char *gpu) {
  static bl_nccl_api_t table;
  const char *version = getenv("FAKE_NCCL_VERSION"), *stall = getenv("FAKE_NCCL_STALL");
  translate = where;
  if (gpu != NULL) {
    introduce(gpu);
  }
  if (table.version == 0) {
    atomic_store(&fake_nccl_faults.stall, stall != NULL ? (unsigned)strtoul(stall, NULL, 10) : 0);
    atomic_store(&fake_nccl_faults.never_made, getenv("FAKE_NCCL_NEVER_MADE") != NULL);
  }
  table = (bl_nccl_api_t){.version = version != NULL ? atoi(version) : 22809,
                          .new_id = new_id,
                          .create = create,
                          .poll = poll_comm,
                          .launch = launch,
                          .over = over,
                          .gather = gather,
                          .exchange = exchange,
                          .abort = abort_comm};
  return &table;
}

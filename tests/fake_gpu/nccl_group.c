// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/nccl_group.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PIECE_BYTES (256u << 10) // moved at once

fake_nccl_queue_fn fake_nccl_queue;

typedef struct {
  uint32_t rank;
  fake_identity_t identity;
} contact_t;

typedef struct {
  uint64_t bytes;
  uint64_t collective;
} head_t;

typedef struct {
  int fd; // -1: none
  bool introduced;
  contact_t contact;
  size_t contact_bytes;
} peer_t;

struct fake_group {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint32_t rank, ranks;
  char id[BL_NCCL_ID_BYTES];
  fake_identity_t own;
  int listener;
  peer_t peers[BL_NCCL_GROUP_RANKS];
  int strangers[BL_NCCL_GROUP_RANKS]; // accepted, and not yet introduced; -1: free
  contact_t contacts[BL_NCCL_GROUP_RANKS];
  size_t contact_bytes[BL_NCCL_GROUP_RANKS];
  bool made;
  bl_nccl_result_t failed; // [m] DONE: it has not
  char why[128];           // [m]
  bool aborted;            // [m]
  uint32_t queued;         // [m] tasks on streams
  uint64_t collectives;
};

static bl_nccl_result_t fail(fake_group_t *group, bl_nccl_result_t result, const char *why) {
  pthread_mutex_lock(&group->mutex);
  if (group->failed == BL_NCCL_DONE) {
    group->failed = result;
    snprintf(group->why, sizeof group->why, "%s", why);
  }
  pthread_mutex_unlock(&group->mutex);
  return result;
}

static bl_nccl_result_t peer_gone(fake_group_t *group) {
  return fail(group, BL_NCCL_PEER_FAILED, "remote process exited or there was a network error");
}

static bl_nccl_result_t state_of(fake_group_t *group, char *text) {
  pthread_mutex_lock(&group->mutex);
  const bl_nccl_result_t failed = group->failed;
  if (failed != BL_NCCL_DONE) {
    snprintf(text, BL_NCCL_TEXT_BYTES, "%s", group->why);
  }
  pthread_mutex_unlock(&group->mutex);
  return failed;
}

// ---- all ranks find each other: a rank connects to those below it

static struct sockaddr_un address_of(const fake_group_t *group, uint32_t rank, socklen_t *length) {
  struct sockaddr_un address = {.sun_family = AF_UNIX}; // abstract: nothing is left of it
  const int bytes = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%.80s-%u", group->id, rank);
  *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
  return address;
}

static int new_socket(void) {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

fake_group_t *fake_group_create(const char *id, int rank, uint32_t ranks, const fake_identity_t *own) {
  fake_group_t *group = calloc(1, sizeof *group);
  pthread_mutex_init(&group->mutex, NULL);
  pthread_cond_init(&group->changed, NULL);
  group->rank = (uint32_t)rank;
  group->ranks = ranks;
  group->own = *own;
  snprintf(group->id, sizeof group->id, "%s", id);
  for (uint32_t i = 0; i < BL_NCCL_GROUP_RANKS; i++) {
    group->peers[i].fd = group->strangers[i] = -1;
  }
  socklen_t length;
  struct sockaddr_un address = address_of(group, group->rank, &length);
  group->listener = new_socket();
  if (group->listener < 0 || bind(group->listener, (struct sockaddr *)&address, length) != 0 ||
      listen(group->listener, (int)ranks) != 0) {
    (void)fail(group, BL_NCCL_BROKEN, strerror(errno));
  }
  return group;
}

uint32_t fake_group_rank(const fake_group_t *group) {
  return group->rank;
}

uint32_t fake_group_ranks(const fake_group_t *group) {
  return group->ranks;
}

// Reads the contact of whoever is at the other end. Whether it is there.
static bool read_contact(fake_group_t *group, int fd, contact_t *contact, size_t *bytes) {
  const ssize_t got = recv(fd, (char *)contact + *bytes, sizeof *contact - *bytes, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN)) {
    (void)peer_gone(group);
  }
  *bytes += got > 0 ? (size_t)got : 0;
  return *bytes == sizeof *contact;
}

static void send_contact(fake_group_t *group, int fd) {
  contact_t own = {.rank = group->rank, .identity = group->own};
  if (send(fd, &own, sizeof own, MSG_NOSIGNAL) != (ssize_t)sizeof own) {
    (void)peer_gone(group);
  }
}

static void know(fake_group_t *group, uint32_t rank, int fd, const contact_t *contact) {
  peer_t *peer = &group->peers[rank];
  *peer = (peer_t){.fd = fd, .introduced = true, .contact = *contact, .contact_bytes = sizeof *contact};
  if (group->own.gpu[0] != '\0' && strcmp(group->own.host, contact->identity.host) == 0 &&
      strcmp(group->own.gpu, contact->identity.gpu) == 0) {
    char why[128];
    snprintf(why, sizeof why, "Duplicate GPU detected : rank %u and rank %u both on CUDA device %.40s", group->rank,
             rank, group->own.gpu);
    (void)fail(group, BL_NCCL_BROKEN, why);
  }
}

static void connect_down(fake_group_t *group, uint32_t rank) {
  peer_t *peer = &group->peers[rank];
  if (peer->fd < 0) {
    socklen_t length;
    struct sockaddr_un address = address_of(group, rank, &length);
    const int fd = new_socket();
    if (connect(fd, (struct sockaddr *)&address, length) != 0) { // it is not there yet
      close(fd);
      return;
    }
    peer->fd = fd;
    send_contact(group, fd);
  }
  if (!peer->introduced && read_contact(group, peer->fd, &peer->contact, &peer->contact_bytes)) {
    const contact_t contact = peer->contact;
    know(group, rank, peer->fd, &contact);
  }
}

static void accept_up(fake_group_t *group) {
  for (int fd; (fd = accept4(group->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    uint32_t at = 0;
    while (group->strangers[at] >= 0) {
      at++;
    }
    group->strangers[at] = fd;
    group->contact_bytes[at] = 0;
    send_contact(group, fd);
  }
  for (uint32_t i = 0; i < group->ranks; i++) {
    const int fd = group->strangers[i];
    if (fd >= 0 && read_contact(group, fd, &group->contacts[i], &group->contact_bytes[i])) {
      group->strangers[i] = -1;
      know(group, group->contacts[i].rank, fd, &group->contacts[i]);
    }
  }
}

bl_nccl_result_t fake_group_poll(fake_group_t *group, char *text) {
  bool all = true;
  for (uint32_t rank = 0; rank < group->rank && !group->made; rank++) {
    connect_down(group, rank);
  }
  if (!group->made) {
    accept_up(group);
  }
  for (uint32_t rank = 0; rank < group->ranks; rank++) {
    all = all && (rank == group->rank || group->peers[rank].introduced);
  }
  group->made = group->made || (all && !atomic_load(&fake_nccl_faults.never_made));
  const bl_nccl_result_t failed = state_of(group, text);
  return failed != BL_NCCL_DONE ? failed : group->made ? BL_NCCL_DONE : BL_NCCL_IN_PROGRESS;
}

// ---- collectives

typedef struct {
  fake_group_t *group;
  uint64_t number;
  uint32_t count;
  struct {
    bl_nccl_piece_t piece;
    head_t head;
    size_t head_bytes;
    uint64_t moved;
    bool over;
  } parts[];
} collective_t;

static bool is_over(fake_group_t *group) {
  pthread_mutex_lock(&group->mutex);
  const bool over = group->aborted || group->failed != BL_NCCL_DONE;
  pthread_mutex_unlock(&group->mutex);
  return over;
}

// Moves what can be moved of `bytes` at `at`, from *moved on. False: the peer is gone.
static bool move_some(int fd, bool sends, uint8_t *at, uint64_t bytes, uint64_t *moved) {
  const uint64_t rest = bytes - *moved, most = rest < PIECE_BYTES ? rest : PIECE_BYTES;
  if (most == 0) {
    return true;
  }
  const ssize_t done = sends ? send(fd, at + *moved, most, MSG_NOSIGNAL) : recv(fd, at + *moved, most, 0);
  *moved += done > 0 ? (uint64_t)done : 0;
  return done > 0 || (done < 0 && errno == EAGAIN);
}

// The first part of this rank and direction that is not over; the count: none.
static uint32_t next_of(const collective_t *collective, uint32_t rank, bool sends) {
  uint32_t i = 0;
  while (i < collective->count && (collective->parts[i].over || collective->parts[i].piece.rank != rank ||
                                   collective->parts[i].piece.sends != sends)) {
    i++;
  }
  return i;
}

static void advance(collective_t *collective, uint32_t i) {
  fake_group_t *group = collective->group;
  const bl_nccl_piece_t *piece = &collective->parts[i].piece;
  const int fd = group->peers[piece->rank].fd;
  head_t *head = &collective->parts[i].head;
  if (piece->sends) {
    *head = (head_t){.bytes = piece->bytes, .collective = collective->number};
  }
  uint64_t head_moved = collective->parts[i].head_bytes;
  if (!move_some(fd, piece->sends, (uint8_t *)head, sizeof *head, &head_moved)) {
    (void)peer_gone(group);
    return;
  }
  collective->parts[i].head_bytes = (size_t)head_moved;
  if (head_moved < sizeof *head) {
    return;
  }
  if (head->bytes != piece->bytes || head->collective != collective->number) {
    (void)fail(group, BL_NCCL_BROKEN, "the collectives of two ranks differ");
    return;
  }
  if (!move_some(fd, piece->sends, piece->buffer, piece->bytes, &collective->parts[i].moved)) {
    (void)peer_gone(group);
  }
  collective->parts[i].over = collective->parts[i].moved == piece->bytes;
}

static void run(void *argument) {
  collective_t *collective = *(collective_t **)argument;
  fake_group_t *group = collective->group;
  for (bool left = true; left && !is_over(group);) {
    struct pollfd fds[BL_NCCL_GROUP_RANKS];
    nfds_t count = 0;
    left = false;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
      short events = 0;
      for (int sends = 0; sends < 2; sends++) {
        const uint32_t i = next_of(collective, rank, sends != 0);
        if (i < collective->count) {
          advance(collective, i);
        }
        events |= next_of(collective, rank, sends != 0) < collective->count ? (sends ? POLLOUT : POLLIN) : 0;
      }
      if (events != 0) {
        left = true;
        fds[count++] = (struct pollfd){.fd = group->peers[rank].fd, .events = events};
      }
    }
    if (left) {
      (void)poll(fds, count, 1);
    }
  }
  free(collective);
  pthread_mutex_lock(&group->mutex);
  group->queued--;
  pthread_cond_broadcast(&group->changed);
  pthread_mutex_unlock(&group->mutex);
}

bl_nccl_result_t fake_group_collect(fake_group_t *group, bl_device_stream_t *stream, const bl_nccl_piece_t *pieces,
                                    uint32_t count, char *text) {
  const bl_nccl_result_t failed = state_of(group, text);
  if (failed != BL_NCCL_DONE) {
    return failed;
  }
  collective_t *collective = calloc(1, sizeof *collective + count * sizeof collective->parts[0]);
  collective->group = group;
  collective->number = ++group->collectives;
  collective->count = count;
  for (uint32_t i = 0; i < count; i++) {
    collective->parts[i].piece = pieces[i];
  }
  pthread_mutex_lock(&group->mutex);
  group->queued++;
  pthread_mutex_unlock(&group->mutex);
  if (fake_nccl_queue != NULL) {
    fake_nccl_queue(stream, run, &collective, sizeof(collective_t *));
  } else {
    run(&collective);
  }
  return BL_NCCL_DONE;
}

void fake_group_abort(fake_group_t *group) {
  pthread_mutex_lock(&group->mutex);
  group->aborted = true;
  while (group->queued > 0) {
    pthread_cond_wait(&group->changed, &group->mutex);
  }
  pthread_mutex_unlock(&group->mutex);
  for (uint32_t i = 0; i < BL_NCCL_GROUP_RANKS; i++) {
    const int fds[] = {group->peers[i].fd, group->strangers[i]};
    for (int k = 0; k < 2; k++) {
      if (fds[k] >= 0) {
        close(fds[k]);
      }
    }
  }
  close(group->listener);
  pthread_cond_destroy(&group->changed);
  pthread_mutex_destroy(&group->mutex);
  free(group);
}

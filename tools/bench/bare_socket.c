// SPDX-License-Identifier: Apache-2.0
#ifdef BALLAST_BENCH_PATH
#include "bare_socket.h"

#include "datapath/address.h"
#include "datapath/socket.h"
#include "sys/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

typedef struct feeder {
  const bl_bare_run_t *run;
  int fd, errno_value;
} feeder_t;

static void *feed(void *argument) {
  feeder_t *feeder = argument;
  const bl_bare_run_t *run = feeder->run;
  for (uint32_t i = 0; i < run->count; i++) {
    const uint8_t *from = run->from + i % run->places * run->bytes;
    for (uint64_t done = 0; done < run->bytes;) {
      ssize_t sent = write(feeder->fd, from + done, run->bytes - done);
      if (sent < 0) {
        feeder->errno_value = errno;
        return NULL;
      }
      done += (uint64_t)sent;
    }
  }
  return NULL;
}

bl_status_t bl_bare_socket_run(bl_bare_socket_t *bare, const bl_bare_run_t *run, double *seconds, bl_error_t *err) {
  pthread_t thread;
  feeder_t feeder = {.run = run, .fd = bare->fds[0]};
  bl_status_t status = BL_OK;
  uint64_t start_ns = bl_clock_now_ns();
  if (pthread_create(&thread, NULL, feed, &feeder) != 0) {
    return bl_error_set(err, BL_EXHAUSTED, "no thread for the bare socket");
  }
  for (uint32_t i = 0; i < run->count && status == BL_OK; i++) {
    uint8_t *to = run->to + i % run->places * run->bytes;
    for (uint64_t done = 0; done < run->bytes && status == BL_OK;) {
      ssize_t got = read(bare->fds[1], to + done, run->bytes - done);
      if (got <= 0) {
        status = bl_error_set(err, BL_IO, "the bare socket broke: %s", strerror(errno));
      }
      done += got > 0 ? (uint64_t)got : 0;
    }
  }
  pthread_join(thread, NULL);
  *seconds = (double)(bl_clock_now_ns() - start_ns) * 1e-9;
  if (status == BL_OK && feeder.errno_value != 0) {
    status = bl_error_set(err, BL_IO, "the bare socket broke: %s", strerror(feeder.errno_value));
  }
  return status;
}

bl_status_t bl_bare_socket_open(bl_bare_socket_t *bare, bool large_buffers, bl_error_t *err) {
  bl_address_t address;
  int listener;
  *bare = (bl_bare_socket_t){.fds = {-1, -1}};
  bl_status_t status = bl_address_resolve("127.0.0.1", 0, &address, err);
  if (status != BL_OK || (status = bl_socket_listen(&address, &listener, &address, err)) != BL_OK) {
    return status;
  }
  status = bl_socket_connect(&address, &bare->fds[0], err);
  if (status == BL_OK) {
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    poll(&wait, 1, 5000);
    bare->fds[1] = bl_socket_accept(listener);
    if (bare->fds[1] < 0) {
      status = bl_error_set(err, BL_IO, "accept on loopback: %s", strerror(errno));
      bl_bare_socket_close(bare);
    }
  }
  for (int i = 0; i < 2 && status == BL_OK; i++) {
    bl_socket_set_blocking(bare->fds[i]);
    if (large_buffers) {
      bl_socket_enlarge_buffers(bare->fds[i]);
    }
  }
  close(listener);
  return status;
}

void bl_bare_socket_close(bl_bare_socket_t *bare) {
  for (int i = 0; i < 2; i++) {
    if (bare->fds[i] >= 0) {
      close(bare->fds[i]);
    }
    bare->fds[i] = -1;
  }
}
#endif

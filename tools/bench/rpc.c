// SPDX-License-Identifier: Apache-2.0
// Unary calls per second through lib/rpc (protobuf-c, completion-queue thread, loop), compared with the same traffic on
// gRPC C core alone, on one TCP connection within this machine. Both alternate; ratios are taken per pair.
#include "bench.h"

#include "bare_rpc/echo.h"
#include "base/sort.h"
#include "measure.h"
#include "program.h"
#include "rpc_wire.h"
#include "sys/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define PAIRS_MAX 99

typedef struct {
  int64_t calls, pairs;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, calls, "calls", "4000", 1, 10000000,
                 "Calls per sample with 1 in flight; five times as many with 64."),
    BL_BENCH_PAIRS(settings_t, pairs, "7", PAIRS_MAX, "both"),
};

static const bl_flags_t flags = {.program = "ballast-bench rpc",
                                 .usage = "[options]",
                                 .about = "Unary calls per second, ours against gRPC C core alone, in turns.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// ---- the server on lib/rpc, with its own loop and thread ------------------------------------------------------------

typedef struct {
  bl_message_t stop;
  bl_loop_t *loop;
  bl_rpc_server_t *server;
  pthread_t thread;
  pthread_barrier_t started;
  char address[BL_RPC_ADDRESS_BYTES];
  bl_status_t status;
  bl_error_t err;
} server_t;

static void on_stopped(bl_rpc_server_t *server, void *context) {
  (void)server;
  bl_loop_stop(((server_t *)context)->loop);
}

static void on_stop(bl_message_t *message) {
  server_t *self = BL_MESSAGE_OWNER(message, server_t, stop);
  bl_rpc_server_shutdown(self->server, 1000, on_stopped, self);
}

static void *serve(void *argument) {
  server_t *self = argument;
  bl_rpc_t *rpc = NULL;
  self->status = bl_loop_create(&self->loop, &self->err);
  if (self->status == BL_OK) {
    self->status = bl_rpc_create(self->loop, &rpc, &self->err);
  }
  if (self->status == BL_OK) {
    self->status = bl_rpc_server_create(rpc, NULL, &self->server, &self->err);
  }
  if (self->status == BL_OK) {
    self->status = bl_bench_commit_serve(self->server, &self->err);
  }
  if (self->status == BL_OK) {
    self->status = bl_rpc_server_listen(self->server, "127.0.0.1:0", self->address, sizeof self->address, &self->err);
  }
  if (self->status == BL_OK) {
    self->status = bl_rpc_server_start(self->server, &self->err);
  }
  bool serving = self->status == BL_OK;
  pthread_barrier_wait(&self->started);
  if (serving) {
    bl_loop_run(self->loop);
  }
  bl_rpc_server_destroy(self->server);
  bl_rpc_destroy(rpc);
  bl_loop_destroy(self->loop);
  return NULL;
}

static bl_status_t start_server(server_t *self, bl_error_t *err) {
  self->stop.handle = on_stop;
  pthread_barrier_init(&self->started, NULL, 2);
  if (pthread_create(&self->thread, NULL, serve, self) != 0) {
    return bl_error_set(err, BL_EXHAUSTED, "no thread for the server");
  }
  pthread_barrier_wait(&self->started);
  if (self->status != BL_OK) {
    pthread_join(self->thread, NULL);
    *err = self->err;
  }
  return self->status;
}

static void stop_server(server_t *self) {
  bl_loop_post(self->loop, &self->stop);
  pthread_join(self->thread, NULL);
  pthread_barrier_destroy(&self->started);
}

// ---- the client on lib/rpc ------------------------------------------------------------------------------------------

typedef struct {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  unsigned calls, started, finished;
  bl_status_t status;
  bl_error_t err;
} client_t;

static void on_done(const ProtobufCMessage *output, const bl_error_t *err, void *context);

static void start_one(client_t *self) {
  if (bl_bench_commit_start(self->channel, ++self->started, on_done, self, &self->err) != BL_OK) {
    self->status = self->err.status;
    self->started--;
  }
}

static void on_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  client_t *self = context;
  self->finished++;
  if (err->status != BL_OK) {
    self->status = err->status;
    self->err = *err;
  } else if (bl_bench_commit_applied(output) == 0) {
    self->status = bl_error_set(&self->err, BL_DATA_LOSS, "the echo is not what was sent");
  }
  if (self->status == BL_OK && self->started < self->calls) {
    start_one(self);
  }
  if (self->finished == self->started) {
    bl_loop_stop(self->loop);
  }
}

static bl_status_t create_client(client_t *self, const char *address, bl_error_t *err) {
  bl_status_t status = bl_loop_create(&self->loop, err);
  if (status == BL_OK) {
    status = bl_rpc_create(self->loop, &self->rpc, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_channel_create(self->rpc, address, NULL, &self->channel, err);
  }
  return status;
}

static void destroy_client(client_t *self) {
  bl_rpc_channel_destroy(self->channel);
  bl_rpc_destroy(self->rpc);
  bl_loop_destroy(self->loop);
}

static bl_status_t run_client(client_t *self, unsigned in_flight, unsigned calls, bl_error_t *err) {
  self->calls = calls;
  self->started = self->finished = 0;
  self->status = BL_OK;
  for (unsigned i = 0; i < in_flight && self->status == BL_OK && self->started < calls; i++) {
    start_one(self);
  }
  if (self->started > 0) {
    bl_loop_run(self->loop);
  }
  if (self->status != BL_OK) {
    *err = self->err;
  }
  return self->status;
}

// ---- pairs ----------------------------------------------------------------------------------------------------------

typedef struct {
  client_t ours;
  bl_bare_client_t *bare;
  uint8_t message[BL_BENCH_COMMIT_BYTES];
  size_t message_bytes;
} pair_t;

static bl_status_t time_ours(pair_t *pair, unsigned in_flight, unsigned calls, double *seconds, bl_error_t *err) {
  uint64_t start_ns = bl_clock_now_ns();
  bl_status_t status = run_client(&pair->ours, in_flight, calls, err);
  *seconds = (double)(bl_clock_now_ns() - start_ns) / BL_NS_PER_S;
  return status;
}

static bl_status_t time_bare(pair_t *pair, unsigned in_flight, unsigned calls, double *seconds, bl_error_t *err) {
  uint64_t start_ns = bl_clock_now_ns();
  bl_status_t status = bl_bare_client_run(pair->bare, pair->message, pair->message_bytes, in_flight, calls);
  *seconds = (double)(bl_clock_now_ns() - start_ns) / BL_NS_PER_S;
  return status == BL_OK ? BL_OK : bl_error_set(err, status, "the baseline's call failed");
}

static bl_status_t measure(pair_t *pair, unsigned in_flight, unsigned calls, unsigned pairs, bl_error_t *err) {
  double ours[PAIRS_MAX] = {0}, bare[PAIRS_MAX] = {0}, ratios[PAIRS_MAX], warm;
  bl_status_t status = time_ours(pair, in_flight, calls / 4 + 1, &warm, err); // connects and fills pools
  if (status == BL_OK) {
    status = time_bare(pair, in_flight, calls / 4 + 1, &warm, err);
  }
  for (unsigned i = 0; i < pairs && status == BL_OK; i++) {
    status = time_ours(pair, in_flight, calls, &ours[i], err);
    if (status == BL_OK) {
      status = time_bare(pair, in_flight, calls, &bare[i], err);
    }
    ratios[i] = bare[i] / ours[i];
  }
  if (status == BL_OK) {
    double ours_rate = calls / bl_median(ours, pairs), bare_rate = calls / bl_median(bare, pairs);
    printf("rpc in_flight=%u calls_per_second=%.0f bare=%.0f ratio=%.3f\n", in_flight, ours_rate, bare_rate,
           bl_median(ratios, pairs));
  }
  return status;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  server_t server = {.status = BL_OK};
  bl_bare_server_t *bare_server;
  pair_t pair = {.message_bytes = 0};
  pair.message_bytes = bl_bench_commit_pack(7, pair.message);
  bl_status_t status = start_server(&server, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_bare_server_start(BL_BENCH_COMMIT_PATH, &bare_server);
  if (status != BL_OK) {
    (void)bl_error_set(err, status, "the baseline's server does not start");
    goto stop_server;
  }
  status = bl_bare_client_create(bl_bare_server_port(bare_server), BL_BENCH_COMMIT_PATH, &pair.bare);
  if (status != BL_OK) {
    (void)bl_error_set(err, status, "the baseline's client does not start");
    goto stop_bare_server;
  }
  status = create_client(&pair.ours, server.address, err);
  if (status == BL_OK) {
    status = measure(&pair, 1, (unsigned)settings->calls, (unsigned)settings->pairs, err);
  }
  if (status == BL_OK) {
    status = measure(&pair, 64, 5 * (unsigned)settings->calls, (unsigned)settings->pairs, err);
  }
  destroy_client(&pair.ours);
  bl_bare_client_destroy(pair.bare);
stop_bare_server:
  bl_bare_server_stop(bare_server);
stop_server:
  stop_server(&server);
  return status;
}

int bl_bench_rpc(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}

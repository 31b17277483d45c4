// SPDX-License-Identifier: Apache-2.0
// activation-store: lends memory under leases, as a gRPC service (ballast.v1.Store), with its health on a port of its own.
#include "config/flags.h"
#include "loop/lifeline.h"
#include "loop/loop.h"
#include "loop/signal.h"
#include "loop/timer.h"
#include "pool.h"
#include "rpc/health.h"
#include "rpc/server.h"
#include "service_wire.h"
#include "sys/clock.h"
#include "sys/host.h"
#include "sys/log.h"
#include "sys/runtime.h"
#include "sys/version.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEALTH_NAME   "ballast.v1.Store"
#define DRAIN_MS      2000 // for calls that are under way, once nothing is held any more
#define DRAIN_POLL_MS 50

typedef struct arguments {
  char *listen, *health_listen, *data_listen;
  int64_t lifeline_fd, ready_fd, threads;
  int64_t capacity_bytes, flow_bytes;
  int64_t max_jobs, max_sessions, max_leases;
  double ttl_seconds, grace_seconds, drain_seconds;
  bool plaintext, version;
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)
static const bl_option_t rows[] = {
    {.name = "listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(listen),
     .argument = "ADDR",
     .preset = "127.0.0.1:7800",
     .help = "Where to serve: unix:/path or host:port (port 0 takes a free one)."},
    {.name = "health-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(health_listen),
     .argument = "ADDR",
     .help = "Where to serve grpc.health.v1, in plaintext. Without it there is no health port."},
    {.name = "data-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_listen),
     .argument = "unix:/path",
     .help = "Where holders reach the data path. Default: beside the control socket, or in the run-time folder."},
    {.name = "capacity",
     .type = BL_OPTION_BYTES,
     .offset = ROW(capacity_bytes),
     .preset = "1 GiB",
     .minimum = 65536,
     .maximum = 1e18,
     .help = "Memory to lend, all jobs together. It is taken job by job, when the first session of one opens."},
    {.name = "max-jobs",
     .type = BL_OPTION_INT,
     .offset = ROW(max_jobs),
     .preset = "64",
     .minimum = 1,
     .maximum = 65535,
     .help = "Jobs at a time."},
    {.name = "max-sessions",
     .type = BL_OPTION_INT,
     .offset = ROW(max_sessions),
     .preset = "256",
     .minimum = 1,
     .maximum = 65535,
     .help = "Holders at a time."},
    {.name = "max-leases",
     .type = BL_OPTION_INT,
     .offset = ROW(max_leases),
     .preset = "65536",
     .minimum = 1,
     .maximum = 100000000,
     .help = "Rooms at a time; about 160 bytes of memory each."},
    {.name = "flow",
     .type = BL_OPTION_BYTES,
     .offset = ROW(flow_bytes),
     .preset = "0",
     .minimum = 0,
     .maximum = 1e18,
     .help = "Bytes in flight per session; 0 is no limit. One block always may."},
    {.name = "ttl",
     .type = BL_OPTION_REAL,
     .offset = ROW(ttl_seconds),
     .preset = "10",
     .minimum = 2,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long a session lives without a sign of life, if its holder asks for nothing else."},
    {.name = "grace",
     .type = BL_OPTION_REAL,
     .offset = ROW(grace_seconds),
     .preset = "10",
     .minimum = 0.1,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long after that it keeps what it has, unless the room is needed."},
    {.name = "drain",
     .type = BL_OPTION_REAL,
     .offset = ROW(drain_seconds),
     .preset = "30",
     .minimum = 0,
     .maximum = 86400,
     .unit = "seconds",
     .help = "On SIGTERM: how long to wait for holders to let go of what they have."},
    {.name = "threads",
     .type = BL_OPTION_INT,
     .offset = ROW(threads),
     .preset = "1",
     .minimum = 1,
     .maximum = BL_POOL_THREADS_MAX,
     .help = "Transfer threads."},
    {.name = "plaintext",
     .type = BL_OPTION_BOOL,
     .offset = ROW(plaintext),
     .help = "Allow plaintext on addresses that are neither loopback nor unix sockets."},
    {.name = "lifeline-fd",
     .type = BL_OPTION_INT,
     .offset = ROW(lifeline_fd),
     .preset = "-1",
     .minimum = -1,
     .maximum = INT_MAX,
     .help = "End when this inherited pipe is closed at its other end."},
    {.name = "ready-fd",
     .type = BL_OPTION_INT,
     .offset = ROW(ready_fd),
     .preset = "-1",
     .minimum = -1,
     .maximum = INT_MAX,
     .help = "Write 'ready ADDR HEALTH_ADDR' to this inherited pipe once serving."},
    {.name = "version", .type = BL_OPTION_BOOL, .offset = ROW(version), .help = "Print the version and end."},
};

static const bl_flags_t flags = {
    .program = "activation-store",
    .usage = "[--listen ADDR] [--capacity BYTES] [options]",
    .about =
        "Lends memory under leases: pipeline stages that have too little park activation blocks here and load them "
        "back before they need them.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
};

typedef struct program {
  arguments_t arguments;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_server_t *server;
  bl_rpc_health_t *health;
  bl_service_t *service;
  bl_signal_t *interrupt, *terminate;
  bl_lifeline_t *lifeline;
  bl_timer_t *drain_timer;
  uint64_t drain_until_ms;
  char data_address[PATH_MAX];
  int exit_code;
  bool draining, stopping, server_started, health_started;
} program_t;

// ---- the end

static void stop_when_quiet(program_t *self) {
  if (!self->server_started && !self->health_started) {
    bl_loop_stop(self->loop);
  }
}

static void server_stopped(bl_rpc_server_t *server, void *context) {
  program_t *self = context;
  bl_rpc_server_destroy(server);
  self->server = NULL;
  self->server_started = false;
  stop_when_quiet(self);
}

static void health_stopped(bl_rpc_health_t *health, void *context) {
  program_t *self = context;
  bl_rpc_health_destroy(health);
  self->health = NULL;
  self->health_started = false;
  stop_when_quiet(self);
}

static void stop(void *context, int exit_code) {
  program_t *self = context;
  if (self->stopping) {
    return;
  }
  self->stopping = true;
  self->exit_code = exit_code;
  if (self->health_started) {
    bl_rpc_health_shutdown(self->health, health_stopped, self);
  }
  if (self->server_started) {
    bl_service_end_calls(self->service);
    bl_rpc_server_shutdown(self->server, DRAIN_MS, server_stopped, self);
  }
  stop_when_quiet(self);
}

// Waits until nobody holds anything, but not for ever. A second signal ends the wait.
static void on_drain_poll(bl_timer_t *timer, void *context) {
  (void)timer;
  program_t *self = context;
  bl_lease_table_t *table = bl_store_table(bl_service_store(self->service));
  bool late = bl_loop_now_ms(self->loop) >= self->drain_until_ms;
  if (bl_lease_table_is_drained(table) || late) {
    bl_timer_stop(self->drain_timer);
    if (!bl_lease_table_is_drained(table)) {
      bl_log(BL_LOG_WARNING, "ending although leases are held: the time to drain is over");
    }
    stop(self, 0);
  }
}

static void signalled(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  program_t *self = context;
  bl_log(BL_LOG_INFO, "%s on %s", self->draining ? "ending" : "draining", strsignal(number));
  if (self->draining || number != SIGTERM || self->service == NULL) {
    stop(self, 0);
    return;
  }
  self->draining = true;
  if (self->health != NULL) {
    bl_rpc_health_set(self->health, "", false);
    bl_rpc_health_set(self->health, HEALTH_NAME, false);
  }
  bl_lease_table_drain(bl_store_table(bl_service_store(self->service)), true);
  bl_store_settle(bl_service_store(self->service));
  self->drain_until_ms = bl_loop_now_ms(self->loop) + (uint64_t)(self->arguments.drain_seconds * 1000);
  bl_timer_start(self->drain_timer, 0, DRAIN_POLL_MS);
}

static void parent_gone(bl_lifeline_t *lifeline, void *context) {
  (void)lifeline;
  bl_log(BL_LOG_INFO, "ending: the process that started this one is gone");
  stop(context, 0);
}

// ---- the beginning

// Where the data path listens: a socket beside the control socket, or in the run-time folder.
static bl_status_t choose_data_path(program_t *self, bl_error_t *err) {
  const arguments_t *arguments = &self->arguments;
  const char *listen = arguments->listen;
  bool is_unix = strncmp(listen, "unix:", 5) == 0;
  if (!is_unix && !arguments->plaintext) {
    char host[256];
    bl_status_t status = bl_host_of_address(listen, host, sizeof host, err);
    if (status != BL_OK) {
      return status;
    }
    if (!bl_host_is_loopback(host)) {
      return bl_error_set(err, BL_DENIED,
                          "--listen %s: plaintext is refused off the loopback interface; --plaintext allows it",
                          listen);
    }
  }
  if (arguments->data_listen != NULL) {
    snprintf(self->data_address, sizeof self->data_address, "%s", arguments->data_listen);
  } else if (is_unix) {
    snprintf(self->data_address, sizeof self->data_address, "%s.data", listen);
  } else {
    char folder[PATH_MAX - 64];
    bl_status_t status = bl_runtime_folder(folder, sizeof folder, err);
    if (status != BL_OK) {
      return status;
    }
    snprintf(self->data_address, sizeof self->data_address, "unix:%s/store-%ld.data", folder, (long)getpid());
  }
  return BL_OK;
}

static bl_status_t start_service(program_t *self, bl_error_t *err) {
  bl_status_t status = choose_data_path(self, err);
  if (status != BL_OK) {
    return status;
  }
  const arguments_t *arguments = &self->arguments;
  bl_store_options_t options = {.leases = {.capacity_bytes = (uint64_t)arguments->capacity_bytes,
                                           .max_jobs = (uint32_t)arguments->max_jobs,
                                           .max_sessions = (uint32_t)arguments->max_sessions,
                                           .max_leases = (uint32_t)arguments->max_leases,
                                           .session_flow_bytes = (uint64_t)arguments->flow_bytes,
                                           .ttl_ns = (uint64_t)(arguments->ttl_seconds * BL_NS_PER_S),
                                           .grace_ns = (uint64_t)(arguments->grace_seconds * BL_NS_PER_S)},
                                .data_address = self->data_address,
                                .transfer_threads = (unsigned)arguments->threads};
  return bl_service_create(self->loop, &options, &self->service, err);
}

static bl_status_t start_server(program_t *self, char address[BL_RPC_ADDRESS_BYTES],
                                char health_address[BL_RPC_ADDRESS_BYTES], bl_error_t *err) {
  bl_status_t status = bl_rpc_server_create(self->rpc, NULL, &self->server, err);
  if (status == BL_OK) {
    status = bl_service_serve(self->service, self->server, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_listen(self->server, self->arguments.listen, address, BL_RPC_ADDRESS_BYTES, err);
  }
  health_address[0] = '\0';
  if (status == BL_OK && self->arguments.health_listen != NULL) {
    status = bl_rpc_health_create(self->rpc, &self->health, err);
    if (status == BL_OK) {
      status =
          bl_rpc_health_listen(self->health, self->arguments.health_listen, health_address, BL_RPC_ADDRESS_BYTES, err);
    }
    self->health_started = status == BL_OK;
  }
  if (status == BL_OK) {
    status = bl_rpc_server_start(self->server, err);
    self->server_started = status == BL_OK;
  }
  if (status == BL_OK && self->health != NULL) {
    bl_rpc_health_set(self->health, "", true);
    bl_rpc_health_set(self->health, HEALTH_NAME, true);
  }
  return status;
}

static bl_status_t start(program_t *self, bl_error_t *err) {
  bl_status_t status = bl_loop_create(&self->loop, err);
  if (status == BL_OK) {
    status = bl_rpc_create(self->loop, &self->rpc, err);
  }
  if (status == BL_OK && self->arguments.lifeline_fd >= 0) {
    signal(SIGINT, SIG_IGN); // the parent decides what Ctrl-C means
    status = bl_lifeline_create(self->loop, (int)self->arguments.lifeline_fd, parent_gone, self, &self->lifeline, err);
  } else if (status == BL_OK) {
    status = bl_signal_create(self->loop, SIGINT, signalled, self, &self->interrupt, err);
  }
  if (status == BL_OK) {
    status = bl_signal_create(self->loop, SIGTERM, signalled, self, &self->terminate, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(self->loop, on_drain_poll, self, &self->drain_timer, err);
  }
  if (status == BL_OK) {
    status = start_service(self, err);
  }
  char address[BL_RPC_ADDRESS_BYTES], health_address[BL_RPC_ADDRESS_BYTES];
  if (status == BL_OK) {
    status = start_server(self, address, health_address, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_log(BL_LOG_INFO, "serving on %s", address);
  if (self->arguments.ready_fd >= 0) {
    char line[2 * BL_RPC_ADDRESS_BYTES + 16];
    snprintf(line, sizeof line, "ready %s %s", address, health_address);
    status = bl_ready_send((int)self->arguments.ready_fd, line, err);
  }
  return status;
}

static void cleanup(program_t *self) {
  bl_service_destroy(self->service);
  bl_timer_destroy(self->drain_timer);
  bl_lifeline_destroy(self->lifeline);
  bl_signal_destroy(self->interrupt);
  bl_signal_destroy(self->terminate);
  if (self->rpc != NULL) {
    bl_rpc_destroy(self->rpc);
  }
  if (self->loop != NULL) {
    bl_loop_destroy(self->loop);
  }
}

static int run(program_t *self) {
  bl_error_t err = {0};
  bl_status_t status = start(self, &err);
  if (status != BL_OK) {
    fprintf(stderr, "activation-store: %s\n", err.text);
    self->exit_code = bl_status_exit_code(status);
    stop(self, self->exit_code);
  }
  if (self->loop != NULL) {
    bl_loop_run(self->loop);
  }
  bl_rpc_server_destroy(self->server); // of a start that failed
  bl_rpc_health_destroy(self->health);
  cleanup(self);
  return self->exit_code;
}

int main(int argc, char **argv) {
  bl_log_init("activation-store", BL_LOG_INFO);
  static program_t self;
  bl_error_t err = {0};
  bl_flags_result_t result;
  bl_status_t status = bl_flags_parse(&flags, argc - 1, argv + 1, &self.arguments, &result, &err);
  int exit_code = 0;
  if (status != BL_OK) {
    fprintf(stderr, "%s\n", err.text); // names the program itself
    exit_code = bl_status_exit_code(status);
  } else if (result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (self.arguments.version) {
    bl_version_print("activation-store", stdout);
  } else {
    exit_code = run(&self);
  }
  bl_options_cleanup(&flags.table, &self.arguments);
  return exit_code;
}

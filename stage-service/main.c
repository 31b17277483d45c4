// SPDX-License-Identifier: Apache-2.0
// stage-service: one pipeline stage as a gRPC service (ballast.v1.Stage), with its health on a port of its own.
#include "config/flags.h"
#include "loop/lifeline.h"
#include "loop/loop.h"
#include "loop/signal.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/server.h"
#include "service_wire.h"
#include "sys/file.h"
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

#define HEALTH_NAME "ballast.v1.Stage"
#define DRAIN_MS    2000

typedef struct arguments {
  char *listen, *health_listen, *data_listen, *data_advertise;
  int64_t lifeline_fd, ready_fd, core;
  bool plaintext, version;
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)
static const bl_option_t rows[] = {
    {.name = "listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(listen),
     .argument = "ADDR",
     .preset = "127.0.0.1:7700",
     .help = "Where to serve the stage: unix:/path or host:port (port 0 takes a free one)."},
    {.name = "health-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(health_listen),
     .argument = "ADDR",
     .help = "Where to serve grpc.health.v1, in plaintext. Without it there is no health port."},
    {.name = "data-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_listen),
     .argument = "HOST",
     .help = "Host on which other stages reach the data path; its port is free to choose. Default: the host of "
             "--listen, or 127.0.0.1."},
    {.name = "data-advertise",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_advertise),
     .argument = "HOST",
     .help = "Host that other stages should use where --data-listen is a wildcard such as 0.0.0.0."},
    {.name = "plaintext",
     .type = BL_OPTION_BOOL,
     .offset = ROW(plaintext),
     .help = "Allow plaintext on addresses that are neither loopback nor unix sockets."},
    {.name = "core",
     .type = BL_OPTION_INT,
     .offset = ROW(core),
     .preset = "-1",
     .minimum = -1,
     .maximum = 65535,
     .help = "Pin the compute threads to the cores from this one on; -1 leaves them to the scheduler."},
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
    .program = "stage-service",
    .usage = "[--listen ADDR] [options]",
    .about = "One pipeline stage: holds a run of layers, computes what a driver asks for, and exchanges activations "
             "and gradients with its neighbours.",
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
  char data_path[PATH_MAX], data_host[256];
  int exit_code;
  bool stopping, server_started, health_started;
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

static void signalled(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  bl_log(BL_LOG_INFO, "ending on %s", strsignal(number));
  stop(context, 0);
}

static void parent_gone(bl_lifeline_t *lifeline, void *context) {
  (void)lifeline;
  bl_log(BL_LOG_INFO, "ending: the process that started this one is gone");
  stop(context, 0);
}

// ---- the beginning

// Where the data path listens: a socket beside the control socket, or in the run-time folder; and a host.
static bl_status_t choose_data_path(program_t *self, bl_error_t *err) {
  const arguments_t *arguments = &self->arguments;
  const char *listen = arguments->listen;
  if (strncmp(listen, "unix:", 5) == 0) {
    snprintf(self->data_path, sizeof self->data_path, "%s.data", listen + 5);
    snprintf(self->data_host, sizeof self->data_host, "127.0.0.1");
  } else {
    char folder[PATH_MAX - 64];
    bl_status_t status = bl_runtime_folder(folder, sizeof folder, err);
    if (status != BL_OK) {
      return status;
    }
    snprintf(self->data_path, sizeof self->data_path, "%s/stage-%ld.data", folder, (long)getpid());
    status = bl_host_of_address(listen, self->data_host, sizeof self->data_host, err);
    if (status != BL_OK) {
      return status;
    }
    if (!arguments->plaintext && !bl_host_is_loopback(self->data_host)) {
      return bl_error_set(err, BL_DENIED,
                          "--listen %s: plaintext is refused off the loopback interface; --plaintext allows it",
                          listen);
    }
  }
  if (arguments->data_listen != NULL) {
    snprintf(self->data_host, sizeof self->data_host, "%s", arguments->data_listen);
  }
  return BL_OK;
}

static bl_status_t start_service(program_t *self, bl_error_t *err) {
  bl_status_t status = choose_data_path(self, err);
  if (status != BL_OK) {
    return status;
  }
  bl_stage_options_t options = {.unix_path = self->data_path,
                                .tcp_host = self->data_host,
                                .tcp_advertise = self->arguments.data_advertise,
                                .plaintext_ok = self->arguments.plaintext,
                                .first_core = (int32_t)self->arguments.core};
  return bl_service_create(self->loop, &options, stop, self, &self->service, err);
}

static bl_status_t start_server(program_t *self, char address[BL_RPC_ADDRESS_BYTES],
                                char health_address[BL_RPC_ADDRESS_BYTES], bl_error_t *err) {
  bl_status_t status = bl_rpc_server_create(self->rpc, NULL, &self->server, err);
  if (status == BL_OK) {
    status = bl_service_serve(self->service, self->server, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_reflection_add(self->server, err);
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
  signal(SIGXFSZ, SIG_IGN); // a checkpoint over a limit on file sizes fails as on a full disk
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
    fprintf(stderr, "stage-service: %s\n", err.text);
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
  bl_log_init("stage-service", BL_LOG_INFO);
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
    bl_version_print("stage-service", stdout);
  } else {
    exit_code = run(&self);
  }
  bl_options_cleanup(&flags.table, &self.arguments);
  return exit_code;
}

// SPDX-License-Identifier: Apache-2.0
#include "service/daemon.h"

#include "loop/lifeline.h"
#include "loop/signal.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "service/access.h"
#include "service/process_metrics.h"
#include "sys/file_map.h"
#include "sys/log.h"
#include "sys/version.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_MS 2000 // time at the end for calls in flight

const char *const bl_daemon_log_formats[] = {"text", "json", NULL};
const char *const bl_daemon_describable[] = {"", "metrics", "flags", "man", "process", NULL};

struct bl_daemon {
  const bl_daemon_options_t *options;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_server_t *server;
  bl_rpc_health_t *health;
  bl_http_t *http;
  bl_registry_t *registry, *process; // metrics of the service and of the process
  bl_signal_t *interrupt, *terminate;
  bl_lifeline_t *lifeline;
  bl_tls_t *tls;
  char address[BL_RPC_ADDRESS_BYTES], health_address[BL_RPC_ADDRESS_BYTES], metrics_address[BL_HTTP_ADDRESS_BYTES];
  int exit_code;
  bool stopping, server_started, health_started;
};

bl_loop_t *bl_daemon_loop(const bl_daemon_t *daemon) {
  return daemon->loop;
}

bl_rpc_t *bl_daemon_rpc(const bl_daemon_t *daemon) {
  return daemon->rpc;
}

bl_registry_t *bl_daemon_registry(const bl_daemon_t *daemon) {
  return daemon->registry;
}

const char *bl_daemon_address(const bl_daemon_t *daemon) {
  return daemon->address;
}

const char *bl_daemon_metrics_address(const bl_daemon_t *daemon) {
  return daemon->metrics_address;
}

void bl_daemon_set_serving(bl_daemon_t *daemon, bool serving) {
  if (daemon->health != NULL) {
    bl_rpc_health_set(daemon->health, "", serving);
    bl_rpc_health_set(daemon->health, daemon->options->health_name, serving);
  }
}

void bl_daemon_set_ready(bl_daemon_t *daemon, bool ready) {
  if (daemon->health != NULL) {
    bl_rpc_health_set(daemon->health, daemon->options->health_name, ready);
  }
}

// ---- the end --------------------------------------------------------------------------------------------------------

static void stop_when_quiet(bl_daemon_t *self) {
  if (self->loop != NULL && !self->server_started && !self->health_started) {
    bl_loop_stop(self->loop);
  }
}

static void server_stopped(bl_rpc_server_t *server, void *context) {
  bl_daemon_t *self = context;
  bl_rpc_server_destroy(server);
  self->server = NULL;
  self->server_started = false;
  stop_when_quiet(self);
}

static void health_stopped(bl_rpc_health_t *health, void *context) {
  bl_daemon_t *self = context;
  bl_rpc_health_destroy(health);
  self->health = NULL;
  self->health_started = false;
  stop_when_quiet(self);
}

void bl_daemon_stop(bl_daemon_t *daemon, int exit_code) {
  if (daemon->stopping) {
    return;
  }
  daemon->stopping = true;
  daemon->exit_code = exit_code;
  if (daemon->health_started) {
    bl_rpc_health_shutdown(daemon->health, health_stopped, daemon);
  }
  if (daemon->server_started) {
    daemon->options->hooks.end_calls(daemon->options->context);
    bl_rpc_server_shutdown(daemon->server, DRAIN_MS, server_stopped, daemon);
  }
  stop_when_quiet(daemon);
}

void bl_daemon_fail(bl_daemon_t *daemon, const bl_error_t *err) {
  const char *program = daemon->options->flags->program; // errors of the command line already begin with it
  bool named = strncmp(err->text, program, strlen(program)) == 0;
  fprintf(stderr, "%s%s%s\n", named ? "" : program, named ? "" : ": ", err->text);
  bl_daemon_stop(daemon, bl_status_exit_code(err->status));
}

static void signalled(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  bl_daemon_t *self = context;
  if (self->options->hooks.signalled != NULL) {
    self->options->hooks.signalled(self, number, self->options->context);
    return;
  }
  bl_log(BL_LOG_INFO, "ending on %s", strsignal(number));
  bl_daemon_stop(self, 0);
}

static void parent_gone(bl_lifeline_t *lifeline, void *context) {
  (void)lifeline;
  bl_daemon_t *self = context;
  if (self->options->hooks.orphaned != NULL) {
    self->options->hooks.orphaned(self, self->options->context);
    return;
  }
  bl_log(BL_LOG_INFO, "ending: the process that started this one is gone");
  bl_daemon_stop(self, 0);
}

// ---- the beginning --------------------------------------------------------------------------------------------------

static bl_status_t watch_process(bl_daemon_t *self, bl_error_t *err) {
  const bl_daemon_arguments_t *common = self->options->common;
  bl_status_t status;
  if (common->lifeline_fd >= 0) {
    signal(SIGINT, SIG_IGN); // the parent decides what Ctrl-C means
    status = bl_lifeline_create(self->loop, (int)common->lifeline_fd, parent_gone, self, &self->lifeline, err);
  } else {
    status = bl_signal_create(self->loop, SIGINT, signalled, self, &self->interrupt, err);
  }
  if (status == BL_OK) {
    status = bl_signal_create(self->loop, SIGTERM, signalled, self, &self->terminate, err);
  }
  return status;
}

bl_tls_t *bl_daemon_tls(const bl_daemon_t *daemon) {
  return daemon->tls;
}

bl_status_t bl_daemon_secure(bl_daemon_t *self, const bl_tls_flags_t *more, bl_error_t *err) {
  const bl_tls_flags_t *given = &self->options->common->tls;
  const bool by_flags = given->ca != NULL || given->certificate != NULL || given->key != NULL || more == NULL;
  bl_tls_t *tls;
  bl_status_t status = bl_tls_create_from_flags(by_flags ? given : more, self->options->roles, &tls, err);
  if (status != BL_OK) {
    return status;
  }
  bl_tls_release(self->tls);
  self->tls = tls;
  const bl_rpc_security_t security = {
      .tls = tls, .plaintext_ok = given->plaintext || (more != NULL && more->plaintext), .access = bl_access_check};
  bl_rpc_secure_process(&security); // for rpcs that the service creates on its own threads
  bl_rpc_secure(self->rpc, &security);
  return BL_OK;
}

static bl_status_t start_server(bl_daemon_t *self, bl_error_t *err) {
  const bl_daemon_arguments_t *common = self->options->common;
  bl_status_t status = bl_rpc_server_create(self->rpc, NULL, &self->server, err);
  if (status == BL_OK) {
    status = self->options->hooks.serve(self->server, self->options->context, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_reflection_add(self->server, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_listen(self->server, common->listen, self->address, sizeof self->address, err);
  }
  return status;
}

static bl_status_t start_health(bl_daemon_t *self, bl_error_t *err) {
  const char *listen = self->options->common->health_listen;
  if (listen == NULL) {
    return BL_OK;
  }
  bl_status_t status = bl_rpc_health_create(self->rpc, &self->health, err);
  if (status == BL_OK) {
    status = bl_rpc_health_listen(self->health, listen, self->health_address, sizeof self->health_address, err);
    self->health_started = status == BL_OK;
  }
  return status;
}

static void answer_metrics(bl_daemon_t *self, bl_http_answer_t *answer) {
  if (self->options->hooks.collect != NULL) {
    self->options->hooks.collect(self->registry, self->options->context);
  }
  bl_process_metrics_collect(self->process, self->tls);
  FILE *stream = open_memstream(&answer->body, &answer->body_bytes);
  bool well = stream != NULL && bl_registry_write(self->registry, stream) == BL_OK &&
              bl_registry_write(self->process, stream) == BL_OK;
  if (stream != NULL && fclose(stream) != 0) {
    well = false;
  }
  if (!well) {
    free(answer->body);
    answer->body = NULL;
    answer->code = 503;
    return;
  }
  answer->type = BL_HTTP_TYPE_METRICS;
}

static void answer_http(const char *path, bl_http_answer_t *answer, void *context) {
  bl_daemon_t *self = context;
  if (strcmp(path, "/metrics") == 0) {
    answer_metrics(self, answer);
  } else if (self->options->hooks.http != NULL) {
    self->options->hooks.http(path, answer, self->options->context);
  }
}

static bl_status_t create_boards(bl_daemon_t *self, bl_error_t *err) {
  bl_status_t status = bl_registry_create(self->options->metrics, self->options->metric_count, &self->registry, err);
  if (status == BL_OK) {
    status = bl_registry_create(bl_process_metrics, BL_PROCESS_METRICS, &self->process, err);
  }
  if (status == BL_OK) {
    bl_process_metrics_collect(self->process, self->tls);
  }
  return status;
}

static bl_status_t start_http(bl_daemon_t *self, bl_error_t *err) {
  const char *listen = self->options->common->metrics_listen;
  if (listen == NULL) {
    return BL_OK;
  }
  const bool any = strcmp(listen, "auto") == 0;
  bl_status_t status = bl_http_create(self->loop, any ? "127.0.0.1:0" : listen, answer_http, self,
                                      self->metrics_address, &self->http, err);
  if (status != BL_OK && any) { // for example if the loopback interface is down: nobody asked for it explicitly
    bl_log(BL_LOG_WARNING, "no metrics: %s", err->text);
    self->metrics_address[0] = '\0';
    return BL_OK;
  }
  if (status == BL_OK) {
    bl_log(BL_LOG_INFO, "metrics on http://%s/metrics", self->metrics_address);
  }
  return status;
}

static bl_status_t tell_ready(const bl_daemon_t *self, bl_error_t *err) {
  const int fd = (int)self->options->common->ready_fd;
  if (fd < 0) {
    return BL_OK;
  }
  char line[2 * BL_RPC_ADDRESS_BYTES + 16];
  snprintf(line, sizeof line, "ready %s %s", self->address, self->health_address);
  return bl_ready_send(fd, line, err);
}

static bl_status_t start(bl_daemon_t *self, bl_error_t *err) {
  bl_file_map_log_faults();
  signal(SIGXFSZ, SIG_IGN); // a write beyond a file size limit then fails as on a full disk
  bl_status_t status = bl_loop_create(&self->loop, err);
  if (status == BL_OK) {
    status = bl_rpc_create(self->loop, &self->rpc, err);
  }
  if (status == BL_OK) {
    status = bl_daemon_secure(self, NULL, err);
  }
  if (status == BL_OK) {
    status = watch_process(self, err);
  }
  if (status == BL_OK) {
    status = create_boards(self, err);
  }
  if (status == BL_OK) {
    status = self->options->hooks.create(self, self->options->context, err);
  }
  if (status == BL_OK) {
    status = start_server(self, err);
  }
  if (status == BL_OK) {
    status = start_health(self, err);
  }
  if (status == BL_OK) {
    status = start_http(self, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_start(self->server, err);
    self->server_started = status == BL_OK;
  }
  if (status != BL_OK) {
    return status;
  }
  bl_daemon_set_serving(self, true);
  bl_log(BL_LOG_INFO, "serving on %s", self->address);
  status = tell_ready(self, err);
  if (status == BL_OK && self->options->hooks.ready != NULL) {
    self->options->hooks.ready(self->options->context);
  }
  return status;
}

// Blocks or unblocks the signals that end the process. New threads inherit the mask: those created while it is blocked
// never take them.
static void hold_signals(bool held) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(held ? SIG_BLOCK : SIG_UNBLOCK, &ends, NULL);
}

static void cleanup(bl_daemon_t *self) {
  bl_http_destroy(self->http);
  bl_rpc_server_destroy(self->server); // exists if the start failed
  bl_rpc_health_destroy(self->health);
  self->options->hooks.destroy(self->options->context);
  bl_lifeline_destroy(self->lifeline);
  hold_signals(true); // a second signal must not change the exit code
  bl_signal_destroy(self->interrupt);
  bl_signal_destroy(self->terminate);
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = NULL});
  if (self->rpc != NULL) {
    bl_rpc_destroy(self->rpc);
  }
  bl_tls_release(self->tls);
  if (self->loop != NULL) {
    bl_loop_destroy(self->loop);
  }
  bl_registry_destroy(self->registry);
  bl_registry_destroy(self->process);
}

static int run(const bl_daemon_options_t *options) {
  bl_daemon_t self = {.options = options};
  bl_error_t err = {0};
  hold_signals(true);
  bl_status_t status = start(&self, &err);
  hold_signals(false);
  if (status != BL_OK) {
    bl_daemon_fail(&self, &err);
  }
  if (self.loop != NULL) {
    bl_loop_run(self.loop);
  }
  cleanup(&self);
  return self.exit_code;
}

static void describe(const bl_daemon_options_t *options) {
  const bl_flags_t *flags = options->flags;
  switch (options->common->describe) {
  case 1:
    bl_registry_print_markdown(options->metrics, options->metric_count, stdout);
    break;
  case 2:
    bl_flags_print_markdown(flags, stdout);
    break;
  case 4: // metrics of every process
    bl_registry_print_markdown(bl_process_metrics, BL_PROCESS_METRICS, stdout);
    break;
  default:
    printf(".TH %s 1 \"\" \"Ballast %s\" \"Ballast\"\n.SH NAME\n%s \\- a service of Ballast\n.SH SYNOPSIS\n",
           flags->program, bl_version(), flags->program);
    bl_flags_print_man(flags, stdout);
    printf(".SH SEE ALSO\n.BR ballastctl (1)\n");
    break;
  }
}

static void print_version(const bl_daemon_options_t *options) {
  static const bl_library_t *const shared[] = {&bl_loop_library, &bl_rpc_library,     &bl_rpc_messages_library,
                                               &bl_tls_library,  &bl_options_library, &bl_http_library};
  bl_version_print(options->flags->program, stdout);
  bl_version_print_libraries(shared, sizeof shared / sizeof shared[0], stdout);
  bl_version_print_libraries(options->libraries, options->library_count, stdout);
  if (options->hooks.versions != NULL) {
    options->hooks.versions(stdout);
  }
}

int bl_daemon_main(const bl_daemon_options_t *options, int argc, char **argv) {
  const bl_flags_t *flags = options->flags;
  bl_log_init(flags->program, BL_LOG_INFO);
  bl_error_t err = {0};
  bl_flags_result_t result;
  bl_status_t status = bl_flags_parse(flags, argc - 1, argv + 1, options->arguments, &result, &err);
  int exit_code = 0;
  if (status != BL_OK) {
    fprintf(stderr, "%s\n", err.text); // begins with the program's name
    exit_code = bl_status_exit_code(status);
  } else if (result.help) {
    bl_flags_print_help(flags, stdout);
  } else if (options->common->version) {
    print_version(options);
  } else if (options->common->describe != 0) {
    describe(options);
  } else if (options->hooks.instead != NULL && options->hooks.instead(options->context, &exit_code)) {
    ; // nothing more to do
  } else {
    bl_log_json(options->common->log_format == 1);
    exit_code = run(options);
  }
  bl_options_cleanup(&flags->table, options->arguments);
  return exit_code;
}

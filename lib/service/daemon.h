// SPDX-License-Identifier: Apache-2.0
// The common part of the main() of our services: the common rows of the command line, the loop and its rpc, signals and
// lifeline, one server with reflection, the health port, the metrics port, the ready line, and an orderly end. A main
// file contains only its own rows and hooks:
//
//   typedef struct arguments { bl_daemon_arguments_t common; int64_t core; } arguments_t;
//   static const bl_option_t rows[] = {BL_DAEMON_ROWS(arguments_t, common, "127.0.0.1:7700"), {.name = "core", ...}};
//   static const bl_flags_t flags = {.program = "stage-service", ..., .table = {rows, N, "command line"}};
//
//   int main(int argc, char **argv) {
//     static program_t self;
//     const bl_daemon_options_t options = {.flags = &flags, .arguments = &self.arguments,
//         .common = &self.arguments.common, .health_name = "ballast.v1.Stage",
//         .hooks = {.create = create, .serve = serve, .end_calls = end_calls, .destroy = destroy}, .context = &self};
//     return bl_daemon_main(&options, argc, argv);
//   }
//
// Order: create, serve, (everything listens, healthy) ready, ... , end_calls, (server stopped) destroy. A failed start
// prints its error, calls destroy, and ends with the exit code of the status.
// The process ends on SIGTERM, SIGINT (not with a lifeline: then the parent decides what Ctrl-C means), the end of the
// lifeline, and bl_daemon_stop.
// Thread: the main thread, which becomes the loop's. Every hook is called there.
#ifndef BALLAST_SERVICE_DAEMON_H
#define BALLAST_SERVICE_DAEMON_H

#include "config/flags.h"
#include "observe/http.h"
#include "observe/registry.h"
#include "rpc/server.h"
#include "tls/flags.h"

#include <limits.h>

typedef struct bl_daemon bl_daemon_t;

typedef struct bl_daemon_arguments {
  char *listen, *health_listen, *metrics_listen;
  int describe;
  int64_t lifeline_fd, ready_fd;
  int log_format; // index into bl_daemon_log_formats
  bl_tls_flags_t tls;
  bool version;
} bl_daemon_arguments_t;

extern const char *const bl_daemon_log_formats[], *const bl_daemon_describable[];

// The rows of every service's flag table. `member_` is a bl_daemon_arguments_t in `type_`.
#define BL_DAEMON_ROWS(type_, member_, listen_preset_)                                                                 \
  {.name = "listen",                                                                                                   \
   .type = BL_OPTION_TEXT,                                                                                             \
   .offset = offsetof(type_, member_.listen),                                                                          \
   .argument = "ADDR",                                                                                                 \
   .preset = listen_preset_,                                                                                           \
   .help = "Where to serve: unix:/path or host:port (port 0 takes a free one)."},                                      \
      {.name = "health-listen",                                                                                        \
       .type = BL_OPTION_TEXT,                                                                                         \
       .offset = offsetof(type_, member_.health_listen),                                                               \
       .argument = "ADDR",                                                                                             \
       .help = "Where to serve grpc.health.v1, in plaintext. Without it there is no health port."},                    \
      {.name = "metrics-listen",                                                                                       \
       .type = BL_OPTION_TEXT,                                                                                         \
       .offset = offsetof(type_, member_.metrics_listen),                                                              \
       .argument = "HOST:PORT",                                                                                        \
       .help = "Where to serve /metrics for Prometheus over plain HTTP, read-only (port 0 takes a free one); auto: "   \
               "on any "                                                                                               \
               "loopback port, if there can be one. Without it there is none."},                                       \
      BL_TLS_ROWS(type_, member_.tls),                                                                                 \
      {.name = "log-format",                                                                                           \
       .type = BL_OPTION_ENUM,                                                                                         \
       .offset = offsetof(type_, member_.log_format),                                                                  \
       .choices = bl_daemon_log_formats,                                                                               \
       .preset = "text",                                                                                               \
       .help = "How the log on stderr is written: lines for people, or one JSON object per line."},                    \
      {.name = "describe",                                                                                             \
       .type = BL_OPTION_ENUM,                                                                                         \
       .offset = offsetof(type_, member_.describe),                                                                    \
       .hidden = true,                                                                                                 \
       .choices = bl_daemon_describable,                                                                               \
       .help = "Print what this program has for its documentation, and end."},                                         \
      {.name = "lifeline-fd",                                                                                          \
       .type = BL_OPTION_INT,                                                                                          \
       .offset = offsetof(type_, member_.lifeline_fd),                                                                 \
       .preset = "-1",                                                                                                 \
       .minimum = -1,                                                                                                  \
       .maximum = INT_MAX,                                                                                             \
       .help = "End when this inherited pipe is closed at its other end."},                                            \
      {.name = "ready-fd",                                                                                             \
       .type = BL_OPTION_INT,                                                                                          \
       .offset = offsetof(type_, member_.ready_fd),                                                                    \
       .preset = "-1",                                                                                                 \
       .minimum = -1,                                                                                                  \
       .maximum = INT_MAX,                                                                                             \
       .help = "Write 'ready ADDR HEALTH_ADDR' to this inherited pipe once serving."},                                 \
  {                                                                                                                    \
    .name = "version", .type = BL_OPTION_BOOL, .offset = offsetof(type_, member_.version),                             \
    .help = "Print the versions of this program and of its libraries, and end."                                        \
  }

typedef struct bl_daemon_hooks {
  // Called instead of serving, when the arguments are read and nothing was created. Returns true, with the exit code,
  // if the arguments ask for nothing more. NULL: no such arguments exist.
  bool (*instead)(void *context, int *exit_code);
  void (*versions)(FILE *stream); // prints versions of what is loaded at run time, for --version (sys/version.h); may
                                  // be NULL
  // Creates the service. The arguments are read, and loop and rpc exist. After a failure, destroy frees what was
  // created.
  bl_status_t (*create)(bl_daemon_t *daemon, void *context, bl_error_t *err);
  // Adds the service to the server, which has not started.
  bl_status_t (*serve)(bl_rpc_server_t *server, void *context, bl_error_t *err);
  void (*ready)(void *context); // everything is served; may be NULL
  // SIGTERM or SIGINT arrived. NULL: bl_daemon_stop(daemon, 0).
  void (*signalled)(bl_daemon_t *daemon, int number, void *context);
  // The parent process has ended. NULL: bl_daemon_stop(daemon, 0).
  void (*orphaned)(bl_daemon_t *daemon, void *context);
  // Updates the registry. Called before each answer to /metrics.
  void (*collect)(bl_registry_t *registry, void *context);
  bl_http_fn http;                  // answers a GET of any path but /metrics on the metrics port; may be NULL
  void (*end_calls)(void *context); // fails every waiting call and ends every watch, so that the server can drain
  void (*destroy)(void *context);   // after the server has stopped, before rpc and loop are freed; also after a failed
                                    // create
} bl_daemon_hooks_t;

typedef struct bl_daemon_options {
  const bl_flags_t *flags;             // flags->program names the process
  void *arguments;                     // filled by flags->table
  const bl_daemon_arguments_t *common; // part of `arguments`
  const char *health_name;             // "ballast.v1.Stage"
  const bl_metric_row_t *metrics;      // the service's own metrics; those of the process are added
  size_t metric_count;
  unsigned roles;                       // allowed roles in its certificate: BL_STAGES, ...
  const bl_library_t *const *libraries; // libraries that only this program uses, for --version; those of all daemons
                                        // are added
  size_t library_count;
  bl_daemon_hooks_t hooks;
  void *context; // passed to the hooks
} bl_daemon_options_t;

// Does all the work of main(). Returns the exit code.
int bl_daemon_main(const bl_daemon_options_t *options, int argc, char **argv);

bl_loop_t *bl_daemon_loop(const bl_daemon_t *daemon);
bl_rpc_t *bl_daemon_rpc(const bl_daemon_t *daemon);
bl_registry_t *bl_daemon_registry(const bl_daemon_t *daemon); // of options->metrics; exists from create to destroy
bl_tls_t *bl_daemon_tls(const bl_daemon_t *daemon);           // NULL: plaintext; borrowed
// For the create hook: supplies TLS settings that the command line lacks. Files given by flags override those of
// `more`.
BL_MUST_USE bl_status_t bl_daemon_secure(bl_daemon_t *daemon, const bl_tls_flags_t *more, bl_error_t *err);
// The address for clients. Set from the ready hook on.
const char *bl_daemon_address(const bl_daemon_t *daemon);
// The address of the metrics port, "127.0.0.1:41234". "": not served, or not yet.
const char *bl_daemon_metrics_address(const bl_daemon_t *daemon);
// Sets whether process and service report that they serve. True once the daemon is ready. For draining.
void bl_daemon_set_serving(bl_daemon_t *daemon, bool serving);
// Sets whether the service reports that it is ready. The state of the process ("") is unchanged. For readiness probes.
void bl_daemon_set_ready(bl_daemon_t *daemon, bool ready);
// Ends the process in order. The exit code of the first call is used.
void bl_daemon_stop(bl_daemon_t *daemon, int exit_code);
// Does the same with an error, which is printed like that of a failed start.
void bl_daemon_fail(bl_daemon_t *daemon, const bl_error_t *err);

#endif

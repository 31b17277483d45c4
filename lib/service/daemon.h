// SPDX-License-Identifier: Apache-2.0
// What the mains of our services share: the command line's common rows, the loop and its rpc, signals and lifeline, one
// server with reflection, the health port, the port for metrics, the ready line, and an orderly end. A main holds its
// own rows and hooks, and nothing else:
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
// Order: create, serve, (everything listens, healthy) ready, ... , end_calls, (server stopped) destroy. A start that
// fails prints its error, and ends with the status's exit code after destroy.
// Ends: SIGTERM and SIGINT (the latter not with a lifeline: then the parent decides what Ctrl-C means), the lifeline,
// bl_daemon_stop.
// Thread: the main thread, which becomes the loop's; every hook is called there.
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
  // Instead of serving, when the arguments are read and nothing is made: true, with the exit code, when that was all
  // that was asked for. NULL: nothing else can be asked for.
  bool (*instead)(void *context, int *exit_code);
  void (*versions)(FILE *stream); // of what is loaded at run time, for --version (sys/version.h); may be NULL
  // Makes the service. The arguments are read, loop and rpc are there. What was made when it fails is destroy's.
  bl_status_t (*create)(bl_daemon_t *daemon, void *context, bl_error_t *err);
  // Adds its services to the server, which has not started.
  bl_status_t (*serve)(bl_rpc_server_t *server, void *context, bl_error_t *err);
  void (*ready)(void *context); // everything is served; may be NULL
  // SIGTERM or SIGINT came. NULL: bl_daemon_stop(daemon, 0).
  void (*signalled)(bl_daemon_t *daemon, int number, void *context);
  // The process that started this one is gone. NULL: bl_daemon_stop(daemon, 0).
  void (*orphaned)(bl_daemon_t *daemon, void *context);
  // Brings the registry up to date; called before each /metrics is answered.
  void (*collect)(bl_registry_t *registry, void *context);
  bl_http_fn http;                  // a GET of anything but /metrics on the metrics port; may be NULL
  void (*end_calls)(void *context); // fails every call that waits, ends every watch, so that the server can drain
  void (*destroy)(void *context);   // after the server has stopped, before rpc and loop go; also after a failed create
} bl_daemon_hooks_t;

typedef struct bl_daemon_options {
  const bl_flags_t *flags;             // flags->program names the process
  void *arguments;                     // that flags->table fills
  const bl_daemon_arguments_t *common; // in it
  const char *health_name;             // "ballast.v1.Stage"
  const bl_metric_row_t *metrics;      // the service's own; those of the process are added
  size_t metric_count;
  unsigned roles;                       // what its certificate may say it is: BL_STAGES, ...
  const bl_library_t *const *libraries; // that this program alone uses, for --version; those of daemons are known
  size_t library_count;
  bl_daemon_hooks_t hooks;
  void *context; // of the hooks
} bl_daemon_options_t;

// The whole of main(). Returns the exit code.
int bl_daemon_main(const bl_daemon_options_t *options, int argc, char **argv);

bl_loop_t *bl_daemon_loop(const bl_daemon_t *daemon);
bl_rpc_t *bl_daemon_rpc(const bl_daemon_t *daemon);
bl_registry_t *bl_daemon_registry(const bl_daemon_t *daemon); // of options->metrics; there from create to destroy
bl_tls_t *bl_daemon_tls(const bl_daemon_t *daemon);           // NULL: plaintext; borrowed
// For the create hook: what the command line leaves open. Flags that were given win over `more`.
BL_MUST_USE bl_status_t bl_daemon_secure(bl_daemon_t *daemon, const bl_tls_flags_t *more, bl_error_t *err);
// Where it serves, as clients reach it; there from the ready hook on.
const char *bl_daemon_address(const bl_daemon_t *daemon);
// Where metrics are served, "127.0.0.1:41234"; "" when they are not, or not yet.
const char *bl_daemon_metrics_address(const bl_daemon_t *daemon);
// Whether the service reports itself as serving; true once it is ready. For draining.
void bl_daemon_set_serving(bl_daemon_t *daemon, bool serving);
// Whether it reports its service as ready while it is alive: the process ("") stays as it is. For readiness probes.
void bl_daemon_set_ready(bl_daemon_t *daemon, bool ready);
// Ends the process in order. The first exit code counts.
void bl_daemon_stop(bl_daemon_t *daemon, int exit_code);
// The same with an error, which is printed as that of a failed start.
void bl_daemon_fail(bl_daemon_t *daemon, const bl_error_t *err);

#endif

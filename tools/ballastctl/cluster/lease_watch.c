// SPDX-License-Identifier: Apache-2.0
// ballastctl leases watch: prints changes of stores as they happen. It never skips a change: it continues from the
// revision after the last one printed. If that is not possible (the store's history begins later, or the store was
// restarted), it ends with a message.
#include "ballastctl/calls.h"
#include "ballastctl/cluster/store_ask.h"
#include "ballastctl/commands.h"

#include "loop/signal.h"
#include "loop/timer.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS   200
#define READER_MS  500
#define TIMEOUT_MS 10000 // how long a store may be unreachable: longer than a short network failure

typedef struct arguments {
  bl_ctl_store_arguments_t common; // must be first for bl_ctl_stores_act
  int64_t from_revision, events;
} arguments_t;

typedef struct watch watch_t;

typedef struct watched {
  watch_t *watch;
  size_t number;
  bl_ctl_store_t *store;
  bl_timer_t *retry;
  char incarnation[40]; // "": not known yet
  uint64_t next;        // revision to continue from; 0: not known yet, the next one
  uint64_t away_since_ms;
} watched_t;

struct watch {
  const arguments_t *arguments;
  bl_ctl_calls_t calls;
  const bl_ctl_stores_t *known;
  watched_t *stores;
  size_t count, first; // first: number of stores[0]
  bool one_lease;      // print only changes of `lease`
  uint64_t lease;
  uint64_t printed;
  bool headed, ended;
  bl_error_t *err;
};

// ---- printing

static const struct {
  const char *key, *title;
  int width;
} cells[] = {{"revision", "REVISION", -8},
             {"type", "TYPE", 8},
             {"lease", "LEASE", 18},
             {"from", "FROM", 11},
             {"to", "TO", 11},
             {"stage", "STAGE", -5},
             {"room_bytes", "ROOM BYTES", -12}};
#define CELLS (sizeof cells / sizeof cells[0])

static const char *text_of(const json_t *value, char text[64]) {
  if (json_is_integer(value)) {
    snprintf(text, 64, "%" PRId64, (int64_t)json_integer_value(value));
    return text;
  }
  return json_is_string(value) ? json_string_value(value) : "-";
}

// Prints a row with columns of fixed width, because later rows are not known yet.
static void print_row(const json_t *event, bool heading) {
  char text[64];
  for (size_t i = 0; i < CELLS; i++) {
    const char *cell = heading ? cells[i].title : text_of(json_object_get(event, cells[i].key), text);
    int width = cells[i].width < 0 ? -cells[i].width : cells[i].width;
    bool last = i + 1 == CELLS;
    if (cells[i].width < 0) {
      printf("%*s%s", width, cell, last ? "\n" : "  ");
    } else {
      printf("%-*s%s", last ? 0 : width, cell, last ? "\n" : "  ");
    }
  }
}

static bl_status_t print_event(watch_t *watch, const json_t *event) {
  static const bl_ctl_column_t name[] = {{.key = "lease", .title = "LEASE"}};
  bl_ctl_output_t output = (bl_ctl_output_t)watch->arguments->common.output;
  bl_status_t status = BL_OK;
  switch (output) {
  case BL_CTL_TABLE:
  case BL_CTL_WIDE:
    if (!watch->headed) {
      print_row(NULL, true);
      watch->headed = true;
    }
    print_row(event, false);
    break;
  case BL_CTL_YAML:
    printf("---\n");
    status = bl_ctl_print_object(output, name, 1, event, stdout);
    break;
  default:
    status = bl_ctl_print_object(output, name, 1, event, stdout);
    break;
  }
  return status == BL_OK && fflush(stdout) == 0 && !ferror(stdout) ? BL_OK : BL_IO;
}

// ---- the stream

static void end(watch_t *watch, bl_status_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void end(watch_t *watch, bl_status_t status, const char *format, ...) {
  if (watch->ended) {
    return;
  }
  watch->ended = true;
  va_list args;
  char text[BL_ERROR_TEXT_BYTES];
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (status == BL_OK) {
    bl_error_clear(watch->err);
  } else {
    (void)bl_error_set(watch->err, status, "%s", text);
  }
  bl_loop_stop(watch->calls.loop);
}

static void on_event(json_t *event, void *context) {
  watched_t *store = context;
  watch_t *watch = store->watch;
  const json_t *id = json_object_get(event, "id");
  store->next = (uint64_t)json_integer_value(json_object_get(event, "revision")) + 1;
  bool of_lease = strcmp(json_string_value(json_object_get(event, "kind")), "lease") == 0;
  if (watch->ended || (watch->one_lease && !(of_lease && (uint64_t)json_integer_value(id) == watch->lease))) {
    return;
  }
  char name[128], number[64];
  const char *kind = of_lease ? "" : json_string_value(json_object_get(event, "kind"));
  snprintf(name, sizeof name, "%zu/%s%s", store->number, kind, of_lease ? text_of(id, number) : "");
  json_object_set_new(event, "store", json_integer((json_int_t)store->number));
  bl_ctl_store_set_of(watch->known, store->number, event);
  json_object_set_new(event, "lease", json_string(name));
  if (print_event(watch, event) != BL_OK) {
    // The reader has closed the pipe, as in `... | head -1`: not an error of the watch.
    bool closed = errno == EPIPE;
    end(watch, closed ? BL_OK : BL_IO, "cannot print: %s", strerror(errno));
  } else if (++watch->printed == (uint64_t)watch->arguments->events ||
             (watch->one_lease && strcmp(json_string_value(json_object_get(event, "type")), "DELETED") == 0)) {
    end(watch, BL_OK, " ");
  }
}

static void connect(watched_t *store);

static void lost(watched_t *store, const bl_error_t *err) {
  watch_t *watch = store->watch;
  uint64_t now_ms = bl_loop_now_ms(watch->calls.loop);
  bool away = err->status == BL_UNAVAILABLE || err->status == BL_CANCELLED;
  if (store->away_since_ms == 0) {
    store->away_since_ms = now_ms;
  }
  // Before the first connection the timeout is that of --timeout, as for every other command.
  uint64_t timeout_ms =
      store->incarnation[0] == '\0' ? (uint64_t)(watch->arguments->common.timeout_seconds * 1000) : TIMEOUT_MS;
  if (away && store->incarnation[0] != '\0' && now_ms - store->away_since_ms < timeout_ms) {
    bl_timer_start(store->retry, RETRY_MS, 0);
    return;
  }
  const char *more = store->next == 0 ? "" : "; continue with --from-revision ";
  char revision[32] = "";
  if (store->next != 0) {
    snprintf(revision, sizeof revision, "%" PRIu64, store->next);
  }
  end(watch, err->status, "store %zu: %.300s%s%s", store->number, err->text, more, revision);
}

static void on_end(json_t *value, const bl_error_t *err, void *context) {
  watched_t *store = context;
  const json_t *compacted = json_object_get(value, "compacted");
  if (store->watch->ended) {
    return;
  }
  if (compacted != NULL) {
    end(store->watch, BL_PRECONDITION,
        "store %zu: its history begins at revision %" PRId64 ", after revision %" PRIu64
        " that is wanted: list the leases, then watch again",
        store->number, (int64_t)json_integer_value(compacted), store->next);
    return;
  }
  bl_error_t ended = {.status = BL_UNAVAILABLE};
  snprintf(ended.text, sizeof ended.text, "the watch ended");
  lost(store, value != NULL ? &ended : err);
}

static void on_status(json_t *value, const bl_error_t *err, void *context) {
  watched_t *store = context;
  watch_t *watch = store->watch;
  if (watch->ended) {
    return;
  }
  if (value == NULL) {
    lost(store, err);
    return;
  }
  const char *incarnation = json_string_value(json_object_get(value, "incarnation"));
  if (store->incarnation[0] != '\0' && strcmp(store->incarnation, incarnation) != 0) {
    end(watch, BL_FENCED,
        "store %zu was restarted: what it held is lost and its revisions restart; list the leases, then watch",
        store->number);
    return;
  }
  snprintf(store->incarnation, sizeof store->incarnation, "%.39s", incarnation);
  store->away_since_ms = 0;
  if (store->next == 0) { // so that a connection lost before the first change misses no change
    store->next = (uint64_t)json_integer_value(json_object_get(value, "revision")) + 1;
  }
  bl_error_t fault;
  if (bl_ctl_store_watch(store->store, store->next, on_event, on_end, store, &fault) != BL_OK) {
    end(watch, fault.status, "%s", fault.text);
  }
}

static void connect(watched_t *store) {
  static const bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_STATUS};
  bl_error_t fault;
  uint64_t deadline_ms = (uint64_t)(store->watch->arguments->common.timeout_seconds * 1000);
  if (bl_ctl_store_call(store->store, &question, deadline_ms, on_status, store, &fault) != BL_OK) {
    end(store->watch, fault.status, "%s", fault.text);
  }
}

static void on_retry(bl_timer_t *timer, void *context) {
  (void)timer;
  connect(context);
}

// Checks whether the reader still exists. Without a change to print, nothing else would detect it.
static void look_at_reader(bl_timer_t *timer, void *context) {
  (void)timer;
  struct pollfd reader = {.fd = STDOUT_FILENO};
  if (poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR) != 0) {
    end(context, BL_OK, " ");
  }
}

static void interrupted(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  (void)number;
  end(context, BL_CANCELLED, "interrupted");
}

// ---- the command

static bl_status_t run_watch(watch_t *watch, const bl_text_list_t *addresses, bl_error_t *err) {
  bl_signal_t *interrupt = NULL, *terminate = NULL;
  bl_timer_t *reader = NULL;
  bl_status_t status = bl_ctl_calls_init(&watch->calls, err);
  if (status == BL_OK) {
    status = bl_signal_create(watch->calls.loop, SIGINT, interrupted, watch, &interrupt, err);
  }
  if (status == BL_OK) {
    status = bl_signal_create(watch->calls.loop, SIGTERM, interrupted, watch, &terminate, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(watch->calls.loop, look_at_reader, watch, &reader, err);
  }
  for (size_t i = 0; i < watch->count && status == BL_OK; i++) {
    watched_t *store = &watch->stores[i];
    *store = (watched_t){.watch = watch, .number = watch->first + i, .next = (uint64_t)watch->arguments->from_revision};
    status = bl_timer_create(watch->calls.loop, on_retry, store, &store->retry, err);
    if (status == BL_OK) {
      status = bl_ctl_store_create(watch->calls.rpc, addresses->items[i], &store->store, err);
    }
    if (status == BL_OK) {
      connect(store);
    }
  }
  if (status == BL_OK) {
    bl_timer_start(reader, READER_MS, READER_MS);
    bl_loop_run(watch->calls.loop);
    status = err->status;
  }
  watch->ended = true;
  for (size_t i = 0; i < watch->count; i++) {
    bl_ctl_store_destroy(watch->stores[i].store);
    bl_timer_destroy(watch->stores[i].retry);
  }
  bl_timer_destroy(reader);
  bl_signal_destroy(interrupt);
  bl_signal_destroy(terminate);
  bl_ctl_calls_cleanup(&watch->calls);
  return status;
}

// Selects one lease: only its store is watched, and the lease must exist.
static bl_status_t watch_lease(watch_t *watch, const bl_text_list_t *addresses, const char *name, bl_error_t *err) {
  size_t number;
  json_t *lease = NULL;
  bl_status_t status = bl_ctl_lease_parse(name, addresses->count, &number, &watch->lease, err);
  if (status == BL_OK) {
    const bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_GET, .id = watch->lease};
    status =
        bl_ctl_store_ask(addresses->items[number], watch->arguments->common.timeout_seconds, &question, &lease, err);
  }
  json_decref(lease);
  if (status != BL_OK) {
    return status;
  }
  watch->one_lease = true;
  watch->count = 1;
  watch->first = number;
  bl_text_list_t one = {.items = addresses->items + number, .count = 1};
  return run_watch(watch, &one, err);
}

static bl_status_t watch_all(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words,
                             bl_error_t *err) {
  const arguments_t *arguments = context;
  const bl_text_list_t *addresses = &stores->addresses;
  if (arguments->from_revision != 0 && addresses->count > 1 && words->positional_count == 0) {
    return bl_error_set(err, BL_INVALID, "--from-revision: every store counts its own; --store ADDRESS names one");
  }
  watch_t watch = {.arguments = arguments,
                   .known = stores,
                   .stores = calloc(addresses->count, sizeof *watch.stores),
                   .count = addresses->count,
                   .err = err};
  if (watch.stores == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_error_clear(err);
  bl_status_t status = words->positional_count > 0 ? watch_lease(&watch, addresses, words->positional[0], err)
                                                   : run_watch(&watch, addresses, err);
  free(watch.stores);
  return status;
}

static const bl_option_t rows[] = {
    BL_CTL_STORE_ROWS(arguments_t, common),
    {.name = "from-revision",
     .type = BL_OPTION_INT,
     .offset = offsetof(arguments_t, from_revision),
     .minimum = 0,
     .maximum = 9e15,
     .preset_help = "the next one",
     .help = "Begin with this change, as 'leases list -o json' and an earlier watch number them."},
    {.name = "events",
     .type = BL_OPTION_INT,
     .offset = offsetof(arguments_t, events),
     .minimum = 0,
     .maximum = 9e15,
     .preset_help = "no end",
     .help = "End after so many changes."}};

static const bl_flags_t flags = {
    .program = "ballastctl leases watch",
    .usage = "[STORE/NUMBER] [--from-revision N] [-o FORMAT]",
    .about = "Prints every change of leases, sessions and stores, each once and in order; if the connection is lost it "
             "continues where it was. If it would have to leave out a change it ends with exit code 4. With a lease it "
             "ends when that is over, with exit code 3 if no session holds it. --timeout bounds the first connection.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_maximum = 1};

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  return bl_ctl_stores_act(watch_all, arguments, words, err);
}

int bl_ctl_leases_watch(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

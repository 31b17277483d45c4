// SPDX-License-Identifier: Apache-2.0
// Shared by commands about stores: flags, the list of stores, and calls to several of them at once.
//
// Stores are numbered from 0 in the order in which they were found: from --store flags, else from the run. A lease of
// store 1 is called 1/17; if there is one store, 17 is enough.
#ifndef BALLAST_BALLASTCTL_STORE_ASK_H
#define BALLAST_BALLASTCTL_STORE_ASK_H

#include "ballastctl/cluster/store_wire.h"
#include "ballastctl/output.h"

#include "config/flags.h"

#define BL_CTL_STORES_MAX 1024 // a job has at most 512 ranks, each of which may have a host store of its own

typedef struct bl_ctl_store_arguments {
  bl_text_list_t stores;
  char *endpoint;
  int output; // bl_ctl_output_t
  double timeout_seconds;
} bl_ctl_store_arguments_t;

// The rows of these flags; `member_` is a bl_ctl_store_arguments_t in `type_`.
#define BL_CTL_STORE_ROWS(type_, member_)                                                                              \
  {.name = "store",                                                                                                    \
   .type = BL_OPTION_TEXT_LIST,                                                                                        \
   .offset = offsetof(type_, member_.stores),                                                                          \
   .argument = "ADDRESS",                                                                                              \
   .preset_help = "those of the run",                                                                                  \
   .help = "A store to ask: host:port or unix:/path. May be given several times."},                                    \
      {.name = "endpoint",                                                                                             \
       .type = BL_OPTION_TEXT,                                                                                         \
       .offset = offsetof(type_, member_.endpoint),                                                                    \
       .argument = "ADDRESS",                                                                                          \
       .preset_help = "the newest local run",                                                                          \
       .help = "The driver whose run's stores to ask."},                                                               \
      BL_CTL_OUTPUT_FLAG(type_, member_.output), {                                                                     \
    .name = "timeout", .type = BL_OPTION_REAL, .offset = offsetof(type_, member_.timeout_seconds), .preset = "5",      \
    .minimum = 0.001, .maximum = 86400, .unit = "seconds", .help = "How long to wait for an answer."                   \
  }

typedef struct bl_ctl_stores {
  bl_text_list_t addresses; // at least one
  bl_text_list_t of;        // whose memory each lends, "device 3" or "host 0"; empty: not known, from --store
} bl_ctl_stores_t;

// The body of a command, called once its stores are found.
typedef bl_status_t (*bl_ctl_stores_fn)(void *arguments, const bl_ctl_stores_t *stores, const bl_flags_result_t *words,
                                        bl_error_t *err);
// Finds the stores that `arguments` names and calls `act`. `arguments` must begin with a bl_ctl_store_arguments_t.
// Called from the body of a command. BL_NOT_FOUND: no run, or one without stores.
BL_MUST_USE bl_status_t bl_ctl_stores_act(bl_ctl_stores_fn act, void *arguments, const bl_flags_result_t *words,
                                          bl_error_t *err);

// The table column for the owner of a store's memory. bl_ctl_store_set_of sets its member of a row, if the owner is
// known.
#define BL_CTL_STORE_OF_COLUMN                                                                                         \
  { .key = "of", .title = "OF" }
void bl_ctl_store_set_of(const bl_ctl_stores_t *stores, size_t store, json_t *row);
// Copies the columns that have values for these stores to `shown` [count]; returns how many.
size_t bl_ctl_store_columns(const bl_ctl_stores_t *stores, const bl_ctl_column_t *columns, size_t count,
                            bl_ctl_column_t *shown);

// Reads "1/17", or "17" if there is one store. BL_INVALID, BL_NOT_FOUND (no such store).
BL_MUST_USE bl_status_t bl_ctl_lease_parse(const char *text, size_t stores, size_t *store, uint64_t *id,
                                           bl_error_t *err);

typedef struct bl_ctl_store_reply {
  json_t *value; // owned; NULL: err says why
  bl_error_t err;
} bl_ctl_store_reply_t;

// Calls all stores at the same time and waits for every answer; `replies` has one per address.
BL_MUST_USE bl_status_t bl_ctl_stores_ask(const bl_text_list_t *addresses, double timeout_seconds,
                                          const bl_ctl_store_question_t *question, bl_ctl_store_reply_t *replies,
                                          bl_error_t *err);
// Calls one store. *value is a new reference.
BL_MUST_USE bl_status_t bl_ctl_store_ask(const char *address, double timeout_seconds,
                                         const bl_ctl_store_question_t *question, json_t **value, bl_error_t *err);
// BL_OK: all stores answered. If none did, returns the first error. BL_PARTIAL: some did not; prints those on stderr.
// The values may have been released already.
BL_MUST_USE bl_status_t bl_ctl_stores_verdict(const bl_ctl_store_reply_t *replies, size_t count, bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/store_ask.h"

#include "ballastctl/calls.h"
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/endpoint.h"

#include "base/words.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// ---- which stores ---------------------------------------------------------------------------------------------------

static bl_status_t add_text(bl_text_list_t *texts, const char *text, bl_error_t *err) {
  if (texts->count == BL_CTL_STORES_MAX) {
    return bl_error_set(err, BL_INVALID, "more than %d stores", BL_CTL_STORES_MAX);
  }
  char *copy = strdup(text);
  if (texts->items == NULL) {
    texts->items = calloc(BL_CTL_STORES_MAX, sizeof *texts->items);
  }
  if (copy == NULL || texts->items == NULL) {
    free(copy);
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  texts->items[texts->count++] = copy;
  return BL_OK;
}

static void free_texts(bl_text_list_t *texts) {
  for (size_t i = 0; i < texts->count; i++) {
    free(texts->items[i]);
  }
  free(texts->items);
  *texts = (bl_text_list_t){0};
}

// Adds texts, or the member `key` of objects.
static bl_status_t add_json(bl_text_list_t *texts, const json_t *list, const char *key, bl_error_t *err) {
  size_t i;
  json_t *item;
  bl_status_t status = BL_OK;
  json_array_foreach(list, i, item) {
    const json_t *text = json_is_string(item) ? item : json_object_get(item, key);
    if (status == BL_OK && json_is_string(text)) {
      status = add_text(texts, json_string_value(text), err);
    }
  }
  return status;
}

static bl_status_t take_known(bl_ctl_stores_t *stores, const json_t *addresses, const json_t *of, bl_error_t *err) {
  bl_status_t status = add_json(&stores->addresses, addresses, "address", err);
  if (status == BL_OK && json_array_size(of) == stores->addresses.count) {
    status = add_json(&stores->of, of, "of", err);
  }
  if (stores->of.count != stores->addresses.count) { // a program of another version
    free_texts(&stores->of);
  }
  return status;
}

static bl_status_t add_named(bl_text_list_t *texts, const char *address, bl_error_t *err) {
  for (size_t i = 0; i < texts->count; i++) {
    if (strcmp(texts->items[i], address) == 0) {
      return bl_error_set(err, BL_INVALID, "--store names %.200s twice", address);
    }
  }
  return add_text(texts, address, err);
}

static bl_status_t find(const bl_ctl_store_arguments_t *arguments, bl_ctl_stores_t *stores, bl_error_t *err) {
  const bl_text_list_t *addresses = &stores->addresses;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < arguments->stores.count && status == BL_OK; i++) {
    status = add_named(&stores->addresses, arguments->stores.items[i], err);
  }
  json_t *endpoints = NULL, *run = NULL;
  if (status == BL_OK && addresses->count == 0) {
    status = bl_ctl_endpoints_find(arguments->endpoint, &endpoints, err);
  }
  if (status == BL_OK && addresses->count == 0) {
    status = take_known(stores, json_object_get(endpoints, "stores"), json_object_get(endpoints, "store_of"), err);
  }
  if (status == BL_OK && addresses->count == 0) {
    status = bl_ctl_driver_ask(bl_ctl_endpoints_driver(endpoints), arguments->timeout_seconds, &run, err);
  }
  if (status == BL_OK && addresses->count == 0) {
    status = take_known(stores, json_object_get(run, "stores"), json_object_get(run, "stores"), err);
  }
  if (status == BL_OK && addresses->count == 0) {
    const char *phase = json_string_value(json_object_get(run, "phase"));
    const bool starting = phase != NULL && strcmp(phase, "starting") == 0;
    status = starting ? bl_error_set(err, BL_PRECONDITION,
                                     "the driver is starting and tells its stores later; --store ADDRESS names one now")
                      : bl_error_set(err, BL_NOT_FOUND,
                                     "the run has no stores; --store ADDRESS names one that is elsewhere");
  }
  json_decref(endpoints);
  json_decref(run);
  return status;
}

bl_status_t bl_ctl_stores_act(bl_ctl_stores_fn act, void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  bl_ctl_stores_t stores = {0};
  bl_status_t status = find(arguments, &stores, err);
  if (status == BL_OK) {
    status = act(arguments, &stores, words, err);
  }
  free_texts(&stores.addresses);
  free_texts(&stores.of);
  return status;
}

void bl_ctl_store_set_of(const bl_ctl_stores_t *stores, size_t store, json_t *row) {
  if (store < stores->of.count) {
    json_object_set_new(row, "of", json_string(stores->of.items[store]));
  }
}

size_t bl_ctl_store_columns(const bl_ctl_stores_t *stores, const bl_ctl_column_t *columns, size_t count,
                            bl_ctl_column_t *shown) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (stores->of.count > 0 || strcmp(columns[i].key, "of") != 0) {
      shown[kept++] = columns[i];
    }
  }
  return kept;
}

static bool parse_number(const char *text, const char *end, uint64_t *value) {
  char *stop;
  errno = 0;
  *value = strtoull(text, &stop, 10);
  return isdigit((unsigned char)text[0]) && stop == end && errno == 0;
}

bl_status_t bl_ctl_lease_parse(const char *text, size_t stores, size_t *store, uint64_t *id, bl_error_t *err) {
  const char *slash = strchr(text, '/'), *end = text + strlen(text);
  uint64_t number = 0;
  if (slash == NULL && stores > 1) {
    return bl_error_set(err, BL_INVALID, "'%.60s': the run has %zu stores: name one, such as 0/%.40s", text, stores,
                        text);
  }
  if ((slash != NULL && !parse_number(text, slash, &number)) ||
      !parse_number(slash != NULL ? slash + 1 : text, end, id)) {
    return bl_error_set(err, BL_INVALID, "'%.60s' is no lease: they are called STORE/NUMBER, such as 0/17", text);
  }
  if (number >= stores) {
    return bl_error_set(err, BL_NOT_FOUND, "'%.60s': there is no store %llu; stores are numbered 0 to %zu", text,
                        (unsigned long long)number, stores - 1);
  }
  *store = (size_t)number;
  return BL_OK;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

typedef struct asked {
  bl_ctl_calls_t *calls;
  bl_ctl_store_t *store;
  bl_ctl_store_reply_t *reply;
  const char *address;
} asked_t;

static void answered(json_t *value, const bl_error_t *err, void *context) {
  asked_t *asked = context;
  asked->reply->value = json_incref(value);
  asked->reply->err = *err;
  if (err->status == BL_UNIMPLEMENTED) {
    (void)bl_error_prefix(&asked->reply->err, "%s", asked->address);
  }
  bl_ctl_calls_ended(asked->calls);
}

static void ask_one(asked_t *asked, double timeout_seconds, const bl_ctl_store_question_t *question) {
  bl_error_t *err = &asked->reply->err;
  bl_status_t status = bl_ctl_store_create(asked->calls->rpc, asked->address, &asked->store, err);
  if (status == BL_OK) {
    status = bl_ctl_store_call(asked->store, question, (uint64_t)(timeout_seconds * 1000), answered, asked, err);
  }
  asked->calls->open += status == BL_OK;
}

bl_status_t bl_ctl_stores_ask(const bl_text_list_t *addresses, double timeout_seconds,
                              const bl_ctl_store_question_t *question, bl_ctl_store_reply_t *replies, bl_error_t *err) {
  bl_ctl_calls_t calls;
  asked_t *asked = calloc(addresses->count, sizeof *asked);
  if (asked == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_ctl_calls_init(&calls, err);
  for (size_t i = 0; status == BL_OK && i < addresses->count; i++) {
    replies[i] = (bl_ctl_store_reply_t){0};
    asked[i] = (asked_t){.calls = &calls, .reply = &replies[i], .address = addresses->items[i]};
    ask_one(&asked[i], timeout_seconds, question);
  }
  bl_ctl_calls_wait(&calls);
  for (size_t i = 0; i < addresses->count; i++) {
    bl_ctl_store_destroy(asked[i].store);
  }
  bl_ctl_calls_cleanup(&calls);
  free(asked);
  return status;
}

bl_status_t bl_ctl_store_ask(const char *address, double timeout_seconds, const bl_ctl_store_question_t *question,
                             json_t **value, bl_error_t *err) {
  char *item = (char *)(uintptr_t)address;
  bl_ctl_store_reply_t reply = {0};
  bl_status_t status =
      bl_ctl_stores_ask(&(bl_text_list_t){.items = &item, .count = 1}, timeout_seconds, question, &reply, err);
  if (status == BL_OK && reply.value == NULL) {
    *err = reply.err;
    status = reply.err.status;
  }
  *value = reply.value;
  return status;
}

bl_status_t bl_ctl_stores_verdict(const bl_ctl_store_reply_t *replies, size_t count, bl_error_t *err) {
  size_t failed = 0, first = 0;
  for (size_t i = count; i-- > 0;) {
    first = replies[i].err.status != BL_OK ? i : first;
    failed += replies[i].err.status != BL_OK;
  }
  if (failed == 0) {
    return BL_OK;
  }
  if (failed == count) {
    *err = replies[first].err;
    return err->status;
  }
  for (size_t i = 0; i < count; i++) {
    if (replies[i].err.status != BL_OK) {
      fprintf(stderr, "ballastctl: store %zu: %s\n", i, replies[i].err.text);
    }
  }
  return bl_error_set(err, BL_PARTIAL, "%zu of %zu store%s did not answer", failed, count, bl_plural(count));
}

// SPDX-License-Identifier: Apache-2.0
#include "service/policy_proxy_wire.h"

#include "sys/clock.h"
#include "sys/log.h"

#include "ballast/v1/driver.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 128

typedef struct route {
  char run[NAME_BYTES], address[BL_RPC_ADDRESS_BYTES];
  bl_rpc_channel_t *channel; // NULL: a free entry
  uint64_t heard_ms;
} route_t;

struct bl_policy_proxy {
  bl_rpc_t *rpc;
  uint64_t keep_ms;
  route_t routes[BL_POLICY_PROXY_RUNS];
};

static uint64_t now_ms(void) {
  return bl_clock_now_ns() / BL_NS_PER_MS;
}

bl_status_t bl_policy_proxy_create(bl_rpc_t *rpc, uint64_t keep_ms, bl_policy_proxy_t **proxy, bl_error_t *err) {
  bl_policy_proxy_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to relay policy calls");
  }
  made->rpc = rpc;
  made->keep_ms = keep_ms;
  *proxy = made;
  return BL_OK;
}

static void forget(route_t *route) {
  bl_rpc_channel_destroy(route->channel); // ends calls in flight
  *route = (route_t){0};
}

void bl_policy_proxy_end_calls(bl_policy_proxy_t *proxy) {
  for (size_t i = 0; i < BL_POLICY_PROXY_RUNS; i++) {
    forget(&proxy->routes[i]);
  }
}

void bl_policy_proxy_destroy(bl_policy_proxy_t *proxy) {
  if (proxy != NULL) {
    bl_policy_proxy_end_calls(proxy);
    free(proxy);
  }
}

// ---- drivers --------------------------------------------------------------------------------------------------------

// Returns the entry of this run, or the one to replace.
static route_t *place_of(bl_policy_proxy_t *proxy, const char *run) {
  route_t *oldest = &proxy->routes[0];
  for (size_t i = 0; i < BL_POLICY_PROXY_RUNS; i++) {
    route_t *route = &proxy->routes[i];
    if (route->channel != NULL && strcmp(route->run, run) == 0) {
      return route;
    }
    oldest = route->heard_ms < oldest->heard_ms ? route : oldest; // a free entry has heard_ms 0
  }
  return oldest;
}

void bl_policy_proxy_learn(bl_policy_proxy_t *proxy, const char *run, const char *address) {
  if (address[0] == '\0' || strlen(address) >= BL_RPC_ADDRESS_BYTES || strlen(run) >= NAME_BYTES) {
    return;
  }
  route_t *route = place_of(proxy, run);
  bool same = route->channel != NULL && strcmp(route->run, run) == 0 && strcmp(route->address, address) == 0;
  if (!same) {
    bl_error_t err;
    bl_rpc_channel_options_t options = {.server_roles = BL_DRIVERS};
    bl_rpc_channel_t *channel;
    if (bl_rpc_channel_create(proxy->rpc, address, &options, &channel, &err) != BL_OK) {
      bl_log(BL_LOG_WARNING, "the driver of run '%s' says it is at an address of no use here: %s", run, err.text);
      return;
    }
    forget(route);
    route->channel = channel;
    snprintf(route->run, sizeof route->run, "%s", run);
    snprintf(route->address, sizeof route->address, "%s", address);
  }
  route->heard_ms = now_ms();
}

// Sets the one known driver. Otherwise `err` says why there is no single one.
static bl_status_t find_driver(bl_policy_proxy_t *proxy, bl_rpc_channel_t **channel, bl_error_t *err) {
  route_t *found = NULL;
  size_t count = 0;
  char names[320] = "";
  for (size_t i = 0; i < BL_POLICY_PROXY_RUNS; i++) {
    route_t *route = &proxy->routes[i];
    if (route->channel != NULL && proxy->keep_ms > 0 && now_ms() - route->heard_ms > proxy->keep_ms) {
      forget(route);
    }
    if (route->channel != NULL) {
      found = route;
      size_t used = strlen(names);
      snprintf(names + used, sizeof names - used, "%s%s (run '%s')", count > 0 ? ", " : "", route->address, route->run);
      count++;
    }
  }
  if (count == 1) {
    *channel = found->channel;
    return BL_OK;
  }
  return count == 0 ? bl_error_set(err, BL_PRECONDITION, "no driver is known here: no run uses this service")
                    : bl_error_set(err, BL_PRECONDITION, "%zu runs use this service: ask one of their drivers, %s",
                                   count, names);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  bl_rpc_call_t *call = context;
  if (output != NULL) {
    bl_rpc_call_reply(call, output);
  } else {
    bl_rpc_call_fail(call, err);
  }
}

static void relay(bl_policy_proxy_t *proxy, bl_rpc_call_t *call, const char *method, const ProtobufCMessage *input) {
  bl_rpc_channel_t *channel = NULL;
  bl_error_t err;
  bl_status_t status = find_driver(proxy, &channel, &err);
  if (status == BL_OK) {
    status = bl_rpc_channel_call(channel, &ballast__v1__driver__descriptor, method, input,
                                 bl_rpc_call_remaining_ms(call), answered, call, &err);
  }
  if (status != BL_OK) {
    bl_rpc_call_fail(call, &err);
  }
}

static void handle_set(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  relay(context, call, "SetPolicy", input);
}

static void handle_get(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  relay(context, call, "GetPolicy", input);
}

static void handle_history(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  relay(context, call, "PolicyHistory", input);
}

bl_status_t bl_policy_proxy_serve(bl_policy_proxy_t *proxy, bl_rpc_server_t *server, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {
      {"SetPolicy", handle_set},
      {"GetPolicy", handle_get},
      {"PolicyHistory", handle_history},
  };
  return bl_rpc_server_add_service(server, &ballast__v1__driver__descriptor, methods,
                                   sizeof methods / sizeof methods[0], proxy, err);
}

// SPDX-License-Identifier: Apache-2.0
// The server of health.h.
#include "rpc/health.h"

#include "rpc/health_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 128
// The health port receives only tiny messages: bounds a client that sends more.
#define MESSAGE_LIMIT_BYTES 4096
// Time at shutdown for the watchers' last messages and for running checks.
#define DRAIN_MS 200

typedef struct service {
  char name[NAME_BYTES];
  bool serving;
} service_t;

// One Watch call. A message is sent if the state differs from the one sent last, one message at a time. A slow watcher
// therefore skips states but receives the last one.
typedef struct watcher {
  bl_rpc_call_t *call; // NULL: free
  char name[NAME_BYTES];
  bool told;
  bl_rpc_health_state_t last;
} watcher_t;

struct bl_rpc_health {
  bl_rpc_server_t *server;
  service_t services[BL_RPC_HEALTH_SERVICES];
  size_t service_count;
  watcher_t watchers[BL_RPC_HEALTH_WATCHERS];
  bool stopping;
  bl_rpc_health_stopped_fn stopped;
  void *context;
};

static service_t *find_service(bl_rpc_health_t *health, const char *name) {
  for (size_t i = 0; i < health->service_count; i++) {
    if (strcmp(health->services[i].name, name) == 0) {
      return &health->services[i];
    }
  }
  return NULL;
}

static bl_rpc_health_state_t state_of(bl_rpc_health_t *health, const char *name) {
  const service_t *service = find_service(health, name);
  if (service == NULL) {
    return BL_RPC_HEALTH_UNKNOWN;
  }
  return service->serving ? BL_RPC_HEALTH_SERVING : BL_RPC_HEALTH_NOT_SERVING;
}

static void handle_check(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_rpc_health_t *health = context;
  const char *name = bl__health_read_request(input);
  bl_rpc_health_state_t state = state_of(health, name);
  if (state == BL_RPC_HEALTH_UNKNOWN) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_NOT_FOUND, "no service named \"%s\" here", name);
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl__health_reply(call, state);
}

static void tell(bl_rpc_health_t *health, watcher_t *watcher);

static watcher_t *find_watcher(bl_rpc_health_t *health, const bl_rpc_call_t *call) {
  for (size_t i = 0; i < BL_RPC_HEALTH_WATCHERS; i++) {
    if (health->watchers[i].call == call) {
      return &health->watchers[i];
    }
  }
  return NULL;
}

static void on_sent(bl_rpc_call_t *call, void *context) {
  bl_rpc_health_t *health = context;
  tell(health, find_watcher(health, call)); // the state may have changed meanwhile
}

static void on_cancelled(bl_rpc_call_t *call, void *context) {
  find_watcher(context, call)->call = NULL;
  bl_rpc_call_finish(call, BL_CANCELLED, NULL);
}

static void tell(bl_rpc_health_t *health, watcher_t *watcher) {
  bl_rpc_health_state_t state = state_of(health, watcher->name);
  if ((watcher->told && watcher->last == state) || !bl_rpc_call_can_send(watcher->call)) {
    return;
  }
  if (bl__health_send(watcher->call, state, on_sent, health) == BL_OK) {
    watcher->told = true;
    watcher->last = state;
  } // else the call is being cancelled
}

static void handle_watch(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_rpc_health_t *health = context;
  const char *name = bl__health_read_request(input);
  watcher_t *watcher = find_watcher(health, NULL);
  if (watcher == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "too many health watchers");
    return;
  }
  if (strlen(name) >= NAME_BYTES) {
    bl_rpc_call_finish(call, BL_INVALID, "the service's name is too long");
    return;
  }
  watcher->call = call;
  watcher->told = false;
  memcpy(watcher->name, name, strlen(name) + 1);
  bl_rpc_call_on_cancel(call, on_cancelled, health);
  tell(health, watcher);
}

bl_status_t bl_rpc_health_create(bl_rpc_t *rpc, bl_rpc_health_t **result, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {{"Check", handle_check}, {"Watch", handle_watch}};
  bl_rpc_health_t *health = calloc(1, sizeof *health);
  if (health == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "health: out of memory");
  }
  const bl_rpc_server_options_t options = {
      .message_limit_bytes = MESSAGE_LIMIT_BYTES, .unpack_limit_bytes = 4 * MESSAGE_LIMIT_BYTES, .plaintext = true};
  bl_status_t status = bl_rpc_server_create(rpc, &options, &health->server, err);
  if (status != BL_OK) {
    free(health);
    return status;
  }
  status = bl_rpc_server_add_service(health->server, bl__health_service(), methods, sizeof methods / sizeof methods[0],
                                     health, err);
  if (status != BL_OK) {
    bl_rpc_health_destroy(health);
    return status;
  }
  health->service_count = 1; // "", the process, as not serving
  *result = health;
  return BL_OK;
}

void bl_rpc_health_destroy(bl_rpc_health_t *health) {
  if (health != NULL) {
    bl_rpc_server_destroy(health->server);
    free(health);
  }
}

bl_status_t bl_rpc_health_listen(bl_rpc_health_t *health, const char *address, char *bound, size_t bound_bytes,
                                 bl_error_t *err) {
  bl_status_t status = bl_rpc_server_listen(health->server, address, bound, bound_bytes, err);
  if (status == BL_OK) {
    status = bl_rpc_server_start(health->server, err);
  }
  return status;
}

static void tell_all(bl_rpc_health_t *health) {
  for (size_t i = 0; i < BL_RPC_HEALTH_WATCHERS; i++) {
    if (health->watchers[i].call != NULL) {
      tell(health, &health->watchers[i]);
    }
  }
}

bl_status_t bl_rpc_health_set(bl_rpc_health_t *health, const char *name, bool serving) {
  service_t *service = find_service(health, name);
  if (service == NULL) {
    if (health->service_count == BL_RPC_HEALTH_SERVICES || strlen(name) >= NAME_BYTES) {
      return BL_EXHAUSTED;
    }
    service = &health->services[health->service_count++];
    memcpy(service->name, name, strlen(name) + 1);
  }
  service->serving = serving && !health->stopping;
  tell_all(health);
  return BL_OK;
}

static void on_stopped(bl_rpc_server_t *server, void *context) {
  (void)server;
  bl_rpc_health_t *health = context;
  health->stopped(health, health->context);
}

void bl_rpc_health_shutdown(bl_rpc_health_t *health, bl_rpc_health_stopped_fn stopped, void *context) {
  health->stopping = true;
  health->stopped = stopped;
  health->context = context;
  for (size_t i = 0; i < health->service_count; i++) {
    health->services[i].serving = false;
  }
  tell_all(health);
  for (size_t i = 0; i < BL_RPC_HEALTH_WATCHERS; i++) {
    watcher_t *watcher = &health->watchers[i];
    if (watcher->call != NULL) {
      bl_rpc_call_t *call = watcher->call;
      watcher->call = NULL;
      bl_rpc_call_finish(call, BL_UNAVAILABLE, "this process is shutting down");
    }
  }
  bl_rpc_server_shutdown(health->server, DRAIN_MS, on_stopped, health);
}

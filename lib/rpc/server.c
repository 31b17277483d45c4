// SPDX-License-Identifier: Apache-2.0
#include "rpc/server.h"

#include "rpc/server_core.h"
#include "sys/log.h"

#include <grpc/grpc_security.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEFAULT_MAX_CALLS 1024
// Minimum interval of a client's pings. channel.c sends one in 10 s. 1 s allows more and still bounds a flood.
#define MIN_PING_INTERVAL_MS 1000
// A connection that does not become HTTP/2 within this time (garbage, port scanners) is closed.
#define HANDSHAKE_TIMEOUT_MS 10000
#define KEEPALIVE_MS         10000
#define KEEPALIVE_TIMEOUT_MS 5000
// A handler that still holds a call this long after the end of a drain is named in the log.
#define STUCK_MS 2000

static grpc_server *create_grpc_server(const bl_rpc_server_t *server) {
  bl__rpc_args_t args = {0};
  bl__rpc_args_add(&args, GRPC_ARG_ALLOW_REUSEPORT, 0); // else a second server could bind the same port
  bl__rpc_args_add(&args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, server->message_limit_bytes);
  bl__rpc_args_add(&args, GRPC_ARG_MAX_CONCURRENT_STREAMS, server->max_calls);
  bl__rpc_args_add(&args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, MIN_PING_INTERVAL_MS);
  bl__rpc_args_add(&args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  bl__rpc_args_add(&args, GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS);
  bl__rpc_args_add(&args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS);
  bl__rpc_args_add(&args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS);
  bl__rpc_args_add(&args, GRPC_ARG_ENABLE_CHANNELZ, 0);
  // No compression: a small compressed message could unpack to far more than the message limit.
  bl__rpc_args_add(&args, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1u << GRPC_COMPRESS_NONE);
  return grpc_server_create(&args.list, NULL);
}

static void on_drain_timer(bl_timer_t *timer, void *context);

bl_status_t bl_rpc_server_create(bl_rpc_t *rpc, const bl_rpc_server_options_t *options, bl_rpc_server_t **result,
                                 bl_error_t *err) {
  static const bl_rpc_server_options_t defaults = {0};
  if (options == NULL) {
    options = &defaults;
  }
  bl_rpc_server_t *server = calloc(1, sizeof *server);
  if (server == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "server: out of memory");
  }
  server->rpc = rpc;
  server->message_limit_bytes =
      options->message_limit_bytes != 0 ? options->message_limit_bytes : BL_RPC_MESSAGE_LIMIT_BYTES;
  server->unpack_limit_bytes =
      options->unpack_limit_bytes != 0 ? options->unpack_limit_bytes : BL_RPC_UNPACK_LIMIT_BYTES;
  server->plaintext = options->plaintext;
  server->max_calls = options->max_calls != 0 ? options->max_calls : DEFAULT_MAX_CALLS;
  bl_status_t status = bl_timer_create(rpc->loop, on_drain_timer, server, &server->drain, err);
  if (status != BL_OK) {
    free(server);
    return status;
  }
  server->server = create_grpc_server(server);
  grpc_server_register_completion_queue(server->server, rpc->queue, NULL);
  rpc->users++;
  *result = server;
  return BL_OK;
}

// gRPC requires a shutdown before the end even of a server that never served. This needs a separate queue, because the
// loop cannot wait for an event of the shared one.
static void shut_down_unstarted(bl_rpc_server_t *server) {
  grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
  grpc_server_register_completion_queue(server->server, queue, NULL);
  grpc_server_shutdown_and_notify(server->server, queue, server);
  grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  grpc_completion_queue_shutdown(queue);
  while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN) {
  }
  grpc_server_destroy(server->server);
  grpc_completion_queue_destroy(queue);
}

static void release_listeners(bl_rpc_server_t *server) {
  for (size_t i = 0; i < server->listener_count; i++) {
    bl__listener_release(&server->listeners[i]);
  }
  server->listener_count = 0;
}

void bl_rpc_server_destroy(bl_rpc_server_t *server) {
  if (server == NULL) {
    return;
  }
  assert(bl_loop_is_current(server->rpc->loop));
  if (server->state == BL__SERVER_CREATED) {
    shut_down_unstarted(server);
    release_listeners(server);
  } else if (server->state == BL__SERVER_STOPPED) {
    grpc_server_destroy(server->server);
  } else {
    bl_log(BL_LOG_ERROR, "server: destroyed while it serves; its owner must shut it down first");
    return; // leaked, because its calls still use it
  }
  while (server->free != NULL) {
    bl_rpc_call_t *next = server->free->next;
    free(server->free);
    server->free = next;
  }
  bl_timer_destroy(server->drain);
  server->rpc->users--;
  free(server->methods);
  free(server);
}

static bl__method_t *append_method(bl_rpc_server_t *server) {
  bl__method_t *methods = realloc(server->methods, (server->method_count + 1) * sizeof *methods);
  if (methods == NULL) {
    return NULL;
  }
  server->methods = methods;
  bl__method_t *method = &methods[server->method_count++];
  memset(method, 0, sizeof *method);
  return method;
}

bl_status_t bl_rpc_server_add_service(bl_rpc_server_t *server, const ProtobufCServiceDescriptor *service,
                                      const bl_rpc_method_t *methods, size_t method_count, void *context,
                                      bl_error_t *err) {
  assert(server->state == BL__SERVER_CREATED);
  for (size_t i = 0; i < method_count; i++) {
    const ProtobufCMethodDescriptor *descriptor =
        protobuf_c_service_descriptor_get_method_by_name(service, methods[i].name);
    if (descriptor == NULL) {
      return bl_error_set(err, BL_INVALID, "service %s has no method %s", service->name, methods[i].name);
    }
    char path[256];
    int length = snprintf(path, sizeof path, "/%s/%s", service->name, descriptor->name);
    if (length < 0 || (size_t)length >= sizeof path) {
      return bl_error_set(err, BL_INVALID, "service %s: its name is too long", service->name);
    }
    bl__method_t *method = append_method(server);
    if (method == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "service %s: out of memory", service->name);
    }
    method->registered =
        grpc_server_register_method(server->server, path, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
    if (method->registered == NULL) {
      server->method_count--;
      return bl_error_set(err, BL_INVALID, "method %s is registered twice", path);
    }
    method->descriptor = descriptor;
    method->service = service;
    method->handle = methods[i].handle;
    method->context = context;
  }
  return BL_OK;
}

bl_status_t bl_rpc_server_listen(bl_rpc_server_t *server, const char *text, char *bound, size_t bound_bytes,
                                 bl_error_t *err) {
  assert(server->state == BL__SERVER_CREATED);
  if (server->listener_count == BL__SERVER_LISTENERS) {
    return bl_error_set(err, BL_EXHAUSTED, "cannot listen on %s: a server has at most %d addresses", text,
                        BL__SERVER_LISTENERS);
  }
  bl__address_t address;
  bl_status_t status = bl__address_parse(text, &address, err);
  if (status != BL_OK) {
    return status;
  }
  bl__listener_t *listener = &server->listeners[server->listener_count];
  status = bl__listener_claim(listener, &address, err);
  if (status != BL_OK) {
    return status;
  }
  bl__server_identity_t *identity = &server->identities[server->listener_count];
  *identity = (bl__server_identity_t){.tls = address.is_unix || server->plaintext ? NULL : server->rpc->tls};
  if (identity->tls == NULL && !server->plaintext) {
    bl_error_t cause;
    status = bl__plaintext_check(server->rpc->plaintext_ok, &address, text, &cause);
    if (status != BL_OK) {
      bl__listener_release(listener);
      return bl_error_set(err, status, "cannot listen on %s", cause.text);
    }
  }
  const char *target = address.is_unix ? address.target : text;
  // The umask belongs to the process: a file that another thread creates meanwhile gets stricter permissions than it
  // asked for.
  mode_t mask = umask(0177);
  grpc_server_credentials *credentials = bl__server_credentials_create(identity);
  int port = grpc_server_add_http2_port(server->server, target, credentials);
  grpc_server_credentials_release(credentials);
  umask(mask);
  if (port == 0) {
    bl__listener_release(listener);
    return bl__listener_explain(&address, text, err);
  }
  if (bound != NULL) {
    const bool brackets = strchr(address.host, ':') != NULL;
    int length = address.is_unix ? snprintf(bound, bound_bytes, "unix:%s", address.path)
                                 : snprintf(bound, bound_bytes, "%s%s%s:%d", brackets ? "[" : "", address.host,
                                            brackets ? "]" : "", port);
    assert(length > 0 && (size_t)length < bound_bytes);
    (void)length;
  }
  server->listener_count++;
  return BL_OK;
}

bl_status_t bl_rpc_server_start(bl_rpc_server_t *server, bl_error_t *err) {
  assert(server->state == BL__SERVER_CREATED);
  if (server->listener_count == 0) {
    return bl_error_set(err, BL_PRECONDITION, "server: no address to listen on");
  }
  if (append_method(server) == NULL) { // for unknown methods
    return bl_error_set(err, BL_EXHAUSTED, "server: out of memory");
  }
  grpc_server_start(server->server);
  server->state = BL__SERVER_SERVING;
  for (size_t i = 0; i < server->method_count; i++) {
    for (unsigned k = 0; k < BL__SERVER_REQUESTS; k++) {
      bl__server_request(server, &server->methods[i]);
    }
  }
  return BL_OK;
}

// ---- the pool of calls ----------------------------------------------------------------------------------------------

static bl_rpc_call_t *take_call(bl_rpc_server_t *server) {
  bl_rpc_call_t *call = server->free;
  if (call != NULL) {
    server->free = call->next;
    return call;
  }
  size_t limit = server->max_calls + BL__SERVER_REFUSALS + server->method_count * BL__SERVER_REQUESTS;
  if (server->call_total >= limit) {
    return NULL;
  }
  call = calloc(1, sizeof *call);
  if (call != NULL) {
    server->call_total++;
    bl__arena_init(&call->arena, server->unpack_limit_bytes);
  }
  return call;
}

static void give_call(bl_rpc_call_t *call) {
  bl_rpc_server_t *server = call->server;
  grpc_metadata_array_destroy(&call->metadata);
  grpc_call_details_destroy(&call->details);
  call->next = server->free;
  server->free = call;
}

// Initializes a call structure for gRPC. The arena and the tags are not changed.
static void prepare_call(bl_rpc_call_t *call, bl_rpc_server_t *server, bl__method_t *method) {
  call->server = server;
  call->method = method;
  call->next = call->previous = NULL;
  call->call = NULL;
  call->payload = call->sending = call->output = NULL;
  call->outstanding = 0;
  call->cancelled_by_peer = 0;
  call->close_requested = call->cancelled = call->metadata_sent = call->finishing = call->ended = false;
  call->on_sent = NULL;
  call->on_cancel = NULL;
  call->on_read = NULL;
  grpc_metadata_array_init(&call->metadata);
  grpc_call_details_init(&call->details);
}

void bl__server_request(bl_rpc_server_t *server, bl__method_t *method) {
  if (server->state != BL__SERVER_SERVING) {
    return;
  }
  bl_rpc_call_t *call = take_call(server);
  if (call == NULL) {
    method->owed++; // bl__server_release requests it later
    return;
  }
  prepare_call(call, server, method);
  bl__rpc_tag_arm(server->rpc, &call->arrived, bl__call_on_arrived);
  grpc_completion_queue *queue = server->rpc->queue;
  grpc_call_error error =
      method->registered != NULL
          ? grpc_server_request_registered_call(server->server, method->registered, &call->call, &call->deadline,
                                                &call->metadata, &call->payload, queue, queue, &call->arrived)
          : grpc_server_request_call(server->server, &call->call, &call->details, &call->metadata, queue, queue,
                                     &call->arrived);
  assert(error == GRPC_CALL_OK); // fails only for a queue that was not registered
  (void)error;
  server->request_count++;
}

// ---- the end --------------------------------------------------------------------------------------------------------

// The caller must not touch the server after this: `stopped` may destroy it.
static void check_stopped(bl_rpc_server_t *server) {
  if (server->state != BL__SERVER_STOPPING || !server->shutdown_done || server->request_count > 0 ||
      server->active_count > 0) {
    return;
  }
  server->state = BL__SERVER_STOPPED;
  bl_timer_stop(server->drain);
  release_listeners(server);
  server->stopped(server, server->context);
}

void bl__server_unrequest(bl_rpc_call_t *call) {
  bl_rpc_server_t *server = call->server;
  server->request_count--;
  give_call(call);
  check_stopped(server);
}

void bl__server_release(bl_rpc_call_t *call) {
  bl_rpc_server_t *server = call->server;
  *(call->previous != NULL ? &call->previous->next : &server->active) = call->next;
  if (call->next != NULL) {
    call->next->previous = call->previous;
  }
  server->active_count--;
  give_call(call);
  for (size_t i = 0; i < server->method_count && server->free != NULL; i++) {
    if (server->methods[i].owed > 0) {
      server->methods[i].owed--;
      bl__server_request(server, &server->methods[i]);
    }
  }
  check_stopped(server);
}

static void on_shutdown(bl_message_t *message) {
  bl_rpc_server_t *server = BL__TAG_OWNER(message, bl_rpc_server_t, shutdown);
  server->shutdown_done = true;
  check_stopped(server);
}

static void on_drain_timer(bl_timer_t *timer, void *context) {
  bl_rpc_server_t *server = context;
  if (!server->drain_over) {
    server->drain_over = true;
    grpc_server_cancel_all_calls(server->server);
    bl_timer_start(timer, STUCK_MS, 0);
    return;
  }
  for (const bl_rpc_call_t *call = server->active; call != NULL; call = call->next) {
    bl_log(BL_LOG_WARNING, "server: shutdown waits for a cancelled call of %s that its handler has not finished",
           call->method->descriptor != NULL ? call->method->descriptor->name : "an unknown method");
  }
}

void bl_rpc_server_shutdown(bl_rpc_server_t *server, uint64_t drain_ms, bl_rpc_stopped_fn stopped, void *context) {
  assert(server->state == BL__SERVER_SERVING);
  server->state = BL__SERVER_STOPPING;
  server->stopped = stopped;
  server->context = context;
  bl__rpc_tag_arm(server->rpc, &server->shutdown, on_shutdown);
  grpc_server_shutdown_and_notify(server->server, server->rpc->queue, &server->shutdown);
  bl_timer_start(server->drain, drain_ms, 0);
}

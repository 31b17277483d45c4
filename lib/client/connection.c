// SPDX-License-Identifier: Apache-2.0
// Making the data connection of a session: the choice of the path, the greeting, the maps. By the thread that opens, and
// then by the transfer thread.
#include "client/client_core.h"
#include "datapath/machine.h"
#include "rpc/rpc.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool wait_for(int fd, short events, uint64_t deadline_ns) {
  for (uint64_t now_ns; (now_ns = bl_clock_now_ns()) < deadline_ns;) {
    uint64_t left_ms = (deadline_ns - now_ns) / BL_NS_PER_MS + 1;
    struct pollfd poll_fd = {.fd = fd, .events = events};
    if (poll(&poll_fd, 1, left_ms < 1000 ? (int)left_ms : 1000) > 0) {
      return true;
    }
  }
  return false;
}

static bl_status_t open_stream(bl_client_t *client, const char *address, uint64_t deadline_ns, bl_error_t *err) {
  bl_address_t where;
  int fd = -1;
  bl_status_t status = bl_address_parse(address, &where, err);
  bl_tls_t *tls = client->shm ? NULL : bl_rpc_process_tls();
  if (status == BL_OK && tls == NULL && !client->shm && !bl_address_is_local(&where) &&
      !bl_rpc_process_plaintext_ok()) {
    status = bl_error_set(err, BL_DENIED,
                          "%s: plaintext is refused off the loopback interface; give --tls-ca, --tls-certificate and "
                          "--tls-key, or allow it with --plaintext",
                          address);
  }
  if (status == BL_OK) {
    status = bl_socket_connect(&where, &fd, err);
  }
  if (status != BL_OK) {
    return status;
  }
  int errno_value = wait_for(fd, POLLOUT, deadline_ns) ? bl_socket_error(fd) : ETIMEDOUT;
  client->refused = errno_value == ECONNREFUSED;
  if (errno_value != 0) {
    close(fd);
    return bl_error_set(err, bl_status_from_errno(errno_value), "connect to %s: %s", address, strerror(errno_value));
  }
  if (tls == NULL) {
    bl_stream_plain(&client->stream, fd, client->shm);
  } else {
    status = bl_stream_tls(&client->stream, fd, tls, false, BL_STORES, err);
    if (status != BL_OK) {
      close(fd);
      return status;
    }
  }
  bl_inlet_init(&client->inlet, &client->stream);
  bl_outlet_init(&client->outlet, &client->stream);
  status = bl_stream_handshake(&client->stream, deadline_ns, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", address);
    bl_stream_close(&client->stream);
  }
  return status;
}

static bl_status_t receive_welcome(bl_client_t *client, const char *address, uint64_t deadline_ns, bl_error_t *err) {
  for (;;) {
    switch (bl_inlet_next(&client->inlet)) {
    case BL_INLET_AGAIN:
      if (!wait_for(client->stream.fd, POLLIN, deadline_ns)) {
        return bl_error_set(err, BL_UNAVAILABLE, "%s: the store did not answer in time", address);
      }
      break;
    case BL_INLET_FRAME:
      if (client->inlet.frame.kind != BL_BLOCK_WELCOME) {
        return bl_error_set(err, BL_INTERNAL, "%s: a %s came instead of a welcome", address,
                            bl_block_frame_kind_name(client->inlet.frame.kind));
      }
      if (client->inlet.frame.status != BL_OK) {
        return bl_error_set(err, client->inlet.frame.status, "%s: %s", address, client->inlet.text);
      }
      return BL_OK;
    case BL_INLET_END:
      (void)bl_stream_explain_end(&client->stream, err);
      return bl_error_prefix(err, "%s", address);
    case BL_INLET_BODY:
    case BL_INLET_BROKEN:
      if (client->inlet.failure.status == BL_UNAUTHENTICATED) {
        return bl_error_set(err, BL_UNAUTHENTICATED, "%s: %s", address, client->inlet.failure.text);
      }
      if (client->inlet.failure.status != BL_OK) {
        (void)bl_stream_explain_end(&client->stream, err);
        return bl_error_prefix(err, "%s", address);
      }
      return bl_error_set(err, BL_INTERNAL, "%s: this is no store of our version: %s", address,
                          client->inlet.reason != NULL ? client->inlet.reason : "out of turn");
    }
  }
}

static bl_status_t map_part(bl_client_t *client, size_t number, const char *address, bl_error_t *err) {
  int fd = bl_stream_take_descriptor(&client->stream);
  if (fd < 0) {
    return bl_error_set(err, BL_INTERNAL, "%s: the welcome came without the store's memory", address);
  }
  bl_device_t *device = client->by == BL_PATH_CUDA_IPC ? client->device : NULL;
  bl_status_t status = bl_peer_memory_open(&client->parts[number], device, fd, client->inlet.frame.bytes, err);
  close(fd);
  return status;
}

// The part that came with the welcome, and another one if it says so.
static bl_status_t map_arena(bl_client_t *client, const char *address, uint64_t deadline_ns, bl_error_t *err) {
  bool second = client->inlet.frame.source == 1;
  bl_status_t status = map_part(client, 0, address, err);
  while (status == BL_OK && second) {
    switch (bl_inlet_next(&client->inlet)) {
    case BL_INLET_AGAIN:
      if (!wait_for(client->stream.fd, POLLIN, deadline_ns)) {
        status = bl_error_set(err, BL_UNAVAILABLE, "%s: the store did not show all of its memory in time", address);
      }
      break;
    case BL_INLET_FRAME:
      if (client->inlet.frame.kind == BL_BLOCK_SHOW && client->inlet.frame.source == 1) {
        return map_part(client, 1, address, err);
      }
      status = bl_error_set(err, BL_INTERNAL, "%s: a %s came instead of memory", address,
                            bl_block_frame_kind_name(client->inlet.frame.kind));
      break;
    default:
      status = bl_error_set(err, BL_UNAVAILABLE, "%s: the store closed the connection", address);
      break;
    }
  }
  return status;
}

// A store that listens everywhere is reached where its control address is.
static bl_status_t tcp_address(const bl_client_t *client, char *text, size_t text_bytes, bl_error_t *err) {
  bl_address_t where;
  if (client->data_tcp_address[0] == '\0') {
    return bl_error_set(err, BL_UNAVAILABLE, "%s: the store has no data path over tcp (its --data-tcp)", client->store);
  }
  bl_status_t status = bl_address_parse(client->data_tcp_address, &where, err);
  const char *colon = strrchr(client->store, ':');
  if (status == BL_OK && bl_address_is_wildcard(&where) && colon != NULL && strncmp(client->store, "unix:", 5) != 0) {
    char host[256];
    uint16_t port = bl_address_port(&where);
    bool brackets = client->store[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(colon - client->store) - (brackets ? 2 : 0),
             client->store + (brackets ? 1 : 0));
    status = bl_address_resolve(host, port, &where, err);
  }
  if (status == BL_OK) {
    bl_address_format(&where, text, text_bytes);
  }
  return status;
}

bl_status_t bl__connect(bl_client_t *client, bool waits, uint64_t deadline_ns, bl_error_t *err) {
  char address[BL_RPC_ADDRESS_BYTES];
  bl_block_greeting_t greeting = {
      .session = client->session, .shm = client->shm, .path = client->by, .unverified = client->unverified};
  uint8_t body[BL_BLOCK_GREETING_BYTES];
  memcpy(greeting.key, client->key, sizeof greeting.key);
  memcpy(greeting.incarnation, client->incarnation, sizeof greeting.incarnation);
  snprintf(greeting.reason, sizeof greeting.reason, "%s", client->path);
  bl_block_greeting_encode(&greeting, body);
  bl_status_t status = BL_OK;
  if (client->shm) {
    snprintf(address, sizeof address, "%s", client->data_address);
  } else {
    status = tcp_address(client, address, sizeof address, err);
  }
  if (status == BL_OK) {
    status = open_stream(client, address, deadline_ns, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (!bl_outlet_put(&client->outlet, &(bl_block_frame_t){.kind = BL_BLOCK_GREET}, body, -1) ||
      bl_outlet_flush(&client->outlet) != BL_OUTLET_DONE) {
    status = bl_stream_failure(&client->stream, errno, err);
    bl_error_prefix(err, "%s: the store does not take the greeting", address);
  }
  if (status == BL_OK) {
    status = receive_welcome(client, address, deadline_ns, err);
  }
  if (status == BL_OK && client->shm) {
    status = map_arena(client, address, deadline_ns, err);
  } else if (status == BL_OK && client->by == BL_PATH_NCCL) {
    status = bl__ways_open(client, waits, deadline_ns, err);
  }
  if (status != BL_OK) {
    bl__disconnect(client);
    return status;
  }
  client->linked = true;
  client->link_why[0] = '\0';
  return BL_OK;
}

void bl__disconnect(bl_client_t *client) {
  bl_stream_close(&client->stream); // so that the store gives up its ends of communicators, too
  bl__ways_close(client);
  bl_peer_memory_close(&client->parts[0]);
  bl_peer_memory_close(&client->parts[1]);
  client->linked = false;
}

bl_status_t bl__connect_first(bl_client_t *client, bl_error_t *err) {
  uint64_t deadline_ns = bl_clock_now_ns() + client->open_ms * BL_NS_PER_MS;
  bl_path_end_t own = bl_endpoint_end(&client->endpoint, "this process", client->own_machine, true, true);
  bl_path_end_t peer = bl_endpoint_end(&client->store_endpoint, "the store", client->machine,
                                       client->data_address[0] != '\0', client->data_tcp_address[0] != '\0');
  bl_path_choice_t choice;
  bl_error_t failure = {0}, none = {0};
  for (unsigned failed = 0;; failed |= 1u << choice.path) {
    bl_status_t status =
        bl_path_choose(&own, &peer, (bl_path_t)client->wanted_path, failed, failure.text, &choice, &none);
    if (status != BL_OK) { // nothing is left: the last failure says more than that
      const bl_error_t *cause = failure.status != BL_OK ? &failure : &none;
      if (err != NULL) {
        *err = *cause;
      }
      return cause->status;
    }
    if (choice.staged && client->device != NULL) {
      return bl_error_set(err, BL_UNIMPLEMENTED, "%s: memory of the GPU does not get there by itself (%s)",
                          client->store, choice.reason);
    }
    client->by = choice.path;
    client->shm = bl_path_is_unix(choice.path);
    snprintf(client->path, sizeof client->path, "%s", choice.reason);
    status = bl__connect(client, true, deadline_ns, &failure);
    if (status == BL_OK || status == BL_FENCED || status == BL_DENIED) {
      if (err != NULL) {
        *err = failure;
      }
      return status;
    }
  }
}

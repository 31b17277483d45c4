// SPDX-License-Identifier: Apache-2.0
#include "rpc/channel.h"

#include "rpc/address.h"
#include "rpc/channel_core.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEEPALIVE_MS         10000
#define KEEPALIVE_TIMEOUT_MS 5000
#define FIRST_BACKOFF_MS     100
#define LARGEST_BACKOFF_MS   1000
// Time limit of a connection attempt to an address where nothing answers.
#define CONNECT_TIMEOUT_MS 5000
// Minimum time between two look-ups of a name. gRPC's default of 30 s is far longer than a service takes to move.
#define RESOLVE_INTERVAL_MS 1000
#define ANY_SERVICE         (BL_STAGES | BL_STORES | BL_DRIVERS)

static grpc_channel *create_grpc_channel(const bl__address_t *address, const bl_rpc_channel_options_t *options,
                                         size_t message_limit_bytes, grpc_channel_credentials *credentials) {
  bl__rpc_args_t args = {0};
  bl__rpc_args_add(&args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1); // no connection shared with another channel
  bl__rpc_args_add(&args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, message_limit_bytes);
  bl__rpc_args_add(&args, GRPC_ARG_KEEPALIVE_TIME_MS,
                   options->keepalive_ms != 0 ? options->keepalive_ms : KEEPALIVE_MS);
  bl__rpc_args_add(&args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   options->keepalive_timeout_ms != 0 ? options->keepalive_timeout_ms : KEEPALIVE_TIMEOUT_MS);
  bl__rpc_args_add(&args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  bl__rpc_args_add(&args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0); // as many as keepalive needs
  bl__rpc_args_add(&args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, FIRST_BACKOFF_MS);
  bl__rpc_args_add(&args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, LARGEST_BACKOFF_MS);
  // gRPC's name for the time that a connection attempt may take.
  bl__rpc_args_add(&args, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   options->connect_timeout_ms != 0 ? options->connect_timeout_ms : CONNECT_TIMEOUT_MS);
  bl__rpc_args_add(&args, GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, RESOLVE_INTERVAL_MS);
  bl__rpc_args_add(&args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  bl__rpc_args_add(&args, GRPC_ARG_ENABLE_RETRIES, 0); // only the caller knows what may be done twice
  bl__rpc_args_add(&args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  bl__rpc_args_add(&args, GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, INT_MAX);
  bl__rpc_args_add(&args, GRPC_ARG_ENABLE_CHANNELZ, 0);
  // No compression: a small compressed message could unpack to far more than the message limit.
  bl__rpc_args_add(&args, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1u << GRPC_COMPRESS_NONE);
  return grpc_channel_create(address->target, credentials, &args.list);
}

// ---- lines ----------------------------------------------------------------------------------------------------------

// Returns NULL if out of memory.
static bl__line_t *create_line(const bl_rpc_channel_t *channel) {
  bl__line_t *line = calloc(1, sizeof *line);
  if (line == NULL) {
    return NULL;
  }
  grpc_channel_credentials *credentials = channel->trust != NULL
                                              ? bl__channel_credentials_create(channel->trust, &line->generation)
                                              : grpc_insecure_credentials_create();
  if (credentials == NULL) {
    free(line);
    return NULL;
  }
  line->users = 1;
  line->channel = create_grpc_channel(&channel->peer, &channel->options, channel->message_limit_bytes, credentials);
  grpc_channel_credentials_release(credentials);
  return line;
}

void bl__line_release(bl__line_t *line) {
  if (line != NULL && --line->users == 0) {
    grpc_channel_destroy(line->channel);
    free(line);
  }
}

bl__line_t *bl__channel_take_line(bl_rpc_channel_t *channel) {
  if (channel->trust != NULL && bl_tls_refresh(channel->tls) != channel->line->generation) {
    bl__line_t *line = create_line(channel);
    if (line != NULL) { // else the next request retries
      bl__line_release(channel->line);
      channel->line = line;
    }
  }
  channel->line->users++;
  return channel->line;
}

// Returns whether gRPC's text says that the peer closed the connection during its set-up.
static bool was_hung_up(const char *text) {
  static const char *const marks[] = {"ocket closed", "onnection reset", "roken pipe", "andshake", "SSL", "ssl"};
  for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
    if (strstr(text, marks[i]) != NULL) {
      return true;
    }
  }
  return false;
}

bool bl__channel_explain(bl_rpc_channel_t *channel, bl_error_t *err) {
  bl_error_t why;
  if (strstr(err->text, "failed to connect") == NULL) {
    return false; // the connection had been made
  }
  if (channel->trust != NULL) {
    if (bl__trust_refusal(channel->trust, &why) || bl_tls_judge_own(channel->tls, &why) != BL_OK) {
      (void)bl_error_set(err, BL_UNAUTHENTICATED, "%s: %s", channel->address, why.text);
      return false;
    }
    if (strstr(err->text, "WRONG_VERSION_NUMBER") != NULL || strstr(err->text, "wrong version number") != NULL) {
      (void)bl_error_set(err, err->status,
                         "%s; it does not speak TLS there: leave out --tls-*, or give it certificates", err->text);
      return false;
    }
  }
  return !channel->peer.is_unix && was_hung_up(err->text);
}

unsigned bl__channel_server_roles(const bl_rpc_channel_t *channel) {
  return channel->options.server_roles != 0 ? channel->options.server_roles : ANY_SERVICE;
}

// ---- life -----------------------------------------------------------------------------------------------------------

static void free_channel(bl_rpc_channel_t *channel) {
  bl__line_release(channel->line);
  bl__trust_release(channel->trust);
  bl_tls_release(channel->tls);
  free(channel);
}

bl_status_t bl_rpc_channel_create(bl_rpc_t *rpc, const char *text, const bl_rpc_channel_options_t *options,
                                  bl_rpc_channel_t **result, bl_error_t *err) {
  static const bl_rpc_channel_options_t defaults = {0};
  if (options == NULL) {
    options = &defaults;
  }
  bl__address_t address;
  bl_status_t status = bl__address_parse(text, &address, err);
  if (status != BL_OK) {
    return status;
  }
  const bl_rpc_security_t *own = options->security;
  bl_tls_t *secured = own != NULL ? own->tls : rpc->tls;
  bl_tls_t *tls = address.is_unix || options->plaintext ? NULL : secured;
  if (tls == NULL && !options->plaintext) {
    status = bl__plaintext_check(own != NULL ? own->plaintext_ok : rpc->plaintext_ok, &address, text, err);
    if (status != BL_OK) {
      return status;
    }
  }
  bl_rpc_channel_t *channel = calloc(1, sizeof *channel);
  if (channel == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "channel to %s: out of memory", text);
  }
  channel->rpc = rpc;
  channel->peer = address;
  channel->options = *options;
  channel->options.security = NULL; // owned by the caller
  channel->message_limit_bytes =
      options->message_limit_bytes != 0 ? options->message_limit_bytes : BL_RPC_MESSAGE_LIMIT_BYTES;
  channel->unpack_limit_bytes =
      options->unpack_limit_bytes != 0 ? options->unpack_limit_bytes : BL_RPC_UNPACK_LIMIT_BYTES;
  snprintf(channel->address, sizeof channel->address, "%s", text);
  if (tls != NULL) {
    channel->tls = bl_tls_acquire(tls);
    channel->trust = bl__trust_create(tls, bl__channel_server_roles(channel));
  }
  channel->line = tls == NULL || channel->trust != NULL ? create_line(channel) : NULL;
  if (channel->line == NULL) {
    free_channel(channel);
    return bl_error_set(err, BL_EXHAUSTED, "channel to %s: out of memory", text);
  }
  rpc->users++;
  *result = channel;
  return BL_OK;
}

void bl_rpc_channel_destroy(bl_rpc_channel_t *channel) {
  if (channel == NULL) {
    return;
  }
  assert(bl_loop_is_current(channel->rpc->loop));
  while (channel->requests != NULL) {
    bl__rpc_request_abandon(channel->requests);
  }
  while (channel->free != NULL) {
    bl__rpc_request_t *next = channel->free->next;
    free(channel->free);
    channel->free = next;
  }
  channel->rpc->users--;
  free_channel(channel);
}

const char *bl_rpc_channel_address(const bl_rpc_channel_t *channel) {
  return channel->address;
}

bl_loop_t *bl_rpc_channel_loop(const bl_rpc_channel_t *channel) {
  return channel->rpc->loop;
}

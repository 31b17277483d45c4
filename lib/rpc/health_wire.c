// SPDX-License-Identifier: Apache-2.0
#include "rpc/health_wire.h"

#include "grpc/health/v1/health.pb-c.h"

#include <stdint.h>

const ProtobufCServiceDescriptor *bl__health_service(void) {
  return &grpc__health__v1__health__descriptor;
}

const char *bl__health_read_request(const ProtobufCMessage *input) {
  return ((const Grpc__Health__V1__HealthCheckRequest *)input)->service;
}

bl_rpc_health_state_t bl__health_read_response(const ProtobufCMessage *output) {
  switch (((const Grpc__Health__V1__HealthCheckResponse *)output)->status) {
  case GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING:
    return BL_RPC_HEALTH_SERVING;
  case GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING:
    return BL_RPC_HEALTH_NOT_SERVING;
  default:
    return BL_RPC_HEALTH_UNKNOWN;
  }
}

static void fill_response(Grpc__Health__V1__HealthCheckResponse *response, bl_rpc_health_state_t state) {
  grpc__health__v1__health_check_response__init(response);
  switch (state) {
  case BL_RPC_HEALTH_SERVING:
    response->status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    break;
  case BL_RPC_HEALTH_NOT_SERVING:
    response->status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    break;
  default:
    response->status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
  }
}

void bl__health_reply(bl_rpc_call_t *call, bl_rpc_health_state_t state) {
  Grpc__Health__V1__HealthCheckResponse response;
  fill_response(&response, state);
  bl_rpc_call_reply(call, &response.base);
}

bl_status_t bl__health_send(bl_rpc_call_t *call, bl_rpc_health_state_t state, bl_rpc_sent_fn sent, void *context) {
  Grpc__Health__V1__HealthCheckResponse response;
  fill_response(&response, state);
  return bl_rpc_call_send(call, &response.base, sent, context);
}

bl_status_t bl__health_start_check(bl_rpc_channel_t *channel, const char *service, uint64_t deadline_ms,
                                   bl_rpc_done_fn done, void *context, bl_error_t *err) {
  Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
  request.service = (char *)service; // protobuf-c has no const strings; packing only reads it
  return bl_rpc_channel_call(channel, bl__health_service(), "Check", &request.base, deadline_ms, done, context, err);
}

// SPDX-License-Identifier: Apache-2.0
#include "rpc_wire.h"

#include "ballast/v1/stage.pb-c.h"

#include <assert.h>

#define DEADLINE_MS 10000 // as in the baseline

static void handle_commit(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)context;
  Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
  response.applied = ((const Ballast__V1__CommitRequest *)input)->step;
  bl_rpc_call_reply(call, &response.base);
}

bl_status_t bl_bench_commit_serve(bl_rpc_server_t *server, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {{"Commit", handle_commit}};
  return bl_rpc_server_add_service(server, &ballast__v1__stage__descriptor, methods, 1, NULL, err);
}

static void fill(Ballast__V1__CommitRequest *request, Ballast__V1__DriverIdentity *driver, uint64_t step) {
  ballast__v1__driver_identity__init(driver);
  driver->epoch = 3;
  driver->id = 0x123456789abcdef0;
  ballast__v1__commit_request__init(request);
  request->driver = driver;
  request->step = step;
  request->attempt = step;
  request->scale = 0.5;
  request->learning_rate = 1e-3;
}

bl_status_t bl_bench_commit_start(bl_rpc_channel_t *channel, uint64_t step, bl_rpc_done_fn done, void *context,
                                  bl_error_t *err) {
  Ballast__V1__DriverIdentity driver;
  Ballast__V1__CommitRequest request;
  fill(&request, &driver, step);
  return bl_rpc_channel_call(channel, &ballast__v1__stage__descriptor, "Commit", &request.base, DEADLINE_MS, done,
                             context, err);
}

uint64_t bl_bench_commit_applied(const ProtobufCMessage *output) {
  return ((const Ballast__V1__CommitResponse *)output)->applied;
}

size_t bl_bench_commit_pack(uint64_t step, uint8_t bytes[BL_BENCH_COMMIT_BYTES]) {
  Ballast__V1__DriverIdentity driver;
  Ballast__V1__CommitRequest request;
  fill(&request, &driver, step);
  assert(protobuf_c_message_get_packed_size(&request.base) <= BL_BENCH_COMMIT_BYTES);
  return protobuf_c_message_pack(&request.base, bytes);
}

// SPDX-License-Identifier: Apache-2.0
// Verifies the end of a store that holders are connected to. The end of a connection ends its transfers, which tells the
// table the time: sessions that have expired by then end with their connections, wherever these stand in the list.
#include "service_wire.h"

#include "datapath/frame.h"
#include "datapath/socket.h"
#include "rpc/server.h"
#include "store/raw_wire.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GRANULE (UINT64_C(64) << 10)
#define TTL_MS  1500 // longer than all calls of the test take

typedef struct fixture {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_service_t *service;
  bl_rpc_server_t *server;
  raw_store_t raw;
  bl_address_t tcp;
  char folder[64], data[128];
} fixture_t;

static fixture_t fixture;

static int set_up(void **state) {
  (void)state;
  bl_error_t err = {0};
  char address[BL_RPC_ADDRESS_BYTES];
  strcpy(fixture.folder, "/tmp/ballast-stop-XXXXXX");
  if (mkdtemp(fixture.folder) == NULL || bl_address_resolve("127.0.0.1", 0, &fixture.tcp, &err) != BL_OK) {
    return -1;
  }
  snprintf(fixture.data, sizeof fixture.data, "unix:%.64s/data", fixture.folder);
  const bl_store_options_t options = {.leases = {.capacity_bytes = 64 * GRANULE,
                                                 .max_jobs = 4,
                                                 .max_sessions = 8,
                                                 .max_leases = 128,
                                                 .history = 32,
                                                 .ttl_ns = UINT64_C(1000000) * TTL_MS,
                                                 .ttl_floor_ns = 1,
                                                 .grace_ns = 1},
                                      .data_address = fixture.data,
                                      .data_tcp = &fixture.tcp};
  if (bl_loop_create(&fixture.loop, &err) != BL_OK || bl_rpc_create(fixture.loop, &fixture.rpc, &err) != BL_OK ||
      bl_service_create(fixture.loop, &options, &fixture.service, &err) != BL_OK ||
      bl_rpc_server_create(fixture.rpc, NULL, &fixture.server, &err) != BL_OK ||
      bl_service_serve(fixture.service, fixture.server, &err) != BL_OK ||
      bl_rpc_server_listen(fixture.server, "127.0.0.1:0", address, sizeof address, &err) != BL_OK ||
      bl_rpc_server_start(fixture.server, &err) != BL_OK ||
      bl_rpc_channel_create(fixture.rpc, address, NULL, &fixture.raw.channel, &err) != BL_OK) {
    print_error("%s\n", err.text);
    return -1;
  }
  fixture.raw.loop = fixture.loop;
  return 0;
}

static void stopped(bl_rpc_server_t *server, void *context) {
  (void)server;
  bl_loop_stop(((fixture_t *)context)->loop);
}

static int tear_down(void **state) {
  (void)state;
  bl_rpc_destroy(fixture.rpc);
  bl_loop_destroy(fixture.loop);
  return rmdir(fixture.folder); // nothing is left in it
}

static void call(raw_call_kind_t kind, raw_input_t *input, raw_output_t *output) {
  input->acknowledged = input->sequence++;
  if (raw_call(&fixture.raw, kind, input, output) != BL_OK) {
    fail_msg("%s", fixture.raw.err.text);
  }
}

// The loop runs: the store reads what holders have sent.
static void let_it_read(void) {
  raw_output_t output;
  for (int i = 0; i < 20; i++) {
    assert_int_equal(raw_call(&fixture.raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
  }
}

static void send_frame(int fd, bl_frame_t frame, const uint8_t *body) {
  uint8_t bytes[BL_FRAME_HEADER_BYTES + BL_FRAME_GREETING_BYTES];
  frame.body_bytes = body != NULL ? BL_FRAME_GREETING_BYTES : 0;
  bl_frame_encode(&frame, bytes);
  if (body != NULL) {
    memcpy(bytes + BL_FRAME_HEADER_BYTES, body, BL_FRAME_GREETING_BYTES);
  }
  const size_t count = BL_FRAME_HEADER_BYTES + frame.body_bytes;
  assert_int_equal(write(fd, bytes, count), count);
}

typedef struct holder {
  raw_input_t input;
  uint64_t slot, generation;
  int fd;
} holder_t;

// A session with a slot, and its connection over TCP.
static holder_t connect_holder(uint32_t stage) {
  holder_t holder = {
      .input = {.job = "job", .stage = stage, .arena_bytes = 16 * GRANULE, .id_bytes = {1, (uint8_t)stage}}};
  raw_output_t output;
  bl_error_t err = {0};
  bl_address_t where;
  assert_int_equal(raw_call(&fixture.raw, RAW_OPEN, &holder.input, &output), BL_OK);
  holder.input.session = output.session;
  memcpy(holder.input.key, output.key, RAW_ID);
  memcpy(holder.input.incarnation, output.incarnation, RAW_ID);
  assert_int_equal(bl_address_parse(output.data_tcp_address, &where, &err), BL_OK);
  holder.input.plan = 1;
  holder.input.bytes = GRANULE;
  holder.input.count = 1;
  call(RAW_RESERVE, &holder.input, &output);
  holder.slot = output.items[0].id;
  holder.generation = output.items[0].generation;
  bl_greeting_t greeting = {.session = holder.input.session, .path = BL_PATH_TCP};
  uint8_t body[BL_FRAME_GREETING_BYTES];
  memcpy(greeting.own_token, holder.input.key, RAW_ID);
  memcpy(greeting.token, holder.input.incarnation, RAW_ID);
  bl_greeting_encode(&greeting, body);
  assert_int_equal(bl_socket_connect(&where, &holder.fd, &err), BL_OK);
  assert_int_equal(poll(&(struct pollfd){.fd = holder.fd, .events = POLLOUT}, 1, 10000), 1);
  send_frame(holder.fd, (bl_frame_t){.kind = BL_FRAME_GREET}, body);
  let_it_read();
  return holder;
}

// The later connection is ended first. Its block is still awaited.
static void test_sessions_that_have_expired(void **state) {
  (void)state;
  holder_t other = connect_holder(1), holder = connect_holder(0);
  send_frame(holder.fd,
             (bl_frame_t){.kind = BL_FRAME_EVICT,
                          .id = holder.slot,
                          .generation = holder.generation,
                          .sequence = holder.input.sequence + 1,
                          .acknowledged = holder.input.sequence,
                          .bytes = 1000},
             NULL);
  let_it_read();
  const bl_connections_counters_t *counters = bl_store_data_counters(bl_service_store(fixture.service));
  assert_int_equal(counters->up[BL_PATH_TCP], 2);
  bl_rpc_channel_destroy(fixture.raw.channel);
  bl_service_end_calls(fixture.service);
  bl_rpc_server_shutdown(fixture.server, 1000, stopped, &fixture);
  bl_loop_run(fixture.loop);
  bl_rpc_server_destroy(fixture.server);
  usleep(1000 * TTL_MS); // the process does not run
  bl_service_destroy(fixture.service);
  close(holder.fd);
  close(other.fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_sessions_that_have_expired, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Verifies mutual TLS of calls: who is at the other end, on both sides; every kind of wrong certificate is refused with its
// reason; the table of who may call what is asked; certificates are replaced while both run; plaintext stays at home.
#include "echo_world.h"
#include "tls/authority.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static authority_t ours, others;

static int start(void **state) {
  (void)state;
  authority_init(&ours, "");
  authority_init(&others, "stage driver");
  return 0;
}

static int stop(void **state) {
  (void)state;
  authority_cleanup(&ours);
  authority_cleanup(&others);
  return 0;
}

static bl_status_t only_drivers_say(const char *service, const char *method, const bl_identity_t *caller,
                                    bl_error_t *err) {
  assert_string_equal(service, "ballast.test.Echo");
  if (strcmp(method, "Say") != 0 || caller->role == BL_ROLE_DRIVER) {
    return BL_OK;
  }
  return bl_error_set(err, BL_DENIED, "only drivers may");
}

// A world whose server has one certificate and whose channel another; NULL: plaintext.
static void init_pair(world_t *world, bl_tls_t *server, bl_tls_t *client, unsigned server_roles) {
  world_init(world, NULL, NULL);
  bl_error_t err;
  bl_rpc_secure(world->rpc, &(bl_rpc_security_t){.tls = client});
  const char *address = "127.0.0.1:0";
  if (server == NULL) {
    bl_rpc_secure(world->rpc, &(bl_rpc_security_t){.tls = NULL});
    assert_int_equal(echo_server_start(&world->echo, world->rpc, address, NULL, &err), BL_OK);
  }
  if (server != NULL) {
    bl_rpc_secure(world->rpc, &(bl_rpc_security_t){.tls = server, .access = only_drivers_say});
    assert_int_equal(echo_server_start(&world->echo, world->rpc, address, NULL, &err), BL_OK);
  }
  bl_rpc_secure(world->rpc, &(bl_rpc_security_t){.tls = client, .access = only_drivers_say});
  bl_rpc_channel_options_t options = {.server_roles = server_roles};
  assert_int_equal(bl_rpc_channel_create(world->rpc, world->echo.address, &options, &world->channel, &err), BL_OK);
}

// One call with these certificates: its status and a part of its text.
static void expect(bl_tls_t *server, bl_tls_t *client, unsigned server_roles, bl_status_t status, const char *part) {
  world_t world;
  init_pair(&world, server, client, server_roles);
  outcome_t outcome;
  world_call(&world, "Say", &(echo_request_t){.text = "hello"}, 20000, &outcome);
  if (outcome.err.status != status || strstr(outcome.err.text, part) == NULL) {
    fail_msg("%s: %s; wanted %s with '%s'", bl_status_name(outcome.err.status), outcome.err.text,
             bl_status_name(status), part);
  }
  world_cleanup(&world);
}

static void both_ends_are_known(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *driver = authority_tls(&ours, "driver");
  expect(stage, driver, BL_STAGES, BL_OK, "");
  expect(stage, driver, 0, BL_OK, ""); // any service
  bl_tls_release(stage);
  bl_tls_release(driver);
}

static void streams_and_large_messages_pass(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *driver = authority_tls(&ours, "driver");
  world_t world;
  init_pair(&world, stage, driver, BL_STAGES);
  outcome_t outcome;
  world_call(&world, "Say", &(echo_request_t){.text = "x", .payload_bytes = 5000000}, 20000, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  assert_int_equal(outcome.payload_bytes, 5000000);
  world_cleanup(&world);
  bl_tls_release(stage);
  bl_tls_release(driver);
}

static void wrong_servers_are_refused(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *driver = authority_tls(&ours, "driver");
  bl_tls_t *foreign = authority_tls(&others, "stage");
  expect(stage, driver, BL_STORES, BL_UNAUTHENTICATED, "is for the role stage, but a store is wanted");
  expect(driver, driver, BL_STAGES, BL_UNAUTHENTICATED, "is for the role driver, but a stage is wanted");
  expect(foreign, driver, BL_STAGES, BL_UNAUTHENTICATED, "issued by another authority");
  expect(NULL, driver, BL_STAGES, BL_UNAVAILABLE, "does not speak TLS");
  bl_tls_release(stage);
  bl_tls_release(driver);
  bl_tls_release(foreign);
}

static void wrong_clients_are_refused(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *store = authority_tls(&ours, "store");
  expect(stage, store, BL_STAGES, BL_DENIED, "only drivers may");
  expect(stage, NULL, 0, BL_UNAUTHENTICATED, "it speaks TLS there, and this program does not: give --tls-ca");
  bl_tls_release(stage);
  bl_tls_release(store);
}

// Trusts our server, but its own certificate is of another authority.
static void a_client_of_another_authority_is_refused(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *driver = authority_tls_trusting(&others, "driver", &ours);
  expect(stage, driver, BL_STAGES, BL_UNAUTHENTICATED, "issued by '/CN=Ballast authority");
  expect(stage, driver, BL_STAGES, BL_UNAUTHENTICATED, "the peer trusts '/CN=Ballast authority");
  bl_tls_release(stage);
  bl_tls_release(driver);
}

static void certificates_are_replaced_while_both_run(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *driver = authority_tls(&ours, "driver");
  world_t world;
  init_pair(&world, stage, driver, BL_STAGES);
  outcome_t outcome, stream = {.hold_at = 1};
  world_call(&world, "Say", &(echo_request_t){.text = "before"}, 20000, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  world_start_stream(&world, "Count", &(echo_request_t){.count = 3}, BL_RPC_NO_DEADLINE, &stream);
  world_wait_for(&world, &stream.messages, 1);
  uint64_t before = bl_tls_refresh(driver), now = before;
  authority_make(&ours, "stage driver");
  for (int i = 0; i < 6000 && now == before; i++) {
    usleep(10000);
    now = bl_tls_refresh(driver);
  }
  assert_true(now > before);
  char peer[BL_RPC_ADDRESS_BYTES];
  snprintf(peer, sizeof peer, "%s", world.echo.peer);
  world_call(&world, "Say", &(echo_request_t){.text = "after"}, 20000, &outcome); // on a connection of its own
  assert_int_equal(outcome.err.status, BL_OK);
  assert_string_not_equal(peer, world.echo.peer);
  bl__rpc_request_resume(stream.request); // goes on where it was
  world_wait(&world, &stream);
  assert_int_equal(stream.err.status, BL_OK);
  assert_int_equal(stream.messages, 3);
  world_cleanup(&world);
  bl_tls_release(stage);
  bl_tls_release(driver);
}

static void plaintext_stays_at_home(void **state) {
  (void)state;
  world_t world;
  world_init(&world, NULL, NULL);
  bl_error_t err;
  bl_rpc_channel_t *channel = NULL;
  static const char *const away[] = {"10.0.0.2:7000", "0.0.0.0:7000", "stage-0.cluster:7000", "[2001:db8::1]:7000"};
  for (size_t i = 0; i < sizeof away / sizeof away[0]; i++) {
    assert_int_equal(bl_rpc_channel_create(world.rpc, away[i], NULL, &channel, &err), BL_DENIED);
    assert_non_null(strstr(err.text, "--plaintext"));
  }
  assert_int_equal(echo_server_start(&world.echo, world.rpc, "0.0.0.0:0", NULL, &err), BL_DENIED);
  assert_non_null(strstr(err.text, "cannot listen on 0.0.0.0:0: plaintext is refused off the loopback interface"));
  bl_rpc_server_destroy(world.echo.server);
  world.echo.server = NULL;
  bl_rpc_secure(world.rpc, &(bl_rpc_security_t){.plaintext_ok = true});
  assert_int_equal(bl_rpc_channel_create(world.rpc, away[0], NULL, &channel, &err), BL_OK);
  bl_rpc_channel_destroy(channel);
  world_cleanup(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_ends_are_known),
      cmocka_unit_test(streams_and_large_messages_pass),
      cmocka_unit_test(wrong_servers_are_refused),
      cmocka_unit_test(wrong_clients_are_refused),
      cmocka_unit_test(a_client_of_another_authority_is_refused),
      cmocka_unit_test(certificates_are_replaced_while_both_run),
      cmocka_unit_test(plaintext_stays_at_home),
  };
  return cmocka_run_group_tests(tests, start, stop);
}

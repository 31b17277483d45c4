// SPDX-License-Identifier: Apache-2.0
// Verifies the transport's tcp path over TLS: large tensors arrive whole in both directions at once, through new
// attempts; peers of another authority or role, and those without TLS, are refused with the reason; TLS opens addresses
// off loopback.
#include "pair.h"
#include "tls/authority.h"

static authority_t ours, others;

static int start(void **state) {
  (void)state;
  authority_init(&ours, "stage store");
  authority_init(&others, "stage");
  return 0;
}

static int stop(void **state) {
  (void)state;
  authority_cleanup(&ours);
  authority_cleanup(&others);
  return 0;
}

static bl_tensor_key_t key_of(uint32_t micro_batch, bl_direction_t direction) {
  return (bl_tensor_key_t){.boundary = 1, .direction = direction, .micro_batch = micro_batch};
}

#define TENSORS      6u
#define TENSOR_BYTES 1500001ull

static void exchange(pair_t *pair, uint64_t attempt) {
  uint8_t *received[2];
  bl_error_t err;
  pair_begin(pair, attempt);
  for (int side = 0; side < 2; side++) {
    received[side] = calloc(TENSORS, TENSOR_BYTES);
    assert_non_null(received[side]);
    pattern_fill(pair->arena[side].base, TENSORS * TENSOR_BYTES, attempt * 2 + (uint64_t)side);
  }
  for (uint32_t i = 0; i < TENSORS; i++) {
    for (int side = 0; side < 2; side++) {
      bl_direction_t out = side == 0 ? BL_FORWARD : BL_BACKWARD, in = side == 0 ? BL_BACKWARD : BL_FORWARD;
      CHECK_OK(bl_transport_post_receive(pair->transport[side], !side, key_of(i, in), received[side] + i * TENSOR_BYTES,
                                         TENSOR_BYTES, &err),
               err);
      CHECK_OK(bl_transport_post_send(pair->transport[side], !side, key_of(i, out),
                                      pair->arena[side].base + i * TENSOR_BYTES, TENSOR_BYTES, &err),
               err);
    }
  }
  for (uint32_t i = 0; i < TENSORS; i++) {
    for (int side = 0; side < 2; side++) {
      bl_direction_t out = side == 0 ? BL_FORWARD : BL_BACKWARD, in = side == 0 ? BL_BACKWARD : BL_FORWARD;
      CHECK_OK(bl_transport_wait_received(pair->transport[side], !side, key_of(i, in), soon(), &err), err);
      CHECK_OK(bl_transport_wait_sent(pair->transport[side], !side, key_of(i, out), soon(), &err), err);
    }
  }
  for (int side = 0; side < 2; side++) {
    pattern_check(received[side], TENSORS * TENSOR_BYTES, attempt * 2 + (uint64_t)!side, "over TLS");
    free(received[side]);
  }
}

static void tensors_arrive_whole(void **state) {
  (void)state;
  bl_tls_t *tls = authority_tls(&ours, "stage");
  pair_t pair;
  pair_init(&pair);
  pair.options[0].tls = pair.options[1].tls = tls;
  pair_listen(&pair);
  pair_connect(&pair, BL_PATH_TCP);
  exchange(&pair, 1);
  // An attempt given up in the middle: what is under way goes to its end, the next attempt is whole.
  bl_error_t err;
  pair_begin(&pair, 2);
  static uint8_t to[TENSOR_BYTES];
  CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0, BL_FORWARD), to, TENSOR_BYTES, &err), err);
  CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0, BL_FORWARD), pair.arena[0].base, TENSOR_BYTES, &err),
           err);
  exchange(&pair, 3);
  bl_transport_path_t path;
  assert_int_equal(bl_transport_paths(pair.transport[0], &path, 1), 1);
  assert_string_equal(path.reason, "tcp: asked for, encrypted");
  pair_close(&pair);
  bl_tls_release(tls);
}

// Side 0 connects to side 1 with these certificates (NULL: plaintext): why it fails. BL_OK: with any status; what the
// acceptor says may arrive or be lost with the connection.
static void refused(bl_tls_t *connects, bl_tls_t *accepts, bl_status_t status, const char *part) {
  pair_t pair;
  bl_transport_peer_t peer;
  bl_error_t err = {0};
  pair_init(&pair);
  pair.options[0].tls = connects;
  pair.options[1].tls = accepts;
  pair_listen(&pair);
  pair_peer(&pair, 1, &peer);
  bl_status_t got = bl_transport_connect_wait(pair.transport[0], &peer, 1, BL_PATH_TCP, soon(), &err);
  if ((got != status && status != BL_OK) || got == BL_OK || strstr(err.text, part) == NULL) {
    fail_msg("%s: %s; wanted %s with '%s'", bl_status_name(got), err.text, bl_status_name(status), part);
  }
  pair_close(&pair);
}

static void wrong_peers_are_refused(void **state) {
  (void)state;
  bl_tls_t *stage = authority_tls(&ours, "stage"), *store = authority_tls(&ours, "store");
  bl_tls_t *foreign = authority_tls(&others, "stage"), *trusting = authority_tls_trusting(&others, "stage", &ours);
  refused(stage, foreign, BL_UNAUTHENTICATED, "another authority");
  refused(stage, store, BL_UNAUTHENTICATED, "is for the role store, but a stage is wanted");
  refused(store, stage, BL_UNAUTHENTICATED, "the peer refuses this program's certificate");
  refused(trusting, stage, BL_UNAUTHENTICATED, "the peer trusts '/CN=Ballast authority");
  refused(stage, NULL, BL_UNAVAILABLE, "the peer does not speak TLS");
  refused(NULL, stage, BL_UNAUTHENTICATED, "the data path there is TLS, and this program's is not");
  bl_tls_release(trusting);
  bl_tls_release(stage);
  bl_tls_release(store);
  bl_tls_release(foreign);
}

static void tls_may_leave_the_machine(void **state) {
  (void)state;
  bl_tls_t *tls = authority_tls(&ours, "stage");
  pair_t pair;
  pair_init(&pair);
  bl_transport_options_t options = pair.options[0];
  bl_transport_t *transport = NULL;
  bl_error_t err;
  options.tcp_host = "0.0.0.0";
  options.tcp_advertise = "127.0.0.1";
  assert_int_equal(bl_transport_create(&options, &transport, &err), BL_DENIED);
  assert_non_null(strstr(err.text, "--tls-ca"));
  options.tls = tls;
  CHECK_OK(bl_transport_create(&options, &transport, &err), err);
  bl_transport_destroy(transport);
  pair_close(&pair);
  bl_tls_release(tls);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_arrive_whole),
      cmocka_unit_test(wrong_peers_are_refused),
      cmocka_unit_test(tls_may_leave_the_machine),
  };
  return cmocka_run_group_tests(tests, start, stop);
}

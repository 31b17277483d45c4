// SPDX-License-Identifier: Apache-2.0
// Verifies how addresses are taken apart, what is none, and which hosts are loopback.
#include "base/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void takes_apart(void **state) {
  (void)state;
  static const struct {
    const char *address, *host;
    uint16_t port;
  } cases[] = {
      {"127.0.0.1:7700", "127.0.0.1", 7700}, {"[::1]:0", "::1", 0}, {"node-3.example:65535", "node-3.example", 65535}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char host[64];
    uint16_t port = 1;
    bl_error_t err;
    assert_int_equal(bl_host_split(cases[i].address, host, sizeof host, &port, &err), BL_OK);
    assert_string_equal(host, cases[i].host);
    assert_int_equal(port, cases[i].port);
  }
}

static void refuses(void **state) {
  (void)state;
  static const char *const bad[] = {"",        "7700",    "host",    ":7700",      "host:",       "host:x",   "host:-1",
                                    "host:+1", "host: 1", "host:1x", "host:65536", "host:000001", "::1:7700", "[]:1"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char host[64] = "untouched";
    uint16_t port = 1;
    bl_error_t err = {0};
    assert_int_equal(bl_host_split(bad[i], host, sizeof host, &port, &err), BL_INVALID);
    assert_non_null(strstr(err.text, "must be host:port or [ipv6]:port"));
    assert_string_equal(host, "untouched");
    assert_int_equal(port, 1);
  }
  char small[4];
  uint16_t port;
  assert_int_equal(bl_host_split("host:1", small, sizeof small, &port, NULL), BL_INVALID);
}

static void loopback(void **state) {
  (void)state;
  assert_true(bl_host_is_loopback("localhost"));
  assert_true(bl_host_is_loopback("127.8.0.1"));
  assert_true(bl_host_is_loopback("::1"));
  assert_false(bl_host_is_loopback("0.0.0.0"));
  assert_false(bl_host_is_loopback("::"));
  assert_false(bl_host_is_loopback("localhost.example"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(takes_apart), cmocka_unit_test(refuses),
                                     cmocka_unit_test(loopback)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

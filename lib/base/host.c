// SPDX-License-Identifier: Apache-2.0
#include "base/host.h"

#include <arpa/inet.h>
#include <string.h>

// Accepts only digits, at most five: no sign, no space.
static bool read_port(const char *text, uint16_t *port) {
  unsigned value = 0;
  size_t digits = 0;
  for (; text[digits] >= '0' && text[digits] <= '9' && digits < 5; digits++) {
    value = 10 * value + (unsigned)(text[digits] - '0');
  }
  *port = (uint16_t)value;
  return digits > 0 && text[digits] == '\0' && value <= UINT16_MAX;
}

bl_status_t bl_host_split(const char *address, char *host, size_t host_bytes, uint16_t *port, bl_error_t *err) {
  const char *colon = strrchr(address, ':'), *from = address;
  size_t length = colon == NULL ? 0 : (size_t)(colon - address);
  uint16_t number;
  if (length >= 2 && from[0] == '[' && colon[-1] == ']') {
    from++;
    length -= 2;
  } else if (memchr(from, ':', length) != NULL) {
    length = 0; // an IPv6 address without brackets: it is ambiguous which colon starts the port
  }
  if (length == 0 || length >= host_bytes || !read_port(colon + 1, &number)) {
    return bl_error_set(err, BL_INVALID,
                        "address '%.200s': must be host:port or [ipv6]:port, with a port from 0 to 65535", address);
  }
  memcpy(host, from, length);
  host[length] = '\0';
  *port = number;
  return BL_OK;
}

bool bl_host_is_loopback(const char *host) {
  struct in_addr v4;
  struct in6_addr v6;
  if (strcmp(host, "localhost") == 0) {
    return true;
  }
  if (inet_pton(AF_INET, host, &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

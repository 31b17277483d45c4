// SPDX-License-Identifier: Apache-2.0
#include "sys/host.h"

#include <arpa/inet.h>
#include <string.h>

bl_status_t bl_host_of_address(const char *address, char *host, size_t host_bytes, bl_error_t *err) {
  const char *colon = strrchr(address, ':');
  const char *from = address;
  size_t length = colon == NULL ? 0 : (size_t)(colon - address);
  if (length >= 2 && address[0] == '[' && colon[-1] == ']') {
    from = address + 1;
    length -= 2;
  }
  if (length == 0 || length >= host_bytes || colon[1] == '\0') {
    return bl_error_set(err, BL_INVALID, "'%s': not an address of the form host:port", address);
  }
  memcpy(host, from, length);
  host[length] = '\0';
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

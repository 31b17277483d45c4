// SPDX-License-Identifier: Apache-2.0
#include "rpc/address.h"

#include "base/host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static bl_status_t parse_unix(const char *path, bl__address_t *address, bl_error_t *err) {
  if (path[0] != '/') {
    return bl_error_set(err, BL_INVALID, "address unix:%s: the path must be absolute", path);
  }
  const size_t room = sizeof(((struct sockaddr_un *)NULL)->sun_path);
  if (strlen(path) >= room) {
    return bl_error_set(err, BL_INVALID, "address unix:%s: a socket's path has at most %zu bytes, this has %zu", path,
                        room - 1, strlen(path));
  }
  address->is_unix = true;
  snprintf(address->path, sizeof address->path, "%s", path);
  snprintf(address->target, sizeof address->target, "unix:%s", path);
  return BL_OK;
}

// Writes the target for a parsed host and port.
static bl_status_t set_target(bl__address_t *address) {
  struct in6_addr bytes;
  const char *before = "dns:///", *after = "";
  if (inet_pton(AF_INET, address->host, &bytes) == 1) {
    before = "ipv4:";
  } else if (strchr(address->host, ':') != NULL) {
    if (inet_pton(AF_INET6, address->host, &bytes) != 1) {
      return BL_INVALID;
    }
    before = "ipv6:[";
    after = "]";
  }
  int length =
      snprintf(address->target, sizeof address->target, "%s%s%s:%s", before, address->host, after, address->port);
  return length > 0 && (size_t)length < sizeof address->target ? BL_OK : BL_INVALID;
}

bl_status_t bl__address_parse(const char *text, bl__address_t *address, bl_error_t *err) {
  memset(address, 0, sizeof *address);
  if (strncmp(text, "unix:", 5) == 0) {
    return parse_unix(text + 5, address, err);
  }
  uint16_t port;
  if (bl_host_split(text, address->host, sizeof address->host, &port, NULL) != BL_OK) {
    return bl_error_set(
        err, BL_INVALID,
        "address '%.200s': must be host:port or [ipv6]:port, with a port from 0 to 65535, or unix:/path", text);
  }
  snprintf(address->port, sizeof address->port, "%u", port);
  if (set_target(address) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "address %s: not a host name or an IP address", text);
  }
  return BL_OK;
}

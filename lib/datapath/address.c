// SPDX-License-Identifier: Apache-2.0
#include "datapath/address.h"

#include "base/host.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static bl_status_t parse_unix(const char *text, const char *path, bl_address_t *address, bl_error_t *err) {
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  size_t length = strlen(path);
  if (length == 0 || length >= sizeof un.sun_path) {
    return bl_error_set(err, BL_INVALID, "address \"%s\": the path must have 1 to %zu bytes, has %zu", text,
                        sizeof un.sun_path - 1, length);
  }
  memcpy(un.sun_path, path, length + 1);
  *address = (bl_address_t){.length = sizeof un};
  memcpy(&address->storage, &un, sizeof un);
  return BL_OK;
}

static bl_status_t lookup(const char *host, const char *port, int flags, bl_address_t *address) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
  struct addrinfo *found = NULL;
  if (getaddrinfo(host, port, &hints, &found) != 0) {
    return BL_NOT_FOUND;
  }
  *address = (bl_address_t){.length = found->ai_addrlen};
  memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return BL_OK;
}

bl_status_t bl_address_parse(const char *text, bl_address_t *address, bl_error_t *err) {
  if (strncmp(text, "unix:", 5) == 0) {
    return parse_unix(text, text + 5, address, err);
  }
  char host[64], service[8];
  uint16_t port;
  if (bl_host_split(text, host, sizeof host, &port, NULL) != BL_OK || port == 0) {
    return bl_error_set(err, BL_INVALID,
                        "address \"%.100s\": must be unix:/path, host:port or [ipv6]:port, with a port from 1 to 65535",
                        text);
  }
  snprintf(service, sizeof service, "%u", port);
  if (lookup(host, service, AI_NUMERICHOST, address) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "address \"%.100s\": the host must be a numeric address", text);
  }
  return BL_OK;
}

bl_status_t bl_address_resolve(const char *host, uint16_t port, bl_address_t *address, bl_error_t *err) {
  char service[8];
  snprintf(service, sizeof service, "%u", port);
  if (lookup(host, service, 0, address) != BL_OK) {
    return bl_error_set(err, BL_NOT_FOUND, "host \"%.100s\" has no address; name one of this machine's", host);
  }
  return BL_OK;
}

void bl_address_format(const bl_address_t *address, char *text, size_t text_bytes) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address->storage.ss_family == AF_UNIX) {
    snprintf(text, text_bytes, "unix:%s", ((const struct sockaddr_un *)&address->storage)->sun_path);
  } else if (address->storage.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)&address->storage)->sin6_addr, host, sizeof host);
    snprintf(text, text_bytes, "[%s]:%u", host, bl_address_port(address));
  } else {
    inet_ntop(AF_INET, &((const struct sockaddr_in *)&address->storage)->sin_addr, host, sizeof host);
    snprintf(text, text_bytes, "%s:%u", host, bl_address_port(address));
  }
}

bool bl_address_is_local(const bl_address_t *address) {
  if (address->storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&address->storage)->sin6_addr);
  }
  if (address->storage.ss_family == AF_INET) {
    return ntohl(((const struct sockaddr_in *)&address->storage)->sin_addr.s_addr) >> 24 == 127;
  }
  return true;
}

bool bl_address_is_wildcard(const bl_address_t *address) {
  if (address->storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&address->storage)->sin6_addr);
  }
  return address->storage.ss_family == AF_INET &&
         ((const struct sockaddr_in *)&address->storage)->sin_addr.s_addr == htonl(INADDR_ANY);
}

uint16_t bl_address_port(const bl_address_t *address) {
  if (address->storage.ss_family == AF_INET6) {
    return ntohs(((const struct sockaddr_in6 *)&address->storage)->sin6_port);
  }
  return address->storage.ss_family == AF_INET ? ntohs(((const struct sockaddr_in *)&address->storage)->sin_port) : 0;
}

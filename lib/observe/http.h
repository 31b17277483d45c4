// SPDX-License-Identifier: Apache-2.0
// A small HTTP server for metrics and pages of a process. Read-only: GET and HEAD.
//
//   static void answer(const char *path, bl_http_answer_t *answer, void *context) {
//     if (strcmp(path, "/metrics") == 0) { answer->type = BL_HTTP_TYPE_METRICS; answer->body = ...; }
//   }
//   bl_http_create(loop, "127.0.0.1:0", answer, self, bound, &http, err);
//   bl_http_destroy(http);
//
// Thread: create, destroy and the callback on the loop's thread. A separate thread serves the sockets. It posts to the
// loop and never waits for it.
// Limits: BL_HTTP_CONNECTIONS at a time (each holds a descriptor and a small buffer). A connection ends with its answer,
// or after 15 s of silence.
#ifndef BALLAST_OBSERVE_HTTP_H
#define BALLAST_OBSERVE_HTTP_H

#include "base/library.h"
#include "loop/loop.h"

#define BL_HTTP_CONNECTIONS   32 // bounds what a misbehaving scraper can use
#define BL_HTTP_ADDRESS_BYTES 280

#define BL_HTTP_TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"
#define BL_HTTP_TYPE_JSON    "application/json"
#define BL_HTTP_TYPE_HTML    "text/html; charset=utf-8"

typedef struct bl_http bl_http_t;

typedef struct bl_http_answer {
  int code;         // 0: 200 if there is a body, else 404
  const char *type; // static text
  char *body;       // malloc'd; the server takes ownership; NULL: a short text for the code
  size_t body_bytes;
} bl_http_answer_t;

// `path` has no query. `answer` is {0} at the start.
typedef void (*bl_http_fn)(const char *path, bl_http_answer_t *answer, void *context);

// Serves "host:port" or "[ipv6]:port"; port 0 picks a free port. `bound`: the address that is served. BL_INVALID: not
// such an address. BL_PRECONDITION: another process listens there. BL_DENIED, BL_EXHAUSTED, BL_IO.
BL_MUST_USE bl_status_t bl_http_create(bl_loop_t *loop, const char *address, bl_http_fn answer, void *context,
                                       char bound[BL_HTTP_ADDRESS_BYTES], bl_http_t **http, bl_error_t *err);
// Closes every connection. No callback fires afterwards. NULL is fine.
void bl_http_destroy(bl_http_t *http);

extern const bl_library_t bl_http_library; // libmicrohttpd

#endif

// SPDX-License-Identifier: Apache-2.0
// A small HTTP server for what a process shows of itself: metrics, a page. Read-only: GET and HEAD, nothing else.
//
//   static void answer(const char *path, bl_http_answer_t *answer, void *context) {
//     if (strcmp(path, "/metrics") == 0) { answer->type = BL_HTTP_TYPE_METRICS; answer->body = ...; }
//   }
//   bl_http_create(loop, "127.0.0.1:0", answer, self, bound, &http, err);
//   bl_http_destroy(http);
//
// Thread: create, destroy and the callback on the loop's thread; sockets are served by one thread of its own, which
// posts to the loop and waits for nothing.
// Limits: BL_HTTP_CONNECTIONS at a time (each holds a descriptor and a small buffer), 15 s of silence end one.
#ifndef BALLAST_OBSERVE_HTTP_H
#define BALLAST_OBSERVE_HTTP_H

#include "base/library.h"
#include "loop/loop.h"

#define BL_HTTP_CONNECTIONS   32 // bounds what a scraper gone wild can take
#define BL_HTTP_ADDRESS_BYTES 280

#define BL_HTTP_TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"
#define BL_HTTP_TYPE_JSON    "application/json"
#define BL_HTTP_TYPE_HTML    "text/html; charset=utf-8"

typedef struct bl_http bl_http_t;

typedef struct bl_http_answer {
  int code;         // 0: 200 when there is a body, else 404
  const char *type; // static text
  char *body;       // malloc'd, taken; NULL: a short text for the code
  size_t body_bytes;
} bl_http_answer_t;

// `path` without its query; `answer` begins as {0}.
typedef void (*bl_http_fn)(const char *path, bl_http_answer_t *answer, void *context);

// Serves "host:port" or "[ipv6]:port"; port 0 takes a free one. `bound`: where it serves. BL_INVALID: not such an
// address; BL_PRECONDITION: somebody else listens there; BL_DENIED, BL_EXHAUSTED, BL_IO.
BL_MUST_USE bl_status_t bl_http_create(bl_loop_t *loop, const char *address, bl_http_fn answer, void *context,
                                       char bound[BL_HTTP_ADDRESS_BYTES], bl_http_t **http, bl_error_t *err);
// Ends every connection; no callback after it. NULL is fine.
void bl_http_destroy(bl_http_t *http);

extern const bl_library_t bl_http_library; // libmicrohttpd

#endif

// SPDX-License-Identifier: Apache-2.0
// libmicrohttpd reads and writes on its own thread. A request is suspended there, answered on the loop, and resumed:
// the other thread never touches the loop's state.
#include "observe/http.h"

#include "base/host.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATH_BYTES      256 // longer paths do not exist
#define SILENCE_SECONDS 15
#define BACKLOG         64

struct bl_http {
  bl_loop_t *loop;
  bl_http_fn answer;
  void *context;
  struct MHD_Daemon *daemon;
  pthread_mutex_t lock; // guards `closing` and the transfer of a request to the loop
  bool closing;         // no request is passed to the loop any more
};

typedef struct request {
  bl_message_t message;
  bl_http_t *http;
  struct MHD_Connection *connection;
  bool refused, asked;
  bl_http_answer_t answer;
  char path[PATH_BYTES];
} request_t;

static void answer_on_loop(bl_message_t *message) {
  request_t *request = BL_MESSAGE_OWNER(message, request_t, message);
  bl_http_t *http = request->http;
  http->answer(request->path, &request->answer, http->context);
  MHD_resume_connection(request->connection); // from here on the other thread owns the request
}

static enum MHD_Result respond(struct MHD_Connection *connection, bl_http_answer_t *answer) {
  static const char refused[] = "only GET and HEAD are served here\n", missing[] = "there is nothing of that name\n",
                    failed[] = "not now\n";
  struct MHD_Response *response;
  unsigned code = (unsigned)answer->code;
  if (answer->body != NULL) {
    code = code == 0 ? MHD_HTTP_OK : code;
    response = MHD_create_response_from_buffer(answer->body_bytes, answer->body, MHD_RESPMEM_MUST_FREE);
    if (response != NULL) {
      answer->body = NULL;
    }
  } else {
    code = code == 0 ? MHD_HTTP_NOT_FOUND : code;
    const char *text = code == MHD_HTTP_METHOD_NOT_ALLOWED ? refused : code == MHD_HTTP_NOT_FOUND ? missing : failed;
    response = MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
  }
  if (response == NULL) {
    return MHD_NO;
  }
  const char *type = answer->type != NULL ? answer->type : "text/plain; charset=utf-8";
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close"); // pages that are open would take all places
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  enum MHD_Result result = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return result;
}

// Returns false if the server is closing.
static bool hand_to_loop(bl_http_t *http, request_t *request) {
  pthread_mutex_lock(&http->lock);
  bool open = !http->closing;
  if (open) {
    request->asked = true;
    MHD_suspend_connection(request->connection);
    bl_loop_post(http->loop, &request->message);
  }
  pthread_mutex_unlock(&http->lock);
  return open;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **state) {
  (void)version;
  (void)upload;
  bl_http_t *http = context;
  request_t *request = *state;
  if (request == NULL) { // only the headers have arrived; the next call answers
    request = calloc(1, sizeof *request);
    if (request == NULL) {
      return MHD_NO;
    }
    *request = (request_t){.message = {.handle = answer_on_loop}, .http = http, .connection = connection};
    request->refused = strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0;
    request->answer.code = request->refused ? MHD_HTTP_METHOD_NOT_ALLOWED : 0;
    snprintf(request->path, sizeof request->path, "%s", strlen(url) < sizeof request->path ? url : "");
    *state = request;
    return MHD_YES;
  }
  if (*upload_bytes != 0) {
    *upload_bytes = 0; // ignored
    return MHD_YES;
  }
  if (!request->refused && !request->asked) {
    if (hand_to_loop(http, request)) {
      return MHD_YES;
    }
    request->answer.code = MHD_HTTP_SERVICE_UNAVAILABLE;
  }
  return respond(connection, &request->answer);
}

static void completed(void *context, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode why) {
  (void)context;
  (void)connection;
  (void)why;
  request_t *request = *state;
  if (request != NULL) {
    free(request->answer.body);
    free(request);
    *state = NULL;
  }
}

// ---- listening ------------------------------------------------------------------------------------------------------

static bl_status_t bind_socket(const struct addrinfo *info, const char *address, int *result, bl_error_t *err) {
  int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (fd >= 0) {
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
      *result = fd;
      return BL_OK;
    }
  }
  int code = errno;
  if (fd >= 0) {
    close(fd);
  }
  if (code == EADDRINUSE) {
    return bl_error_set(err, BL_PRECONDITION, "%s: another process listens there; use another port, or 0 for any",
                        address);
  }
  return bl_error_set(err, bl_status_from_errno(code), "cannot listen on %s: %s", address, strerror(code));
}

static bl_status_t listen_on(const char *address, int *fd, char bound[BL_HTTP_ADDRESS_BYTES], bl_error_t *err) {
  char host[256], port[8];
  uint16_t number;
  bl_status_t status = bl_host_split(address, host, sizeof host, &number, err);
  if (status != BL_OK) {
    return status;
  }
  snprintf(port, sizeof port, "%u", number);
  const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  struct addrinfo *info = NULL;
  int code = getaddrinfo(host, port, &hints, &info);
  if (code != 0) {
    return bl_error_set(err, BL_INVALID, "cannot listen on %s: %s", address, gai_strerror(code));
  }
  status = bind_socket(info, address, fd, err);
  freeaddrinfo(info);
  if (status != BL_OK) {
    return status;
  }
  struct sockaddr_storage name;
  socklen_t length = sizeof name;
  if (getsockname(*fd, (struct sockaddr *)&name, &length) != 0 ||
      getnameinfo((struct sockaddr *)&name, length, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0) {
    close(*fd);
    return bl_error_set(err, BL_IO, "%s: its port cannot be found out", address);
  }
  const bool brackets = strchr(host, ':') != NULL;
  snprintf(bound, BL_HTTP_ADDRESS_BYTES, "%s%s%s:%s", brackets ? "[" : "", host, brackets ? "]" : "", port);
  return BL_OK;
}

bl_status_t bl_http_create(bl_loop_t *loop, const char *address, bl_http_fn answer, void *context,
                           char bound[BL_HTTP_ADDRESS_BYTES], bl_http_t **result, bl_error_t *err) {
  int fd;
  bl_status_t status = listen_on(address, &fd, bound, err);
  if (status != BL_OK) {
    return status;
  }
  bl_http_t *http = calloc(1, sizeof *http);
  if (http == NULL) {
    close(fd);
    return bl_error_set(err, BL_EXHAUSTED, "no memory to serve %s", address);
  }
  *http = (bl_http_t){.loop = loop, .answer = answer, .context = context};
  pthread_mutex_init(&http->lock, NULL);
  http->daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handle, http, MHD_OPTION_LISTEN_SOCKET,
      fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)BL_HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
      (unsigned)SILENCE_SECONDS, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
  if (http->daemon == NULL) {
    close(fd);
    pthread_mutex_destroy(&http->lock);
    free(http);
    return bl_error_set(err, BL_EXHAUSTED, "cannot serve %s: no thread or descriptors left", address);
  }
  *result = http;
  return BL_OK;
}

void bl_http_destroy(bl_http_t *http) {
  if (http == NULL) {
    return;
  }
  pthread_mutex_lock(&http->lock);
  http->closing = true;
  pthread_mutex_unlock(&http->lock);
  bl_loop_drain(http->loop); // answers and resumes requests passed to the loop: none may be suspended when the daemon
                             // stops
  MHD_stop_daemon(http->daemon);
  pthread_mutex_destroy(&http->lock);
  free(http);
}

const bl_library_t bl_http_library = {"libmicrohttpd", MHD_get_version};

// SPDX-License-Identifier: Apache-2.0
// Verifies stores over TLS on both planes, as processes of their own: blocks come back bit by bit over an encrypted tcp
// path; a stage of another job, another role or another authority gets no session; where one end of either plane speaks
// plaintext, the refusal says so; clients of one process have identities of their own, at one time; a store that ends
// between handshake and welcome is dialled again.
#include "base/random.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/runtime.h"
#include "client/store_process.h"
#include "datapath/stream.h"
#include "loop/thread.h"
#include "rpc/rpc.h"
#include "sys/clock.h"
#include "tls/authority.h"

#include <poll.h>
#include <sys/socket.h>

static authority_t ours, others;
// With TLS everywhere; with a control plane on a unix socket and TLS on the tcp data path; without TLS.
static store_process_t store, pending, plain;

// Listens on 127.0.0.1, or on a unix socket and on 127.0.0.1 with its data path only.
static void start_store(store_process_t *self, bool on_unix, bool secure) {
  int ready[2];
  char line[256] = "", listen[96] = "127.0.0.1:0", ca[160], certificate[160], key[160];
  snprintf(self->folder, sizeof self->folder, "/tmp/ballast-store-XXXXXX");
  assert_non_null(mkdtemp(self->folder));
  setenv("XDG_RUNTIME_DIR", self->folder, 1);
  if (on_unix) {
    snprintf(listen, sizeof listen, "unix:%s/store", self->folder);
  }
  snprintf(ca, sizeof ca, "%s/ca.pem", ours.folder);
  snprintf(certificate, sizeof certificate, "%s/store.pem", ours.folder);
  snprintf(key, sizeof key, "%s/store.key", ours.folder);
  const char *words[24] = {"activation-store", "--listen",    listen,       "--capacity", "64 MiB",
                           "--data-tcp",       "127.0.0.1:0", "--ready-fd", "4"};
  const char *const flags[] = {"--tls-ca", ca, "--tls-certificate", certificate, "--tls-key", key};
  if (secure) {
    memcpy(words + 9, flags, sizeof flags);
  }
  assert_int_equal(pipe(ready), 0);
  pid_t parent = getpid();
  self->pid = fork();
  assert_true(self->pid >= 0);
  if (self->pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    dup2(ready[1], 4);
    setenv("BALLAST_LOG", "error", 1);
    execv(BALLAST_BINARY_DIR "/bin/activation-store", (char **)(void *)words);
    _exit(127);
  }
  close(ready[1]);
  ssize_t got = read(ready[0], line, sizeof line - 1);
  close(ready[0]);
  assert_true(got > 6 && sscanf(line, "ready %95s", self->address) == 1);
}

static int start(void **state) {
  (void)state;
  authority_init(&ours, "stage stage/red store driver");
  authority_init(&others, "stage");
  start_store(&store, false, true);
  start_store(&pending, true, true);
  start_store(&plain, true, false);
  return 0;
}

static int stop(void **state) {
  (void)state;
  store_process_t *stores[] = {&store, &pending, &plain};
  for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
    char command[128];
    store_kill(stores[i], SIGTERM);
    snprintf(command, sizeof command, "rm -rf %s", stores[i]->folder);
    assert_int_equal(system(command), 0);
  }
  authority_cleanup(&ours);
  authority_cleanup(&others);
  return 0;
}

static bl_status_t open_as(const store_process_t *at, bl_tls_t *tls, const char *job, bl_client_path_t path,
                           const bl_client_region_t *buffers, bl_client_t **client, bl_error_t *err) {
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = tls});
  bl_client_options_t options = {.size = sizeof options,
                                 .store = at->address,
                                 .job = job,
                                 .arena_bytes = 16u << 20,
                                 .regions = buffers,
                                 .region_count = 1,
                                 .path = path};
  bl_status_t status = bl_client_open(&options, client, err);
  return status;
}

static void must(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fail_msg("%s: %s", bl_status_name(status), err->text);
  }
}

#define STORE_SLOTS 4u
#define BLOCK_BYTES ((3ull << 20) + 17)

static void blocks_come_back(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_client_region_t buffers;
  must(bl_client_region_create(STORE_SLOTS * 4ull << 20, &buffers, &err), &err);
  uint8_t *base = buffers.base;
  bl_tls_t *tls = authority_tls(&ours, "stage-red");
  for (int path = 0; path < 2; path++) {
    bl_client_t *client;
    must(open_as(&store, tls, "red", path == 0 ? BL_CLIENT_PATH_TCP : BL_CLIENT_PATH_SHM, &buffers, &client, &err),
         &err);
    char reason[BL_CLIENT_PATH_BYTES];
    (void)bl_client_path(client, reason);
    assert_string_equal(reason, path == 0 ? "tcp: asked for, encrypted" : "shm: asked for");
    uint64_t slots[STORE_SLOTS];
    must(bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = BLOCK_BYTES, .count = STORE_SLOTS}, 1, &err),
         &err);
    assert_int_equal(bl_client_slots(client, slots, STORE_SLOTS), STORE_SLOTS);
    for (uint64_t round = 0; round < 3; round++) {
      uint64_t words = buffers.bytes / 8;
      for (uint64_t i = 0; i < words; i++) {
        ((uint64_t *)buffers.base)[i] = bl_random_bits(round + 1, i);
      }
      bl_client_ticket_t tickets[STORE_SLOTS];
      for (uint64_t i = 0; i < STORE_SLOTS; i++) { // all at once: writing and reading meet on the connection
        must(bl_client_evict_start(client, slots[i], base + (i << 22), BLOCK_BYTES, NULL, &tickets[i], &err), &err);
      }
      for (uint64_t i = 0; i < STORE_SLOTS; i++) {
        must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
      }
      memset(buffers.base, 0xee, buffers.bytes);
      for (uint64_t i = 0; i < STORE_SLOTS; i++) {
        must(bl_client_load(client, slots[i], base + (i << 22), BLOCK_BYTES, &err), &err);
        for (uint64_t at = i << 22; at < (i << 22) + BLOCK_BYTES; at++) {
          uint64_t word = bl_random_bits(round + 1, at / 8);
          assert_int_equal(base[at], ((const uint8_t *)&word)[at % 8]);
        }
      }
    }
    bl_client_close(client);
  }
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = NULL});
  bl_tls_release(tls);
  bl_client_region_destroy(&buffers);
}

static void refused(const store_process_t *at, bl_tls_t *tls, const char *job, bl_client_path_t path,
                    bl_status_t status, const char *part) {
  bl_error_t err = {0};
  bl_client_region_t buffers;
  bl_client_t *client = NULL;
  must(bl_client_region_create(1u << 20, &buffers, &err), &err);
  bl_status_t got = open_as(at, tls, job, path, &buffers, &client, &err);
  if (got != status || strstr(err.text, part) == NULL) {
    fail_msg("%s: %s; wanted %s with '%s'", bl_status_name(got), err.text, bl_status_name(status), part);
  }
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = NULL});
  bl_tls_release(tls);
  bl_client_region_destroy(&buffers);
}

static void others_get_no_session(void **state) {
  (void)state;
  const bl_client_path_t any = BL_CLIENT_PATH_AUTO;
  refused(&store, authority_tls(&ours, "stage-red"), "blue", any, BL_DENIED,
          "your certificate is for job red, not for blue");
  refused(&store, authority_tls(&ours, "driver"), "red", any, BL_DENIED, "it wants stage");
  refused(&store, authority_tls(&others, "stage"), "red", any, BL_UNAUTHENTICATED, "another authority");
  refused(&store, authority_tls_trusting(&others, "stage", &ours), "red", any, BL_UNAUTHENTICATED,
          "the peer trusts '/CN=Ballast authority");
}

static void the_data_path_judges_too(void **state) {
  (void)state;
  const bl_client_path_t tcp = BL_CLIENT_PATH_TCP;
  refused(&pending, authority_tls(&ours, "driver"), "red", tcp, BL_UNAUTHENTICATED,
          "the peer refuses this program's certificate");
  refused(&pending, authority_tls(&others, "stage"), "red", tcp, BL_UNAUTHENTICATED, "another authority");
  refused(&pending, authority_tls_trusting(&others, "stage", &ours), "red", tcp, BL_UNAUTHENTICATED,
          "the peer trusts '/CN=Ballast authority");
}

static void plaintext_and_tls_do_not_meet(void **state) {
  (void)state;
  const bl_client_path_t tcp = BL_CLIENT_PATH_TCP;
  refused(&store, NULL, "red", tcp, BL_UNAUTHENTICATED, "it speaks TLS there, and this program does not");
  refused(&pending, NULL, "red", tcp, BL_UNAUTHENTICATED, "the data path there is TLS, and this program's is not");
  refused(&plain, authority_tls(&ours, "stage"), "red", tcp, BL_UNAVAILABLE, "the peer does not speak TLS");
}

// By the files of a client, beside others of the process: with another identity, and with none.
static void clients_have_their_own(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_client_runtime_t *runtime = NULL;
  bl_client_t *red = NULL, *bare = NULL, *wrong = NULL;
  bl_client_region_t buffers;
  must(bl_client_region_create(BLOCK_BYTES, &buffers, &err), &err);
  must(bl_client_runtime_create(NULL, &runtime, &err), &err);
  const bl_tls_options_t files = authority_options(&ours, "stage-red");
  bl_client_options_t options = {.size = sizeof options,
                                 .store = store.address,
                                 .job = "red",
                                 .arena_bytes = 16u << 20,
                                 .path = BL_CLIENT_PATH_TCP,
                                 .runtime = runtime,
                                 .tls_ca = files.ca,
                                 .tls_certificate = files.certificate,
                                 .tls_key = files.key};
  must(bl_client_open(&options, &red, &err), &err);
  bl_client_options_t without = options;
  without.tls_ca = without.tls_certificate = without.tls_key = NULL;
  assert_int_equal(bl_client_open(&without, &wrong, &err), BL_UNAUTHENTICATED);
  without.store = plain.address;
  must(bl_client_open(&without, &bare, &err), &err);
  options.job = "blue";
  assert_int_equal(bl_client_open(&options, &wrong, &err), BL_DENIED);
  assert_non_null(strstr(err.text, "your certificate is for job red, not for blue"));
  options.tls_key = NULL;
  assert_int_equal(bl_client_open(&options, &wrong, &err), BL_INVALID);
  bl_client_t *const both[] = {red, bare};
  for (uint64_t i = 0; i < 2; i++) {
    uint64_t slot;
    must(bl_client_reserve(both[i], 1, &(bl_client_demand_t){.bytes = BLOCK_BYTES, .count = 1}, 1, &err), &err);
    assert_int_equal(bl_client_slots(both[i], &slot, 1), 1);
    memset(buffers.base, 7 + (int)i, BLOCK_BYTES);
    must(bl_client_evict(both[i], slot, buffers.base, BLOCK_BYTES, NULL, &err), &err);
    memset(buffers.base, 0, BLOCK_BYTES);
    must(bl_client_load(both[i], slot, buffers.base, BLOCK_BYTES, &err), &err);
    assert_int_equal(((const uint8_t *)buffers.base)[BLOCK_BYTES - 1], 7 + (int)i);
    bl_client_close(both[i]);
  }
  bl_client_runtime_destroy(runtime);
  bl_client_region_destroy(&buffers);
}

// Ends each connection right after the handshake, the second with a reset.
typedef struct brief_store {
  int listener;
  bl_tls_t *tls;
  int ended;
} brief_store_t;

static bool shake_hands(bl_stream_t *stream, int fd) {
  bl_status_t status;
  struct pollfd poll_fd = {.fd = fd};
  while ((status = bl_stream_handshake(stream, NULL)) == BL_DEADLINE) {
    poll_fd.events = bl_stream_wants_writable(stream) ? POLLOUT : POLLIN;
    if (poll(&poll_fd, 1, 30000) != 1) {
      break;
    }
  }
  return status == BL_OK;
}

static void *end_early(void *context) {
  brief_store_t *self = context;
  const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
  struct pollfd poll_fd = {.fd = self->listener, .events = POLLIN};
  while (self->ended < 2 && poll(&poll_fd, 1, 30000) == 1) {
    bl_stream_t stream;
    char byte;
    const int fd = bl_socket_accept(self->listener);
    if (fd < 0 || bl_stream_tls(&stream, fd, self->tls, true, BL_STAGES, NULL) != BL_OK) {
      break;
    }
    self->ended += shake_hands(&stream, fd);
    if (self->ended == 1) {
      shutdown(fd, SHUT_WR);
      bl_socket_set_blocking(fd);
      while (recv(fd, &byte, 1, 0) > 0) {
      }
    } else {
      (void)connect(fd, &nobody, sizeof nobody); // resets it
    }
    bl_stream_close(&stream);
  }
  return NULL;
}

typedef struct move {
  bl_client_t *client;
  const char *to;
} move_t;

static void move(void *context) {
  const move_t *self = context;
  snprintf(self->client->data_tcp_address, sizeof self->client->data_tcp_address, "%s", self->to);
  bl__connection_lost(self->client, "for the test");
}

static void who_ends_early_is_dialled_again(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_client_region_t buffers;
  bl_client_t *client = NULL;
  bl_address_t any, bound;
  brief_store_t brief = {0};
  char address[96], there[BL_RPC_ADDRESS_BYTES];
  pthread_t thread;
  uint64_t slot;
  must(bl_client_region_create(BLOCK_BYTES, &buffers, &err), &err);
  bl_tls_t *tls = authority_tls(&ours, "stage-red");
  must(open_as(&pending, tls, "red", BL_CLIENT_PATH_TCP, &buffers, &client, &err), &err);
  must(bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = BLOCK_BYTES, .count = 1}, 1, &err), &err);
  assert_int_equal(bl_client_slots(client, &slot, 1), 1);
  brief.tls = authority_tls(&ours, "store");
  must(bl_address_resolve("127.0.0.1", 0, &any, &err), &err);
  must(bl_socket_listen(&any, &brief.listener, &bound, &err), &err);
  bl_address_format(&bound, address, sizeof address);
  snprintf(there, sizeof there, "%s", client->data_tcp_address);
  assert_int_equal(pthread_create(&thread, NULL, end_early, &brief), 0);
  bl_loop_thread_call(client->runtime->thread, move, &(move_t){client, address});
  pthread_join(thread, NULL);
  close(brief.listener);
  assert_int_equal(brief.ended, 2);
  bl_loop_thread_call(client->runtime->thread, move, &(move_t){client, there});
  must(bl_client_evict(client, slot, buffers.base, BLOCK_BYTES, NULL, &err), &err);
  bl_client_close(client);
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = NULL});
  bl_tls_release(brief.tls);
  bl_tls_release(tls);
  bl_client_region_destroy(&buffers);
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_come_back),         cmocka_unit_test(others_get_no_session),
      cmocka_unit_test(the_data_path_judges_too), cmocka_unit_test(plaintext_and_tls_do_not_meet),
      cmocka_unit_test(clients_have_their_own),   cmocka_unit_test(who_ends_early_is_dialled_again),
  };
  return cmocka_run_group_tests(tests, start, stop);
}

// SPDX-License-Identifier: Apache-2.0
// Verifies the choice of a path: cuda-ipc inside of a machine and nccl across for memory of GPUs, through the host
// where neither can be; shm and tcp for memory of the host; what is asked for or refused, with the reason in words; and
// that the choice ends, whatever fails.
#include "datapath/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const bl_path_end_t host = {
    .name = "stage 0", .machine = "boot/1f", .gpu = "", .unix_address = true, .tcp_address = true};
static const bl_path_end_t gpu = {
    .name = "stage 0", .machine = "boot/1f", .gpu = "GPU-0", .nccl = 22809, .unix_address = true, .tcp_address = true};

static bl_path_end_t peer_of(bl_path_end_t end) {
  end.name = "the store";
  if (end.gpu[0] != '\0') {
    end.gpu = "GPU-1";
  }
  return end;
}

static void takes(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t asked, unsigned failed,
                  const char *reason, bool staged) {
  bl_path_choice_t choice;
  bl_error_t err = {0};
  if (bl_path_choose(own, peer, asked, failed, "its socket is gone", &choice, &err) != BL_OK) {
    fail_msg("%s, instead of %s", err.text, reason);
  }
  assert_string_equal(choice.reason, reason);
  assert_int_equal(choice.staged, staged);
  assert_int_equal(strncmp(reason, bl_path_name(choice.path), strlen(bl_path_name(choice.path))), 0);
}

static void refuses(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t asked, unsigned failed,
                    bl_status_t status, const char *text) {
  bl_path_choice_t choice;
  bl_error_t err = {0};
  assert_int_equal(bl_path_choose(own, peer, asked, failed, "its socket is gone", &choice, &err), status);
  assert_string_equal(err.text, text);
}

#define FAILED(path) (1u << BL_PATH_##path)

static void memory_of_the_host(void **state) {
  (void)state;
  bl_path_end_t peer = peer_of(host);
  takes(&host, &peer, BL_PATH_AUTO, 0, "shm: same machine", false);
  takes(&host, &peer, BL_PATH_AUTO, FAILED(SHM), "tcp: shm failed: its socket is gone", false);
  takes(&host, &peer, BL_PATH_TCP, 0, "tcp: asked for", false);
  peer.machine = "boot/20"; // another container
  takes(&host, &peer, BL_PATH_AUTO, 0, "tcp: the store is on another machine", false);
  takes(&host, &peer, BL_PATH_SHM, 0, "shm: asked for", false);
  peer.tcp_address = false;
  refuses(&host, &peer, BL_PATH_AUTO, 0, BL_UNAVAILABLE, "no data path to the store: the store is on another machine");
  refuses(&host, &peer, BL_PATH_TCP, 0, BL_UNAVAILABLE, "tcp was asked for: the store has no data path over tcp");
  peer = peer_of(host);
  peer.machine = "?/1f";
  bl_path_end_t own = host;
  own.machine = "?/1f"; // what is not known is not the same
  takes(&own, &peer, BL_PATH_AUTO, 0, "tcp: the store is on another machine", false);
  peer = peer_of(host);
  peer.unix_address = false;
  takes(&host, &peer, BL_PATH_AUTO, 0, "tcp: there is no unix socket at both ends", false);
}

static void memory_of_gpus(void **state) {
  (void)state;
  bl_path_end_t peer = peer_of(gpu);
  takes(&gpu, &peer, BL_PATH_AUTO, 0, "cuda-ipc: same machine", false);
  bl_path_end_t named = peer; // one of them without descriptors of memory
  named.legacy_ipc = true;
  takes(&gpu, &named, BL_PATH_AUTO, 0, "cuda-ipc: same machine, legacy handles of memory", false);
  takes(&named, &gpu, BL_PATH_CUDA_IPC, 0, "cuda-ipc: asked for, legacy handles of memory", false);
  takes(&gpu, &named, BL_PATH_NCCL, 0, "nccl: asked for", false);
  takes(&gpu, &peer, BL_PATH_AUTO, FAILED(CUDA_IPC), "nccl: cuda-ipc failed: its socket is gone", false);
  takes(&gpu, &peer, BL_PATH_NCCL, 0, "nccl: asked for", false);
  takes(&gpu, &peer, BL_PATH_SHM, 0, "shm: asked for", true);
  takes(&gpu, &peer, BL_PATH_AUTO, FAILED(CUDA_IPC) | FAILED(NCCL),
        "shm: same machine; cuda-ipc failed: its socket is gone", true);
  peer.closed = "the driver hands out no memory";
  takes(&gpu, &peer, BL_PATH_AUTO, 0, "nccl: the store: the driver hands out no memory", false);
  refuses(&gpu, &peer, BL_PATH_CUDA_IPC, 0, BL_PRECONDITION,
          "cuda-ipc was asked for: the store: the driver hands out no memory");
  peer = peer_of(gpu);
  peer.machine = "other/1f";
  takes(&gpu, &peer, BL_PATH_AUTO, 0, "nccl: the store is on another machine", false);
  takes(&gpu, &peer, BL_PATH_AUTO, FAILED(NCCL), "tcp: the store is on another machine", true);
}

static void libraries_that_differ(void **state) {
  (void)state;
  bl_path_end_t peer = peer_of(gpu);
  peer.machine = "other/1f";
  peer.nccl = 22703;
  takes(&gpu, &peer, BL_PATH_AUTO, 0, "tcp: the store is on another machine", true);
  refuses(&gpu, &peer, BL_PATH_NCCL, 0, BL_PRECONDITION,
          "nccl was asked for: stage 0 has NCCL 2.28.9 and the store has NCCL 2.27.3: install one version on both");
  peer.nccl = 0;
  refuses(&gpu, &peer, BL_PATH_NCCL, 0, BL_PRECONDITION, "nccl was asked for: the store has no NCCL");
}

static void several_processes_on_one_gpu(void **state) {
  (void)state;
  bl_path_end_t own = gpu, peer = peer_of(gpu);
  peer.gpu = own.gpu;
  takes(&own, &peer, BL_PATH_AUTO, 0, "cuda-ipc: same machine", false);
  refuses(&own, &peer, BL_PATH_NCCL, 0, BL_PRECONDITION,
          "nccl was asked for: the store is on the same GPU; --nccl-shared-gpu at both ends allows that");
  own.shared_gpu = peer.shared_gpu = true;
  takes(&own, &peer, BL_PATH_NCCL, 0, "nccl: asked for", false);
}

static void a_gpu_and_a_host(void **state) {
  (void)state;
  bl_path_end_t peer = peer_of(host);
  takes(&gpu, &peer, BL_PATH_AUTO, 0, "shm: same machine; memory of the store is the host's", true);
  takes(&host, &(bl_path_end_t){.name = "peer", .machine = "boot/1f", .gpu = "GPU-3", .unix_address = true},
        BL_PATH_AUTO, 0, "shm: same machine; memory of stage 0 is the host's", true);
  refuses(&gpu, &peer, BL_PATH_CUDA_IPC, 0, BL_PRECONDITION,
          "cuda-ipc was asked for: memory of the store is the host's");
  refuses(&host, &peer, BL_PATH_NCCL, 0, BL_PRECONDITION, "nccl was asked for: memory of stage 0 is the host's");
}

// Whatever the ends are and whatever fails: no path is taken twice, none that was not asked for, and it ends.
static void every_combination_ends(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 1u << 12; bits++) {
    bl_path_end_t own = bits & 1 ? gpu : host, peer = peer_of(bits & 2 ? gpu : host);
    own.unix_address = bits & 4;
    own.closed = bits & 8 ? "closed" : "";
    own.shared_gpu = bits & 16;
    own.nccl = bits & 32 ? own.nccl : 0;
    peer.machine = bits & 64 ? "far/1" : peer.machine;
    peer.unix_address = bits & 128;
    peer.tcp_address = bits & 256;
    peer.nccl = bits & 512 ? 22703 : peer.nccl;
    peer.gpu = bits & 1024 && (bits & 3) == 3 ? own.gpu : peer.gpu;
    peer.closed = bits & 2048 ? "closed" : NULL;
    for (int asked = 0; asked < BL_PATHS; asked++) {
      unsigned failed = 0;
      bl_path_choice_t choice;
      bl_error_t err = {0};
      while (bl_path_choose(&own, &peer, (bl_path_t)asked, failed, "no", &choice, &err) == BL_OK) {
        assert_true(asked == BL_PATH_AUTO || choice.path == (bl_path_t)asked);
        assert_int_equal(failed >> choice.path & 1, 0);
        bool nccl_link = choice.path == BL_PATH_CUDA_IPC || choice.path == BL_PATH_NCCL;
        assert_true(!nccl_link || (own.gpu[0] != '\0' && peer.gpu[0] != '\0'));
        assert_true(choice.path != BL_PATH_NCCL || (own.nccl == peer.nccl && own.nccl != 0));
        assert_int_equal(choice.staged, !nccl_link && (own.gpu[0] != '\0' || peer.gpu[0] != '\0'));
        failed |= 1u << choice.path;
      }
      assert_true(err.text[0] != '\0');
      assert_true(asked == BL_PATH_AUTO || strstr(err.text, "was asked for: ") != NULL);
    }
  }
}

static void names(void **state) {
  (void)state;
  bl_path_t path;
  for (int p = 0; p < BL_PATHS; p++) {
    assert_true(bl_path_parse(bl_path_name((bl_path_t)p), &path));
    assert_int_equal(path, p);
  }
  assert_false(bl_path_parse("rdma", &path));
  assert_true(bl_path_is_unix(BL_PATH_CUDA_IPC));
  assert_false(bl_path_is_unix(BL_PATH_NCCL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_of_the_host),
      cmocka_unit_test(memory_of_gpus),
      cmocka_unit_test(libraries_that_differ),
      cmocka_unit_test(several_processes_on_one_gpu),
      cmocka_unit_test(a_gpu_and_a_host),
      cmocka_unit_test(every_combination_ends),
      cmocka_unit_test(names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

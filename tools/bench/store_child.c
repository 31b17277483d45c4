// SPDX-License-Identifier: Apache-2.0
#include "store_child.h"

#include "loop/loop.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_ready(bl_child_t *child, const char *line, void *context) {
  (void)child;
  bl_store_child_t *store = context;
  store->ready = line != NULL;
  bl_loop_stop(store->loop);
}

static void on_exit_of_store(bl_child_t *child, int exit_code, int term_signal, void *context) {
  (void)child;
  (void)exit_code;
  (void)term_signal;
  bl_store_child_t *store = context;
  store->gone = true;
  bl_loop_stop(store->loop);
}

bl_status_t bl_store_child_start(bl_store_child_t *store, const bl_store_child_options_t *options, bl_error_t *err) {
  char program[PATH_MAX], capacity[32], spill[32];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 32);
  if (length < 0) {
    return bl_error_set(err, BL_IO, "where this program lies is unknown");
  }
  program[length] = '\0';
  char *name = strrchr(program, '/') + 1;
  snprintf(name, sizeof program - (size_t)(name - program), "activation-store");
  snprintf(store->folder, sizeof store->folder, "/tmp/ballast-bench-XXXXXX");
  if (mkdtemp(store->folder) == NULL) {
    return bl_error_set(err, BL_IO, "no folder under /tmp");
  }
  snprintf(store->address, sizeof store->address, "unix:%s/s", store->folder);
  snprintf(capacity, sizeof capacity, "%" PRIu64, options->capacity_bytes);
  snprintf(spill, sizeof spill, "%" PRIu64, options->spill_bytes);
  const char *argv[] = {program,
                        "--listen",
                        store->address,
                        "--capacity",
                        capacity,
                        "--spill",
                        spill,
                        "--device",
                        options->device != NULL ? options->device : "host",
                        "--data-tcp",
                        "127.0.0.1:0",
                        "--lifeline-fd",
                        BL_CHILD_LIFELINE_FD_TEXT,
                        "--ready-fd",
                        BL_CHILD_READY_FD_TEXT,
                        options->nccl_shared_gpu ? "--nccl-shared-gpu" : NULL,
                        NULL};
  bl_child_options_t child = {.argv = argv,
                              .stderr_path = options->device != NULL ? NULL : "/dev/null",
                              .lifeline = true,
                              .on_ready = on_ready,
                              .on_exit = on_exit_of_store,
                              .context = store};
  bl_status_t status = bl_loop_create(&store->loop, err);
  if (status == BL_OK) {
    status = bl_child_create(store->loop, &child, &store->child, err);
  }
  if (status == BL_OK) {
    bl_loop_run(store->loop);
    status = store->ready ? BL_OK : bl_error_set(err, BL_UNAVAILABLE, "%s does not start", program);
  }
  return status;
}

void bl_store_child_stop(bl_store_child_t *store) {
  if (store->child != NULL && !store->gone) {
    bl_child_close_lifeline(store->child);
    while (!store->gone) {
      bl_loop_run(store->loop);
    }
  }
  bl_child_destroy(store->child);
  if (store->loop != NULL) {
    bl_loop_destroy(store->loop);
  }
  char path[80];
  snprintf(path, sizeof path, "%s/s.lock", store->folder);
  (void)unlink(path);
  if (store->folder[0] != '\0') {
    (void)rmdir(store->folder);
  }
}

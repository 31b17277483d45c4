// SPDX-License-Identifier: Apache-2.0
// A process that serves echo.proto, for tests that kill servers:
//   rpc_echo_server ADDRESS HEALTH_ADDRESS LIFELINE_FD READY_FD
// It ends when the lifeline is cut, and answers with exit code 3 to an address it cannot have.
#include "echo_server.h"
#include "loop/lifeline.h"
#include "rpc/health.h"
#include "sys/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void on_cut(bl_lifeline_t *lifeline, void *context) {
  (void)lifeline;
  (void)context;
  _exit(0); // the tests look at what a sudden end leaves behind
}

int main(int argc, char **argv) {
  if (argc != 5) {
    return 2;
  }
  bl_log_init("rpc_echo_server", BL_LOG_ERROR);
  bl_error_t err = {.status = BL_OK};
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_health_t *health;
  bl_lifeline_t *lifeline;
  echo_server_t echo;
  char health_address[BL_RPC_ADDRESS_BYTES];
  if (bl_loop_create(&loop, &err) != BL_OK || bl_rpc_create(loop, &rpc, &err) != BL_OK ||
      bl_lifeline_create(loop, atoi(argv[3]), on_cut, NULL, &lifeline, &err) != BL_OK ||
      echo_server_start(&echo, rpc, argv[1], NULL, &err) != BL_OK ||
      bl_rpc_health_create(rpc, &health, &err) != BL_OK ||
      bl_rpc_health_listen(health, argv[2], health_address, sizeof health_address, &err) != BL_OK) {
    fprintf(stderr, "rpc_echo_server: %s\n", err.text);
    return 3;
  }
  if (bl_rpc_health_set(health, "", true) != BL_OK) {
    return 1;
  }
  char line[2 * BL_RPC_ADDRESS_BYTES + 16];
  snprintf(line, sizeof line, "ready %s %s", echo.address, health_address);
  if (bl_ready_send(atoi(argv[4]), line, &err) != BL_OK) {
    return 1;
  }
  bl_loop_run(loop);
  return 0;
}

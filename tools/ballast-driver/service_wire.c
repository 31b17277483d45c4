// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "sys/clock.h"

#include <stdlib.h>

bl_status_t bl_driver_service_create(bl_loop_t *loop, const bl_driver_start_t *start, bl_driver_service_t **service,
                                     bl_error_t *err) {
  bl_driver_service_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the service");
  }
  made->start = *start;
  made->began_ns = bl_clock_now_ns();
  bl_status_t status = bl_timer_create(loop, bl__recorder_took_too_long, made, &made->recorder_timer, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *service = made;
  return BL_OK;
}

void bl_driver_service_destroy(bl_driver_service_t *service) {
  if (service != NULL) {
    bl_timer_destroy(service->recorder_timer);
    free(service);
  }
}

void bl_driver_service_set_page(bl_driver_service_t *service, const char *address) {
  service->page = address;
}

void bl_driver_service_set_driver(bl_driver_service_t *service, bl_driver_t *driver) {
  service->driver = driver;
  bl_driver_service_changed(service);
  bl__waits_end(service);
}

void bl_driver_service_fail(bl_driver_service_t *service, const bl_error_t *err) {
  service->failure = *err;
}

bl_status_t bl_driver_service_serve(bl_driver_service_t *service, bl_rpc_server_t *server, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {
      {"Status", bl__handle_status},
      {"Watch", bl__handle_watch},
      {"Acknowledge", bl__handle_acknowledge},
      {"Pause", bl__handle_pause},
      {"Stop", bl__handle_stop},
      {"Generate", bl__handle_generate},
      {"Trace", bl__handle_trace},
      {"Checkpoint", bl__handle_checkpoint},
      {"SetPolicy", bl__handle_set_policy},
      {"GetPolicy", bl__handle_get_policy},
      {"PolicyHistory", bl__handle_policy_history},
  };
  return bl_rpc_server_add_service(server, &ballast__v1__driver__descriptor, methods,
                                   sizeof methods / sizeof methods[0], service, err);
}

void bl_driver_service_end(bl_driver_service_t *service) {
  service->ended = true;
  bl__waits_end(service);
  if (service->driver != NULL) {
    bl_driver_abandon(service->driver);
  }
  bl_driver_service_changed(service);
}

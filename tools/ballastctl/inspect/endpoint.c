// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/endpoint.h"

#include "ballastctl/run/run_folder.h"

bl_status_t bl_ctl_endpoints_find(const char *endpoint, json_t **result, bl_error_t *err) {
  if (endpoint != NULL) {
    *result = json_pack("{s:s}", "driver", endpoint);
    return *result != NULL ? BL_OK : bl_error_set(err, BL_INVALID, "--endpoint: not an address");
  }
  char path[BL_CTL_RUN_PATH_BYTES];
  bl_status_t status = bl_ctl_run_folder_find("endpoints.json", path, err);
  if (status != BL_OK) {
    return status;
  }
  json_error_t fault;
  json_t *endpoints = json_load_file(path, 0, &fault);
  if (endpoints == NULL || !json_is_string(json_object_get(endpoints, "driver"))) {
    json_decref(endpoints);
    return bl_error_set(err, BL_NOT_FOUND, "%s: the run that wrote it is ending", path);
  }
  *result = endpoints;
  return BL_OK;
}

const char *bl_ctl_endpoints_driver(const json_t *endpoints) {
  return json_string_value(json_object_get(endpoints, "driver"));
}

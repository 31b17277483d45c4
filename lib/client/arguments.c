// SPDX-License-Identifier: Apache-2.0
// Checks of callers' arguments that are wrong whatever the store has. What only the store knows, it refuses itself.
#include "client/client_core.h"

#include <inttypes.h>
#include <string.h>

// A path of blocks has one number: in client.h, on the data path and in a stage.
_Static_assert((int)BL_CLIENT_PATH_AUTO == BL_PATH_AUTO, "auto");
_Static_assert((int)BL_CLIENT_PATH_SHM == BL_PATH_SHM, "shm");
_Static_assert((int)BL_CLIENT_PATH_TCP == BL_PATH_TCP, "tcp");
_Static_assert((int)BL_CLIENT_PATH_CUDA_IPC == BL_PATH_CUDA_IPC, "cuda-ipc");
_Static_assert((int)BL_CLIENT_PATH_NCCL == BL_PATH_NCCL && BL_PATHS == BL_PATH_NCCL + 1, "nccl");

bl_status_t bl__options_check(const bl_client_options_t *options, bl_error_t *err) {
  size_t length = options->job == NULL ? 0 : strnlen(options->job, BL_CLIENT_JOB_LENGTH + 1);
  if (length == 0 || length > BL_CLIENT_JOB_LENGTH) {
    return bl_error_set(err, BL_INVALID, "the name of a job has 1 to %d bytes", BL_CLIENT_JOB_LENGTH);
  }
  if (options->store == NULL || strlen(options->store) >= BL_RPC_ADDRESS_BYTES) {
    return bl_error_set(err, BL_INVALID, "a client needs the address of its store");
  }
  if ((unsigned)options->path >= BL_PATHS) {
    return bl_error_set(err, BL_INVALID, "there is no data path %u: bl_client_path_t has %d (auto) to %d (%s)",
                        (unsigned)options->path, BL_CLIENT_PATH_AUTO, BL_PATHS - 1,
                        bl_path_name((bl_path_t)(BL_PATHS - 1)));
  }
  if (options->regions == NULL && options->region_count > 0) {
    return bl_error_set(err, BL_INVALID, "the regions of the client are NULL, and region_count is %zu: set it to 0",
                        options->region_count);
  }
  for (size_t i = 0; i < options->region_count; i++) {
    const bl_client_region_t *region = &options->regions[i];
    if (region->base == NULL || region->fd < 0 || region->bytes == 0) {
      return bl_error_set(err, BL_INVALID, "region %zu is not shareable: make it with bl_client_region_create", i);
    }
  }
  return BL_OK;
}

bl_status_t bl__demands_check(uint64_t plan, const bl_client_demand_t *demands, size_t count, bl_error_t *err) {
  if (plan == 0) {
    return bl_error_set(err, BL_INVALID, "cannot reserve slots for plan 0: the plans of reservations count from 1");
  }
  if (count == 0 || demands == NULL) {
    return bl_error_set(err, BL_INVALID, "cannot reserve slots for plan %" PRIu64 ": %s", plan,
                        count == 0 ? "there is no demand; bl_client_unreserve ends the reservation of a plan"
                                   : "the demands are NULL");
  }
  if (count > BL__DEMANDS_MAX) {
    return bl_error_set(err, BL_INVALID, "%zu demands in one reservation: at most %d", count, BL__DEMANDS_MAX);
  }
  for (size_t i = 0; i < count; i++) {
    if (demands[i].bytes == 0 || demands[i].count == 0) {
      return bl_error_set(err, BL_INVALID, "cannot reserve slots for plan %" PRIu64 ": demand %zu has %s", plan, i,
                          demands[i].bytes == 0 ? "0 bytes" : "the count 0");
    }
  }
  return BL_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "collective/group.h"

#include <stddef.h>

void bl_group_fail(bl_group_t *group, bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK && group->status == BL_OK) {
    group->status = status;
    group->error = *err;
  }
}

bl_status_t bl_group_status(const bl_group_t *group, bl_error_t *err) {
  if (group->status != BL_OK && err != NULL) {
    *err = group->error;
  }
  return group->status;
}

void bl_group_clear(bl_group_t *group) {
  group->status = BL_OK;
}

static const bl_group_transport_t *transport_of(const bl_group_t *group) {
  return group->status == BL_OK ? group->transport : NULL;
}

void *bl_group_window(bl_group_t *group, uint32_t window) {
  const bl_group_transport_t *transport = transport_of(group);
  bl_error_t err;
  if (transport != NULL) {
    bl_group_fail(group, transport->acquire(group, window, &err), &err);
  }
  return group->windows[window];
}

void bl_group_gather(bl_group_t *group, uint32_t window, uint64_t block_bytes) {
  const bl_group_transport_t *transport = transport_of(group);
  bl_error_t err;
  if (transport != NULL) {
    bl_group_fail(group, transport->gather(group, window, block_bytes, &err), &err);
  }
}

void bl_group_exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks) {
  const bl_group_transport_t *transport = transport_of(group);
  const uint32_t here = group->parts / group->ranks;
  bl_error_t err;
  // With one rank these are the blocks. With several they only make the blocks readable if the exchange fails.
  for (uint32_t part = 0; part < group->parts; part++) {
    blocks[part] = group->windows[window] + ((uint64_t)(part % here) * group->ranks + group->rank) * block_bytes;
  }
  if (transport != NULL) {
    bl_group_fail(group, transport->exchange(group, window, block_bytes, blocks, &err), &err);
  }
}

bool bl_group_agree(bl_group_t *group, uint32_t window, bool here) {
  const bl_group_transport_t *transport = transport_of(group);
  bool any = here;
  if (group->status != BL_OK) {
    return here;
  }
  if (transport != NULL && transport->agree != NULL) {
    bl_error_t err;
    bl_group_fail(group, transport->agree(group, here, &any, &err), &err);
    return any;
  }
  uint8_t *says = bl_group_window(group, window);
  says[(size_t)group->rank * BL_GROUP_AGREE_BYTES] = here;
  bl_group_gather(group, window, BL_GROUP_AGREE_BYTES);
  for (uint32_t rank = 0; rank < group->ranks; rank++) {
    any = any || says[(size_t)rank * BL_GROUP_AGREE_BYTES] != 0;
  }
  return any;
}

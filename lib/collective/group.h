// SPDX-License-Identifier: Apache-2.0
// Collectives of the tensor ranks that share every layer, as the code of a layer uses them: gathers of rows, and sums
// of what the parts of a layer add to the same rows (model/layer_parts.h). All members make the same calls in the same
// order.
//
//   void *window = bl_group_window(group, 0);          // own memory; waits until no peer reads it any more
//   memcpy(window + rank * bytes, mine, bytes);
//   bl_group_gather(group, 0, bytes);                  // window now holds all blocks, in the order of the ranks
//
//   float *sums = bl_group_window(group, 1);           // [parts here][ranks][bytes]: what each adds to all rows
//   const void *blocks[parts];
//   bl_group_exchange(group, 1, bytes, blocks);        // blocks[i] points to what part i adds to this rank's rows
//
// The result of a gather stays valid until bl_group_window is next called for the window. Until then a member does not
// write its own block, because its peers read it. Blocks of an exchange may lie in the peers' windows, and must be read
// before the next call. The calls return no status. The group keeps the first failure (bl_group_status). From then on
// calls return at once, and the memory that they return may be read but its contents are meaningless.
//
// In a group of one rank gathers do nothing, and blocks point to where the parts lie. With several ranks, `transport`
// does the work (stage-service/executor/tensor_group.h). On a device the calls only queue it: windows and blocks are
// addresses of the device, and what is queued next finds the result.
//
// Thread: the compute thread.
#ifndef BALLAST_COLLECTIVE_GROUP_H
#define BALLAST_COLLECTIVE_GROUP_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_GROUP_WINDOWS     4
#define BL_GROUP_AGREE_BYTES 64

typedef struct bl_group bl_group_t;

typedef struct bl_group_transport {
  // Waits until no peer reads the window any more.
  bl_status_t (*acquire)(bl_group_t *group, uint32_t window, bl_error_t *err);
  bl_status_t (*gather)(bl_group_t *group, uint32_t window, uint64_t block_bytes, bl_error_t *err);
  bl_status_t (*exchange)(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks,
                          bl_error_t *err);
  // Sets *any to whether `here` is true at any member. NULL: a gather does that, in memory that the CPU reaches.
  bl_status_t (*agree)(bl_group_t *group, bool here, bool *any, bl_error_t *err);
} bl_group_transport_t;

struct bl_group {
  uint32_t parts; // of a layer
  uint32_t ranks, rank;
  uint8_t *windows[BL_GROUP_WINDOWS];
  const bl_group_transport_t *transport; // NULL: one rank
  bl_status_t status;                    // that of the first failure
  bl_error_t error;
};

void *bl_group_window(bl_group_t *group, uint32_t window);
void bl_group_gather(bl_group_t *group, uint32_t window, uint64_t block_bytes);
// `blocks` has `parts` elements.
void bl_group_exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks);
// Returns whether `here` is true at any member; after a failure `here` itself. `window` has BL_GROUP_AGREE_BYTES for each member.
bool bl_group_agree(bl_group_t *group, uint32_t window, bool here);
// Keeps a failure that occurred between the calls. BL_OK is ignored.
void bl_group_fail(bl_group_t *group, bl_status_t status, const bl_error_t *err);
// Returns the first failure since the group was created or last cleared, or BL_OK.
bl_status_t bl_group_status(const bl_group_t *group, bl_error_t *err);
void bl_group_clear(bl_group_t *group);

#endif

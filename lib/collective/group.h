// SPDX-License-Identifier: Apache-2.0
// The ranks that share every layer, as the code of a layer sees them: gathers of rows, and sums of what the parts of a
// layer add to the same rows (model/split.h). All members make the same calls in the same order.
//
//   void *window = bl_group_window(group, 0);          // memory to contribute in; waits until nobody reads it any more
//   memcpy(window + rank * bytes, mine, bytes);
//   bl_group_gather(group, 0, bytes);                  // now all blocks are there, in the order of the ranks
//
//   float *sums = bl_group_window(group, 1);           // [parts here][ranks][bytes]: what each part here adds to all rows
//   const void *blocks[parts];
//   bl_group_exchange(group, 1, bytes, blocks);        // where what each part adds to this rank's rows is to be read
//
// What a gather gives stays until the window is asked for again, and until then a member does not write what is its own:
// others read it. The blocks of an exchange may be theirs, and are read before the next call. Calls do not fail where they
// stand: the first failure is kept (bl_group_status), and from then on they return at once, with memory that may be read
// and means nothing.
//
// A group of one rank needs nobody: gathers do nothing, blocks are where the parts are. With several, `transport` does it
// (stage-service/executor/tensor_group.h).
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
  bl_status_t (*acquire)(bl_group_t *group, uint32_t window, bl_error_t *err); // until nobody reads the window any more
  bl_status_t (*gather)(bl_group_t *group, uint32_t window, uint64_t block_bytes, bl_error_t *err);
  bl_status_t (*exchange)(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks,
                          bl_error_t *err);
} bl_group_transport_t;

struct bl_group {
  uint32_t parts; // of a layer
  uint32_t ranks, rank;
  uint8_t *windows[BL_GROUP_WINDOWS];
  const bl_group_transport_t *transport; // NULL: one rank
  bl_status_t status;                    // of the first failure
  bl_error_t error;
};

void *bl_group_window(bl_group_t *group, uint32_t window);
void bl_group_gather(bl_group_t *group, uint32_t window, uint64_t block_bytes);
// `blocks` has room for `parts`.
void bl_group_exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks);
// Whether it is so for any member. `window` has room for BL_GROUP_AGREE_BYTES of each.
bool bl_group_agree(bl_group_t *group, uint32_t window, bool here);
// Keeps a failure of what is between the calls; BL_OK is none.
void bl_group_fail(bl_group_t *group, bl_status_t status, const bl_error_t *err);
// The first failure since the group was made or last cleared.
bl_status_t bl_group_status(const bl_group_t *group, bl_error_t *err);
void bl_group_clear(bl_group_t *group);

#endif

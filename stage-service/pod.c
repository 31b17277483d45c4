// SPDX-License-Identifier: Apache-2.0
#include "pod.h"

#include "base/words.h"
#include "job/pods.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 6 // of the number of a pod

// BL_POD_NONE if the text is not a number.
static int64_t number_of(const char *text) {
  size_t length = strspn(text, "0123456789");
  return length == 0 || length > DIGITS_MAX || text[length] != '\0' ? BL_POD_NONE : strtoll(text, NULL, 10);
}

int64_t bl_pod_index(int64_t given) {
  const char *index = getenv("POD_INDEX"), *name = getenv("POD_NAME");
  int64_t pod = given;
  if (pod == BL_POD_NONE && index != NULL) {
    pod = number_of(index);
  }
  const char *dash = pod == BL_POD_NONE && name != NULL ? strrchr(name, '-') : NULL;
  return dash != NULL ? number_of(dash + 1) : pod;
}

void bl_pod_announce(int64_t pod) {
  if (pod == BL_POD_NONE) {
    return;
  }
  if (pod % 2 == 0) {
    bl_log(BL_LOG_INFO, "pod %" PRId64 " of one replica is stage %" PRId64 ", its partner is pod %" PRId64, pod,
           pod / 2, pod + 1);
  } else {
    bl_log(BL_LOG_INFO,
           "pod %" PRId64 " of one replica of p stages is stage p - %" PRId64 ", its partner is pod %" PRId64, pod,
           pod / 2 + 1, pod - 1);
  }
}

void bl_pod_compare(int64_t pod, uint32_t rank, const bl_grid_t *grid) {
  const uint32_t pods = bl_grid_ranks(grid);
  char is[BL_GRID_NAME_BYTES], other[BL_GRID_NAME_BYTES];
  if (pod == BL_POD_NONE) {
    return;
  }
  if (pod >= pods) {
    bl_log(BL_LOG_WARNING, "pod %" PRId64 " is one too many for %u %s%s", pod, pods,
           pods > grid->stages ? "rank" : "stage", bl_plural(pods));
    return;
  }
  const uint32_t due = bl_rank_of_pod(grid, (uint32_t)pod);
  if (due == rank) {
    bl_coords_t partner = bl_grid_coords(grid, rank);
    partner.stage = grid->stages - 1 - partner.stage;
    const uint32_t partner_rank = bl_grid_rank(grid, partner);
    bl_log(BL_LOG_INFO, "pod %" PRId64 " of %u is %s; its partner, %s, is pod %u", pod, pods,
           bl_grid_name(grid, rank, is), bl_grid_name(grid, partner_rank, other), bl_pod_of_rank(grid, partner_rank));
  } else {
    bl_log(BL_LOG_WARNING,
           "pod %" PRId64 " of %u should be %s, the job makes it %s: stages that lend each other memory may be "
           "on different nodes; let services.stages name pod %u as %s (ballastctl render does)",
           pod, pods, bl_grid_name(grid, due, other), bl_grid_name(grid, rank, is), (uint32_t)pod, other);
  }
}

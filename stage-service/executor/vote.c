// SPDX-License-Identifier: Apache-2.0
#include "executor/vote.h"

#include <stdlib.h>

bl_status_t bl_vote_init(bl_vote_t *vote, uint32_t losses, uint32_t squares, uint32_t stores) {
  *vote = (bl_vote_t){
      .finite = true,
      .nonfinite_micro_batch = -1,
      .generated_token = -1,
      .losses = calloc(losses + 1u, sizeof(double)), // never of size 0
      .parameter_indices = calloc(squares + 1u, sizeof(uint32_t)),
      .squares = calloc(squares + 1u, sizeof(double)),
      .leased_peaks = calloc(stores + 1u, sizeof(uint32_t)),
  };
  if (vote->losses == NULL || vote->parameter_indices == NULL || vote->squares == NULL || vote->leased_peaks == NULL) {
    bl_vote_cleanup(vote);
    return BL_EXHAUSTED;
  }
  return BL_OK;
}

void bl_vote_cleanup(bl_vote_t *vote) {
  free(vote->losses);
  free(vote->parameter_indices);
  free(vote->squares);
  free(vote->leased_peaks);
  *vote = (bl_vote_t){0};
}

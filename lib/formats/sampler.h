// SPDX-License-Identifier: Apache-2.0
// Which window of the data each sequence of a run reads. This is a pure function of (seed, step), so that every stage
// finds its tokens alone and a resumed run continues with the same data (DESIGN.md section 5).
//
// Window w is tokens [w seq, w seq + seq] inclusive: seq inputs, and seq labels shifted by one. There are
// N = floor((tokens - 1) / seq) windows. Sequence j of micro-batch i of step k (all from 0) has the number
// n = (k m + i) b + j and reads
//   sequential   window n mod N
//   shuffled     window P(n mod N), where P permutes 0..N-1; the seed gives another P for every epoch n / N
// P is a four-round Feistel network, keyed by Philox, over the smallest even number of bits that holds N. It is
// repeated until the value is below N (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002).
//
// PURE. Thread: any; a sampler is immutable.
#ifndef BALLAST_FORMATS_SAMPLER_H
#define BALLAST_FORMATS_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_sampler {
  uint64_t windows;       // N, at least 1
  uint32_t micro_batches; // m per step
  uint32_t micro_batch;   // b sequences
  bool shuffled;
  uint64_t seed;
} bl_sampler_t;

// Returns floor((tokens - 1) / seq), 0 if there are no tokens; seq >= 1.
uint64_t bl_sampler_window_count(uint64_t tokens, uint64_t seq);
// Returns n, the number of a sequence in the order in which a run reads them.
uint64_t bl_sampler_number(const bl_sampler_t *sampler, uint64_t step, uint32_t micro_batch, uint32_t sequence);
// Returns the window of sequence `sequence` of micro-batch `micro_batch` of step `step`, all from 0.
uint64_t bl_sampler_window(const bl_sampler_t *sampler, uint64_t step, uint32_t micro_batch, uint32_t sequence);
// Returns P of one epoch at `index` < windows (exposed for its tests).
uint64_t bl_sampler_permute(uint64_t seed, uint64_t epoch, uint64_t windows, uint64_t index);

#endif

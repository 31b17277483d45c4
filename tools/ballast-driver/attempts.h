// SPDX-License-Identifier: Apache-2.0
// Attempts at steps: the sum of their votes, how long they took, and what is told of a step that was committed.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_ATTEMPTS_H
#define BALLAST_DRIVER_ATTEMPTS_H

#include "driver.h"
#include "rank_vote.h"

typedef struct bl__attempts {
  uint64_t reported; // last step in the journal
  uint64_t began_ns;
  double seconds; // of the last one; 0: not known
  double norm;    // of the gradients of the last step that was decided; 0: none was
  unsigned failures;
  bl_error_t failure; // why the last one failed
  double *squares;    // scratch, [parameter_count]
  size_t parameter_count;
  bl_rank_vote_t *votes; // scratch, [stage_count], borrows
  bool fatal;            // `failure` ends the run at the next boundary
  bool again;            // the one that comes repeats one that was applied ahead in vain
} bl__attempts_t;

// BL_INTERNAL: a vote of the attempt is missing.
BL_MUST_USE bl_status_t bl__votes_count(bl_driver_t *driver, uint64_t attempt, bl_vote_result_t *result,
                                        bl_error_t *err);
// The step that was committed last, once: also one that a predecessor committed and could not tell of.
void bl__step_report(bl_driver_t *driver);

#endif

// SPDX-License-Identifier: Apache-2.0
// Attempts at steps: the sum of their votes, how long they took, and the report of a committed step.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_ATTEMPTS_H
#define BALLAST_DRIVER_ATTEMPTS_H

#include "driver.h"
#include "rank_vote.h"

typedef struct bl__attempts {
  uint64_t reported; // last step in the journal
  uint64_t began_ns;
  double seconds; // of the last step; 0: not known
  double norm;    // of the gradients of the last step that was decided; 0: none was
  unsigned failures;
  bl_error_t failure;    // why the last one failed
  double *squares;       // scratch, [bl_square_numbers]
  bl_rank_vote_t *votes; // scratch, [stage_count], borrows
  bool fatal;            // `failure` ends the run at the next boundary
  bool again;            // the next attempt repeats one that stages applied ahead with numbers that were not committed
} bl__attempts_t;

// BL_INTERNAL: a vote of the attempt is missing.
BL_MUST_USE bl_status_t bl__votes_count(bl_driver_t *driver, uint64_t attempt, bl_vote_result_t *result,
                                        bl_error_t *err);
// Reports the step that was committed last, once. This includes a step that a predecessor committed and could not
// report.
void bl__step_report(bl_driver_t *driver);

#endif

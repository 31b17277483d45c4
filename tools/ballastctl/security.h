// SPDX-License-Identifier: Apache-2.0
// TLS for every verb: --tls-ca, --tls-certificate, --tls-key and --plaintext may stand anywhere on the command line.
#ifndef BALLAST_BALLASTCTL_SECURITY_H
#define BALLAST_BALLASTCTL_SECURITY_H

#include "config/job.h"

// Takes these flags out of the words and secures what the process connects to.
BL_MUST_USE bl_status_t bl_ctl_security_take(int *argc, char **argv, bl_error_t *err);
// Before a run: the flags go into its job, for the driver that reads it; without flags the job's own keys count here.
BL_MUST_USE bl_status_t bl_ctl_security_for_job(bl_job_t *job, bl_error_t *err);
void bl_ctl_security_cleanup(void);

#endif

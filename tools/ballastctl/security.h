// SPDX-License-Identifier: Apache-2.0
// TLS for every command: --tls-ca, --tls-certificate, --tls-key and --plaintext may stand anywhere on the command line.
#ifndef BALLAST_BALLASTCTL_SECURITY_H
#define BALLAST_BALLASTCTL_SECURITY_H

#include "config/job.h"

// Removes these flags from the arguments and sets the process's TLS credentials for outgoing connections.
BL_MUST_USE bl_status_t bl_ctl_security_take(int *argc, char **argv, bl_error_t *err);
// Called before a run. Writes the flags into its job, for the driver that reads it. Without flags the job's own keys
// apply to this process.
BL_MUST_USE bl_status_t bl_ctl_security_for_job(bl_job_t *job, bl_error_t *err);
void bl_ctl_security_cleanup(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// The paths of blocks under the three names that they have: of the data path, of the client of a store, and of the job.
//
// Thread: any.
#ifndef BALLAST_STAGE_SERVICE_CLIENT_PATHS_H
#define BALLAST_STAGE_SERVICE_CLIENT_PATHS_H

#include "client/client.h"
#include "config/job.h"
#include "datapath/path.h"

bl_client_path_t bl_client_path_of(bl_path_t path);
bl_client_path_t bl_client_path_of_job(const bl_job_t *job); // of blocks (bl_job_block_path)
bl_path_t bl_path_of_client(bl_client_path_t path);          // BL_PATH_AUTO: unknown

#endif

// SPDX-License-Identifier: Apache-2.0
// The files that a model needs to be served, in addition to its weights: tokenizer, generation settings, chat template.
// Training needs none of them. Every checkpoint gets copies, so that it can be served as it is.
//
// They come from the folder of model.init, or from the folder of the file model.config, under the names of the table in
// companions.c; links are followed. They are read once, when a run begins, so later changes of that folder do not
// matter.
//
// Reads files. Thread: one thread reads and cleans up; immutable in between.
#ifndef BALLAST_JOB_COMPANIONS_H
#define BALLAST_JOB_COMPANIONS_H

#include "base/error.h"
#include "config/job.h"

#include <stddef.h>

#define BL_COMPANIONS_MOST  16
#define BL_COMPANIONS_BYTES (256u << 20) // of all together; large tokenizers have 40 MiB

typedef struct bl_companion {
  const char *name; // static
  char *bytes;
  size_t size_bytes;
} bl_companion_t;

typedef struct bl_companions { // all zero: there are none
  bl_companion_t files[BL_COMPANIONS_MOST];
  size_t count;
  char *config; // the folder's config.json, of which some keys are kept (formats/served_config.h); NULL: there is none
  size_t config_bytes;
} bl_companions_t;

// Checks whether they can be read, without reading them. A job without checkpoint.folder needs none. BL_INVALID names
// key and file: a dangling link, not a regular file, no permission, too large.
BL_MUST_USE bl_status_t bl_companions_check(const bl_job_t *job, bl_error_t *err);
// Checks and reads them. BL_IO, BL_EXHAUSTED. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_companions_read(bl_companions_t *companions, const bl_job_t *job, bl_error_t *err);
void bl_companions_cleanup(bl_companions_t *companions); // a zeroed one is fine

#endif

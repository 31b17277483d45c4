// SPDX-License-Identifier: Apache-2.0
// The folder of a run's checkpoints (`checkpoint.folder`), as the one process that commits them sees it.
//
//   checkpoint.folder/
//     step-000110/                                complete: see job/checkpoint.h
//     step-000120.partial-00c0ffee00c0ffee/       being written; one rename makes it step-000120/
//     step-000100.deleted/                        being deleted
//     earlier-1/step-000500/                      of an earlier run, set aside when this one started from scratch
//
//   bl_checkpoint_folder_begin(folder, 120, id, partial, err);
//   ... every stage writes and syncs its shards in `partial` ...
//   bl_checkpoint_seal(partial, &contents, err);
//   bl_checkpoint_folder_commit(folder, partial, 120, path, err);
//   bl_checkpoint_folder_prune(folder, keep, err);
//
// A folder gets the name "step-N" by rename when all its files are on disk, and loses it by rename before the first of
// them is deleted. So whatever has that name is complete, even after a crash at any point.
//
// Reads and writes files. Thread: one process, one thread at a time per folder.
#ifndef BALLAST_JOB_CHECKPOINT_FOLDER_H
#define BALLAST_JOB_CHECKPOINT_FOLDER_H

#include "formats/checkpoint_state.h"
#include "job/companions.h"
#include "model/model.h"

#include <limits.h>

// "model-00001-of-00004.safetensors" or "optimizer-00001-of-00004.safetensors" of stage 0 of 4.
#define BL_CHECKPOINT_SHARD_BYTES 64
typedef enum { BL_CHECKPOINT_SHARD_WEIGHTS, BL_CHECKPOINT_SHARD_OPTIMIZER } bl_checkpoint_shard_kind_t;
const char *bl_checkpoint_shard_name(bl_checkpoint_shard_kind_t kind, uint32_t stage, uint32_t stages,
                                     char name[BL_CHECKPOINT_SHARD_BYTES]);

// Finds the checkpoint of the highest step. BL_NOT_FOUND: no folder, or none in it.
BL_MUST_USE bl_status_t bl_checkpoint_folder_newest(const char *folder, char path[PATH_MAX], uint64_t *step,
                                                    bl_error_t *err);

// Finds the highest step of a checkpoint below `step`. BL_NOT_FOUND: none.
BL_MUST_USE bl_status_t bl_checkpoint_folder_before(const char *folder, uint64_t step, uint64_t *before,
                                                    bl_error_t *err);

// Called before a run. Creates the folder, and in it something that is removed at once, so that a folder that cannot be
// written is found before the first step and not after the last. BL_DENIED, BL_EXHAUSTED (no space), BL_IO, ... name
// the path.
BL_MUST_USE bl_status_t bl_checkpoint_folder_try(const char *folder, bl_error_t *err);
// The same, but does not create a folder that does not exist.
BL_MUST_USE bl_status_t bl_checkpoint_folder_check(const char *folder, bl_error_t *err);

// Creates the folder, and in it a new empty folder *partial; `id` distinguishes writers. BL_DENIED, BL_EXHAUSTED (no
// space), BL_IO name the path.
BL_MUST_USE bl_status_t bl_checkpoint_folder_begin(const char *folder, uint64_t step, uint64_t id,
                                                   char partial[PATH_MAX], bl_error_t *err);
// Renames `partial` to its final name and syncs that. If the step already has a checkpoint, that one stays, as it has
// the same content, and `partial` is removed. Sets `path` to the final name.
BL_MUST_USE bl_status_t bl_checkpoint_folder_commit(const char *folder, const char *partial, uint64_t step,
                                                    char path[PATH_MAX], bl_error_t *err);
// Removes a folder that was not committed, as far as possible.
void bl_checkpoint_folder_discard(const char *partial);

// Deletes all but the `keep` newest (0: keeps all). Returns an error if one cannot be deleted, which harms nothing.
BL_MUST_USE bl_status_t bl_checkpoint_folder_prune(const char *folder, uint64_t keep, bl_error_t *err);
// Deletes what crashed writers left: all folders that are partial, half deleted, or created by
// bl_checkpoint_folder_try. *count: how many were partial. A folder that does not exist is fine.
BL_MUST_USE bl_status_t bl_checkpoint_folder_sweep(const char *folder, size_t *count, bl_error_t *err);
// Moves the checkpoints of an earlier run into a new folder earlier-N of `folder`. A symbolic link keeps its target.
// *count: how many; 0: `aside` is not set.
BL_MUST_USE bl_status_t bl_checkpoint_folder_set_aside(const char *folder, char aside[PATH_MAX], size_t *count,
                                                       bl_error_t *err);

// The content of a checkpoint except for its shards.
typedef struct bl_checkpoint_contents {
  uint64_t step;
  int64_t seed, tensor_parts, data_parts, slices;
  const char *attention; // of the job, by name
  const char *writer;    // version of this program
  const char *job;       // canonical YAML
  const bl_model_t *model;
  const bl_checkpoint_file_t *shards; // [shard_count], of all stages, already on disk
  size_t shard_count;
  const bl_companions_t *companions; // copied into the folder; NULL: none
} bl_checkpoint_contents_t;
// Checks that every shard is in `partial` with its size, then writes and syncs config.json, companions, job.yaml,
// model.safetensors.index.json and ballast.json there. BL_NOT_FOUND: a shard is missing, because stages do not share a
// file system with this process; BL_EXHAUSTED (no space), BL_IO.
BL_MUST_USE bl_status_t bl_checkpoint_seal(const char *partial, const bl_checkpoint_contents_t *contents,
                                           bl_error_t *err);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "shard.h"

#include "base/bytes.h"
#include "plan/evaluate/estimator.h"
#include "plan/profile/profile.h"

#include <stdio.h>
#include <stdlib.h>

#define STAGES       8 // of the pipeline for which gains are predicted, and sequences of its step
#define GLOBAL_BATCH 128

double bl_shard_seconds(const bl_shard_result_t *r) {
  return r->forward + r->input + r->weight + r->recompute;
}

static void print_block(const bl_shard_result_t *r) {
  const bl_shard_block_t *b = &r->block;
  char slot[BL_BYTES_TEXT], evict[BL_BYTES_TEXT];
  printf(
      "      block %s, evicted %s\n"
      "      units of tokens x hidden a layer: kept %.3f; published %.3f + %.3f of attention; without dropout -%.3f, "
      "input edge -%.3f, attention made again -%.3f, statistics +%.3f = %.3f; difference %.3f\n",
      bl_bytes_format(r->slot_bytes, slot), bl_bytes_format(r->evict_bytes, evict), b->kept, b->linear, b->scores,
      b->masks, b->edge, b->output, b->statistics, b->expected, b->rest);
}

void bl_shard_print(const bl_shard_t *bench, const bl_shard_result_t *r) {
  const double whole = bl_shard_seconds(r);
  printf("b %-2u  F %9.3f ms  I %9.3f  W %9.3f  B %9.3f  R %9.3f  MFU %5.1f %%  HFU %5.1f %% of %.1f TFLOP/s%s\n",
         r->layout.micro_batch, 1e3 * r->forward, 1e3 * r->input, 1e3 * r->weight, 1e3 * (r->input + r->weight),
         1e3 * r->recompute, 100 * r->mfu, 100 * r->hfu, r->peak * 1e-12,
         bench->settings->peak > 0 ? "" : ", the best of the products");
  printf(
      "      products alone %9.3f ms at %.1f TFLOP/s, %.1f %% of the stage's time; update %.3f ms; copies %.0f GB/s\n",
      1e3 * r->products, r->rate * 1e-12, 100 * r->products / whole, 1e3 * r->update,
      2 * (double)r->edge_bytes / r->copy * 1e-9);
  print_block(r);
  bl_shard_print_kernels(&r->kernels, whole);
}

// Returns sequences per second.
static bl_estimate_point_t point_of(const bl_shard_result_t *r) {
  return (bl_estimate_point_t){r->layout.micro_batch, r->layout.micro_batch / bl_shard_seconds(r)};
}

void bl_shard_print_gains(const bl_shard_result_t *results, size_t count) {
  for (size_t i = 1; i < count; i++) {
    const bl_estimate_request_t request = {
        .batch = GLOBAL_BATCH, .stages = STAGES, .from = point_of(&results[i - 1]), .to = point_of(&results[i])};
    bl_estimate_t estimate;
    if (bl_estimate(&request, &estimate, NULL) == BL_OK) {
      printf("b %u to %u: at most %.3f times as fast, %d stages, %d sequences a step (efficiency %.3f, needed %.3f)\n",
             results[i - 1].layout.micro_batch, results[i].layout.micro_batch, estimate.speedup, STAGES, GLOBAL_BATCH,
             estimate.efficiency, estimate.break_even);
    }
  }
}

static bl_status_t finish(FILE *file, const char *path, bool ok, bl_error_t *err) {
  ok = file != NULL && fclose(file) == 0 && ok;
  return ok ? BL_OK : bl_error_set(err, BL_IO, "%s: cannot be written", path);
}

#ifdef BALLAST_PROFILE_FILES
static bl_status_t write_profile(const bl_shard_t *bench, const bl_shard_result_t *r, bl_error_t *err) {
  const bl_shard_settings_t *settings = bench->settings;
  char path[4096];
  bl_profile_stage_t stage = {.slot_bytes = r->slot_bytes};
  bl_profile_chunk_t chunk = {.span = bl_shard_span(bench),
                              .costs = {.forward = r->forward,
                                        .input = r->input,
                                        .weight = r->weight,
                                        .recompute = r->recompute > 0 ? r->recompute : r->forward},
                              .measured_input = true,
                              .measured_recompute = r->recompute > 0};
  const double micro_batch = bl_shard_seconds(r);
  bl_profile_t profile = {.model_digest = bl_profile_model_digest(&bench->model),
                          .schedule = "1f1b",
                          .options = r->layout,
                          .setting = {.known = true,
                                      .device = settings->device == 1 ? BL_PROFILE_CUDA : BL_PROFILE_HOST,
                                      .threads = (uint32_t)settings->threads},
                          .micro_batches = 1,
                          .steps = (uint32_t)settings->samples,
                          .step = micro_batch,
                          .makespan = micro_batch,
                          .replay.makespan = micro_batch,
                          .stage_count = 1,
                          .chunk_count = 1,
                          .stages = &stage,
                          .chunks = &chunk};
  bl_profile_model_text(&bench->model, profile.model_text);
  char *text = NULL;
  bl_status_t status = bl_profile_write(&profile, &text);
  if (status != BL_OK) {
    return bl_error_set(err, status, "no memory for a profile");
  }
  snprintf(path, sizeof path, "%s-b%u.json", settings->write, r->layout.micro_batch);
  FILE *file = fopen(path, "w");
  status = finish(file, path, file != NULL && fputs(text, file) >= 0, err);
  free(text);
  return status;
}

#else
static bl_status_t write_profile(const bl_shard_t *bench, const bl_shard_result_t *r, bl_error_t *err) {
  (void)bench;
  (void)r;
  (void)err;
  fprintf(stderr, "no profile is written: this build has no jansson\n"); // results are then lines only
  return BL_OK;
}
#endif

static bl_status_t write_line(const bl_shard_t *bench, const bl_shard_result_t *r, bool first, bl_error_t *err) {
  const bl_shard_settings_t *settings = bench->settings;
  char path[4096];
  snprintf(path, sizeof path, "%s.jsonl", settings->write);
  FILE *file = fopen(path, first ? "w" : "a");
  if (file != NULL) {
    fprintf(file,
            "{\"model\":\"%s\",\"shard\":%lld,\"layers\":%u,\"head\":%u,\"seq\":%u,\"micro_batch\":%u,\"dtype\":\"%s\","
            "\"attention\":\"%s\",\"recompute\":\"%s\",\"device\":\"%s\",\"forward\":%.9g,\"input\":%.9g,"
            "\"weight\":%.9g,\"recomputed\":%.9g,\"update\":%.9g,\"products\":%.9g,\"products_rate\":%.9g,\"peak\":%."
            "9g,\"mfu\":%.6g,"
            "\"hfu\":%.6g,\"slot_bytes\":%llu,\"evict_bytes\":%llu,\"block_units\":{\"kept\":%.9g,"
            "\"published\":%.9g,\"expected\":%.9g,\"difference\":%.9g},",
            settings->model, (long long)settings->shard, bench->model.layers, settings->head ? bench->model.vocab : 0,
            bench->model.seq, r->layout.micro_batch, bl_shard_dtypes[settings->dtype],
            bl_shard_attentions[settings->attention], bl_shard_recomputes[settings->recompute],
            bl_device_describe(bench->device), r->forward, r->input, r->weight, r->recompute, r->update, r->products,
            r->rate, r->peak, r->mfu, r->hfu, (unsigned long long)r->slot_bytes, (unsigned long long)r->evict_bytes,
            r->block.kept, r->block.linear + r->block.scores, r->block.expected, r->block.rest);
    bl_shard_kernels_json(&r->kernels, file);
    fputs("}\n", file);
  }
  return finish(file, path, file != NULL && ferror(file) == 0, err);
}

bl_status_t bl_shard_write(const bl_shard_t *bench, const bl_shard_result_t *r, bool first, bl_error_t *err) {
  bl_status_t status = write_profile(bench, r, err);
  return status == BL_OK ? write_line(bench, r, first, err) : status;
}

// SPDX-License-Identifier: Apache-2.0
// A chunk whose masters and moments lie in memory of the host. Its gradients are copied there layer by layer while the
// device continues. The CPU updates tensor by tensor, and each weight is copied back while the next one is updated.
//
// The stream of copies orders the copies. Three events order it with the operations: `complete` (gradients may be
// copied), `landed` (they have been copied), `returned` (weights have been copied back). If products do not read the
// master of a weight directly (model/resident.h), the weight is copied back to the place of its gradient and packed
// from there: that gradient was copied before, and the next step clears the place. Gradients of an aborted attempt may
// still be being copied: operations that write there wait for them (bl__chunk_wait_copies).
#include "compute/model/chunk_internal.h"

#include "sys/clock.h"
#include "sys/log.h"

#define LANDING_NS (600ull * BL_NS_PER_S)

bool bl__chunk_keep(bl_chunk_t *chunk, bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK && chunk->failure.status == BL_OK) {
    chunk->failure = *err;
    chunk->failure.status = status;
  }
  return status == BL_OK;
}

bl_status_t bl_chunk_status(const bl_chunk_t *chunk, bl_error_t *err) {
  return chunk->failure.status == BL_OK ? BL_OK : bl_error_set(err, chunk->failure.status, "%s", chunk->failure.text);
}

bl_status_t bl__chunk_host_create(bl_chunk_t *chunk, bl_error_t *err) {
  bl_device_event_t **events[] = {&chunk->complete, &chunk->landed, &chunk->returned};
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < sizeof events / sizeof events[0] && status == BL_OK && chunk->host != NULL; i++) {
    status = bl_device_event_create(chunk->device, false, events[i], err);
  }
  return status;
}

void bl__chunk_host_destroy(bl_chunk_t *chunk) {
  if (chunk->host == NULL) {
    return;
  }
  if (chunk->landed != NULL) { // memory that is about to be freed must not be in use
    bl_error_t err;
    bl_status_t status = bl_device_event_record(chunk->device, chunk->landed, chunk->host->copies, &err);
    if (status == BL_OK) {
      status = bl_device_event_wait(chunk->device, chunk->landed, bl_clock_now_ns() + LANDING_NS, &err);
    }
    if (status != BL_OK) {
      bl_log(BL_LOG_WARNING, "copies of gradients to the host did not complete: %s", err.text);
    }
  }
  bl_device_event_destroy(chunk->device, chunk->complete);
  bl_device_event_destroy(chunk->device, chunk->landed);
  bl_device_event_destroy(chunk->device, chunk->returned);
}

// ---- gradients to the host

static uint64_t end_of(const bl_chunk_t *chunk, uint32_t place) {
  return place < chunk->parameter_count ? chunk->places[place].offset_elements
                                        : chunk->sizes.weight_bytes / sizeof(float);
}

// Copies gradients to the host after the work queued so far, which computes them.
static void land(bl_chunk_t *chunk, uint32_t first, uint32_t last) {
  const bl_host_optimizer_t *host = chunk->host;
  if (first == last) {
    return;
  }
  const uint64_t from = chunk->places[first].offset_elements, count = end_of(chunk, last) - from;
  bl_error_t err;
  bl_status_t status = bl_device_event_record(chunk->device, chunk->complete, bl__chunk_stream(chunk), &err);
  if (status == BL_OK) {
    status = bl_device_stream_wait_event(chunk->device, host->copies, chunk->complete, &err);
  }
  if (status == BL_OK) {
    status = bl_device_copy(chunk->device, host->copies, chunk->arenas.landed + from, chunk->arenas.gradients + from,
                            count * sizeof(float), &err);
  }
  (void)bl__chunk_keep(chunk, status, &err);
}

void bl_chunk_expect_last(bl_chunk_t *chunk) {
  chunk->last = chunk->host != NULL;
}

void bl__chunk_land_layer(bl_chunk_t *chunk, uint32_t layer) {
  if (chunk->last) {
    land(chunk, chunk->layers[layer].first_place, chunk->layers[layer].end_place);
  }
}

// Copies the gradients of parameters outside of layers.
static void land_ends(bl_chunk_t *chunk) {
  land(chunk, 0, chunk->layers[0].first_place);
  land(chunk, chunk->layers[chunk->span.layer_count - 1].end_place, chunk->parameter_count);
}

void bl__chunk_land_ends(bl_chunk_t *chunk) {
  if (chunk->last && !bl_chunk_has_tied_gradient(chunk)) {
    land_ends(chunk);
  }
}

// Copies the gradients of norms once more: of layers in parts they are complete only once the parts have been added.
static void land_norms(bl_chunk_t *chunk) {
  for (uint32_t i = 0; i < chunk->parameter_count && bl__chunk_is_in_parts(chunk); i++) {
    if (bl_chunk_span_is_norm(bl_parameter_get(&chunk->model, chunk->places[i].canonical_index).role)) {
      land(chunk, i, i + 1);
    }
  }
}

void bl_chunk_land_rest(bl_chunk_t *chunk) {
  if (chunk->host == NULL) {
    return;
  }
  if (bl_chunk_has_tied_gradient(chunk)) { // its sum was complete only now
    land_ends(chunk);
  }
  land_norms(chunk);
  chunk->last = false;
  bl_error_t err;
  (void)bl__chunk_keep(chunk, bl_device_event_record(chunk->device, chunk->landed, chunk->host->copies, &err), &err);
}

void bl__chunk_wait_copies(bl_chunk_t *chunk) {
  bl_error_t err;
  bl_status_t status = BL_OK;
  if (chunk->host != NULL) {
    status = bl_device_event_record(chunk->device, chunk->landed, chunk->host->copies, &err);
  }
  if (chunk->host != NULL && status == BL_OK) {
    status = bl_device_stream_wait_event(chunk->device, bl__chunk_stream(chunk), chunk->landed, &err);
  }
  (void)bl__chunk_keep(chunk, status, &err);
}

// ---- weights back to the device

static bl_status_t send_back(bl_chunk_t *chunk, uint32_t i, bl_device_stream_t *stream, bl_error_t *err) {
  return bl_device_copy(chunk->device, stream, bl__chunk_weight(chunk, i),
                        chunk->arenas.masters + chunk->places[i].offset_elements,
                        chunk->places[i].elements * sizeof(float), err);
}

void bl__chunk_send_weights(bl_chunk_t *chunk) {
  bl__chunk_wait_copies(chunk);
  bl_status_t status = BL_OK;
  bl_error_t err;
  for (uint32_t i = 0; i < chunk->parameter_count && chunk->host != NULL && status == BL_OK; i++) {
    status = send_back(chunk, i, bl__chunk_stream(chunk), &err);
  }
  (void)bl__chunk_keep(chunk, status, &err);
}

// Makes operations queued from now on wait until all weights have been copied back.
static bl_status_t order_returned(bl_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = bl_device_event_record(chunk->device, chunk->returned, chunk->host->copies, err);
  return status == BL_OK ? bl_device_stream_wait_event(chunk->device, bl__chunk_stream(chunk), chunk->returned, err)
                         : status;
}

void bl__chunk_update_on_host(bl_chunk_t *chunk, const bl_adamw_settings_t *settings, const bl_adamw_step_t *step) {
  const bl_host_optimizer_t *host = chunk->host;
  const bl_chunk_arenas_t *arenas = &chunk->arenas;
  bl_error_t err;
  bl_status_t status = bl_device_event_wait(chunk->device, chunk->landed, bl_clock_now_ns() + LANDING_NS, &err);
  for (uint32_t i = 0; i < chunk->parameter_count && status == BL_OK; i++) {
    const uint64_t offset = chunk->places[i].offset_elements;
    const bl_adamw_tensor_t tensor = {.options = bl_adamw_for_step(settings, step, chunk->places[i].decays),
                                      .count = chunk->places[i].elements,
                                      .dw = arenas->landed + offset,
                                      .w = arenas->masters + offset,
                                      .m = arenas->first_moments + chunk->moments[i],
                                      .v = arenas->second_moments + chunk->moments[i]};
    host->ops->adamw(host->compute, 1, &tensor);
    status = send_back(chunk, i, host->copies, &err);
  }
  if (status == BL_OK) {
    status = order_returned(chunk, &err);
  }
  if (status == BL_OK) {
    status = host->ops->status(host->compute, &err);
  }
  if (bl__chunk_keep(chunk, status, &err)) {
    bl__chunk_pack(chunk);
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "lease/model.h"

static bl_lease_reason_t check_token(const model_t *model, const model_session_t *session, const uint64_t words[6]) {
  if (words[5] != 0) {
    return BL_LEASE_INCARNATION;
  }
  if (words[0] == 0 || words[0] > MODEL_LEASES) {
    return BL_LEASE_NO_LEASE;
  }
  const model_lease_t *lease = &model->leases[words[0]];
  if (words[1] == 0 || words[1] > lease->generation) {
    return BL_LEASE_NO_LEASE;
  }
  if (words[1] < lease->generation || lease->state == BL_LEASE_FREE) {
    return BL_LEASE_GENERATION;
  }
  return lease->session == session->number ? BL_LEASE_GRANTED : BL_LEASE_NOT_YOURS;
}

static bool is_lost(const model_lease_t *lease) {
  return lease->state == BL_LEASE_LOST || (lease->state == BL_LEASE_QUARANTINED && lease->then == MODEL_THEN_LOST);
}

static bool has_credit(const model_t *model, const model_session_t *session, uint64_t bytes) {
  uint64_t flying = model_in_flight_bytes(model, session->number);
  return flying == 0 || flying + bytes <= model->config.session_flow_bytes;
}

// What each request does to the model; returns the reason and whether a transfer begins.
bl_lease_reason_t model_evict(model_t *model, const model_session_t *session, const uint64_t words[6],
                              uint64_t sequence, bool *begins) {
  bl_lease_reason_t reason = check_token(model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  model_lease_t *lease = &model->leases[words[0]];
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state != BL_LEASE_RESERVED) {
    return BL_LEASE_STATE;
  }
  if (words[2] == 0 || words[2] > (uint64_t)lease->granules * BL_LEASE_GRANULE_BYTES) {
    return BL_LEASE_BAD_BYTES;
  }
  if (session->suspect) {
    return BL_LEASE_SUSPECT;
  }
  if (!has_credit(model, session, words[2])) {
    return BL_LEASE_CREDIT;
  }
  lease->state = BL_LEASE_WRITING;
  lease->bytes = words[2];
  lease->checksum = words[3];
  lease->moving = *begins = true;
  lease->cancelled = false;
  lease->transfer = lease->generation;
  lease->waiting = sequence;
  return BL_LEASE_GRANTED;
}

bl_lease_reason_t model_load(model_t *model, const model_session_t *session, const uint64_t words[6], uint64_t sequence,
                             bool *begins) {
  bl_lease_reason_t reason = check_token(model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  model_lease_t *lease = &model->leases[words[0]];
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state == BL_LEASE_SEALED) {
    if (!has_credit(model, session, lease->bytes)) {
      return BL_LEASE_CREDIT;
    }
  } else if (lease->state != BL_LEASE_LOADING || lease->moving) {
    return BL_LEASE_STATE;
  }
  lease->state = BL_LEASE_LOADING;
  if (words[2] != 0) {
    lease->moving = *begins = true;
    lease->cancelled = false;
    lease->transfer = lease->generation;
    lease->waiting = sequence;
  }
  return BL_LEASE_GRANTED;
}

void model_answer(model_t *model, uint64_t number, uint64_t sequence, bl_lease_reason_t reason) {
  model_session_t *session = model_session(model, number);
  if (session != NULL && sequence != 0) {
    model_request_t *request = &session->requests[sequence % MODEL_WINDOW];
    if (request->sequence == sequence) {
      request->done = true;
      request->answer.reason = reason;
    }
  }
}

bl_lease_reason_t model_release(model_t *model, const model_session_t *session, const uint64_t words[6],
                                uint64_t sequence, bool *begins) {
  bl_lease_reason_t reason = check_token(model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  uint32_t id = (uint32_t)words[0];
  model_lease_t *lease = &model->leases[id];
  bool loaded = words[2] != 0;
  if (lease->state == BL_LEASE_RESERVED || (lease->state == BL_LEASE_QUARANTINED && !is_lost(lease)) ||
      (loaded && (lease->state != BL_LEASE_LOADING || lease->moving))) {
    return BL_LEASE_STATE;
  }
  if (lease->state == BL_LEASE_QUARANTINED) {
    return BL_LEASE_GONE;
  }
  if (lease->state == BL_LEASE_LOST) {
    *lease = (model_lease_t){.generation = lease->generation};
    return BL_LEASE_GRANTED;
  }
  reason = loaded && words[3] != lease->checksum ? BL_LEASE_CHECKSUM : BL_LEASE_GRANTED;
  *begins = lease->moving;
  uint64_t waiting = lease->waiting;
  model_over(model, id);
  if (*begins) {
    lease->waiting = sequence;
    model_answer(model, session->number, waiting, BL_LEASE_CANCELLED);
  }
  return reason;
}

bl_lease_reason_t model_keep(model_t *model, const model_session_t *session, const uint64_t words[6]) {
  bl_lease_reason_t reason = check_token(model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  model_lease_t *lease = &model->leases[words[0]];
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state != BL_LEASE_LOADING || lease->moving) {
    return BL_LEASE_STATE;
  }
  if (words[3] != lease->checksum) {
    return BL_LEASE_CHECKSUM;
  }
  lease->state = BL_LEASE_SEALED;
  return BL_LEASE_GRANTED;
}

bl_lease_reason_t model_unreserve(model_session_t *session, uint64_t version) {
  for (int i = 0; i < BL_LEASE_PLANS && version != 0; i++) {
    if (session->plans[i].version == version) {
      session->plans[i] = (model_plan_t){0};
      return BL_LEASE_GRANTED;
    }
  }
  return BL_LEASE_PLAN;
}

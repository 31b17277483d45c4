// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/rendezvous_message.h"

#include "datapath/wire.h"

// Offsets in the body.
enum {
  AT_KIND = 0,
  AT_GENERATION = 4,
  AT_STATUS = 8,
  AT_ZERO = 12,
  AT_IDS = 16,
  AT_TEXT = AT_IDS + BL_RENDEZVOUS_CHANNELS * BL_FRAME_ID_BYTES,
};
_Static_assert(AT_TEXT + BL_RENDEZVOUS_TEXT_BYTES == BL_FRAME_RENDEZVOUS_BYTES, "a text ends it");

void bl_rendezvous_message_encode(const bl_rendezvous_message_t *rendezvous, uint8_t body[BL_FRAME_RENDEZVOUS_BYTES]) {
  bl_wire_put32(body + AT_KIND, rendezvous->kind);
  bl_wire_put32(body + AT_GENERATION, rendezvous->generation);
  bl_wire_put32(body + AT_STATUS, (uint32_t)rendezvous->status);
  bl_wire_put32(body + AT_ZERO, 0);
  memcpy(body + AT_IDS, rendezvous->ids, sizeof rendezvous->ids);
  bl_wire_put_text(body + AT_TEXT, BL_RENDEZVOUS_TEXT_BYTES, rendezvous->text);
}

bl_status_t bl_rendezvous_message_decode(const uint8_t body[BL_FRAME_RENDEZVOUS_BYTES],
                                         bl_rendezvous_message_t *rendezvous, const char **reason) {
  bl_rendezvous_message_t read = {.kind = (bl_nccl_rendezvous_kind_t)bl_wire_get32(body + AT_KIND),
                                  .generation = bl_wire_get32(body + AT_GENERATION),
                                  .status = (bl_status_t)bl_wire_get32(body + AT_STATUS)};
  memcpy(read.ids, body + AT_IDS, sizeof read.ids);
  memcpy(read.text, body + AT_TEXT, BL_RENDEZVOUS_TEXT_BYTES);
  if (read.kind >= BL_NCCL_RENDEZVOUS_KINDS || read.generation == 0 || (unsigned)read.status >= BL_STATUS_COUNT ||
      bl_wire_get32(body + AT_ZERO) != 0) {
    *reason = "unknown kind, status or generation in a rendezvous message";
    return BL_INVALID;
  }
  // A message that explains a failure has its status.
  const bool explains = read.kind == BL_NCCL_RENDEZVOUS_DROP || read.kind == BL_NCCL_RENDEZVOUS_BROKE;
  if ((explains && read.status == BL_OK) || !bl_wire_text_is_clean(read.text, sizeof read.text)) {
    *reason = "a failure without a cause, or text that is not printable";
    return BL_INVALID;
  }
  *rendezvous = read;
  return BL_OK;
}

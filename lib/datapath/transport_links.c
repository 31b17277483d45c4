// SPDX-License-Identifier: Apache-2.0
// The transport's callbacks for events of links. Frames are passed to the handshake or to communicators. The end of a
// link is reported to those who wait on it.
#include "datapath/handshake.h"
#include "datapath/transport.h"
#include "sys/log.h"

#include <stdio.h>
#include <string.h>

static void on_note(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  const bl_frame_t *frame = &link->reader.frame;
  bl__note_t note = {.attempt = frame->attempt, .number = frame->key.boundary};
  memcpy(note.body, link->reader.body, sizeof note.body);
  pthread_mutex_lock(&transport->mutex);
  const bool stale = note.attempt < transport->attempt;
  const bool taken = stale || bl__notes_put(&bl__transport_find(transport, link->stage)->heard, &note);
  transport->counters.stale_dropped += stale;
  bl__transport_changed(transport);
  pthread_mutex_unlock(&transport->mutex);
  if (!taken) {
    bl__link_lose(link, BL_INTERNAL, "%s sends notes that were not asked for", BL__NAME(transport, link->stage));
  }
}

static void put_notes(bl__link_t *link) {
  bl__notes_t *notes = &bl__transport_find(link->transport, link->stage)->said;
  bl__note_t note;
  // A note needs as much as a header and a body, which is no longer than one.
  while (bl_frame_writer_free_frames(&link->writer) > BL__LINK_SPARE_FRAMES + 2 && bl__notes_next(notes, &note)) {
    const bl_frame_t frame = {.kind = BL_FRAME_NOTE, .attempt = note.attempt, .key.boundary = note.number};
    (void)!bl__link_put(link, &frame, note.body, NULL, 0); // it fits
  }
}

static void on_frame(bl__link_t *link) {
  const bl_frame_kind_t kind = link->reader.frame.kind;
  if (link->state != BL__LINK_UP) {
    bl__handshake_frame(link);
  } else if (kind == BL_FRAME_NOTE) {
    on_note(link);
  } else if (kind == BL_FRAME_RENDEZVOUS) {
    bl__nccl_link_heard(link);
  } else if (link->nccl_link != NULL) {
    bl__nccl_link_go(link);
  } else {
    bl__link_lose(link, BL_INTERNAL, "%s sends a frame that is not expected now (%s)",
                  BL__NAME(link->transport, link->stage), bl_frame_kind_name(kind));
  }
}

// Called for a link that was up. Its peer now has none.
static void tell_waiters(bl__link_t *link, bl_status_t status, const char *text) {
  bl_transport_t *transport = link->transport;
  pthread_mutex_lock(&transport->mutex);
  bl__peer_t *peer = bl__transport_find(transport, link->stage);
  bool replaced = peer == NULL || peer->link != link;
  if (!replaced) {
    if (link->nccl_link != NULL) {
      bl__nccl_link_part(link->nccl_link, status, text);
    }
    bl__pull_part(link);
    bl_exchange_lose(peer->exchange);
    peer->link = NULL;
    peer->path = BL_PATH_AUTO;
    peer->mapped_bytes = 0;
    peer->lost = status;
    snprintf(peer->reason, sizeof peer->reason, "%s", text);
    transport->counters.links_lost++;
  }
  bl__transport_changed(transport);
  pthread_mutex_unlock(&transport->mutex);
  if (!replaced && !transport->closing) {
    bl_log(status == BL_UNAVAILABLE ? BL_LOG_INFO : BL_LOG_ERROR, "data path: link to %s ended: %s",
           BL__NAME(transport, link->stage), text);
    bl__connect_lost(transport, link, status, text);
  }
}

static void on_ended(bl__link_t *link, bl__link_state_t state, bl_status_t status, const char *text) {
  bl_transport_t *transport = link->transport;
  if (state == BL__LINK_UP) {
    tell_waiters(link, status, text);
  } else if (link->outgoing) {
    bl__connect_failed(transport, link, status, text);
  } else {
    transport->strangers--;
    // A refusal was counted when it was decided.
    if (state != BL__LINK_REFUSING && !transport->closing) {
      bl__transport_count_refused(transport, "%s", text);
    }
  }
}

static void launch(bl__link_t *link) {
  if (link->nccl_link != NULL) {
    bl__nccl_link_launch(link);
  } else {
    bl__pull_launch(link);
  }
}

const bl__link_ops_t bl__transport_link_ops = {.connected = bl__handshake_begin,
                                               .on_frame = on_frame,
                                               .put_notes = put_notes,
                                               .launch = launch,
                                               .ended = on_ended};

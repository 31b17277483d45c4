// SPDX-License-Identifier: Apache-2.0
// Tests of data paths before a run (ballastctl preflight). A block is moved to a store and back through a session of
// its own. Stages that will exchange tensors connect over transports of their own. Addresses, certificates, choice of
// the path and protocols are those of a run. Nothing of a run is touched.
//
//   bl_probe_store(&(bl_probe_options_t){.job = "gpt2", .stage = 2, ...}, "store-1.store:7800", &outcome);
//   if (outcome.err.status == BL_OK) ... outcome.path, outcome.round_ns ...
//
//   bl_peer_probe_create(&transport, block_bytes, &peer_probe, err);  // on every stage; then addresses are passed on
//   bl_peer_probe_exchange(peer_probe, peers, count, path, deadline_ns, outcomes);
//   bl_peer_probe_destroy(peer_probe);                                // once all other stages have exchanged
//
// Everything here blocks. Thread: any one at a time, never the loop's.
#ifndef BALLAST_STAGE_SERVICE_PROBE_H
#define BALLAST_STAGE_SERVICE_PROBE_H

#include "datapath/boundary.h"

#define BL_PROBE_REASON_BYTES 320

typedef struct bl_probe_options {
  const char *job; // name of the run
  uint32_t stage;  // stage that this process would be
  bl_path_t path;
  bl_device_t *device; // device on which blocks lie; NULL: the host
  uint64_t block_bytes;
  uint64_t deadline_ms; // of the whole probe
} bl_probe_options_t;

typedef struct bl_probe_outcome {
  bl_error_t err; // BL_OK: blocks were moved to the store and back
  bl_path_t path; // BL_PATH_AUTO: none
  char reason[BL_PROBE_REASON_BYTES];
  uint64_t round_ns; // time to move one block there and back, the shortest of a few
} bl_probe_outcome_t;

// Opens a session at the store, evicts a block and loads it a few times. If a block on a GPU cannot be moved directly,
// it is moved through memory of the host, unless cuda-ipc was requested; the reason states that.
void bl_probe_store(const bl_probe_options_t *options, const char *store, bl_probe_outcome_t *outcome);

typedef struct bl_peer_probe bl_peer_probe_t;

// `transport` sets where to listen and how to secure it; this call sets its arenas. Statuses as bl_transport_create.
BL_MUST_USE bl_status_t bl_peer_probe_create(const bl_transport_options_t *transport, uint64_t block_bytes,
                                             bl_peer_probe_t **peer_probe, bl_error_t *err);
void bl_peer_probe_destroy(bl_peer_probe_t *peer_probe); // NULL is fine
const bl_transport_t *bl_peer_probe_transport(const bl_peer_probe_t *peer_probe);
// Connects to all peers, which must be doing the same, then sends each a block and receives one, a few times. Call it
// once per peer probe.
void bl_peer_probe_exchange(bl_peer_probe_t *peer_probe, const bl_transport_peer_t *peers, size_t count, bl_path_t path,
                            uint64_t deadline_ns, bl_probe_outcome_t *outcomes);

#endif

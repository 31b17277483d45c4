// SPDX-License-Identifier: Apache-2.0
#include "probe.h"

#include "base/bytes.h"
#include "client/arena_region.h"
#include "lease/granule.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS  5
#define LAST_NS BL_NS_PER_S // for a peer that did not connect with the others, to find the reason
#define PATTERN 0xA5

// ---- to a store and back --------------------------------------------------------------------------------------------

static bl_status_t fill_block(bl_arena_t *block, uint8_t value, bl_error_t *err) {
  return bl_device_fill(block->device, NULL, block->base, value, block->bytes, err);
}

// Compares the loaded block with the evicted one: on cuda-ipc no other code does.
static bl_status_t check_pattern(const bl_arena_t *block, uint8_t *copy, bl_error_t *err) {
  bl_status_t status = bl_device_copy(block->device, NULL, copy, block->base, block->bytes, err);
  for (uint64_t i = 0; i < block->bytes && status == BL_OK; i++) {
    if (copy[i] != PATTERN) {
      status = bl_error_set(err, BL_DATA_LOSS, "byte %llu of the block came back as %u, not %u", (unsigned long long)i,
                            copy[i], PATTERN);
    }
  }
  return status;
}

static bl_status_t time_round_trips(bl_client_t *client, uint64_t slot, bl_arena_t *block, uint64_t *shortest_ns,
                                    bl_error_t *err) {
  uint8_t *copy = malloc(block->bytes);
  bl_status_t status = copy == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory to compare a block") : BL_OK;
  for (int i = 0; i < ROUNDS && status == BL_OK; i++) {
    status = fill_block(block, PATTERN, err);
    const uint64_t begin_ns = bl_clock_now_ns();
    if (status == BL_OK) {
      status = bl_client_evict(client, slot, block->base, block->bytes, NULL, err);
    }
    const uint64_t there_ns = bl_clock_now_ns() - begin_ns;
    if (status == BL_OK) {
      status = fill_block(block, 0, err);
    }
    const uint64_t again_ns = bl_clock_now_ns();
    if (status == BL_OK) {
      status = bl_client_load(client, slot, block->base, block->bytes, err);
    }
    const uint64_t took_ns = there_ns + bl_clock_now_ns() - again_ns;
    if (status == BL_OK) {
      status = check_pattern(block, copy, err);
    }
    if (status == BL_OK && (*shortest_ns == 0 || took_ns < *shortest_ns)) {
      *shortest_ns = took_ns;
    }
  }
  free(copy);
  return status;
}

// Probes with the block on one device. BL_UNIMPLEMENTED: from there it can only reach the store through memory of the
// host.
static bl_status_t probe_from(const bl_probe_options_t *options, bl_device_t *device, const char *store,
                              bl_probe_outcome_t *outcome) {
  *outcome = (bl_probe_outcome_t){.path = BL_PATH_AUTO};
  bl_arena_t block = {0};
  bl_client_t *client = NULL;
  char job[BL_CLIENT_JOB_LENGTH + 1];
  uint64_t slot;
  snprintf(job, sizeof job, "%.40s#preflight-%u", options->job, options->stage);
  const bl_client_demand_t demand = {.bytes = options->block_bytes, .count = 1};
  bl_client_region_t region;
  bl_client_options_t session = {.size = sizeof session,
                                 .store = store,
                                 .job = job,
                                 .stage = options->stage,
                                 .arena_bytes = bl_align_up(options->block_bytes, BL_LEASE_GRANULE_BYTES),
                                 .regions = &region,
                                 .region_count = 1,
                                 .device = device->host_memory ? NULL : device,
                                 .unit_bytes = options->block_bytes,
                                 .deadline_ms = options->deadline_ms,
                                 .path = (bl_client_path_t)options->path};
  bl_status_t status =
      bl_arena_create(device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, options->block_bytes, &block, &outcome->err);
  if (status == BL_OK) {
    region = bl_client_region_of(&block);
    status = bl_client_open(&session, &client, &outcome->err);
  }
  if (status == BL_OK) {
    char text[BL_CLIENT_PATH_BYTES];
    outcome->path = (bl_path_t)bl_client_path(client, text);
    snprintf(outcome->reason, sizeof outcome->reason, "%s", text);
    status = bl_client_reserve(client, 1, &demand, 1, &outcome->err);
  }
  if (status == BL_OK && bl_client_slots(client, &slot, 1) != 1) {
    status = bl_error_set(&outcome->err, BL_INTERNAL, "%s reserved no slot", store);
  }
  if (status == BL_OK) {
    status = time_round_trips(client, slot, &block, &outcome->round_ns, &outcome->err);
  }
  bl_client_close(client);
  bl_arena_destroy(&block);
  return status;
}

void bl_probe_store(const bl_probe_options_t *options, const char *store, bl_probe_outcome_t *outcome) {
  const bool directly = options->path == BL_PATH_AUTO || options->path == BL_PATH_CUDA_IPC;
  char why[BL_PROBE_REASON_BYTES] = "";
  if (options->device != NULL && !options->device->host_memory && directly) {
    if (probe_from(options, options->device, store, outcome) != BL_UNIMPLEMENTED || options->path != BL_PATH_AUTO) {
      return;
    }
    snprintf(why, sizeof why, "%.250s", outcome->err.text);
  }
  (void)probe_from(options, bl_device_host(), store, outcome);
  if (why[0] != '\0' && outcome->path != BL_PATH_AUTO) {
    snprintf(outcome->reason, sizeof outcome->reason, "%s, through memory of the host: %.250s",
             bl_path_name(outcome->path), why);
  }
}

// ---- connections between stages -------------------------------------------------------------------------------------

struct bl_peer_probe {
  bl_arena_t sent, received;
  uint64_t block_bytes;
  bl_transport_t *transport;
};

bl_status_t bl_peer_probe_create(const bl_transport_options_t *transport, uint64_t block_bytes,
                                 bl_peer_probe_t **peer_probe, bl_error_t *err) {
  bl_peer_probe_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to meet other stages");
  }
  made->block_bytes = block_bytes;
  bl_status_t status =
      bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, block_bytes, &made->sent, err);
  if (status == BL_OK) {
    status =
        bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_PRIVATE, block_bytes, &made->received, err);
  }
  if (status == BL_OK) {
    memset(made->sent.base, PATTERN, made->sent.bytes);
    bl_transport_options_t options = *transport;
    options.arenas = &made->sent;
    options.arena_count = 1;
    status = bl_transport_create(&options, &made->transport, err);
  }
  if (status != BL_OK) {
    bl_peer_probe_destroy(made);
    return status;
  }
  *peer_probe = made;
  return BL_OK;
}

void bl_peer_probe_destroy(bl_peer_probe_t *peer_probe) {
  if (peer_probe == NULL) {
    return;
  }
  if (peer_probe->transport != NULL) {
    bl_transport_destroy(peer_probe->transport); // before the arenas
  }
  bl_arena_destroy(&peer_probe->sent);
  bl_arena_destroy(&peer_probe->received);
  free(peer_probe);
}

const bl_transport_t *bl_peer_probe_transport(const bl_peer_probe_t *peer_probe) {
  return peer_probe->transport;
}

// Both ends send and receive. One key names both tensors: keys are per direction of travel (boundary.h).
static bl_status_t swap(bl_peer_probe_t *peer_probe, int32_t peer, uint64_t deadline_ns, bl_probe_outcome_t *outcome) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < ROUNDS && status == BL_OK; i++) {
    const bl_tensor_key_t key = {.direction = BL_TIED, .micro_batch = i};
    const uint64_t begin_ns = bl_clock_now_ns();
    status = bl_transport_post_receive(peer_probe->transport, peer, key, peer_probe->received.base,
                                       peer_probe->block_bytes, &outcome->err);
    if (status == BL_OK) {
      status = bl_transport_post_send(peer_probe->transport, peer, key, peer_probe->sent.base, peer_probe->block_bytes,
                                      &outcome->err);
    }
    if (status == BL_OK) {
      status = bl_transport_wait_received(peer_probe->transport, peer, key, deadline_ns, &outcome->err);
    }
    if (status == BL_OK) {
      status = bl_transport_wait_sent(peer_probe->transport, peer, key, deadline_ns, &outcome->err);
    }
    const uint64_t took_ns = bl_clock_now_ns() - begin_ns;
    // The first round also waits for the peer to begin.
    if (status == BL_OK && i > 0 && (outcome->round_ns == 0 || took_ns < outcome->round_ns)) {
      outcome->round_ns = took_ns;
    }
  }
  return status;
}

static void look_at_path(bl_peer_probe_t *peer_probe, int32_t stage, bl_probe_outcome_t *outcome) {
  bl_transport_path_t paths[BL_TRANSPORT_MAX_PEERS];
  size_t count = bl_transport_paths(peer_probe->transport, paths, BL_TRANSPORT_MAX_PEERS);
  for (size_t i = 0; i < count && i < BL_TRANSPORT_MAX_PEERS; i++) {
    if (paths[i].peer == stage && paths[i].connected) {
      outcome->path = paths[i].path;
      snprintf(outcome->reason, sizeof outcome->reason, "%s", paths[i].reason);
    }
  }
}

void bl_peer_probe_exchange(bl_peer_probe_t *peer_probe, const bl_transport_peer_t *peers, size_t count, bl_path_t path,
                            uint64_t deadline_ns, bl_probe_outcome_t *outcomes) {
  bl_error_t err = {0};
  const uint64_t now_ns = bl_clock_now_ns(), half_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / 2 : 0;
  bl_status_t status = bl_transport_connect_wait(peer_probe->transport, peers, count, path, now_ns + half_ns, &err);
  for (size_t i = 0; i < count; i++) {
    outcomes[i] = (bl_probe_outcome_t){.path = BL_PATH_AUTO};
    look_at_path(peer_probe, peers[i].stage, &outcomes[i]);
    if (outcomes[i].path == BL_PATH_AUTO && status != BL_OK) {
      outcomes[i].err.status = bl_transport_connect_wait(peer_probe->transport, &peers[i], 1, path,
                                                         bl_clock_now_ns() + LAST_NS, &outcomes[i].err);
      look_at_path(peer_probe, peers[i].stage, &outcomes[i]);
    }
  }
  status = bl_transport_begin(peer_probe->transport, 1, &err);
  for (size_t i = 0; i < count; i++) { // ascending on every stage, so that there is no circular wait
    if (status != BL_OK) {
      outcomes[i].err = err;
    } else if (outcomes[i].err.status == BL_OK) {
      (void)swap(peer_probe, peers[i].stage, deadline_ns, &outcomes[i]);
    }
  }
}

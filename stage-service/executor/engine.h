// SPDX-License-Identifier: Apache-2.0
// Everything a configured stage computes with: what the job means, the chunks of this stage, and all memory, planned
// by tag and faulted in before the first step.
//
//   bl_engine_create(&options, &engine, err);     // on the compute thread: it plans kernels and touches memory
//   ... bl_transport_connect(engine->transport, ...), bl_executor_run(engine, ...) ...
//   bl_engine_destroy(engine);
//
// Memory of a stage: weights (with their packed copies), gradients (with room for the peer's part of a tied
// embedding, for sums that wait to be added, and for what other copies send; shareable where ranks pull from them),
// optimizer, KV cache, slots (equal, slot_bytes each; as many as the policy of the job leaves the stage, until a plan
// says otherwise; shareable, so that stores on this machine can pull evicted blocks from them), edges (equal,
// edge_bytes each, shareable so that peers on this machine can pull from them), workspace, data, checkpoint (a copy of
// weights and optimizer, where the job writes checkpoints), shadow (another one, where stages go on ahead of commits).
// Where the job has the optimizer's state on the host (train.optimizer_memory) it is under optimizer-host instead:
// masters of the weights, moments and gradients that have come, in staging.
//
// On a device whose memory the CPU cannot touch (a GPU) all of it lies there but data, checkpoint and staging: twins of
// edge buffers, and of slots where blocks may leave, which data paths of the host send from and receive into. The
// device is told ahead: what an operation writes is there when an event says so, and the CPU reads losses and squares
// once, after the last operation of a run (bl_engine_finish).
//
// Thread: created, used and destroyed by the compute thread; `transport` and `account` say themselves what others may
// call, and the fields set at creation are read-only afterwards.
#ifndef BALLAST_EXECUTOR_ENGINE_H
#define BALLAST_EXECUTOR_ENGINE_H

#include "checkpoint/snapshot.h"
#include "compute/model/chunk.h"
#include "config/job.h"
#include "datapath/boundary.h"
#include "datapath/endpoint.h"
#include "datapath/nccl/engine.h"
#include "device/device.h"
#include "device/segments.h"
#include "executor/parking.h"
#include "executor/timeline.h"
#include "job/training.h"
#include "model/fold.h"
#include "model/shard.h"
#include "observe/trace.h"
#include "sys/core_tokens.h"

#include <stdint.h>

typedef struct bl_engine_options {
  const char *job; // canonical YAML
  size_t job_bytes;
  bl_training_orders_t orders; // of the job's step
  const char *resume;          // folder of a checkpoint to go on from; NULL or "": begin anew
  uint64_t resume_digest;      // of that checkpoint (job/checkpoint.h)
  uint32_t rank;               // of the job's grid (model/grid.h)
  int32_t gpu;                 // of those that this process sees, where pipeline.device is cuda; -1: the rank's number
                               // modulo how many they are
  bool nccl_shared_gpu;        // other processes of the job use the same GPU, and NCCL
  int32_t first_core;          // pin the compute thread to `pipeline.threads` cores from this one on; -1: do not
  const char *core_tokens;     // file of the tokens that stages of this machine share; NULL: none
  const char *unix_path;       // socket of the data path; NULL: no shared memory
  const char *tcp_host;        // where the data path listens; NULL: no tcp
  const char *tcp_advertise;   // what peers should connect to; NULL: tcp_host
  bl_tls_t *tls;               // of the data path on tcp; NULL: plaintext
  bool plaintext_ok;
  bl_loop_thread_t *transfer; // that moves tensors; outlives the engine. NULL: one of the engine's own
} bl_engine_options_t;

typedef struct bl_engine_chunk {
  uint32_t virtual_stage;
  uint32_t pipe; // whose chunk it is
  uint32_t copy; // of all copies of this chunk (model/grid.h)
  bl_chunk_t *chunk;
  uint32_t shared_first, shared_count; // of engine->shared
  bool current;                        // in this run all weights have come
  bool sent;                           // in this run the gradients are on their way
} bl_engine_chunk_t;

// What a stage does when it is configured, one after the other.
typedef enum bl_start_phase {
  BL_START_JOB,     // its texts read, the order of its operations found or searched
  BL_START_DEVICE,  // opened
  BL_START_HANDLES, // libraries of the back end, kernels
  BL_START_NCCL,    // loaded; communicators come when the stage is connected
  BL_START_PLANS,   // operations of the chunks, owners, the group of tensor ranks
  BL_START_MEMORY,  // taken and faulted in; snapshot
  BL_START_WARM,    // executor/warm.h
  BL_START_WEIGHTS, // drawn or read, and packed
  BL_START_REST,    // data path, trace, timeline
  BL_START_PHASES
} bl_start_phase_t;

#define BL_START_TEXT 256

// What happens to an edge buffer besides operations.
typedef struct bl_edge_state {
  // What leaves, or left last.
  bool pending; // not known to have left
  bool held;    // pending, and not given to the transport yet: the device is still at it
  bool direct;  // it leaves as it is, not its twin
  uint32_t peer;
  uint64_t bytes;
  bl_tensor_key_t key;
  // What is to come, directly, and is not given to the transport yet: the device is still at what was there.
  bool wanted;
  uint32_t wanted_from;
  bl_tensor_key_t wanted_key;
  // Of a device that is told ahead; NULL elsewhere.
  bl_device_event_t *ready; // the buffer holds what leaves
  bl_device_event_t *left;  // what leaves is where it leaves from: in its twin, or here
  bl_device_event_t *taken; // what came has been taken from its twin; directly: what was here is not needed any more
} bl_edge_state_t;

typedef enum bl_block_place {
  BL_BLOCK_HOME,      // in its slot, or not made yet
  BL_BLOCK_LEAVING,   // being evicted
  BL_BLOCK_PARKED,    // away
  BL_BLOCK_RETURNING, // being loaded
  BL_BLOCK_DROPPED,   // given up at its eviction: to be made again
  BL_BLOCK_LOST,      // given up at its load: to be made again
} bl_block_place_t;

// One activation block of the run, executor/parked.h.
typedef struct bl_engine_block {
  bl_block_place_t place;
  uint32_t input;           // edge buffer of its x
  uint32_t slot;            // where it is, leaves from or comes to
  bl_parked_block_t parked; // as it was evicted
  bool hashed, checked;     // by the device: as it left, and as it came back; told to, and over at the end of the run
} bl_engine_block_t;

// What leaves from a slot.
typedef struct bl_engine_leaving {
  bl_engine_block_t *block; // NULL: nothing
  uint32_t free_at;         // operation before which the plan counts the slot as free
} bl_engine_leaving_t;

// What the copies of a chunk add up and hand round: a parameter, or the second gradient of one.
typedef struct bl_engine_shared {
  uint32_t chunk;  // of engine->chunks
  uint32_t number; // among those of its chunk, the same on all ranks that have a copy
  float *weight;   // NULL: of a second gradient
  float *gradient;
  uint64_t elements;
  uint32_t owner;  // the copy that updates it
  float *received; // where it is this one, others' gradients of it: [copies - 1], each on a cache line
} bl_engine_shared_t;

typedef struct bl_engine {
  bl_job_t job;
  bl_training_t training;
  uint32_t rank;
  uint32_t stage, replica; // its seat; the tensor rank is training.layout.split.rank
  uint64_t applied;        // the step its weights were of when it was created; 0 without a checkpoint
  bl_device_t *device;
  bl_device_stream_t *stream;  // of the operations, owned by `compute`; NULL: they are over when they return
  bl_device_stream_t *copies;  // to and from twins
  bl_device_event_t *finished; // bl_engine_finish
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_host_optimizer_t *host; // that updates the chunks (train.optimizer_memory: host); NULL: the device does
  bl_engine_chunk_t *chunks;
  uint32_t chunk_count;
  uint32_t *owners;           // of the chunks' parameters (model/shard.h); NULL: there is one copy
  bl_engine_shared_t *shared; // [shared_count], executor/replicas.h
  uint32_t shared_count;
  struct bl_tensor_group *tensor_group; // executor/tensor_group.h; NULL: this rank has its layers whole
  uint64_t sums_at, received_at;        // offsets in the arena of gradients: sums that wait, what other copies send

  bl_memory_account_t account;
  bl_arena_t weights, gradients, optimizer, edges, workspace, data, snapshot_memory; // optimizer: wherever it lies
  bl_arena_t windows;                // of the tensor group (model/windows.h)
  bl_arena_t kv_cache;               // executor/kv_cache.h: pages, then pages of gradients; empty without slices
  bl_arena_t edge_twins, tied_twins; // in pinned memory of the host; none before bl_engine_hold_edge_twins
  bl_segments_t slots;               // slots.count of them are there: the stage's own slots
  bl_segments_t slot_twins;          // as many, in pinned memory of the host; none before bl_engine_hold_twins
  uint32_t slot_count;               // the most that any plan needs
  uint32_t edge_count;               // the most that any plan needs; the first edges_held of them are there
  uint32_t edges_held;
  uint32_t page_count, page_gradient_count; // of the KV cache: the most that any plan needs
  uint64_t slot_bytes;                      // of one slot, a multiple of 64
  uint64_t edge_bytes;                      // of one edge buffer, a multiple of 64
  uint64_t page_bytes, page_gradient_bytes;
  void **pages;                 // [slices], those of the operation under way; NULL without slices
  float **page_gradients;       // likewise
  bl_edge_state_t *edge_states; // [edge_count], executor/edges.h
  uint32_t parameter_count;     // tensors this rank reports on and saves
  bl_chunk_t *tied;             // the chunk of copy 0 whose tied gradient needs another chunk's part, or NULL
  bl_chunk_t *tied_twin;        // that other chunk, where a V-shaped schedule puts both on this stage
  uint32_t tied_peer;           // rank of the other part
  float *tied_part;             // the part that comes from there, [vocab, hidden]
  uint32_t batch_count;         // buffers for tokens and labels each: micro-batch i has number i mod batch_count
  int32_t *tokens;              // [batch_count, slices, micro_batch, seq / slices]
  int32_t *labels;              // likewise
  bl_chunk_loss_t *losses;      // [micro_batches, slices], written by the head
  double *squares;              // [parameter_count], of the vote
  uint64_t *block_hashes;       // [blocks][2] of ops->checksum: as a block left, as it came back
  uint64_t free_at_plan;        // bytes of the device, when the plan was compared with them
  uint64_t device_bytes;        // planned of it, but for slots
  bool room_told;
  uint64_t start_ns[BL_START_PHASES]; // that each phase took
  uint64_t drains; // times that the CPU has waited for all that the device was told (bl_engine_finish)

  bl_snapshot_t *snapshot; // NULL: the job writes no checkpoints
  bl_arena_t shadow;       // executor/shadow.h; empty: updates wait for their commit

  bl_parking_t *parking;        // where evicted blocks go; set by the owner between runs, NULL: nowhere
  bl_engine_block_t *blocks;    // [chunk_count, micro_batches, slices]
  bl_engine_leaving_t *leaving; // [slot_count]
  bl_device_event_t **settled;  // [slot_count] what the device was told of a slot before its transfer began

  bl_core_tokens_t *core_tokens; // taken for each operation; NULL: every stage has a core of its own

  bl_transport_t *transport;
  bl_trace_t *trace;       // of the last run
  bl_timeline_t *timeline; // of a device that is told ahead; NULL elsewhere
  bl_nccl_engine_t *nccl;  // of this process and its device, for other stages and stores; NULL: there is none
  bl_endpoint_t endpoint;  // what peers are told of the device
} bl_engine_t;

// Reads the job's files, loads or draws weights. BL_INVALID, BL_NOT_FOUND, BL_IO, ...: the job or its files, as
// bl_training_init says; BL_EXHAUSTED: memory, naming tag and bytes. On failure nothing is left behind.
BL_MUST_USE bl_status_t bl_engine_create(const bl_engine_options_t *options, bl_engine_t **engine, bl_error_t *err);
void bl_engine_destroy(bl_engine_t *engine); // NULL is fine
// What its creation took: "8.214 s: job 0.010, device 0.912, ...", phases of less than a millisecond left out.
const char *bl_engine_start_text(const bl_engine_t *engine, char text[BL_START_TEXT]);

// Makes the stage have `count` slots of its own, between runs: what is in slots that stay stays. BL_EXHAUSTED: memory,
// or more than slot_count; then the number is as before.
BL_MUST_USE bl_status_t bl_engine_hold_slots(bl_engine_t *engine, uint32_t count, bl_error_t *err);

// Blocks will leave through memory of the host: from now on every slot has a twin there, pinned, between runs. Nothing
// to be done where the CPU reaches the device's memory. BL_EXHAUSTED: there are none then.
BL_MUST_USE bl_status_t bl_engine_hold_twins(bl_engine_t *engine, bl_error_t *err);

// Tensors will go to another stage by way of the host, or may: from now on every edge buffer, and a tied gradient that
// another stage needs, has a twin there, pinned. Not while a run uses twins. BL_EXHAUSTED: there are none then.
BL_MUST_USE bl_status_t bl_engine_hold_edge_twins(bl_engine_t *engine, bl_error_t *err);

// Before a plan takes `coming_bytes` more of the device: whether they are free, now that handles of libraries, kernels
// and communicators are there, of which plans know little. The first time it logs what those have taken. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_engine_check_room(bl_engine_t *engine, uint64_t coming_bytes, bl_error_t *err);

// Makes at least `count` edge buffers be there, between runs; none goes before the engine does. On a device that has
// all of them from the start nothing is to be done. BL_EXHAUSTED: memory, or more than edge_count; then it is as
// before.
BL_MUST_USE bl_status_t bl_engine_hold_edges(bl_engine_t *engine, uint32_t count, bl_error_t *err);

// Waits until everything that the device was told is over. BL_DEADLINE; BL_INTERNAL: compute.
BL_MUST_USE bl_status_t bl_engine_finish(bl_engine_t *engine, bl_error_t *err);

// Blocks of one chunk in a step: micro-batches, or slices of them.
static inline uint32_t bl_engine_units(const bl_engine_t *engine) {
  return engine->training.schedule->micro_batches * engine->training.schedule->slices;
}
// The chunk of a virtual stage that this stage holds; the caller has checked that it does.
bl_engine_chunk_t *bl_engine_find_chunk(const bl_engine_t *engine, uint32_t virtual_stage);
bl_chunk_t *bl_engine_chunk(const bl_engine_t *engine, uint32_t virtual_stage);
static inline void *bl_engine_slot(const bl_engine_t *engine, uint32_t index) {
  return bl_segments_at(&engine->slots, index);
}
static inline void *bl_engine_edge(const bl_engine_t *engine, uint32_t index) {
  return engine->edges.base + index * engine->edge_bytes;
}
// The device whose memory weights and moments lie in as they are updated.
static inline bl_device_t *bl_engine_updating_device(const bl_engine_t *engine) {
  return engine->host != NULL ? bl_device_host() : engine->device;
}
// Where a data path of the host finds what is in an edge buffer or a slot: its twin, or itself.
static inline void *bl_engine_edge_twin(const bl_engine_t *engine, uint32_t index) {
  return engine->device->host_memory ? bl_engine_edge(engine, index)
                                     : engine->edge_twins.base + index * engine->edge_bytes;
}
static inline void *bl_engine_slot_twin(const bl_engine_t *engine, uint32_t index) {
  return engine->device->host_memory ? bl_engine_slot(engine, index) : bl_segments_at(&engine->slot_twins, index);
}
// The rank of a stage of the same plane: the same replica and the same tensor rank.
static inline uint32_t bl_engine_rank_of(const bl_engine_t *engine, uint32_t stage) {
  const bl_seat_t seat = {.stage = stage, .tensor = engine->training.layout.split.rank, .data = engine->replica};
  return bl_grid_rank(&engine->training.grid, seat);
}
// Sums of gradients that wait beside the one that is accumulated (model/fold.h).
static inline uint32_t bl_engine_fold_levels(const bl_engine_t *engine) {
  return bl_fold_levels(bl_grid_copy_parts(&engine->training.grid));
}
// Copies of every chunk, over replicas and pipes.
static inline uint32_t bl_engine_copies(const bl_engine_t *engine) {
  return bl_copies_count(bl_grid_copies(&engine->training.grid));
}
// The rank that has this copy of the chunk.
static inline uint32_t bl_engine_copy_rank(const bl_engine_t *engine, const bl_engine_chunk_t *chunk, uint32_t copy) {
  const bl_grid_t *grid = &engine->training.grid;
  const uint32_t pipes = bl_copies_pipes(bl_grid_copies(grid));
  const bl_seat_t seat = {.stage = copy % pipes == chunk->pipe ? engine->stage : grid->stages - 1 - engine->stage,
                          .tensor = engine->training.layout.split.rank,
                          .data = copy / pipes};
  return bl_grid_rank(grid, seat);
}
// The number of this replica's first micro-batch in a run in which each has `count`.
static inline uint32_t bl_engine_first_micro_batch(const bl_engine_t *engine, uint32_t count) {
  return engine->replica * count;
}
// What people call this rank, in `text`, which is returned.
static inline const char *bl_engine_name(const bl_engine_t *engine, char text[BL_GRID_NAME_BYTES]) {
  return bl_grid_name(&engine->training.grid, engine->rank, text);
}
// Ranks this one exchanges tensors with, ascending; at most `capacity` are written, the number is returned.
uint32_t bl_engine_peers(const bl_engine_t *engine, uint32_t *peers, uint32_t capacity);

#endif

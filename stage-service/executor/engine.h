// SPDX-License-Identifier: Apache-2.0
// Everything that a configured stage computes with: the meaning of the job, the chunks of this stage, and all memory,
// planned by tag and faulted in before the first step.
//
//   bl_engine_create(&options, &engine, err);     // on the compute thread: it plans kernels and touches memory
//   ... bl_transport_connect(engine->transport, ...), bl_executor_run(engine, ...) ...
//   bl_engine_destroy(engine);
//
// Memory of a stage, by tag:
// - weights, with their packed copies;
// - gradients, with space for the peer's part of a tied embedding, for partial sums that wait to be added, and for what
//   other copies send; shareable if ranks pull from them. If copies share out the masters, weights that arrive lie here
//   until the first backward of their chunk;
// - optimizer: moments, and the masters of this rank if copies share them out;
// - optimizer-host instead if the job keeps the optimizer's state on the host (train.optimizer_memory): masters
//   of the weights, moments, and gradients copied there, in staging memory;
// - KV cache;
// - slots, all of slot_bytes: as many as the job's policy leaves the stage, until a plan changes that; shareable, so
//   that stores on this machine can pull evicted blocks from them;
// - edges, all of edge_bytes; shareable, so that peers on this machine can pull from them;
// - workspace, data;
// - checkpoint: a copy of weights and optimizer, if the job writes checkpoints;
// - shadow: another such copy, if stages run ahead of commits.
//
// On a device whose memory the CPU cannot touch (a GPU) all of it lies on the device except data, checkpoint and
// staging. Staging holds the twins of edge buffers, and of slots if blocks may leave; data paths of the host send from
// twins and receive into them. Such a device is asynchronous: the CPU queues work and does not wait for it. An event
// shows when an operation has written its results. The CPU reads losses and squares once, after the last operation of a
// run (bl_engine_finish).
//
// Thread: the compute thread creates, uses and destroys it. `transport` and `account` document what other threads may
// call. The fields set at creation are read-only afterwards.
#ifndef BALLAST_EXECUTOR_ENGINE_H
#define BALLAST_EXECUTOR_ENGINE_H

#include "checkpoint/snapshot.h"
#include "compute/model/chunk.h"
#include "config/job.h"
#include "datapath/block_memory.h"
#include "datapath/boundary.h"
#include "datapath/nccl/engine.h"
#include "device/device.h"
#include "device/segments.h"
#include "executor/parking.h"
#include "executor/timeline.h"
#include "job/training.h"
#include "model/fold.h"
#include "model/resident.h"
#include "model/shard.h"
#include "observe/trace.h"
#include "sys/core_tokens.h"

#include <stdint.h>

typedef struct bl_engine_options {
  const char *job; // canonical YAML
  size_t job_bytes;
  bl_training_orders_t orders; // of a training step of the job
  const char *resume;          // folder of the checkpoint to resume from; NULL or "": start from scratch
  uint64_t resume_digest;      // of that checkpoint (job/checkpoint.h)
  uint32_t rank;               // in the job's grid (model/grid.h)
  // Index among the GPUs that this process sees, if pipeline.device is cuda. -1: the rank's number modulo their count.
  int32_t gpu;
  bool nccl_shared_gpu;      // other processes of the job use the same GPU, and NCCL
  int32_t first_core;        // first core of the `pipeline.threads` cores to pin the compute thread to; -1: do not pin
  const char *core_tokens;   // file of the core tokens that stages of this machine share; NULL: none
  const char *unix_path;     // socket of the data path; NULL: no shared memory
  const char *tcp_host;      // where the data path listens; NULL: no tcp
  const char *tcp_advertise; // address that peers connect to; NULL: tcp_host
  bl_tls_t *tls;             // of the data path on tcp; NULL: plaintext
  bool plaintext_ok;
  bl_loop_thread_t *transfer; // thread that moves tensors; outlives the engine. NULL: the engine creates its own
} bl_engine_options_t;

typedef struct bl_engine_chunk {
  uint32_t virtual_stage;
  uint32_t pipe; // pipe that the chunk belongs to
  uint32_t copy; // number among all copies of this chunk (model/grid.h)
  bl_chunk_t *chunk;
  uint32_t shared_first, shared_count; // range in engine->shared
  bool current;                        // all weights have arrived in this run
  bool sent_weights;                   // all weights that other copies need from this one have been sent to them
  bool begun;                          // the gradients were cleared in this run
  bool sent;                           // the gradients are being sent in this run
  bool held;                           // sent, but not yet given to the transport, because the device computes them
  bl_device_event_t *computed;         // on an asynchronous device: they are what is to be sent. NULL elsewhere
} bl_engine_chunk_t;

// The phases of a stage's configuration, in order.
typedef enum bl_start_phase {
  BL_START_JOB,     // read its texts; find or search the order of its operations
  BL_START_DEVICE,  // open it
  BL_START_HANDLES, // libraries of the back end, kernels
  BL_START_NCCL,    // load it; communicators are created when the stage connects
  BL_START_PLANS,   // operations of the chunks, the group of tensor ranks
  BL_START_MEMORY,  // allocate and fault in; snapshot
  BL_START_WARM,    // executor/warm.h
  BL_START_WEIGHTS, // draw or read, and pack
  BL_START_REST,    // data path, trace, timeline
  BL_START_PHASES
} bl_start_phase_t;

#define BL_START_TEXT 256

// State of an edge buffer in addition to its use by operations.
typedef struct bl_edge_state {
  // The current or last send.
  bool pending; // not known to be sent
  bool held;    // pending and not yet given to the transport, because the device still uses the buffer
  bool direct;  // the buffer itself is sent, not its twin
  uint32_t peer;
  uint64_t bytes;
  bl_tensor_key_t key;
  // A direct receive that is not yet given to the transport, because the device still uses the buffer.
  bool wanted;
  uint32_t wanted_from;
  bl_tensor_key_t wanted_key;
  // On an asynchronous device; NULL elsewhere.
  bl_device_event_t *ready;      // the buffer holds what is to be sent
  bl_device_event_t *copied_out; // what is to be sent is in the twin; direct: in the buffer
  // What was received was copied from the twin; direct: the buffer's old content is no longer needed.
  bl_device_event_t *taken;
} bl_edge_state_t;

typedef enum bl_block_place {
  BL_BLOCK_HOME,      // in its slot, or not yet computed
  BL_BLOCK_LEAVING,   // being evicted
  BL_BLOCK_PARKED,    // kept by the parking
  BL_BLOCK_RETURNING, // being loaded
  BL_BLOCK_DROPPED,   // dropped at its eviction; must be recomputed
  BL_BLOCK_LOST,      // lost at its load; must be recomputed
} bl_block_place_t;

// One activation block of the run, executor/parked.h.
typedef struct bl_engine_block {
  bl_block_place_t place;
  uint32_t input;           // edge buffer of its x
  uint32_t slot;            // slot where it is, from which it leaves, or into which it is loaded
  bl_parked_block_t parked; // as it was evicted
  // The device is to hash the block as it left, and as it was loaded; the hashes are valid at the end of the run.
  bool hashed, checked;
} bl_engine_block_t;

// The eviction from a slot.
typedef struct bl_engine_leaving {
  bl_engine_block_t *block; // NULL: none
  uint32_t free_before_op;  // the plan counts the slot as free before this operation
} bl_engine_leaving_t;

// What the copies of a chunk add up and distribute as one message (bl_chunk_message), or a second gradient.
typedef struct bl_engine_shared {
  uint32_t chunk;  // index in engine->chunks
  uint32_t number; // of the message in its chunk, the same on all ranks with a copy; second gradients follow the others
  float *weight;   // NULL for a second gradient
  float *gradient;
  uint64_t elements;
  uint32_t owner;  // copy that updates it
  float *received; // if that is this copy, gradients from the other copies: [copies - 1], each on its own cache line
} bl_engine_shared_t;

// What the compute thread does while it waits for its device, its blocks or other tensor ranks: it gives the transport
// what the device has finished since. Somebody may need that before the wait can end: a device that shares its layers
// waits for the devices of other ranks, whose CPUs wait for tensors. Set by the executor during a run.
typedef struct bl_engine_meanwhile {
  bl_status_t (*give)(void *context, bool *pending, bl_error_t *err); // *pending: more will follow. NULL: nothing to do
  void *context;
} bl_engine_meanwhile_t;

// Longest pause between two calls of `meanwhile`; 20 us if tensors move directly (engine_wait.c).
#define BL_ENGINE_POLL_NS UINT64_C(200000)

typedef struct bl_engine {
  bl_job_t job;
  bl_training_t training;
  uint32_t rank;
  bl_coords_t coords; // of the rank
  uint64_t applied;   // step of its weights when the engine was created; 0 without a checkpoint
  bl_device_t *device;
  bl_device_stream_t *stream;  // of the operations, owned by `compute`; NULL: operations have ended when they return
  bl_device_stream_t *copies;  // copies to and from twins
  bl_device_event_t *finished; // for bl_engine_finish
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_host_optimizer_t *host; // updates the chunks (train.optimizer_memory: host); NULL: the device does
  bl_engine_chunk_t *chunks;
  uint32_t chunk_count;
  bl_engine_shared_t *shared; // [shared_count], executor/replicas.h
  uint32_t shared_count;
  struct bl_tensor_group *tensor_group; // executor/tensor_group.h; NULL: this rank has whole layers
  bool has_group;                       // on a device: its communicator exists
  uint64_t sums_at, received_at;        // offsets in the gradients arena: waiting sums, what other copies send

  bl_memory_account_t account;
  bl_arena_t weights, gradients, optimizer, edges, workspace, data, snapshot_memory; // optimizer: on device or host
  bl_arena_t exchange_buffers; // of the tensor group (model/exchange_buffers.h)
  bl_arena_t kv_cache;         // executor/kv_cache.h: pages, then pages of gradients; empty without slices
  // In pinned memory of the host; none before bl_engine_allocate_edge_twins. Those of weights and gradients are for
  // what the copies of a chunk exchange; that of gradients leaves out the waiting sums.
  bl_arena_t edge_twins, tied_twins, weight_twins, gradient_twins;
  bl_segments_t slots;      // slots.count of them exist: the stage's own slots
  bl_segments_t slot_twins; // as many, in pinned memory of the host; none before bl_engine_allocate_slot_twins
  uint32_t slot_count;      // maximum over all plans
  uint32_t edge_count;      // maximum over all plans; the first edges_allocated of them have memory
  uint32_t edges_allocated;
  uint32_t page_count, page_gradient_count; // of the KV cache: maximum over all plans
  uint64_t slot_bytes;                      // of one slot, a multiple of 64
  uint64_t edge_bytes;                      // of one edge buffer, a multiple of 64
  uint64_t page_bytes, page_gradient_bytes;
  void **pages;                     // [slices], of the operation in progress; NULL without slices
  float **page_gradients;           // likewise
  bl_edge_state_t *edge_states;     // [edge_count], executor/edges.h
  uint32_t square_count;            // sums of squares that this rank reports
  bl_chunk_t *tied;                 // chunk of copy 0 whose tied gradient needs the part of another chunk, or NULL
  bl_chunk_t *tied_partner;         // that other chunk, if a V-shaped schedule puts both on this stage
  uint32_t tied_peer;               // rank that has the other part
  float *tied_part;                 // the part received from that rank, [vocab, hidden]
  uint32_t batch_count;             // buffers for tokens, and for labels: micro-batch i uses number i mod batch_count
  int32_t *tokens;                  // [batch_count, slices, micro_batch, seq / slices]
  int32_t *labels;                  // likewise
  bl_chunk_loss_t *losses;          // [micro_batches, slices], written by the head
  double *squares;                  // [square_count], for the vote
  uint64_t *block_hashes;           // [blocks][2], by ops->checksum: of a block as it left, and as it was loaded
  uint64_t free_bytes_when_planned; // free bytes of the device when the plan was compared with them
  uint64_t device_bytes;            // bytes planned on it, except slots
  bool memory_told;
  uint64_t start_ns[BL_START_PHASES]; // duration of each phase
  uint64_t drains;                    // times that the CPU waited for all work queued on the device (bl_engine_finish)

  bl_snapshot_t *snapshot; // NULL: the job writes no checkpoints
  bl_arena_t shadow;       // executor/shadow.h; empty: updates wait for their commit

  bl_engine_meanwhile_t meanwhile;
  bl_parking_t *parking;          // where evicted blocks are kept; set by the owner between runs, NULL: nowhere
  bl_engine_block_t *blocks;      // [chunk_count, micro_batches, slices]
  bl_engine_leaving_t *leaving;   // [slot_count]
  bl_device_event_t **slot_marks; // [slot_count] of a slot: reached after the work queued before its transfer

  bl_core_tokens_t *core_tokens; // taken for each operation; NULL: every stage has a core of its own

  bl_transport_t *transport;
  // When the attempt began: the ranks that the transport reached directly, and whether buffers had twins.
  uint32_t direct[BL_TRANSPORT_MAX_PEERS];
  uint32_t direct_count;
  bool has_twins;
  bool few_processors; // fewer than two per rank known to be on this machine, when the attempt began
  bl_trace_t *trace;   // of the last run
  // Waits of the last run inside operations, which the trace does not have as events: for other tensor ranks, and then
  // for a core again.
  uint64_t waited_inside_ns, core_inside_ns;
  bl_timeline_t *timeline;        // on an asynchronous device; NULL elsewhere
  bl_nccl_engine_t *nccl;         // of this process and its device, for other stages and stores; NULL: none
  bl_block_memory_t block_memory; // description of the device for peers
} bl_engine_t;

// Reads the job's files, loads or draws weights. BL_INVALID, BL_NOT_FOUND, BL_IO, ...: the job or its files, as
// bl_training_init. BL_EXHAUSTED: memory, naming tag and bytes. On failure nothing is left behind.
BL_MUST_USE bl_status_t bl_engine_create(const bl_engine_options_t *options, bl_engine_t **engine, bl_error_t *err);
void bl_engine_destroy(bl_engine_t *engine); // NULL is fine
// Formats the duration of the engine's creation: "8.214 s: job 0.010, device 0.912, ...", without phases of less than a
// millisecond.
const char *bl_engine_start_text(const bl_engine_t *engine, char text[BL_START_TEXT]);

// Sets the number of the stage's own slots, between runs. Slots that remain keep their content. BL_EXHAUSTED: memory,
// or more than slot_count; then the number is unchanged.
BL_MUST_USE bl_status_t bl_engine_resize_slots(bl_engine_t *engine, uint32_t count, bl_error_t *err);

// Gives every slot a twin, pinned memory of the host through which blocks leave, from now on. Call it between runs.
// Does nothing if the CPU reaches the device's memory. BL_EXHAUSTED: there are no twins then.
BL_MUST_USE bl_status_t bl_engine_allocate_slot_twins(bl_engine_t *engine, bl_error_t *err);

// Gives every edge buffer, and a tied gradient that another stage needs, a twin in pinned memory of the host, from now
// on: tensors will or may be sent to another stage through the host. Not while a run uses twins. BL_EXHAUSTED: there
// are no twins then.
BL_MUST_USE bl_status_t bl_engine_allocate_edge_twins(bl_engine_t *engine, bl_error_t *err);

// Checks, before a plan takes `coming_bytes` more of the device, that they are free. Handles of libraries, kernels and
// communicators exist by then, and plans know little of their size. The first call logs what those have taken.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_engine_check_memory(bl_engine_t *engine, uint64_t coming_bytes, bl_error_t *err);

// Allocates edge buffers until there are at least `count`, between runs. None is freed before the engine is. Does
// nothing on a device that has all of them from the start. BL_EXHAUSTED: memory, or more than edge_count; then the
// number is unchanged.
BL_MUST_USE bl_status_t bl_engine_allocate_edges(bl_engine_t *engine, uint32_t count, bl_error_t *err);

// Calls engine->meanwhile. *pending: call it again soon.
BL_MUST_USE bl_status_t bl_engine_give(bl_engine_t *engine, bool *pending, bl_error_t *err);
// Calls `wait` again and again until it succeeds, fails or the deadline passes, and engine->meanwhile in between. Each
// call of `wait` has a deadline of its own (BL_DEADLINE).
typedef bl_status_t (*bl_engine_wait_fn)(bl_engine_t *engine, const void *what, uint64_t deadline_ns, bl_error_t *err);
BL_MUST_USE bl_status_t bl_engine_wait_for(bl_engine_t *engine, bl_engine_wait_fn wait, const void *what,
                                           uint64_t deadline_ns, bl_error_t *err);
// The same for a tensor: `wait` is bl_transport_wait_received or bl_transport_wait_sent.
typedef bl_status_t (*bl_engine_transport_wait_fn)(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                                   uint64_t deadline_ns, bl_error_t *err);
BL_MUST_USE bl_status_t bl_engine_wait_transport(bl_engine_t *engine, bl_engine_transport_wait_fn wait, int32_t peer,
                                                 bl_tensor_key_t key, uint64_t deadline_ns, bl_error_t *err);
// Waits until the device has reached the event, and calls engine->meanwhile until then.
BL_MUST_USE bl_status_t bl_engine_wait(bl_engine_t *engine, bl_device_event_t *event, uint64_t deadline_ns,
                                       bl_error_t *err);
// Waits until all work queued on the device has ended, and calls engine->meanwhile. BL_DEADLINE; BL_INTERNAL: compute.
BL_MUST_USE bl_status_t bl_engine_finish(bl_engine_t *engine, bl_error_t *err);

// Blocks of one chunk in a step: micro-batches, or slices of them.
static inline uint32_t bl_engine_units(const bl_engine_t *engine) {
  return engine->training.schedule->micro_batches * engine->training.schedule->slices;
}
// Returns the chunk of a virtual stage of this stage. The caller has checked that it exists.
bl_engine_chunk_t *bl_engine_find_chunk(const bl_engine_t *engine, uint32_t virtual_stage);
bl_chunk_t *bl_engine_chunk(const bl_engine_t *engine, uint32_t virtual_stage);
static inline void *bl_engine_slot(const bl_engine_t *engine, uint32_t index) {
  return bl_segments_at(&engine->slots, index);
}
static inline void *bl_engine_edge(const bl_engine_t *engine, uint32_t index) {
  return engine->edges.base + index * engine->edge_bytes;
}
// The device in whose memory weights and moments are updated.
static inline bl_device_t *bl_engine_updating_device(const bl_engine_t *engine) {
  return engine->host != NULL ? bl_device_host() : engine->device;
}
// Returns the memory that a data path of the host uses for an edge buffer or a slot: its twin, or itself.
static inline void *bl_engine_edge_twin(const bl_engine_t *engine, uint32_t index) {
  return engine->device->host_memory ? bl_engine_edge(engine, index)
                                     : engine->edge_twins.base + index * engine->edge_bytes;
}
static inline void *bl_engine_slot_twin(const bl_engine_t *engine, uint32_t index) {
  return engine->device->host_memory ? bl_engine_slot(engine, index) : bl_segments_at(&engine->slot_twins, index);
}
// The rank of stage `stage` of the same plane: the same replica and the same tensor index.
static inline uint32_t bl_engine_rank_of(const bl_engine_t *engine, uint32_t stage) {
  bl_coords_t coords = engine->coords;
  coords.stage = stage;
  return bl_grid_rank(&engine->training.grid, coords);
}
// Gradient sums that wait in addition to the one being accumulated (model/fold.h).
static inline uint32_t bl_engine_fold_levels(const bl_engine_t *engine) {
  return bl_fold_levels(bl_grid_copy_parts(&engine->training.grid));
}
// Copies of every chunk, over replicas and pipes.
static inline uint32_t bl_engine_copies(const bl_engine_t *engine) {
  return bl_copies_count(bl_grid_copies(&engine->training.grid));
}
// Whether weights are exchanged through the place of their gradients (compute/model/chunk_masters.c).
static inline bool bl_engine_shares_masters(const bl_engine_t *engine) {
  return bl_resident_shares_masters(engine->training.layout.dtype, bl_grid_copies(&engine->training.grid),
                                    engine->host != NULL);
}
// The rank with this copy of the chunk.
static inline uint32_t bl_engine_copy_rank(const bl_engine_t *engine, const bl_engine_chunk_t *chunk, uint32_t copy) {
  const bl_grid_t *grid = &engine->training.grid;
  const uint32_t pipes = bl_copies_pipes(bl_grid_copies(grid));
  bl_coords_t coords = engine->coords;
  coords.stage = copy % pipes == chunk->pipe ? coords.stage : grid->stages - 1 - coords.stage;
  coords.data = copy / pipes;
  return bl_grid_rank(grid, coords);
}
// The number of this replica's first micro-batch in a run with `count` micro-batches per replica.
static inline uint32_t bl_engine_first_micro_batch(const bl_engine_t *engine, uint32_t count) {
  return engine->coords.data * count;
}
// Formats this rank's name for messages into `text` and returns it.
static inline const char *bl_engine_name(const bl_engine_t *engine, char text[BL_GRID_NAME_BYTES]) {
  return bl_grid_name(&engine->training.grid, engine->rank, text);
}
// Notes by which paths other ranks are reached, which does not change during an attempt: if a link is lost meanwhile,
// nothing moves over it any more, and the transport reports that.
void bl_engine_note_paths(bl_engine_t *engine);
// Whether tensors of a rank are moved from and to the device's own memory, and not a twin. False for memory of the
// host. Without twins it can only be the device's own memory.
bool bl_engine_is_direct(const bl_engine_t *engine, uint32_t rank);
// Writes the ranks that this one exchanges tensors with, ascending, at most `capacity`. Returns their number.
uint32_t bl_engine_peers(const bl_engine_t *engine, uint32_t *peers, uint32_t capacity);

#endif

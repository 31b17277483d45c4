// SPDX-License-Identifier: Apache-2.0
// Transports: they move boundary tensors between stage processes. A transport is one stage's end of the links to all
// its peers. It listens on a unix socket and on a TCP port, and moves tensors on a transfer thread. The compute thread
// only posts and waits.
//
//   bl_transport_t *transport;
//   bl_transport_create(&(bl_transport_options_t){.stage = 1, .unix_path = "/run/x/1.data", .tcp_host = "127.0.0.1",
//                                                 .arenas = &edges, .arena_count = 1}, &transport, err);
//   ... peers receive bl_transport_unix_address(transport), bl_transport_tcp_address(transport),
//       bl_transport_token(transport) and bl_transport_machine(transport) ...
//   bl_transport_connect_wait(transport, peers, 2, BL_PATH_AUTO, deadline_ns, err);
//   bl_transport_begin(transport, attempt, err);
//   key = (bl_tensor_key_t){.boundary = 1, .direction = BL_FORWARD, .micro_batch = 3};
//   bl_transport_post_receive(transport, 0, key, x, bytes, err);
//   bl_transport_wait_received(transport, 0, key, deadline_ns, err);  // compute thread; x is complete on return
//   bl_transport_post_send(transport, 2, key, y, bytes, err);         // returns at once; y must not change until sent
//
// Paths. Only the owner of a destination writes it, on every path.
//   shm: the sender's arenas are sealed memfds that the peer maps read-only when the link comes up. A send is a small
//        message. The receiver copies once from the map into its posted destination and acknowledges.
//   tcp: a posted receive is a credit for the sender, which then streams directly from the source in chunks of 256 KiB,
//        each with an XXH3 checksum. The receiver reads directly into the destination and verifies.
//   cuda-ipc: for ends that have GPUs of one machine and can map each other's GPU memory. As shm, but the arenas are
//        the GPU's (bl_transport_is_direct) and the receiver's copy engine pulls. If a peer dies during a copy, its
//        memory stays until the copy is over. An unresponsive peer delays only those who wait for its tensors.
//   nccl: for ends that have the same NCCL. Tensors move from device to device (bl_transport_is_direct) on two
//        communicators per pair, one per direction, which are created with the link, in one order over all pairs. A
//        posted receive is a credit, as on tcp. When both ends are ready, both queue their half, the sender first. If a
//        transfer misses its deadline, or one end aborts an attempt while the other sends, the pair loses its
//        communicators: the tensors on them are lost with the cause, and the pair creates communicators of a new
//        generation. Other pairs are not affected. The link itself is shm or tcp, and carries the frames.
//
// Lifetime rules
//   0. On cuda-ipc and nccl sources and destinations are addresses of the device. When they are posted, the device must
//      have finished its work on them. After a wait, operations that are then queued on the device find the tensor.
//   1. Keys are unique within one attempt, link and direction of travel (send or receive).
//   2. The source of a send must not change until bl_transport_wait_sent returns BL_OK. On shm and cuda-ipc it must lie
//      in an arena of the options.
//   3. The destination of a receive belongs to the transport from the post to the successful wait, or to the next
//      bl_transport_begin.
//   4. A receive may be posted over a buffer whose send is still in flight if the peer can compute that tensor only
//      from that send (y is sent, dy is received): when dy arrives, the send is over.
//   5. bl_transport_begin(a) returns only when no transfer of an older attempt touches memory of this process any more.
//      Messages of older attempts are then dropped. Those of newer attempts (the peer is ahead) are kept.
//   6. After bl_transport_abort, posts and waits return BL_CANCELLED until the next bl_transport_begin.
//   7. When a peer is lost, waits on it return BL_UNAVAILABLE (end of stream, reset), BL_DATA_LOSS (checksum) or
//      BL_INTERNAL (protocol violation) with the cause. A receive that was complete before is still delivered.
//      bl_transport_connect creates a new link.
//   8. A mapped arena of a peer (bl_transport_peer_arena) can be read until the next bl_transport_begin, or destroy,
//      even if the peer is lost. It then stays as the peer left it.
//
// Thread: create, destroy and connect from the owner thread; begin, post, wait and peer arenas from one compute thread;
// abort, waits, path and counters from any thread. Nothing here allocates between connect and destroy.
#ifndef BALLAST_DATAPATH_BOUNDARY_H
#define BALLAST_DATAPATH_BOUNDARY_H

#include "base/error.h"
#include "datapath/block_memory.h"
#include "datapath/frame.h"
#include "datapath/key.h"
#include "datapath/nccl/engine.h"
#include "datapath/path.h"
#include "device/device.h"
#include "loop/thread.h"
#include "tls/tls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_TRANSPORT_TOKEN_BYTES   16  // 128 random bits
#define BL_TRANSPORT_MAX_PEERS     256 // bounds the memory of link tables
#define BL_TRANSPORT_MAX_ARENAS    8   // bounds the descriptors in one handshake message
#define BL_TRANSPORT_ADDRESS_BYTES 160
#define BL_TRANSPORT_MACHINE_BYTES 96
#define BL_TRANSPORT_REASON_BYTES  192

typedef struct bl_transport bl_transport_t;

typedef struct bl_transport_options {
  // Number of this end among all ends. With several replicas of a pipeline it is the rank.
  int32_t stage;
  uint32_t replica_stages;   // stages of a replica, for messages; 0: there is one replica
  uint32_t tensor_ranks;     // ranks that share a stage's layers, for messages; 0: one
  const char *unix_path;     // socket file to create (removed by destroy); NULL: no shm
  const char *tcp_host;      // numeric address or name to bind, port 0; NULL: no tcp
  const char *tcp_advertise; // host that peers should use when tcp_host is a wildcard; NULL: tcp_host
  // Of kind BL_ARENA_SHAREABLE; sends leave from them. Copied; their memory outlives the transport.
  const bl_arena_t *arenas;
  size_t arena_count; // <= BL_TRANSPORT_MAX_ARENAS
  // A GPU that owns `arenas` and whose copy engine pulls on cuda-ipc; outlives the transport. NULL: arenas of the host.
  bl_device_t *device;
  // With a device: creates the twins, arenas of the host that sends leave from if tensors do not move from device to
  // device. Called on the transfer thread when the first link may need them. At most BL_TRANSPORT_MAX_ARENAS; copied.
  // May fail.
  bl_status_t (*make_twins)(void *context, bl_arena_t *twins, size_t *count, bl_error_t *err);
  void *context;          // of make_twins
  uint32_t max_in_flight; // tensors announced or posted per link and direction of travel; 0: 1024
  bl_tls_t *tls;          // mutual TLS on tcp, peers must be stages; outlives the transport. NULL: plaintext
  bool plaintext_ok;      // allows tcp off the loopback interface without TLS
  const char *machine;    // NULL: bl_machine_text (machine.h)
  bl_nccl_engine_t *nccl; // of the device that holds the tensors; outlives the transport. NULL: none
  const bl_block_memory_t *block_memory; // describes this end's memory to peers; copied. NULL: memory of the host
  // The transfer thread, possibly shared; outlives the transport. NULL: the transport has its own.
  bl_loop_thread_t *thread;
} bl_transport_options_t;

typedef struct bl_transport_peer {
  int32_t stage;
  const char *unix_address; // "unix:/path"; "" or NULL: none
  const char *tcp_address;  // "host:port"; "" or NULL: none
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
  const char *machine;
  // Only notes go to and from it, whatever path is requested: no communicators, no memory that the peer can reach. Both
  // ends say the same.
  bool notes_only;
} bl_transport_peer_t;

// Starts listening. BL_INVALID (options), BL_DENIED (not loopback and not plaintext_ok), BL_IO.
BL_MUST_USE bl_status_t bl_transport_create(const bl_transport_options_t *options, bl_transport_t **transport,
                                            bl_error_t *err);
// Aborts, closes every link, leaves the transfer thread and removes the socket file. A pending connect ends with
// BL_CANCELLED first. No other call may be in progress; waits must have returned before (see abort). Not from the
// transfer thread.
void bl_transport_destroy(bl_transport_t *transport);

const char *bl_transport_unix_address(const bl_transport_t *transport); // "unix:/path", "" if none
const char *bl_transport_tcp_address(const bl_transport_t *transport);  // "127.0.0.1:40123", "[::1]:40123", "" if none
const uint8_t *bl_transport_token(const bl_transport_t *transport);     // BL_TRANSPORT_TOKEN_BYTES, drawn by create
const char *bl_transport_machine(const bl_transport_t *transport);

// Connects to every peer. A link to a peer with the same token is kept. The stage with the lower number opens the link
// and chooses the path. `auto` is cuda-ipc if both machine texts are equal and each end can map the other's memory;
// else nccl if nothing prevents it (choice.h) and communicators can be created; else shm if both machine texts are
// equal and mapping the peer's arenas works; else tcp. BL_PRECONDITION: `cuda-ipc` or `nccl` was requested and is not
// possible. `done` is called once, on the transfer thread, with BL_OK or with the first peer that failed; it must not
// call the transport. Call this on all stages at once (or in ascending order): the higher stage waits. If this function
// itself fails, `done` is not called: BL_INVALID (peers), BL_PRECONDITION (a connect is in progress).
typedef void (*bl_transport_connected_fn)(void *user, bl_status_t status, const bl_error_t *err);
BL_MUST_USE bl_status_t bl_transport_connect(bl_transport_t *transport, const bl_transport_peer_t *peers,
                                             size_t peer_count, bl_path_t path, uint64_t deadline_ns,
                                             bl_transport_connected_fn done, void *user, bl_error_t *err);
// The same, but waits for the outcome.
BL_MUST_USE bl_status_t bl_transport_connect_wait(bl_transport_t *transport, const bl_transport_peer_t *peers,
                                                  size_t peer_count, bl_path_t path, uint64_t deadline_ns,
                                                  bl_error_t *err);

typedef struct bl_transport_path {
  int32_t peer;
  bool connected;
  bl_path_t path; // BL_PATH_AUTO while there is no link
  char reason
      [BL_TRANSPORT_REASON_BYTES]; // "shm: same machine", "nccl: both ends have NCCL 2.28.9, ...", or why it was lost
  // Bytes of the peer's arenas that are mapped here (shm, cuda-ipc). It is the peer's memory.
  uint64_t mapped_bytes;
} bl_transport_path_t;
// Fills up to `capacity` entries, ascending by peer; returns how many peers there are.
size_t bl_transport_paths(bl_transport_t *transport, bl_transport_path_t *paths, size_t capacity);

// Returns whether tensors of this peer move from device to device: posts then give addresses of the device. It does not
// change between connects.
bool bl_transport_is_direct(bl_transport_t *transport, int32_t peer);

// Returns whether no communicators are being created with any peer.
bool bl_transport_is_whole(bl_transport_t *transport);

// Makes `attempt` (> 0, above the last) the only valid one. See lifetime rules 5 and 6. BL_PRECONDITION otherwise.
BL_MUST_USE bl_status_t bl_transport_begin(bl_transport_t *transport, uint64_t attempt, bl_error_t *err);

// Offers `destination` for the tensor `key` of `peer`. Post as soon as the buffer is free. BL_UNAVAILABLE (peer lost),
// BL_CANCELLED, BL_EXHAUSTED (max_in_flight), BL_PRECONDITION (key already posted), BL_INVALID (bytes 0, unknown peer).
BL_MUST_USE bl_status_t bl_transport_post_receive(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                                  void *destination, uint64_t bytes, bl_error_t *err);
// Sends `bytes` at `source`; never blocks. Failures as above; BL_INVALID also if the link is shm and the source lies in
// no arena of the options.
BL_MUST_USE bl_status_t bl_transport_post_send(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                               const void *source, uint64_t bytes, bl_error_t *err);
// Waits until the posted receive is complete and forgets it. BL_DEADLINE leaves it posted. Spins briefly, then sleeps.
// deadline_ns is on bl_clock_now_ns(); UINT64_MAX waits until the tensor, an abort or the loss of the peer.
BL_MUST_USE bl_status_t bl_transport_wait_received(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                                   uint64_t deadline_ns, bl_error_t *err);
// Waits until the source of a send may be overwritten. Returns BL_OK at once if no such send is in flight.
BL_MUST_USE bl_status_t bl_transport_wait_sent(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                               uint64_t deadline_ns, bl_error_t *err);
// Returns true if bl_transport_wait_received would return at once.
bool bl_transport_received(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key);
// Likewise of bl_transport_wait_sent.
bool bl_transport_sent(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key);

// Returns where arena number `arena` of this peer is mapped, read-only, by rule 8. It serves data that is read without
// a message (lib/collective). Arenas are numbered as in the peer's options, without empty ones. BL_PRECONDITION: the
// path to the peer is not shm, or no attempt has begun; BL_INVALID (unknown peer or arena), BL_UNAVAILABLE and the like
// (peer lost), BL_CANCELLED.
BL_MUST_USE bl_status_t bl_transport_peer_arena(bl_transport_t *transport, int32_t peer, size_t arena,
                                                const uint8_t **base, uint64_t *bytes, bl_error_t *err);
// Returns whether the peer can still write the arenas that bl_transport_peer_arena returned in this attempt: the link
// is the same and up. A peer that was lost and has a new link has other arenas. Cheap enough to call every few
// milliseconds.
bool bl_transport_peer_arenas_live(bl_transport_t *transport, int32_t peer);

// A note is a message from this compute thread to that of a peer, for what ranks agree on between their operations on
// devices. Numbers are unique within an attempt, in each direction. An end posts its next note to a peer only when it
// has read the peer's last one, so that few wait. Failures as for posts and waits of tensors; BL_UNAVAILABLE also if the
// link is another one than when the attempt began, because notes may be lost with a link.
#define BL_NOTE_BYTES BL_FRAME_NOTE_BYTES
BL_MUST_USE bl_status_t bl_transport_post_note(bl_transport_t *transport, int32_t peer, uint32_t number,
                                               const uint8_t body[BL_NOTE_BYTES], bl_error_t *err);
BL_MUST_USE bl_status_t bl_transport_wait_note(bl_transport_t *transport, int32_t peer, uint32_t number,
                                               uint64_t deadline_ns, uint8_t body[BL_NOTE_BYTES], bl_error_t *err);

// Wakes every wait with BL_CANCELLED. Idempotent.
void bl_transport_abort(bl_transport_t *transport);

typedef struct bl_transport_wait {
  char what[96]; // "activation 3 of boundary 1 from stage 0", "link from stage 0"
  int32_t peer;
  int32_t micro_batch; // -1 if none
  uint64_t since_ns;   // bl_clock_now_ns() when the wait began
} bl_transport_wait_t;
// Returns how many threads wait in the transport now, and describes up to `capacity` of them.
size_t bl_transport_waits(bl_transport_t *transport, bl_transport_wait_t *waits, size_t capacity);

typedef struct bl_transport_counters {
  uint64_t tensors_sent;
  uint64_t tensors_received;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  // The part of bytes_sent to peers on another machine, by their machine texts.
  uint64_t cross_machine_bytes;
  // Copied by the CPU in this process: equals bytes_received on shm (one copy). On tcp only the rest of a chunk of an
  // aborted attempt.
  uint64_t bytes_copied;
  uint64_t stale_dropped; // messages of older attempts
  uint64_t links_refused; // connections that failed the handshake
  uint64_t links_lost;
} bl_transport_counters_t;
bl_transport_counters_t bl_transport_counters(bl_transport_t *transport);
// Returns the cross_machine_bytes that were added since the last call. A send may end after the run that posted it; its
// remaining bytes are counted in the next call.
uint64_t bl_transport_take_cross_machine_bytes(bl_transport_t *transport);

#endif

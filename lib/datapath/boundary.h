// SPDX-License-Identifier: Apache-2.0
// Moves boundary tensors between stage processes. A transport is one stage's end of all its links: it listens on a unix
// socket and on a TCP port, and moves them on a transfer thread, so that the compute thread only posts and waits.
//
//   bl_transport_t *transport;
//   bl_transport_create(&(bl_transport_options_t){.stage = 1, .unix_path = "/run/x/1.data", .tcp_host = "127.0.0.1",
//                                     .arenas = &edges, .arena_count = 1}, &transport, err);
//   ... bl_transport_unix_address(transport), bl_transport_tcp_address(transport), bl_transport_token(transport), bl_transport_machine(transport) go to the peers ...
//   bl_transport_connect_wait(transport, peers, 2, BL_PATH_AUTO, deadline_ns, err);
//   bl_transport_begin(transport, attempt, err);
//   bl_transport_post_receive(transport, 0, (bl_tensor_key_t){.boundary = 1, .direction = BL_FORWARD, .micro_batch = 3}, x, bytes, err);
//   bl_transport_wait_received(transport, 0, key, deadline_ns, err);       // compute thread; x is whole
//   bl_transport_post_send(transport, 2, key, y, bytes, err);              // returns at once; y must stay as it is until sent
//
// Paths. Only the owner of a destination writes it, on every path.
//   shm: a sender's arenas are sealed memfds that its peer mapped read-only when the link was made. A send is a small
//        message; the receiver pulls with one copy into its posted destination and acknowledges.
//   tcp: a posted receive is a credit for the sender, which then streams straight from the source in chunks of
//        256 KiB, each with an XXH3 checksum; the receiver reads straight into the destination and verifies.
//   cuda-ipc: where both ends have a GPU of one machine and can map each other's memory of it. As shm, but the arenas are the
//        GPU's (bl_transport_is_direct) and the receiver's copy engine pulls. A peer that dies in the middle leaves its memory until
//        the copy is over; one that stands still holds nobody up but those who wait for its tensors.
//   nccl: where both ends have the same NCCL, tensors go from device to device (bl_transport_is_direct) on two communicators
//        per pair, one per direction, which are made when the link is, in one order over all pairs. A posted receive is a
//        credit, as on tcp; both ends queue their half when both are ready, the sender first. A transfer that does not
//        end in time, or an attempt that one end gave up while the other sends, costs the pair its communicators: what
//        was on them is lost with the cause, and they are made again under a new generation. Other pairs are untouched.
//        The link itself is shm or tcp, and carries the words.
//
// Lifetime rules
//   0. On cuda-ipc and nccl sources and destinations are addresses of the device, which has nothing more to do with them when posted;
//      when a wait is over, what the device is told next finds the tensor.
//   1. Keys are unique within one attempt, link and direction of travel (send or receive).
//   2. The source of a send must not change until bl_transport_wait_sent says so; on shm and cuda-ipc it must lie in an arena of
//      the options.
//   3. The destination of a receive belongs to the transport from post to the successful wait, or to the next bl_transport_begin.
//   4. A receive may be posted over a buffer whose send is still in flight when the peer can compute that tensor only
//      from that send (y goes out, dy comes back): by the time it arrives the send is over.
//   5. bl_transport_begin(a) returns only when no transfer of an older attempt touches memory of this process any more.
//      Messages of older attempts are then dropped; those of newer ones (the peer is ahead) are kept.
//   6. After bl_transport_abort, posts and waits give BL_CANCELLED until the next bl_transport_begin.
//   7. When a peer is lost, waits on it give BL_UNAVAILABLE (end of stream, reset), BL_DATA_LOSS (checksum) or
//      BL_INTERNAL (protocol violation) with the cause; a receive that was complete before still counts.
//      bl_transport_connect makes a new link.
//   8. Where an arena of a peer is mapped (bl_transport_peer_arena) can be read until the next bl_transport_begin, or destroy, even if
//      the peer is lost meanwhile: then it stays as the peer left it.
//
// Thread: create, destroy and connect from the owner thread; begin, post, wait and arenas of peers from one compute
// thread; abort, waits, path and counters from any. Nothing here allocates between connect and destroy.
#ifndef BALLAST_DATAPATH_BOUNDARY_H
#define BALLAST_DATAPATH_BOUNDARY_H

#include "base/error.h"
#include "datapath/endpoint.h"
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
  int32_t stage;             // number of this end among all; with several replicas of a pipeline its rank
  uint32_t replica_stages;   // stages of a replica, for messages; 0: there is one
  uint32_t tensor_ranks;     // ranks that share a stage's layers, for messages; 0: one
  const char *unix_path;     // socket file to create (removed by destroy); NULL: no shm
  const char *tcp_host;      // numeric address or name to bind, port 0; NULL: no tcp
  const char *tcp_advertise; // host that peers should use when tcp_host is a wildcard; NULL: tcp_host
  const bl_arena_t
      *arenas;        // BL_ARENA_SHAREABLE arenas that sends leave from; copied, their memory outlives the transport
  size_t arena_count; // <= BL_TRANSPORT_MAX_ARENAS
  bl_device_t
      *device; // of a GPU: `arenas` are of it, and its copy engine pulls on cuda-ipc; outlives the transport. NULL:
               // they are the host's
  // With a device: the arenas of the host that sends leave from where tensors do not go from device to device, made
  // when the first link may need them, on the transfer thread. At most BL_TRANSPORT_MAX_ARENAS; copied. May fail.
  bl_status_t (*make_twins)(void *context, bl_arena_t *twins, size_t *count, bl_error_t *err);
  void *context;                 // of make_twins
  uint32_t max_in_flight;        // tensors announced or posted per link and direction of travel; 0: 1024
  bl_tls_t *tls;                 // mutual TLS on tcp, stages only; outlives the transport. NULL: plaintext
  bool plaintext_ok;             // allows tcp off the loopback interface without TLS
  const char *machine;           // NULL: bl_machine_text (machine.h)
  bl_nccl_engine_t *nccl;        // of the device that tensors lie on; outlives the transport. NULL: none
  const bl_endpoint_t *endpoint; // what peers are told of it; copied. NULL: memory of the host
  bl_loop_thread_t *thread; // the transfer thread, which it may share; outlives the transport. NULL: one of its own
} bl_transport_options_t;

typedef struct bl_transport_peer {
  int32_t stage;
  const char *unix_address; // "unix:/path"; "" or NULL: none
  const char *tcp_address;  // "host:port"; "" or NULL: none
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
  const char *machine;
} bl_transport_peer_t;

// Starts listening. BL_INVALID (options), BL_DENIED (not loopback and not plaintext_ok), BL_IO.
BL_MUST_USE bl_status_t bl_transport_create(const bl_transport_options_t *options, bl_transport_t **transport,
                                            bl_error_t *err);
// Aborts, closes every link, leaves the transfer thread, removes the socket file. A pending connect ends with
// BL_CANCELLED first. No other call may be in progress except waits, which must have returned before (see abort).
// Not from the transfer thread.
void bl_transport_destroy(bl_transport_t *transport);

const char *bl_transport_unix_address(const bl_transport_t *transport); // "unix:/path", "" when none
const char *bl_transport_tcp_address(const bl_transport_t *transport); // "127.0.0.1:40123", "[::1]:40123", "" when none
const uint8_t *bl_transport_token(const bl_transport_t *transport);    // BL_TRANSPORT_TOKEN_BYTES, drawn by create
const char *bl_transport_machine(const bl_transport_t *transport);

// Makes a link to every peer; those that have one to the same token are left as they are. The stage with the lower
// number opens the link and chooses the path: `auto` is cuda-ipc if both machine texts are equal and both can map the
// other's memory, else nccl if nothing speaks against it (choice.h) and communicators come about, else shm if both
// machine texts are equal and mapping the peer's arenas works, else tcp; BL_PRECONDITION when `cuda-ipc` or `nccl` is
// asked for and cannot be. `done` is called once, from the transfer thread, with BL_OK or with the first peer that
// failed; it must not call the transport. Call it on all stages at once (or in ascending order): the higher stage
// waits. If this function itself fails, `done` is not called: BL_INVALID (peers), BL_PRECONDITION (one is in progress).
typedef void (*bl_transport_connected_fn)(void *user, bl_status_t status, const bl_error_t *err);
BL_MUST_USE bl_status_t bl_transport_connect(bl_transport_t *transport, const bl_transport_peer_t *peers,
                                             size_t peer_count, bl_path_t path, uint64_t deadline_ns,
                                             bl_transport_connected_fn done, void *user, bl_error_t *err);
// The same, waiting for the outcome.
BL_MUST_USE bl_status_t bl_transport_connect_wait(bl_transport_t *transport, const bl_transport_peer_t *peers,
                                                  size_t peer_count, bl_path_t path, uint64_t deadline_ns,
                                                  bl_error_t *err);

typedef struct bl_transport_path {
  int32_t peer;
  bool connected;
  bl_path_t path; // BL_PATH_AUTO while there is none
  char reason
      [BL_TRANSPORT_REASON_BYTES]; // "shm: same machine", "nccl: both ends have NCCL 2.28.9, ...", or why it was lost
  uint64_t mapped_bytes;           // of the peer's arenas, mapped here (shm, cuda-ipc); the peer's memory, not ours
} bl_transport_path_t;
// Fills up to `capacity` entries, ascending by peer; returns how many peers there are.
size_t bl_transport_paths(bl_transport_t *transport, bl_transport_path_t *paths, size_t capacity);

// Whether tensors of this peer go from device to device: posts name the device's memory. It does not change between
// connects.
bool bl_transport_is_direct(bl_transport_t *transport, int32_t peer);

// From now on only `attempt` (> 0, above the last) is valid. See lifetime rules 5 and 6. BL_PRECONDITION otherwise.
BL_MUST_USE bl_status_t bl_transport_begin(bl_transport_t *transport, uint64_t attempt, bl_error_t *err);

// Offers `destination` for the tensor `key` of `peer`: post as early as the buffer is free. BL_UNAVAILABLE (peer lost),
// BL_CANCELLED, BL_EXHAUSTED (max_in_flight), BL_PRECONDITION (key already posted), BL_INVALID (bytes 0, unknown peer).
BL_MUST_USE bl_status_t bl_transport_post_receive(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                                  void *destination, uint64_t bytes, bl_error_t *err);
// Sends `bytes` at `source`; never blocks. Failures as above; BL_INVALID also when the link is shm and the source lies
// in no arena of the options.
BL_MUST_USE bl_status_t bl_transport_post_send(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                               const void *source, uint64_t bytes, bl_error_t *err);
// Waits until the posted receive is complete and forgets it. BL_DEADLINE leaves it posted. Spins briefly, then sleeps.
// deadline_ns is on bl_clock_now_ns(); UINT64_MAX waits until the tensor, an abort or the loss of the peer.
BL_MUST_USE bl_status_t bl_transport_wait_received(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                                   uint64_t deadline_ns, bl_error_t *err);
// Waits until the source of a send may be written again; BL_OK at once when no such send is in flight.
BL_MUST_USE bl_status_t bl_transport_wait_sent(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                               uint64_t deadline_ns, bl_error_t *err);
// True when bl_transport_wait_received would return at once.
bool bl_transport_received(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key);

// For what is pulled without a message (lib/collective): where arena number `arena` of this peer is mapped, read-only,
// by rule 8. Arenas are numbered as in the peer's options; those without a byte are not counted. BL_PRECONDITION: the
// path to the peer is not shm, or no attempt has begun; BL_INVALID (unknown peer or arena), BL_UNAVAILABLE and the like
// (peer lost), BL_CANCELLED.
BL_MUST_USE bl_status_t bl_transport_peer_arena(bl_transport_t *transport, int32_t peer, size_t arena,
                                                const uint8_t **base, uint64_t *bytes, bl_error_t *err);
// Whether somebody still writes what bl_transport_peer_arena gave in this attempt: the link of then is up. A peer that
// was lost and has a new link since has other arenas. Cheap enough to be asked every few milliseconds.
bool bl_transport_peer_arenas_live(bl_transport_t *transport, int32_t peer);

// Wakes every wait with BL_CANCELLED. Idempotent.
void bl_transport_abort(bl_transport_t *transport);

typedef struct bl_transport_wait {
  char what[96]; // "activation 3 of boundary 1 from stage 0", "link from stage 0"
  int32_t peer;
  int32_t micro_batch; // -1 when none
  uint64_t since_ns;   // bl_clock_now_ns() when the wait began
} bl_transport_wait_t;
// What threads wait for in the transport now; returns how many, fills up to `capacity`.
size_t bl_transport_waits(bl_transport_t *transport, bl_transport_wait_t *waits, size_t capacity);

typedef struct bl_transport_counters {
  uint64_t tensors_sent;
  uint64_t tensors_received;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t cross_machine_bytes; // of bytes_sent: to peers on another machine, by their machine texts
  uint64_t bytes_copied;        // by our code in this process: equals bytes_received on shm (one copy), 0 on others
  uint64_t stale_dropped;       // messages of older attempts
  uint64_t links_refused;       // connections that failed the handshake
  uint64_t links_lost;
} bl_transport_counters_t;
bl_transport_counters_t bl_transport_counters(bl_transport_t *transport);
// Of cross_machine_bytes, what came since the last call. A send may end after the run that posted it: its rest counts
// next.
uint64_t bl_transport_take_cross_machine_bytes(bl_transport_t *transport);

#endif

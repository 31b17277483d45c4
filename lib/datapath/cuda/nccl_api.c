// SPDX-License-Identifier: Apache-2.0
// Implements the table of datapath/nccl/api.h with NCCL. The library is loaded on demand, so that a device works
// without it. A library of another major version gives an error message instead of a program that does not start.
//
// A communicator has a stream of its own, which only it uses, and an event per transfer in flight. A launch of a
// non-blocking communicator may be in progress. Its event can be recorded only once the launch is over.
#include "datapath/cuda/paths.h"
#include "datapath/nccl/environment.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/verdict.h"

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"

// X(function)
#define FUNCTIONS(X)                                                                                                   \
  X(ncclGetVersion)                                                                                                    \
  X(ncclGetUniqueId)                                                                                                   \
  X(ncclCommInitRankConfig)                                                                                            \
  X(ncclCommGetAsyncError)                                                                                             \
  X(ncclCommAbort)                                                                                                     \
  X(ncclSend)                                                                                                          \
  X(ncclAllGather)                                                                                                     \
  X(ncclGroupStart)                                                                                                    \
  X(ncclGroupEnd)                                                                                                      \
  X(ncclRecv)                                                                                                          \
  X(ncclGetErrorString)                                                                                                \
  X(ncclGetLastError)

static struct {
#define X(function) __typeof__(function) *function;
  FUNCTIONS(X)
#undef X
} nccl;

_Static_assert(sizeof(ncclUniqueId) == BL_NCCL_ID_BYTES, "the size of NCCL's unique ids");

#define NO_TICKET UINT32_MAX

struct bl_nccl_comm {
  ncclComm_t comm;
  cudaStream_t stream;
  cudaEvent_t over[BL_NCCL_IN_FLIGHT];
  // Device memory of BL_NCCL_GREETING_BYTES; of a group: for each rank that it is sent to, that it comes from, and of
  // which it is gathered.
  char *greeting;
  uint32_t launching; // ticket whose launch is in progress, or NO_TICKET
  int rank;
  uint32_t group_ranks; // 0: a channel
};

static int ordinal_of(const bl_nccl_api_t *api) {
  return *(const int *)api->context;
}

static bl_nccl_result_t result_of(ncclResult_t result, ncclComm_t comm, const char *call, char *text) {
  if (result == ncclSuccess) {
    return BL_NCCL_DONE;
  }
  if (result == ncclInProgress) {
    return BL_NCCL_IN_PROGRESS;
  }
  const char *detail = nccl.ncclGetLastError(comm);
  snprintf(text, BL_NCCL_TEXT_BYTES, "%s: %s%s%.160s", call, nccl.ncclGetErrorString(result),
           detail != NULL && detail[0] != '\0' ? ": " : "", detail != NULL ? detail : "");
  // If the process of a peer has ended, NCCL reports a remote error, or a broken connection of the system.
  return result == ncclRemoteError || result == ncclSystemError ? BL_NCCL_PEER_FAILED : BL_NCCL_BROKEN;
}

static bl_nccl_result_t cuda_result(cudaError_t result, const char *call, char *text) {
  if (result == cudaSuccess) {
    return BL_NCCL_DONE;
  }
  snprintf(text, BL_NCCL_TEXT_BYTES, "%s: %s", call, cudaGetErrorString(result));
  return BL_NCCL_BROKEN;
}

static bl_nccl_result_t make_current(const bl_nccl_api_t *api, char *text) {
  return cuda_result(cudaSetDevice(ordinal_of(api)), "cudaSetDevice", text);
}

static bl_nccl_result_t new_id(const bl_nccl_api_t *api, uint8_t id[BL_NCCL_ID_BYTES], char *text) {
  ncclUniqueId made;
  bl_nccl_result_t result = make_current(api, text);
  if (result == BL_NCCL_DONE) {
    result = result_of(nccl.ncclGetUniqueId(&made), NULL, "ncclGetUniqueId", text);
  }
  if (result == BL_NCCL_DONE) {
    memcpy(id, &made, BL_NCCL_ID_BYTES);
  }
  return result;
}

static void destroy(bl_nccl_comm_t *comm) {
  for (uint32_t i = 0; i < BL_NCCL_IN_FLIGHT; i++) {
    if (comm->over[i] != NULL) {
      (void)cudaEventDestroy(comm->over[i]);
    }
  }
  if (comm->stream != NULL) {
    (void)cudaStreamDestroy(comm->stream);
  }
  (void)cudaFree(comm->greeting); // NULL is allowed
  free(comm);
}

// Creates stream, events and memory before NCCL starts, so that nothing is allocated while its kernels wait for each
// other.
static bl_nccl_result_t prepare(bl_nccl_comm_t *comm, char *text) {
  int least = 0, greatest = 0;
  (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
  bl_nccl_result_t result = cuda_result(cudaStreamCreateWithPriority(&comm->stream, cudaStreamNonBlocking, greatest),
                                        "cudaStreamCreate", text);
  for (uint32_t i = 0; i < BL_NCCL_IN_FLIGHT && result == BL_NCCL_DONE; i++) {
    result = cuda_result(cudaEventCreateWithFlags(&comm->over[i], cudaEventDisableTiming), "cudaEventCreate", text);
  }
  if (result == BL_NCCL_DONE) {
    const size_t greetings = comm->group_ranks > 0 ? 3 * (size_t)comm->group_ranks : 1;
    result = cuda_result(cudaMalloc((void **)&comm->greeting, greetings * BL_NCCL_GREETING_BYTES), "cudaMalloc", text);
  }
  return result;
}

static bl_nccl_result_t create(const bl_nccl_api_t *api, const uint8_t id[BL_NCCL_ID_BYTES], int rank,
                               const bl_nccl_config_t *wanted, bl_nccl_comm_t **out, char *text) {
  bl_nccl_comm_t *comm = calloc(1, sizeof *comm);
  *out = NULL;
  if (comm == NULL) {
    snprintf(text, BL_NCCL_TEXT_BYTES, "no memory for a communicator");
    return BL_NCCL_BROKEN;
  }
  comm->rank = rank;
  comm->group_ranks = wanted->group_ranks;
  comm->launching = NO_TICKET;
  bl_nccl_result_t result = make_current(api, text);
  if (result == BL_NCCL_DONE) {
    result = prepare(comm, text);
  }
  if (result != BL_NCCL_DONE) {
    destroy(comm);
    return result;
  }
  ncclUniqueId unique;
  memcpy(&unique, id, sizeof unique);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.cgaClusterSize = 0;
  if (wanted->max_ctas > 0) {
    config.minCTAs = (int)wanted->min_ctas;
    config.maxCTAs = (int)wanted->max_ctas;
  }
  config.splitShare = 0;
  config.commName = wanted->name;
  const int ranks = wanted->group_ranks > 0 ? (int)wanted->group_ranks : 2;
  result = result_of(nccl.ncclCommInitRankConfig(&comm->comm, ranks, unique, rank, &config), NULL,
                     "ncclCommInitRankConfig", text);
  if (comm->comm == NULL) { // nothing to abort
    destroy(comm);
    return result == BL_NCCL_PEER_FAILED ? result : BL_NCCL_BROKEN;
  }
  *out = comm;
  return result;
}

static bl_nccl_result_t poll(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, char *text) {
  (void)api;
  ncclResult_t state = ncclSuccess;
  bl_nccl_result_t result =
      result_of(nccl.ncclCommGetAsyncError(comm->comm, &state), comm->comm, "ncclCommGetAsyncError", text);
  if (result == BL_NCCL_DONE) {
    result = result_of(state, comm->comm, comm->launching != NO_TICKET ? "a transfer" : "the communicator", text);
  }
  if (result == BL_NCCL_DONE && comm->launching != NO_TICKET) {
    result = cuda_result(cudaEventRecord(comm->over[comm->launching], comm->stream), "cudaEventRecord", text);
    comm->launching = NO_TICKET;
  }
  return result;
}

static ncclResult_t start_gather(bl_nccl_comm_t *comm, cudaStream_t stream, void *window, uint64_t block_bytes) {
  const char *own = (const char *)window + (uint64_t)comm->rank * block_bytes;
  return nccl.ncclAllGather(own, window, block_bytes, ncclUint8, comm->comm, stream);
}

static bool started(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

// Between ncclGroupStart and ncclGroupEnd: nothing starts before the latter. `greeted`: of a gather; NULL: none.
static bl_nccl_result_t send_pieces(bl_nccl_comm_t *comm, cudaStream_t stream, const bl_nccl_piece_t *pieces,
                                    uint32_t count, void *greeted, char *text) {
  bl_nccl_result_t result = result_of(nccl.ncclGroupStart(), comm->comm, "ncclGroupStart", text);
  ncclResult_t put = ncclSuccess;
  if (result != BL_NCCL_DONE) {
    return result;
  }
  for (uint32_t i = 0; i < count && started(put); i++) {
    const bl_nccl_piece_t *piece = &pieces[i];
    put = piece->sends ? nccl.ncclSend(piece->buffer, piece->bytes, ncclUint8, (int)piece->rank, comm->comm, stream)
                       : nccl.ncclRecv(piece->buffer, piece->bytes, ncclUint8, (int)piece->rank, comm->comm, stream);
  }
  if (started(put) && greeted != NULL) {
    put = start_gather(comm, stream, greeted, BL_NCCL_GREETING_BYTES);
  }
  const ncclResult_t ended = nccl.ncclGroupEnd();
  result = result_of(put, comm->comm, "ncclSend, ncclRecv or ncclAllGather", text);
  return started(put) ? result_of(ended, comm->comm, "ncclGroupEnd", text) : result;
}

// NCCL connects ranks with the first operation of a kind, so the greeting has both kinds.
static bl_nccl_result_t greet(bl_nccl_comm_t *comm, char *text) {
  bl_nccl_piece_t pieces[2 * BL_NCCL_GROUP_RANKS];
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < comm->group_ranks; rank++) {
    for (int sends = 0; sends < 2 && (int)rank != comm->rank; sends++) {
      pieces[count++] =
          (bl_nccl_piece_t){.buffer = comm->greeting + (2 * rank + (unsigned)sends) * BL_NCCL_GREETING_BYTES,
                            .bytes = BL_NCCL_GREETING_BYTES,
                            .rank = rank,
                            .sends = sends != 0};
    }
  }
  char *gathered = comm->greeting + 2 * (size_t)comm->group_ranks * BL_NCCL_GREETING_BYTES;
  return send_pieces(comm, comm->stream, pieces, count, gathered, text);
}

static bl_nccl_result_t transfer(bl_nccl_comm_t *comm, void *buffer, uint64_t bytes, char *text) {
  ncclResult_t launched = comm->rank == 0 ? nccl.ncclSend(buffer, bytes, ncclUint8, 1, comm->comm, comm->stream)
                                          : nccl.ncclRecv(buffer, bytes, ncclUint8, 0, comm->comm, comm->stream);
  return result_of(launched, comm->comm, comm->rank == 0 ? "ncclSend" : "ncclRecv", text);
}

static bl_nccl_result_t launch(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, void *buffer, uint64_t bytes,
                               uint32_t ticket, char *text) {
  bl_nccl_result_t result = make_current(api, text);
  if (result != BL_NCCL_DONE) {
    return result;
  }
  result =
      comm->group_ranks > 0 ? greet(comm, text) : transfer(comm, buffer != NULL ? buffer : comm->greeting, bytes, text);
  if (result == BL_NCCL_IN_PROGRESS) {
    comm->launching = ticket;
  } else if (result == BL_NCCL_DONE) {
    result = cuda_result(cudaEventRecord(comm->over[ticket], comm->stream), "cudaEventRecord", text);
  }
  return result;
}

// The order of the ranks' additions is ours, so NCCL only moves bytes.
static bl_nccl_result_t gather(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, bl_device_stream_t *stream, void *window,
                               uint64_t block_bytes, char *text) {
  bl_nccl_result_t result = make_current(api, text);
  if (result != BL_NCCL_DONE) {
    return result;
  }
  return result_of(start_gather(comm, stream->handle, window, block_bytes), comm->comm, "ncclAllGather", text);
}

static bl_nccl_result_t exchange(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, bl_device_stream_t *stream,
                                 const bl_nccl_piece_t *pieces, uint32_t count, char *text) {
  bl_nccl_result_t result = make_current(api, text);
  return result == BL_NCCL_DONE ? send_pieces(comm, stream->handle, pieces, count, NULL, text) : result;
}

static bl_nccl_result_t over(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, uint32_t ticket, char *text) {
  (void)api;
  if (comm->launching == ticket) {
    return BL_NCCL_IN_PROGRESS;
  }
  cudaError_t state = cudaEventQuery(comm->over[ticket]);
  return state == cudaErrorNotReady ? BL_NCCL_IN_PROGRESS : cuda_result(state, "a transfer", text);
}

static void abort_comm(const bl_nccl_api_t *api, bl_nccl_comm_t *comm) {
  char text[BL_NCCL_TEXT_BYTES];
  (void)make_current(api, text);
  (void)nccl.ncclCommAbort(comm->comm);
  // The communicator's kernels have seen the abort and are ending. Until they have, they may touch their buffers.
  (void)cudaStreamSynchronize(comm->stream);
  destroy(comm);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // guards all below
static int loaded_version;                                // 0: not loaded

static bl_status_t load(bl_error_t *err) {
  if (loaded_version != 0) {
    return BL_OK;
  }
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "NCCL cannot be loaded: %s: install it, or put its folder in "
                        "LD_LIBRARY_PATH",
                        dlerror());
  }
#define X(function)                                                                                                    \
  *(void **)&nccl.function = dlsym(library, #function);                                                                \
  if (nccl.function == NULL) {                                                                                         \
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s has no %s: it is too old", LIBRARY, #function);                     \
  }
  FUNCTIONS(X)
#undef X
  int version = 0;
  if (nccl.ncclGetVersion(&version) != ncclSuccess || version <= 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s does not say its version", LIBRARY);
  }
  bl_status_t status =
      bl_cuda_verdict_library("NCCL", NCCL_MAJOR, NCCL_MINOR, version / 10000, version / 100 % 100, err);
  loaded_version = status == BL_OK ? version : 0;
  return status;
}

bl_status_t bl__cuda_nccl_version(int *version, bl_error_t *err) {
  pthread_mutex_lock(&mutex);
  bl_status_t status = load(err);
  if (status == BL_OK) {
    *version = loaded_version;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

bl_status_t bl__cuda_nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err) {
  static bl_nccl_api_t table; // context NULL: not set up
  static int ordinal;         // a device is opened and closed with every job
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&mutex);
  if (table.context == NULL) {
    bl_nccl_set_environment(shared_gpu);
    status = load(err);
    if (status == BL_OK) {
      ordinal = bl_cuda_device(device)->ordinal;
      table = (bl_nccl_api_t){.version = loaded_version,
                              .new_id = new_id,
                              .create = create,
                              .poll = poll,
                              .launch = launch,
                              .over = over,
                              .gather = gather,
                              .exchange = exchange,
                              .abort = abort_comm,
                              .context = &ordinal};
    }
  }
  if (status == BL_OK && ordinal != bl_cuda_device(device)->ordinal) {
    status = bl_error_set(err, BL_UNIMPLEMENTED, "a process has communicators on one GPU only");
  }
  if (status == BL_OK) {
    *api = &table;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

// SPDX-License-Identifier: Apache-2.0
#include "probe_wire.h"

#include "loop/timer.h"
#include "loop/worker.h"
#include "probe.h"
#include "probe_device.h"
#include "state_wire.h"
#include "sys/clock.h"

#include "ballast/v1/stage.pb-c.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define BLOCK_BYTES      (UINT64_C(256) << 10)
#define BLOCK_MOST_BYTES (UINT64_C(16) << 20)
#define DEADLINE_MS      5000
#define DEADLINE_MOST_MS 10000 // bounds how long stopping this process can take
#define STORES_MAX       1024  // of all devices of a pipeline and of one host
#define GPUS_MAX         BL_TRANSPORT_MAX_PEERS
#define FORGET_MS        60000 // after which a peer probe that was not closed is dropped

struct bl_prober {
  bl_task_t task;
  bl_loop_t *loop;
  bl_worker_t *worker;
  bl_timer_t *forget;
  bl_transport_options_t transport;
  char transport_path[PATH_MAX];
  int64_t pod;
  int32_t gpu;                 // as in bl_stage_options_t
  bl_peer_probe_t *peer_probe; // the worker's while a task runs
  // One probe.
  bl_rpc_call_t *call; // NULL: none
  const Ballast__V1__ProbeRequest *request;
  bl_path_t path;
  bl_transport_peer_t *peers;
  bl_probe_outcome_t *outcomes; // [stores + peers]
  bl_probed_device_t device;
  bl_error_t *reached; // [gpus of the request]
  bl_error_t err;
};

static uint64_t bounded(uint64_t asked, uint64_t preset, uint64_t most) {
  return asked == 0 ? preset : asked < most ? asked : most;
}

// ---- on the worker's thread

static void open_peer_probe(bl_prober_t *self, uint64_t block_bytes) {
  bl_peer_probe_destroy(self->peer_probe);
  self->peer_probe = NULL;
  self->transport.stage = (int32_t)self->request->stage;
  self->err.status = bl_peer_probe_create(&self->transport, block_bytes, &self->peer_probe, &self->err);
}

static void look_at_device(bl_prober_t *self) {
  const Ballast__V1__ProbeRequest *request = self->request;
  self->device = (bl_probed_device_t){0};
  if (strcmp(request->device, bl_device_kind_name(BL_DEVICE_CUDA)) == 0) {
    bl_probed_device_open(BL_DEVICE_CUDA, request->stage, self->gpu, &self->device);
  }
  for (size_t i = 0; i < request->n_gpus; i++) {
    self->reached[i].status = bl_probed_device_reaches(&self->device, request->gpus[i], &self->reached[i]);
  }
}

static void run(bl_task_t *task) {
  bl_prober_t *self = BL_TASK_OWNER(task, bl_prober_t, task);
  const Ballast__V1__ProbeRequest *request = self->request;
  look_at_device(self);
  const bl_probe_options_t options = {.job = request->job,
                                      .stage = request->stage,
                                      .path = self->path,
                                      .device = self->device.device,
                                      .block_bytes = bounded(request->block_bytes, BLOCK_BYTES, BLOCK_MOST_BYTES),
                                      .deadline_ms = bounded(request->deadline_ms, DEADLINE_MS, DEADLINE_MOST_MS)};
  for (size_t i = 0; i < request->n_stores; i++) {
    bl_probe_store(&options, request->stores[i]->address, &self->outcomes[i]);
  }
  if (request->open) {
    open_peer_probe(self, options.block_bytes);
  } else if (request->n_peers == 0) {
    bl_peer_probe_destroy(self->peer_probe);
    self->peer_probe = NULL;
  } else if (self->peer_probe == NULL) {
    (void)bl_error_set(&self->err, BL_PRECONDITION, "no rendezvous is open: ask for `open` first");
  } else {
    // Stages connect over memory of the host. What their GPUs reach is tested separately.
    const bool of_gpus = self->path == BL_PATH_CUDA_IPC || self->path == BL_PATH_NCCL;
    bl_peer_probe_exchange(self->peer_probe, self->peers, request->n_peers, of_gpus ? BL_PATH_AUTO : self->path,
                           bl_clock_now_ns() + options.deadline_ms * BL_NS_PER_MS, self->outcomes + request->n_stores);
  }
  bl_probed_device_close(&self->device);
}

// ---- on the loop's thread

static uint64_t shared_memory_bytes(void) {
  struct statvfs shm;
  return statvfs("/dev/shm", &shm) == 0 ? (uint64_t)shm.f_blocks * shm.f_frsize : 0;
}

static Ballast__V1__ProbedPath path_of(const bl_probe_outcome_t *outcome) {
  Ballast__V1__ProbedPath message = BALLAST__V1__PROBED_PATH__INIT;
  if (outcome->err.status != BL_OK) {
    message.status = bl_status_grpc_code(outcome->err.status);
    message.failure = (char *)outcome->err.text;
  }
  if (outcome->path != BL_PATH_AUTO) {
    message.data_path = (char *)bl_path_name(outcome->path);
  }
  message.reason = (char *)outcome->reason;
  message.round_ns = outcome->round_ns;
  return message;
}

static void place_of(const bl_peer_probe_t *peer_probe, Ballast__V1__ProbeResponse *output) {
  const bl_transport_t *transport = bl_peer_probe_transport(peer_probe);
  output->unix_address = (char *)bl_transport_unix_address(transport);
  output->tcp_address = (char *)bl_transport_tcp_address(transport);
  output->machine = (char *)bl_transport_machine(transport);
  output->token =
      (ProtobufCBinaryData){.data = (uint8_t *)bl_transport_token(transport), .len = BL_TRANSPORT_TOKEN_BYTES};
}

static void say_device(bl_probed_device_t *device, Ballast__V1__ProbeResponse *output) {
  output->device_count = device->count;
  output->device_text = device->text;
  output->gpu = device->block_memory.gpu;
  output->gpu_closed = device->block_memory.closed;
  output->nccl = device->nccl;
  output->nccl_failure = device->no_nccl;
}

static void say_reached(const Ballast__V1__ProbeRequest *request, bl_error_t *reached,
                        Ballast__V1__ReachedGpu **pointers, Ballast__V1__ReachedGpu *gpus,
                        Ballast__V1__ProbeResponse *output) {
  for (size_t i = 0; i < request->n_gpus; i++) {
    gpus[i] = (Ballast__V1__ReachedGpu)BALLAST__V1__REACHED_GPU__INIT;
    gpus[i].gpu = request->gpus[i];
    gpus[i].reached = reached[i].status == BL_OK;
    gpus[i].reason = gpus[i].reached ? (char *)"" : reached[i].text;
    pointers[i] = &gpus[i];
  }
  output->reached = pointers;
  output->n_reached = request->n_gpus;
}

static void reply(bl_prober_t *self) {
  const Ballast__V1__ProbeRequest *request = self->request;
  const size_t count = request->n_stores + request->n_peers;
  Ballast__V1__ProbedPath *paths = calloc(count + 1, sizeof *paths);
  Ballast__V1__ProbedPath **pointers = calloc(count + 1, sizeof(Ballast__V1__ProbedPath *));
  Ballast__V1__ReachedGpu *gpus = calloc(request->n_gpus + 1, sizeof *gpus);
  Ballast__V1__ReachedGpu **gpu_pointers = calloc(request->n_gpus + 1, sizeof(Ballast__V1__ReachedGpu *));
  Ballast__V1__ProbeResponse output = BALLAST__V1__PROBE_RESPONSE__INIT;
  if (paths == NULL || pointers == NULL || gpus == NULL || gpu_pointers == NULL) {
    (void)bl_error_set(&self->err, BL_EXHAUSTED, "no memory to say what was probed");
  }
  if (self->err.status != BL_OK) {
    bl_rpc_call_fail(self->call, &self->err);
  } else {
    for (size_t i = 0; i < count; i++) {
      const bool store = i < request->n_stores;
      paths[i] = path_of(&self->outcomes[i]);
      paths[i].store = store;
      paths[i].number = store ? request->stores[i]->device : (uint32_t)request->peers[i - request->n_stores]->stage;
      pointers[i] = &paths[i];
    }
    output.paths = pointers;
    output.n_paths = count;
    output.shared_memory_bytes = shared_memory_bytes();
    output.pod = (int32_t)self->pod;
    say_device(&self->device, &output);
    say_reached(request, self->reached, gpu_pointers, gpus, &output);
    if (request->open) {
      place_of(self->peer_probe, &output);
    }
    bl_rpc_call_reply(self->call, &output.base);
  }
  free(paths);
  free(pointers);
  free(gpus);
  free(gpu_pointers);
}

static void forget(bl_prober_t *self) {
  free(self->peers);
  free(self->outcomes);
  free(self->reached);
  self->peers = NULL;
  self->outcomes = NULL;
  self->reached = NULL;
  self->call = NULL;
  self->request = NULL;
}

static void done(bl_task_t *task) {
  bl_prober_t *self = BL_TASK_OWNER(task, bl_prober_t, task);
  reply(self);
  forget(self);
  if (self->peer_probe != NULL) {
    bl_timer_start(self->forget, FORGET_MS, 0);
  }
}

static void forgotten(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_prober_t *self = context;
  if (self->call == NULL) {
    bl_peer_probe_destroy(self->peer_probe);
    self->peer_probe = NULL;
  }
}

static bl_status_t begin(bl_prober_t *self, bl_error_t *err) {
  const Ballast__V1__ProbeRequest *request = self->request;
  const size_t count = request->n_stores + request->n_peers;
  if (!bl_path_parse(request->data_path[0] == '\0' ? "auto" : request->data_path, &self->path)) {
    return bl_error_set(err, BL_INVALID, "'%.40s' is not a data path: auto, shm, tcp, cuda-ipc or nccl",
                        request->data_path);
  }
  if (request->n_stores > STORES_MAX || request->n_peers > BL_TRANSPORT_MAX_PEERS || request->n_gpus > GPUS_MAX) {
    return bl_error_set(err, BL_INVALID, "%zu stores and stages and %zu GPUs to probe are too many", count,
                        request->n_gpus);
  }
  self->outcomes = calloc(count + 1, sizeof *self->outcomes);
  self->peers = calloc(request->n_peers + 1, sizeof *self->peers);
  self->reached = calloc(request->n_gpus + 1, sizeof *self->reached);
  if (self->outcomes == NULL || self->peers == NULL || self->reached == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to probe");
  }
  for (size_t i = 0; i < request->n_peers; i++) {
    bl_status_t status = bl_peer_from_wire(request->peers[i], &self->peers[i], err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

void bl_prober_handle(bl_prober_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input) {
  bl_error_t err = {0};
  if (self->call != NULL) {
    (void)bl_error_set(&err, BL_EXHAUSTED, "another preflight is probing this stage: ask again");
    bl_rpc_call_fail(call, &err);
    return;
  }
  self->request = (const Ballast__V1__ProbeRequest *)input;
  bl_error_clear(&self->err);
  if (begin(self, &err) != BL_OK) {
    forget(self);
    bl_rpc_call_fail(call, &err);
    return;
  }
  self->call = call;
  bl_timer_stop(self->forget);
  bl_worker_submit(self->worker, &self->task);
}

bl_status_t bl_prober_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_loop_thread_t *transfer,
                             bl_prober_t **prober, bl_error_t *err) {
  bl_prober_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for probes");
  }
  made->loop = loop;
  made->pod = options->pod;
  made->gpu = options->gpu;
  made->transport = (bl_transport_options_t){.tcp_host = options->tcp_host,
                                             .tcp_advertise = options->tcp_advertise,
                                             .tls = options->tls,
                                             .plaintext_ok = options->plaintext_ok,
                                             .thread = transfer};
  if (options->unix_path != NULL) {
    // Not longer than the path of the run: a socket's path is limited to 107 bytes.
    const size_t length = strlen(options->unix_path);
    snprintf(made->transport_path, sizeof made->transport_path, "%s", options->unix_path);
    if (length < sizeof made->transport_path && length > 4) {
      snprintf(made->transport_path + length - 4, 5, "meet");
      made->transport.unix_path = made->transport_path;
    }
  }
  bl_task_init(&made->task, run, done);
  bl_status_t status = bl_worker_create_resting(loop, "probe", &made->worker, err);
  if (status == BL_OK) {
    status = bl_timer_create(loop, forgotten, made, &made->forget, err);
  }
  if (status != BL_OK) {
    bl_prober_destroy(made);
    return status;
  }
  *prober = made;
  return BL_OK;
}

void bl_prober_destroy(bl_prober_t *prober) {
  if (prober == NULL) {
    return;
  }
  bl_worker_destroy(prober->worker);
  bl_loop_drain(prober->loop);
  bl_timer_destroy(prober->forget);
  bl_peer_probe_destroy(prober->peer_probe);
  forget(prober);
  free(prober);
}

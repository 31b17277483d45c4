// SPDX-License-Identifier: Apache-2.0
// stage-service: one pipeline stage as a gRPC service (ballast.v1.Stage), with a health service on a port of its own.
#include "base/host.h"
#include "compute/ops/ops.h"
#include "device/libraries.h"
#include "formats/safetensors.h"
#include "meter.h"
#include "operation_memory.h"
#include "pod.h"
#include "service/daemon.h"
#include "service_wire.h"
#include "sys/runtime.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct arguments {
  bl_daemon_arguments_t common;
  char *data_listen, *data_advertise, *core_tokens, *operation_memory;
  int64_t core, gpu, pod_index;
  bool nccl_shared_gpu;
  double rest_seconds;
  bool list_devices;
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)
static const bl_option_t rows[] = {
    BL_DAEMON_ROWS(arguments_t, common, "127.0.0.1:7700"),
    {.name = "data-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_listen),
     .argument = "HOST",
     .help = "Host on which other stages reach the data path; its port is free to choose. Default: the host of "
             "--listen, or 127.0.0.1."},
    {.name = "data-advertise",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_advertise),
     .argument = "HOST",
     .help =
         "Host that other stages should use where --data-listen is a wildcard such as 0.0.0.0. Default there: POD_IP "
         "of the environment, or else the name of this machine."},
    {.name = "rest",
     .type = BL_OPTION_REAL,
     .offset = ROW(rest_seconds),
     .preset = "30",
     .minimum = 0,
     .maximum = 1e6,
     .unit = "seconds",
     .help = "How long without a call from a driver until slots at activation stores are released; 0 keeps them."},
    {.name = "core",
     .type = BL_OPTION_INT,
     .offset = ROW(core),
     .preset = "-1",
     .minimum = -1,
     .maximum = 65535,
     .help = "Pin the compute threads to the cores from this one on; -1 leaves them to the scheduler."},
    {.name = "gpu",
     .type = BL_OPTION_INT,
     .offset = ROW(gpu),
     .preset = "-1",
     .minimum = -1,
     .maximum = 1023,
     .help =
         "GPU to compute on where a job asks for one, counted among those that this process sees; -1: the number of "
         "the stage modulo how many they are."},
    {.name = "nccl-shared-gpu",
     .type = BL_OPTION_BOOL,
     .offset = ROW(nccl_shared_gpu),
     .help = "Lets processes of a job that share this GPU exchange tensors over NCCL, which then uses sockets. All of "
             "them need the flag."},
    {.name = "list-devices",
     .type = BL_OPTION_BOOL,
     .offset = ROW(list_devices),
     .help = "Print the GPUs that this process sees and the versions of NVIDIA's libraries, and end; exit code 0 where "
             "there is a GPU."},
    {.name = "operation-memory",
     .type = BL_OPTION_TEXT,
     .offset = ROW(operation_memory),
     .argument = "b,b,...",
     .help =
         "Read a job file from standard input, print the bytes that operations of it ask for on this machine at these "
         "micro-batches, and end: ballastctl plan asks so."},
    {.name = "core-tokens",
     .type = BL_OPTION_PATH,
     .offset = ROW(core_tokens),
     .help =
         "File through which the stages of one machine take turns where they are more than its cores; made where it is "
         "not there. Stages of several threads need GOMP_SPINCOUNT=1000 in their environment then."},
    {.name = "pod-index",
     .type = BL_OPTION_INT,
     .offset = ROW(pod_index),
     .preset = "-1",
     .minimum = -1,
     .maximum = 65535,
     .help = "Number of this pod in its set: pod i should be stage i/2 if i is even, p-1-(i-1)/2 if it is odd, and the "
             "log says so. -1: POD_INDEX of the environment, or the number at the end of its POD_NAME."},
};

static const bl_flags_t flags = {
    .program = "stage-service",
    .usage = "[--listen ADDR] [options]",
    .about = "One pipeline stage: holds a run of layers, computes what a driver asks for, and exchanges activations "
             "and gradients with its neighbours.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
};

typedef struct program {
  arguments_t arguments;
  bl_daemon_t *daemon;
  bl_service_t *service;
  bl_policy_proxy_t *policy_proxy;
  char data_path[PATH_MAX], data_host[256], data_name[256];
} program_t;

// Chooses where the data path listens: a socket next to the control socket, or in the run-time folder; and a host.
static bl_status_t choose_data_path(program_t *self, bl_error_t *err) {
  const arguments_t *arguments = &self->arguments;
  const char *listen = arguments->common.listen;
  if (strncmp(listen, "unix:", 5) == 0) {
    snprintf(self->data_path, sizeof self->data_path, "%s.data", listen + 5);
    snprintf(self->data_host, sizeof self->data_host, "127.0.0.1");
  } else {
    char folder[PATH_MAX - 64];
    uint16_t port;
    bl_status_t status = bl_host_split(listen, self->data_host, sizeof self->data_host, &port, err);
    if (status == BL_OK) {
      status = bl_runtime_folder(folder, sizeof folder, err);
    }
    if (status != BL_OK) {
      return status;
    }
    snprintf(self->data_path, sizeof self->data_path, "%s/stage-%ld.data", folder, (long)getpid());
  }
  if (arguments->data_listen != NULL) {
    snprintf(self->data_host, sizeof self->data_host, "%s", arguments->data_listen);
  }
  return BL_OK;
}

// The name of this machine for peers if the data path listens on all interfaces; NULL: the address it listens on.
static const char *advertised(program_t *self) {
  const char *given = self->arguments.data_advertise, *host = self->data_host, *pod = getenv("POD_IP");
  const bool everywhere = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
  if (given != NULL || !everywhere) {
    return given;
  }
  if (pod != NULL && pod[0] != '\0') {
    return pod;
  }
  return gethostname(self->data_name, sizeof self->data_name - 1) == 0 ? self->data_name : NULL;
}

static int failed(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fprintf(stderr, "stage-service: %s\n", err->text);
  }
  return bl_status_exit_code(status);
}

static bool answer_instead(void *context, int *exit_code) {
  const program_t *self = context;
  bl_error_t err = {0};
  if (self->arguments.operation_memory != NULL) {
    *exit_code = failed(
        bl_operation_memory_print(stdin, self->arguments.operation_memory, (int32_t)self->arguments.gpu, stdout, &err),
        &err);
    return true;
  }
  if (!self->arguments.list_devices) {
    return false;
  }
  *exit_code = failed(bl_device_print(BL_DEVICE_CUDA, stdout, &err), &err);
  return true;
}

static void print_versions(FILE *stream) {
  bl_device_libraries_print(BL_DEVICE_CUDA, stream);
}

static void stop(void *context) {
  const program_t *self = context;
  bl_daemon_stop(self->daemon, 0);
}

static void ready(void *context, bool is_ready) {
  const program_t *self = context;
  bl_daemon_set_ready(self->daemon, is_ready);
}

static bl_status_t create(bl_daemon_t *daemon, void *context, bl_error_t *err) {
  program_t *self = context;
  self->daemon = daemon;
  bl_status_t status = choose_data_path(self, err);
  if (status != BL_OK) {
    return status;
  }
  const int64_t pod = bl_pod_index(self->arguments.pod_index);
  bl_pod_announce(pod);
  bl_stage_options_t options = {.pod = pod,
                                .unix_path = self->data_path,
                                .tcp_host = self->data_host,
                                .tcp_advertise = advertised(self),
                                .tls = bl_daemon_tls(daemon),
                                .rpc = bl_daemon_rpc(daemon),
                                .plaintext_ok = self->arguments.common.tls.plaintext,
                                .rest_ms = (uint64_t)(self->arguments.rest_seconds * 1000),
                                .gpu = (int32_t)self->arguments.gpu,
                                .nccl_shared_gpu = self->arguments.nccl_shared_gpu,
                                .first_core = (int32_t)self->arguments.core,
                                .core_tokens = self->arguments.core_tokens};
  status = bl_service_create(bl_daemon_loop(daemon), &options, stop, self, &self->service, err);
  if (status == BL_OK) {
    bl_service_set_registry(self->service, bl_daemon_registry(daemon));
    bl_service_on_ready(self->service, ready, self);
    status = bl_policy_proxy_create(bl_daemon_rpc(daemon), 0, &self->policy_proxy, err);
  }
  if (status == BL_OK) {
    bl_service_set_policy_proxy(self->service, self->policy_proxy);
  }
  return status;
}

static void collect(bl_registry_t *registry, void *context) {
  (void)registry;
  const program_t *self = context;
  bl_service_collect(self->service);
}

static bl_status_t serve(bl_rpc_server_t *server, void *context, bl_error_t *err) {
  const program_t *self = context;
  bl_status_t status = bl_service_serve(self->service, server, err);
  return status == BL_OK ? bl_policy_proxy_serve(self->policy_proxy, server, err) : status;
}

static void end_calls(void *context) {
  const program_t *self = context;
  bl_service_end_calls(self->service);
  bl_policy_proxy_end_calls(self->policy_proxy);
}

static void destroy(void *context) {
  const program_t *self = context;
  bl_service_destroy(self->service);
  bl_policy_proxy_destroy(self->policy_proxy);
}

int main(int argc, char **argv) {
  static program_t self;
  static const bl_library_t *const libraries[] = {&bl_ops_library, &bl_formats_library};
  const bl_daemon_options_t options = {.flags = &flags,
                                       .arguments = &self.arguments,
                                       .common = &self.arguments.common,
                                       .health_name = "ballast.v1.Stage",
                                       .roles = BL_STAGES,
                                       .metrics = bl_meter_rows,
                                       .metric_count = bl_meter_row_count,
                                       .libraries = libraries,
                                       .library_count = sizeof libraries / sizeof libraries[0],
                                       .hooks = {.instead = answer_instead,
                                                 .versions = print_versions,
                                                 .create = create,
                                                 .serve = serve,
                                                 .collect = collect,
                                                 .end_calls = end_calls,
                                                 .destroy = destroy},
                                       .context = &self};
  return bl_daemon_main(&options, argc, argv);
}

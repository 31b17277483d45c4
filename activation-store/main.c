// SPDX-License-Identifier: Apache-2.0
// activation-store: lends memory under leases, as a gRPC service (ballast.v1.Store), with its health service on a port
// of its own.
#include "announce_wire.h"
#include "base/bytes.h"
#include "base/host.h"
#include "datapath/address.h"
#include "device/libraries.h"
#include "loop/timer.h"
#include "meter.h"
#include "pool.h"
#include "service/daemon.h"
#include "service_wire.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/memory.h"
#include "sys/numa.h"
#include "sys/runtime.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_POLL_MS 50
#define DEVICES_MAX   64

typedef struct arguments {
  bl_daemon_arguments_t common;
  char *data_listen, *data_tcp;
  int64_t threads, numa_node;
  int64_t capacity_bytes, spill_bytes, flow_bytes, rate;
  bool turns;
  char *device;
  bool nccl_shared_gpu;
  int64_t max_jobs, max_sessions, max_leases;
  double ttl_seconds, grace_seconds, drain_seconds;
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)
static const bl_option_t rows[] = {
    BL_DAEMON_ROWS(arguments_t, common, "127.0.0.1:7800"),
    {.name = "data-listen",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_listen),
     .argument = "unix:/path",
     .help = "Where holders on this machine reach the data path (shm). Default: beside the control socket, or in the "
             "run-time folder."},
    {.name = "data-tcp",
     .type = BL_OPTION_TEXT,
     .offset = ROW(data_tcp),
     .argument = "HOST:PORT",
     .help = "Where other holders reach it (tcp; port 0 takes a free one). Default: the host of --listen; with a unix "
             "socket there, none."},
    {.name = "capacity",
     .type = BL_OPTION_BYTES,
     .offset = ROW(capacity_bytes),
     .preset = "1 GiB",
     .minimum = 65536,
     .maximum = 1e18,
     .help = "Memory to lend, all jobs together. It is taken job by job, when the first session of one opens; far more "
             "than there is is warned of."},
    {.name = "device",
     .type = BL_OPTION_TEXT,
     .offset = ROW(device),
     .preset = "host",
     .argument = "host|cuda:N",
     .help = "Whose memory is lent: the host's, or that of GPU N, counted among those that this process sees."},
    {.name = "nccl-shared-gpu",
     .type = BL_OPTION_BOOL,
     .offset = ROW(nccl_shared_gpu),
     .help = "Holders compute on the GPU of --device, too: NCCL then goes over sockets. For tests on few GPUs."},
    {.name = "spill",
     .type = BL_OPTION_BYTES,
     .offset = ROW(spill_bytes),
     .preset = "0",
     .minimum = 0,
     .maximum = 1e18,
     .help = "Memory of the host in addition to that of --device, for slots that do not fit there, and for holders "
             "that cannot "
             "reach it."},
    {.name = "numa-node",
     .type = BL_OPTION_INT,
     .offset = ROW(numa_node),
     .preset = "-1",
     .minimum = -1,
     .maximum = BL_NUMA_NODES - 1,
     .help = "Take memory of the host on this NUMA node while it has any. -1: on that of the GPU of --device, if the "
             "system tells it."},
    {.name = "max-jobs",
     .type = BL_OPTION_INT,
     .offset = ROW(max_jobs),
     .preset = "64",
     .minimum = 1,
     .maximum = 65535,
     .help = "Jobs at a time."},
    {.name = "max-sessions",
     .type = BL_OPTION_INT,
     .offset = ROW(max_sessions),
     .preset = "256",
     .minimum = 1,
     .maximum = 65535,
     .help = "Holders at a time."},
    {.name = "max-leases",
     .type = BL_OPTION_INT,
     .offset = ROW(max_leases),
     .preset = "65536",
     .minimum = 1,
     .maximum = 100000000,
     .help = "Slots at a time; about 160 bytes of memory each."},
    {.name = "flow",
     .type = BL_OPTION_BYTES,
     .offset = ROW(flow_bytes),
     .preset = "0",
     .minimum = 0,
     .maximum = 1e18,
     .help = "Bytes in flight per session; 0 is no limit. One block always may."},
    {.name = "ttl",
     .type = BL_OPTION_REAL,
     .offset = ROW(ttl_seconds),
     .preset = "10",
     .minimum = 2,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long a session lives without a sign of life, if its holder asks for nothing else."},
    {.name = "grace",
     .type = BL_OPTION_REAL,
     .offset = ROW(grace_seconds),
     .preset = "10",
     .minimum = 0.1,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long after that it keeps what it has, unless the slot is needed."},
    {.name = "drain",
     .type = BL_OPTION_REAL,
     .offset = ROW(drain_seconds),
     .preset = "30",
     .minimum = 0,
     .maximum = 86400,
     .unit = "seconds",
     .help = "On SIGTERM: how long to wait for holders to let go of what they have."},
    {.name = "threads",
     .type = BL_OPTION_INT,
     .offset = ROW(threads),
     .preset = "1",
     .minimum = 1,
     .maximum = BL_POOL_THREADS_MAX,
     .help = "Transfer threads."},
    {.name = "turns",
     .type = BL_OPTION_BOOL,
     .offset = ROW(turns),
     .help =
         "Blocks of holders on this machine move one at a time, in the order of asking: for memory that many devices "
         "reach over one link."},
    {.name = "rate",
     .type = BL_OPTION_BYTES,
     .offset = ROW(rate),
     .preset = "0",
     .minimum = 0,
     .maximum = 1e18,
     .unit = "bytes per second",
     .help = "Slows that link down, to see what a slower one would do; 0: as fast as it goes."},
};

static const bl_flags_t flags = {
    .program = "activation-store",
    .usage = "[--listen ADDR] [--capacity BYTES] [options]",
    .about =
        "Lends memory under leases: pipeline stages that have too little park activation blocks here and load them "
        "back before they need them.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
};

typedef struct program {
  arguments_t arguments;
  bl_daemon_t *daemon;
  bl_device_t *device;
  bl_service_t *service;
  bl_policy_proxy_t *policy_proxy;
  bl_timer_t *drain_timer;
  uint64_t drain_until_ms;
  char data_address[PATH_MAX];
  bl_address_t data_tcp; // length 0: none
  bool draining;
} program_t;

// Waits until no lease is held, with a time limit. A second signal ends the wait.
static void on_drain_poll(bl_timer_t *timer, void *context) {
  (void)timer;
  program_t *self = context;
  bl_lease_table_t *table = bl_store_table(bl_service_store(self->service));
  bool late = bl_loop_now_ms(bl_daemon_loop(self->daemon)) >= self->drain_until_ms;
  if (bl_lease_table_is_drained(table) || late) {
    bl_timer_stop(self->drain_timer);
    if (!bl_lease_table_is_drained(table)) {
      bl_log(BL_LOG_WARNING, "ending although leases are held: the time to drain is over");
    }
    bl_daemon_stop(self->daemon, 0);
  }
}

static void signalled(bl_daemon_t *daemon, int number, void *context) {
  program_t *self = context;
  bool ends = self->draining || number != SIGTERM;
  bl_log(BL_LOG_INFO, "%s on %s", ends ? "ending" : "draining", strsignal(number));
  if (ends) {
    bl_daemon_stop(daemon, 0);
    return;
  }
  self->draining = true;
  bl_daemon_set_serving(daemon, false);
  bl_lease_table_drain(bl_store_table(bl_service_store(self->service)), true);
  bl_store_carry_out(bl_service_store(self->service));
  self->drain_until_ms = bl_loop_now_ms(bl_daemon_loop(daemon)) + (uint64_t)(self->arguments.drain_seconds * 1000);
  bl_timer_start(self->drain_timer, 0, DRAIN_POLL_MS);
}

// An operator drains or resumes: health probes of the service learn it before the table does, and the process stays
// alive. A process that is ending keeps its state.
static bool on_drain(bool draining, void *context) {
  const program_t *self = context;
  if (!self->draining) {
    bl_daemon_set_ready(self->daemon, !draining);
  }
  return draining || !self->draining;
}

// Chooses where the data path listens on TCP: the given address, or the host of the control address.
static bl_status_t choose_data_tcp(program_t *self, bl_error_t *err) {
  const bl_daemon_arguments_t *common = &self->arguments.common;
  const char *told = self->arguments.data_tcp, *address = told != NULL ? told : common->listen;
  char host[256];
  uint16_t port;
  if (strncmp(address, "unix:", 5) == 0) {
    return told == NULL ? BL_OK : bl_error_set(err, BL_INVALID, "--data-tcp %s: that is a unix socket", told);
  }
  bl_status_t status = bl_host_split(address, host, sizeof host, &port, err);
  if (status == BL_OK && !common->tls.plaintext && bl_daemon_tls(self->daemon) == NULL && !bl_host_is_loopback(host)) {
    if (told == NULL) {
      bl_log(BL_LOG_INFO, "no data path over tcp: off the loopback interface it takes --plaintext");
      return BL_OK;
    }
    status = bl_error_set(
        err, BL_DENIED, "--data-tcp %s: plaintext is refused off the loopback interface; --plaintext allows it", told);
  }
  return status == BL_OK ? bl_address_resolve(host, told != NULL ? port : 0, &self->data_tcp, err) : status;
}

// Chooses where it listens for holders on this machine: a socket next to the control socket, or in the run-time folder.
static bl_status_t choose_data_path(program_t *self, bl_error_t *err) {
  const arguments_t *arguments = &self->arguments;
  const char *listen = arguments->common.listen;
  if (arguments->data_listen != NULL) {
    snprintf(self->data_address, sizeof self->data_address, "%s", arguments->data_listen);
  } else if (strncmp(listen, "unix:", 5) == 0) {
    snprintf(self->data_address, sizeof self->data_address, "%s.data", listen);
  } else {
    char folder[PATH_MAX - 64];
    bl_status_t status = bl_runtime_folder(folder, sizeof folder, err);
    if (status != BL_OK) {
      return status;
    }
    snprintf(self->data_address, sizeof self->data_address, "unix:%s/store-%ld.data", folder, (long)getpid());
  }
  return BL_OK;
}

// Opens the device of --device.
static bl_status_t open_device(program_t *self, bl_error_t *err) {
  const char *text = self->arguments.device;
  char *end = NULL;
  if (text == NULL || strcmp(text, "host") == 0) {
    return bl_device_open(BL_DEVICE_HOST, 0, &self->device, err);
  }
  unsigned long ordinal = strncmp(text, "cuda:", 5) == 0 ? strtoul(text + 5, &end, 10) : 0;
  if (strcmp(text, "cuda") != 0 && (end == NULL || end == text + 5 || *end != '\0' || ordinal > UINT32_MAX)) {
    return bl_error_set(err, BL_INVALID, "--device %s: host, cuda or cuda:N", text);
  }
  bl_status_t status = bl_device_open(BL_DEVICE_CUDA, (uint32_t)ordinal, &self->device, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "--device %s", text);
  }
  return status;
}

static void print_versions(FILE *stream) {
  bl_device_libraries_print(BL_DEVICE_CUDA, stream);
}

// Memory is allocated when a job opens its session, and refused if it is not available then. So this can only warn.
static void doubt_capacity(const program_t *self) {
  const bool on_host = self->device->host_memory;
  const uint64_t lent =
      (on_host ? (uint64_t)self->arguments.capacity_bytes : 0) + (uint64_t)self->arguments.spill_bytes;
  const uint64_t available = bl_memory_available_bytes();
  char wanted[BL_BYTES_TEXT], there[BL_BYTES_TEXT];
  if (lent / 2 > available) {
    bl_log(
        BL_LOG_WARNING,
        "%s: %s are to be lent, and this process can have %s of memory: slots beyond that will be refused when a job "
        "opens them",
        on_host ? "--capacity" : "--spill", bl_bytes_format(lent, wanted), bl_bytes_format(available, there));
  }
}

// Returns the NUMA node of the GPU of --device, -1: not known, or there is no GPU.
static int32_t node_of_device(const program_t *self) {
  bl_device_summary_t all[DEVICES_MAX];
  uint32_t count = 0, ordinal = 0;
  bl_error_t ignored;
  if (self->device->host_memory || bl_device_list(BL_DEVICE_CUDA, all, DEVICES_MAX, &count, &ignored) != BL_OK) {
    return -1;
  }
  (void)sscanf(self->arguments.device, "cuda:%u", &ordinal);
  return ordinal < count && ordinal < DEVICES_MAX ? bl_numa_node_of_pci(BL_NUMA_ROOT, all[ordinal].address) : -1;
}

// Chooses where memory of the host lies, before threads exist that take some.
static bl_status_t choose_node(const program_t *self, bl_error_t *err) {
  const bool asked = self->arguments.numa_node >= 0;
  const int32_t node = asked ? (int32_t)self->arguments.numa_node : node_of_device(self);
  bl_error_t fault;
  if (node < 0) {
    return BL_OK;
  }
  bl_status_t status = bl_numa_prefer(BL_NUMA_ROOT, (uint32_t)node, &fault);
  if (status == BL_OK) {
    bl_log(BL_LOG_INFO, "memory of the host is taken on NUMA node %d", node);
    return BL_OK;
  }
  if (!asked) { // slower, but right
    bl_log(BL_LOG_WARNING, "%s is at NUMA node %d: %s", self->arguments.device, node, fault.text);
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID, "--numa-node %d: %s", node, fault.text);
}

static bl_status_t create(bl_daemon_t *daemon, void *context, bl_error_t *err) {
  program_t *self = context;
  self->daemon = daemon;
  bl_status_t status = open_device(self, err);
  if (status == BL_OK) {
    status = choose_node(self, err);
  }
  if (status == BL_OK) {
    doubt_capacity(self);
    status = choose_data_path(self, err);
  }
  if (status == BL_OK) {
    status = choose_data_tcp(self, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(bl_daemon_loop(daemon), on_drain_poll, self, &self->drain_timer, err);
  }
  if (status != BL_OK) {
    return status;
  }
  const arguments_t *arguments = &self->arguments;
  bl_store_options_t options = {.leases = {.capacity_bytes = (uint64_t)arguments->capacity_bytes,
                                           .spill_bytes = (uint64_t)arguments->spill_bytes,
                                           .max_jobs = (uint32_t)arguments->max_jobs,
                                           .max_sessions = (uint32_t)arguments->max_sessions,
                                           .max_leases = (uint32_t)arguments->max_leases,
                                           .session_flow_bytes = (uint64_t)arguments->flow_bytes,
                                           .ttl_ns = (uint64_t)(arguments->ttl_seconds * BL_NS_PER_S),
                                           .grace_ns = (uint64_t)(arguments->grace_seconds * BL_NS_PER_S)},
                                .data_address = self->data_address,
                                .device = self->device,
                                .nccl_shared_gpu = self->arguments.nccl_shared_gpu,
                                .tls = bl_daemon_tls(self->daemon),
                                .data_tcp = self->data_tcp.length != 0 ? &self->data_tcp : NULL,
                                .turns = arguments->turns,
                                .bytes_per_second = (uint64_t)arguments->rate,
                                .transfer_threads = (unsigned)arguments->threads};
  status = bl_service_create(bl_daemon_loop(daemon), &options, &self->service, err);
  if (status == BL_OK) {
    bl_service_set_registry(self->service, bl_daemon_registry(daemon));
    bl_service_set_on_drain(self->service, on_drain, self);
    status = bl_policy_proxy_create(bl_daemon_rpc(daemon), BL_ANNOUNCE_KEEP_MS, &self->policy_proxy, err);
  }
  if (status == BL_OK) {
    bl_service_set_policy_proxy(self->service, self->policy_proxy);
  }
  return status;
}

static void collect(bl_registry_t *registry, void *context) {
  const program_t *self = context;
  bl_store_t *store = bl_service_store(self->service);
  bl_meter_collect(registry, bl_store_table(store), bl_store_data_counters(store));
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
  bl_timer_destroy(self->drain_timer);
  bl_device_close(self->device);
}

int main(int argc, char **argv) {
  static program_t self;
  const bl_daemon_options_t options = {.flags = &flags,
                                       .arguments = &self.arguments,
                                       .common = &self.arguments.common,
                                       .health_name = "ballast.v1.Store",
                                       .roles = BL_STORES,
                                       .metrics = bl_meter_rows,
                                       .metric_count = bl_meter_row_count,
                                       .hooks = {.create = create,
                                                 .versions = print_versions,
                                                 .serve = serve,
                                                 .collect = collect,
                                                 .signalled = signalled,
                                                 .end_calls = end_calls,
                                                 .destroy = destroy},
                                       .context = &self};
  return bl_daemon_main(&options, argc, argv);
}

// SPDX-License-Identifier: Apache-2.0
#include "service/process_metrics.h"

#include "sys/clock.h"
#include "sys/version.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BUILD, START, RESIDENT, CPU, DESCRIPTORS, CERTIFICATE };

static const char *version(unsigned index) {
  (void)index;
  return bl_version();
}

const bl_metric_row_t bl_process_metrics[BL_PROCESS_METRICS] = {
    [BUILD] = {.name = "ballast_build_info",
               .kind = BL_METRIC_GAUGE,
               .label = "version",
               .value_of = version,
               .series = 1,
               .help = "1, with the version of the program."},
    [START] = {.name = "ballast_process_start_time_seconds",
               .kind = BL_METRIC_GAUGE,
               .help = "When the process started, in seconds since 1970."},
    [RESIDENT] = {.name = "ballast_process_resident_memory_bytes",
                  .kind = BL_METRIC_GAUGE,
                  .help = "Resident memory of the process, shared mappings included."},
    [CPU] = {.name = "ballast_process_cpu_seconds_total",
             .kind = BL_METRIC_COUNTER,
             .help = "Processor time of the process, user and system."},
    [DESCRIPTORS] = {.name = "ballast_process_open_descriptors",
                     .kind = BL_METRIC_GAUGE,
                     .help = "Open file descriptors of the process."},
    [CERTIFICATE] = {.name = "ballast_tls_certificate_expires_seconds",
                     .kind = BL_METRIC_GAUGE,
                     .help = "When the TLS certificate of the process ends, in seconds since 1970; 0 without TLS."},
};

static void collect_memory(bl_registry_t *registry) {
  FILE *file = fopen("/proc/self/statm", "re");
  unsigned long total, resident;
  if (file != NULL) {
    if (fscanf(file, "%lu %lu", &total, &resident) == 2) {
      bl_registry_set(registry, RESIDENT, 0, (double)resident * (double)sysconf(_SC_PAGESIZE));
    }
    fclose(file);
  }
}

static void collect_descriptors(bl_registry_t *registry) {
  DIR *folder = opendir("/proc/self/fd");
  if (folder != NULL) {
    unsigned count = 0;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
      count += entry->d_name[0] != '.';
    }
    closedir(folder);
    bl_registry_set(registry, DESCRIPTORS, 0, count - 1); // without the descriptor that reads the folder
  }
}

void bl_process_metrics_collect(bl_registry_t *registry, bl_tls_t *tls) {
  static double start_seconds; // the first collection is near the start of the process
  if (start_seconds == 0) {
    start_seconds = (double)bl_clock_wall_ns() / BL_NS_PER_S;
  }
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    bl_registry_set(registry, CPU, 0,
                    (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                        ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6);
  }
  bl_registry_set(registry, BUILD, 0, 1);
  bl_registry_set(registry, CERTIFICATE, 0, tls != NULL ? (double)bl_tls_expiry(tls) : 0);
  bl_registry_set(registry, START, 0, start_seconds);
  collect_memory(registry);
  collect_descriptors(registry);
}

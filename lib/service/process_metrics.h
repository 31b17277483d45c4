// SPDX-License-Identifier: Apache-2.0
// Metrics of the process of every service: version, memory, processor time, descriptors, certificate.
// Thread: the loop's.
#ifndef BALLAST_SERVICE_PROCESS_METRICS_H
#define BALLAST_SERVICE_PROCESS_METRICS_H

#include "observe/registry.h"
#include "tls/tls.h"

#define BL_PROCESS_METRICS 6
extern const bl_metric_row_t bl_process_metrics[BL_PROCESS_METRICS];

// Reads /proc/self. A value that cannot be read stays unchanged. `tls`: NULL for plaintext.
void bl_process_metrics_collect(bl_registry_t *registry, bl_tls_t *tls);

#endif

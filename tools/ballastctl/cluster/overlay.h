// SPDX-License-Identifier: Apache-2.0
// A kustomize overlay over deploy/k8s/base as text: kustomization.yaml, and the addresses of its services for the job.
#ifndef BALLAST_BALLASTCTL_OVERLAY_H
#define BALLAST_BALLASTCTL_OVERLAY_H

#include "job/pods.h"

#include <stdio.h>

typedef struct bl_ctl_overlay {
  const char *name;   // of the run: prefix of every name, label instance
  const char *base;   // path or address of deploy/k8s, without the last slash
  const char *images; // prefix of "ballast-stage": "" or "registry.example/team/"
  const char *tag;    // of the images
  bl_grid_t grid;
  bool cuda, tls, paired, volumes, kueue, monitored;
  bool jobset; // stages and driver as one JobSet; not with `paired`
  bl_pods_t pods;
} bl_ctl_overlay_t;

// BL_INVALID: objects of a cluster cannot all begin with this name (lower case letters, digits, '-', at most 40).
BL_MUST_USE bl_status_t bl_ctl_overlay_check_name(const char *name, bl_error_t *err);
// BL_INVALID: images cannot be called so.
BL_MUST_USE bl_status_t bl_ctl_overlay_check_images(const char *prefix, const char *tag, bl_error_t *err);
// Returns "services.stages=[a, b, ...]" (or stores), in the order of ranks; malloc'd. NULL: no memory.
char *bl_ctl_overlay_stages(const bl_ctl_overlay_t *overlay);
char *bl_ctl_overlay_stores(const bl_ctl_overlay_t *overlay);
// Returns the host stores, one per pod of a pair; only if stages are `paired`.
char *bl_ctl_overlay_host_stores(const bl_ctl_overlay_t *overlay);
// Prints kustomization.yaml.
void bl_ctl_overlay_print(const bl_ctl_overlay_t *overlay, FILE *stream);

#endif

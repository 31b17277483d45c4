// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/overlay.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// "NAME-stage-0-0.NAME-..." must stay within the 63 bytes of a DNS label.
#define NAME_MAX_BYTES 40
#define TAG_MAX_BYTES  128
#define ADDRESS_BYTES  160

bl_status_t bl_ctl_overlay_check_name(const char *name, bl_error_t *err) {
  size_t length = strlen(name);
  bool well = length > 0 && length <= NAME_MAX_BYTES && isalpha((unsigned char)name[0]) && name[length - 1] != '-';
  for (size_t i = 0; i < length; i++) {
    well = well && (islower((unsigned char)name[i]) || isdigit((unsigned char)name[i]) || name[i] == '-');
  }
  return well
             ? BL_OK
             : bl_error_set(err, BL_INVALID,
                            "'%.60s' cannot begin the names of a cluster's objects: it takes a lower case letter, then "
                            "lower case letters, digits and '-', at most %d; give another with --name",
                            name, NAME_MAX_BYTES);
}

bl_status_t bl_ctl_overlay_check_images(const char *prefix, const char *tag, bl_error_t *err) {
  static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  static const char path[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/:";
  const size_t length = strlen(tag);
  if (length == 0 || length > TAG_MAX_BYTES || strspn(tag, word) != length || tag[0] == '.' || tag[0] == '-') {
    return bl_error_set(
        err, BL_INVALID,
        "--tag '%.60s' is no tag of an image: it takes letters, digits, '_', '.' and '-', at most %d, and "
        "begins with none of '.' and '-'",
        tag, TAG_MAX_BYTES);
  }
  if (prefix[strspn(prefix, path)] != '\0' || strstr(prefix, "//") != NULL) {
    return bl_error_set(err, BL_INVALID,
                        "--images '%.200s' cannot begin the name of an image; write it as in registry.example/team/",
                        prefix);
  }
  return BL_OK;
}

// Returns the addresses of one program of every rank, in their order: pods of `set` in `domain`. `port` is for the
// first of a pair; its partner's is ten higher if both are in one pod.
static char *addresses(const bl_ctl_overlay_t *o, const char *key, const char *set, const char *domain, unsigned port) {
  size_t room = 64 + (size_t)bl_grid_ranks(&o->grid) * ADDRESS_BYTES, used;
  char *text = malloc(room);
  if (text == NULL) {
    return NULL;
  }
  used = (size_t)snprintf(text, room, "services.%s=[", key);
  for (uint32_t s = 0; s < bl_grid_ranks(&o->grid); s++) {
    uint32_t pod = bl_pod_of_rank(&o->grid, s);
    unsigned shift = o->paired ? pod % 2 * 10 : 0;
    used += (size_t)snprintf(text + used, room - used, "%s%s-%s-%u.%s-%s:%u", s == 0 ? "" : ", ", o->name, set,
                             o->paired ? pod / 2 : pod, o->name, domain, port + shift);
  }
  snprintf(text + used, room - used, "]");
  return text;
}

char *bl_ctl_overlay_stages(const bl_ctl_overlay_t *o) {
  return o->jobset ? addresses(o, "stages", "ballast-stage-0", "ballast", 7700)
                   : addresses(o, "stages", "stage", "stage", 7700);
}

char *bl_ctl_overlay_stores(const bl_ctl_overlay_t *o) {
  const char *set = o->paired ? "stage" : "store";
  return addresses(o, "stores", set, set, 7800);
}

static uint32_t pod_count(const bl_ctl_overlay_t *o) {
  const uint32_t ranks = bl_grid_ranks(&o->grid);
  return o->paired ? (ranks + 1) / 2 : ranks;
}

char *bl_ctl_overlay_host_stores(const bl_ctl_overlay_t *o) {
  size_t room = 64 + (size_t)pod_count(o) * ADDRESS_BYTES, used;
  char *text = malloc(room);
  if (text == NULL) {
    return NULL;
  }
  used = (size_t)snprintf(text, room, "services.host_stores=[");
  for (uint32_t pod = 0; pod < pod_count(o); pod++) { // a stage finds its own store by this host name
    used += (size_t)snprintf(text + used, room - used, "%s%s-stage-%u.%s-stage:7820", pod == 0 ? "" : ", ", o->name,
                             pod, o->name);
  }
  snprintf(text + used, room - used, "]");
  return text;
}

static unsigned long mebibytes(uint64_t bytes) {
  return (unsigned long)((bytes + (1 << 20) - 1) >> 20);
}

static void print_components(const bl_ctl_overlay_t *o, FILE *stream) {
  const struct {
    bool wanted;
    const char *name;
  } components[] = {{o->jobset, "jobset"}, // must be before components that patch it
                    {o->cuda, "cuda"},
                    {o->paired, "pair-pod"},
                    {o->volumes, "shared-volumes"},
                    {o->tls, "mtls"},
                    {o->tls && o->paired, "pair-mtls"},
                    {o->kueue, "kueue"},
                    {o->monitored, "prometheus-operator"}};
  bool any = false;
  for (size_t i = 0; i < sizeof components / sizeof components[0]; i++) {
    if (components[i].wanted) {
      fprintf(stream, "%s  - %s/components/%s\n", any ? "" : "components:\n", o->base, components[i].name);
      any = true;
    }
  }
}

static void print_images(const bl_ctl_overlay_t *o, FILE *stream) {
  const char *programs[] = {o->paired ? "tools" : "stage", "store", "driver"};
  fprintf(stream, "images:\n");
  for (size_t i = 0; i < 3; i++) {
    const char *variant = o->cuda && i < 2 ? "-cuda" : ""; // the driver computes nothing
    if (i != 1 || !o->paired) {                            // a pair's stores use the stages' image
      fprintf(stream, "  - {name: ballast-%s%s, newName: %sballast-%s%s, newTag: \"%s\"}\n", programs[i], variant,
              o->images, programs[i], variant, o->tag);
    }
  }
  if (!o->paired || o->cuda) { // for the driver's preflight
    fprintf(stream, "  - {name: ballast-tools, newName: %sballast-tools, newTag: \"%s\"}\n", o->images, o->tag);
  }
}

// JSON path of the pods in a JobSet of deploy/k8s/components/jobset: 0 the stages', 1 the driver's.
#define JOBSET_POD(job) "/spec/replicatedJobs/" #job "/template/spec/template/spec"

static void print_stage_patch(const bl_ctl_overlay_t *o, FILE *stream) {
  const bool host = o->pods.host_bytes > 0;
  const uint64_t bytes =
      o->paired ? 2 * (o->pods.stage_bytes + o->pods.store_bytes) + o->pods.host_bytes : o->pods.stage_bytes;
  const uint32_t millicpus =
      o->paired ? 2 * (o->pods.stage_millicpus + o->pods.store_millicpus) + (host ? BL_PODS_STORE_MILLICPUS : 0)
                : o->pods.stage_millicpus;
  const uint32_t pods = pod_count(o);
  const char *pod = o->jobset ? JOBSET_POD(0) : "/spec/template/spec";
  if (o->jobset) {
    fprintf(stream,
            "  - target: {kind: JobSet, name: ballast}\n"
            "    patch: |-\n"
            "      - {op: replace, path: /spec/replicatedJobs/0/template/spec/completions, value: %u}\n"
            "      - {op: replace, path: /spec/replicatedJobs/0/template/spec/parallelism, value: %u}\n",
            pods, pods);
  } else {
    fprintf(stream,
            "  - target: {kind: StatefulSet, name: stage}\n"
            "    patch: |-\n"
            "      - {op: replace, path: /spec/replicas, value: %u}\n",
            pods);
  }
  fprintf(stream,
          "      - {op: replace, path: %s/terminationGracePeriodSeconds, value: %u}\n"
          "      - {op: replace, path: %s/containers/0/resources/requests/cpu, value: %um}\n"
          "      - {op: replace, path: %s/containers/0/resources/requests/memory, value: %luMi}\n"
          "      - {op: replace, path: %s/containers/0/resources/limits/memory, value: %luMi}\n",
          pod, o->pods.grace_seconds, pod, millicpus, pod, mebibytes(bytes), pod, mebibytes(bytes));
  if (o->paired) {
    fprintf(stream,
            "      - op: add\n"
            "        path: /spec/template/spec/containers/0/env/-\n"
            "        value: {name: STORE_CAPACITY, value: \"%llu\"}\n",
            (unsigned long long)o->pods.capacity_bytes);
  }
  if (o->paired && host) {
    fprintf(stream,
            "      - op: add\n"
            "        path: /spec/template/spec/containers/0/env/-\n"
            "        value: {name: HOST_CAPACITY, value: \"%llu\"}\n",
            (unsigned long long)o->pods.host_capacity_bytes);
  }
  if (o->paired && o->cuda) {
    fprintf(stream, "      - {op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, "
                    "value: 2}\n");
  }
}

static void print_store_patch(const bl_ctl_overlay_t *o, FILE *stream) {
  fprintf(stream,
          "  - target: {kind: StatefulSet, name: store}\n"
          "    patch: |-\n"
          "      - {op: replace, path: /spec/replicas, value: %u}\n"
          "      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: %um}\n"
          "      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/memory, value: %luMi}\n"
          "      - {op: replace, path: /spec/template/spec/containers/0/resources/limits/memory, value: %luMi}\n"
          "      - {op: replace, path: /spec/template/spec/containers/0/args/5, value: --capacity=%llu}\n",
          bl_grid_ranks(&o->grid), o->pods.store_millicpus, mebibytes(o->pods.store_bytes),
          mebibytes(o->pods.store_bytes), (unsigned long long)o->pods.capacity_bytes);
}

// Adds the metrics port of host stores. Without a host store nothing listens there, so it is not in the base.
static void print_host_metrics(FILE *stream) {
  fprintf(stream, "  - target: {kind: PodMonitor, name: ballast}\n"
                  "    patch: |-\n"
                  "      - {op: add, path: /spec/podMetricsEndpoints/-, value: {port: metrics-host, interval: 5s}}\n");
}

// Sets how many neighbours must share a node: a pair of stages, with all tensor ranks of both.
static void print_slices(const bl_ctl_overlay_t *o, const char *target, const char *template, FILE *stream) {
  fprintf(stream,
          "  - target: {%s}\n"
          "    patch: |-\n"
          "      - {op: replace, path: %s/metadata/annotations/kueue.x-k8s.io~1podset-slice-size, value: \"%u\"}\n",
          target, template, 2 * o->grid.tensor);
}

void bl_ctl_overlay_print(const bl_ctl_overlay_t *o, FILE *stream) {
  fprintf(stream,
          "# Written by ballastctl render. Apply it with: kubectl apply -k .\n"
          "apiVersion: kustomize.config.k8s.io/v1beta1\n"
          "kind: Kustomization\n"
          "resources:\n"
          "  - %s/base\n",
          o->base);
  print_components(o, stream);
  fprintf(stream,
          "namePrefix: %s-\n"
          "labels:\n"
          "  - includeSelectors: true\n"
          "    includeTemplates: true\n"
          "    pairs:\n"
          "      app.kubernetes.io/instance: \"%s\"\n"
          "configMapGenerator:\n"
          "  - name: job\n"
          "    behavior: replace\n"
          "    files:\n"
          "      - job.yaml\n",
          o->name, o->name);
  print_images(o, stream);
  fprintf(stream, "patches:\n");
  print_stage_patch(o, stream);
  if (!o->paired) {
    print_store_patch(o, stream);
  }
  if (o->monitored && o->pods.host_bytes > 0) {
    print_host_metrics(stream);
  }
  if (o->kueue && o->grid.tensor > 1) {
    print_slices(o, o->jobset ? "kind: StatefulSet, name: store" : "kind: StatefulSet, name: (stage|store)",
                 "/spec/template", stream);
    if (o->jobset) {
      print_slices(o, "kind: JobSet, name: ballast", "/spec/replicatedJobs/0/template/spec/template", stream);
    }
  }
  fprintf(stream,
          "  - target: {kind: %s, name: %s}\n"
          "    patch: |-\n"
          "      - {op: replace, path: %s/terminationGracePeriodSeconds, value: %u}\n",
          o->jobset ? "JobSet" : "Job", o->jobset ? "ballast" : "driver",
          o->jobset ? JOBSET_POD(1) : "/spec/template/spec", o->pods.grace_seconds);
}

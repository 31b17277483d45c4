// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/cluster_flags.h"

#include <stdlib.h>

#define NODES_MAX   65536
#define DEVICES_MAX 1024

static bl_status_t read_nodes(const char *text, bl_cluster_t *cluster, bl_error_t *err) {
  char *end, *rest;
  unsigned long nodes = strtoul(text, &end, 10), devices = *end == 'x' ? strtoul(end + 1, &rest, 10) : 0;
  if (text[0] < '0' || text[0] > '9' || *end != 'x' || *rest != '\0' || nodes == 0 || devices == 0 ||
      nodes > NODES_MAX || devices > DEVICES_MAX) {
    return bl_error_set(err, BL_INVALID, "--nodes %s: is not NxG, such as 6x8: 6 nodes with 8 devices each", text);
  }
  cluster->nodes = (uint32_t)nodes;
  cluster->devices_per_node = (uint32_t)devices;
  return BL_OK;
}

bl_status_t bl_ctl_cluster_read(const bl_ctl_cluster_flags_t *flags, bl_hardware_t *hardware, bl_cluster_t *cluster,
                                bl_error_t *err) {
  bl_cluster_t made = {0};
  if (flags->nodes == NULL) {
    const char *lone = flags->intra_gbps.set   ? "--intra-gbps"
                       : flags->inter_gbps.set ? "--inter-gbps"
                       : flags->cards.set      ? "--cards"
                                               : NULL;
    *cluster = made;
    return lone == NULL ? BL_OK
                        : bl_error_set(err, BL_INVALID, "%s: is about a cluster, which --nodes NxG gives", lone);
  }
  bl_status_t status = read_nodes(flags->nodes, &made, err);
  if (status != BL_OK) {
    return status;
  }
  if (flags->cards.set && made.devices_per_node % flags->cards.value != 0) {
    return bl_error_set(err, BL_INVALID, "--cards %lld: %u devices of a node cannot share them evenly",
                        (long long)flags->cards.value, made.devices_per_node);
  }
  made.nics_per_node = flags->cards.set ? (uint32_t)flags->cards.value : made.devices_per_node;
  made.intra_rate = flags->intra_gbps.set ? flags->intra_gbps.value * 1e9 / 8 : hardware->intra_rate;
  made.inter_rate = flags->inter_gbps.set ? flags->inter_gbps.value * 1e9 / 8 : hardware->inter_rate;
  hardware->intra_rate = made.intra_rate;
  hardware->inter_rate = made.inter_rate;
  *cluster = made;
  return BL_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "rpc/explanation.h"

#include "loop/worker.h"
#include "tls/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl__explanation {
  bl_task_t task;
  LIST_ENTRY(bl__explanation) listed;
  bl__rpc_request_t *request;
  bl__explained_fn explained;
  bl_tls_t *tls; // NULL: plaintext
  unsigned roles;
  char host[BL_RPC_ADDRESS_BYTES], port[6], address[BL_RPC_ADDRESS_BYTES];
  bl_error_t err; // gRPC's error, replaced if the cause is found
};

static void find_out(bl_task_t *task) {
  bl__explanation_t *self = BL_TASK_OWNER(task, bl__explanation_t, task);
  const bl_tls_probe_t probe = {.host = self->host, .port = self->port, .protocol = "h2", .roles = self->roles};
  bl_error_t why;
  if (bl_tls_probe(self->tls, &probe, BL__EXPLANATION_MS, &why) == BL_UNAUTHENTICATED) {
    (void)bl_error_set(&self->err, why.status, "%s: %s", self->address, why.text);
  }
}

static void leave(bl_rpc_t *rpc, bl__explanation_t *self) {
  LIST_REMOVE(self, listed);
  rpc->explanation_count--;
  bl_tls_release(self->tls);
}

static void found_out(bl_task_t *task) {
  bl__explanation_t *self = BL_TASK_OWNER(task, bl__explanation_t, task);
  bl_rpc_t *rpc = self->request->rpc;
  leave(rpc, self);
  self->explained(self->request, &self->err);
  free(self);
}

bool bl__explanation_begin(bl__rpc_request_t *request, const bl_error_t *err, bl__explained_fn explained) {
  const bl_rpc_channel_t *channel = request->channel;
  bl_rpc_t *rpc = request->rpc;
  if (channel->peer.is_unix || rpc->explanation_count == BL__EXPLANATIONS_MAX) {
    return false;
  }
  bl_error_t ignored;
  if (rpc->prober == NULL && bl_worker_create_resting(rpc->loop, "tls-probe", &rpc->prober, &ignored) != BL_OK) {
    return false;
  }
  bl__explanation_t *self = calloc(1, sizeof *self);
  if (self == NULL) {
    return false;
  }
  *self = (bl__explanation_t){.request = request,
                              .explained = explained,
                              .tls = channel->tls != NULL ? bl_tls_acquire(channel->tls) : NULL,
                              .roles = bl__channel_server_roles(channel),
                              .err = *err};
  memcpy(self->host, channel->peer.host, sizeof self->host);
  memcpy(self->port, channel->peer.port, sizeof self->port);
  memcpy(self->address, channel->address, sizeof self->address);
  LIST_INSERT_HEAD(&rpc->explanations, self, listed);
  rpc->explanation_count++;
  bl_task_init(&self->task, find_out, found_out);
  bl_worker_submit(rpc->prober, &self->task);
  return true;
}

void bl__explanations_end(bl_rpc_t *rpc, void (*dropped)(bl__rpc_request_t *request)) {
  bl_worker_destroy(rpc->prober);
  rpc->prober = NULL;
  bl_loop_drain(rpc->loop); // handles the result of a finished probe
  for (bl__explanation_t *self; (self = LIST_FIRST(&rpc->explanations)) != NULL;) {
    leave(rpc, self);
    dropped(self->request);
    free(self);
  }
}

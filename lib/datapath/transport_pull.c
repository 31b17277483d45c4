// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport_pull.h"

#include "datapath/transport.h"

// On the puller's thread.
static void over(bl_pull_t *done, const bl_error_t *err) {
  bl__pull_t *pull = (bl__pull_t *)(void *)done; // its first member
  bl__link_t *link = pull->link;
  bl_transport_t *transport = link->transport;
  pthread_mutex_lock(&transport->mutex);
  bl_tensor_t *tensor = pull->tensor;
  pull->used = false;
  link->pulling--;
  transport->pulling--;
  if (tensor != NULL && tensor->stale) {
    bl_exchange_drop(link->exchange, tensor);
  } else if (tensor != NULL && err->status != BL_OK) {
    link->failure = *err; // for bl__pull_iterate
  } else if (tensor != NULL) {
    transport->counters.tensors_received++;
    transport->counters.bytes_received += tensor->bytes;
    (void)bl_exchange_moved(link->exchange, tensor, tensor->bytes);
  }
  bl__transport_changed(transport);
  pthread_cond_broadcast(&transport->untouched);
  // The iteration sends the ACK, starts the next pull, or frees the link.
  bl__transport_wake(transport);
  pthread_mutex_unlock(&transport->mutex);
}

void bl__pull_launch(bl__link_t *link) {
  for (unsigned i = 0; i < BL__LINK_PULLS; i++) {
    bl__pull_t *pull = &link->pulls[i];
    bl_tensor_t *tensor = pull->used ? NULL : bl__link_next_transfer(link);
    if (tensor == NULL) {
      continue;
    }
    bl_exchange_launch(link->exchange, tensor);
    *pull = (bl__pull_t){.pull = {.to = tensor->destination,
                                  .from = link->maps[tensor->arena].base + tensor->offset,
                                  .bytes = tensor->bytes,
                                  .over = over},
                         .link = link,
                         .tensor = tensor,
                         .used = true};
    link->pulling++;
    link->transport->pulling++;
    bl_puller_post(link->transport->puller, &pull->pull);
  }
}

void bl__pull_iterate(bl__link_t *link) {
  pthread_mutex_lock(&link->transport->mutex);
  const bl_error_t failure = link->failure;
  pthread_mutex_unlock(&link->transport->mutex);
  if (failure.status != BL_OK) {
    bl__link_lose(link, failure.status, "pulling from %s: %s", BL__NAME(link->transport, link->stage), failure.text);
  }
}

void bl__pull_part(bl__link_t *link) {
  for (unsigned i = 0; i < BL__LINK_PULLS; i++) {
    link->pulls[i].tensor = NULL; // the exchange drops them
  }
}

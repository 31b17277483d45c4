// SPDX-License-Identifier: Apache-2.0
#include "links.h"

#include "datapath/door.h"
#include "datapath/shared_map.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bl_link {
  bl_work_t mapping;
  bl_links_t *links;
  bl_link_t *next;
  bl_visitor_t *visitor; // NULL: gone
  uint64_t session;
  bl_incarnation_t key;
  uint32_t job;
  unsigned users; // transfers, and the mapping
  bool up;
  uint32_t count;
  int fds[BL_DOOR_ARENAS];
  uint64_t bytes[BL_DOOR_ARENAS];
  bl_shared_map_t maps[BL_DOOR_ARENAS];
  bl_error_t err; // of the mapping
};

struct bl_links {
  bl_door_t *door;
  bl_pool_t *pool;
  bl_links_admit_fn admit;
  void *context;
  bl_link_t *first;
};

static void free_link(bl_link_t *link) {
  for (uint32_t i = 0; i < link->count; i++) {
    bl_shared_map_close(&link->maps[i]);
    if (link->fds[i] >= 0) {
      close(link->fds[i]);
    }
  }
  free(link);
}

// Nobody needs what the link keeps.
static void settle(bl_links_t *links, bl_link_t *link) {
  if (link->visitor != NULL || link->users > 0) {
    return;
  }
  bl_link_t **at = &links->first;
  while (*at != link) {
    at = &(*at)->next;
  }
  *at = link->next;
  free_link(link);
}

static void lose(bl_link_t *link) {
  link->visitor = NULL;
  link->up = false;
  settle(link->links, link);
}

static void refuse(bl_visitor_t *visitor, const bl_error_t *err) {
  bl_door_welcome_t welcome = {.status = err->status};
  snprintf(welcome.text, sizeof welcome.text, "%.*s", (int)sizeof welcome.text - 1, err->text);
  bl_visitor_answer(visitor, &welcome, NULL, 0);
}

// ---- mapping -----------------------------------------------------------------------------------------------------------

static void map_memory(bl_work_t *work) {
  bl_link_t *link = (bl_link_t *)(void *)((char *)work - offsetof(bl_link_t, mapping));
  for (uint32_t i = 0; i < link->count && link->err.status == BL_OK; i++) {
    if (link->bytes[i] == 0) {
      (void)bl_error_set(&link->err, BL_INVALID, "arena %" PRIu32 " is empty", i);
    } else {
      link->err.status = bl_shared_map_open(&link->maps[i], link->fds[i], link->bytes[i], &link->err);
    }
    close(link->fds[i]);
    link->fds[i] = -1;
  }
}

static void memory_mapped(bl_message_t *message) {
  bl_link_t *link = BL_MESSAGE_OWNER(message, bl_link_t, mapping.done);
  bl_links_t *links = link->links;
  link->users--;
  bl_visitor_t *visitor = link->visitor;
  if (visitor == NULL) {
    settle(links, link);
    return;
  }
  bl_links_room_t room;
  if (link->err.status == BL_OK) { // asked again: the session may be over by now
    link->err.status = links->admit(links->context, link->session, &link->key, &room, &link->err);
  }
  if (link->err.status != BL_OK) {
    bl_log(BL_LOG_WARNING, "data path: session %" PRIx64 " is refused: %s", link->session, link->err.text);
    refuse(visitor, &link->err);
    lose(link);
    return;
  }
  link->up = true;
  bl_visitor_answer(visitor, &(bl_door_welcome_t){.status = BL_OK, .arena_bytes = room.bytes}, &room.fd, 1);
}

// ---- visitors ----------------------------------------------------------------------------------------------------------

static bl_link_t *find(const bl_links_t *links, uint64_t session) {
  for (bl_link_t *link = links->first; link != NULL; link = link->next) {
    if (link->session == session && link->visitor != NULL) {
      return link;
    }
  }
  return NULL;
}

static void on_greeting(bl_visitor_t *visitor, const bl_door_greeting_t *greeting, const int *fds, void *context) {
  bl_links_t *links = context;
  bl_incarnation_t key;
  memcpy(key.bytes, greeting->key, sizeof key.bytes);
  bl_links_room_t room = {0};
  bl_error_t err = {0};
  bl_link_t *link = calloc(1, sizeof *link);
  bl_status_t status = link != NULL ? links->admit(links->context, greeting->session, &key, &room, &err)
                                    : bl_error_set(&err, BL_EXHAUSTED, "the store has no memory for a link");
  if (link == NULL || status != BL_OK) {
    free(link);
    for (uint32_t i = 0; i < greeting->arena_count; i++) {
      close(fds[i]);
    }
    bl_visitor_set_user(visitor, NULL);
    bl_log(BL_LOG_WARNING, "data path: a visitor is refused: %s", err.text);
    refuse(visitor, &err);
    return;
  }
  bl_links_end(links, greeting->session); // the holder connects anew
  *link = (bl_link_t){.mapping = {.run = map_memory, .done = {.handle = memory_mapped}},
                      .links = links,
                      .next = links->first,
                      .visitor = visitor,
                      .session = greeting->session,
                      .key = key,
                      .job = room.job,
                      .users = 1,
                      .count = greeting->arena_count};
  memcpy(link->bytes, greeting->arena_bytes, sizeof link->bytes);
  memcpy(link->fds, fds, link->count * sizeof *fds);
  links->first = link;
  bl_visitor_set_user(visitor, link);
  bl_pool_submit(links->pool, &link->mapping);
}

static void on_gone(bl_visitor_t *visitor, void *context) {
  (void)context;
  bl_link_t *link = bl_visitor_user(visitor);
  if (link != NULL) {
    bl_log(BL_LOG_INFO, "data path: the holder of session %" PRIx64 " is gone", link->session);
    lose(link);
  }
}

// ---- for the store -----------------------------------------------------------------------------------------------------

bl_link_t *bl_link_acquire(bl_links_t *links, uint64_t session) {
  bl_link_t *link = find(links, session);
  if (link == NULL || !link->up) {
    return NULL;
  }
  link->users++;
  return link;
}

void bl_link_release(bl_links_t *links, bl_link_t *link) {
  link->users--;
  settle(links, link);
}

uint32_t bl_link_job(const bl_link_t *link) {
  return link->job;
}

const uint8_t *bl_link_map(const bl_link_t *link, uint32_t arena, uint64_t offset_bytes, uint64_t bytes) {
  if (arena >= link->count || bytes == 0 || offset_bytes > link->maps[arena].bytes ||
      bytes > link->maps[arena].bytes - offset_bytes) {
    return NULL;
  }
  return link->maps[arena].base + offset_bytes;
}

void bl_links_end(bl_links_t *links, uint64_t session) {
  bl_link_t *link = find(links, session);
  if (link != NULL) {
    bl_visitor_dismiss(link->visitor);
    lose(link);
  }
}

const char *bl_links_path(const bl_links_t *links, uint64_t session) {
  const bl_link_t *link = find(links, session);
  return link == NULL ? "none" : link->up ? "shm" : "connecting";
}

const char *bl_links_address(const bl_links_t *links) {
  return bl_door_address(links->door);
}

bl_status_t bl_links_create(bl_loop_t *loop, bl_pool_t *pool, const char *address, bl_links_admit_fn admit,
                            void *context, bl_links_t **out, bl_error_t *err) {
  bl_links_t *links = calloc(1, sizeof *links);
  if (links == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the data path");
  }
  *links = (bl_links_t){.pool = pool, .admit = admit, .context = context};
  static const bl_door_callbacks_t callbacks = {.on_greeting = on_greeting, .on_gone = on_gone};
  bl_status_t status = bl_door_create(loop, address, &callbacks, links, &links->door, err);
  if (status != BL_OK) {
    free(links);
    return status;
  }
  *out = links;
  return BL_OK;
}

void bl_links_destroy(bl_links_t *links) {
  if (links == NULL) {
    return;
  }
  bl_door_destroy(links->door);
  while (links->first != NULL) {
    bl_link_t *link = links->first;
    links->first = link->next;
    free_link(link);
  }
  free(links);
}

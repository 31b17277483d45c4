// SPDX-License-Identifier: Apache-2.0
// How a holder and a store show each other their memory: one unix connection per session.
//
//   holder: bl_door_knock(address, &greeting, fds, 1, deadline_ns, &fd, &welcome, welcome_fds, &count, err)
//   store:  bl_door_create(loop, "unix:/run/x.data", &callbacks, self, &door, err)
//           on_greeting(...) -> bl_visitor_answer(visitor, &welcome, &arena_fd, 1)
//
// The holder sends one greeting with the descriptors of its sealed arenas; the store answers with one welcome and the
// descriptor of the job's arena. Nothing else is ever sent: the connection then only stands for the life of both, and its
// end, which the kernel makes when a process dies in whatever way, is the proof of death. The side that sees it unmaps.
//
// Only processes of the same user (or root) are let in. A visitor that does not greet in time, greets with anything
// else, or sends another byte is shown out.
// Thread: the store's side is the loop's; knock may be called from any thread and blocks.
#ifndef BALLAST_DATAPATH_DOOR_H
#define BALLAST_DATAPATH_DOOR_H

#include "base/error.h"
#include "loop/loop.h"

#include <stddef.h>
#include <stdint.h>

#define BL_DOOR_KEY_BYTES   16
#define BL_DOOR_ARENAS      240 // shown by a holder at most: what one message of a unix socket carries, nearly
#define BL_DOOR_TEXT_BYTES  192
#define BL_DOOR_VISITORS    256  // at a time; bounds descriptors
#define BL_DOOR_GREETING_MS 5000 // until the greeting must be whole

typedef struct bl_door_greeting {
  uint64_t session;
  uint8_t key[BL_DOOR_KEY_BYTES];
  uint32_t arena_count;
  uint64_t arena_bytes[BL_DOOR_ARENAS];
} bl_door_greeting_t;

typedef struct bl_door_welcome {
  bl_status_t status; // BL_OK: the arena's descriptor comes along
  uint64_t arena_bytes;
  char text[BL_DOOR_TEXT_BYTES]; // why not
} bl_door_welcome_t;

typedef struct bl_door bl_door_t;
typedef struct bl_visitor bl_visitor_t;

typedef struct bl_door_callbacks {
  // `fds` [greeting->arena_count] are the receiver's to close. Answer now or later.
  void (*on_greeting)(bl_visitor_t *visitor, const bl_door_greeting_t *greeting, const int *fds, void *context);
  // A visitor that greeted is gone: its process closed or died. Not after bl_visitor_dismiss; it is freed after this.
  void (*on_gone)(bl_visitor_t *visitor, void *context);
} bl_door_callbacks_t;

// `address` is "unix:/path". BL_PRECONDITION: somebody serves there. BL_INVALID, BL_IO.
BL_MUST_USE bl_status_t bl_door_create(bl_loop_t *loop, const char *address, const bl_door_callbacks_t *callbacks,
                                       void *context, bl_door_t **door, bl_error_t *err);
// Shows everybody out without on_gone, removes the socket file. NULL is fine.
void bl_door_destroy(bl_door_t *door);
const char *bl_door_address(const bl_door_t *door);

// Once per visitor. With another status than BL_OK the visitor is shown out afterwards; without on_gone.
void bl_visitor_answer(bl_visitor_t *visitor, const bl_door_welcome_t *welcome, const int *fds, size_t fd_count);
void bl_visitor_dismiss(bl_visitor_t *visitor);
void bl_visitor_set_user(bl_visitor_t *visitor, void *user); // what the owner keeps about it
void *bl_visitor_user(const bl_visitor_t *visitor);

// The holder's side: connects, greets, waits for the welcome. On success *fd is the connection and *arena_fd the
// store's arena, both the caller's to close. The status of a refusal is the store's.
BL_MUST_USE bl_status_t bl_door_knock(const char *address, const bl_door_greeting_t *greeting, const int *fds,
                                      uint64_t deadline_ns, int *fd, bl_door_welcome_t *welcome, int *arena_fd,
                                      bl_error_t *err);

#endif

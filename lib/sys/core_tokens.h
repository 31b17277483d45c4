// SPDX-License-Identifier: Apache-2.0
// Tokens for the cores of a machine, which processes on it share: who has one computes, and others get it in the order of
// asking. With more stages than cores this keeps an operation as long as it is alone, instead of two that share a core
// for twice as long, and makes step times what the simulator says (EXECUTION.md 16).
//
//   bl_core_tokens_attach(path, 2, stage, &tokens, err);       // on the compute thread
//   if (bl_core_tokens_acquire(tokens, give_up, context)) {
//     ... compute ...
//     bl_core_tokens_release(tokens);
//   }
//   bl_core_tokens_detach(tokens);
//
// A token belongs to a processor where there are as many as processors that whoever made the file may use: a bound member
// runs there while it has it, and wherever it might before afterwards. It gets the processor that it had last when that is
// free. A member that may use other processors than the file's is never bound, nor are those of more or fewer tokens.
//
// The tokens live in a file that all map. A member that dies gives back its token and its place in the queue: the kernel
// says that it is dead (robust mutexes). Whoever waits finds out within BL_CORE_TOKENS_LOOK_MS.
//
// Thread: attach, acquire, release and detach on one thread, whose end is the end of the member.
#ifndef BALLAST_SYS_CORE_TOKENS_H
#define BALLAST_SYS_CORE_TOKENS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_CORE_TOKENS_MEMBERS 256 // numbers of members are below this
#define BL_CORE_TOKENS_LOOK_MS 20  // how often who waits looks for the dead, and whether to give up

typedef struct bl_core_tokens bl_core_tokens_t;

// Makes the file where it is not there yet. BL_INVALID: no cores, member too large, another number of cores than those
// before said, another file; BL_PRECONDITION: a living member has this number; BL_IO, BL_DENIED,
// BL_EXHAUSTED. All name the path.
BL_MUST_USE bl_status_t bl_core_tokens_attach(const char *path, uint32_t cores, uint32_t member,
                                              bl_core_tokens_t **tokens, bl_error_t *err);
// Gives back what is held. NULL is fine.
void bl_core_tokens_detach(bl_core_tokens_t *tokens);

// From the next token on this member is bound. For threads that compute alone: those of its team stay where they are.
void bl_core_tokens_bind(bl_core_tokens_t *tokens);

// Waits for a token; false when `give_up` said so meanwhile. Not while one is held.
BL_MUST_USE bool bl_core_tokens_acquire(bl_core_tokens_t *tokens, bool (*give_up)(void *context), void *context);
void bl_core_tokens_release(bl_core_tokens_t *tokens);
// A member that has a token, other than this one; BL_CORE_TOKENS_MEMBERS: none. From any thread.
uint32_t bl_core_tokens_holder(const bl_core_tokens_t *tokens);
// Members that wait now.
uint32_t bl_core_tokens_waiting(bl_core_tokens_t *tokens);

#endif

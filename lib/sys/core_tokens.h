// SPDX-License-Identifier: Apache-2.0
// Tokens for the cores of a machine, shared by processes on it. A member (one thread of a process) computes only while
// it holds a token. Tokens are granted in the order of requests. With more stages than cores, an operation then takes
// as long as alone, instead of two operations that share a core for twice as long. Step times then match the
// simulator's (EXECUTION.md 16).
//
//   bl_core_tokens_attach(path, 2, stage, &tokens, err);       // on the compute thread
//   if (bl_core_tokens_acquire(tokens, give_up, context)) {
//     ... compute ...
//     bl_core_tokens_release(tokens);
//   }
//   bl_core_tokens_detach(tokens);
//
// A token belongs to a processor if there are as many tokens as processors that the creator of the file may use. A
// bound member runs on that processor while it holds the token. Afterwards it may run where it might before. It gets
// the processor that it had last if that is free. A member that may use other processors than the creator is never
// bound, and no member is bound if there are more or fewer tokens than processors.
//
// The tokens live in a file that all members map. If a member dies, the kernel reports it (robust mutexes), and its
// token and its place in the queue are freed. A waiting member finds out within BL_CORE_TOKENS_LOOK_MS.
//
// Thread: attach, acquire, release and detach on one thread. When that thread ends, the member counts as dead.
#ifndef BALLAST_SYS_CORE_TOKENS_H
#define BALLAST_SYS_CORE_TOKENS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_CORE_TOKENS_MEMBERS 256 // member numbers are below this
#define BL_CORE_TOKENS_LOOK_MS 20  // how often a waiting member looks for dead members and calls `give_up`

typedef struct bl_core_tokens bl_core_tokens_t;

// Attaches to the file and creates it if it does not exist. BL_INVALID: no cores, `member` too large, the file has
// another number of cores, or it is not a file of core tokens. BL_PRECONDITION: a living member has this number. BL_IO,
// BL_DENIED, BL_EXHAUSTED. All errors name the path.
BL_MUST_USE bl_status_t bl_core_tokens_attach(const char *path, uint32_t cores, uint32_t member,
                                              bl_core_tokens_t **tokens, bl_error_t *err);
// Releases a token that is held. NULL is fine.
void bl_core_tokens_detach(bl_core_tokens_t *tokens);

// Binds this member from its next token on. For threads that compute alone: other threads of its team are not bound.
void bl_core_tokens_bind(bl_core_tokens_t *tokens);

// Waits for a token. Returns false if `give_up` returned true while it waited. The member must not hold one.
BL_MUST_USE bool bl_core_tokens_acquire(bl_core_tokens_t *tokens, bool (*give_up)(void *context), void *context);
void bl_core_tokens_release(bl_core_tokens_t *tokens);
// The same as a release and an acquire if no member waits. Returns false, and does nothing, if one does or if this
// member holds no token.
BL_MUST_USE bool bl_core_tokens_keep(bl_core_tokens_t *tokens);
// Returns a member other than this one that holds a token. BL_CORE_TOKENS_MEMBERS: none. Any thread.
uint32_t bl_core_tokens_holder(const bl_core_tokens_t *tokens);
// Returns whether the member holds a token now. False if there is no such member. Any thread.
bool bl_core_tokens_holds(const bl_core_tokens_t *tokens, uint32_t member);
// Returns the number of members that wait now.
uint32_t bl_core_tokens_waiting(bl_core_tokens_t *tokens);

#endif

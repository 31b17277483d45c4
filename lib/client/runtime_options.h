// SPDX-License-Identifier: Apache-2.0
// A runtime on threads that its program has already: for programs of this tree, whose loops they are.
//
//   bl_client_runtime_create(&(bl_client_runtime_options_t){.thread = transfer, .beside = rpc}, &runtime, err);
#ifndef BALLAST_CLIENT_RUNTIME_OPTIONS_H
#define BALLAST_CLIENT_RUNTIME_OPTIONS_H

#include "client/runtime.h"

struct bl_client_runtime_options {
  struct bl_loop_thread *thread; // of lib/loop; shared with others, outlives the runtime. NULL: one of its own
  struct bl_rpc *beside;         // of lib/rpc: shares its completion-queue thread, outlives the runtime. NULL: its own
};

#endif

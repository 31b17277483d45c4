// SPDX-License-Identifier: Apache-2.0
// Options for a runtime on existing threads of its program: for programs of this tree, to which those belong.
//
//   bl_client_runtime_create(&(bl_client_runtime_options_t){.thread = transfer, .beside = rpc}, &runtime, err);
#ifndef BALLAST_CLIENT_RUNTIME_OPTIONS_H
#define BALLAST_CLIENT_RUNTIME_OPTIONS_H

#include "client/runtime.h"

struct bl_client_runtime_options {
  struct bl_loop_thread *thread; // of lib/loop; may be shared, outlives the runtime. NULL: the runtime creates one
  // Of lib/rpc: shares its completion-queue thread, outlives the runtime. NULL: no sharing.
  struct bl_rpc *beside;
};

#endif

// SPDX-License-Identifier: Apache-2.0
// Name and version of a third-party library. The module that includes the library's headers exports one bl_library_t in
// its own interface (bl_rpc_library, bl_tls_library, ...). Each program lists the libraries that it links and prints
// them with --version (sys/version.h).
// Thread: any.
#ifndef BALLAST_BASE_LIBRARY_H
#define BALLAST_BASE_LIBRARY_H

typedef struct bl_library {
  const char *name; // "libuv"
  // Returns the version of the loaded library, which may be newer than its headers: "1.44.2". Never freed.
  const char *(*version)(void);
} bl_library_t;

#endif

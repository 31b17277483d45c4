// SPDX-License-Identifier: Apache-2.0
// A library of others that our code is linked with. Whoever includes its headers names it, once, beside its own interface
// (bl_rpc_library, bl_tls_library, ...); a program lists the ones that it is made of and prints them with --version
// (sys/version.h). Thread: any.
#ifndef BALLAST_BASE_LIBRARY_H
#define BALLAST_BASE_LIBRARY_H

typedef struct bl_library {
  const char *name;             // "libuv"
  const char *(*version)(void); // of the one that is loaded, which may be newer than its headers: "1.44.2"; never freed
} bl_library_t;

#endif

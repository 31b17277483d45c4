// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program of ours: the allocation number BALLAST_FAIL_NTH (from 1) that the program's own code makes gives
// NULL, once. Those of libraries do not count: gRPC and the C++ library end the process when there is no memory. At the end
// the number of allocations goes to the descriptor BALLAST_FAIL_FD, if it is set.
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// The C library's own, under names that it keeps for this.
extern void *__libc_malloc(size_t size_bytes);
extern void *__libc_calloc(size_t count, size_t size_bytes);
extern void *__libc_realloc(void *memory, size_t size_bytes);

static uintptr_t text_begin, text_end; // of the program
static unsigned long fail_nth;
static atomic_ulong made;

// The first object is the program itself.
static int find_text(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size, (void)context;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
      text_begin = info->dlpi_addr + part->p_vaddr;
      text_end = text_begin + part->p_memsz;
    }
  }
  return 1;
}

__attribute__((constructor)) static void begin(void) {
  const char *nth = getenv("BALLAST_FAIL_NTH");
  fail_nth = nth != NULL ? strtoul(nth, NULL, 10) : 0;
  dl_iterate_phdr(find_text, NULL);
}

__attribute__((destructor)) static void end(void) {
  const char *fd = getenv("BALLAST_FAIL_FD");
  if (fd != NULL) {
    dprintf(atoi(fd), "%lu\n", atomic_load(&made));
  }
}

static bool fails(const void *caller) {
  uintptr_t at = (uintptr_t)caller;
  if (at < text_begin || at >= text_end) {
    return false;
  }
  bool failing = atomic_fetch_add(&made, 1) + 1 == fail_nth;
  if (failing) {
    errno = ENOMEM;
  }
  return failing;
}

void *malloc(size_t size_bytes) {
  return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size_bytes);
}

void *calloc(size_t count, size_t size_bytes) {
  return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size_bytes);
}

void *realloc(void *memory, size_t size_bytes) {
  return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, size_bytes);
}

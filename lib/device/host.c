// SPDX-License-Identifier: Apache-2.0
// The host as a device: anonymous memory, and sealed memfds for memory that peers may read (PROTOCOL.md section 1).
#include "base/bytes.h"
#include "device/device.h"
#include "sys/log.h"
#include "sys/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

// Transparent huge pages need this alignment on x86-64 and on AArch64 with 4 KiB pages.
#define HUGE_PAGE_BYTES (2u << 20)
#define PLACE_BYTES     4096u

static bl_status_t no_memory(bl_error_t *err, const char *what, const bl_arena_t *arena, int errno_value) {
  char wanted[BL_BYTES_TEXT];
  bl_status_t status = bl_status_from_errno(errno_value);
  // MADV_POPULATE_WRITE reports lack of memory with these.
  if (errno_value == EFAULT || errno_value == EAGAIN) {
    status = BL_EXHAUSTED;
  }
  return bl_error_set(err, status, "%s of %s failed: %s; is there that much memory?", what,
                      bl_bytes_format(arena->bytes, wanted), strerror(errno_value));
}

// Makes every page of the range resident. Returns 0 or an errno value.
static int prefault(uint8_t *base, uint64_t bytes) {
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) {
    return 0;
  }
  if (errno != EINVAL) {
    return errno;
  }
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  for (uint64_t offset = 0; offset < bytes; offset += page_bytes) {
    ((volatile uint8_t *)base)[offset] = 0;
  }
  return 0;
}

// Returns an anonymous map whose base is a multiple of the huge page size, so that MADV_HUGEPAGE can take effect.
static uint8_t *map_aligned(uint64_t bytes) {
  uint64_t reserve_bytes = bytes + HUGE_PAGE_BYTES;
  uint8_t *reserved = mmap(NULL, reserve_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) {
    return NULL;
  }
  uint8_t *base = reserved + (bl_align_up((uintptr_t)reserved, HUGE_PAGE_BYTES) - (uintptr_t)reserved);
  if (base > reserved) {
    munmap(reserved, (size_t)(base - reserved));
  }
  if (base + bytes < reserved + reserve_bytes) {
    munmap(base + bytes, (size_t)(reserved + reserve_bytes - (base + bytes)));
  }
  return base;
}

// Frees the memory at a place of a range. The addresses stay reserved.
static void reserve_again(uint8_t *place, uint64_t bytes) {
  if (mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    bl_log(BL_LOG_ERROR, "%" PRIu64 " bytes stay where they were mapped: %s", bytes, strerror(errno));
  }
}

static void unmap(const bl_arena_t *arena, uint8_t *base) {
  if (arena->place != NULL) {
    reserve_again(base, arena->mapped_bytes);
  } else {
    munmap(base, arena->mapped_bytes);
  }
}

static uint8_t *map_anonymous(const bl_arena_t *arena) {
  if (arena->place == NULL) {
    return map_aligned(arena->mapped_bytes);
  }
  uint8_t *base =
      mmap(arena->place, arena->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return base == MAP_FAILED ? NULL : base;
}

static bl_status_t map_private(bl_arena_t *arena, bl_error_t *err) {
  uint8_t *base = map_anonymous(arena);
  if (base == NULL) {
    return no_memory(err, "mapping", arena, errno);
  }
  madvise(base, arena->mapped_bytes, MADV_HUGEPAGE); // only advice: a kernel without huge pages works as well
  int errno_value = prefault(base, arena->mapped_bytes);
  if (errno_value != 0) {
    unmap(arena, base);
    return no_memory(err, "prefaulting", arena, errno_value);
  }
  arena->base = base;
  return BL_OK;
}

static bl_status_t map_shareable(bl_arena_t *arena, bl_error_t *err) {
  bl_status_t status;
  bool later = arena->kind == BL_ARENA_SHAREABLE_LATER;
  int fd = memfd_create("ballast-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    return no_memory(err, "memfd_create", arena, errno);
  }
  // fallocate fails here, where otherwise touching a page later would raise SIGBUS.
  if (ftruncate(fd, (off_t)arena->mapped_bytes) != 0 ||
      (!later && fallocate(fd, 0, 0, (off_t)arena->mapped_bytes) != 0)) {
    status = no_memory(err, "shared memory", arena, errno);
    goto close_fd;
  }
  int fixed = arena->place != NULL ? MAP_FIXED : 0;
  uint8_t *base = mmap(arena->place, arena->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, 0);
  if (base == MAP_FAILED) {
    status = no_memory(err, "mapping", arena, errno);
    goto close_fd;
  }
  int errno_value = later ? 0 : prefault(base, arena->mapped_bytes);
  if (errno_value != 0) {
    status = no_memory(err, "prefaulting", arena, errno_value);
    goto unmap;
  }
  // From here on no writable map can be created, and size and seals cannot change, so peers can only read.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    status = bl_error_set(err, BL_UNIMPLEMENTED, "sealing shared memory failed: %s; Linux 5.1 or later is needed",
                          strerror(errno));
    goto unmap;
  }
  arena->base = base;
  arena->fd = fd;
  return BL_OK;
unmap:
  unmap(arena, base);
close_fd:
  close(fd);
  return status;
}

static bl_status_t host_arena_map(bl_device_t *device, bl_arena_t *arena, bl_error_t *err) {
  (void)device;
  // Checked first, because the kernel grants more shared memory than exists and later kills some process.
  uint64_t available_bytes = bl_memory_available_bytes();
  if (arena->kind != BL_ARENA_SHAREABLE_LATER && arena->bytes > available_bytes) {
    char wanted[BL_BYTES_TEXT], available[BL_BYTES_TEXT];
    return bl_error_set(err, BL_EXHAUSTED, "%s (%" PRIu64 " bytes) wanted, %s (%" PRIu64 " bytes) available here",
                        bl_bytes_format(arena->bytes, wanted), arena->bytes,
                        bl_bytes_format(available_bytes, available), available_bytes);
  }
  arena->mapped_bytes = bl_align_up(arena->bytes, (uint64_t)sysconf(_SC_PAGESIZE));
  return bl_arena_kind_is_shareable(arena->kind) ? map_shareable(arena, err) : map_private(arena, err);
}

static bl_status_t host_arena_fill(bl_device_t *device, const bl_arena_t *arena, uint64_t offset, uint64_t bytes,
                                   bl_error_t *err) {
  (void)device;
  if (fallocate(arena->fd, 0, (off_t)offset, (off_t)bytes) != 0) {
    return no_memory(err, "shared memory", arena, errno);
  }
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), before_bytes = offset % page_bytes;
  // Avoids later page faults. Older kernels lack it and fault then.
  (void)madvise(arena->base + offset - before_bytes, bytes + before_bytes, MADV_POPULATE_WRITE);
  return BL_OK;
}

static void host_arena_unmap(bl_device_t *device, bl_arena_t *arena) {
  (void)device;
  unmap(arena, arena->base);
  if (arena->fd >= 0) {
    close(arena->fd);
  }
}

// The range is aligned to huge pages, so that places at multiples of them can have huge pages.
static bl_status_t host_range_reserve(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err) {
  (void)device;
  uint64_t mapped_bytes = bl_align_up(bytes, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES;
  uint8_t *reserved = mmap(NULL, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return bl_error_set(err, BL_EXHAUSTED, "reserving %" PRIu64 " bytes of addresses failed: %s", bytes,
                        strerror(errno));
  }
  uint64_t before_bytes = bl_align_up((uintptr_t)reserved, HUGE_PAGE_BYTES) - (uintptr_t)reserved;
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), kept_bytes = bl_align_up(bytes, page_bytes);
  if (before_bytes > 0) {
    munmap(reserved, before_bytes);
  }
  munmap(reserved + before_bytes + kept_bytes, mapped_bytes - before_bytes - kept_bytes);
  *base = reserved + before_bytes;
  return BL_OK;
}

static void host_range_release(bl_device_t *device, uint8_t *base, uint64_t bytes) {
  (void)device;
  munmap(base, bl_align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE)));
}

static bl_status_t host_copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from,
                             uint64_t bytes, bl_error_t *err) {
  (void)device;
  (void)stream;
  (void)err;
  memcpy(to, from, bytes);
  return BL_OK;
}

static bl_status_t host_fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                             bl_error_t *err) {
  (void)device;
  (void)stream;
  (void)err;
  memset(to, value, bytes);
  return BL_OK;
}

bl_device_t *bl_device_host(void) {
  static const bl_device_ops_t ops = {.name = "host",
                                      .arena_map = host_arena_map,
                                      .arena_fill = host_arena_fill,
                                      .arena_unmap = host_arena_unmap,
                                      .range_reserve = host_range_reserve,
                                      .range_release = host_range_release,
                                      .copy = host_copy,
                                      .fill = host_fill};
  static bl_device_t host = {.ops = &ops, .place_bytes = PLACE_BYTES, .host_memory = true};
  return &host;
}

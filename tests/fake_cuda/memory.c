// SPDX-License-Identifier: Apache-2.0
// Memory: physical pieces (memfds), addresses, maps between the two, allocations, pinned memory of the host, names.
#include "fake_cuda/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIST 8192u

typedef struct physical { // of cuMemCreate or imported
  bool used;
  uint64_t id, bytes;
  unsigned owners, maps; // releases that are due, and maps of it
  int fd;
  uint8_t *hidden; // its bytes
  bool exportable, imported;
} physical_t;

typedef struct range { // of addresses
  bool used;
  uint64_t base, bytes;
} range_t;

typedef struct map {
  bool used;
  uint64_t base, bytes, offset;
  physical_t *physical;
  bool reads, writes;
  bool allocation; // of cuMemAlloc: its own physical memory and addresses
  bool named;      // of another process, by name
} map_t;

static physical_t physicals[LIST];
static range_t reserved[LIST], pinned[LIST];
static map_t maps[LIST];
static uint64_t next_base = FAKE_BASE, next_id = 1, taken;
static bool pinned_readable[LIST], pinned_made[LIST];

#define FREE_IN(list)                                                                                                  \
  __extension__({                                                                                                      \
    size_t at = 0;                                                                                                     \
    while (at < LIST && (list)[at].used) {                                                                             \
      at++;                                                                                                            \
    }                                                                                                                  \
    if (at == LIST) {                                                                                                  \
      abort();                                                                                                         \
    }                                                                                                                  \
    &(list)[at];                                                                                                       \
  })

static bool is_multiple(uint64_t value) {
  return value % FAKE_GRANULARITY == 0;
}

static uint64_t round_up(uint64_t bytes) {
  return (bytes + FAKE_GRANULARITY - 1) / FAKE_GRANULARITY * FAKE_GRANULARITY;
}

static physical_t *find_physical(CUmemGenericAllocationHandle handle) {
  for (size_t i = 0; i < LIST; i++) {
    if (physicals[i].used && physicals[i].id == handle && physicals[i].owners > 0) {
      return &physicals[i];
    }
  }
  return NULL;
}

static map_t *find_map(uint64_t address) {
  for (size_t i = 0; i < LIST; i++) {
    if (maps[i].used && address >= maps[i].base && address - maps[i].base < maps[i].bytes) {
      return &maps[i];
    }
  }
  return NULL;
}

static range_t *find_range(range_t *list, uint64_t address) {
  for (size_t i = 0; i < LIST; i++) {
    if (list[i].used && address >= list[i].base && address - list[i].base < list[i].bytes) {
      return &list[i];
    }
  }
  return NULL;
}

static physical_t *new_physical(uint64_t bytes, int fd) {
  const bool imported = fd >= 0;
  fd = imported ? fd : (int)syscall(SYS_memfd_create, "fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || (!imported && ftruncate(fd, (off_t)bytes) != 0)) {
    return NULL;
  }
  uint8_t *hidden = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (hidden == MAP_FAILED) {
    close(fd);
    return NULL;
  }
  physical_t *made = FREE_IN(physicals);
  *made = (physical_t){
      .used = true, .id = next_id++, .bytes = bytes, .owners = 1, .fd = fd, .hidden = hidden, .imported = imported};
  return made;
}

static void free_if_unused(physical_t *physical) {
  if (physical->owners == 0 && physical->maps == 0) {
    munmap(physical->hidden, physical->bytes);
    close(physical->fd);
    taken -= physical->imported ? 0 : physical->bytes;
    physical->used = false;
  }
}

static uint64_t new_addresses(uint64_t bytes) {
  const uint64_t base = next_base;
  void *at =
      mmap((void *)base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (at != (void *)base) {
    abort();
  }
  next_base += bytes + FAKE_GRANULARITY; // a gap: nobody runs from one into the next, and no address comes twice
  return base;
}

// ---- what an address may be used for

fake_place_t fake_place(uint64_t address) {
  return fake_is_device(address) ? FAKE_DEVICE : find_range(pinned, address) != NULL ? FAKE_PINNED : FAKE_PAGEABLE;
}

uint8_t *fake_bytes(uint64_t address, uint64_t *bytes, bool writes, const char *what) {
  if (!fake_is_device(address)) {
    const range_t *range = find_range(pinned, address);
    if (range != NULL && range->base + range->bytes - address < *bytes) {
      *bytes = range->base + range->bytes - address;
    }
    if (range != NULL && writes && pinned_readable[range - pinned]) {
      (void)fake_broken("%s: writes to memory of the host at %#llx that is pinned for reading", what,
                        (unsigned long long)address);
      return NULL;
    }
    return (uint8_t *)address;
  }
  const map_t *map = find_map(address);
  if (map == NULL) {
    (void)fake_broken("%s: no memory at %#llx: it was unmapped, freed or never there", what,
                      (unsigned long long)address);
    return NULL;
  }
  if (!map->reads || (writes && !map->writes)) {
    (void)fake_broken("%s: no access to %s memory at %#llx", what, writes ? "write" : "read",
                      (unsigned long long)address);
    return NULL;
  }
  const uint64_t at = address - map->base;
  *bytes = map->bytes - at < *bytes ? map->bytes - at : *bytes;
  return map->physical->hidden + map->offset + at;
}

bool fake_may_use(uint64_t address, uint64_t bytes, bool writes, const char *what) {
  while (bytes > 0) {
    uint64_t part = bytes;
    if (fake_bytes(address, &part, writes, what) == NULL) {
      return false;
    }
    address += part;
    bytes -= part;
  }
  return true;
}

static CUresult must_be_idle(uint64_t address, uint64_t bytes, const char *what) {
  return fake_work_uses(address, bytes)
             ? fake_broken("%s: queued work still uses memory at %#llx", what, (unsigned long long)address)
             : CUDA_SUCCESS;
}

// ---- physical memory

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                           unsigned long long flags) {
  if (bytes == 0 || !is_multiple(bytes) || flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return fake_broken("cuMemCreate: %zu bytes: not a multiple of the granularity, or of no device", bytes);
  }
  if (bytes > FAKE_MEMORY - taken) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical_t *made = new_physical(bytes, -1);
  if (made == NULL) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->exportable = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  taken += bytes;
  // What was never written is not zero, whatever a fresh page is.
  memset(made->hidden, 0xa5, bytes < (8u << 20) ? bytes : 8u << 20);
  *handle = made->id;
  return CUDA_SUCCESS;
}

static CUresult mem_release(CUmemGenericAllocationHandle handle) {
  physical_t *physical = find_physical(handle);
  if (physical == NULL) {
    return fake_broken("cuMemRelease: no such handle, or released before");
  }
  if (--physical->owners == 0 && physical->maps > 0) {
    // Legal: memory lives until it is unmapped. Nobody here means it.
    (void)fake_broken("cuMemRelease: memory of %llu bytes is mapped still", (unsigned long long)physical->bytes);
  }
  free_if_unused(physical);
  return CUDA_SUCCESS;
}

static CUresult mem_export(void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                           unsigned long long flags) {
  const physical_t *physical = find_physical(handle);
  if (physical == NULL || !physical->exportable || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return fake_broken("cuMemExportToShareableHandle: no such handle, or made without a type of export");
  }
  *(int *)fd = dup(physical->fd);
  return *(int *)fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult mem_import(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type) {
  struct stat stat;
  char path[64], name[64] = "";
  const int own = dup((int)(intptr_t)fd);
  snprintf(path, sizeof path, "/proc/self/fd/%d", own);
  if (own < 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || readlink(path, name, sizeof name - 1) < 0 ||
      strncmp(name, "/memfd:fake-cuda", 16) != 0 || fstat(own, &stat) != 0) { // any other descriptor
    if (own >= 0) {
      close(own);
    }
    return CUDA_ERROR_INVALID_VALUE;
  }
  physical_t *made = new_physical((uint64_t)stat.st_size, own);
  if (made == NULL) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = made->id;
  return CUDA_SUCCESS;
}

static CUresult mem_granularity(size_t *granularity, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags option) {
  (void)prop;
  (void)option;
  *granularity = FAKE_GRANULARITY;
  return CUDA_SUCCESS;
}

// ---- addresses

static CUresult address_reserve(CUdeviceptr *base, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                unsigned long long flags) {
  if (bytes == 0 || !is_multiple(bytes) || !is_multiple(alignment) || flags != 0 || wanted != 0) {
    return fake_broken("cuMemAddressReserve: %zu bytes, alignment %zu", bytes, alignment);
  }
  range_t *range = FREE_IN(reserved);
  *range = (range_t){.used = true, .base = new_addresses(bytes), .bytes = bytes};
  *base = range->base;
  return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr base, size_t bytes) {
  range_t *range = find_range(reserved, base);
  if (range == NULL || range->base != base || range->bytes != bytes) {
    return fake_broken("cuMemAddressFree: %#llx of %zu bytes was not reserved so", (unsigned long long)base, bytes);
  }
  for (size_t i = 0; i < LIST; i++) {
    if (maps[i].used && maps[i].base >= base && maps[i].base < base + bytes) {
      return fake_broken("cuMemAddressFree: memory is mapped there still");
    }
  }
  munmap((void *)base, bytes);
  range->used = false;
  return CUDA_SUCCESS;
}

static CUresult mem_map(CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                        unsigned long long flags) {
  physical_t *physical = find_physical(handle);
  const range_t *range = find_range(reserved, base);
  if (physical == NULL || range == NULL || flags != 0 || bytes == 0 || !is_multiple(base) || !is_multiple(bytes) ||
      !is_multiple(offset) || offset > physical->bytes || bytes > physical->bytes - offset ||
      bytes > range->base + range->bytes - base) {
    return physical != NULL && physical->imported // a peer's memory may be smaller than it says
               ? CUDA_ERROR_INVALID_VALUE
               : fake_broken("cuMemMap: %zu bytes at %#llx: no such handle, or outside of it or of what is reserved",
                             bytes, (unsigned long long)base);
  }
  for (size_t i = 0; i < LIST; i++) {
    if (maps[i].used && maps[i].base < base + bytes && base < maps[i].base + maps[i].bytes) {
      return fake_broken("cuMemMap: something is mapped at %#llx already", (unsigned long long)base);
    }
  }
  map_t *map = FREE_IN(maps);
  *map = (map_t){.used = true, .base = base, .bytes = bytes, .offset = offset, .physical = physical};
  physical->maps++;
  return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr base, size_t bytes) {
  map_t *map = find_map(base);
  if (map == NULL || map->base != base || map->bytes != bytes || map->allocation) {
    return fake_broken("cuMemUnmap: %zu bytes at %#llx were not mapped so", bytes, (unsigned long long)base);
  }
  CUresult result = must_be_idle(base, bytes, "cuMemUnmap");
  map->used = false;
  map->physical->maps--;
  free_if_unused(map->physical);
  return result;
}

static CUresult set_access(CUdeviceptr base, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  map_t *map = find_map(base);
  if (map == NULL || map->base != base || map->bytes != bytes || count != 1 || map->allocation) {
    return fake_broken("cuMemSetAccess: %zu bytes at %#llx were not mapped so", bytes, (unsigned long long)base);
  }
  map->reads = access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  map->writes = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

// ---- allocations

static CUresult mem_alloc(CUdeviceptr *base, size_t bytes) {
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t whole = round_up(bytes);
  if (whole > FAKE_MEMORY - taken) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical_t *physical = new_physical(whole, -1);
  if (physical == NULL) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  taken += whole;
  physical->maps = 1;
  map_t *map = FREE_IN(maps);
  *map = (map_t){.used = true,
                 .base = new_addresses(whole),
                 .bytes = bytes, // to the byte
                 .physical = physical,
                 .reads = true,
                 .writes = true,
                 .allocation = true};
  *base = map->base;
  return CUDA_SUCCESS;
}

static void drop_allocation(map_t *map) {
  munmap((void *)map->base, round_up(map->bytes));
  map->used = false;
  map->physical->maps = map->physical->owners = 0;
  free_if_unused(map->physical);
}

static CUresult mem_free(CUdeviceptr base) {
  if (base == 0) {
    return CUDA_SUCCESS;
  }
  map_t *map = find_map(base);
  if (map == NULL || map->base != base || !map->allocation || map->named) {
    return fake_broken("cuMemFree: %#llx was not allocated, or freed before", (unsigned long long)base);
  }
  fake_work_drain(); // as the driver does
  drop_allocation(map);
  return CUDA_SUCCESS;
}

static CUresult mem_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  const map_t *map = find_map(address);
  if (map == NULL) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != NULL) {
    *base = map->base;
  }
  if (bytes != NULL) {
    *bytes = map->bytes;
  }
  return CUDA_SUCCESS;
}

static CUresult mem_info(size_t *available, size_t *total) {
  *available = FAKE_MEMORY - taken;
  *total = FAKE_MEMORY;
  return CUDA_SUCCESS;
}

// ---- by name: the process and its descriptor

typedef struct name {
  char magic[8];
  long pid;
  int fd;
  uint64_t bytes;
} name_t;

static CUresult ipc_get(CUipcMemHandle *handle, CUdeviceptr base) {
  const map_t *map = find_map(base);
  if (map == NULL || map->base != base || !map->allocation) {
    return fake_broken("cuIpcGetMemHandle: %#llx is no allocation", (unsigned long long)base);
  }
  name_t name = {.magic = "fake", .pid = getpid(), .fd = map->physical->fd, .bytes = map->bytes};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &name, sizeof name);
  return CUDA_SUCCESS;
}

static CUresult ipc_open(CUdeviceptr *base, CUipcMemHandle handle, unsigned flags) {
  name_t name;
  char path[64];
  memcpy(&name, &handle, sizeof name);
  snprintf(path, sizeof path, "/proc/%ld/fd/%d", name.pid, name.fd);
  const int fd = strcmp(name.magic, "fake") == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
  physical_t *physical = fd >= 0 ? new_physical(round_up(name.bytes), fd) : NULL;
  if (physical == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  physical->maps = 1;
  map_t *map = FREE_IN(maps);
  *map = (map_t){.used = true,
                 .base = new_addresses(round_up(name.bytes)),
                 .bytes = name.bytes,
                 .physical = physical,
                 .reads = true,
                 .writes = true,
                 .allocation = true,
                 .named = true};
  *base = map->base;
  return CUDA_SUCCESS;
}

static CUresult ipc_close(CUdeviceptr base) {
  map_t *map = find_map(base);
  if (map == NULL || map->base != base || !map->named) {
    return fake_broken("cuIpcCloseMemHandle: %#llx was not opened", (unsigned long long)base);
  }
  CUresult result = must_be_idle(base, map->bytes, "cuIpcCloseMemHandle");
  drop_allocation(map);
  return result;
}

// ---- memory of the host

static range_t *pin(uint64_t base, uint64_t bytes, bool readable, bool made) {
  range_t *range = FREE_IN(pinned);
  *range = (range_t){.used = true, .base = base, .bytes = bytes};
  pinned_readable[range - pinned] = readable;
  pinned_made[range - pinned] = made;
  return range;
}

static CUresult host_alloc(void **base, size_t bytes, unsigned flags) {
  (void)flags;
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  (void)pin((uint64_t)made, bytes, false, true);
  *base = made;
  return CUDA_SUCCESS;
}

static CUresult unpin(void *base, bool made, const char *what) {
  range_t *range = find_range(pinned, (uint64_t)base);
  if (range == NULL || range->base != (uint64_t)base || pinned_made[range - pinned] != made) {
    return fake_broken("%s: %p is not pinned so", what, base);
  }
  CUresult result = must_be_idle(range->base, range->bytes, what);
  range->used = false;
  if (made) {
    munmap(base, range->bytes);
  }
  return result;
}

static CUresult host_free(void *base) {
  return unpin(base, true, "cuMemFreeHost");
}

static CUresult host_register(void *base, size_t bytes, unsigned flags) {
  for (size_t i = 0; i < LIST; i++) {
    if (pinned[i].used && pinned[i].base < (uint64_t)base + bytes &&
        (uint64_t)base < pinned[i].base + pinned[i].bytes) {
      (void)fake_broken("cuMemHostRegister: %p is pinned already", base);
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  if (bytes == 0 || fake_is_device((uint64_t)base)) {
    return fake_broken("cuMemHostRegister: %p of %zu bytes is no memory of the host", base, bytes);
  }
  (void)pin((uint64_t)base, bytes, (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0, false);
  return CUDA_SUCCESS;
}

static CUresult host_unregister(void *base) {
  return unpin(base, false, "cuMemHostUnregister");
}

static CUresult host_device_pointer(CUdeviceptr *there, void *base, unsigned flags) {
  if (find_range(pinned, (uint64_t)base) == NULL || flags != 0) {
    return fake_broken("cuMemHostGetDevicePointer: %p is not pinned", base);
  }
  *there = (CUdeviceptr)(uintptr_t)base;
  return CUDA_SUCCESS;
}

void fake_memory_leaks(void) {
  fake_cuda_figures_t *f = &fake_figures;
  f->live_handles = f->live_reservations = f->live_mappings = f->live_allocations = f->live_pinned = 0;
  for (size_t i = 0; i < LIST; i++) {
    f->live_handles += physicals[i].used && physicals[i].owners > 0;
    f->live_reservations += reserved[i].used;
    f->live_mappings += maps[i].used && !maps[i].allocation;
    f->live_allocations += maps[i].used && maps[i].allocation;
    f->live_pinned += pinned[i].used;
  }
  f->live_handles -= f->live_allocations; // which have one of their own
}

// ---- entry points: under the lock

#define LOCKED(call)                                                                                                   \
  fake_lock();                                                                                                         \
  CUresult result = call;                                                                                              \
  fake_unlock();                                                                                                       \
  return result

#undef cuMemAlloc
#undef cuMemFree
FAKE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                                 unsigned long long flags) {
  LOCKED(mem_create(handle, bytes, prop, flags));
}
FAKE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  LOCKED(mem_release(handle));
}
FAKE_EXPORT CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags) {
  LOCKED(mem_export(fd, handle, type, flags));
}
FAKE_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *fd,
                                                    CUmemAllocationHandleType type) {
  LOCKED(mem_import(handle, fd, type));
}
FAKE_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                                   CUmemAllocationGranularity_flags option) {
  LOCKED(mem_granularity(granularity, prop, option));
}
FAKE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *base, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                         unsigned long long flags) {
  LOCKED(address_reserve(base, bytes, alignment, wanted, flags));
}
FAKE_EXPORT CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  LOCKED(address_free(base, bytes));
}
FAKE_EXPORT CUresult cuMemMap(CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long flags) {
  LOCKED(mem_map(base, bytes, offset, handle, flags));
}
FAKE_EXPORT CUresult cuMemUnmap(CUdeviceptr base, size_t bytes) {
  LOCKED(mem_unmap(base, bytes));
}
FAKE_EXPORT CUresult cuMemSetAccess(CUdeviceptr base, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  LOCKED(set_access(base, bytes, access, count));
}
FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *base, size_t bytes) {
  LOCKED(mem_alloc(base, bytes));
}
FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr base) {
  LOCKED(mem_free(base));
}
FAKE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  LOCKED(mem_range(base, bytes, address));
}
FAKE_EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  LOCKED(mem_info(available, total));
}
FAKE_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr base) {
  LOCKED(ipc_get(handle, base));
}
FAKE_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *base, CUipcMemHandle handle, unsigned flags) {
  LOCKED(ipc_open(base, handle, flags));
}
FAKE_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr base) {
  LOCKED(ipc_close(base));
}
FAKE_EXPORT CUresult cuMemHostAlloc(void **base, size_t bytes, unsigned flags) {
  LOCKED(host_alloc(base, bytes, flags));
}
FAKE_EXPORT CUresult cuMemFreeHost(void *base) {
  LOCKED(host_free(base));
}
FAKE_EXPORT CUresult cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
  LOCKED(host_register(base, bytes, flags));
}
FAKE_EXPORT CUresult cuMemHostUnregister(void *base) {
  LOCKED(host_unregister(base));
}
FAKE_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *there, void *base, unsigned flags) {
  LOCKED(host_device_pointer(there, base, flags));
}

// SPDX-License-Identifier: Apache-2.0
#include "sys/file_map.h"

#include "sys/file.h"
#include "sys/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- maps that are open ---------------------------------------------------------------------------------------------

typedef struct place {
  struct place *next;
  const uint8_t *bytes;
  size_t size_bytes;
  char path[];
} place_t;

static struct {
  pthread_mutex_t mutex;
  place_t *first;
} places = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bl_status_t remember(const bl_file_map_t *map, const char *path) {
  const size_t path_bytes = strlen(path) + 1;
  place_t *place = malloc(sizeof *place + path_bytes);
  if (place == NULL) {
    return BL_EXHAUSTED;
  }
  place->bytes = map->bytes;
  place->size_bytes = map->size_bytes;
  memcpy(place->path, path, path_bytes);
  pthread_mutex_lock(&places.mutex);
  place->next = places.first;
  places.first = place;
  pthread_mutex_unlock(&places.mutex);
  return BL_OK;
}

static void forget(const uint8_t *bytes) {
  pthread_mutex_lock(&places.mutex);
  place_t **link = &places.first;
  while ((*link)->bytes != bytes) {
    link = &(*link)->next;
  }
  place_t *place = *link;
  *link = place->next;
  pthread_mutex_unlock(&places.mutex);
  free(place);
}

bl_status_t bl_file_map_open(bl_file_map_t *map, const char *path, bl_error_t *err) {
  int fd;
  bl_file_map_t made = {0};
  bl_status_t status = bl_file_open(path, &fd, &made.size_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  if (made.size_bytes > 0) {
    void *bytes = mmap(NULL, made.size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
      const int cause = errno;
      close(fd);
      return bl_error_set(err, bl_status_from_errno(cause), "%s: cannot map: %s", path, strerror(cause));
    }
    made.bytes = bytes;
  }
  close(fd);
  if (made.bytes != NULL && remember(&made, path) != BL_OK) {
    munmap((void *)made.bytes, made.size_bytes);
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory to map it", path);
  }
  *map = made;
  return BL_OK;
}

void bl_file_map_close(bl_file_map_t *map) {
  if (map->bytes != NULL) {
    forget(map->bytes);
    munmap((void *)map->bytes, map->size_bytes);
  }
  *map = (bl_file_map_t){0};
}

// ---- faults ---------------------------------------------------------------------------------------------------------

static void log_fault(const place_t *place, const uint8_t *at) {
  struct stat info;
  const bool there = stat(place->path, &info) == 0;
  if (there && (size_t)info.st_size < place->size_bytes) {
    bl_log(BL_LOG_ERROR, "%s: shortened from %zu to %zu bytes while it was in use; write a new file and rename it",
           place->path, place->size_bytes, (size_t)info.st_size);
  } else {
    bl_log(BL_LOG_ERROR, "%s: cannot be read any more at byte %zu%s; see the log of the kernel or of its server",
           place->path, (size_t)(at - place->bytes), there ? "" : " and has gone");
  }
}

// The fault is of the thread's own read of a map, so the thread is in no call of the log or of the allocator, nor does
// it change the list.
static void faulted(int number, siginfo_t *info, void *context) {
  (void)context;
  static atomic_flag told = ATOMIC_FLAG_INIT;
  while (atomic_flag_test_and_set(&told)) {
    pause(); // another thread tells it, and ends the process
  }
  const uint8_t *at = info->si_addr;
  for (const place_t *place = places.first; place != NULL; place = place->next) {
    if (at >= place->bytes && at < place->bytes + place->size_bytes) {
      log_fault(place, at);
      break;
    }
  }
  signal(number, SIG_DFL);
  raise(number); // delivered after the return: it ends the process
}

void bl_file_map_log_faults(void) {
  struct sigaction action = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  (void)sigaction(SIGBUS, &action, NULL);
}

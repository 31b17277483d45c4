// SPDX-License-Identifier: Apache-2.0
// An activation-store as a child process of a test, in a folder of its own under the temporary directory.
#ifndef TESTS_CLIENT_STORE_PROCESS_H
#define TESTS_CLIENT_STORE_PROCESS_H

#include "folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct store_process {
  pid_t pid;
  char folder[64], address[96], data_address[104];
  const char *device, *spill; // NULL: the host, none
} store_process_t;

static const char *store_flow = "0"; // bytes in flight per session; 0: no limit
static bool store_turns;             // one transfer over shm at a time

// Starts (again, at the same address) and waits until it serves.
static inline void store_start(store_process_t *store, const char *capacity, const char *ttl, const char *grace) {
  int ready[2];
  char line[256];
  if (store->folder[0] == '\0') {
    snprintf(store->folder, sizeof store->folder, "/tmp/ballast-store-XXXXXX");
    assert_non_null(mkdtemp(store->folder));
    snprintf(store->address, sizeof store->address, "unix:%s/store", store->folder);
    snprintf(store->data_address, sizeof store->data_address, "%s.data", store->address);
  }
  assert_int_equal(pipe(ready), 0);
  pid_t parent = getpid();
  store->pid = fork();
  assert_true(store->pid >= 0);
  if (store->pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    dup2(ready[1], 4);
    setenv("BALLAST_LOG", "error", 1);
    execl(BALLAST_BINARY_DIR "/bin/activation-store", "activation-store", "--listen", store->address, "--capacity",
          capacity, "--flow", store_flow, "--ttl", ttl, "--grace", grace, "--drain", "120", "--data-tcp", "127.0.0.1:0",
          "--ready-fd", "4", "--device", store->device != NULL ? store->device : "host", "--spill",
          store->spill != NULL ? store->spill : "0", store_turns ? "--turns" : (char *)NULL, (char *)NULL);
    _exit(127);
  }
  close(ready[1]);
  ssize_t got = read(ready[0], line, sizeof line);
  close(ready[0]);
  assert_true(got > 6 && memcmp(line, "ready ", 6) == 0);
}

// How it ended: its exit code, or 128 + the signal.
static inline int store_wait(store_process_t *store) {
  int status;
  assert_int_equal(waitpid(store->pid, &status, 0), store->pid);
  store->pid = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void store_kill(store_process_t *store, int number) {
  kill(store->pid, number);
  (void)store_wait(store);
}

static inline void store_cleanup(store_process_t *store) {
  char path[400];
  if (store->pid != 0) {
    store_kill(store, SIGKILL);
  }
  DIR *folder = opendir(store->folder);
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    snprintf(path, sizeof path, "%s/%s", store->folder, entry->d_name);
    (void)unlink(path);
  }
  if (folder != NULL) {
    closedir(folder);
  }
  (void)rmdir(store->folder);
}

// Where the arena of a store lies in its memory; 0: it has none.
static inline unsigned long find_arena(pid_t pid, unsigned long *bytes) {
  char path[64], line[512];
  unsigned long from, to, found = 0;
  snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
  FILE *maps = fopen(path, "re");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps) != NULL) { // the store's own map is the writable one
    char rights[8];
    if (strstr(line, "ballast-arena") != NULL && sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 &&
        rights[1] == 'w') {
      found = from;
      *bytes = to - from;
    }
  }
  fclose(maps);
  return found;
}

#endif

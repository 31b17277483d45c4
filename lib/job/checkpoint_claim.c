// SPDX-License-Identifier: Apache-2.0
#include "job/checkpoint_claim.h"

#include "base/hash.h"
#include "sys/file.h"
#include "sys/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME   ".run.lock"
#define FOLDER_MODE 0777 // minus the user's umask
#define HOST_BYTES  65
#define NAME_BYTES  256
#define KEY_BYTES   17 // 16 hexadecimal digits

// Content of a lock file: two lines.
typedef struct {
  char name[NAME_BYTES]; // "run 'a' (process 4711 on host b)"
  char key[KEY_BYTES];   // hash of the addresses of the run's stages; "": the run starts its own stages
} owner_t;

static void read_host(char host[HOST_BYTES]) {
  if (gethostname(host, HOST_BYTES - 1) != 0) {
    host[0] = '\0';
  }
  host[HOST_BYTES - 1] = '\0';
}

// Whether the address means something else on every host.
static bool is_local(const char *address) {
  return strncmp(address, "unix:", 5) == 0 || strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0 ||
         strncmp(address, "localhost", 9) == 0;
}

static void describe_owner(owner_t *owner, const bl_job_t *job) {
  char host[HOST_BYTES];
  const bl_text_list_t *stages = &job->services.stages;
  uint64_t hash = stages->count;
  read_host(host);
  for (size_t i = 0; i < stages->count; i++) {
    const char *address = stages->items[i];
    hash = bl_hash64(address, strlen(address), hash);
    hash = is_local(address) ? bl_hash64(host, strlen(host), hash) : hash;
  }
  *owner = (owner_t){0};
  snprintf(owner->name, sizeof owner->name, "run '%.100s' (process %ld on host %s)", job->name != NULL ? job->name : "",
           (long)getpid(), host);
  if (stages->count > 0) {
    snprintf(owner->key, sizeof owner->key, "%016" PRIx64, hash);
  }
}

// Errors are ignored: if the disk is full the lock file is empty, and the lock still holds.
static void write_owner(int fd, const owner_t *owner) {
  char text[sizeof *owner + 2];
  int length = snprintf(text, sizeof text, "%s\n%s\n", owner->name, owner->key);
  if (ftruncate(fd, 0) == 0) {
    (void)!pwrite(fd, text, (size_t)length, 0);
  }
}

static void read_owner(const char *path, owner_t *owner) {
  char text[sizeof *owner + 2] = "";
  *owner = (owner_t){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    return;
  }
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  text[length > 0 ? length : 0] = '\0';
  char *rest = text;
  const char *name = strsep(&rest, "\n"), *key = rest != NULL ? strsep(&rest, "\n") : "";
  snprintf(owner->name, sizeof owner->name, "%.*s", NAME_BYTES - 1, name);
  snprintf(owner->key, sizeof owner->key, "%.*s", KEY_BYTES - 1, key);
  for (char *at = owner->name; *at != '\0'; at++) {
    *at = (unsigned char)*at < 0x20 ? '?' : *at;
  }
}

// Lets everybody who may write to the folder open the lock file: one that a killed run left must not lock out other
// users of a group.
static void open_to_all_of(const char *folder, int fd) {
  struct stat info;
  if (stat(folder, &info) == 0) {
    (void)!fchmod(fd, (info.st_mode & 0666) | 0600); // another user's file stays as it is
  }
}

static bl_status_t not_held(bl_checkpoint_claim_t *claim, const char *folder, const owner_t *own, bl_error_t *err) {
  owner_t owner;
  read_owner(claim->path, &owner);
  const char *who = owner.name[0] != '\0' ? owner.name : "another run";
  if (own->key[0] != '\0' && strcmp(own->key, owner.key) == 0) {
    snprintf(claim->note, sizeof claim->note, "an older driver over the same stages, %s, still runs", who);
    return BL_OK;
  }
  return bl_error_set(err, BL_PRECONDITION,
                      "%s: %s writes its checkpoints there; name another folder, or wait until that run has ended",
                      folder, who);
}

bl_status_t bl_checkpoint_claim_take(bl_checkpoint_claim_t *claim, const bl_job_t *job, bl_error_t *err) {
  const char *folder = job->checkpoint.folder;
  if (folder == NULL || claim->held) {
    return BL_OK;
  }
  bl_status_t status = bl_folder_create(folder, FOLDER_MODE, err);
  if (status == BL_OK && bl_path_join(claim->path, sizeof claim->path, folder, LOCK_NAME) != BL_OK) {
    status = bl_error_set(err, BL_INVALID, "%s/%s: the path is too long", folder, LOCK_NAME);
  }
  if (status != BL_OK) {
    return status;
  }
  owner_t own;
  describe_owner(&own, job);
  claim->note[0] = '\0';
  status = bl_lock_file_open(claim->path, 0666, &claim->fd);
  int cause = errno;
  switch (status) {
  case BL_OK:
    claim->held = true;
    open_to_all_of(folder, claim->fd);
    write_owner(claim->fd, &own);
    return BL_OK;
  case BL_PRECONDITION:
    return not_held(claim, folder, &own, err);
  case BL_UNIMPLEMENTED:
    snprintf(claim->note, sizeof claim->note, "its file system has no locks (%s), so another run may use it unnoticed",
             strerror(cause));
    return BL_OK;
  default:
    return bl_error_set(err, status, "%s: cannot be locked: %s", claim->path, strerror(cause));
  }
}

void bl_checkpoint_claim_release(bl_checkpoint_claim_t *claim) {
  if (claim->held) {
    bl_lock_file_close(claim->path, claim->fd);
    claim->held = false;
  }
}

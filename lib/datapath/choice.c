// SPDX-License-Identifier: Apache-2.0
#include "datapath/choice.h"

#include "datapath/machine.h"
#include "datapath/nccl/version.h"

#include <stdio.h>
#include <string.h>

#define WHY_BYTES 128

static const char *text_of(const char *text) {
  return text != NULL ? text : "";
}

static bool has_gpu(const bl_path_end_t *end) {
  return text_of(end->gpu)[0] != '\0';
}

static bool same_machine(const bl_path_end_t *own, const bl_path_end_t *peer) {
  return bl_machine_same(text_of(own->machine), text_of(peer->machine));
}

static bool both_unix(const bl_path_end_t *own, const bl_path_end_t *peer) {
  return own->unix_address && peer->unix_address;
}

// Returns true and sets `why` if one of two ends that must both have a GPU has none.
static bool lacks_gpu(const bl_path_end_t *own, const bl_path_end_t *peer, char *why) {
  if (has_gpu(own) && has_gpu(peer)) {
    return false;
  }
  snprintf(why, WHY_BYTES, "memory of %s is the host's", has_gpu(own) ? peer->name : own->name);
  return true;
}

// Returns what a message says about a path in addition to its name.
static const char *note(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t path) {
  return path == BL_PATH_CUDA_IPC && (own->legacy_ipc || peer->legacy_ipc) ? ", legacy handles of memory" : "";
}

static bool cannot_ipc(const bl_path_end_t *own, const bl_path_end_t *peer, char *why) {
  const char *ours = text_of(own->closed), *theirs = text_of(peer->closed);
  if (lacks_gpu(own, peer, why)) {
    return true;
  }
  if (!both_unix(own, peer)) {
    snprintf(why, WHY_BYTES, "there is no unix socket at both ends");
    return true;
  }
  if (ours[0] != '\0' || theirs[0] != '\0') {
    snprintf(why, WHY_BYTES, "%s: %s", ours[0] != '\0' ? own->name : peer->name, ours[0] != '\0' ? ours : theirs);
    return true;
  }
  return false;
}

static bool cannot_tcp(const bl_path_end_t *own, const bl_path_end_t *peer, char *why) {
  (void)own;
  if (!peer->tcp_address) {
    snprintf(why, WHY_BYTES, "%s has no data path over tcp", peer->name);
    return true;
  }
  return false;
}

static bool cannot_nccl(const bl_path_end_t *own, const bl_path_end_t *peer, char *why) {
  if (lacks_gpu(own, peer, why)) {
    return true;
  }
  if (own->nccl == 0 || peer->nccl == 0) {
    snprintf(why, WHY_BYTES, "%s has no NCCL", own->nccl == 0 ? own->name : peer->name);
    return true;
  }
  bl_error_t err;
  if (bl_nccl_version_check(own->name, own->nccl, peer->name, peer->nccl, &err) != BL_OK) {
    snprintf(why, WHY_BYTES, "%.120s", err.text);
    return true;
  }
  if (strcmp(own->gpu, peer->gpu) == 0 && !(own->shared_gpu && peer->shared_gpu)) {
    snprintf(why, WHY_BYTES, "%s is on the same GPU; --nccl-shared-gpu at both ends allows that", peer->name);
    return true;
  }
  // Both ends agree on communicators over tcp.
  return cannot_tcp(own, peer, why);
}

static bool cannot_shm(const bl_path_end_t *own, const bl_path_end_t *peer, char *why) {
  if (!both_unix(own, peer)) {
    snprintf(why, WHY_BYTES, "there is no unix socket at both ends");
    return true;
  }
  return false;
}

typedef bool (*obstacle_fn)(const bl_path_end_t *own, const bl_path_end_t *peer, char *why);

// In the order of preference. `near`: chosen only within a machine, unless it is requested.
static const struct {
  bl_path_t path;
  bool near;
  obstacle_fn cannot;
} ways[] = {
    {BL_PATH_CUDA_IPC, true, cannot_ipc},
    {BL_PATH_NCCL, false, cannot_nccl},
    {BL_PATH_SHM, true, cannot_shm},
    {BL_PATH_TCP, false, cannot_tcp},
};

bool bl_path_obstacle(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t path,
                      char why[BL_PATH_REASON_BYTES]) {
  _Static_assert(WHY_BYTES <= BL_PATH_REASON_BYTES, "an obstacle fits a reason");
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    if (ways[i].path == path) {
      return ways[i].cannot(own, peer, why);
    }
  }
  return false;
}

static void take(bl_path_t path, bool staged, const char *why, const char *before, bl_path_choice_t *choice) {
  choice->path = path;
  choice->staged = staged;
  snprintf(choice->reason, sizeof choice->reason, "%s: %.100s%s%.60s", bl_path_name(path), why,
           before[0] != '\0' ? "; " : "", before);
}

static bl_status_t take_asked(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t asked, unsigned failed,
                              const char *failure, bool gpus, bl_path_choice_t *choice, bl_error_t *err) {
  char why[WHY_BYTES];
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    if (ways[i].path != asked) {
      continue;
    }
    if ((failed >> asked & 1) != 0) {
      return bl_error_set(err, BL_UNAVAILABLE, "%s was asked for: %s", bl_path_name(asked), text_of(failure));
    }
    if (ways[i].cannot(own, peer, why)) {
      // An address may exist at another time.
      bool addresses = asked == BL_PATH_SHM || asked == BL_PATH_TCP;
      return bl_error_set(err, addresses ? BL_UNAVAILABLE : BL_PRECONDITION, "%s was asked for: %s",
                          bl_path_name(asked), why);
    }
    snprintf(why, sizeof why, "asked for%s", note(own, peer, asked));
    take(asked, gpus && (asked == BL_PATH_SHM || asked == BL_PATH_TCP), why, "", choice);
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID, "there is no data path %d", (int)asked);
}

bl_status_t bl_path_choose(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t asked, unsigned failed,
                           const char *failure, bl_path_choice_t *choice, bl_error_t *err) {
  bool gpus = has_gpu(own) || has_gpu(peer), near = same_machine(own, peer);
  char why[WHY_BYTES], first[WHY_BYTES] = "";
  if (asked != BL_PATH_AUTO) {
    return take_asked(own, peer, asked, failed, failure, gpus, choice, err);
  }
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    bl_path_t path = ways[i].path;
    bool nccl_link = path == BL_PATH_CUDA_IPC || path == BL_PATH_NCCL;
    if (nccl_link && !gpus) {
      continue;
    }
    bool refused = (failed >> path & 1) != 0, far = ways[i].near && !near;
    if (refused) {
      snprintf(why, sizeof why, "%s failed: %.90s", bl_path_name(path), text_of(failure));
    } else if (far) {
      snprintf(why, sizeof why, "%s is on another machine", peer->name);
    } else if (!ways[i].cannot(own, peer, why)) {
      if (near && ways[i].near) {
        snprintf(why, sizeof why, "same machine%s", note(own, peer, path));
        take(path, gpus && !nccl_link, why, nccl_link ? "" : first, choice);
      } else {
        take(path, gpus && !nccl_link, first[0] != '\0' ? first : "nothing better", "", choice);
      }
      return BL_OK;
    }
    // Keep the most informative reason: what prevented the best path.
    if (first[0] == '\0' || (refused && !nccl_link)) {
      snprintf(first, sizeof first, "%s", why);
    }
  }
  return bl_error_set(err, BL_UNAVAILABLE, "no data path to %s: %s", peer->name, first);
}

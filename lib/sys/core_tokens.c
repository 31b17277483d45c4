// SPDX-License-Identifier: Apache-2.0
#include "sys/core_tokens.h"

#include "sys/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000L
#define NS_PER_S  1000000000L
#define MAGIC     UINT64_C(0x424c434f52453102) // changes with the layout

enum { IDLE, WAITS, HOLDS };

typedef struct {
  pthread_mutex_t alive;  // held by the member while it lives
  _Atomic uint32_t state; // a futex; written under the lock
  uint32_t after;         // next in the queue, numbered from 1; 0: none
  uint32_t token;         // of a holder; else the last one that the member held
} member_t;

typedef struct {
  uint64_t magic;
  pthread_mutex_t lock; // guards all members below
  uint32_t cores, running;
  uint32_t first, last; // ends of the queue, members numbered from 1; 0: empty
  cpu_set_t processors; // that the creator of the file may use
  member_t members[BL_CORE_TOKENS_MEMBERS];
} shared_t;

struct bl_core_tokens {
  shared_t *shared;
  uint32_t member;
  pthread_t thread;
  bool bind, bound;
  cpu_set_t before; // of a bound thread: the processors that it might use before
};

static bl_status_t fail(bl_error_t *err, const char *path, const char *what) {
  return bl_error_set(err, bl_status_from_errno(errno), "%s: cannot %s: %s", path, what, strerror(errno));
}

// ---- queue, under the lock ----

static bool is_dead(member_t *member) {
  const int result = pthread_mutex_trylock(&member->alive);
  if (result == EBUSY) {
    return false;
  }
  if (result == EOWNERDEAD) {
    pthread_mutex_consistent(&member->alive);
  }
  if (result == 0 || result == EOWNERDEAD) {
    pthread_mutex_unlock(&member->alive);
  }
  return true;
}

// Frees the tokens and places of dead members. The queue and the count are rebuilt from the states of living members,
// in the present order, so that an update left incomplete by a member that died within the lock does no harm.
static void drop_dead(shared_t *shared, uint32_t self) {
  uint32_t queue[BL_CORE_TOKENS_MEMBERS], count = 0;
  bool queued[BL_CORE_TOKENS_MEMBERS] = {false};
  for (uint32_t at = shared->first; at != 0 && count < BL_CORE_TOKENS_MEMBERS && !queued[at - 1];
       at = shared->members[at - 1].after) {
    queued[at - 1] = true;
    queue[count++] = at - 1;
  }
  shared->running = 0;
  shared->first = shared->last = 0;
  for (uint32_t i = 0; i < BL_CORE_TOKENS_MEMBERS; i++) {
    member_t *member = &shared->members[i];
    if (member->state != IDLE && i != self && is_dead(member)) {
      member->state = IDLE;
    }
    shared->running += member->state == HOLDS;
    if (member->state == WAITS && !queued[i]) {
      queue[count++] = i;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    if (shared->members[queue[i]].state != WAITS) {
      continue;
    }
    shared->members[queue[i]].after = 0;
    if (shared->last != 0) {
      shared->members[shared->last - 1].after = queue[i] + 1;
    } else {
      shared->first = queue[i] + 1;
    }
    shared->last = queue[i] + 1;
  }
}

// Returns a free token: the last one of `member` or the lowest. There are at most as many holders as members.
static uint32_t free_token(const shared_t *shared, const member_t *member) {
  bool held[BL_CORE_TOKENS_MEMBERS] = {false};
  for (uint32_t i = 0; i < BL_CORE_TOKENS_MEMBERS; i++) {
    if (shared->members[i].state == HOLDS && shared->members[i].token < BL_CORE_TOKENS_MEMBERS) {
      held[shared->members[i].token] = true;
    }
  }
  if (member->token < BL_CORE_TOKENS_MEMBERS && !held[member->token]) {
    return member->token;
  }
  uint32_t token = 0;
  while (token + 1 < BL_CORE_TOKENS_MEMBERS && held[token]) {
    token++;
  }
  return token;
}

// Gives free tokens to the first members of the queue.
static void grant(shared_t *shared) {
  while (shared->running < shared->cores && shared->first != 0) {
    member_t *member = &shared->members[shared->first - 1];
    shared->first = member->after;
    shared->last = shared->first == 0 ? 0 : shared->last;
    shared->running++;
    member->token = free_token(shared, member);
    member->state = HOLDS;
    bl_futex_wake((void *)&member->state);
  }
}

// ---- the lock ----

// The member that had the lock died with it: what it guards may be an update that was left incomplete.
static void recover(shared_t *shared, uint32_t self) {
  pthread_mutex_consistent(&shared->lock);
  drop_dead(shared, self);
}

static void lock(shared_t *shared, uint32_t self) {
  if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD) {
    recover(shared, self);
  }
}

// Does the same until `give_up` returns true: the process that has the lock may be stopped.
static bool lock_unless(shared_t *shared, uint32_t self, bool (*give_up)(void *context), void *context) {
  for (;;) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += BL_CORE_TOKENS_LOOK_MS * NS_PER_MS;
    until.tv_sec += until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    const int result = pthread_mutex_timedlock(&shared->lock, &until);
    if (result == EOWNERDEAD) {
      recover(shared, self);
    }
    if (result == 0 || result == EOWNERDEAD) {
      return true;
    }
    if (give_up(context)) {
      return false;
    }
  }
}

// ---- processors, on the member's own thread ----

static int processor_of(const cpu_set_t *processors, uint32_t token) {
  int processor = 0;
  for (uint32_t before = 0; processor < CPU_SETSIZE; processor++) {
    if (CPU_ISSET(processor, processors) && before++ == token) {
      break;
    }
  }
  return processor;
}

// Reads each time where the thread may run, since that may change during a run.
static void enter_processor(bl_core_tokens_t *tokens) {
  const shared_t *shared = tokens->shared;
  if (!tokens->bind || (uint32_t)CPU_COUNT(&shared->processors) != shared->cores ||
      sched_getaffinity(0, sizeof tokens->before, &tokens->before) != 0 ||
      !CPU_EQUAL(&tokens->before, &shared->processors)) {
    return;
  }
  const int processor = processor_of(&shared->processors, shared->members[tokens->member].token);
  if (processor < CPU_SETSIZE) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    tokens->bound = sched_setaffinity(0, sizeof one, &one) == 0;
  }
}

static void leave_processor(bl_core_tokens_t *tokens) {
  if (tokens->bound && pthread_equal(tokens->thread, pthread_self())) {
    (void)sched_setaffinity(0, sizeof tokens->before, &tokens->before);
    tokens->bound = false;
  }
}

// ---- the file ----

static void init_mutex(pthread_mutex_t *mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

static void init_shared(shared_t *shared, uint32_t cores) {
  shared->cores = cores;
  if (sched_getaffinity(0, sizeof shared->processors, &shared->processors) != 0) {
    CPU_ZERO(&shared->processors); // more processors than a set holds: no member is bound
  }
  init_mutex(&shared->lock);
  for (uint32_t i = 0; i < BL_CORE_TOKENS_MEMBERS; i++) {
    init_mutex(&shared->members[i].alive);
  }
  shared->magic = MAGIC;
}

// Runs under the file's lock. Initializes an empty file, or checks that it is a file of core tokens.
static bl_status_t map_shared(int fd, const char *path, uint32_t cores, shared_t **result, bl_error_t *err) {
  struct stat stat;
  if (fstat(fd, &stat) != 0 || (stat.st_size == 0 && ftruncate(fd, sizeof(shared_t)) != 0)) {
    return fail(err, path, "make room for tokens");
  }
  if (stat.st_size != 0 && stat.st_size != (off_t)sizeof(shared_t)) {
    return bl_error_set(err, BL_INVALID, "%s: is not a file of core tokens", path);
  }
  shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shared == MAP_FAILED) {
    return fail(err, path, "map");
  }
  bl_status_t status = BL_OK;
  if (shared->magic == 0) {
    init_shared(shared, cores);
  } else if (shared->magic != MAGIC) {
    status = bl_error_set(err, BL_INVALID, "%s: is not a file of core tokens", path);
  } else if (shared->cores != cores) {
    status = bl_error_set(err, BL_INVALID, "%s: has tokens for %u cores, %u are asked for", path, shared->cores, cores);
  }
  if (status != BL_OK) {
    munmap(shared, sizeof *shared);
    return status;
  }
  *result = shared;
  return BL_OK;
}

static bl_status_t open_shared(const char *path, uint32_t cores, shared_t **shared, bl_error_t *err) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return fail(err, path, "open");
  }
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  int locked;
  do {
    locked = fcntl(fd, F_OFD_SETLKW, &whole);
  } while (locked != 0 && errno == EINTR);
  bl_status_t status = locked == 0 ? map_shared(fd, path, cores, shared, err) : fail(err, path, "lock");
  whole.l_type = F_UNLCK; // a map keeps the open file, and with it the lock
  (void)fcntl(fd, F_OFD_SETLK, &whole);
  close(fd);
  return status;
}

// ---- members ----

bl_status_t bl_core_tokens_attach(const char *path, uint32_t cores, uint32_t member, bl_core_tokens_t **tokens,
                                  bl_error_t *err) {
  if (cores == 0 || member >= BL_CORE_TOKENS_MEMBERS) {
    return bl_error_set(err, BL_INVALID, "%s: %u cores, member %u: at least 1 core and at most %d members", path, cores,
                        member, BL_CORE_TOKENS_MEMBERS);
  }
  bl_core_tokens_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory", path);
  }
  bl_status_t status = open_shared(path, cores, &made->shared, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  member_t *self = &made->shared->members[member];
  lock(made->shared, member);
  const int result = pthread_mutex_trylock(&self->alive); // under the lock: is_dead takes it for a moment
  if (result == EOWNERDEAD) {
    pthread_mutex_consistent(&self->alive);
  } else if (result != 0) {
    pthread_mutex_unlock(&made->shared->lock);
    munmap(made->shared, sizeof *made->shared);
    free(made);
    return bl_error_set(err, BL_PRECONDITION, "%s: member %u exists already", path, member);
  }
  made->member = member;
  made->thread = pthread_self();
  self->state = IDLE; // may be left over from a dead member of this number
  drop_dead(made->shared, member);
  grant(made->shared);
  pthread_mutex_unlock(&made->shared->lock);
  *tokens = made;
  return BL_OK;
}

void bl_core_tokens_detach(bl_core_tokens_t *tokens) {
  if (tokens == NULL) {
    return;
  }
  bl_core_tokens_release(tokens);
  // The thread's list of robust mutexes leads through the map: only that thread can remove its entry.
  if (pthread_equal(tokens->thread, pthread_self())) {
    pthread_mutex_unlock(&tokens->shared->members[tokens->member].alive);
    munmap(tokens->shared, sizeof *tokens->shared);
  }
  free(tokens);
}

void bl_core_tokens_bind(bl_core_tokens_t *tokens) {
  tokens->bind = true;
}

void bl_core_tokens_release(bl_core_tokens_t *tokens) {
  leave_processor(tokens);
  shared_t *shared = tokens->shared;
  member_t *self = &shared->members[tokens->member];
  lock(shared, tokens->member);
  if (self->state == HOLDS) {
    self->state = IDLE;
    shared->running -= shared->running > 0;
  } else if (self->state == WAITS) {
    self->state = IDLE;
    drop_dead(shared, tokens->member); // also takes it out of the queue
  }
  grant(shared);
  pthread_mutex_unlock(&shared->lock);
}

bool bl_core_tokens_keep(bl_core_tokens_t *tokens) {
  lock(tokens->shared, tokens->member);
  const bool kept = tokens->shared->members[tokens->member].state == HOLDS && tokens->shared->first == 0;
  pthread_mutex_unlock(&tokens->shared->lock);
  return kept;
}

static void look_for_dead(bl_core_tokens_t *tokens) {
  lock(tokens->shared, tokens->member);
  drop_dead(tokens->shared, tokens->member);
  grant(tokens->shared);
  pthread_mutex_unlock(&tokens->shared->lock);
}

bool bl_core_tokens_acquire(bl_core_tokens_t *tokens, bool (*give_up)(void *context), void *context) {
  shared_t *shared = tokens->shared;
  member_t *self = &shared->members[tokens->member];
  if (!lock_unless(shared, tokens->member, give_up, context)) {
    return false;
  }
  self->state = WAITS;
  self->after = 0;
  if (shared->last != 0) {
    shared->members[shared->last - 1].after = tokens->member + 1;
  } else {
    shared->first = tokens->member + 1;
  }
  shared->last = tokens->member + 1;
  grant(shared);
  pthread_mutex_unlock(&shared->lock);
  while (self->state == WAITS) {
    if (!bl_futex_wait(&self->state, WAITS, BL_CORE_TOKENS_LOOK_MS * NS_PER_MS)) {
      look_for_dead(tokens);
    }
    if (self->state == WAITS && give_up(context)) {
      bl_core_tokens_release(tokens);
      return false;
    }
  }
  enter_processor(tokens);
  return true;
}

uint32_t bl_core_tokens_holder(const bl_core_tokens_t *tokens) {
  uint32_t member = 0;
  while (member < BL_CORE_TOKENS_MEMBERS &&
         (member == tokens->member || tokens->shared->members[member].state != HOLDS)) {
    member++;
  }
  return member;
}

bool bl_core_tokens_holds(const bl_core_tokens_t *tokens, uint32_t member) {
  return member < BL_CORE_TOKENS_MEMBERS && tokens->shared->members[member].state == HOLDS;
}

uint32_t bl_core_tokens_waiting(bl_core_tokens_t *tokens) {
  uint32_t count = 0;
  lock(tokens->shared, tokens->member);
  for (uint32_t i = 0; i < BL_CORE_TOKENS_MEMBERS; i++) {
    count += tokens->shared->members[i].state == WAITS;
  }
  pthread_mutex_unlock(&tokens->shared->lock);
  return count;
}

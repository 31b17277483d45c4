// SPDX-License-Identifier: Apache-2.0
// A fiber takes threads of a block one after the other for as long as they run through; one that has to wait keeps its
// fiber, and another fiber goes on with the threads that are left.
//
// Fibers change places by what the compiler has for that, which saves little and makes no system call.
#include "ops/emulation/emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define THREADS_MAX 1024
#define WARP        32
#define STACK_BYTES ((size_t)64 << 10)
#define FETCHES_MAX 128 // on their way, of a thread

typedef enum state { READY, AT_BARRIER, AT_EXCHANGE, OVER } state_t;

typedef struct fiber {
  ucontext_t context; // of its first entry
  void *place[5];     // as __builtin_setjmp has it
  void *fake_stack;   // of the address sanitizer
  size_t index;       // of its stack
  bool started;
} fiber_t;

typedef struct fetch {
  void *place;
  const void *from;
  unsigned group;
} fetch_t;

typedef struct thread {
  state_t state;
  unsigned fetch_first, fetch_count, groups; // the first on its way, how many there are, groups so far
  unsigned exchanges;                        // which of two arrays the next one uses
  fiber_t *fiber;                            // that it waits in
} thread_t;

bl_emulated_t bl_emulated;
bool bl_emulated_reverse;
uint64_t bl_emulated_count;
unsigned bl_emulated_shared_bytes = BL_EMULATED_SHARED_MOST - 2048; // two blocks' own taken off
unsigned bl_emulated_threads = THREADS_MAX;
_Alignas(16) uint64_t bl_emulated_shared[BL_EMULATED_SHARED_MOST / sizeof(uint64_t)];

static fiber_t fibers[THREADS_MAX + 1];
static fiber_t *idle[THREADS_MAX + 1]; // those without a thread
static size_t idle_count;
static thread_t threads_of_block[THREADS_MAX];
static fetch_t fetches[THREADS_MAX][FETCHES_MAX]; // rings
static unsigned taken, threads_count;             // of the block's threads
static char *stacks;
static fiber_t scheduler;
static fiber_t *running;
static unsigned running_thread;
static uint64_t exchanged[THREADS_MAX / WARP][2][WARP];
static void (*kernel)(const void *argument);
static const void *kernel_argument;

// The address sanitizer is told which stack is left and entered.
#if defined(__SANITIZE_ADDRESS__)
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;

static void leave(fiber_t *from, const fiber_t *to) {
  const bool home = to == &scheduler;
  __sanitizer_start_switch_fiber(&from->fake_stack, home ? scheduler_stack : stacks + to->index * STACK_BYTES,
                                 home ? scheduler_stack_bytes : STACK_BYTES);
}

static void arrive(fiber_t *at) {
  if (at == &scheduler) {
    __sanitizer_finish_switch_fiber(at->fake_stack, NULL, NULL);
  } else {
    __sanitizer_finish_switch_fiber(at->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
  }
}
#else
static void leave(fiber_t *from, const fiber_t *to) {
  (void)from;
  (void)to;
}

static void arrive(fiber_t *at) {
  (void)at;
}
#endif

// A function of its own: the compiler asks for that. Neither is looked at by the address sanitizer, which would forget what
// it knows of the stack that is left.
__attribute__((noinline, no_sanitize_address)) static void jump(void **place) {
  __builtin_longjmp(place, 1);
}

__attribute__((noinline, no_sanitize_address)) static void switch_to(fiber_t *from, fiber_t *to) {
  running = to;
  leave(from, to);
  if (__builtin_setjmp(from->place) == 0) {
    if (to->started) {
      jump(to->place);
    }
    to->started = true;
    setcontext(&to->context);
  }
  arrive(from);
}

static void refuse(const char *what) {
  fprintf(stderr, "emulated kernel: thread %u of block %u,%u %s\n", running_thread, bl_emulated.block.x,
          bl_emulated.block.y, what);
  abort();
}

// False when all threads of the block have been taken.
static bool take_thread(void) {
  if (taken == threads_count) {
    return false;
  }
  running_thread = bl_emulated_reverse ? threads_count - 1 - taken : taken;
  taken++;
  bl_emulated.thread = (bl_emulated_index_t){.x = running_thread};
  return true;
}

static void run_fiber(void) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_stack_bytes);
#endif
  for (;;) {
    fiber_t *self = running;
    while (take_thread()) {
      kernel(kernel_argument);
      thread_t *thread = &threads_of_block[running_thread]; // the same again, whoever ran in between
      if (thread->fetch_count > 0) {
        refuse("ends with copies on their way");
      }
      thread->state = OVER;
    }
    idle[idle_count++] = self;
    switch_to(self, &scheduler);
  }
}

static void wait_as(state_t state) {
  thread_t *thread = &threads_of_block[running_thread];
  thread->state = state;
  thread->fiber = running;
  switch_to(running, &scheduler);
}

void bl_emulated_barrier(void) {
  wait_as(AT_BARRIER);
}

void bl_emulated_exchange(void *value, unsigned bytes, unsigned mask) {
  const unsigned lane = running_thread % WARP, warp = running_thread / WARP;
  uint64_t *values = exchanged[warp][threads_of_block[running_thread].exchanges++ % 2];
  memcpy(&values[lane], value, bytes);
  wait_as(AT_EXCHANGE);
  memcpy(value, &values[lane ^ mask], bytes);
}

void bl_emulated_fetch(void *place, const void *from) {
  thread_t *thread = &threads_of_block[running_thread];
  if (bl_emulated_reverse) {
    memcpy(place, from, 16);
  }
  if (thread->fetch_count == FETCHES_MAX) {
    refuse("has too many copies on their way");
  }
  fetches[running_thread][(thread->fetch_first + thread->fetch_count++) % FETCHES_MAX] =
      (fetch_t){place, from, thread->groups};
}

void bl_emulated_fetch_group(void) {
  threads_of_block[running_thread].groups++;
}

void bl_emulated_fetch_wait(unsigned left) {
  thread_t *thread = &threads_of_block[running_thread];
  while (thread->fetch_count > 0) {
    const fetch_t *fetch = &fetches[running_thread][thread->fetch_first % FETCHES_MAX];
    if (fetch->group + left >= thread->groups) {
      return;
    }
    memcpy(fetch->place, fetch->from, 16);
    thread->fetch_first++;
    thread->fetch_count--;
  }
}

static void stuck(void) {
  unsigned counts[4] = {0};
  for (unsigned i = 0; i < threads_count; i++) {
    counts[threads_of_block[i].state]++;
  }
  fprintf(stderr, "emulated kernel: block %u,%u of %u threads is stuck: %u at a barrier, %u at an exchange, %u over\n",
          bl_emulated.block.x, bl_emulated.block.y, threads_count, counts[AT_BARRIER], counts[AT_EXCHANGE],
          counts[OVER]);
  abort();
}

static void go_on(unsigned i) {
  running_thread = i;
  bl_emulated.thread = (bl_emulated_index_t){.x = i};
  switch_to(&scheduler, threads_of_block[i].fiber);
}

// A warp runs as far ahead of the others as it can: to the next barrier of the block. What it overwrites too early then
// shows in the results of those behind.
static void run_warp(unsigned first) {
  for (bool together = true; together;) {
    for (unsigned n = 0; n < WARP; n++) {
      const unsigned i = first + (bl_emulated_reverse ? WARP - 1 - n : n);
      if (threads_of_block[i].state == READY) {
        go_on(i);
      }
    }
    for (unsigned i = first; i < first + WARP; i++) {
      together = together && threads_of_block[i].state == AT_EXCHANGE;
    }
    for (unsigned i = first; together && i < first + WARP; i++) {
      threads_of_block[i].state = READY;
    }
  }
}

static void run_block(void) {
  memset(threads_of_block, 0, threads_count * sizeof threads_of_block[0]);
  taken = 0;
  while (taken < threads_count) { // until each is over or waits
    switch_to(&scheduler, idle[--idle_count]);
  }
  const unsigned warps = threads_count / WARP;
  for (;;) {
    unsigned over = 0, waiting = 0;
    for (unsigned n = 0; n < warps; n++) {
      run_warp((bl_emulated_reverse ? warps - 1 - n : n) * WARP);
    }
    for (unsigned i = 0; i < threads_count; i++) {
      over += threads_of_block[i].state == OVER;
      waiting += threads_of_block[i].state == AT_BARRIER;
    }
    if (over == threads_count) {
      return;
    }
    if (waiting < threads_count) {
      stuck();
    }
    for (unsigned i = 0; i < threads_count; i++) {
      threads_of_block[i].state = READY;
    }
  }
}

// Apart from the loop: getcontext may return twice, as far as the compiler knows.
static void make_fiber(size_t i) {
  fibers[i].index = i;
  getcontext(&fibers[i].context);
  fibers[i].context.uc_stack = (stack_t){.ss_sp = stacks + i * STACK_BYTES, .ss_size = STACK_BYTES};
  makecontext(&fibers[i].context, run_fiber, 0);
  idle[idle_count++] = &fibers[i];
}

static bool make_fibers(void) {
  void *made = mmap(NULL, (THREADS_MAX + 1) * STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) {
    return false;
  }
  stacks = made;
  for (size_t i = 0; i <= THREADS_MAX; i++) {
    make_fiber(i);
  }
  scheduler.started = true;
  return true;
}

int bl_emulated_launch(bl_emulated_index_t blocks, unsigned threads, void (*body)(const void *argument),
                       const void *argument) {
  if (threads == 0 || threads > THREADS_MAX || threads % WARP != 0 || blocks.x == 0 || blocks.x > 2147483647u ||
      blocks.y == 0 || blocks.y > 65535 || blocks.z == 0 || blocks.z > 65535) {
    return 9;
  }
  if (stacks == NULL && !make_fibers()) {
    return 2; // cudaErrorMemoryAllocation
  }
  bl_emulated_count++;
  kernel = body;
  kernel_argument = argument;
  threads_count = threads;
  bl_emulated.threads = (bl_emulated_index_t){threads, 1, 1};
  bl_emulated.blocks = blocks;
  const uint64_t count = (uint64_t)blocks.x * blocks.y * blocks.z;
  for (uint64_t n = 0; n < count; n++) {
    const uint64_t i = bl_emulated_reverse ? count - 1 - n : n;
    bl_emulated.block = (bl_emulated_index_t){.x = (unsigned)(i % blocks.x),
                                              .y = (unsigned)(i / blocks.x % blocks.y),
                                              .z = (unsigned)(i / blocks.x / blocks.y)};
    run_block();
  }
  return 0;
}

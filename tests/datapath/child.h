// SPDX-License-Identifier: Apache-2.0
// Stages as child processes of a test: the test program starts itself again as "child STAGE ...", parent and children
// exchange addresses over pipes, as the driver does for real stages.
#ifndef BALLAST_TESTS_DATAPATH_CHILD_H
#define BALLAST_TESTS_DATAPATH_CHILD_H

#include "pair.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

typedef struct {
  char unix_address[BL_TRANSPORT_ADDRESS_BYTES];
  char tcp_address[BL_TRANSPORT_ADDRESS_BYTES];
  char machine[BL_TRANSPORT_MACHINE_BYTES];
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
} contact_t;

static inline void contact_fill(contact_t *contact, const bl_transport_t *transport) {
  memset(contact, 0, sizeof *contact);
  strcpy(contact->unix_address, bl_transport_unix_address(transport));
  strcpy(contact->tcp_address, bl_transport_tcp_address(transport));
  strcpy(contact->machine, bl_transport_machine(transport));
  memcpy(contact->token, bl_transport_token(transport), sizeof contact->token);
}

static inline void contact_peer(const contact_t *contact, int32_t stage, bl_transport_peer_t *peer) {
  *peer = (bl_transport_peer_t){.stage = stage,
                                .unix_address = contact->unix_address,
                                .tcp_address = contact->tcp_address,
                                .machine = contact->machine};
  memcpy(peer->token, contact->token, sizeof peer->token);
}

typedef struct {
  pid_t pid;
  int to, from; // pipes to its standard input and from its standard output
} child_t;

// Starts this program again with `arguments` (a NULL-terminated list that starts with the program to run).
static inline void child_start(child_t *child, const char *const arguments[]) {
  int down[2], up[2];
  assert_int_equal(pipe2(down, O_CLOEXEC), 0);
  assert_int_equal(pipe2(up, O_CLOEXEC), 0);
  child->pid = fork();
  assert_true(child->pid >= 0);
  if (child->pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    execvp(arguments[0], (char *const *)(uintptr_t)arguments); // which changes none of them
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  child->to = down[1];
  child->from = up[0];
}

// Reads or writes a whole message; false at the end of the pipe.
static inline bool whole(ssize_t (*move)(int, void *, size_t), int fd, void *bytes, size_t size_bytes) {
  uint8_t *at = bytes;
  while (size_bytes > 0) {
    ssize_t moved = move(fd, at, size_bytes);
    if (moved <= 0) {
      return false;
    }
    at += moved;
    size_bytes -= (size_t)moved;
  }
  return true;
}

static inline ssize_t move_out(int fd, void *bytes, size_t size_bytes) {
  return write(fd, bytes, size_bytes);
}

#define TELL(fd, value) whole(move_out, fd, &(value), sizeof(value))
#define HEAR(fd, value) whole(read, fd, &(value), sizeof(value))

// Ends the child by closing its pipes and returns its wait status.
static inline int child_end(child_t *child) {
  int status = -1;
  close(child->to);
  close(child->from);
  while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Leaves the child process with a message when something fails there.
#define CHILD_OK(call, err)                                                                                            \
  do {                                                                                                                 \
    bl_status_t child_status = (call);                                                                                 \
    if (child_status != BL_OK) {                                                                                       \
      fprintf(stderr, "child: %s is %s: %s\n", #call, bl_status_name(child_status), (err).text);                       \
      _exit(1);                                                                                                        \
    }                                                                                                                  \
  } while (0)

#endif

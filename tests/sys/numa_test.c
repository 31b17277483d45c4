// SPDX-License-Identifier: Apache-2.0
// Verifies NUMA nodes: a device's is what sysfs says, for any letters of its address; memory is taken on the node that
// is asked for, also by threads that start later; and a node that is not there is refused with those that are.
#include "sys/numa.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static void write_file(const char *root, const char *folders, const char *name, const char *text) {
  char path[256];
  size_t length = (size_t)snprintf(path, sizeof path, "%s/", root);
  for (const char *at = folders; *at != '\0'; at++) {
    path[length++] = *at;
    path[length] = '\0';
    if (*at == '/') {
      (void)mkdir(path, 0700);
    }
  }
  (void)snprintf(path + length, sizeof path - length, "%s", name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void a_device_has_the_node_of_sysfs(void **state) {
  (void)state;
  char root[] = "/tmp/ballast-numa-XXXXXX", command[64];
  assert_non_null(mkdtemp(root));
  write_file(root, "bus/pci/devices/0000:1a:00.0/", "numa_node", "1\n");
  write_file(root, "bus/pci/devices/0000:1b:00.0/", "numa_node", "-1\n");
  write_file(root, "bus/pci/devices/0000:1c:00.0/", "numa_node", "\n");
  assert_int_equal(bl_numa_node_of_pci(root, "0000:1a:00.0"), 1);
  assert_int_equal(bl_numa_node_of_pci(root, "0000:1A:00.0"), 1);
  assert_int_equal(bl_numa_node_of_pci(root, "0000:1b:00.0"), -1); // the system does not know
  assert_int_equal(bl_numa_node_of_pci(root, "0000:1c:00.0"), -1);
  assert_int_equal(bl_numa_node_of_pci(root, "0000:1d:00.0"), -1);
  bl_error_t err;
  write_file(root, "devices/system/node/", "online", "0-1\n");
  assert_int_equal(bl_numa_prefer(root, 2, &err), BL_NOT_FOUND);
  assert_string_equal(err.text, "this machine has no NUMA node 2; its nodes are 0-1");
  (void)snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

static void read_policy(int *mode, unsigned long *mask) {
  unsigned long all[BL_NUMA_NODES / (8 * sizeof(unsigned long))] = {0};
  assert_int_equal(syscall(SYS_get_mempolicy, mode, all, (unsigned long)BL_NUMA_NODES + 1, NULL, 0), 0);
  *mask = all[0];
}

static void *policy_of_thread(void *mode_and_mask) {
  unsigned long *both = mode_and_mask;
  int mode;
  read_policy(&mode, &both[1]);
  both[0] = (unsigned long)mode;
  return NULL;
}

static void memory_is_taken_on_a_node(void **state) {
  (void)state;
  bl_error_t err;
  int mode;
  unsigned long mask, of_thread[2];
  pthread_t thread;
  if (access(BL_NUMA_ROOT "/devices/system/node/node0", F_OK) != 0) {
    print_message("this system tells nothing of NUMA nodes\n");
    skip();
  }
  read_policy(&mode, &mask);
  assert_int_equal(mode, MPOL_DEFAULT);
  assert_int_equal(bl_numa_prefer(BL_NUMA_ROOT, BL_NUMA_NODES - 1, &err), BL_NOT_FOUND);
  assert_int_equal(bl_numa_prefer(BL_NUMA_ROOT, 4000000000u, &err), BL_NOT_FOUND);
  read_policy(&mode, &mask);
  assert_int_equal(mode, MPOL_DEFAULT);
  bl_status_t status = bl_numa_prefer(BL_NUMA_ROOT, 0, &err);
  if (status == BL_DENIED) {
    print_message("%s\n", err.text); // a container that may not
    skip();
  }
  assert_int_equal(status, BL_OK);
  read_policy(&mode, &mask);
  assert_int_equal(mode, MPOL_PREFERRED);
  assert_int_equal(mask, 1);
  assert_int_equal(pthread_create(&thread, NULL, policy_of_thread, of_thread), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(of_thread[0], MPOL_PREFERRED);
  assert_int_equal(of_thread[1], 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_device_has_the_node_of_sysfs),
                                     cmocka_unit_test(memory_is_taken_on_a_node)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

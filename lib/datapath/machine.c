// SPDX-License-Identifier: Apache-2.0
#include "datapath/machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void bl_machine_text(char *text, size_t text_bytes) {
  char boot_id[64] = "?";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file != NULL) {
    if (fgets(boot_id, sizeof boot_id, file) == NULL) {
      strcpy(boot_id, "?");
    }
    boot_id[strcspn(boot_id, "\n")] = '\0';
    fclose(file);
  }
  struct stat shm;
  if (stat("/dev/shm", &shm) == 0) {
    snprintf(text, text_bytes, "%s/%llx", boot_id, (unsigned long long)shm.st_dev);
  } else {
    snprintf(text, text_bytes, "%s/?", boot_id);
  }
}

bool bl_machine_same(const char *a, const char *b) {
  return a[0] != '\0' && strcmp(a, b) == 0 && strchr(a, '?') == NULL;
}

// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without a fuzzer: every file and folder named on the command line, and of each input its prefixes
// and copies with one byte changed. Deterministic. Every input lies in a block of exactly its size, so that an address
// sanitizer sees a read beyond it.
#include "target.h"

#include "base/random.h"
#include "sys/file.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_LIMIT_BYTES (1u << 20)
#define MUTATIONS         2000 // of each kind at most, for one input
#define PATH_BYTES        4096

static size_t runs;

static void run(const char *bytes, size_t size_bytes, size_t changed, char value) {
  char *copy = malloc(size_bytes > 0 ? size_bytes : 1);
  FUZZ_CHECK(copy != NULL);
  memcpy(copy, bytes, size_bytes);
  if (changed < size_bytes) {
    copy[changed] = value;
  }
  LLVMFuzzerTestOneInput((const uint8_t *)copy, size_bytes);
  free(copy);
  runs++;
}

static void run_file(const char *path) {
  bl_error_t err;
  char *bytes;
  size_t size_bytes;
  if (bl_file_read(path, INPUT_LIMIT_BYTES, &bytes, &size_bytes, &err) != BL_OK) {
    fprintf(stderr, "%s\n", err.text);
    exit(1);
  }
  run(bytes, size_bytes, size_bytes, 0);
  size_t stride = size_bytes / MUTATIONS + 1;
  uint64_t key = bl_random_key(0, "replay");
  for (size_t i = 0; i < size_bytes; i += stride) {
    run(bytes, i, i, 0);
    run(bytes, size_bytes, i, (char)bl_random_bits(key, i));
    run(bytes, size_bytes, i, (char)(bytes[i] ^ (1 << (i % 8))));
    run(bytes, size_bytes, i, "{}[]\",:-09e \\"[i % 13]);
  }
  free(bytes);
}

static void run_path(const char *path);

static void run_folder(const char *path) {
  DIR *folder = opendir(path);
  FUZZ_CHECK(folder != NULL);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    char name[PATH_BYTES];
    if (entry->d_name[0] != '.' && bl_path_join(name, sizeof name, path, entry->d_name) == BL_OK) {
      run_path(name);
    }
  }
  closedir(folder);
}

static void run_path(const char *path) {
  struct stat info;
  if (stat(path, &info) != 0) {
    perror(path);
    exit(1);
  }
  if (S_ISDIR(info.st_mode)) {
    run_folder(path);
  } else {
    run_file(path);
  }
}

int main(int argc, char **argv) {
  run("", 0, 0, 0);
  for (int i = 1; i < argc; i++) {
    run_path(argv[i]);
  }
  printf("%zu inputs\n", runs);
  return runs > 100 ? 0 : 1; // a corpus that was not found must not pass
}

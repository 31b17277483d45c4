// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/shell_word.h"

#include <string.h>

void bl_ctl_shell_word_print(const char *word, FILE *stream) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
    fputs(word, stream);
    return;
  }
  fputc('\'', stream);
  for (; *word != '\0'; word++) {
    if (*word == '\'') {
      fputs("'\\''", stream); // ends the quotes, stands by itself, begins them again
    } else {
      fputc(*word, stream);
    }
  }
  fputc('\'', stream);
}

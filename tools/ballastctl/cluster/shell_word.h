// SPDX-License-Identifier: Apache-2.0
// A word of a command line that a verb prints, such that a shell reads it back as it is.
//
// Thread: any.
#ifndef BALLAST_BALLASTCTL_SHELL_WORD_H
#define BALLAST_BALLASTCTL_SHELL_WORD_H

#include <stdio.h>

// Writes `word`, in single quotes where a POSIX shell would not take it as one plain word.
void bl_ctl_shell_word_print(const char *word, FILE *stream);

#endif

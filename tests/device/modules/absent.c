// SPDX-License-Identifier: Apache-2.0
// A library that the test needing it does not find: it is built, linked against, and kept in another folder.
int fake_absent(void);

int fake_absent(void) {
  return 1;
}

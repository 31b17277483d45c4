// SPDX-License-Identifier: Apache-2.0
// The bytes of page.html, built into the program.
#ifndef BALLAST_DRIVER_PAGE_HTML_H
#define BALLAST_DRIVER_PAGE_HTML_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t bl_page_html[];
extern const size_t bl_page_html_bytes;

#endif

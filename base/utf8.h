/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8 (RFC 3629: no overlong forms, no surrogates, no more than U+10FFFF). File names are bytes; protobuf strings and
 * JSON are not: independent clients refuse a whole message for one bad byte in it.
 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/buffer.h"

/* The length of the sequence at `at`, a terminated string's; 0 when it is none. */
size_t base_utf8_size(const char *at);
bool base_utf8_is_valid(const char *text);
/* The text without its terminator; a byte that is not UTF-8 becomes four: \xe9. */
void base_utf8_put(struct base_buffer *out, const char *text);

#endif

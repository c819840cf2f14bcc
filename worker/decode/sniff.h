/* SPDX-License-Identifier: Apache-2.0 */
/* Which image format some bytes are, by their first bytes. */
#ifndef WORKER_DECODE_SNIFF_H
#define WORKER_DECODE_SNIFF_H

#include <stddef.h>
#include <stdint.h>

/* "JPEG", "PNG", or the name of a format that is known and not built ("WebP"); NULL when none is known. */
const char *decode_sniff_name(const uint8_t *bytes, size_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of names: the only user of libzstd. Any thread. */
#ifndef PROTO_MANIFEST_NAMES_H
#define PROTO_MANIFEST_NAMES_H

#include "base/buffer.h"
#include "base/error.h"

/* Appends one frame to `out`. The same bytes always, with the same libzstd. */
enum base_code manifest_names_pack(const void *raw, size_t raw_size, struct base_buffer *out,
                                   struct base_error *error);
/* Outside bytes: CORRUPT unless they unpack to exactly raw_size bytes. */
enum base_code manifest_names_unpack(const void *packed, size_t packed_size, void *raw, size_t raw_size,
                                     struct base_error *error);
/* The most that raw_size bytes can become. */
size_t manifest_names_bound(size_t raw_size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest/names.h"

#include <zstd.h>
#include <zstd_errors.h>

/* Part of the version: another level makes other bytes. */
enum { LEVEL = 3 };

enum base_code manifest_names_pack(const void *raw, size_t raw_size, struct base_buffer *out,
                                   struct base_error *error)
{
    size_t start = out->size, bound = ZSTD_compressBound(raw_size);
    uint8_t *room = base_buffer_extend(out, bound);
    if (!room)
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory for a frame of %zu bytes", bound);
    size_t packed = ZSTD_compress(room, bound, raw, raw_size, LEVEL);
    if (ZSTD_isError(packed))
        return base_error_set(error, BASE_NO_MEMORY, "manifest: zstd: %s", ZSTD_getErrorName(packed));
    out->size = start + packed;
    return BASE_OK;
}

enum base_code manifest_names_unpack(const void *packed, size_t packed_size, void *raw, size_t raw_size,
                                     struct base_error *error)
{
    size_t got = ZSTD_decompress(raw, raw_size, packed, packed_size);
    if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation)
        return base_error_set(error, BASE_NO_MEMORY, "zstd: no memory");
    if (ZSTD_isError(got))
        return base_error_set(error, BASE_CORRUPT, "zstd: %s", ZSTD_getErrorName(got));
    if (got != raw_size)
        return base_error_set(error, BASE_CORRUPT, "%zu bytes instead of %zu", got, raw_size);
    return BASE_OK;
}

size_t manifest_names_bound(size_t raw_size)
{
    return ZSTD_compressBound(raw_size);
}

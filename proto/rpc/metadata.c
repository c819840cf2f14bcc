/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/metadata.h"

#include <grpc/slice.h>
#include <string.h>

bool rpc_metadata_find(const grpc_metadata_array *array, const char *key, char *value, size_t value_bytes)
{
    for (size_t i = 0; i < array->count; i++) {
        if (grpc_slice_str_cmp(array->metadata[i].key, key))
            continue;
        grpc_slice slice = array->metadata[i].value;
        size_t size = GRPC_SLICE_LENGTH(slice);
        if (size >= value_bytes)
            return false;
        memcpy(value, GRPC_SLICE_START_PTR(slice), size);
        value[size] = 0;
        return true;
    }
    return false;
}

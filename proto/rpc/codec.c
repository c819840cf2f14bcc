/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/codec.h"

#include "proto/rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdbool.h>
#include <stdlib.h>

enum base_code rpc_codec_pack(const ProtobufCMessage *message, grpc_byte_buffer **buffer,
                              struct base_error *error)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    if (size > RPC_MESSAGE_MAX_BYTES)
        return base_error_set(error, BASE_TOO_LARGE, "%s of %zu bytes: a message has at most %d",
                              message->descriptor->name, size, RPC_MESSAGE_MAX_BYTES);
    grpc_slice slice = grpc_slice_malloc(size);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return BASE_OK;
}

/* protobuf-c grows a message of empty submessages fiftyfold: `left` counts down all that is ever taken.
 * Blocks come from malloc, so that they may be freed without this allocator. */
struct cap {
    size_t left;
    bool starved; /* malloc said no */
};

static void *capped_alloc(void *data, size_t size)
{
    struct cap *cap = data;
    if (size > cap->left)
        return NULL;
    cap->left -= size;
    void *block = malloc(size);
    cap->starved |= !block;
    return block;
}

static void capped_free(void *data, void *block)
{
    (void)data;
    free(block);
}

ProtobufCMessage *rpc_codec_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                                   enum base_code *why)
{
    grpc_byte_buffer_reader reader;
    *why = BASE_CORRUPT;
    if (!buffer || buffer->type != GRPC_BB_RAW || buffer->data.raw.compression != GRPC_COMPRESS_NONE ||
        !grpc_byte_buffer_reader_init(&reader, buffer))
        return NULL;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    struct cap cap = {.left = RPC_CODEC_BASE_BYTES + RPC_CODEC_GROWTH * GRPC_SLICE_LENGTH(slice)};
    ProtobufCAllocator allocator = {.alloc = capped_alloc, .free = capped_free, .allocator_data = &cap};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &allocator, GRPC_SLICE_LENGTH(slice),
                                                          GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    if (cap.starved)
        *why = BASE_NO_MEMORY;
    return message;
}

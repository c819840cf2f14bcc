/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c messages to gRPC byte buffers and back, within limits. Any thread. */
#ifndef PROTO_RPC_CODEC_H
#define PROTO_RPC_CODEC_H

#include "base/error.h"

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>

/* *buffer is the caller's (grpc_byte_buffer_destroy). BASE_TOO_LARGE over RPC_MESSAGE_MAX_BYTES. */
enum base_code rpc_codec_pack(const ProtobufCMessage *message, grpc_byte_buffer **buffer,
                              struct base_error *error);

/* The message is the caller's (protobuf_c_message_free_unpacked with a NULL allocator). NULL and CORRUPT in *why when the bytes
 * do not parse, are compressed, or would take more than RPC_CODEC_GROWTH times their size; NULL and NO_MEMORY. `buffer` may be
 * NULL (it does not parse). */
ProtobufCMessage *rpc_codec_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                                   enum base_code *why);

#define RPC_CODEC_GROWTH 16
#define RPC_CODEC_BASE_BYTES 65536

#endif

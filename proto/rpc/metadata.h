/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the key-value pairs that travel beside a call's messages. */
#ifndef PROTO_RPC_METADATA_H
#define PROTO_RPC_METADATA_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stddef.h>

/* Copies the first value of `key`, terminated; false when there is none or it has no room. */
bool rpc_metadata_find(const grpc_metadata_array *array, const char *key, char *value, size_t value_bytes);

#endif

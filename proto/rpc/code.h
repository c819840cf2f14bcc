/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of base/error.h as gRPC statuses, and back: exactly, by trailing metadata, when the peer is ours; by
 * kinship when not. */
#ifndef PROTO_RPC_CODE_H
#define PROTO_RPC_CODE_H

#include "base/error.h"

#include <grpc/grpc.h>

#define RPC_CODE_KEY "millrace-code"

grpc_status_code rpc_code_to_status(enum base_code code);
/* Never BASE_OK unless `status` is. `exact` (or NULL) is set when the code came from the metadata. */
enum base_code rpc_code_from_status(grpc_status_code status, const grpc_metadata_array *trailing,
                                    bool *exact);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/code.h"

#include "proto/rpc/metadata.h"

#include <stdlib.h>
#include <string.h>

grpc_status_code rpc_code_to_status(enum base_code code)
{
    switch (code) {
    case BASE_OK:
        return GRPC_STATUS_OK;
    case BASE_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case BASE_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case BASE_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case BASE_REFUSED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case BASE_CORRUPT:
    case BASE_BAD_SAMPLE:
        return GRPC_STATUS_DATA_LOSS;
    case BASE_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case BASE_TOO_LARGE: /* as gRPC itself says of long messages */
    case BASE_BUSY:
    case BASE_NO_MEMORY:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case BASE_CONFLICT:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case BASE_INTERNAL:
        return GRPC_STATUS_INTERNAL;
    case BASE_UNAVAILABLE:
    case BASE_IO:
    case BASE_CLOSED:
        return GRPC_STATUS_UNAVAILABLE;
    case BASE_TIMEOUT:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case BASE_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    }
    return GRPC_STATUS_UNKNOWN;
}

static const enum base_code code_of_status[] = {
    [GRPC_STATUS_OK] = BASE_OK,
    [GRPC_STATUS_CANCELLED] = BASE_CANCELLED,
    [GRPC_STATUS_UNKNOWN] = BASE_INTERNAL,
    [GRPC_STATUS_INVALID_ARGUMENT] = BASE_INVALID,
    [GRPC_STATUS_DEADLINE_EXCEEDED] = BASE_TIMEOUT,
    [GRPC_STATUS_NOT_FOUND] = BASE_NOT_FOUND,
    [GRPC_STATUS_ALREADY_EXISTS] = BASE_EXISTS,
    [GRPC_STATUS_PERMISSION_DENIED] = BASE_REFUSED,
    [GRPC_STATUS_RESOURCE_EXHAUSTED] = BASE_TOO_LARGE,
    [GRPC_STATUS_FAILED_PRECONDITION] = BASE_CONFLICT,
    [GRPC_STATUS_ABORTED] = BASE_UNAVAILABLE,
    [GRPC_STATUS_OUT_OF_RANGE] = BASE_INVALID,
    [GRPC_STATUS_UNIMPLEMENTED] = BASE_UNSUPPORTED,
    [GRPC_STATUS_INTERNAL] = BASE_INTERNAL,
    [GRPC_STATUS_UNAVAILABLE] = BASE_UNAVAILABLE,
    [GRPC_STATUS_DATA_LOSS] = BASE_CORRUPT,
    [GRPC_STATUS_UNAUTHENTICATED] = BASE_REFUSED,
};

/* The code in the metadata; BASE_OK when there is none that this build knows. */
static enum base_code exact_code(const grpc_metadata_array *trailing)
{
    char text[8];
    if (!rpc_metadata_find(trailing, RPC_CODE_KEY, text, sizeof text))
        return BASE_OK;
    char *end;
    long number = strtol(text, &end, 10);
    if (*end || end == text || number <= 0 || number > 127)
        return BASE_OK;
    enum base_code code = (enum base_code)number;
    return strcmp(base_error_name(code), "unknown") ? code : BASE_OK;
}

enum base_code rpc_code_from_status(grpc_status_code status, const grpc_metadata_array *trailing, bool *exact)
{
    if (exact)
        *exact = false;
    if (status == GRPC_STATUS_OK)
        return BASE_OK;
    enum base_code code = trailing ? exact_code(trailing) : BASE_OK;
    if (code != BASE_OK) {
        if (exact)
            *exact = true;
        return code;
    }
    if ((int)status < 0 || (size_t)status >= sizeof code_of_status / sizeof code_of_status[0])
        return BASE_INTERNAL;
    return code_of_status[status];
}

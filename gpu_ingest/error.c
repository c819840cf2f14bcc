/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_ingest/backend.h"

#include <stdarg.h>
#include <stdio.h>

enum mr_code ingest_error_set(struct mr_error *error, enum mr_code code, const char *format, ...)
{
    if (error) {
        va_list args;
        error->code = code;
        va_start(args, format);
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
    }
    return code;
}

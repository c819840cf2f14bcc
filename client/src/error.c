/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/error.h"

#include <stdarg.h>
#include <stdio.h>

/* enum pipeline_verdict's bad ones: the numbers travel in rows, so they are fixed. */
enum { CAUSE_FIRST = 16 };
static const char *const causes[] = {
    "bad_empty", "bad_format",    "bad_unsupported", "bad_pixels", "bad_header",
    "bad_data",  "bad_truncated", "bad_row_bytes",   "bad_mask",
};

static void fill(struct mr_error *error, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void fill(struct mr_error *error, const char *format, va_list args)
{
    vsnprintf(error->text, sizeof error->text, format, args);
}

enum mr_code client_error_set(struct mr_error *error, enum base_code code, const char *format, ...)
{
    if (error) {
        va_list args;
        error->code = (enum mr_code)code;
        va_start(args, format);
        fill(error, format, args);
        va_end(args);
    }
    return (enum mr_code)code;
}

enum mr_code client_error_pass(struct mr_error *error, enum base_code code, const struct base_error *from)
{
    return client_error_set(error, code, "%s", from->text);
}

const char *mr_code_name(enum mr_code code)
{
    return code == MR_END ? "end" : base_error_name((enum base_code)code);
}

const char *mr_cause_name(uint8_t cause)
{
    if (cause == 0)
        return "";
    if (cause < CAUSE_FIRST || cause - CAUSE_FIRST >= (int)(sizeof causes / sizeof causes[0]))
        return "unknown";
    return causes[cause - CAUSE_FIRST];
}

size_t mr_dtype_bytes(enum mr_dtype dtype)
{
    switch (dtype) {
    case MR_U8:
        return 1;
    case MR_F16:
    case MR_BF16:
        return 2;
    case MR_I32:
    case MR_F32:
        return 4;
    case MR_I64:
        return 8;
    }
    return 0;
}

const char *mr_dtype_name(enum mr_dtype dtype)
{
    static const char *const names[] = {"unknown", "uint8",   "int32",   "int64",
                                        "float32", "float16", "bfloat16"};
    return (int)dtype >= 0 && (int)dtype <= MR_BF16 ? names[dtype] : names[0];
}

const char *mr_version(void)
{
    return MILLRACE_VERSION;
}

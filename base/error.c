/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What the header tells clang's analyzer is not for the functions themselves. */
#undef base_error_set
#undef base_error_prefix
#undef base_error_errno

__attribute__((format(printf, 3, 0))) static void fill(struct base_error *error, enum base_code code,
                                                       const char *format, va_list args)
{
    error->code = code;
    vsnprintf(error->text, sizeof error->text, format, args);
}

enum base_code base_error_set(struct base_error *error, enum base_code code, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        fill(error, code, format, args);
        va_end(args);
    }
    return code;
}

enum base_code base_error_prefix(struct base_error *error, enum base_code code, const char *format, ...)
{
    if (!error)
        return code;
    char old[BASE_ERROR_TEXT_BYTES];
    memcpy(old, error->text, sizeof old);
    va_list args;
    va_start(args, format);
    fill(error, code, format, args);
    va_end(args);
    size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof error->text - used, ": %s", old);
    return code;
}

static enum base_code code_of_errno(int errno_value)
{
    switch (errno_value) {
    case ENOMEM:
        return BASE_NO_MEMORY;
    case EACCES:
    case EPERM:
        return BASE_REFUSED;
    case ENOENT:
    case ENOTDIR:
        return BASE_NOT_FOUND;
    case EEXIST:
        return BASE_EXISTS;
    case ETIMEDOUT:
        return BASE_TIMEOUT;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return BASE_UNAVAILABLE;
    default:
        return BASE_IO;
    }
}

enum base_code base_error_errno(struct base_error *error, int errno_value, const char *format, ...)
{
    enum base_code code = code_of_errno(errno_value);
    if (error) {
        va_list args;
        va_start(args, format);
        fill(error, code, format, args);
        va_end(args);
        size_t used = strlen(error->text);
        char reason[128];
        snprintf(error->text + used, sizeof error->text - used, ": %s",
                 strerror_r(errno_value, reason, sizeof reason));
    }
    return code;
}

enum base_class base_error_class(enum base_code code)
{
    if (code == BASE_OK)
        return BASE_CLASS_OK;
    if (code == BASE_BAD_SAMPLE)
        return BASE_CLASS_BAD_SAMPLE;
    return code >= BASE_UNAVAILABLE ? BASE_CLASS_RETRYABLE : BASE_CLASS_PERMANENT;
}

const char *base_error_name(enum base_code code)
{
    switch (code) {
    case BASE_OK:
        return "ok";
    case BASE_INVALID:
        return "invalid";
    case BASE_NOT_FOUND:
        return "not_found";
    case BASE_EXISTS:
        return "exists";
    case BASE_REFUSED:
        return "refused";
    case BASE_CORRUPT:
        return "corrupt";
    case BASE_UNSUPPORTED:
        return "unsupported";
    case BASE_TOO_LARGE:
        return "too_large";
    case BASE_CONFLICT:
        return "conflict";
    case BASE_INTERNAL:
        return "internal";
    case BASE_UNAVAILABLE:
        return "unavailable";
    case BASE_TIMEOUT:
        return "timeout";
    case BASE_BUSY:
        return "busy";
    case BASE_NO_MEMORY:
        return "no_memory";
    case BASE_IO:
        return "io";
    case BASE_CLOSED:
        return "closed";
    case BASE_CANCELLED:
        return "cancelled";
    case BASE_BAD_SAMPLE:
        return "bad_sample";
    }
    return "unknown";
}

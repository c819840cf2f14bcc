/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. A function that can fail returns a code and fills an optional, caller-owned struct base_error.
 * Three classes, told apart everywhere (wire, client, logs): retryable, permanent, bad sample.
 * Log where an error is first known; stay silent on the way up.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stdbool.h>
#include <stdint.h>

/* The numbers travel on the wire and in public headers: never renumber, only append. */
enum base_code {
    BASE_OK = 0,
    /* permanent: the same call will fail again */
    BASE_INVALID = 1,     /* an argument, a flag or a text is wrong */
    BASE_NOT_FOUND = 2,   /* no such dataset, job, worker, item */
    BASE_EXISTS = 3,      /* the name is taken by something else */
    BASE_REFUSED = 4,     /* not allowed: token, path outside the data roots */
    BASE_CORRUPT = 5,     /* bytes that do not match their checksum or grammar */
    BASE_UNSUPPORTED = 6, /* understood, and not built */
    BASE_TOO_LARGE = 7,   /* over a stated limit */
    BASE_CONFLICT = 8,    /* cursor of another version, ranks with unequal cursors */
    BASE_INTERNAL = 9,    /* a bug here */
    /* retryable: the same call may succeed later or elsewhere */
    BASE_UNAVAILABLE = 32, /* peer away, file missing or changed, draining */
    BASE_TIMEOUT = 33,     /* the deadline passed */
    BASE_BUSY = 34,        /* a budget is used up */
    BASE_NO_MEMORY = 35,
    BASE_IO = 36,     /* the operating system said no */
    BASE_CLOSED = 37, /* the handle or peer was closed meanwhile */
    BASE_CANCELLED = 38,
    /* bad sample: decided by the item's bytes alone */
    BASE_BAD_SAMPLE = 64,
};

enum base_class { BASE_CLASS_OK, BASE_CLASS_PERMANENT, BASE_CLASS_RETRYABLE, BASE_CLASS_BAD_SAMPLE };

#define BASE_ERROR_TEXT_BYTES 512

struct base_error {
    enum base_code code;
    char text[BASE_ERROR_TEXT_BYTES]; /* names the thing, the place and the cause; always terminated */
};

/* Fills `error` (may be NULL) and returns `code`, so that `return base_error_set(...)` reads well. Long text is cut. */
enum base_code base_error_set(struct base_error *error, enum base_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text already in `error`; returns error's code. `error` may be NULL: returns `code`. */
enum base_code base_error_prefix(struct base_error *error, enum base_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As base_error_set, with ": " and strerror(errno_value) at the end; the code is chosen from errno. */
enum base_code base_error_errno(struct base_error *error, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__
/* Shows clang's analyzer what it cannot see from here: that these return an error. */
#define base_error_set(error, code, ...) (base_error_set(error, code, __VA_ARGS__), (code))
#define base_error_errno(error, number, ...) (base_error_errno(error, number, __VA_ARGS__), BASE_IO)
#define base_error_prefix(error, code, ...) (base_error_prefix(error, code, __VA_ARGS__), (code))
#endif

enum base_class base_error_class(enum base_code code);
const char *base_error_name(enum base_code code); /* "not_found"; "unknown" for other numbers */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs: one logfmt line to a file descriptor, written with one write(2):
 *   2026-11-29T15:00:00.000Z level=info prog=worker id=block_made stream=ab12 epoch=0 block=3 ...
 * `id` is a stable word that tests and operators search for (docs/errors.md lists those of warnings and errors).
 * `fields` is logfmt text made with the caller's format; use base_log_quote for outside text. Any thread.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>

enum base_log_level { BASE_LOG_DEBUG, BASE_LOG_INFO, BASE_LOG_WARN, BASE_LOG_ERROR };

/* `program` must outlive the process. Default: fd 2, level info. */
void base_log_start(const char *program, int fd, enum base_log_level level);
void base_log(enum base_log_level level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Quotes outside text for logfmt (double quotes, escapes for quote, backslash and control bytes). Returns `out`. */
const char *base_log_quote(const char *text, char *out, size_t out_bytes);

#endif

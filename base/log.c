/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 };

/* The one global state of base/: where this process's log goes. */
static const char *_Atomic log_program = "millrace";
static atomic_int log_fd = 2;
static atomic_int log_level = BASE_LOG_INFO;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void base_log_start(const char *program, int fd, enum base_log_level level)
{
    log_program = program;
    log_fd = fd;
    log_level = level;
}

static size_t put_head(char *line, enum base_log_level level, const char *id)
{
    int64_t now_ns = base_clock_wall_ns();
    time_t seconds = (time_t)(now_ns / BASE_NS_PER_S);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    size_t used = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    int more = snprintf(line + used, LINE_BYTES - used, ".%03dZ level=%s prog=%s id=%s",
                        (int)(now_ns % BASE_NS_PER_S / BASE_NS_PER_MS), level_names[level], log_program, id);
    return more < 0 ? used : used + (size_t)more;
}

void base_log(enum base_log_level level, const char *id, const char *format, ...)
{
    if ((int)level < log_level)
        return;
    char line[LINE_BYTES];
    size_t used = put_head(line, level, id);
    if (used > LINE_BYTES - 2)
        used = LINE_BYTES - 2;
    line[used++] = ' ';
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, LINE_BYTES - used, format, args);
    va_end(args);
    if (more > 0)
        used += (size_t)more;
    else
        used--; /* no fields: no space */
    if (used > LINE_BYTES - 1)
        used = LINE_BYTES - 1;
    line[used++] = '\n';
    /* A log that cannot be written must not stop the program. */
    ssize_t written = write(log_fd, line, used);
    (void)written;
}

/* The escape of a byte, 1 to 4 characters; returns its length. */
static size_t escape(unsigned char byte, char out[5])
{
    if (byte == '"' || byte == '\\')
        return (size_t)snprintf(out, 5, "\\%c", byte);
    if (byte == '\n')
        return (size_t)snprintf(out, 5, "\\n");
    if (byte < 0x20 || byte == 0x7f)
        return (size_t)snprintf(out, 5, "\\x%02x", byte);
    out[0] = (char)byte;
    return 1;
}

const char *base_log_quote(const char *text, char *out, size_t out_bytes)
{
    if (out_bytes < 3) {
        if (out_bytes)
            out[0] = 0;
        return out;
    }
    size_t used = 0;
    out[used++] = '"';
    for (; *text; text++) {
        char escaped[5];
        size_t size = escape((unsigned char)*text, escaped);
        if (used + size + 2 > out_bytes)
            break;
        for (size_t i = 0; i < size; i++)
            out[used++] = escaped[i];
    }
    out[used++] = '"';
    out[used] = 0;
    return out;
}

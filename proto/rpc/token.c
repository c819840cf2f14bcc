/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/token.h"

#include "base/hash.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_MIN_BYTES 16
#define KEY_MAX_BYTES 4096
#define JOB_MAX_CHARS 128
#define JOB_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

/* ---- the key ---- */

static enum base_code check_file(int fd, const char *path, struct base_error *error)
{
    struct stat stat;
    if (fstat(fd, &stat))
        return base_error_errno(error, errno, "secret file %s", path);
    if (!S_ISREG(stat.st_mode))
        return base_error_set(error, BASE_INVALID, "secret file %s: not a regular file", path);
    if (stat.st_mode & (S_IRWXG | S_IRWXO))
        return base_error_set(error, BASE_REFUSED,
                              "secret file %s: others may use it (mode %04o): chmod 600 it", path,
                              (unsigned)(stat.st_mode & 07777));
    return BASE_OK;
}

/* Up to `size` bytes from fd; *got < size at the file's end. */
static enum base_code read_all(int fd, const char *path, char *bytes, size_t size, size_t *got,
                               struct base_error *error)
{
    *got = 0;
    while (*got < size) {
        ssize_t n = read(fd, bytes + *got, size - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return base_error_errno(error, errno, "secret file %s", path);
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return BASE_OK;
}

/* Checks what was read and copies it without surrounding white space. */
static enum base_code take_key(const char *path, char *bytes, size_t size, char *key, size_t key_bytes,
                               struct base_error *error)
{
    while (size && isspace((unsigned char)bytes[size - 1]))
        size--;
    while (size && isspace((unsigned char)*bytes))
        bytes++, size--;
    if (memchr(bytes, 0, size))
        return base_error_set(error, BASE_INVALID, "secret file %s: the key has a zero byte; use text", path);
    if (size < KEY_MIN_BYTES || size > KEY_MAX_BYTES)
        return base_error_set(error, BASE_INVALID, "secret file %s: the key has %zu bytes, not %d to %d",
                              path, size, KEY_MIN_BYTES, KEY_MAX_BYTES);
    if (size >= key_bytes)
        return base_error_set(error, BASE_TOO_LARGE, "secret file %s: no room for a key of %zu bytes", path,
                              size);
    memcpy(key, bytes, size);
    key[size] = 0;
    return BASE_OK;
}

enum base_code rpc_token_read_key(const char *path, char *key, size_t key_bytes, struct base_error *error)
{
    char bytes[KEY_MAX_BYTES + 256]; /* room for white space around it */
    size_t size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return base_error_errno(error, errno, "secret file %s", path);
    enum base_code code = check_file(fd, path, error);
    if (!code)
        code = read_all(fd, path, bytes, sizeof bytes, &size, error);
    if (!code)
        code = take_key(path, bytes, size, key, key_bytes, error);
    explicit_bzero(bytes, sizeof bytes);
    close(fd);
    return code;
}

/* ---- tokens ---- */

/* The signature, in hexadecimal, of "v1.JOB.EXPIRY". */
static void sign(const char *key, const char *text, size_t text_chars, char hex[BASE_SHA256_HEX_CHARS + 1])
{
    uint8_t mac[BASE_SHA256_BYTES];
    base_hash_hmac_sha256(key, strlen(key), text, text_chars, mac);
    base_hash_to_hex(mac, sizeof mac, hex);
}

enum base_code rpc_token_issue(const char *key, const char *job, int64_t now_s, char token[RPC_TOKEN_CHARS],
                               struct base_error *error)
{
    size_t chars = strlen(job);
    if (!chars || chars > JOB_MAX_CHARS || strspn(job, JOB_LETTERS) != chars)
        return base_error_set(error, BASE_INVALID, "a token's job has 1 to %d letters, digits, '-' and '_'",
                              JOB_MAX_CHARS);
    int used = snprintf(token, RPC_TOKEN_CHARS, "v1.%s.%" PRId64, job, now_s + RPC_TOKEN_LIFE_S);
    char hex[BASE_SHA256_HEX_CHARS + 1];
    sign(key, token, (size_t)used, hex);
    snprintf(token + used, RPC_TOKEN_CHARS - (size_t)used, ".%s", hex);
    return BASE_OK;
}

void rpc_token_subject(const char *job, char subject[RPC_TOKEN_SUBJECT_CHARS])
{
    size_t chars = strlen(job);
    uint8_t hash[BASE_SHA256_BYTES];
    char hex[BASE_SHA256_HEX_CHARS + 1];
    if (chars && chars <= JOB_MAX_CHARS && strspn(job, JOB_LETTERS) == chars) {
        snprintf(subject, RPC_TOKEN_SUBJECT_CHARS, "%s", job);
        return;
    }
    base_hash_sha256(job, chars, hash);
    base_hash_to_hex(hash, sizeof hash, hex);
    snprintf(subject, RPC_TOKEN_SUBJECT_CHARS, "sha256-%s", hex);
}

bool rpc_token_is_for(const char *token, const char *subject)
{
    size_t chars = strlen(subject);
    return !strncmp(token, "v1.", 3) && !strncmp(token + 3, subject, chars) && token[3 + chars] == '.';
}

/* The expiry that stands before `end`; -1 when the token is not of the form. */
static int64_t parse_expiry(const char *token, const char *end)
{
    if (strncmp(token, "v1.", 3))
        return -1;
    size_t job_chars = strspn(token + 3, JOB_LETTERS);
    const char *digits = token + 3 + job_chars + 1;
    size_t digit_chars = (size_t)(end - digits);
    if (!job_chars || token[3 + job_chars] != '.' || digits >= end || digit_chars > 18 ||
        strspn(digits, "0123456789") != digit_chars)
        return -1;
    return strtoll(digits, NULL, 10);
}

enum base_code rpc_token_check(const char *key, const char *token, int64_t now_s, struct base_error *error)
{
    uint8_t want[BASE_SHA256_BYTES], got[BASE_SHA256_BYTES];
    const char *end = strrchr(token, '.');
    int64_t expiry_s = end ? parse_expiry(token, end) : -1;
    if (expiry_s < 0 || !base_hash_from_hex(end + 1, got, sizeof got))
        return base_error_set(error, BASE_REFUSED, "token: not of the form v1.JOB.EXPIRY.HEX");
    base_hash_hmac_sha256(key, strlen(key), token, (size_t)(end - token), want);
    if (!base_hash_equal(want, got))
        return base_error_set(error, BASE_REFUSED, "token: made with another secret, or altered");
    if (now_s >= expiry_s)
        return base_error_set(error, BASE_REFUSED, "token: expired %" PRId64 " s ago", now_s - expiry_s);
    return BASE_OK;
}

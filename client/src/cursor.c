/* SPDX-License-Identifier: Apache-2.0 */
/* mr1.EPOCH.FIRST_EPOCH.POSITION.VERSION.STREAM.FINGERPRINT.CHECK: decimal numbers, hexadecimal hashes, and XXH3 of all
 * before the last dot. */
#include "client/include/millrace/millrace.h"

#include "base/hash.h"
#include "client/src/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHECK_CHARS 16

void mr_cursor_print(const struct mr_cursor *cursor, char text[MR_CURSOR_TEXT_BYTES])
{
    char version[65], stream[65], fingerprint[33];
    base_hash_to_hex(cursor->dataset_version, 32, version);
    base_hash_to_hex(cursor->stream, 32, stream);
    base_hash_to_hex(cursor->fingerprint, 16, fingerprint);
    int used = snprintf(text, MR_CURSOR_TEXT_BYTES, "mr1.%" PRIu32 ".%" PRIu32 ".%" PRIu64 ".%s.%s.%s",
                        cursor->epoch, cursor->first_epoch, cursor->position, version, stream, fingerprint);
    snprintf(text + used, (size_t)(MR_CURSOR_TEXT_BYTES - used), ".%016" PRIx64,
             base_hash_xxh3(text, (size_t)used));
}

/* Up to the next dot, which is dropped. */
static bool take_number(const char **at, uint64_t most, uint64_t *value)
{
    const char *start = *at;
    *value = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (*value > (most - digit) / 10)
            return false;
        *value = *value * 10 + digit;
    }
    bool canonical = *at != start && (*start != '0' || *at == start + 1);
    return canonical && *(*at)++ == '.';
}

static bool take_hex(const char **at, uint8_t *bytes, size_t size)
{
    char hex[2 * 32 + 1];
    if (strnlen(*at, 2 * size + 1) < 2 * size + 1 || (*at)[2 * size] != '.')
        return false;
    memcpy(hex, *at, 2 * size);
    hex[2 * size] = 0;
    *at += 2 * size + 1;
    return base_hash_from_hex(hex, bytes, size);
}

enum mr_code mr_cursor_parse(struct mr_cursor *cursor, const char *text, struct mr_error *error)
{
    struct mr_cursor read = {0};
    uint64_t epoch, first_epoch;
    char check[CHECK_CHARS + 1];
    size_t size = strnlen(text, MR_CURSOR_TEXT_BYTES);
    if (size < CHECK_CHARS + 1 || size == MR_CURSOR_TEXT_BYTES || memcmp(text, "mr1.", 4) != 0)
        return client_error_set(error, BASE_INVALID, "cursor: not the text of one (mr1....)");
    snprintf(check, sizeof check, "%016" PRIx64, base_hash_xxh3(text, size - CHECK_CHARS - 1));
    if (memcmp(check, text + size - CHECK_CHARS, CHECK_CHARS) != 0)
        return client_error_set(error, BASE_CORRUPT,
                                "cursor: its checksum does not match, the text was changed or cut");
    const char *at = text + 4;
    if (!take_number(&at, UINT32_MAX, &epoch) || !take_number(&at, UINT32_MAX, &first_epoch) ||
        !take_number(&at, UINT64_MAX, &read.position) || !take_hex(&at, read.dataset_version, 32) ||
        !take_hex(&at, read.stream, 32) || !take_hex(&at, read.fingerprint, 16) ||
        at + CHECK_CHARS != text + size || first_epoch > epoch)
        return client_error_set(error, BASE_CORRUPT, "cursor: malformed at character %d", (int)(at - text));
    read.epoch = (uint32_t)epoch;
    read.first_epoch = (uint32_t)first_epoch;
    *cursor = read;
    return MR_OK;
}

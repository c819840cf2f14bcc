/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ledgers are outside bytes. Input: one byte (1: checks and checksums are made right, so that the fuzzer gets past them), then
 * a file. What is accepted has one spelling: written again it is the same bytes.
 */
#include "base/hash.h"
#include "proto/ledger/ledger.h"

#include <stdlib.h>
#include <string.h>

static void seal(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; size - at >= LEDGER_HEAD_BYTES + LEDGER_END_BYTES;) {
        uint64_t length = base_get_u32(bytes + at + 8),
                 left = size - at - LEDGER_HEAD_BYTES - LEDGER_END_BYTES;
        if (length > left)
            base_set_u32(bytes + at + 8, (uint32_t)(length = left));
        memcpy(bytes + at, "MRLG", 4);
        base_set_u32(bytes + at + 12, (uint32_t)base_hash_xxh3(bytes + at, 12));
        base_set_u64(bytes + at + LEDGER_HEAD_BYTES + length,
                     base_hash_xxh3(bytes + at, LEDGER_HEAD_BYTES + length));
        at += LEDGER_HEAD_BYTES + length + LEDGER_END_BYTES;
    }
}

static void check(const uint8_t *bytes, size_t size, const struct ledger_record *record)
{
    struct base_buffer again;
    base_buffer_init(&again);
    if (record->kind == LEDGER_START)
        ledger_put_start(&again, &record->start);
    else
        ledger_put_batch(&again, &record->batch);
    if (again.size != size || memcmp(again.bytes, bytes, size) != 0)
        abort();
    base_buffer_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    uint8_t *file = malloc(size);
    memcpy(file, bytes + 1, --size);
    if (bytes[0] & 1)
        seal(file, size);
    for (size_t at = 0, whole; size - at >= LEDGER_HEAD_BYTES; at += whole) {
        struct ledger_record record;
        struct base_error error = {.code = BASE_OK};
        if (ledger_head(file + at, &whole, &error) != BASE_OK || whole > size - at)
            break;
        uint8_t *own = malloc(whole); /* so that a read past the end is seen */
        memcpy(own, file + at, whole);
        if (ledger_parse(own, whole, &record, &error) == BASE_OK)
            check(own, whole, &record);
        else if (!error.text[0])
            abort();
        free(own);
    }
    free(file);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/include/millrace/millrace.h"

#include "base/hash.h"
#include "base/philox.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct mr_cursor cursor_of(uint64_t seed)
{
    struct mr_cursor cursor = {
        .epoch = (uint32_t)base_philox_word(seed, 1, 0),
        .position = base_philox_word(seed, 1, 1) >> (seed % 64),
    };
    cursor.first_epoch =
        seed % 3 ? cursor.epoch : (uint32_t)base_philox_below(seed, 1, 2, (uint64_t)cursor.epoch + 1);
    for (uint32_t i = 0; i < 32; i++) {
        cursor.dataset_version[i] = (uint8_t)base_philox_word(seed, 2, i);
        cursor.stream[i] = (uint8_t)base_philox_word(seed, 3, i);
        cursor.fingerprint[i % 16] = (uint8_t)base_philox_word(seed, 4, i);
    }
    return cursor;
}

static void test_round_trip(void **state)
{
    char text[MR_CURSOR_TEXT_BYTES];
    (void)state;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct mr_cursor cursor = cursor_of(seed), back;
        struct mr_error error;
        memset(text, 'x', sizeof text);
        mr_cursor_print(&cursor, text);
        assert_non_null(memchr(text, 0, sizeof text));
        if (mr_cursor_parse(&back, text, &error) != MR_OK)
            fail_msg("%s: %s", text, error.text);
        assert_true(cursor.epoch == back.epoch && cursor.first_epoch == back.first_epoch &&
                    cursor.position == back.position);
        assert_memory_equal(cursor.dataset_version, back.dataset_version, 32);
        assert_memory_equal(cursor.stream, back.stream, 32);
        assert_memory_equal(cursor.fingerprint, back.fingerprint, 16);
    }
}

static void test_every_change_is_seen(void **state)
{
    char text[MR_CURSOR_TEXT_BYTES], changed[MR_CURSOR_TEXT_BYTES + 2];
    struct mr_cursor cursor = cursor_of(4), back;
    (void)state;
    mr_cursor_print(&cursor, text);
    size_t size = strlen(text);
    for (size_t i = 0; i < size; i++)
        for (int by = 1; by < 128; by++) {
            memcpy(changed, text, size + 1);
            changed[i] = (char)(changed[i] ^ by);
            assert_int_not_equal(mr_cursor_parse(&back, changed, NULL), MR_OK);
        }
    for (size_t cut = 0; cut < size; cut++) {
        memcpy(changed, text, size + 1);
        changed[cut] = 0;
        assert_int_not_equal(mr_cursor_parse(&back, changed, NULL), MR_OK);
    }
    snprintf(changed, sizeof changed, "%s\n", text);
    assert_int_not_equal(mr_cursor_parse(&back, changed, NULL), MR_OK);
}

/* The checksum is right, the text is not. */
static void test_malformed(void **state)
{
    static const char *const heads[] = {
        "mr1.1.0.5",          "mr1.1.0.18446744073709551616",
        "mr1.4294967296.0.5", "mr1.0.1.5",
        "mr1.01.0.5",         "mr1..0.5",
        "mr1.-1.0.5",         "mr1.1.0",
        "mr2.1.0.5",          "mr1.1.0.5.5",
    };
    char hex[2 * 32 + 1], text[512];
    struct mr_cursor back;
    struct mr_error error;
    (void)state;
    memset(hex, '7', 64);
    hex[64] = 0;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        int used = snprintf(text, sizeof text, "%s.%s.%s.%.32s", heads[i], hex, hex, hex);
        snprintf(text + used, sizeof text - (size_t)used, ".%016" PRIx64, base_hash_xxh3(text, (size_t)used));
        enum mr_code code = mr_cursor_parse(&back, text, &error);
        if ((code == MR_OK) != (i == 0))
            fail_msg("%s: %s", text, mr_code_name(code));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_change_is_seen),
        cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

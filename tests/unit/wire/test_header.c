/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/header.h"

#include "base/buffer.h"
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct wire_header sample = {
    .version = 1,
    .type = WIRE_GET,
    .flags = WIRE_FLAG_INSIST | WIRE_FLAG_DEATH,
    .request = UINT64_C(0x1122334455667788),
    .handle = 7,
    .plan = 9,
    .epoch = 3,
    .from = 2,
    .to = 16,
    .block = UINT64_C(0x0102030405060708),
    .length = 12,
    .status = 33,
    .queue = 4,
    .time_ms = 250,
};

static void reseal(uint8_t bytes[WIRE_HEADER_BYTES])
{
    base_set_u64(bytes + 56, base_hash_xxh3(bytes, 56));
}

/* Written down by hand from docs/protocol.md, so that it says when the layout moves. */
static void bytes_are_as_documented(void **state)
{
    (void)state;
    static const uint8_t expected[56] = {
        'M', 'R', 'R', 'C', 1, 3, 3, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 7, 0, 0,
        0,   9,   0,   0,   0, 3, 0, 0, 0,    2,    0,    16,   0,    8,    7,    6,    5, 4, 3,
        2,   1,   12,  0,   0, 0, 0, 0, 0,    0,    33,   0,    4,    0,    250,  0,    0, 0,
    };
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_header_write(&sample, bytes);
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_true(base_get_u64(bytes + 56) == base_hash_xxh3(expected, sizeof expected));
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    uint8_t bytes[WIRE_HEADER_BYTES], again[WIRE_HEADER_BYTES];
    struct wire_header header;
    wire_header_write(&sample, bytes);
    assert_int_equal(wire_header_read(bytes, &header, NULL), BASE_OK);
    assert_int_equal(header.block, sample.block);
    assert_int_equal(header.time_ms, 250);
    wire_header_write(&header, again);
    assert_memory_equal(bytes, again, sizeof bytes);
}

static void each_flipped_bit_is_caught(void **state)
{
    (void)state;
    for (int bit = 0; bit < WIRE_HEADER_BYTES * 8; bit++) {
        uint8_t bytes[WIRE_HEADER_BYTES];
        struct wire_header header;
        wire_header_write(&sample, bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(wire_header_read(bytes, &header, NULL), BASE_CORRUPT);
        assert_int_equal(header.request, 0);
    }
}

/* A row changes one place of a good header, which is sealed again. */
static void senseless_headers_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint8_t type;
        int at, bytes;
        uint64_t value;
        enum base_code code;
        const char *text;
    } rows[] = {
        {"as it is", WIRE_GET, 4, 1, 1, BASE_OK, ""},
        {"magic of HTTP", WIRE_GET, 0, 4, 0x20544547, BASE_CORRUPT, "magic 20544547"},
        {"version 0", WIRE_GET, 4, 1, 0, BASE_UNSUPPORTED, "version 0"},
        {"version to come", WIRE_GET, 4, 1, 2, BASE_UNSUPPORTED, "version 2; versions 1 to 1"},
        {"unknown type", 15, 4, 1, 1, BASE_OK, ""},
        {"unknown type 0", 0, 4, 1, 1, BASE_OK, ""},
        {"unknown critical type", 15, 6, 2, 0x8000, BASE_UNSUPPORTED, "unknown type 15"},
        {"unknown flag", WIRE_GET, 6, 2, 0x0100, BASE_OK, ""},
        {"known critical flags", WIRE_GET, 6, 2, 0x8003, BASE_OK, ""},
        {"unknown critical flag", WIRE_GET, 6, 2, 0xc001, BASE_UNSUPPORTED,
         "GET frame with unknown flags 0x4000"},
        {"request 0", WIRE_GET, 8, 8, 0, BASE_CORRUPT, "GET frame with request 0"},
        {"OPEN with request 0", WIRE_OPEN, 8, 8, 0, BASE_CORRUPT, "OPEN frame with request 0"},
        {"PING with request 0", WIRE_PING, 8, 8, 0, BASE_OK, ""},
        {"no rows", WIRE_GET, 28, 2, 16, BASE_CORRUPT, "rows [16, 16)"},
        {"rows backwards", WIRE_DATA, 28, 2, 17, BASE_CORRUPT, "DATA frame of rows [17, 16)"},
        {"largest small", WIRE_GET, 40, 8, 65536, BASE_OK, ""},
        {"small too large", WIRE_GET, 40, 8, 65537, BASE_TOO_LARGE, "GET frame of 65537 bytes"},
        {"unknown type too large", 200, 40, 8, 65537, BASE_TOO_LARGE, "over the limit of 65536"},
        {"largest DATA", WIRE_DATA, 40, 8, UINT64_C(1) << 31, BASE_OK, ""},
        {"DATA too large", WIRE_DATA, 40, 8, (UINT64_C(1) << 31) + 1, BASE_TOO_LARGE, "DATA frame"},
        {"DATA far too large", WIRE_DATA, 40, 8, UINT64_MAX, BASE_TOO_LARGE, "18446744073709551615"},
        {"request for a page too large", WIRE_PAGE, 40, 8, 65537, BASE_TOO_LARGE, "PAGE frame"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t bytes[WIRE_HEADER_BYTES];
        struct wire_header header = sample;
        struct base_error error = {0};
        header.type = rows[i].type;
        wire_header_write(&header, bytes);
        for (int k = 0; k < rows[i].bytes; k++)
            bytes[rows[i].at + k] = (uint8_t)(rows[i].value >> 8 * k);
        reseal(bytes);
        enum base_code code = wire_header_read(bytes, &header, &error);
        if (code != rows[i].code || !strstr(error.text, rows[i].text))
            fail_msg("%s: %s, \"%s\"", rows[i].what, base_error_name(code), error.text);
    }
}

static void pages_have_their_own_limit(void **state)
{
    (void)state;
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = {
        .type = WIRE_PAGE, .flags = WIRE_FLAG_REPLY, .request = 1, .length = 1 << 20};
    assert_true(wire_header_is_bulk(&header));
    wire_header_write(&header, bytes);
    assert_int_equal(wire_header_read(bytes, &header, NULL), BASE_OK);
    assert_int_equal(header.version, WIRE_VERSION_MIN);
    header.length++;
    wire_header_write(&header, bytes);
    assert_int_equal(wire_header_read(bytes, &header, NULL), BASE_TOO_LARGE);
}

static void local_data_is_small(void **state)
{
    (void)state;
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = {
        .type = WIRE_DATA, .flags = WIRE_FLAG_LOCAL, .request = 1, .to = 1, .length = WIRE_SMALL_MAX_BYTES};
    assert_false(wire_header_is_bulk(&header));
    wire_header_write(&header, bytes);
    assert_int_equal(wire_header_read(bytes, &header, NULL), BASE_OK);
    header.length++;
    wire_header_write(&header, bytes);
    assert_int_equal(wire_header_read(bytes, &header, NULL), BASE_TOO_LARGE);
}

static void types_have_names(void **state)
{
    (void)state;
    assert_string_equal(wire_type_name(WIRE_HELLO), "HELLO");
    assert_string_equal(wire_type_name(WIRE_PAGE), "PAGE");
    assert_string_equal(wire_type_name(0), "unknown");
    assert_string_equal(wire_type_name(15), "unknown");
    assert_string_equal(wire_type_name(255), "unknown");
    for (int type = WIRE_HELLO; type <= WIRE_DONE; type++)
        assert_true(wire_type_known((uint8_t)type));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_as_documented),    cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(each_flipped_bit_is_caught), cmocka_unit_test(senseless_headers_are_named),
        cmocka_unit_test(pages_have_their_own_limit), cmocka_unit_test(local_data_is_small),
        cmocka_unit_test(types_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

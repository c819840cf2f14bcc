/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/rows.h"

#include "base/buffer.h"
#include "base/hash.h"
#include "tests/unit/wire/random_block.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void rows_round_trip(void **state)
{
    (void)state;
    static const uint8_t expected[WIRE_ROW_BYTES] = {1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3,
                                                     0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 22};
    struct wire_row row = {.item = 1, .used_item = 2, .occurrence = 3, .hash = 4, .status = 1, .cause = 22},
                    again;
    uint8_t bytes[WIRE_ROW_BYTES];
    wire_row_write(&row, bytes);
    assert_memory_equal(bytes, expected, sizeof bytes);
    assert_int_equal(wire_row_read(bytes, &again, NULL), BASE_OK);
    wire_row_write(&again, bytes);
    assert_memory_equal(bytes, expected, sizeof bytes);
}

static void bad_rows_fail(void **state)
{
    (void)state;
    for (int at = 32; at < WIRE_ROW_BYTES; at++) {
        struct wire_row row = {.item = 5};
        uint8_t bytes[WIRE_ROW_BYTES];
        wire_row_write(&row, bytes);
        bytes[at] = 3;
        assert_int_equal(wire_row_read(bytes, &row, NULL), at == 33 ? BASE_OK : BASE_CORRUPT);
    }
}

static void layout_is_aligned_and_disjoint(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct random_block b;
        random_block_init(&b, seed);
        size_t rows = b.layout.rows, at = 0;
        const struct {
            size_t begin, size;
        } head[] = {{b.layout.row_table, rows * 40}, {b.layout.hashes, rows * (size_t)b.field_count * 8}};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(head[i].begin % 64, 0);
            assert_true(head[i].begin >= at);
            at = head[i].begin + head[i].size;
        }
        for (int pass = 0; pass < 2; pass++)
            for (int f = 0; f < b.field_count; f++) {
                if (!pass && !b.fields[f].ragged)
                    continue;
                size_t begin = pass ? b.layout.values[f] : b.layout.lengths[f];
                assert_int_equal(begin % 64, 0);
                assert_true(begin >= at);
                at = begin + rows * (pass ? b.fields[f].max_bytes : 4);
            }
        assert_true(b.layout.size >= at && b.layout.size < at + 64 && b.layout.size % 64 == 0);
        random_block_fini(&b);
    }
}

/* The row hash written out by hand: XXH3 over the little-endian XXH3s of the fields, an empty ragged value hashing nothing. */
static void row_hashes_are_as_documented(void **state)
{
    (void)state;
    static const struct scheduler_field fields[] = {
        {.name = "a", .dtype = SCHEDULER_U8, .rank = 1, .dims = {3}, .max_bytes = 3},
        {.name = "r", .dtype = SCHEDULER_I32, .rank = 1, .dims = {-1}, .ragged = true, .max_bytes = 16},
    };
    struct wire_layout layout;
    wire_layout_init(&layout, fields, 2, 2);
    uint8_t *block = aligned_alloc(64, layout.size);
    memset(block, 0, layout.size);
    memcpy(block + layout.values[0], "abcdef", 6);
    memcpy(block + layout.values[1], "wxyz", 4);
    base_set_u32(block + layout.lengths[1] + 4, 1); /* row 0 has none, row 1 has one element */
    static const char *const text[2][2] = {{"abc", ""}, {"def", "wxyz"}};
    for (uint32_t row = 0; row < 2; row++) {
        uint8_t hashes[16];
        for (int f = 0; f < 2; f++)
            base_set_u64(hashes + 8 * f, base_hash_xxh3(text[row][f], strlen(text[row][f])));
        assert_true(wire_layout_hash_row(&layout, block, row, (uint64_t[8]){0}) ==
                    base_hash_xxh3(hashes, 16));
        assert_memory_equal(block + layout.hashes + 16 * row, hashes, 16);
    }
    free(block);
}

/* ---- parts ---- */

/* u8[4], i64[], ragged i32 of at most 3 elements, 2 rows: the head that a test then spoils. */
static const struct scheduler_field sent[] = {
    {.name = "image", .dtype = SCHEDULER_U8, .rank = 1, .dims = {4}, .max_bytes = 4},
    {.name = "label", .dtype = SCHEDULER_I64, .max_bytes = 8},
    {.name = "ragged", .dtype = SCHEDULER_I32, .rank = 1, .dims = {-1}, .ragged = true, .max_bytes = 12},
};
enum { SENT = 3, ROWS = 2, HEAD = 24 + ROWS * (40 + 24) + 8 };

static void directories_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint64_t image, label, ragged, length;
        enum base_code code;
        const char *text;
    } rows[] = {
        {"right", 8, 16, 20, HEAD + 8 + 16 + 8 + 20, BASE_OK, ""},
        {"ragged empty", 8, 16, 0, HEAD + 8 + 16 + 8, BASE_OK, ""},
        {"ragged full", 8, 16, 24, HEAD + 8 + 16 + 8 + 24, BASE_OK, ""},
        {"fixed short", 7, 16, 20, HEAD + 7 + 16 + 8 + 20, BASE_CORRUPT, "7 bytes of field \"image\""},
        {"fixed long", 8, 17, 20, HEAD + 8 + 17 + 8 + 20, BASE_CORRUPT, "17 bytes of field \"label\""},
        {"fixed none", 8, 0, 20, HEAD + 8 + 0 + 8 + 20, BASE_CORRUPT, "0 bytes of field \"label\""},
        {"ragged over", 8, 16, 28, HEAD + 8 + 16 + 8 + 28, BASE_CORRUPT, "28 bytes of field \"ragged\""},
        {"ragged part of an element", 8, 16, 21, HEAD + 8 + 16 + 8 + 21, BASE_CORRUPT, "21 bytes"},
        {"ragged wraps", 8, 16, UINT64_MAX - 3, HEAD + 8 + 16 + 8 - 4, BASE_CORRUPT,
         "18446744073709551612 bytes"},
        {"payload cut", 8, 16, 20, HEAD + 8 + 16 + 8 + 19, BASE_CORRUPT, "directory gives 212"},
        {"payload over", 8, 16, 20, HEAD + 8 + 16 + 8 + 21, BASE_CORRUPT, "213 bytes"},
        {"payload without lengths", 8, 16, 20, HEAD + 8 + 16 + 20, BASE_CORRUPT, "directory gives 212"},
        {"only a head", 8, 16, 20, HEAD, BASE_CORRUPT, "directory gives 212"},
    };
    assert_int_equal(wire_part_head_bytes(SENT, ROWS), HEAD);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t bytes[HEAD] = {0};
        struct base_error error = {0};
        base_set_u64(bytes, rows[i].image);
        base_set_u64(bytes + 8, rows[i].label);
        base_set_u64(bytes + 16, rows[i].ragged);
        base_set_u64(bytes + HEAD - 8, base_hash_xxh3(bytes, HEAD - 8));
        struct wire_part_head head = wire_part_head_view(bytes, SENT, ROWS);
        enum base_code code = wire_part_check(&head, sent, rows[i].length, &error);
        if (code != rows[i].code || !strstr(error.text, rows[i].text))
            fail_msg("%s: %s \"%s\"", rows[i].what, base_error_name(code), error.text);
    }
}

static void runs_follow_each_other(void **state)
{
    (void)state;
    uint8_t bytes[HEAD] = {0};
    base_set_u64(bytes, 8);
    base_set_u64(bytes + 8, 16);
    base_set_u64(bytes + 16, 20);
    struct wire_part_head head = wire_part_head_view(bytes, SENT, ROWS);
    struct wire_part_run runs[WIRE_PART_RUNS];
    static const struct wire_part_run expected[] = {
        {0, false, HEAD, 8}, {1, false, HEAD + 8, 16}, {2, true, HEAD + 24, 8}, {2, false, HEAD + 32, 20}};
    assert_int_equal(wire_part_runs(&head, sent, runs), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(runs[i].sent_index, expected[i].sent_index);
        assert_int_equal(runs[i].is_lengths, expected[i].is_lengths);
        assert_int_equal(runs[i].offset, expected[i].offset);
        assert_int_equal(runs[i].size, expected[i].size);
    }
    base_set_u64(bytes + 16, 0);
    assert_int_equal(wire_part_runs(&head, sent, runs), 3);
}

static void lengths_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint32_t lengths[ROWS];
        enum base_code code;
        const char *text;
    } rows[] = {
        {"right", {2, 3}, BASE_OK, ""},
        {"sum short", {2, 2}, BASE_CORRUPT, "give 16 bytes, its directory 20"},
        {"sum over", {3, 3}, BASE_CORRUPT, "give 24 bytes, its directory 20"},
        {"one over the largest row", {1, 4}, BASE_CORRUPT, "row 1 has 16 bytes"},
        {"far over", {UINT32_MAX, 6}, BASE_CORRUPT, "row 0 has 17179869180 bytes"},
    };
    uint8_t bytes[HEAD] = {0};
    base_set_u64(bytes + 16, 20);
    struct wire_part_head head = wire_part_head_view(bytes, SENT, ROWS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_error error = {0};
        uint8_t lengths[ROWS * 4];
        for (int r = 0; r < ROWS; r++)
            base_set_u32(lengths + 4 * r, rows[i].lengths[r]);
        enum base_code code = wire_part_check_lengths(&head, sent, 2, lengths, &error);
        if (code != rows[i].code || !strstr(error.text, rows[i].text))
            fail_msg("%s: %s \"%s\"", rows[i].what, base_error_name(code), error.text);
    }
}

static uint8_t *join(const struct iovec *iov, int count, uint64_t length)
{
    uint8_t *bytes = malloc(length), *at = bytes;
    for (int i = 0; i < count; i++) {
        memcpy(at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert_int_equal(at - bytes, length);
    return bytes;
}

/* The layout of transport.md spelled out from the rows' own values. */
static void expect_payload(const struct random_block *b, const int *field, int count, uint32_t from,
                           uint32_t to, struct base_buffer *out)
{
    uint8_t hash[8];
    for (int s = 0; s < count; s++) {
        uint64_t size = 0;
        for (uint32_t r = from; r < to; r++)
            size += b->sizes[r][field[s]];
        base_buffer_put_u64(out, size);
    }
    for (uint32_t r = from; r < to; r++)
        wire_row_write(&b->rows[r], base_buffer_extend(out, WIRE_ROW_BYTES));
    for (uint32_t r = from; r < to; r++)
        for (int s = 0; s < count; s++) {
            base_set_u64(hash, base_hash_xxh3(b->values[r][field[s]], b->sizes[r][field[s]]));
            base_buffer_put(out, hash, 8);
        }
    base_set_u64(hash, base_hash_xxh3(out->bytes, out->size));
    base_buffer_put(out, hash, 8);
    for (int pass = 0; pass < 3; pass++) /* fixed values, ragged lengths, ragged values */
        for (int s = 0; s < count; s++)
            for (uint32_t r = from; r < to && b->fields[field[s]].ragged == (pass > 0); r++)
                if (pass == 1)
                    base_buffer_put_u32(out, (uint32_t)(b->sizes[r][field[s]] /
                                                        scheduler_dtype_bytes(b->fields[field[s]].dtype)));
                else
                    base_buffer_put(out, b->values[r][field[s]], b->sizes[r][field[s]]);
}

static void any_part_of_any_block_is_laid_out_as_documented(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct random_block b;
        struct scheduler_field specs[SCHEDULER_PIPELINE_FIELDS];
        int field[SCHEDULER_PIPELINE_FIELDS];
        random_block_init(&b, seed);
        uint8_t wanted = (uint8_t)(1 + random_below(&b.state, (1u << b.field_count) - 1));
        uint32_t from = (uint32_t)random_below(&b.state, b.layout.rows);
        uint32_t to = from + 1 + (uint32_t)random_below(&b.state, b.layout.rows - from);
        int count = random_block_sent(&b, wanted, specs, field);

        uint8_t *scratch = malloc(wire_part_scratch_bytes(&b.layout, wanted, to - from));
        struct iovec iov[WIRE_PART_IOVECS];
        uint64_t length;
        int parts =
            wire_part_gather(&b.layout, b.block, &(struct wire_cut){wanted, from, to}, scratch, iov, &length);
        assert_true(parts <= WIRE_PART_IOVECS);
        uint8_t *bytes = join(iov, parts, length);
        struct base_buffer expected;
        base_buffer_init(&expected);
        expect_payload(&b, field, count, from, to, &expected);
        assert_int_equal(length, expected.size);
        assert_memory_equal(bytes, expected.bytes, length);
        struct wire_part_head head = wire_part_head_view(bytes, count, to - from);
        assert_int_equal(wire_part_check(&head, specs, length, NULL), BASE_OK);

        base_buffer_fini(&expected);
        free(bytes);
        free(scratch);
        random_block_fini(&b);
    }
}

static void each_flipped_byte_is_caught(void **state)
{
    (void)state;
    struct random_block b;
    random_block_init(&b, 8);
    uint8_t all = (uint8_t)((1u << b.field_count) - 1);
    uint8_t *scratch = malloc(wire_part_scratch_bytes(&b.layout, all, b.layout.rows));
    struct iovec iov[WIRE_PART_IOVECS];
    uint64_t length;
    int parts = wire_part_gather(&b.layout, b.block, &(struct wire_cut){all, 0, b.layout.rows}, scratch, iov,
                                 &length);
    uint8_t *bytes = join(iov, parts, length);
    struct wire_part_head head = wire_part_head_view(bytes, b.field_count, b.layout.rows);
    for (uint32_t r = 0; r < b.layout.rows; r++) {
        assert_true(wire_part_verify_row(&head, r));
        for (int f = 0; f < b.field_count; f++) {
            assert_true(wire_part_verify_field(&head, r, f, b.values[r][f], b.sizes[r][f]));
            for (uint32_t i = 0; r < 2 && i < b.sizes[r][f]; i++) {
                uint8_t change = (uint8_t)(1 + random_below(&b.state, 255));
                b.values[r][f][i] ^= change;
                assert_false(wire_part_verify_field(&head, r, f, b.values[r][f], b.sizes[r][f]));
                b.values[r][f][i] ^= change;
            }
        }
        /* the row hash and the field hashes under it; cause and items are under the head's checksum */
        uint8_t *row = bytes + 8 * b.field_count + r * WIRE_ROW_BYTES;
        uint8_t *hashes =
            bytes + 8 * b.field_count + b.layout.rows * WIRE_ROW_BYTES + r * 8 * (uint32_t)b.field_count;
        for (int i = 0; i < 8 * b.field_count; i++) {
            hashes[i] ^= 1;
            assert_false(wire_part_verify_row(&head, r));
            hashes[i] ^= 1;
        }
        for (int i = 24; i < 32; i++) {
            row[i] ^= 0x80;
            assert_false(wire_part_verify_row(&head, r));
            row[i] ^= 0x80;
        }
        assert_true(wire_part_verify_row(&head, r));
    }
    /* A changed item or status of a row once went through: only values were under a hash. */
    for (size_t i = 0; i < wire_part_head_bytes(b.field_count, b.layout.rows); i++) {
        bytes[i] ^= (uint8_t)(1 << i % 8);
        assert_int_equal(wire_part_check(&head, b.fields, length, NULL), BASE_CORRUPT);
        bytes[i] ^= (uint8_t)(1 << i % 8);
    }
    assert_int_equal(wire_part_check(&head, b.fields, length, NULL), BASE_OK);
    free(bytes);
    free(scratch);
    random_block_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_round_trip),
        cmocka_unit_test(bad_rows_fail),
        cmocka_unit_test(layout_is_aligned_and_disjoint),
        cmocka_unit_test(row_hashes_are_as_documented),
        cmocka_unit_test(directories_are_checked),
        cmocka_unit_test(runs_follow_each_other),
        cmocka_unit_test(lengths_are_checked),
        cmocka_unit_test(any_part_of_any_block_is_laid_out_as_documented),
        cmocka_unit_test(each_flipped_byte_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

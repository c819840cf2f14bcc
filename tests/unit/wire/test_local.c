/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/local.h"

#include "proto/wire/header.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAPPED = 1 << 20 };

static const uint8_t head[] = "the head, of which nothing is known here";

/* A copy of its own, so that a sanitizer sees a read past it. */
static enum base_code read_copy(const struct base_buffer *bytes, size_t size, uint64_t mapped,
                                struct wire_local_part *part, uint8_t **copy, struct base_error *error)
{
    *copy = calloc(1, size ? size : 1);
    memcpy(*copy, bytes->bytes, size < bytes->size ? size : bytes->size);
    return wire_local_read(*copy, size, mapped, part, error);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct wire_local_part part, sent = {.loan = 7,
                                         .run_count = 2,
                                         .runs = {{4096, 100}, {MAPPED - 8, 8}},
                                         .head = head,
                                         .head_bytes = sizeof head};
    struct base_buffer out;
    uint8_t *copy;
    base_buffer_init(&out);
    wire_local_write(&sent, &out);
    assert_int_equal(read_copy(&out, out.size, MAPPED, &part, &copy, NULL), BASE_OK);
    assert_true(part.loan == 7 && part.run_count == 2 && part.length == sizeof head + 108);
    assert_memory_equal(part.runs, sent.runs, 2 * sizeof sent.runs[0]);
    assert_int_equal(part.head_bytes, sizeof head);
    assert_memory_equal(part.head, head, sizeof head);
    free(copy);
    for (size_t size = 0; size <= out.size - sizeof head; size++) { /* no head is left */
        assert_int_equal(read_copy(&out, size, MAPPED, &part, &copy, NULL), BASE_CORRUPT);
        free(copy);
    }
    base_buffer_fini(&out);
}

static void runs_lie_in_the_memory(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint64_t mapped, offset, size;
        enum base_code code;
    } rows[] = {
        {"all of it", MAPPED, 0, MAPPED, BASE_OK},
        {"its end", MAPPED, MAPPED - 1, 1, BASE_OK},
        {"a byte over", MAPPED, 1, MAPPED, BASE_CORRUPT},
        {"behind it", MAPPED, MAPPED, 1, BASE_CORRUPT},
        {"empty", MAPPED, 0, 0, BASE_CORRUPT},
        {"empty, behind it", MAPPED, MAPPED + 1, 0, BASE_CORRUPT},
        {"so long that the end wraps", MAPPED, 16, UINT64_MAX - 8, BASE_CORRUPT},
        {"so far that the end wraps", MAPPED, UINT64_MAX - 8, 16, BASE_CORRUPT},
        {"nothing is mapped", 0, 0, 1, BASE_CORRUPT},
        {"over DATA's limit with its head", UINT64_C(1) << 40, 0, UINT64_C(1) << 31, BASE_CORRUPT},
        {"over DATA's limit", UINT64_C(1) << 40, 0, (UINT64_C(1) << 31) + 1, BASE_CORRUPT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct wire_local_part part, sent = {.loan = 1,
                                             .run_count = 1,
                                             .runs = {{rows[i].offset, rows[i].size}},
                                             .head = head,
                                             .head_bytes = sizeof head};
        struct base_buffer out;
        struct base_error error = {0};
        uint8_t *copy;
        base_buffer_init(&out);
        wire_local_write(&sent, &out);
        enum base_code code = read_copy(&out, out.size, rows[i].mapped, &part, &copy, &error);
        if (code != rows[i].code || (code != BASE_OK) != (error.text[0] != 0))
            fail_msg("%s: %s, \"%s\"", rows[i].what, base_error_name(code), error.text);
        free(copy);
        base_buffer_fini(&out);
    }
}

static void many_runs_and_no_loan_are_refused(void **state)
{
    (void)state;
    struct wire_local_part part;
    uint8_t *copy;
    for (int kind = 0; kind < 3; kind++) {
        struct base_buffer out;
        base_buffer_init(&out);
        base_buffer_put_u64(&out, kind != 0);
        base_buffer_put_u8(&out, kind == 1 ? WIRE_PART_RUNS + 1 : WIRE_PART_RUNS);
        for (int i = 0; i <= WIRE_PART_RUNS; i++) {
            base_buffer_put_u64(&out, 64);
            base_buffer_put_u64(&out, 64);
        }
        assert_int_equal(read_copy(&out, out.size, MAPPED, &part, &copy, NULL),
                         kind == 2 ? BASE_OK : BASE_CORRUPT);
        free(copy);
        base_buffer_fini(&out);
    }
}

static void done_is_exact(void **state)
{
    (void)state;
    struct base_buffer out;
    uint32_t count = 0;
    base_buffer_init(&out);
    assert_int_equal(wire_done_read(0, &count, NULL), BASE_CORRUPT);
    for (uint32_t i = 0; i < 3; i++) {
        wire_done_write(UINT64_C(0x1122334455667788) + i, &out);
        assert_int_equal(wire_done_read(out.size - 1, &count, NULL), BASE_CORRUPT);
        assert_int_equal(wire_done_read(out.size + 1, &count, NULL), BASE_CORRUPT);
        assert_int_equal(wire_done_read(out.size, &count, NULL), BASE_OK);
        assert_int_equal(count, i + 1);
        assert_true(wire_done_loan(out.bytes, i) == UINT64_C(0x1122334455667788) + i);
    }
    base_buffer_fini(&out);
}

static void names_are_abstract(void **state)
{
    (void)state;
    const uint8_t name[WIRE_LOCAL_NAME_BYTES] = {0, 1, 0xab, 0xff};
    struct sockaddr_un address;
    socklen_t size = wire_local_address(name, &address);
    const char *text = "millrace-0001abff000000000000000000000000";
    assert_int_equal(address.sun_path[0], 0);
    assert_int_equal(size, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
    assert_memory_equal(address.sun_path + 1, text, strlen(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(runs_lie_in_the_memory),
        cmocka_unit_test(many_runs_and_no_loan_are_refused),
        cmocka_unit_test(done_is_exact),
        cmocka_unit_test(names_are_abstract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of epochs: cutting into batches and ranks must not enter, contents must. */
#include "client/src/certificate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { ITEMS = 60 };

/* Hands out [begin, ITEMS) in steps of `world` x `size`, as rank `rank`; row hashes are made of the position and `salt`. */
static struct client_certificates hand_out(uint64_t begin, uint32_t size, uint32_t world, uint32_t rank,
                                           uint64_t salt)
{
    struct client_certificates all = {0};
    struct mr_row rows[ITEMS];
    for (uint64_t step = begin; step < ITEMS; step += (uint64_t)size * world) {
        uint64_t end = step + (uint64_t)size * world;
        struct mr_batch batch = {.rows = size,
                                 .row = rows,
                                 .epoch = 2,
                                 .stream_epoch = 5,
                                 .cursor = {.epoch = end < ITEMS ? 5 : 6}};
        uint32_t count = 0;
        for (uint64_t p = step + (uint64_t)size * rank; count < size && p < ITEMS; p++)
            rows[count++] = (struct mr_row){.position = p, .hash = p * 77 + salt};
        client_certificates_add(&all, &batch, step, count);
    }
    return all;
}

static void test_cutting_does_not_enter(void **state)
{
    (void)state;
    struct client_certificates one = hand_out(0, 60, 1, 0, 0), other = hand_out(0, 7, 1, 0, 0),
                               a = hand_out(0, 8, 2, 0, 0), b = hand_out(0, 8, 2, 1, 0);
    assert_int_equal(one.finished_count, 1);
    assert_int_equal(one.finished[0].positions, ITEMS);
    assert_int_equal(one.finished[0].epoch, 2);
    assert_int_equal(one.finished[0].stream_epoch, 5);
    assert_true(one.finished[0].whole);
    assert_true(one.finished[0].hash == other.finished[0].hash);
    assert_true(one.finished[0].hash == a.finished[0].hash + b.finished[0].hash);
    assert_int_equal(a.finished[0].positions + b.finished[0].positions, ITEMS);
}

static void test_contents_do(void **state)
{
    (void)state;
    assert_false(hand_out(0, 7, 1, 0, 0).finished[0].hash == hand_out(0, 7, 1, 0, 1).finished[0].hash);
}

static void test_a_second_process_has_no_whole_epoch(void **state)
{
    (void)state;
    struct client_certificates late = hand_out(14, 7, 1, 0, 0);
    assert_false(late.finished[0].whole);
    assert_int_equal(late.finished[0].positions, ITEMS - 14);
}

static void test_the_last_few_are_kept(void **state)
{
    (void)state;
    struct client_certificates all = {0};
    struct mr_row row = {.position = 0, .hash = 9};
    for (uint32_t epoch = 0; epoch < 7; epoch++) {
        struct mr_batch batch = {
            .rows = 1, .row = &row, .epoch = epoch, .stream_epoch = epoch, .cursor = {.epoch = epoch + 1}};
        client_certificates_add(&all, &batch, 0, 1);
    }
    assert_int_equal(all.finished_count, CLIENT_CERTIFICATES);
    assert_int_equal(all.finished[0].epoch, 3);
    assert_int_equal(all.finished[3].epoch, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cutting_does_not_enter),
        cmocka_unit_test(test_contents_do),
        cmocka_unit_test(test_a_second_process_has_no_whole_epoch),
        cmocka_unit_test(test_the_last_few_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

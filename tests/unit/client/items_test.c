/* SPDX-License-Identifier: Apache-2.0 */
/* How many of a part's rows are held against the order. */
#include "client/src/items.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { ROWS = 64, EPOCH = 3, POSITION = 1000 };

/* Of ROWS parts with one wrong row each, another one in each: how many are found out. */
static int found(const struct scheduler_stream *stream, uint64_t bytes, uint64_t pick)
{
    struct client_items items;
    struct scheduler_order *order;
    int count = 0;
    client_items_init(&items, stream);
    assert_int_equal(
        scheduler_order_create(&order, stream->shuffle, stream->seed, EPOCH, stream->items, NULL), BASE_OK);
    for (int wrong = -1; wrong < ROWS; wrong++) {
        struct wire_row rows[ROWS];
        for (int i = 0; i < ROWS; i++) {
            uint64_t item = scheduler_order_item(order, POSITION + (uint64_t)i) ^ (i == wrong);
            rows[i] = (struct wire_row){.item = item, .used_item = item};
        }
        struct client_items_part part = {
            .epoch = EPOCH, .count = ROWS, .position = POSITION, .rows = rows, .bytes = bytes, .pick = pick};
        enum base_code code = client_items_check(&items, &part, NULL);
        assert_true(code == BASE_OK || (code == BASE_CORRUPT && wrong >= 0));
        count += code == BASE_CORRUPT;
    }
    scheduler_order_destroy(order);
    client_items_fini(&items);
    return count;
}

static void test_how_many_are_looked_at(void **state)
{
    (void)state;
    static const struct {
        uint64_t items, row_bytes;
        bool shuffle;
        int found;
    } rows[] = {
        {60000, 100, true, ROWS},
        {SCHEDULER_ORDER_TABLE_MAX, 1, true, ROWS},
        {1281167, 150528, true, ROWS},
        {1281167, CLIENT_ITEMS_STEP_BYTES, true, ROWS},
        {1281167, 3072, true, 6},
        {1281167, 100, true, 1},
        {1281167, 3072, false, ROWS},
        {UINT64_C(1) << 40, 150528, true, ROWS},
        {UINT64_C(1) << 40, 16384, true, 32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scheduler_stream stream = {.items = rows[i].items, .shuffle = rows[i].shuffle, .seed = 7};
        for (uint64_t pick = 0; pick < 200; pick += 63)
            assert_int_equal(found(&stream, rows[i].row_bytes * ROWS, pick), rows[i].found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_how_many_are_looked_at)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

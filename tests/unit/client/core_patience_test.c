/* SPDX-License-Identifier: Apache-2.0 */
/* How long the client's machine bears a silent worker: histories of a starved machine, in virtual time. */
#include "tests/unit/client/desk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* Worker 1 alone, and never out of requests. */
static void start_alone(struct desk *desk)
{
    struct client_core_options options = desk_options();
    options.epochs = 0;
    desk_start(desk, &options, 1, 100);
}

/* It is lost after exactly so long without a word. */
static void expect_patience(struct desk *desk, int64_t ms)
{
    desk_pass(desk, ms - 1);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CLOSE, 1), 0);
    assert_int_equal(client_core_stats(desk->core).peers_up, 1);
    desk_pass(desk, 1);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CLOSE, 1), 1);
}

static void come_back(struct desk *desk)
{
    while (desk_count(desk, CLIENT_ACTION_CONNECT, 1) == 0) {
        desk->now_ns = client_core_wake_ns(desk->core);
        desk_act(desk);
    }
    desk_come_up(desk, 1, 100);
    desk_act(desk);
}

/* Parts come for so long, as steps are taken. */
static void work(struct desk *desk, int64_t ms)
{
    struct client_step step;
    int64_t end_ns = desk->now_ns + ms * MS;
    while (desk->now_ns < end_ns) {
        struct client_action actions[DESK_ACTIONS];
        int count = desk->count;
        memcpy(actions, desk->actions, sizeof actions);
        for (int i = 0; i < count; i++)
            if (actions[i].kind == CLIENT_ACTION_GET) {
                client_core_heard(desk->core, desk->now_ns, actions[i].worker, 0);
                desk_answer(desk, &actions[i], 0);
            }
        while (client_core_take(desk->core, desk->now_ns, &step, NULL) == BASE_OK)
            client_core_release(desk->core, desk->now_ns, step.slot);
        desk->now_ns += 100 * MS;
        desk_act(desk);
    }
}

/* Each time that it comes back it has twice as long, up to eight times; then parts come for a while, and it is as any other. */
static void test_excused(void **state)
{
    static const int64_t patience_ms[] = {1000, 2000, 4000, 8000, 8000};
    struct desk desk;
    (void)state;
    start_alone(&desk);
    for (size_t i = 0; i < sizeof patience_ms / sizeof patience_ms[0]; i++) {
        expect_patience(&desk, patience_ms[i]);
        come_back(&desk);
    }
    work(&desk, 19000);
    expect_patience(&desk, 8000);
    come_back(&desk);
    work(&desk, 21000);
    expect_patience(&desk, 1000);
    desk_finish(&desk);
}

/* A silence that only our patience bore is not doing well. */
static void test_still_needs_it(void **state)
{
    struct desk desk, asked;
    (void)state;
    start_alone(&desk);
    expect_patience(&desk, 1000);
    come_back(&desk);
    work(&desk, 15000);
    asked = desk;
    desk_pass(&desk, 1500);
    asked.now_ns = desk.now_ns;
    client_core_heard(desk.core, desk.now_ns, 1, 0);
    desk_answer_all(&asked, 0);
    desk.count = asked.count;
    memcpy(desk.actions, asked.actions, sizeof desk.actions);
    work(&desk, 15000);
    expect_patience(&desk, 2000);
    desk_finish(&desk);
}

/* What is lost by its own doing is no mistake of ours: reset, or nobody there when we dial again. */
static void test_not_excused(void **state)
{
    struct desk desk;
    (void)state;
    start_alone(&desk);
    for (int i = 0; i < 3; i++) {
        client_core_lost(desk.core, desk.now_ns, 1, "reset");
        desk_act(&desk);
        come_back(&desk);
    }
    expect_patience(&desk, 1000);
    while (desk_count(&desk, CLIENT_ACTION_CONNECT, 1) == 0) {
        desk.now_ns = client_core_wake_ns(desk.core);
        desk_act(&desk);
    }
    client_core_lost(desk.core, desk.now_ns, 1, "refused");
    desk_act(&desk);
    come_back(&desk);
    expect_patience(&desk, 1000);
    desk_finish(&desk);
}

/* One whose greeting takes four seconds is reached in the end, and is then known to be slow. */
static void test_slow_to_connect(void **state)
{
    static const int64_t patience_ms[] = {2000, 4000, 8000, 8000};
    struct desk desk;
    (void)state;
    start_alone(&desk);
    expect_patience(&desk, 1000);
    for (size_t i = 0; i < sizeof patience_ms / sizeof patience_ms[0]; i++) {
        while (desk_count(&desk, CLIENT_ACTION_CONNECT, 1) == 0) {
            desk.now_ns = client_core_wake_ns(desk.core);
            desk_act(&desk);
        }
        desk_pass(&desk, patience_ms[i] - 1);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 0);
        desk_pass(&desk, 1);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 1);
    }
    come_back(&desk);
    expect_patience(&desk, 2000);
    desk_finish(&desk);
}

/* One of three falls silent, for good: it costs stall_ns, however patient we are with another. */
static void test_others_are_not(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    options.epochs = 0;
    options.block_rows = 1;
    desk_start(&desk, &options, 3, 100);
    for (int i = 0; i < 4; i++) {
        desk_pass(&desk, i < 3 ? 250 : 249);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 0), 0);
        client_core_heard(desk.core, desk.now_ns, 2, 0);
        client_core_heard(desk.core, desk.now_ns, 3, 0);
        desk_act(&desk);
    }
    desk_pass(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 0), 1);
    come_back(&desk);
    for (int i = 0; i < 10; i++) { /* the second, now that the first is excused */
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        client_core_heard(desk.core, desk.now_ns, 3, 0);
        if (i == 0)
            client_core_heard(desk.core, desk.now_ns, 2, 0);
        desk_act(&desk);
        int64_t begun_ns = desk.now_ns;
        desk_pass(&desk, 250);
        if (client_core_stats(desk.core).peers_up == 2) {
            assert_int_equal(i, 3);
            assert_int_equal(desk.now_ns - begun_ns, 250 * MS);
            break;
        }
    }
    assert_int_equal(client_core_stats(desk.core).peers_up, 2);
    desk_finish(&desk);
}

/* All at once: it was us, or what is between. They are kept for four times as long, and nobody's work is given to another. */
static void test_all_at_once(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    options.epochs = 0;
    options.block_rows = 1;
    desk_start(&desk, &options, 3, 100);
    desk_pass(&desk, 3999);
    assert_int_equal(client_core_stats(desk.core).peers_up, 3);
    assert_int_equal(client_core_stats(desk.core).failovers, 0);
    client_core_heard(desk.core, desk.now_ns, 2,
                      0); /* it was not us: those who say nothing now do so by themselves */
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 0), 0);
    desk_pass(&desk, 1);
    assert_int_equal(client_core_stats(desk.core).peers_up, 1);
    desk_finish(&desk);

    desk_start(&desk, &options, 3, 100);
    desk_pass(&desk, 4000); /* not for ever */
    assert_int_equal(client_core_stats(desk.core).peers_up, 0);
    desk_finish(&desk);
}

/* ---- room ---- */

/* A slow line: the worker sends to their ends what it was asked, cancelled or not, a piece every half a second. */
static void test_seeks_on_a_slow_line(void **state)
{
    enum { CAP = 8 };
    struct client_core_options options = desk_options();
    struct client_action sending[DESK_ACTIONS]; /* at the worker, in order */
    struct client_place where;
    enum client_placed placed = CLIENT_PLACED_SCRATCH;
    struct desk desk;
    int count = 0, most = 0;
    (void)state;
    options.epochs = 0;
    options.block_rows = 1;
    desk_start(&desk, &options, 1, CAP);
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < desk.count; i++)
            if (desk.actions[i].kind == CLIENT_ACTION_GET)
                sending[count++] = desk.actions[i];
        most = count > most ? count : most;
        desk.now_ns += 500 * MS;
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        if (round % 4 < 3) { /* a piece of it */
            if (round % 4 == 0 && count > 0)
                placed = desk_place(&desk, &sending[0], &where);
            if (placed == CLIENT_PLACED_SCRATCH)
                client_core_stray(desk.core, desk.now_ns, 1);
        } else if (count > 0) {
            struct wire_row rows[1] = {0};
            client_core_data(desk.core, desk.now_ns, 1, sending[0].request, rows);
            memmove(sending, sending + 1, (size_t)--count * sizeof *sending);
        }
        struct scheduler_cursor to = {(uint32_t)round + 1, 0};
        assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, to, NULL), BASE_OK);
        desk_act(&desk);
    }
    assert_in_range(most, 4 * CAP, 8 * CAP); /* and the worker drops whoever lets it be 64 */
    desk_finish(&desk);
}

/* What only waited does not come: a few seeks in a row are not held up, and after stall_ns all of it is forgotten. */
static void test_seek_has_room(void **state)
{
    enum { CAP = 8 };
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    options.epochs = 0;
    options.block_rows = 1;
    desk_start(&desk, &options, 1, CAP);
    for (uint32_t i = 1; i <= 5; i++) {
        desk_pass(&desk, 10);
        client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){i, 0}, NULL);
        desk_act(&desk);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CANCEL, 1), CAP);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), i <= 4 ? CAP : 0);
    }
    for (int i = 0; i < 3; i++) {
        desk_pass(&desk, 300);
        client_core_heard(desk.core, desk.now_ns, 1, 0);
    }
    desk_pass(&desk, 100 - 40 - 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 0);
    desk_pass(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), CAP);
    desk_finish(&desk);
}

/* Seeks give a dead worker no time: what is asked after each is silence of the same kind. */
static void test_seeks_at_a_dead_worker(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    options.epochs = 0;
    desk_start(&desk, &options, 1, 100);
    for (uint32_t i = 1; i <= 9; i++) {
        desk_pass(&desk, 100);
        client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){i, 0}, NULL);
        desk_act(&desk);
    }
    expect_patience(&desk, 100);
    desk_finish(&desk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_excused),
        cmocka_unit_test(test_still_needs_it),
        cmocka_unit_test(test_not_excused),
        cmocka_unit_test(test_slow_to_connect),
        cmocka_unit_test(test_others_are_not),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_seeks_on_a_slow_line),
        cmocka_unit_test(test_seek_has_room),
        cmocka_unit_test(test_seeks_at_a_dead_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

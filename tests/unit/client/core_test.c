/* SPDX-License-Identifier: Apache-2.0 */
/* What the client's machine does about each kind of answer, step by step. Random lives are in core_trace_test.c. */
#include "tests/unit/client/desk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* ---- creation ---- */

static void test_refusals(void **state)
{
    static const struct {
        const char *what;
        uint64_t positions;
        uint32_t world, rank, batch, block_rows, look_ahead, first_epoch;
        enum scheduler_tail tail;
        struct scheduler_cursor start;
        bool good;
    } cases[] = {
        {"plain", 64, 1, 0, 8, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 0}, true},
        {"at the end", 64, 1, 0, 8, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 64}, true},
        {"tail only", 64, 1, 0, 65, 8, 2, 0, SCHEDULER_TAIL_PAD, {0, 0}, true},
        {"no step", 64, 1, 0, 65, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 0}, false},
        {"no step in a world", 64, 9, 0, 8, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 0}, false},
        {"nothing", 0, 1, 0, 8, 8, 2, 0, SCHEDULER_TAIL_EXACT, {0, 0}, false},
        {"batch 0", 64, 1, 0, 0, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 0}, false},
        {"rank", 64, 2, 2, 8, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 0}, false},
        {"block", 64, 1, 0, 8, 257, 2, 0, SCHEDULER_TAIL_DROP, {0, 0}, false},
        {"look-ahead", 64, 1, 0, 8, 8, 0, 0, SCHEDULER_TAIL_DROP, {0, 0}, false},
        {"beyond", 64, 1, 0, 8, 8, 2, 0, SCHEDULER_TAIL_DROP, {0, 65}, false},
        {"before", 64, 1, 0, 8, 8, 2, 3, SCHEDULER_TAIL_DROP, {2, 0}, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct client_core_options options = desk_options();
        struct client_core *core = NULL;
        options.shape = (struct scheduler_shape){cases[i].positions, cases[i].world, cases[i].rank,
                                                 cases[i].batch, cases[i].tail};
        options.block_rows = cases[i].block_rows;
        options.look_ahead = cases[i].look_ahead;
        options.first_epoch = cases[i].first_epoch;
        options.start = cases[i].start;
        enum base_code code = client_core_create(&core, &options, NULL);
        if ((code == BASE_OK) != cases[i].good)
            fail_msg("%s: %s", cases[i].what, base_error_name(code));
        client_core_destroy(core);
    }
}

/* ---- parts ---- */

static void test_padding_is_asked_once(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    struct client_step step;
    (void)state;
    options.shape = (struct scheduler_shape){
        .positions = 5, .world = 2, .rank = 1, .batch = 8, .tail = SCHEDULER_TAIL_PAD};
    options.block_rows = 4;
    desk_start(&desk, &options, 1, 100);
    /* rank 1's rows are all padding: positions 3 4 0 1 2 | 3 4 0; three runs inside blocks of 4 */
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 3);
    desk_answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_int_equal(step.distinct, 5);
    assert_int_equal(step.batch.rows, 8);
    assert_int_equal(step.valid_rows, 0);
    for (uint32_t row = 0; row < 8; row++)
        assert_int_equal(step.rows[row].item, (3 + row) % 5);
    desk_finish(&desk);
}

static void test_caps(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    uint32_t in_flight, most;
    (void)state;
    options.block_rows = 1; /* 24 requests for the window */
    desk_start(&desk, &options, 1, 5);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 5);
    client_core_load(desk.core, 1, &in_flight, &most);
    assert_true(in_flight == 5 && most == 5);
    struct client_action first = *desk_find(&desk, CLIENT_ACTION_GET);
    desk_answer(&desk, &first, 0);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 1); /* one came, one goes */
    desk_finish(&desk);
}

static void test_hold(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    struct client_step step[3];
    (void)state;
    desk_start(&desk, &options, 1, 100);
    desk_answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[0], NULL), BASE_OK);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[1], NULL), BASE_OK);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[2], NULL), BASE_BUSY);
    client_core_release(desk.core, desk.now_ns, step[1].slot); /* any order */
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[2], NULL), BASE_OK);
    assert_int_equal(step[2].step, 2);
    client_core_release(desk.core, desk.now_ns, step[0].slot);
    client_core_release(desk.core, desk.now_ns, step[0].slot); /* twice: nothing */
    desk_act(&desk);
    desk_answer_all(&desk, 0);
    assert_int_equal(client_core_stats(desk.core).held, 1);
    desk_finish(&desk);
}

/* Whether the trainer sends by itself, or wakes the loop. */
static void test_pace(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    struct client_step step;
    struct client_action gets[2];
    (void)state;
    options.block_rows = options.shape.batch; /* a GET a step */
    desk_start(&desk, &options, 1, 100);
    desk_answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_false(client_core_is_brisk(desk.core)); /* not known yet */
    for (int i = 0; i < 2; i++) {
        client_core_release(desk.core, desk.now_ns, step.slot);
        desk_act(&desk);
        gets[i] = *desk_find(&desk, CLIENT_ACTION_GET);
        desk.now_ns += 50000;
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
        assert_true(client_core_is_brisk(desk.core));
    }
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_TIMEOUT);
    desk.now_ns += 10 * BASE_NS_PER_MS; /* of our own: no time of the trainer's */
    for (int i = 0; i < 2; i++)
        desk_answer(&desk, &gets[i], 0);
    client_core_release(desk.core, desk.now_ns, step.slot);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_true(client_core_is_brisk(desk.core));
    desk.now_ns += 10 * BASE_NS_PER_MS; /* of the trainer's */
    client_core_release(desk.core, desk.now_ns, step.slot);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_false(client_core_is_brisk(desk.core));
    desk_finish(&desk);
}

/* ---- answers ---- */

static void test_moved(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 3, 1);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_false(get.insist);
    uint64_t other = get.worker % 3 + 1;
    client_core_lost(desk.core, desk.now_ns, other, NULL); /* frees room there, once it is back */
    client_core_moved(desk.core, desk.now_ns, get.worker, get.request, 77); /* nobody that we know */
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, get.worker), 1);
    struct client_action again = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_true(again.insist && !again.death && again.block == get.block && again.request != get.request);
    assert_int_equal(client_core_stats(desk.core).moved, 1);
    desk_finish(&desk);

    desk_start(&desk, &options, 2, 100);
    get = *desk_find(&desk, CLIENT_ACTION_GET);
    client_core_moved(desk.core, desk.now_ns, get.worker, get.request, 3 - get.worker);
    desk_act(&desk);
    again = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_true(again.insist && !again.death && again.worker == 3 - get.worker);
    desk_finish(&desk);
}

/* A drained worker was counted as a dead one: a part to be asked there again went elsewhere for a death. */
static void test_retry_at_one_that_leaves(void **state)
{
    struct client_core_options options = desk_options();
    struct base_error cause = desk_cause(BASE_UNAVAILABLE, "item 5: gone");
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 2, 100);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET);
    client_core_moved(desk.core, desk.now_ns, get.worker, get.request, 2);
    desk_act(&desk);
    get = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_true(get.insist && get.worker == 2);
    client_core_retry(desk.core, desk.now_ns, 2, get.request, 10, &cause); /* to be asked there again */
    desk_give_plan(&desk, 1);                                              /* without worker 2 */
    desk_later(&desk, 200);
    bool found = false;
    for (int i = 0; i < desk.count; i++) {
        const struct client_action *action = &desk.actions[i];
        if (action->kind != CLIENT_ACTION_GET || action->block != get.block || action->from != get.from)
            continue;
        assert_true(action->worker == 1 && action->insist && !action->death);
        found = true;
    }
    assert_true(found);
    desk_finish(&desk);
}

static void test_retry(void **state)
{
    struct client_core_options options = desk_options();
    struct base_error cause = desk_cause(BASE_UNAVAILABLE, "item 5: gone");
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 3, 100);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET);
    client_core_retry(desk.core, desk.now_ns, get.worker, get.request, 300, &cause);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 0);
    desk_pass(&desk, 299);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 0);
    desk_pass(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, get.worker), 1); /* the same once more */
    struct client_action second = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_false(second.insist);
    client_core_retry(desk.core, desk.now_ns, second.worker, second.request, 300, &cause);
    desk_act(&desk);
    for (int w = 1; w <= 3; w++)
        client_core_heard(desk.core, desk.now_ns, (uint64_t)w, 0);
    desk_pass(&desk, 300);
    struct client_action third = *desk_find(&desk, CLIENT_ACTION_GET); /* then elsewhere */
    assert_true(third.worker != get.worker && third.insist && !third.death);
    assert_int_equal(client_core_stats(desk.core).retries, 2);
    desk_finish(&desk);
}

static void test_unavailable(void **state)
{
    struct client_core_options options = desk_options();
    struct base_error cause = desk_cause(BASE_UNAVAILABLE, "item 5: gone"), error;
    struct client_step step;
    struct desk desk;
    int errors = 0;
    (void)state;
    options.shape.positions = 8;
    desk_start(&desk, &options, 2, 100);
    for (int64_t ms = 0; ms < 9900; ms += 100) {
        for (int i = 0; i < desk.count; i++)
            if (desk.actions[i].kind == CLIENT_ACTION_GET)
                client_core_retry(desk.core, desk.now_ns, desk.actions[i].worker, desk.actions[i].request, 50,
                                  &cause);
        desk_act(&desk);
        errors += desk_count(&desk, CLIENT_ACTION_ERROR, 0);
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_TIMEOUT);
        desk_later(&desk, 100);
        errors += desk_count(&desk, CLIENT_ACTION_ERROR, 0);
    }
    assert_int_equal(errors, 0);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET);
    desk_later(&desk, 100);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_ERROR, 0),
                     0); /* it is being asked, perhaps with success */
    client_core_retry(desk.core, desk.now_ns, get.worker, get.request, 50, &cause);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_ERROR, 0), 1);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_UNAVAILABLE);
    assert_non_null(strstr(error.text, "item 5: gone"));
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error),
                     BASE_TIMEOUT); /* its clock starts anew */
    desk_later(&desk, 50);
    get = *desk_find(&desk, CLIENT_ACTION_GET);
    desk_answer(&desk, &get, 0);
    desk_act(&desk);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_OK);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_CLOSED);
    desk_finish(&desk);
}

static void test_fail(void **state)
{
    struct client_core_options options = desk_options();
    struct base_error refused = desk_cause(BASE_UNSUPPORTED, "no such op"),
                      busy = desk_cause(BASE_BUSY, "full"), error;
    struct client_step step;
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 1, 100); /* three requests: one a step */
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 3);
    struct client_action gets[3];
    for (int i = 0, n = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET)
            gets[n++] = desk.actions[i];
    client_core_fail(desk.core, desk.now_ns, 1, gets[1].request, &refused);
    client_core_fail(desk.core, desk.now_ns, 1, gets[2].request, &busy); /* retryable: as RETRY */
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_ERROR, 0), 0); /* the step before it is still to come */
    desk_answer(&desk, &gets[0], 0);
    desk_later(&desk, 100);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 1);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_OK);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_ERROR, 0), 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_UNSUPPORTED);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CANCEL, 1), 1); /* nobody needs the third any more */
    assert_int_equal(client_core_stats(desk.core).in_flight, 0);
    desk_finish(&desk);
}

static void test_scratch_and_wrong(void **state)
{
    struct client_core_options options = desk_options();
    struct client_place where;
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 2, 100);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET), other = get;
    other.to--;
    assert_int_equal(desk_place(&desk, &other, &where), CLIENT_PLACED_WRONG);
    other = get, other.block++;
    assert_int_equal(desk_place(&desk, &other, &where), CLIENT_PLACED_WRONG);
    other = get, other.request += 1000000;
    assert_int_equal(desk_place(&desk, &other, &where), CLIENT_PLACED_SCRATCH);
    other = get, other.worker = 3 - get.worker;
    assert_int_equal(desk_place(&desk, &other, &where), CLIENT_PLACED_SCRATCH);
    desk_answer(&desk, &get, 0);
    assert_int_equal(desk_place(&desk, &get, &where), CLIENT_PLACED_SCRATCH); /* said twice */
    desk_finish(&desk);
}

/* ---- death ---- */

static void test_lost_in_mid_part(void **state)
{
    struct client_core_options options = desk_options();
    struct client_place where;
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 3, 100);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_int_equal(desk_place(&desk, &get, &where), CLIENT_PLACED_SLOT);
    client_core_lost(desk.core, desk.now_ns, get.worker, "reset");
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 0), 0); /* it is gone already */
    uint32_t slot = scheduler_plan_slot(options.family, true, 0, get.block);
    assert_int_equal(desk.plan.primary[slot], get.worker);
    bool found = false;
    for (int i = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET && desk.actions[i].block == get.block) {
            found = true;
            assert_int_equal(desk.actions[i].worker, desk.plan.secondary[slot]);
            assert_true(desk.actions[i].insist && desk.actions[i].death);
            assert_true(desk.actions[i].from == get.from && desk.actions[i].to == get.to);
        }
    assert_true(found);
    assert_int_equal(desk_place(&desk, &get, &where), CLIENT_PLACED_SCRATCH);
    desk_finish(&desk);
}

static void test_silence(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 1, 100);
    for (int i = 0; i < 10; i++) { /* PING or WAIT every so often: it lives */
        desk_pass(&desk, 900);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 0);
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        desk_act(&desk);
    }
    desk_pass(&desk, 999);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 0);
    desk_pass(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 1);
    assert_int_equal(client_core_stats(desk.core).in_flight, 0);
    desk_finish(&desk);

    desk_start(&desk, &options, 1, 100); /* nothing outstanding: silence is fine */
    desk_answer_all(&desk, 0);
    desk_pass(&desk, 60000);
    assert_int_equal(client_core_stats(desk.core).peers_up, 1);
    desk_finish(&desk);
}

/* A process that was stopped finds every deadline passed and every frame still unread. */
static void test_own_sleep_is_forgiven(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 1, 100);
    desk_later(&desk, 30000);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 0);
    desk_pass(&desk, 699); /* it had been silent for 300 ms when we fell asleep */
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 0);
    desk_pass(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 1), 1);
    desk_finish(&desk);
}

static void test_all_down(void **state)
{
    static const int64_t pauses_ms[] = {100, 200, 400, 800, 1600, 2000, 2000};
    struct client_core_options options = desk_options();
    struct base_error error;
    struct client_step step;
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 1, 100);
    for (size_t i = 0; i < sizeof pauses_ms / sizeof pauses_ms[0]; i++) {
        client_core_lost(desk.core, desk.now_ns, 1, "refused");
        desk_act(&desk);
        desk_pass(&desk, pauses_ms[i] - 1);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CONNECT, 1), 0);
        desk_pass(&desk, 1);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_CONNECT, 1), 1);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 0);
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_TIMEOUT);
    }
    char why[200];
    client_core_why(desk.core, why, sizeof why);
    assert_non_null(strstr(why, "0 of 1 workers up (worker 1: refused)"));
    desk_come_up(&desk, 1, 100);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 3);
    assert_true(desk_find(&desk, CLIENT_ACTION_GET)->insist);
    desk_answer_all(&desk, 0);
    client_core_lost(desk.core, desk.now_ns, 1, NULL); /* a part came: patience is as short as at first */
    desk_act(&desk);
    desk_pass(&desk, 100);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CONNECT, 1), 1);
    desk_finish(&desk);
}

/* Blocks of a worker that is still being dialled wait a while: going elsewhere at once would make them in the wrong place. */
static void test_first_connection_is_awaited(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk = {.options = options, .now_ns = 1000 * MS};
    (void)state;
    options.look_ahead = 20;
    options.epochs = 5;
    assert_int_equal(client_core_create(&desk.core, &options, NULL), BASE_OK);
    desk_give_plan(&desk, 2);
    desk_act(&desk);
    desk_come_up(&desk, 1, 100);
    desk_act(&desk);
    int homes = desk_count(&desk, CLIENT_ACTION_GET, 1);
    assert_true(homes > 5 && homes < 16);
    for (int i = 0; i < 4; i++) {
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        desk_act(&desk);
        desk_pass(&desk, i < 3 ? 500 : 499);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 0);
    }
    desk_pass(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 2), 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 21 - homes);
    desk_finish(&desk);
}

static void test_not_opened(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk = {.options = options, .now_ns = 1000 * MS};
    (void)state;
    assert_int_equal(client_core_create(&desk.core, &options, NULL), BASE_OK);
    desk_give_plan(&desk, 1);
    desk_act(&desk);
    client_core_connected(desk.core, desk.now_ns, 1);
    desk_act(&desk);
    for (int i = 0; i < 3; i++) { /* the worker has not heard of the stream yet */
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_OPEN, 1), 1);
        client_core_not_opened(desk.core, desk.now_ns, 1, 200);
        desk_act(&desk);
        desk_pass(&desk, 199);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_OPEN, 1), 0);
        desk_pass(&desk, 1);
    }
    client_core_opened(desk.core, desk.now_ns, 1, 9);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 3);
    desk_finish(&desk);
}

/* ---- plan and marks ---- */

static void test_plan_news(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    int fetches = 0;
    (void)state;
    desk_start(&desk, &options, 2, 100);
    client_core_heard(desk.core, desk.now_ns, 1, 5);
    for (int i = 0; i < 30; i++) {
        desk_later(&desk, 100);
        fetches += desk_count(&desk, CLIENT_ACTION_FETCH_PLAN, 0);
        client_core_heard(desk.core, desk.now_ns, 1, 5);
        client_core_heard(desk.core, desk.now_ns, 2, 1);
    }
    assert_int_equal(fetches, 3);
    desk.plan.version = 4;
    desk_give_plan(&desk, 1); /* version 5, without worker 2 */
    desk_act(&desk);
    assert_int_equal(client_core_plan_version(desk.core), 5);
    desk_later(&desk, 2000);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_FETCH_PLAN, 0), 0);
    desk.plan.version = 2;
    desk_give_plan(&desk, 3); /* an old one */
    assert_int_equal(client_core_plan_version(desk.core), 5);
    desk_finish(&desk);
}

static void test_leaving(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 2, 100);
    struct client_action gets[3];
    int n = 0;
    for (int i = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET)
            gets[n++] = desk.actions[i];
    desk_give_plan(&desk, 1);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 0), 0); /* it may finish what it was asked */
    for (int i = 0; i < n; i++)
        desk_answer(&desk, &gets[i], 0);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CLOSE, 2), 1);
    desk_later(&desk, 5000);
    assert_int_equal(client_core_stats(desk.core).peers, 1);
    desk_finish(&desk);
}

static void test_marks(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    int marks = 0;
    (void)state;
    desk_start(&desk, &options, 2, 100);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_MARK, 0), 2);
    struct client_action first = *desk_find(&desk, CLIENT_ACTION_GET);
    for (int i = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET && desk.actions[i].block == 0)
            first = desk.actions[i];
    assert_int_equal(first.mark.position, 0);
    desk_answer(&desk, &first, 0);
    desk_act(&desk);
    for (int i = 0; i < 30; i++) {
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        client_core_heard(desk.core, desk.now_ns, 2, 0);
        desk_later(&desk, 100);
        marks += desk_count(&desk, CLIENT_ACTION_MARK, 0);
    }
    assert_int_equal(marks, 6);
    assert_int_equal(client_core_mark(desk.core).position, 8); /* block 0 is here */
    desk_finish(&desk);
}

/* ---- bad rows ---- */

static void test_policies(void **state)
{
    static const struct {
        enum client_on_bad policy;
        uint8_t status;
        enum base_code code;
        uint32_t valid_rows;
        uint64_t substituted, skipped;
    } cases[] = {
        {CLIENT_ON_BAD_ERROR, WIRE_ROW_OK, BASE_OK, 8, 0, 0},
        {CLIENT_ON_BAD_ERROR, WIRE_ROW_SUBSTITUTED, BASE_BAD_SAMPLE, 0, 0, 0},
        {CLIENT_ON_BAD_ERROR, WIRE_ROW_BAD, BASE_BAD_SAMPLE, 0, 0, 0},
        {CLIENT_ON_BAD_SKIP, WIRE_ROW_SUBSTITUTED, BASE_OK, 7, 0, 1},
        {CLIENT_ON_BAD_SKIP, WIRE_ROW_BAD, BASE_OK, 7, 0, 1},
        {CLIENT_ON_BAD_REPLACE, WIRE_ROW_SUBSTITUTED, BASE_OK, 8, 1, 0},
        {CLIENT_ON_BAD_REPLACE, WIRE_ROW_BAD, BASE_OK, 7, 0, 1}, /* nothing to replace it with */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct client_core_options options = desk_options();
        struct base_error error;
        struct client_step step = {0};
        struct desk desk;
        options.on_bad = cases[i].policy;
        desk_start(&desk, &options, 1, 100);
        desk_answer_all(&desk, cases[i].status);
        assert_int_equal(desk_count(&desk, CLIENT_ACTION_ERROR, 0), cases[i].code != BASE_OK);
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), cases[i].code);
        assert_int_equal(step.valid_rows, cases[i].valid_rows);
        struct client_core_stats stats = client_core_stats(desk.core);
        assert_true(stats.substituted == cases[i].substituted && stats.skipped == cases[i].skipped);
        if (cases[i].code != BASE_OK) {
            assert_non_null(strstr(error.text, "item 0 "));
            assert_int_equal(client_core_bad(desk.core).cause, 22);
            assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), cases[i].code);
        }
        desk_finish(&desk);
    }
}

/* ---- elsewhere ---- */

static void give_rows(struct desk *desk, const struct client_action *get)
{
    struct wire_row rows[256] = {0};
    client_core_data(desk->core, desk->now_ns, get->worker, get->request, rows);
}

static void test_seek(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    struct client_step held, step;
    struct client_place where;
    (void)state;
    options.epochs = 0;
    desk_start(&desk, &options, 1, 100);
    desk_answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &held, NULL), BASE_OK);
    client_core_release(desk.core, desk.now_ns, held.slot);
    desk_act(&desk);
    struct client_action receiving = *desk_find(&desk, CLIENT_ACTION_GET); /* a third step; two are ready */
    assert_int_equal(desk_place(&desk, &receiving, &where), CLIENT_PLACED_SLOT);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &held, NULL), BASE_OK);
    assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){2, 16}, NULL), 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_TIMEOUT); /* not the end */
    desk_act(&desk); /* one slot was ready, one is held, one is being received into */
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CANCEL, 0), 0);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 0), 1);
    struct client_action first = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_true(first.epoch == 2 && first.block == 2);
    assert_true(client_core_cursor(desk.core).epoch == 2 && client_core_cursor(desk.core).position == 16);
    give_rows(&desk, &receiving); /* for nobody, and its slot is free */
    desk_act(&desk);
    assert_int_equal(desk_find(&desk, CLIENT_ACTION_GET)->block, 3);
    assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){2, 16}, NULL), 0);
    desk_act(&desk); /* it is there already */
    assert_int_equal(desk.count, 0);
    client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){0, 64}, NULL);
    desk_act(&desk); /* (1, 0), and these two are cancelled */
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CANCEL, 1), 2);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 2);
    assert_int_equal(desk_place(&desk, &first, &where), CLIENT_PLACED_SCRATCH);
    desk_answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_true(step.epoch == 1 && step.batch.step_begin == 0 && step.step == 0 && step.steps == 8);
    desk_finish(&desk);
}

static void test_seek_and_death(void **state)
{
    struct client_core_options options = desk_options();
    struct desk desk;
    struct client_place where;
    uint32_t in_flight, most;
    (void)state;
    desk_start(&desk, &options, 1, 100);
    struct client_action get = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_int_equal(desk_place(&desk, &get, &where), CLIENT_PLACED_SLOT);
    assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){0, 32}, NULL), 0);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 2);
    client_core_lost(desk.core, desk.now_ns, 1, "gone"); /* and with it what was being received for nobody */
    desk_later(&desk, 100);
    desk_come_up(&desk, 1, 100);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 3);
    client_core_load(desk.core, 1, &in_flight, &most);
    assert_int_equal(in_flight, 3);
    desk_finish(&desk);
}

static void test_seek_refusals(void **state)
{
    static const struct {
        uint32_t first_epoch;
        struct scheduler_cursor to;
        bool good;
    } cases[] = {{0, {0, 0}, true},   {0, {0, 64}, true}, {3, {3, 8}, true},
                 {0, {0, 65}, false}, {3, {2, 0}, false}, {0, {UINT32_MAX, 0}, false}};
    struct client_core_options options = desk_options();
    struct desk desk;
    (void)state;
    desk_start(&desk, &options, 1, 100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(client_core_seek(desk.core, desk.now_ns, cases[i].first_epoch, cases[i].to, NULL) ==
                             BASE_OK,
                         cases[i].good);
    desk_finish(&desk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_padding_is_asked_once),
        cmocka_unit_test(test_caps),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_retry_at_one_that_leaves),
        cmocka_unit_test(test_retry),
        cmocka_unit_test(test_unavailable),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_scratch_and_wrong),
        cmocka_unit_test(test_lost_in_mid_part),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_own_sleep_is_forgiven),
        cmocka_unit_test(test_all_down),
        cmocka_unit_test(test_first_connection_is_awaited),
        cmocka_unit_test(test_not_opened),
        cmocka_unit_test(test_plan_news),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_seek_and_death),
        cmocka_unit_test(test_seek_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Hedging: when a second worker is asked, when it must not be, and who is the writer then. */
#include "tests/unit/client/desk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* Steps of 8 requests, 24 of them out at a time, until `hedges` are earned; all workers answer at once. Then nobody does. */
static void earn(struct desk *desk, int workers, uint64_t hedges)
{
    struct client_core_options options = desk_options();
    struct client_step step;
    options.block_rows = 1;
    options.epochs = 0;
    desk_start(desk, &options, workers, 100);
    while (client_core_stats(desk->core).requests < 50 * hedges) {
        desk_answer_all(desk, 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(client_core_take(desk->core, desk->now_ns, &step, NULL), BASE_OK);
            client_core_release(desk->core, desk->now_ns, step.slot);
        }
        desk_act(desk);
    }
    assert_int_equal(client_core_take(desk->core, desk->now_ns, &step, NULL), BASE_TIMEOUT);
    assert_int_equal(client_core_stats(desk->core).in_flight, 24);
}

static uint64_t hedges_of(const struct desk *desk)
{
    return client_core_stats(desk->core).hedges;
}

/* ---- when ---- */

static void hear_of_all(struct desk *desk, bool wait)
{
    struct client_action gets[DESK_ACTIONS];
    int count = desk->count;
    memcpy(gets, desk->actions, sizeof gets);
    for (int ms = 0; ms <= 1000; ms += 250) { /* at once, then every 250 ms */
        desk_pass(desk, ms > 0 ? 250 : 0);
        for (int i = 0; i < count; i++) {
            if (gets[i].kind != CLIENT_ACTION_GET)
                continue;
            client_core_heard(desk->core, desk->now_ns, gets[i].worker, 0);
            if (wait)
                client_core_wait(desk->core, desk->now_ns, gets[i].worker, gets[i].request, i % 2, 3);
        }
    }
}

static void says_wait(struct desk *desk)
{
    hear_of_all(desk, true);
}

static void says_ping(struct desk *desk)
{
    hear_of_all(desk, false);
}

/* Bytes of others' frames come all the time. */
static void pass_heard(struct desk *desk, int64_t ms)
{
    for (int64_t i = 0; i <= ms; i += 100) {
        if (i > 0)
            desk_pass(desk, 100);
        for (uint64_t worker = 1; worker <= DESK_WORKERS; worker++)
            client_core_heard(desk->core, desk->now_ns, worker, 0);
    }
}

static void one_is_unavailable(struct desk *desk)
{
    struct base_error cause = desk_cause(BASE_UNAVAILABLE, "item 5: throttled");
    const struct client_action *get = desk_find(desk, CLIENT_ACTION_GET);
    client_core_retry(desk->core, desk->now_ns, get->worker, get->request, 60000, &cause);
    desk_act(desk);
}

static void was_unavailable_once(struct desk *desk)
{
    one_is_unavailable(desk);
    pass_heard(desk, 5000);
}

/* All that is out is INSISTed for death at the one that is left. */
static void all_but_one_die(struct desk *desk)
{
    for (int i = 0; i < desk->count; i++)
        if (desk->actions[i].kind == CLIENT_ACTION_GET && desk->actions[i].worker == 3)
            desk_answer(desk, &desk->actions[i], 0);
    client_core_lost(desk->core, desk->now_ns, 1, "reset");
    client_core_lost(desk->core, desk->now_ns, 2, "reset");
    desk_act(desk);
    desk_pass(desk, 100);
    desk_come_up(desk, 1, 100);
    desk_act(desk);
}

/* It computes for a second between two batches, and has just got one. */
static void trainer_has_time(struct desk *desk)
{
    struct client_step step;
    desk_answer_all(desk, 0);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(client_core_take(desk->core, desk->now_ns, &step, NULL), BASE_OK);
        client_core_release(desk->core, desk->now_ns, step.slot);
        desk_act(desk);
        if (i < 6) /* the last three are out in the end */
            desk_answer_all(desk, 0);
        if (i < 8)
            pass_heard(desk, 1000);
    }
}

static void answers_take_400_ms(struct desk *desk)
{
    struct client_step step;
    for (int i = 0; i < 8; i++) {
        struct desk before = *desk;
        pass_heard(desk, 400);
        memcpy(desk->actions, before.actions, sizeof before.actions);
        desk->count = before.count;
        desk_answer_all(desk, 0);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(client_core_take(desk->core, desk->now_ns, &step, NULL), BASE_OK);
            client_core_release(desk->core, desk->now_ns, step.slot);
        }
        desk_act(desk);
    }
    assert_int_equal(client_core_take(desk->core, desk->now_ns, &step, NULL), BASE_TIMEOUT);
}

/* Woken late, it finds every frame still unread. */
static void we_sleep(struct desk *desk)
{
    desk_later(desk, 30000);
}

static void test_when(void **state)
{
    static const struct {
        const char *what;
        int workers;
        uint64_t earned;
        void (*before)(struct desk *desk);
        int64_t silent_ms;
        bool hedges;
    } cases[] = {
        {"silent for long enough", 3, 1, NULL, 300, true},
        {"silent, but not for long", 3, 1, NULL, 299, false},
        {"no credit: the first requests of a job", 3, 0, NULL, 900, false},
        {"nobody else", 1, 1, NULL, 900, false},
        {"says WAIT every tick", 3, 1, says_wait, 299, false},
        {"says WAIT, and then nothing more", 3, 1, says_wait, 300, true},
        {"says PING: all is on its way", 3, 1, says_ping, 299, false},
        {"storage throttles", 3, 1, one_is_unavailable, 900, false},
        {"storage throttled", 3, 1, was_unavailable_once, 300, true},
        {"INSISTed for death", 3, 1, all_but_one_die, 900, false},
        {"the trainer has time", 3, 1, trainer_has_time, 700, false},
        {"the trainer has less time", 3, 1, trainer_has_time, 800, true},
        {"answers take so long anyhow", 3, 1, answers_take_400_ms, 500, false},
        {"answers never took so long", 3, 1, answers_take_400_ms, 800, true},
        {"we slept", 3, 1, we_sleep, 299, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct desk desk;
        earn(&desk, cases[i].workers, cases[i].earned);
        if (cases[i].before)
            cases[i].before(&desk);
        if (hedges_of(&desk) != 0)
            fail_msg("%s: too early", cases[i].what);
        desk_pass(&desk, cases[i].silent_ms);
        if ((hedges_of(&desk) > 0) != cases[i].hedges)
            fail_msg("%s: %d hedges", cases[i].what, (int)hedges_of(&desk));
        desk_finish(&desk);
    }
}

/* A worker that has all it may have is asked nothing more. */
static void test_room(void **state)
{
    struct client_core_options options = desk_options();
    struct client_step step;
    struct desk desk;
    (void)state;
    options.block_rows = 1;
    options.epochs = 0;
    desk_start(&desk, &options, 2, 4);
    for (int i = 0; i < 60; i++) {
        desk_answer_all(&desk, 0);
        while (client_core_take(desk.core, desk.now_ns, &step, NULL) == BASE_OK)
            client_core_release(desk.core, desk.now_ns, step.slot);
        desk_act(&desk);
    }
    assert_int_equal(client_core_stats(desk.core).in_flight, 8);
    desk_pass(&desk, 900);
    assert_int_equal(hedges_of(&desk), 0);
    desk_finish(&desk);
}

static void test_budget(void **state)
{
    static const struct {
        uint64_t earned, hedges;
    } cases[] = {{1, 1}, {2, 2}, {7, 7}, {16, 16}, {40, 16}}; /* no more than 16 are saved up */
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct desk desk;
        earn(&desk, 3, cases[i].earned);
        desk_pass(&desk, 900);
        assert_int_equal(hedges_of(&desk), cases[i].hedges);
        desk_finish(&desk);
    }
}

/* ---- who is the writer ---- */

struct race {
    struct desk desk;
    struct client_action home, hedge;
};

/* One part is out at its home and at another worker. */
static void race(struct race *race)
{
    struct desk *desk = &race->desk;
    earn(desk, 3, 1);
    struct client_action before[DESK_ACTIONS];
    int count = desk->count;
    memcpy(before, desk->actions, sizeof before);
    desk_pass(desk, 300);
    assert_int_equal(hedges_of(desk), 1);
    race->hedge = *desk_find(desk, CLIENT_ACTION_GET);
    for (int i = 0; i < count; i++)
        if (before[i].kind == CLIENT_ACTION_GET && before[i].block == race->hedge.block &&
            before[i].epoch == race->hedge.epoch)
            race->home = before[i];
    uint32_t slot = scheduler_plan_slot(desk->options.family, true, race->hedge.epoch, race->hedge.block);
    assert_true(race->hedge.insist && race->hedge.hedge && !race->hedge.death);
    assert_int_equal(race->home.worker, desk->plan.primary[slot]);
    assert_int_equal(race->hedge.worker,
                     desk->plan.secondary[slot]); /* the same for all clients: it merges */
    assert_int_equal(client_core_stats(desk->core).in_flight, 25);
}

static void expect_scratch(struct race *race, const struct client_action *get)
{
    struct client_place where;
    assert_int_equal(desk_place(&race->desk, get, &where), CLIENT_PLACED_SCRATCH);
}

static void test_hedge_is_quicker(void **state)
{
    struct race both;
    struct desk *desk = &both.desk;
    (void)state;
    race(&both);
    desk_answer(desk, &both.hedge, 0);
    desk_act(desk);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CANCEL, 0), 1);
    assert_true(desk_find(desk, CLIENT_ACTION_CANCEL)->request == both.home.request &&
                desk_find(desk, CLIENT_ACTION_CANCEL)->worker == both.home.worker);
    expect_scratch(&both, &both.home);
    assert_int_equal(client_core_stats(desk->core).hedges_won, 1);
    assert_int_equal(client_core_stats(desk->core).in_flight, 23);
    desk_finish(desk);
}

static void test_home_is_quicker(void **state)
{
    struct race both;
    struct desk *desk = &both.desk;
    struct client_place where;
    (void)state;
    race(&both);
    assert_int_equal(desk_place(desk, &both.home, &where), CLIENT_PLACED_SLOT);
    expect_scratch(&both, &both.hedge); /* one writer */
    desk_act(desk);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CANCEL, both.hedge.worker), 1);
    assert_int_equal(desk_find(desk, CLIENT_ACTION_CANCEL)->request, both.hedge.request);
    assert_int_equal(client_core_stats(desk->core).hedges_won, 0);
    assert_int_equal(client_core_stats(desk->core).in_flight, 24);
    client_core_lost(desk->core, desk->now_ns, both.home.worker, "reset"); /* in mid part: anew, for death */
    desk_act(desk);
    int again = 0;
    for (int i = 0; i < desk->count; i++)
        again += desk->actions[i].kind == CLIENT_ACTION_GET && desk->actions[i].block == both.home.block &&
                 desk->actions[i].epoch == both.home.epoch && desk->actions[i].death;
    assert_int_equal(again, 1);
    desk_finish(desk);
}

static int asked_again(const struct race *race)
{
    int again = 0;
    for (int i = 0; i < race->desk.count; i++)
        again += race->desk.actions[i].kind == CLIENT_ACTION_GET &&
                 race->desk.actions[i].block == race->home.block &&
                 race->desk.actions[i].epoch == race->home.epoch;
    return again;
}

/* However its home gives it up, the hedge is the request then, and nobody is asked a third time. */
static void test_home_gives_up(void **state)
{
    struct base_error cause = desk_cause(BASE_UNAVAILABLE, "item 5: gone");
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct race both;
        struct desk *desk = &both.desk;
        race(&both);
        if (how == 0)
            client_core_lost(desk->core, desk->now_ns, both.home.worker, "reset");
        else if (how == 1)
            client_core_moved(desk->core, desk->now_ns, both.home.worker, both.home.request,
                              both.home.worker);
        else
            client_core_retry(desk->core, desk->now_ns, both.home.worker, both.home.request, 50, &cause);
        desk_act(desk);
        assert_int_equal(asked_again(&both), 0);
        desk_pass(desk, 200);
        assert_int_equal(asked_again(&both), 0);
        expect_scratch(&both, &both.home);
        desk_answer(desk, &both.hedge, 0);
        desk_act(desk);
        assert_int_equal(desk_count(desk, CLIENT_ACTION_CANCEL, 0), 0);
        assert_int_equal(client_core_stats(desk->core).hedges_won, 0);
        desk_finish(desk);
    }
}

/* However the hedge ends, it is as if it had never been. */
static void test_hedge_gives_up(void **state)
{
    struct base_error gone = desk_cause(BASE_UNAVAILABLE, "item 5: gone"),
                      refused = desk_cause(BASE_UNSUPPORTED, "no such op");
    (void)state;
    for (int how = 0; how < 5; how++) {
        struct race both;
        struct desk *desk = &both.desk;
        struct client_core *core;
        race(&both);
        core = desk->core;
        if (how == 0)
            client_core_lost(core, desk->now_ns, both.hedge.worker, "reset");
        else if (how == 1)
            client_core_moved(core, desk->now_ns, both.hedge.worker, both.hedge.request, 1);
        else if (how == 2)
            client_core_retry(core, desk->now_ns, both.hedge.worker, both.hedge.request, 50, &gone);
        else
            client_core_fail(core, desk->now_ns, both.hedge.worker, both.hedge.request,
                             how == 3 ? &gone : &refused);
        desk_act(desk);
        assert_int_equal(asked_again(&both), 0);
        assert_int_equal(desk_count(desk, CLIENT_ACTION_ERROR, 0), 0);
        expect_scratch(&both, &both.hedge);
        desk_answer(desk, &both.home, 0);
        desk_act(desk);
        assert_int_equal(desk_count(desk, CLIENT_ACTION_CANCEL, 0), 0);
        desk_finish(desk);
    }
}

/* The winner's line breaks in mid part: the part is asked anew. */
static void test_winner_is_lost(void **state)
{
    struct race both;
    struct desk *desk = &both.desk;
    struct client_place where;
    (void)state;
    race(&both);
    assert_int_equal(desk_place(desk, &both.hedge, &where), CLIENT_PLACED_SLOT);
    client_core_lost(desk->core, desk->now_ns, both.hedge.worker, "reset");
    desk_act(desk);
    assert_int_equal(asked_again(&both), 1);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CANCEL, both.home.worker), 1);
    desk_finish(desk);
}

/* One that dies between a win and the CANCEL is told nothing. */
static void test_loser_is_lost(void **state)
{
    struct race both;
    struct desk *desk = &both.desk;
    (void)state;
    race(&both);
    desk_answer(desk, &both.hedge, 0);
    client_core_lost(desk->core, desk->now_ns, both.home.worker, "reset");
    desk_act(desk);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CANCEL, 0), 0);
    desk_finish(desk);
}

/* A silent worker whose requests were all taken from it owes nothing. It is judged all the same: given one more, it has
 * only a moment. */
static void test_outrun_is_judged(void **state)
{
    struct client_core_options options = desk_options();
    struct client_step step;
    struct desk desk;
    int64_t silent_ns;
    uint64_t dead = 0;
    (void)state;
    options.block_rows = 8; /* a request a step */
    options.epochs = 0;
    options.look_ahead = 1;
    desk_start(&desk, &options, 2, 100);
    for (int i = 0; i < 800; i++) {
        desk_answer_all(&desk, 0);
        while (client_core_take(desk.core, desk.now_ns, &step, NULL) == BASE_OK)
            client_core_release(desk.core, desk.now_ns, step.slot);
        desk_act(&desk);
    }
    silent_ns = desk.now_ns; /* worker 1 from now on; 2 answers at once */
    while (dead == 0 && desk.now_ns - silent_ns < 5000 * MS) {
        bool any = false;
        for (int i = 0; i < desk.count; i++) {
            if (desk.actions[i].kind != CLIENT_ACTION_GET || desk.actions[i].worker != 2)
                continue;
            struct client_action get = desk.actions[i];
            client_core_heard(desk.core, desk.now_ns, 2, 0);
            desk_answer(&desk, &get, 0);
            any = true;
        }
        while (client_core_take(desk.core, desk.now_ns, &step, NULL) == BASE_OK)
            client_core_release(desk.core, desk.now_ns, step.slot);
        if (!any)
            desk.now_ns = client_core_wake_ns(desk.core);
        desk_act(&desk);
        dead += (uint64_t)desk_count(&desk, CLIENT_ACTION_CLOSE, 1);
    }
    assert_int_equal(dead, 1);
    assert_in_range((desk.now_ns - silent_ns) / MS, 1000, 1300);
    assert_true(client_core_stats(desk.core).hedges_won >= 2);
    desk_finish(&desk);
}

static void answer_but(struct desk *desk, uint64_t silent)
{
    for (int i = 0; i < desk->count; i++) {
        struct client_action get = desk->actions[i];
        if (get.kind == CLIENT_ACTION_GET && get.worker != silent) {
            client_core_heard(desk->core, desk->now_ns, get.worker, 0);
            desk_answer(desk, &get, 0);
        }
    }
    desk_act(desk);
}

/* What was cancelled at a worker it may be sending all the same: asked for as much again, it counted more than it allows. */
static void test_outrun_has_no_room(void **state)
{
    struct client_core_options options = desk_options();
    struct client_action asked[4], hedge;
    struct client_place where;
    struct client_step step;
    struct desk desk;
    int count = 0;
    (void)state;
    options.block_rows = 1;
    options.epochs = 0;
    desk_start(&desk, &options, 3, 4);
    while (client_core_stats(desk.core).requests < 50) {
        while (desk_count(&desk, CLIENT_ACTION_GET, 0) > 0)
            desk_answer_all(&desk, 0);
        while (client_core_take(desk.core, desk.now_ns, &step, NULL) == BASE_OK)
            client_core_release(desk.core, desk.now_ns, step.slot);
        desk_act(&desk);
    }
    for (int round = 0; round < 8; round++) { /* in the end only worker 1 owes anything */
        for (int i = 0; i < desk.count; i++)
            if (desk.actions[i].kind == CLIENT_ACTION_GET && desk.actions[i].worker == 1 && count < 4)
                asked[count++] = desk.actions[i];
        answer_but(&desk, 1);
    }
    assert_int_equal(count, 4);
    desk_pass(&desk, 300);
    hedge = *desk_find(&desk, CLIENT_ACTION_GET);
    assert_true(hedge.hedge && hedge.worker != 1);
    answer_but(&desk, 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_CANCEL, 1), 1);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 0);
    for (int i = 0; i < 4; i++) /* it was sending it */
        if (asked[i].block == hedge.block)
            assert_int_equal(desk_place(&desk, &asked[i], &where), CLIENT_PLACED_SCRATCH);
    desk_act(&desk);
    assert_int_equal(desk_count(&desk, CLIENT_ACTION_GET, 1), 1);
    desk_finish(&desk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_hedge_is_quicker),
        cmocka_unit_test(test_home_is_quicker),
        cmocka_unit_test(test_home_gives_up),
        cmocka_unit_test(test_hedge_gives_up),
        cmocka_unit_test(test_winner_is_lost),
        cmocka_unit_test(test_loser_is_lost),
        cmocka_unit_test(test_outrun_is_judged),
        cmocka_unit_test(test_outrun_has_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

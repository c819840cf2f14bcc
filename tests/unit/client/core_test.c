/* SPDX-License-Identifier: Apache-2.0 */
/* What the client's machine does about each kind of answer, step by step. Random lives are in core_trace_test.c. */
#include "client/src/core.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MS BASE_NS_PER_MS
#define WORKERS 3
#define ACTIONS 512

struct desk {
    struct client_core *core;
    struct client_core_options options;
    struct scheduler_plan plan;
    int64_t now_ns;
    struct client_action actions[ACTIONS]; /* of the latest round */
    int count;
};

static struct client_core_options standard_options(void)
{
    return (struct client_core_options){
        .shape = {.positions = 64, .world = 1, .rank = 0, .batch = 8, .tail = SCHEDULER_TAIL_DROP},
        .uses_epoch = true,
        .block_rows = 8,
        .epochs = 1,
        .look_ahead = 2,
        .stall_ns = 1000 * MS,
        .unavailable_ns = 10000 * MS,
    };
}

static void act(struct desk *desk)
{
    desk->count = 0;
    while (desk->count < ACTIONS && client_core_act(desk->core, desk->now_ns, &desk->actions[desk->count]))
        desk->count++;
    assert_true(desk->count < ACTIONS);
}

static void later(struct desk *desk, int64_t ms)
{
    desk->now_ns += ms * MS;
    act(desk);
}

/* Virtual time passes as an owner lets it: woken whenever the machine asked to be. Actions of the last wake are kept. */
static void pass(struct desk *desk, int64_t ms)
{
    int64_t end_ns = desk->now_ns + ms * MS;
    while (client_core_wake_ns(desk->core) < end_ns) {
        desk->now_ns = client_core_wake_ns(desk->core);
        act(desk);
    }
    desk->now_ns = end_ns;
    act(desk);
}

static int count_of(const struct desk *desk, enum client_action_kind kind, uint64_t worker)
{
    int count = 0;
    for (int i = 0; i < desk->count; i++)
        count += desk->actions[i].kind == kind && (worker == 0 || desk->actions[i].worker == worker);
    return count;
}

static const struct client_action *find(const struct desk *desk, enum client_action_kind kind)
{
    for (int i = 0; i < desk->count; i++)
        if (desk->actions[i].kind == kind)
            return &desk->actions[i];
    fail_msg("no action of kind %d among %d", kind, desk->count);
    return NULL;
}

static void give_plan(struct desk *desk, int workers)
{
    struct scheduler_plan_worker weights[WORKERS];
    uint64_t ids[WORKERS];
    struct scheduler_plan next;
    for (int i = 0; i < workers; i++) {
        ids[i] = (uint64_t)i + 1;
        weights[i] = (struct scheduler_plan_worker){ids[i], 1};
    }
    scheduler_plan_next(&desk->plan, weights, workers, &next);
    next.version = desk->plan.version + 1;
    desk->plan = next;
    assert_int_equal(client_core_plan(desk->core, desk->now_ns, &desk->plan, ids, workers, NULL), BASE_OK);
}

static void come_up(struct desk *desk, uint64_t worker, uint32_t cap)
{
    client_core_connected(desk->core, desk->now_ns, worker);
    act(desk);
    assert_int_equal(count_of(desk, CLIENT_ACTION_OPEN, worker), 1);
    client_core_opened(desk->core, desk->now_ns, worker, cap);
}

static void start(struct desk *desk, const struct client_core_options *options, int workers, uint32_t cap)
{
    struct base_error error;
    *desk = (struct desk){.options = *options, .now_ns = 1000 * MS};
    if (client_core_create(&desk->core, options, &error) != BASE_OK)
        fail_msg("%s", error.text);
    give_plan(desk, workers);
    act(desk);
    assert_int_equal(count_of(desk, CLIENT_ACTION_CONNECT, 0), workers);
    for (int i = 0; i < workers; i++)
        client_core_connected(desk->core, desk->now_ns, (uint64_t)i + 1);
    act(desk);
    for (int i = 0; i < workers; i++)
        client_core_opened(desk->core, desk->now_ns, (uint64_t)i + 1, cap);
    act(desk);
}

static void finish(struct desk *desk)
{
    client_core_destroy(desk->core);
}

static enum client_placed place(struct desk *desk, const struct client_action *get,
                                struct client_place *where)
{
    struct client_arrival arrival = {get->request, get->block, get->epoch, get->from, get->to};
    return client_core_place(desk->core, desk->now_ns, get->worker, &arrival, where);
}

static void answer(struct desk *desk, const struct client_action *get, uint8_t status)
{
    struct wire_row rows[256] = {0};
    struct client_place where;
    assert_int_equal(place(desk, get, &where), CLIENT_PLACED_SLOT);
    for (uint32_t i = 0; i < get->to - get->from; i++)
        rows[i] = (struct wire_row){.item = get->block * desk->options.block_rows + get->from + i,
                                    .status = i == 0 ? status : 0,
                                    .cause = i == 0 && status ? 22 : 0};
    client_core_data(desk->core, desk->now_ns, get->worker, get->request, rows);
}

static void answer_all(struct desk *desk, uint8_t status)
{
    struct client_action actions[ACTIONS];
    int count = desk->count;
    memcpy(actions, desk->actions, sizeof actions);
    for (int i = 0; i < count; i++)
        if (actions[i].kind == CLIENT_ACTION_GET)
            answer(desk, &actions[i], status);
    act(desk);
}

static struct base_error cause_of(enum base_code code, const char *text)
{
    struct base_error cause;
    base_error_set(&cause, code, "%s", text);
    return cause;
}

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
        struct client_core_options options = standard_options();
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
    struct client_core_options options = standard_options();
    struct desk desk;
    struct client_step step;
    (void)state;
    options.shape = (struct scheduler_shape){
        .positions = 5, .world = 2, .rank = 1, .batch = 8, .tail = SCHEDULER_TAIL_PAD};
    options.block_rows = 4;
    start(&desk, &options, 1, 100);
    /* rank 1's rows are all padding: positions 3 4 0 1 2 | 3 4 0; three runs inside blocks of 4 */
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 3);
    answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_int_equal(step.distinct, 5);
    assert_int_equal(step.batch.rows, 8);
    assert_int_equal(step.valid_rows, 0);
    for (uint32_t row = 0; row < 8; row++)
        assert_int_equal(step.rows[row].item, (3 + row) % 5);
    finish(&desk);
}

static void test_caps(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    uint32_t in_flight, most;
    (void)state;
    options.block_rows = 1; /* 24 requests for the window */
    start(&desk, &options, 1, 5);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 5);
    client_core_load(desk.core, 1, &in_flight, &most);
    assert_true(in_flight == 5 && most == 5);
    struct client_action first = *find(&desk, CLIENT_ACTION_GET);
    answer(&desk, &first, 0);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 1); /* one came, one goes */
    finish(&desk);
}

static void test_hold(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    struct client_step step[3];
    (void)state;
    start(&desk, &options, 1, 100);
    answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[0], NULL), BASE_OK);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[1], NULL), BASE_OK);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[2], NULL), BASE_BUSY);
    client_core_release(desk.core, desk.now_ns, step[1].slot); /* any order */
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step[2], NULL), BASE_OK);
    assert_int_equal(step[2].step, 2);
    client_core_release(desk.core, desk.now_ns, step[0].slot);
    client_core_release(desk.core, desk.now_ns, step[0].slot); /* twice: nothing */
    act(&desk);
    answer_all(&desk, 0);
    assert_int_equal(client_core_stats(desk.core).held, 1);
    finish(&desk);
}

/* ---- answers ---- */

static void test_moved(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    (void)state;
    start(&desk, &options, 3, 1);
    struct client_action get = *find(&desk, CLIENT_ACTION_GET);
    assert_false(get.insist);
    uint64_t other = get.worker % 3 + 1;
    client_core_lost(desk.core, desk.now_ns, other, NULL); /* frees room there, once it is back */
    client_core_moved(desk.core, desk.now_ns, get.worker, get.request, 77); /* nobody that we know */
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, get.worker), 1);
    struct client_action again = *find(&desk, CLIENT_ACTION_GET);
    assert_true(again.insist && !again.death && again.block == get.block && again.request != get.request);
    assert_int_equal(client_core_stats(desk.core).moved, 1);
    finish(&desk);

    start(&desk, &options, 2, 100);
    get = *find(&desk, CLIENT_ACTION_GET);
    client_core_moved(desk.core, desk.now_ns, get.worker, get.request, 3 - get.worker);
    act(&desk);
    again = *find(&desk, CLIENT_ACTION_GET);
    assert_true(again.insist && !again.death && again.worker == 3 - get.worker);
    finish(&desk);
}

static void test_retry(void **state)
{
    struct client_core_options options = standard_options();
    struct base_error cause = cause_of(BASE_UNAVAILABLE, "item 5: gone");
    struct desk desk;
    (void)state;
    start(&desk, &options, 3, 100);
    struct client_action get = *find(&desk, CLIENT_ACTION_GET);
    client_core_retry(desk.core, desk.now_ns, get.worker, get.request, 300, &cause);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 0);
    pass(&desk, 299);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 0);
    pass(&desk, 1);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, get.worker), 1); /* the same once more */
    struct client_action second = *find(&desk, CLIENT_ACTION_GET);
    assert_false(second.insist);
    client_core_retry(desk.core, desk.now_ns, second.worker, second.request, 300, &cause);
    act(&desk);
    for (int w = 1; w <= 3; w++)
        client_core_heard(desk.core, desk.now_ns, (uint64_t)w, 0);
    pass(&desk, 300);
    struct client_action third = *find(&desk, CLIENT_ACTION_GET); /* then elsewhere */
    assert_true(third.worker != get.worker && third.insist && !third.death);
    assert_int_equal(client_core_stats(desk.core).retries, 2);
    finish(&desk);
}

static void test_unavailable(void **state)
{
    struct client_core_options options = standard_options();
    struct base_error cause = cause_of(BASE_UNAVAILABLE, "item 5: gone"), error;
    struct client_step step;
    struct desk desk;
    int errors = 0;
    (void)state;
    options.shape.positions = 8;
    start(&desk, &options, 2, 100);
    for (int64_t ms = 0; ms < 9900; ms += 100) {
        for (int i = 0; i < desk.count; i++)
            if (desk.actions[i].kind == CLIENT_ACTION_GET)
                client_core_retry(desk.core, desk.now_ns, desk.actions[i].worker, desk.actions[i].request, 50,
                                  &cause);
        act(&desk);
        errors += count_of(&desk, CLIENT_ACTION_ERROR, 0);
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_TIMEOUT);
        later(&desk, 100);
        errors += count_of(&desk, CLIENT_ACTION_ERROR, 0);
    }
    assert_int_equal(errors, 0);
    struct client_action get = *find(&desk, CLIENT_ACTION_GET);
    later(&desk, 100);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_ERROR, 0),
                     0); /* it is being asked, perhaps with success */
    client_core_retry(desk.core, desk.now_ns, get.worker, get.request, 50, &cause);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_ERROR, 0), 1);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_UNAVAILABLE);
    assert_non_null(strstr(error.text, "item 5: gone"));
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error),
                     BASE_TIMEOUT); /* its clock starts anew */
    later(&desk, 50);
    get = *find(&desk, CLIENT_ACTION_GET);
    answer(&desk, &get, 0);
    act(&desk);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_OK);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_CLOSED);
    finish(&desk);
}

static void test_fail(void **state)
{
    struct client_core_options options = standard_options();
    struct base_error refused = cause_of(BASE_UNSUPPORTED, "no such op"), busy = cause_of(BASE_BUSY, "full"),
                      error;
    struct client_step step;
    struct desk desk;
    (void)state;
    start(&desk, &options, 1, 100); /* three requests: one a step */
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 3);
    struct client_action gets[3];
    for (int i = 0, n = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET)
            gets[n++] = desk.actions[i];
    client_core_fail(desk.core, desk.now_ns, 1, gets[1].request, &refused);
    client_core_fail(desk.core, desk.now_ns, 1, gets[2].request, &busy); /* retryable: as RETRY */
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_ERROR, 0), 0); /* the step before it is still to come */
    answer(&desk, &gets[0], 0);
    later(&desk, 100);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 1);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_OK);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_ERROR, 0), 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_UNSUPPORTED);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CANCEL, 1), 1); /* nobody needs the third any more */
    assert_int_equal(client_core_stats(desk.core).in_flight, 0);
    finish(&desk);
}

static void test_scratch_and_wrong(void **state)
{
    struct client_core_options options = standard_options();
    struct client_place where;
    struct desk desk;
    (void)state;
    start(&desk, &options, 2, 100);
    struct client_action get = *find(&desk, CLIENT_ACTION_GET), other = get;
    other.to--;
    assert_int_equal(place(&desk, &other, &where), CLIENT_PLACED_WRONG);
    other = get, other.block++;
    assert_int_equal(place(&desk, &other, &where), CLIENT_PLACED_WRONG);
    other = get, other.request += 1000000;
    assert_int_equal(place(&desk, &other, &where), CLIENT_PLACED_SCRATCH);
    other = get, other.worker = 3 - get.worker;
    assert_int_equal(place(&desk, &other, &where), CLIENT_PLACED_SCRATCH);
    answer(&desk, &get, 0);
    assert_int_equal(place(&desk, &get, &where), CLIENT_PLACED_SCRATCH); /* said twice */
    finish(&desk);
}

/* ---- death ---- */

static void test_lost_in_mid_part(void **state)
{
    struct client_core_options options = standard_options();
    struct client_place where;
    struct desk desk;
    (void)state;
    start(&desk, &options, 3, 100);
    struct client_action get = *find(&desk, CLIENT_ACTION_GET);
    assert_int_equal(place(&desk, &get, &where), CLIENT_PLACED_SLOT);
    client_core_lost(desk.core, desk.now_ns, get.worker, "reset");
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 0), 0); /* it is gone already */
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
    assert_int_equal(place(&desk, &get, &where), CLIENT_PLACED_SCRATCH);
    finish(&desk);
}

static void test_silence(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    (void)state;
    start(&desk, &options, 1, 100);
    for (int i = 0; i < 10; i++) { /* PING or WAIT every so often: it lives */
        pass(&desk, 900);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 1), 0);
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        act(&desk);
    }
    pass(&desk, 999);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 1), 0);
    pass(&desk, 1);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 1), 1);
    assert_int_equal(client_core_stats(desk.core).in_flight, 0);
    finish(&desk);

    start(&desk, &options, 1, 100); /* nothing outstanding: silence is fine */
    answer_all(&desk, 0);
    pass(&desk, 60000);
    assert_int_equal(client_core_stats(desk.core).peers_up, 1);
    finish(&desk);
}

/* A process that was stopped finds every deadline passed and every frame still unread. */
static void test_own_sleep_is_forgiven(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    (void)state;
    start(&desk, &options, 1, 100);
    later(&desk, 30000);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 1), 0);
    pass(&desk, 500);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 1), 1);
    finish(&desk);
}

static void test_all_down(void **state)
{
    static const int64_t pauses_ms[] = {100, 200, 400, 800, 1600, 2000, 2000};
    struct client_core_options options = standard_options();
    struct base_error error;
    struct client_step step;
    struct desk desk;
    (void)state;
    start(&desk, &options, 1, 100);
    for (size_t i = 0; i < sizeof pauses_ms / sizeof pauses_ms[0]; i++) {
        client_core_lost(desk.core, desk.now_ns, 1, "refused");
        act(&desk);
        pass(&desk, pauses_ms[i] - 1);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_CONNECT, 1), 0);
        pass(&desk, 1);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_CONNECT, 1), 1);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 0);
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), BASE_TIMEOUT);
    }
    char why[200];
    client_core_why(desk.core, why, sizeof why);
    assert_non_null(strstr(why, "0 of 1 workers up (worker 1: refused)"));
    come_up(&desk, 1, 100);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 3);
    assert_true(find(&desk, CLIENT_ACTION_GET)->insist);
    answer_all(&desk, 0);
    client_core_lost(desk.core, desk.now_ns, 1, NULL); /* a part came: patience is as short as at first */
    act(&desk);
    pass(&desk, 100);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CONNECT, 1), 1);
    finish(&desk);
}

/* Blocks of a worker that is still being dialled wait a while: going elsewhere at once would make them in the wrong place. */
static void test_first_connection_is_awaited(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk = {.options = options, .now_ns = 1000 * MS};
    (void)state;
    options.look_ahead = 20;
    options.epochs = 5;
    assert_int_equal(client_core_create(&desk.core, &options, NULL), BASE_OK);
    give_plan(&desk, 2);
    act(&desk);
    come_up(&desk, 1, 100);
    act(&desk);
    int homes = count_of(&desk, CLIENT_ACTION_GET, 1);
    assert_true(homes > 5 && homes < 16);
    for (int i = 0; i < 4; i++) {
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        act(&desk);
        pass(&desk, i < 3 ? 500 : 499);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 0);
    }
    pass(&desk, 1);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 2), 1);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 21 - homes);
    finish(&desk);
}

static void test_not_opened(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk = {.options = options, .now_ns = 1000 * MS};
    (void)state;
    assert_int_equal(client_core_create(&desk.core, &options, NULL), BASE_OK);
    give_plan(&desk, 1);
    act(&desk);
    client_core_connected(desk.core, desk.now_ns, 1);
    act(&desk);
    for (int i = 0; i < 3; i++) { /* the worker has not heard of the stream yet */
        assert_int_equal(count_of(&desk, CLIENT_ACTION_OPEN, 1), 1);
        client_core_not_opened(desk.core, desk.now_ns, 1, 200);
        act(&desk);
        pass(&desk, 199);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_OPEN, 1), 0);
        pass(&desk, 1);
    }
    client_core_opened(desk.core, desk.now_ns, 1, 9);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 3);
    finish(&desk);
}

/* ---- plan and marks ---- */

static void test_plan_news(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    int fetches = 0;
    (void)state;
    start(&desk, &options, 2, 100);
    client_core_heard(desk.core, desk.now_ns, 1, 5);
    for (int i = 0; i < 30; i++) {
        later(&desk, 100);
        fetches += count_of(&desk, CLIENT_ACTION_FETCH_PLAN, 0);
        client_core_heard(desk.core, desk.now_ns, 1, 5);
        client_core_heard(desk.core, desk.now_ns, 2, 1);
    }
    assert_int_equal(fetches, 3);
    desk.plan.version = 4;
    give_plan(&desk, 1); /* version 5, without worker 2 */
    act(&desk);
    assert_int_equal(client_core_plan_version(desk.core), 5);
    later(&desk, 2000);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_FETCH_PLAN, 0), 0);
    desk.plan.version = 2;
    give_plan(&desk, 3); /* an old one */
    assert_int_equal(client_core_plan_version(desk.core), 5);
    finish(&desk);
}

static void test_leaving(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    (void)state;
    start(&desk, &options, 2, 100);
    struct client_action gets[3];
    int n = 0;
    for (int i = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET)
            gets[n++] = desk.actions[i];
    give_plan(&desk, 1);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 0), 0); /* it may finish what it was asked */
    for (int i = 0; i < n; i++)
        answer(&desk, &gets[i], 0);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CLOSE, 2), 1);
    later(&desk, 5000);
    assert_int_equal(client_core_stats(desk.core).peers, 1);
    finish(&desk);
}

static void test_marks(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    int marks = 0;
    (void)state;
    start(&desk, &options, 2, 100);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_MARK, 0), 2);
    struct client_action first = *find(&desk, CLIENT_ACTION_GET);
    for (int i = 0; i < desk.count; i++)
        if (desk.actions[i].kind == CLIENT_ACTION_GET && desk.actions[i].block == 0)
            first = desk.actions[i];
    assert_int_equal(first.mark.position, 0);
    answer(&desk, &first, 0);
    act(&desk);
    for (int i = 0; i < 30; i++) {
        client_core_heard(desk.core, desk.now_ns, 1, 0);
        client_core_heard(desk.core, desk.now_ns, 2, 0);
        later(&desk, 100);
        marks += count_of(&desk, CLIENT_ACTION_MARK, 0);
    }
    assert_int_equal(marks, 6);
    assert_int_equal(client_core_mark(desk.core).position, 8); /* block 0 is here */
    finish(&desk);
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
        struct client_core_options options = standard_options();
        struct base_error error;
        struct client_step step = {0};
        struct desk desk;
        options.on_bad = cases[i].policy;
        start(&desk, &options, 1, 100);
        answer_all(&desk, cases[i].status);
        assert_int_equal(count_of(&desk, CLIENT_ACTION_ERROR, 0), cases[i].code != BASE_OK);
        assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), cases[i].code);
        assert_int_equal(step.valid_rows, cases[i].valid_rows);
        struct client_core_stats stats = client_core_stats(desk.core);
        assert_true(stats.substituted == cases[i].substituted && stats.skipped == cases[i].skipped);
        if (cases[i].code != BASE_OK) {
            assert_non_null(strstr(error.text, "item 0 "));
            assert_int_equal(client_core_bad(desk.core).cause, 22);
            assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, &error), cases[i].code);
        }
        finish(&desk);
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
    struct client_core_options options = standard_options();
    struct desk desk;
    struct client_step held, step;
    struct client_place where;
    (void)state;
    options.epochs = 0;
    start(&desk, &options, 1, 100);
    answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &held, NULL), BASE_OK);
    client_core_release(desk.core, desk.now_ns, held.slot);
    act(&desk);
    struct client_action receiving = *find(&desk, CLIENT_ACTION_GET); /* a third step; two are ready */
    assert_int_equal(place(&desk, &receiving, &where), CLIENT_PLACED_SLOT);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &held, NULL), BASE_OK);
    assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){2, 16}, NULL), 0);
    act(&desk); /* one slot was ready, one is held, one is being received into */
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CANCEL, 0), 0);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 0), 1);
    struct client_action first = *find(&desk, CLIENT_ACTION_GET);
    assert_true(first.epoch == 2 && first.block == 2);
    assert_true(client_core_cursor(desk.core).epoch == 2 && client_core_cursor(desk.core).position == 16);
    give_rows(&desk, &receiving); /* for nobody, and its slot is free */
    act(&desk);
    assert_int_equal(find(&desk, CLIENT_ACTION_GET)->block, 3);
    assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){2, 16}, NULL), 0);
    act(&desk); /* it is there already */
    assert_int_equal(desk.count, 0);
    client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){0, 64}, NULL);
    act(&desk); /* (1, 0), and these two are cancelled */
    assert_int_equal(count_of(&desk, CLIENT_ACTION_CANCEL, 1), 2);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 2);
    assert_int_equal(place(&desk, &first, &where), CLIENT_PLACED_SCRATCH);
    answer_all(&desk, 0);
    assert_int_equal(client_core_take(desk.core, desk.now_ns, &step, NULL), BASE_OK);
    assert_true(step.epoch == 1 && step.batch.step_begin == 0 && step.step == 0 && step.steps == 8);
    finish(&desk);
}

static void test_seek_and_death(void **state)
{
    struct client_core_options options = standard_options();
    struct desk desk;
    struct client_place where;
    uint32_t in_flight, most;
    (void)state;
    start(&desk, &options, 1, 100);
    struct client_action get = *find(&desk, CLIENT_ACTION_GET);
    assert_int_equal(place(&desk, &get, &where), CLIENT_PLACED_SLOT);
    assert_int_equal(client_core_seek(desk.core, desk.now_ns, 0, (struct scheduler_cursor){0, 32}, NULL), 0);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 2);
    client_core_lost(desk.core, desk.now_ns, 1, "gone"); /* and with it what was being received for nobody */
    later(&desk, 100);
    come_up(&desk, 1, 100);
    act(&desk);
    assert_int_equal(count_of(&desk, CLIENT_ACTION_GET, 1), 3);
    client_core_load(desk.core, 1, &in_flight, &most);
    assert_int_equal(in_flight, 3);
    finish(&desk);
}

static void test_seek_refusals(void **state)
{
    static const struct {
        uint32_t first_epoch;
        struct scheduler_cursor to;
        bool good;
    } cases[] = {{0, {0, 0}, true},   {0, {0, 64}, true}, {3, {3, 8}, true},
                 {0, {0, 65}, false}, {3, {2, 0}, false}, {0, {UINT32_MAX, 0}, false}};
    struct client_core_options options = standard_options();
    struct desk desk;
    (void)state;
    start(&desk, &options, 1, 100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(client_core_seek(desk.core, desk.now_ns, cases[i].first_epoch, cases[i].to, NULL) ==
                             BASE_OK,
                         cases[i].good);
    finish(&desk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_padding_is_asked_once),
        cmocka_unit_test(test_caps),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_moved),
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

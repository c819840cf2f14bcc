/* SPDX-License-Identifier: Apache-2.0 */
/* Who is made next: weights, slack within the window, remakes at the asker's charge, claims that sleep. */
#include "tests/unit/worker/bed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define COST_NS (8 * BED_MS)
#define WINDOW_NS ((double)WORKER_SHARE_WINDOW_NS)

static struct bed bed;

static void begin(int staged, uint32_t making_max)
{
    bed_start(&bed, staged, making_max, 64);
    for (int s = 0; s < 2; s++) {
        bed.streams[s].items = 2048 * 8;
        bed_add_stream(&bed, s);
    }
}

static uint64_t enter(int stream, const char *job)
{
    uint64_t connection = bed_connect(&bed);
    assert_int_equal(bed_open(&bed, connection, stream, job, 0)->answer, WORKER_SEND_OPENED);
    return connection;
}

static void weigh(int stream, const char *job, double weight, const char *other, double other_weight)
{
    struct worker_live_job jobs[] = {{job, weight}, {other, other_weight}};
    worker_core_stream_jobs(bed.core, bed.now_ns, bed.streams[stream].hash, jobs, other ? 2 : 1);
    bed_take(&bed);
}

static struct bed_request *ask(uint64_t connection, int stream, uint64_t block, uint32_t slack_ms)
{
    struct worker_get get = bed_get_of(&bed, stream, 0, block);
    get.slack_ms = slack_ms;
    return bed_send(&bed, connection, get);
}

static int stream_of(const struct worker_action *make)
{
    return make->stream == &bed.streams[1];
}

/* The first one in the making comes to its end, and what it was asked for leaves. */
static struct worker_action finish(int64_t cost_ns)
{
    struct worker_action make = bed.making[0];
    assert_true(bed.making_count > 0);
    bed.making[0] = bed.making[--bed.making_count];
    bed.now_ns += cost_ns;
    struct worker_made made = {.cost_ns = cost_ns};
    worker_core_made(bed.core, bed.now_ns, make.block, &made);
    bed_take(&bed);
    bed_send_all(&bed);
    return make;
}

/* A trainer that always has some blocks asked for. */
struct reader {
    uint64_t connection, next;
    int stream;
    uint32_t slack_ms;
    int64_t cost_ns; /* of a block */
    double had_ns;
    int made;
};

static void keep_asking(struct reader *reader, int ahead)
{
    while (reader->next < (uint64_t)(reader->made + ahead))
        ask(reader->connection, reader->stream, reader->next++, reader->slack_ms);
}

/* ---- weights ---- */

static const struct {
    double weights[2];
    uint32_t slack_ms[2];
    int64_t cost_ns[2];
    double part; /* of stream 1 */
} shares[] = {
    {{1, 1}, {1000, 1000}, {COST_NS, COST_NS}, 1.0 / 2},
    {{1, 1}, {0, 100000}, {COST_NS, COST_NS}, 1.0 / 2},
    {{1, 1}, {1000, 1000}, {COST_NS, 5 * COST_NS}, 1.0 / 2}, /* time, not blocks */
    {{1, 1}, {1000, 1000}, {COST_NS / 4, COST_NS}, 1.0 / 2},
    {{1, 3}, {1000, 1000}, {COST_NS, COST_NS}, 3.0 / 4},
    {{3, 1}, {1000, 1000}, {COST_NS, COST_NS}, 1.0 / 4},
    {{1, 3}, {100000, 0}, {COST_NS, COST_NS}, 3.0 / 4},
    {{1, 3}, {0, 100000}, {COST_NS, COST_NS}, 3.0 / 4},
    {{0.5, 1.5}, {1000, 1000}, {COST_NS, 3 * COST_NS}, 3.0 / 4},
    {{0, -1}, {1000, 1000}, {COST_NS, COST_NS}, 1.0 / 2},
    {{(double)NAN, 3}, {1000, 1000}, {COST_NS, COST_NS}, 3.0 / 4},
    {{(double)INFINITY, 1}, {1000, 1000}, {COST_NS, COST_NS}, 1.0 / 2},
    {{1e-300, 1e300}, {1000, 1000}, {COST_NS, COST_NS}, 1}, /* kept between a thousandth and a thousand */
};

static void test_time_follows_weight(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        begin(64, 1);
        struct reader readers[2];
        for (int s = 0; s < 2; s++) {
            readers[s] = (struct reader){.connection = enter(s, "a"),
                                         .stream = s,
                                         .slack_ms = shares[i].slack_ms[s],
                                         .cost_ns = shares[i].cost_ns[s]};
            weigh(s, "a", shares[i].weights[s], NULL, 0);
        }
        for (int n = 0; n < 1000; n++) {
            keep_asking(&readers[0], 16);
            keep_asking(&readers[1], 16);
            struct reader *reader = &readers[stream_of(&bed.making[0])];
            finish(reader->cost_ns);
            reader->had_ns += (double)reader->cost_ns;
            reader->made++;
        }
        double part = readers[1].had_ns / (readers[0].had_ns + readers[1].had_ns);
        if (fabs(part - shares[i].part) > 0.05 * shares[i].part)
            fail_msg("row %zu: stream 1 had %.3f of the time, not %.3f", i, part, shares[i].part);
        bed_stop(&bed);
    }
}

/* ---- slack ---- */

/* However urgent one always is, the two are never farther apart than the window and a block of each. */
static void test_urgency_is_bounded(void **state)
{
    (void)state;
    static const double weights[][2] = {{1, 1}, {4, 1}, {1, 4}};
    for (int i = 0; i < 3; i++) {
        begin(64, 1);
        struct reader urgent = {enter(0, "a"), 0, 0, 0, COST_NS, 0, 0};
        struct reader patient = {enter(1, "a"), 0, 1, 1000000, COST_NS, 0, 0};
        weigh(0, "a", weights[i][0], NULL, 0);
        weigh(1, "a", weights[i][1], NULL, 0);
        double most_ns = 0, bound_ns = WINDOW_NS + COST_NS / weights[i][0] + COST_NS / weights[i][1];
        for (int n = 0; n < 600; n++) {
            keep_asking(&urgent, 8);
            keep_asking(&patient, 8);
            struct reader *reader = stream_of(&bed.making[0]) ? &patient : &urgent;
            finish(COST_NS);
            reader->made++;
            double apart_ns = COST_NS * fabs(urgent.made / weights[i][0] - patient.made / weights[i][1]);
            most_ns = apart_ns > most_ns ? apart_ns : most_ns;
        }
        assert_true(most_ns <= bound_ns);
        assert_true(most_ns >= WINDOW_NS - COST_NS / weights[i][0]); /* and slack did come first */
        bed_stop(&bed);
    }
}

static void test_who_starves_comes_first(void **state)
{
    (void)state;
    begin(64, 1);
    uint64_t patient = enter(0, "a"), starving = enter(1, "b");
    ask(patient, 0, 0, 10000); /* in the making: what comes now waits */
    ask(patient, 0, 1, 10000);
    ask(patient, 0, 2, 10000);
    ask(starving, 1, 0, 0);
    ask(starving, 1, 1, 0);
    finish(COST_NS);
    assert_int_equal(stream_of(&bed.making[0]), 1);
    finish(COST_NS);
    assert_int_equal(stream_of(&bed.making[0]),
                     1); /* it had as much as the other by now: still in the window */
    bed_stop(&bed);
}

/* Who did nothing for long has no credit from that: what follows is shared evenly. */
static void test_idle_time_is_no_credit(void **state)
{
    (void)state;
    begin(64, 1);
    struct reader readers[2] = {{enter(0, "a"), 0, 0, 1000, COST_NS, 0, 0},
                                {enter(1, "a"), 0, 1, 1000, COST_NS, 0, 0}};
    for (; readers[0].made < 500; readers[0].made++) {
        keep_asking(&readers[0], 8);
        finish(COST_NS);
    }
    for (int n = 0; n < 100; n++) {
        keep_asking(&readers[0], 8);
        keep_asking(&readers[1], 8);
        struct reader *reader = &readers[stream_of(&bed.making[0])];
        finish(COST_NS);
        reader->made++;
    }
    assert_in_range(readers[1].made, 42, 58);
    bed_stop(&bed);
}

/* After a rest of the whole worker nobody owes anything. */
static void test_a_rest_ends_debts(void **state)
{
    (void)state;
    begin(64, 1);
    uint64_t a = enter(0, "a"), b = enter(1, "b");
    ask(a, 0, 0, 1000);
    finish(10000 * BED_MS);
    ask(b, 1, 0, 1000);
    ask(b, 1, 1, 1000);
    ask(a, 0, 1, 0);
    finish(COST_NS);
    assert_int_equal(stream_of(&bed.making[0]), 0);
    bed_stop(&bed);
}

/* ---- seeded: any pair, any times ---- */

/* Accounts 0 and 1 are the streams', the others of jobs of stream 0 that hedge. Each asks for blocks of its own. */
enum { ACCOUNTS = 6, RANGE = 300, MOST_MS = 24 };

static struct account {
    uint64_t connection, asked;
    double weight, had_ms;  /* by weight, of what was started */
    int queued, ahead;      /* ahead: keeps so many queued; 0: idle */
    double since[ACCOUNTS]; /* had_ms less another's, when both began to wait */
    bool both[ACCOUNTS];
} accounts[ACCOUNTS];

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

static int account_of(const struct worker_action *make)
{
    return stream_of(make) ? 1 : (int)(make->number / RANGE == 0 ? 0 : make->number / RANGE + 1);
}

static int64_t cost_of(const struct worker_action *make)
{
    return (int64_t)(1 + make->number * 2654435761u % MOST_MS) * BED_MS;
}

/* What is in the making is charged from its start: the list grows at its end. */
static void note_started(int known)
{
    for (int i = known; i < bed.making_count; i++) {
        struct account *account = &accounts[account_of(&bed.making[i])];
        account->queued--;
        account->had_ms += (double)cost_of(&bed.making[i]) / BED_MS / account->weight;
    }
}

static void ask_some(int a)
{
    struct account *account = &accounts[a];
    int stream = a == 1;
    while (account->queued < account->ahead && account->asked < RANGE) {
        uint64_t number = account->asked++ + (a > 1 ? (uint64_t)(a - 1) * RANGE : 0);
        struct worker_get get = bed_get_of(&bed, stream, 0, number);
        get.slack_ms = draw(2) ? 0 : draw(20000);
        get.insist = true;
        get.death = a < 2;
        get.hedge = a >= 2;
        int known = bed.making_count;
        account->queued++;
        bed_send(&bed, account->connection, get);
        note_started(known);
    }
}

static void check_pair(int a, int b, double making_max)
{
    struct account *left = &accounts[a], *right = &accounts[b];
    bool both = left->queued > 0 && right->queued > 0;
    double apart_ms = left->had_ms - right->had_ms;
    if (!both || !left->both[b])
        left->since[b] = apart_ms;
    left->both[b] = both;
    double a_block = MOST_MS / left->weight + MOST_MS / right->weight;
    double bound_ms =
        2 * (WINDOW_NS / BED_MS + a_block) + making_max * a_block; /* the making's cost is a guess yet */
    if (fabs(apart_ms - left->since[b]) > bound_ms)
        fail_msg("accounts %d and %d: %.0f ms apart, at most %.0f", a, b, apart_ms - left->since[b],
                 bound_ms);
}

static void run_seed(uint64_t seed)
{
    static const double weights[] = {0.5, 1, 2, 4};
    struct worker_live_job jobs[ACCOUNTS - 2];
    static const char *const names[ACCOUNTS] = {"a", "b", "j0", "j1", "j2", "j3"};
    random_state = seed;
    uint32_t making_max = 1 + draw(4);
    begin(ACCOUNTS * RANGE, making_max);
    memset(accounts, 0, sizeof accounts);
    double sum = 0;
    for (int a = 0; a < ACCOUNTS; a++) {
        bed_plan(&bed, a == 1, 1, 2048);
        accounts[a].weight = weights[draw(4)];
        if (a >= 2) {
            jobs[a - 2] = (struct worker_live_job){names[a], accounts[a].weight};
            sum += accounts[a].weight;
        }
    }
    accounts[0].weight = sum;
    bool told_before = draw(2);
    for (int a = 0; a < ACCOUNTS && !told_before; a++)
        accounts[a].connection = enter(a == 1, names[a]);
    worker_core_stream_jobs(bed.core, bed.now_ns, bed.streams[0].hash, jobs, ACCOUNTS - 2);
    weigh(1, names[1], accounts[1].weight, NULL, 0);
    for (int a = 0; a < ACCOUNTS && told_before; a++)
        accounts[a].connection = enter(a == 1, names[a]);
    for (int n = 0; n < 400; n++) {
        int a = (int)draw(ACCOUNTS);
        if (draw(10) == 0)
            accounts[a].ahead = draw(3) ? (int)draw(6) : 0;
        for (int i = 0; i < ACCOUNTS; i++)
            ask_some(i);
        if (bed.making_count > 0) {
            int known = bed.making_count - 1;
            finish(cost_of(&bed.making[0]));
            note_started(known);
        }
        for (int i = 0; i < ACCOUNTS; i++) /* no place is kept for anybody */
            assert_true(accounts[i].queued == 0 || bed.making_count == (int)making_max);
        for (int i = 0; i < ACCOUNTS * ACCOUNTS; i++)
            if (i / ACCOUNTS < i % ACCOUNTS)
                check_pair(i / ACCOUNTS, i % ACCOUNTS, making_max);
    }
    bed_stop(&bed);
}

static void test_no_pair_is_ever_far_apart(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++)
        run_seed(seed);
}

/* ---- who pays ---- */

/* Job "a" has the first `count` blocks of stream 0 made; nobody claims them any more, and they go. */
static void make_and_pass(uint64_t connection, uint64_t count)
{
    for (uint64_t block = 0; block < count; block++) {
        ask(connection, 0, block, 1000);
        while (bed.making_count > 0)
            finish(COST_NS);
    }
}

static const struct {
    enum worker_cause cause;
    bool asker; /* pays, not the stream */
} payers[] = {
    {WORKER_CAUSE_FIRST, false}, {WORKER_CAUSE_PLAN, false},    {WORKER_CAUSE_DEATH, false},
    {WORKER_CAUSE_HEDGE, true},  {WORKER_CAUSE_PRESSURE, true}, {WORKER_CAUSE_LATE, true},
};

/* "b" asks for a block that is made because of `cause`. */
static void ask_because(uint64_t a, uint64_t b, enum worker_cause cause)
{
    struct worker_get get = bed_get_of(&bed, 0, 0, 1000);
    get.insist = cause != WORKER_CAUSE_FIRST;
    get.hedge = cause == WORKER_CAUSE_HEDGE;
    get.death = cause == WORKER_CAUSE_DEATH;
    if (cause == WORKER_CAUSE_PLAN || cause == WORKER_CAUSE_DEATH || cause == WORKER_CAUSE_HEDGE)
        bed_plan(&bed, 0, 5, 2048); /* slot 0 alone is ours */
    if (cause == WORKER_CAUSE_LATE)
        get.block = 0;
    if (cause == WORKER_CAUSE_PRESSURE) { /* what "a" has passed goes while "b" is still to use it */
        worker_core_mark(bed.core, bed.now_ns, b, 1, 0, 0);
        for (uint64_t block = 100; block < 120; block++) {
            ask(a, 0, block, 1000);
            finish(COST_NS);
        }
        get.block = 100;
        while (worker_core_block(bed.core, bed.streams[0].hash, 0, get.block, NULL) != WORKER_ABSENT)
            get.block++;
        get.mark_position = 0;
    }
    int before = bed.makes_of[cause];
    bed_send(&bed, b, get);
    assert_int_equal(bed.makes_of[cause], before + 1);
}

/* What was made at great cost: does the stream wait for it now, or only who asked? */
static void test_who_pays(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof payers / sizeof *payers; i++) {
        begin(8, 1);
        uint64_t a = enter(0, "a"), b = enter(0, "b"), c = enter(1, "c");
        weigh(0, "a", 1, "b", 1);
        make_and_pass(a, 20);
        ask_because(a, b, payers[i].cause);
        bed_plan(&bed, 0, 6, 1);
        ask(a, 0, 1500, 0); /* urgent, and first makes: their streams pay */
        ask(c, 1, 1500, 60000);
        finish(1000 * BED_MS);
        assert_int_equal(bed.making_count, 1);
        assert_int_equal(stream_of(&bed.making[0]), payers[i].asker ? 0 : 1);
        bed_stop(&bed);
    }
}

/* A job that comes back after a pause has all made again, most urgently. The others go on as if it were one more. */
static void test_a_late_job_competes_by_its_own_weight(void **state)
{
    (void)state;
    begin(64, 1);
    struct reader a = {enter(0, "a"), 300, 0, 1000, COST_NS, 0, 0},
                  c = {enter(1, "c"), 0, 1, 1000, COST_NS, 0, 0};
    struct reader b = {enter(0, "b"), 0, 0, 0, COST_NS, 0, 0};
    weigh(0, "a", 1, "b", 1);
    weigh(1, "c", 1, NULL, 0);
    make_and_pass(a.connection, 300);
    int before = bed.makes_of[WORKER_CAUSE_LATE], base = (int)a.next;
    a.made = base;
    for (int n = 0; n < 800; n++) {
        keep_asking(&a, 8);
        keep_asking(&b, 8);
        keep_asking(&c, 8);
        struct worker_action make = finish(COST_NS);
        struct reader *reader = stream_of(&make) ? &c : make.cause == WORKER_CAUSE_LATE ? &b : &a;
        reader->made++;
    }
    assert_in_range(bed.makes_of[WORKER_CAUSE_LATE] - before, b.made, b.made + 1);
    int slack = (int)(WORKER_SHARE_WINDOW_NS / COST_NS) + 1; /* stream 0: 2, stream 1: 1, job b: 1 */
    assert_in_range(b.made, 200 - slack, 200 + slack);
    assert_in_range(c.made, 200 - slack, 200 + slack);
    assert_in_range(a.made - base, 400 - 2 * slack, 400 + 2 * slack);
    bed_stop(&bed);
}

/* A block that waits in the queue of a job with debts is made at the charge of another that asks for it, too. */
static void test_the_lesser_debtor_pays(void **state)
{
    (void)state;
    begin(8, 1);
    uint64_t a = enter(0, "a"), b = enter(0, "b"), d = enter(0, "d"), c = enter(1, "c");
    make_and_pass(a, 20);
    ask(b, 0, 0, 0); /* late, and costs b very much */
    ask(c, 1, 0, 5000);
    ask(c, 1, 1, 5000);
    struct bed_request *late = ask(b, 0, 1, 0);
    finish(1000 * BED_MS);
    assert_int_equal(stream_of(&bed.making[0]), 1);
    ask(d, 0, 1, 0);
    finish(COST_NS);
    assert_int_equal(bed.making[0].number, 1);
    assert_int_equal(stream_of(&bed.making[0]), 0);
    assert_int_equal(bed.making[0].cause, WORKER_CAUSE_LATE);
    finish(COST_NS);
    assert_int_equal(late->answer, WORKER_SEND_DATA);
    bed_stop(&bed);
}

/* ---- claims that sleep ---- */

/* One position after the other, `ahead` blocks asked for: what a trainer does. A round of a block each. */
static void run_rounds(uint64_t connection, int stream, uint64_t first, uint64_t count, uint64_t blocks,
                       int64_t step_ns)
{
    enum { AHEAD = 3 };
    for (uint64_t at = first; at < first + count; at++) {
        for (uint64_t i = at; i < at + AHEAD; i++) {
            struct worker_get get = bed_get_of(&bed, stream, (uint32_t)(i / blocks), i % blocks);
            get.mark_epoch = (uint32_t)(at / blocks);
            get.mark_position = at % blocks * 8;
            bed_send(&bed, connection, get);
            bed_make_all(&bed);
            bed_send_all(&bed);
        }
        bed.now_ns += step_ns;
        bed_take(&bed);
    }
}

/* The makes of a runner in its last rounds: with or without another that stopped in the middle. */
static int makes_beside(int stream, int staged, bool paused, int *pressed)
{
    enum { BLOCKS = 12, ROUNDS = 40 };
    bed_start(&bed, staged, 2, 64);
    bed.streams[stream].items = 8 * BLOCKS;
    bed_add_stream(&bed, stream);
    uint64_t runner = enter(stream, "a"), other = paused ? enter(stream, "b") : 0;
    if (paused)
        run_rounds(other, stream, 0, 5, BLOCKS, 100 * BED_MS);
    run_rounds(runner, stream, 0, 5 * BLOCKS, BLOCKS, 100 * BED_MS); /* 6 s: "b" sleeps by now */
    int before = bed.makes, pressed_before = bed.makes_of[WORKER_CAUSE_PRESSURE];
    run_rounds(runner, stream, 5 * BLOCKS, ROUNDS * BLOCKS, BLOCKS, 100 * BED_MS);
    *pressed = bed.makes_of[WORKER_CAUSE_PRESSURE] - pressed_before;
    struct worker_counts counts;
    worker_core_counts(bed.core, bed.now_ns, &counts);
    assert_int_equal(counts.claims_dormant, paused ? 1 : 0);
    int makes = bed.makes - before;
    if (paused) { /* it comes back: what it needs is made again, at its charge */
        int late = bed.makes_of[WORKER_CAUSE_LATE];
        run_rounds(other, stream, 5, 4, BLOCKS, 100 * BED_MS);
        if (stream == 0)
            assert_true(bed.makes_of[WORKER_CAUSE_LATE] > late);
    }
    bed_stop(&bed);
    return makes;
}

static void test_a_paused_job_does_not_hold_staging(void **state)
{
    (void)state;
    for (int staged = 3; staged <= 10; staged++) {
        int pressed, pressed_alone;
        int alone = makes_beside(0, staged, false, &pressed_alone);
        int beside = makes_beside(0, staged, true, &pressed);
        assert_int_equal(alone, 40 * 12);
        assert_int_equal(beside, alone);
        assert_int_equal(pressed, 0);
        alone = makes_beside(1, staged, false, &pressed_alone); /* rounds of the same blocks */
        beside = makes_beside(1, staged, true, &pressed);       /* others are staged when the count begins */
        assert_in_range(beside, alone - staged, alone + staged);
        assert_in_range(pressed, pressed_alone - staged, pressed_alone + staged);
    }
}

/* All stand still together, as in a validation: the first to go on does not find the others asleep. */
static void test_nobody_sleeps_while_all_stand_still(void **state)
{
    (void)state;
    begin(8, 1);
    uint64_t a = enter(0, "a"), b = enter(0, "b"), use = 0;
    worker_core_mark(bed.core, bed.now_ns, b, 1, 0, 0);
    ask(a, 0, 2, 1000);
    finish(COST_NS);
    worker_core_mark(bed.core, bed.now_ns, a, 1, 0, 24);
    bed.now_ns += 60000 * BED_MS;
    worker_core_mark(bed.core, bed.now_ns, a, 1, 0, 32);
    worker_core_block(bed.core, bed.streams[0].hash, 0, 2, &use);
    assert_int_equal(use, 16);
    for (uint64_t i = 0; i < 5; i++) {
        bed.now_ns += 1000 * BED_MS;
        worker_core_mark(bed.core, bed.now_ns, a, 1, 0, 40 + 8 * i);
    }
    worker_core_block(bed.core, bed.streams[0].hash, 0, 2, &use);
    assert_true(use == UINT64_MAX);
    worker_core_mark(bed.core, bed.now_ns, b, 1, 0, 8);
    worker_core_block(bed.core, bed.streams[0].hash, 0, 2, &use);
    assert_int_equal(use, 8);
    bed_stop(&bed);
}

/* All jobs of stream 0 stopped with blocks staged that they need next: for a while nobody knows, then those go before what
 * a stream that runs has staged for later. */
static void test_a_stream_that_stands_still_gives_way(void **state)
{
    (void)state;
    static const int64_t still_ms[] = {0, WORKER_STILL_MS - 1, WORKER_STILL_MS, 10 * WORKER_STILL_MS};
    for (size_t i = 0; i < sizeof still_ms / sizeof *still_ms; i++) {
        begin(4, 1);
        uint64_t a = enter(0, "a"), c = enter(1, "c");
        bool gives_way = still_ms[i] >= WORKER_STILL_MS;
        int kept = 0;
        for (uint64_t block = 0; block < 2; block++) {
            struct worker_get get = bed_get_of(&bed, 0, 0, block);
            get.mark_position = 0;
            bed_send(&bed, a, get);
            finish(COST_NS);
        }
        bed.now_ns += still_ms[i] * BED_MS - 2 * COST_NS;
        for (uint64_t block = 0; block < 4; block++) {
            struct worker_get get = bed_get_of(&bed, 1, 0, block);
            get.mark_position = 0;
            bed_send(&bed, c, get);
            finish(0);
        }
        for (uint64_t block = 0; block < 4; block++)
            kept += worker_core_block(bed.core, bed.streams[1].hash, 0, block, NULL) == WORKER_READY;
        assert_int_equal(kept, gives_way ? 4 : 3);
        ask(a, 0, 1, 1000); /* it goes on, and pays for what it did not come for */
        finish(COST_NS);
        assert_int_equal(bed.makes_of[gives_way ? WORKER_CAUSE_LATE : WORKER_CAUSE_PRESSURE], 1);
        bed_stop(&bed);
    }
}

/* ---- load ---- */

static struct worker_counts counts_now(void)
{
    struct worker_counts counts;
    worker_core_counts(bed.core, bed.now_ns, &counts);
    return counts;
}

static void test_load(void **state)
{
    (void)state;
    begin(64, 2);
    struct reader reader = {enter(0, "a"), 0, 0, 1000, COST_NS, 0, 0};
    assert_true(counts_now().queue_ms == 0 && counts_now().making_share == 0);
    for (; reader.made < 2000; reader.made++) {
        keep_asking(&reader, 10); /* 2 in the making, 8 wait: 8 times the time between two ends */
        finish(COST_NS);
    }
    assert_true(counts_now().queue_ms > 60 && counts_now().queue_ms < 70);
    assert_true(counts_now().making_share > 0.9 && counts_now().making_share <= 1);
    bed.now_ns += 20000 * BED_MS; /* what is in the making hangs */
    assert_true(counts_now().queue_ms >= 20000);
    while (bed.making_count > 0)
        finish(COST_NS);
    bed.now_ns += 60000 * BED_MS;
    assert_true(counts_now().making_share < 0.1);
    double then_ms = counts_now().queue_ms;
    bed.now_ns += 60000 * BED_MS;
    assert_true(counts_now().queue_ms < then_ms / 1.5);
    bed_stop(&bed);
}

/* ---- many ---- */

static void test_a_thousand_shares(void **state)
{
    (void)state;
    enum { JOBS = 1000 };
    char job[16];
    begin(JOBS + 2, 1);
    bed_plan(&bed, 0, 1, 2048); /* slot 0 alone is ours */
    for (uint64_t i = 0; i < JOBS; i++) {
        snprintf(job, sizeof job, "job%u", (unsigned)i);
        struct worker_get get = bed_get_of(&bed, 0, 0, i + 500);
        get.slack_ms = (uint32_t)(i * 7919 % 5000);
        get.insist = get.hedge = true;
        bed_send(&bed, enter(0, job), get);
    }
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    while (bed.making_count > 0)
        finish(COST_NS);
    clock_gettime(CLOCK_MONOTONIC, &to);
    assert_in_range(bed.makes_of[WORKER_CAUSE_HEDGE], JOBS - 2, JOBS);
    double total_ns = (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
    print_message("1,000 shares to none: %.1f us a block, of 500 shares on average\n",
                  total_ns / JOBS / 1000);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_follows_weight),
        cmocka_unit_test(test_urgency_is_bounded),
        cmocka_unit_test(test_who_starves_comes_first),
        cmocka_unit_test(test_idle_time_is_no_credit),
        cmocka_unit_test(test_a_rest_ends_debts),
        cmocka_unit_test(test_no_pair_is_ever_far_apart),
        cmocka_unit_test(test_who_pays),
        cmocka_unit_test(test_a_late_job_competes_by_its_own_weight),
        cmocka_unit_test(test_the_lesser_debtor_pays),
        cmocka_unit_test(test_a_paused_job_does_not_hold_staging),
        cmocka_unit_test(test_nobody_sleeps_while_all_stand_still),
        cmocka_unit_test(test_a_stream_that_stands_still_gives_way),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_a_thousand_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/worker/bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct bed bed;

/* One connection with job "a" on both streams; plan version 3, every second slot ours. */
static uint64_t begin(int blocks)
{
    bed_start(&bed, blocks, 4, 4);
    bed_add_stream(&bed, 0);
    bed_add_stream(&bed, 1);
    bed_plan(&bed, 0, 3, 2);
    bed_plan(&bed, 1, 3, 2);
    uint64_t connection = bed_connect(&bed);
    assert_int_equal(bed_open(&bed, connection, 0, "a", 0)->answer, WORKER_SEND_OPENED);
    assert_int_equal(bed_open(&bed, connection, 1, "a", 0)->answer, WORKER_SEND_OPENED);
    return connection;
}

/* ---- who makes a block ---- */

static const struct {
    bool ours, insist, death, hedge;
    uint32_t plan; /* the request's; ours is 3 */
    bool drain;
    enum worker_action_kind answer; /* WORKER_MAKE: it is made */
    enum worker_cause cause;
} asked[] = {
    {true, false, false, false, 3, false, WORKER_MAKE, WORKER_CAUSE_FIRST},
    {true, true, false, false, 3, false, WORKER_MAKE, WORKER_CAUSE_FIRST},
    {true, true, true, false, 3, false, WORKER_MAKE, WORKER_CAUSE_FIRST},
    {false, false, false, false, 3, false, WORKER_SEND_MOVED, 0},
    {false, false, false, false, 2, false, WORKER_SEND_MOVED, 0},
    {false, false, false, false, 4, false, WORKER_MAKE, WORKER_CAUSE_FIRST},
    {false, true, false, false, 3, false, WORKER_MAKE, WORKER_CAUSE_PLAN},
    {false, true, true, false, 3, false, WORKER_MAKE, WORKER_CAUSE_DEATH},
    {true, true, false, true, 3, false, WORKER_MAKE, WORKER_CAUSE_FIRST},
    {false, true, false, true, 3, false, WORKER_MAKE, WORKER_CAUSE_HEDGE},
    {false, false, false, true, 3, false, WORKER_SEND_MOVED, 0},
    {true, false, false, false, 3, true, WORKER_SEND_RETRY, 0},
    {true, true, false, false, 3, true, WORKER_SEND_RETRY, 0},
    {false, false, false, false, 3, true, WORKER_SEND_RETRY, 0},
};

static void test_who_makes_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        uint64_t connection = begin(8);
        struct worker_get get = bed_get_of(&bed, 0, 1, bed_block(&bed, 0, 1, 0, asked[i].ours, 2));
        get.insist = asked[i].insist;
        get.death = asked[i].death;
        get.hedge = asked[i].hedge;
        get.plan = asked[i].plan;
        if (asked[i].drain)
            worker_core_drain(bed.core, bed.now_ns);
        struct bed_request *request = bed_send(&bed, connection, get);
        if (asked[i].answer == WORKER_MAKE) {
            assert_int_equal(bed.makes, 1);
            assert_int_equal(bed.makes_of[asked[i].cause], 1);
            assert_int_equal(request->state, BED_OPEN);
            bed_make_all(&bed);
            assert_int_equal(request->answer, WORKER_SEND_DATA);
        } else {
            assert_int_equal(bed.makes, 0);
            assert_int_equal(request->answer, asked[i].answer);
        }
        if (asked[i].answer == WORKER_SEND_MOVED) {
            assert_int_equal(request->action.home, BED_OTHER);
            assert_int_equal(request->action.plan, 3);
        }
        bed_stop(&bed);
    }
}

/* Storage that hangs: those who wait are sent away, the block goes on, and is served when it is there at last. */
static void test_what_hangs_is_excused(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    uint64_t ours = bed_block(&bed, 0, 0, 0, true, 2);
    struct bed_request *first = bed_get(&bed, connection, 0, 0, ours);
    for (int64_t end_ns = bed.now_ns + (WORKER_LATE_MS - 300) * BED_MS; bed.now_ns < end_ns;) {
        bed.now_ns += WORKER_TICK_MS * BED_MS;
        worker_core_tick(bed.core, bed.now_ns);
        bed_take(&bed);
    }
    assert_int_equal(first->state, BED_OPEN);
    bed.now_ns += 2 * WORKER_TICK_MS * BED_MS;
    worker_core_tick(bed.core, bed.now_ns);
    bed_take(&bed);
    assert_int_equal(first->answer, WORKER_SEND_RETRY);
    assert_int_equal(first->action.code, BASE_UNAVAILABLE);
    assert_non_null(strstr(first->text, "in the making for 20 s"));
    struct bed_request *second = bed_get(&bed, connection, 0, 0, ours);
    assert_int_equal(second->state, BED_OPEN);
    bed_make_all(&bed);
    assert_int_equal(second->answer, WORKER_SEND_DATA);
    assert_int_equal(bed.makes, 1);
    bed_stop(&bed);
}

static void test_nonsense_is_borne_so_often(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    struct worker_get get;
    for (int i = 0; i < WORKER_REFUSALS_MAX; i++) {
        get = bed_get_of(&bed, 0, 0, 1);
        get.handle = 99;
        assert_int_equal(bed_send(&bed, connection, get)->answer, WORKER_SEND_FAIL);
    }
    assert_int_equal(bed.drops, 0);
    get = bed_get_of(&bed, 0, 0, 1);
    get.handle = 99;
    bed_send(&bed, connection, get);
    assert_int_equal(bed.drops, 1);
    bed_stop(&bed);
}

static void test_without_a_plan_it_is_made(void **state)
{
    (void)state;
    bed_start(&bed, 8, 4, 4);
    bed_add_stream(&bed, 0);
    uint64_t connection = bed_connect(&bed);
    bed_open(&bed, connection, 0, "a", 0);
    bed_get(&bed, connection, 0, 0, 1);
    assert_int_equal(bed.makes, 1);
    bed_stop(&bed);
}

static void test_an_old_plan_is_ignored(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 2, 1); /* all ours, but older */
    uint64_t other = bed_block(&bed, 0, 0, 0, false, 2);
    assert_int_equal(bed_get(&bed, connection, 0, 0, other)->answer, WORKER_SEND_MOVED);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, other);
    assert_int_equal(bed.makes, 1);
    bed_stop(&bed);
}

/* Staged or in the making, it is served even where we are not the home, and while draining. */
static void test_staged_is_served_whatever_the_plan(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    uint64_t ours = bed_block(&bed, 0, 0, 0, true, 2);
    bed_get(&bed, connection, 0, 0, ours);
    bed_plan(&bed, 0, 4, 1024);
    struct bed_request *making = bed_get(&bed, connection, 0, 0, ours);
    assert_int_equal(making->state, BED_OPEN);
    worker_core_drain(bed.core, bed.now_ns);
    struct bed_request *draining = bed_get(&bed, connection, 0, 0, ours);
    assert_int_equal(draining->state, BED_OPEN);
    bed_make_all(&bed);
    assert_int_equal(making->answer, WORKER_SEND_DATA);
    assert_int_equal(draining->answer, WORKER_SEND_DATA);
    assert_int_equal(bed_get(&bed, connection, 0, 0, ours)->answer, WORKER_SEND_DATA);
    assert_int_equal(bed.makes, 1);
    bed_send_all(&bed);
    assert_true(worker_core_idle(bed.core));
    bed_stop(&bed);
}

static void test_drain_refuses_what_is_queued(void **state)
{
    (void)state;
    uint64_t connection = begin(1);
    bed_plan(&bed, 0, 4, 1);
    struct bed_request *first = bed_get(&bed, connection, 0, 0, 0);
    struct bed_request *second = bed_get(&bed, connection, 0, 0, 1); /* no memory left */
    assert_int_equal(second->waits, 1);
    worker_core_drain(bed.core, bed.now_ns);
    bed_take(&bed);
    assert_int_equal(second->answer, WORKER_SEND_RETRY);
    assert_int_equal(second->action.code, BASE_UNAVAILABLE);
    assert_int_equal(first->state, BED_OPEN);
    bed_stop(&bed);
}

/* ---- what is wrong ---- */

static const struct {
    uint32_t handle;
    uint64_t block;
    uint16_t from, to;
    uint32_t epoch;
} wrong[] = {
    {5, 0, 0, 8, 0}, {1, 13, 0, 8, 0}, {1, UINT64_MAX, 0, 8, 0}, {1, 0, 0, 9, 0},
    {1, 0, 8, 8, 0}, {1, 0, 5, 4, 0},  {1, 12, 0, 5, 0},         {1, 12, 4, 5, 0},
};

static void test_what_is_out_of_range_fails(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct worker_get get = bed_get_of(&bed, 0, wrong[i].epoch, wrong[i].block);
        get.handle = wrong[i].handle;
        get.from = wrong[i].from;
        get.to = wrong[i].to;
        struct bed_request *request = bed_send(&bed, connection, get);
        assert_int_equal(request->answer, WORKER_SEND_FAIL);
        assert_int_equal(request->action.code, BASE_INVALID);
    }
    struct worker_counts counts;
    worker_core_counts(bed.core, bed.now_ns, &counts);
    assert_int_equal(counts.invalid, sizeof wrong / sizeof *wrong);
    assert_int_equal(bed.drops, 0);
    assert_int_equal(bed.makes, 0);
    bed_stop(&bed);
}

static void test_opens_that_are_refused(void **state)
{
    (void)state;
    bed_start(&bed, 8, 4, 4);
    uint64_t connection = bed_connect(&bed);
    struct bed_request *unknown = bed_open(&bed, connection, 0, "a", 0);
    assert_int_equal(unknown->answer, WORKER_SEND_RETRY);
    assert_int_equal(unknown->action.time_ms, WORKER_UNKNOWN_STREAM_MS);
    assert_int_equal(bed.syncs, 1);
    bed_add_stream(&bed, 0);
    bed.streams[0].fingerprint[3] ^= 1;
    struct bed_request *other_bits = bed_open(&bed, connection, 0, "a", 0);
    assert_int_equal(other_bits->answer, WORKER_SEND_FAIL);
    assert_int_equal(other_bits->action.code, BASE_CONFLICT);
    bed.streams[0].fingerprint[3] ^= 1;
    assert_int_equal(bed_open(&bed, connection, 0, "a", 0)->answer, WORKER_SEND_OPENED);
    bed_open(&bed, connection, 0, "a", 0); /* the same handle again */
    assert_int_equal(bed.drops, 1);
    assert_true(bed.dropped[0] == connection);
    bed_stop(&bed);
}

static void test_too_many_in_flight_drop_the_connection(void **state)
{
    (void)state;
    uint64_t greedy = begin(8), other = bed_connect(&bed);
    bed_open(&bed, other, 0, "b", 0);
    bed_plan(&bed, 0, 4, 1);
    struct bed_request *patient = bed_get(&bed, other, 0, 0, 0);
    for (uint64_t i = 0; i < 8; i++)
        bed_get(&bed, greedy, 0, 0, i);
    assert_int_equal(bed.drops, 0);
    bed_get(&bed, greedy, 0, 0, 9);
    assert_int_equal(bed.drops, 1);
    assert_true(bed.dropped[0] == greedy);
    worker_core_closed(bed.core, bed.now_ns, greedy);
    bed_make_all(&bed);
    assert_int_equal(patient->answer, WORKER_SEND_DATA);
    bed_stop(&bed);
}

/* A reader that stands still for a moment, and whose client asks elsewhere meanwhile, was dropped as greedy. */
static void test_cancelled_sends_are_not_in_flight(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, 0);
    bed_make_all(&bed); /* staged: all that ask for it are sent at once */
    for (int round = 0; round < WORKER_CANCELLED_MAX; round++)
        for (int i = 0; i < 4; i++) {
            struct bed_request *sent = bed_get(&bed, connection, 0, 0, 0);
            assert_int_equal(sent->answer, WORKER_SEND_DATA);
            for (int twice = 0; twice < 2; twice++)
                worker_core_cancel(bed.core, bed.now_ns, connection, (uint64_t)(sent - bed.requests));
        }
    assert_int_equal(bed.drops, 0);
    bed_get(&bed, connection, 0, 0, 0); /* but not for ever */
    assert_int_equal(bed.drops, 1);
    worker_core_closed(bed.core, bed.now_ns, connection);
    bed_send_all(&bed);
    assert_true(worker_core_idle(bed.core));
    bed_stop(&bed);
}

static void test_stale_handles_are_ignored(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    worker_core_closed(bed.core, bed.now_ns, connection);
    worker_core_closed(bed.core, bed.now_ns, connection);
    worker_core_cancel(bed.core, bed.now_ns, connection, 1);
    worker_core_mark(bed.core, bed.now_ns, connection, 1, 0, 0);
    worker_core_made(bed.core, bed.now_ns, UINT64_C(1) << 32 | 5, &(struct worker_made){0});
    worker_core_sent(bed.core, bed.now_ns, 0, true);
    struct worker_get get = bed_get_of(&bed, 0, 0, 0);
    worker_core_get(bed.core, bed.now_ns, connection, &get);
    bed_take(&bed);
    assert_int_equal(bed.makes, 0);
    bed_stop(&bed);
}

/* ---- waiting ---- */

static void test_single_flight_serves_everyone(void **state)
{
    (void)state;
    uint64_t first = begin(8), second = bed_connect(&bed);
    bed_open(&bed, second, 0, "b", 0);
    bed_plan(&bed, 0, 4, 1);
    struct worker_get part = bed_get_of(&bed, 0, 0, 3);
    part.from = 2;
    part.to = 5;
    struct bed_request *a = bed_send(&bed, first, part);
    part.slack_ms = 10;
    struct bed_request *b = bed_send(&bed, second, part);
    assert_int_equal(bed.makes, 1);
    assert_int_equal(bed.hastened, 1);
    bed_make_all(&bed);
    assert_int_equal(a->answer, WORKER_SEND_DATA);
    assert_int_equal(b->answer, WORKER_SEND_DATA);
    assert_int_equal(b->action.from, 2);
    assert_int_equal(b->action.to, 5);
    assert_true(a->action.block == b->action.block);
    bed_stop(&bed);
}

static void test_waiting_is_told_every_tick(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 4, 1);
    assert_true(worker_core_wake_ns(bed.core) == INT64_MAX);
    struct bed_request *request = bed_get(&bed, connection, 0, 0, 3);
    for (int i = 1; i <= 4; i++) {
        bed.now_ns += WORKER_TICK_MS * BED_MS;
        worker_core_tick(bed.core, bed.now_ns);
        bed_take(&bed);
        assert_int_equal(request->waits, i);
    }
    assert_int_equal(bed.pings, 0);
    bed_make_all(&bed);
    bed.now_ns += WORKER_TICK_MS * BED_MS;
    worker_core_tick(bed.core, bed.now_ns);
    bed_take(&bed);
    assert_int_equal(bed.pings, 1); /* it is being sent */
    bed_send_all(&bed);
    bed.now_ns += WORKER_TICK_MS * BED_MS;
    worker_core_tick(bed.core, bed.now_ns);
    bed_take(&bed);
    assert_int_equal(bed.pings, 1);
    assert_true(worker_core_wake_ns(bed.core) == INT64_MAX);
    bed_stop(&bed);
}

static void test_least_slack_is_made_first(void **state)
{
    (void)state;
    bed_start(&bed, 8, 1, 8);
    bed_add_stream(&bed, 0);
    uint64_t connection = bed_connect(&bed);
    bed_open(&bed, connection, 0, "a", 0);
    bed_get(&bed, connection, 0, 0, 0);
    static const uint32_t slack_ms[] = {900, 300, 700, 100};
    for (uint64_t i = 0; i < 4; i++) {
        struct worker_get get = bed_get_of(&bed, 0, 0, i + 1);
        get.slack_ms = slack_ms[i];
        bed_send(&bed, connection, get);
    }
    struct worker_get sooner = bed_get_of(&bed, 0, 0, 3);
    sooner.slack_ms = 50;
    bed_send(&bed, connection, sooner);
    static const uint64_t order[] = {0, 3, 4, 2, 1};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(bed.making_count, 1);
        assert_int_equal(bed.making[0].number, order[i]);
        bed_made(&bed, 0, BASE_OK);
    }
    bed_stop(&bed);
}

static void test_cancelled_and_closed_get_no_answer(void **state)
{
    (void)state;
    uint64_t connection = begin(1), other = bed_connect(&bed);
    bed_open(&bed, other, 0, "b", 0);
    bed_plan(&bed, 0, 4, 1);
    struct bed_request *making = bed_get(&bed, connection, 0, 0, 0);
    struct bed_request *queued = bed_get(&bed, connection, 0, 0, 1);
    struct bed_request *closed = bed_get(&bed, other, 0, 0, 2);
    making->state = queued->state = BED_CANCELLED;
    worker_core_cancel(bed.core, bed.now_ns, connection, (uint64_t)(making - bed.requests));
    worker_core_cancel(bed.core, bed.now_ns, connection, (uint64_t)(queued - bed.requests));
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 1, NULL), WORKER_ABSENT);
    worker_core_closed(bed.core, bed.now_ns, other);
    closed->state = BED_CANCELLED;
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 2, NULL), WORKER_ABSENT);
    bed_make_all(&bed);
    assert_int_equal(bed.send_count, 0);
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 0, NULL), WORKER_READY);
    bed_stop(&bed);
}

/* ---- outcomes ---- */

static void test_unavailable_rests_and_is_tried_again(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 4, 1);
    uint32_t expected_ms = WORKER_REST_FIRST_MS;
    for (int i = 0; i < 8; i++) {
        struct bed_request *request = bed_get(&bed, connection, 0, 0, 3);
        assert_int_equal(bed.makes, i + 1);
        bed_made(&bed, 0, BASE_UNAVAILABLE);
        assert_int_equal(request->answer, WORKER_SEND_RETRY);
        assert_string_equal(request->text, "file a.jpg is gone");
        assert_int_equal(request->action.time_ms, expected_ms);
        struct bed_request *early = bed_get(&bed, connection, 0, 0, 3);
        assert_int_equal(early->answer, WORKER_SEND_RETRY);
        assert_string_equal(early->text, "file a.jpg is gone");
        bed.now_ns += expected_ms * BED_MS;
        expected_ms = expected_ms * 2 < WORKER_REST_MOST_MS ? expected_ms * 2 : WORKER_REST_MOST_MS;
    }
    struct bed_request *request = bed_get(&bed, connection, 0, 0, 3);
    bed_make_all(&bed);
    assert_int_equal(request->answer, WORKER_SEND_DATA);
    bed_stop(&bed);
}

static void test_rest_ends_when_nobody_asks(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, 3);
    bed_made(&bed, 0, BASE_UNAVAILABLE);
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 3, NULL), WORKER_RESTING);
    bed.now_ns += 40000 * BED_MS;
    worker_core_tick(bed.core, bed.now_ns);
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 3, NULL), WORKER_ABSENT);
    bed_stop(&bed);
}

static void test_failed_fails(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 4, 1);
    struct bed_request *request = bed_get(&bed, connection, 0, 0, 3);
    bed_made(&bed, 0, BASE_INTERNAL);
    assert_int_equal(request->answer, WORKER_SEND_FAIL);
    assert_int_equal(request->action.code, BASE_INTERNAL);
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 3, NULL), WORKER_ABSENT);
    bed_stop(&bed);
}

/* ---- staging ---- */

static void test_what_is_being_sent_stays(void **state)
{
    (void)state;
    uint64_t connection = begin(1);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, 0);
    bed_make_all(&bed);
    struct bed_request *next = bed_get(&bed, connection, 0, 0, 1);
    assert_int_equal(bed.makes, 1);
    assert_int_equal(next->waits, 1);
    worker_core_closed(bed.core, bed.now_ns, bed_connect(&bed)); /* somebody else's coming and going */
    assert_int_equal(bed.makes, 1);
    bed_send_all(&bed);
    assert_int_equal(bed.makes, 2);
    assert_int_equal(worker_core_block(bed.core, bed.streams[0].hash, 0, 0, NULL), WORKER_ABSENT);
    bed_stop(&bed);
}

static void test_a_closed_reader_pins_until_sent_says_so(void **state)
{
    (void)state;
    uint64_t connection = begin(1), other = bed_connect(&bed);
    bed_open(&bed, other, 0, "b", 0);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, 0);
    bed_make_all(&bed);
    worker_core_closed(bed.core, bed.now_ns, connection);
    bed_get(&bed, other, 0, 0, 1);
    assert_int_equal(bed.makes, 1);
    bed_sent(&bed, 0, false);
    assert_int_equal(bed.makes, 2);
    bed_stop(&bed);
}

static void test_causes_of_making_again(void **state)
{
    (void)state;
    uint64_t connection = begin(2);
    bed_plan(&bed, 0, 4, 1);
    static const struct {
        uint64_t block;
        uint64_t mark;
        enum worker_cause cause;
    } steps[] = {
        {0, 0, WORKER_CAUSE_FIRST},    {1, 0, WORKER_CAUSE_FIRST},
        {2, 0, WORKER_CAUSE_FIRST}, /* evicts 1: the farthest, and still to be used */
        {1, 0, WORKER_CAUSE_PRESSURE}, {3, 32, WORKER_CAUSE_FIRST}, /* evicts 0: passed */
        {0, 32, WORKER_CAUSE_LATE},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct worker_get get = bed_get_of(&bed, 0, 0, steps[i].block);
        get.mark_position = steps[i].mark;
        int before = bed.makes_of[steps[i].cause];
        bed_send(&bed, connection, get);
        assert_int_equal(bed.makes_of[steps[i].cause], before + 1);
        bed_make_all(&bed);
        bed_send_all(&bed);
    }
    bed_stop(&bed);
}

/* The claim of a job that left does not hold its blocks. */
static void test_claims_fade_with_the_membership(void **state)
{
    (void)state;
    uint64_t a = begin(3), b = bed_connect(&bed);
    bed_open(&bed, b, 0, "b", 0);
    bed_plan(&bed, 0, 4, 1);
    uint64_t use = 0;
    worker_core_mark(bed.core, bed.now_ns, b, 1, 0, 0); /* b is at the start */
    bed_get(&bed, a, 0, 0, 4);
    bed_make_all(&bed);
    bed_send_all(&bed);
    worker_core_mark(bed.core, bed.now_ns, a, 1, 0, 80);
    worker_core_block(bed.core, bed.streams[0].hash, 0, 4, &use);
    assert_int_equal(use, 32);
    static const struct worker_live_job only_a[] = {{"a", 1}};
    worker_core_stream_jobs(bed.core, bed.now_ns, bed.streams[0].hash, only_a, 1);
    worker_core_block(bed.core, bed.streams[0].hash, 0, 4, &use);
    assert_true(use == UINT64_MAX);
    worker_core_mark(bed.core, bed.now_ns, b, 1, 0, 8); /* heard of again */
    worker_core_block(bed.core, bed.streams[0].hash, 0, 4, &use);
    assert_int_equal(use, 24);
    bed_stop(&bed);
}

/* Where the epoch is not used, a passed block comes round again. */
static void test_next_use_wraps_without_epochs(void **state)
{
    (void)state;
    uint64_t connection = begin(3), use = 0;
    bed_plan(&bed, 1, 4, 1);
    bed_get(&bed, connection, 1, 0, 2);
    bed_make_all(&bed);
    worker_core_mark(bed.core, bed.now_ns, connection, 2, 5, 90);
    worker_core_block(bed.core, bed.streams[1].hash, 9, 2, &use);
    assert_int_equal(use, 16 + 100 - 90);
    bed_stop(&bed);
}

/* ---- streams that go ---- */

static void test_a_removed_stream_serves_what_it_has_and_goes(void **state)
{
    (void)state;
    uint64_t connection = begin(2);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, 0);
    bed_make_all(&bed);
    bed_send_all(&bed);
    worker_core_stream_remove(bed.core, bed.now_ns, bed.streams[0].hash);
    bed_take(&bed);
    assert_int_equal(bed_get(&bed, connection, 0, 0, 0)->answer, WORKER_SEND_DATA);
    bed_send_all(&bed);
    assert_int_equal(bed_get(&bed, connection, 0, 0, 1)->answer, WORKER_SEND_RETRY);
    assert_int_equal(bed.gone, 0);
    worker_core_closed(bed.core, bed.now_ns, connection);
    uint64_t other = bed_connect(&bed);
    bed_open(&bed, other, 1, "b", 0);
    bed_plan(&bed, 1, 4, 1);
    for (uint64_t i = 0; i < 2; i++) { /* its block's memory is wanted */
        bed_get(&bed, other, 1, 0, i);
        bed_make_all(&bed);
        bed_send_all(&bed);
    }
    assert_int_equal(bed.gone, 1);
    bed_add_stream(&bed, 0);
    assert_int_equal(bed_open(&bed, other, 0, "b", 0)->answer, WORKER_SEND_OPENED);
    bed_stop(&bed);
}

static void note_front(void *context, const struct worker_front *front)
{
    struct worker_front *fronts = context;
    fronts[front->stream[0] - 0xa0] = *front;
}

static void test_fronts(void **state)
{
    (void)state;
    uint64_t connection = begin(8);
    bed_plan(&bed, 0, 4, 1024);
    bed_get(&bed, connection, 0, 1, 5);
    bed_get(&bed, connection, 0, 2, 1);
    bed_get(&bed, connection, 0, 1, 9);
    struct worker_get get = bed_get_of(&bed, 1, 0, 1); /* passed by the mark: the next round */
    get.mark_epoch = 6;
    get.mark_position = 90;
    bed_send(&bed, connection, get);
    struct worker_front fronts[2] = {{0}};
    worker_core_fronts(bed.core, note_front, fronts);
    assert_int_equal(fronts[0].epoch, 2);
    assert_int_equal(fronts[0].position, 8);
    assert_int_equal(fronts[1].epoch, 7);
    assert_int_equal(fronts[1].position, 8);
    bed_stop(&bed);
}

static void test_used_bytes_give_the_rest_back(void **state)
{
    (void)state;
    uint64_t connection = begin(1);
    bed_plan(&bed, 0, 4, 1);
    bed_get(&bed, connection, 0, 0, 0);
    struct worker_made made = {.used_bytes = 100};
    worker_core_made(bed.core, bed.now_ns, bed.making[0].block, &made);
    bed_take(&bed);
    struct worker_counts counts;
    worker_core_counts(bed.core, bed.now_ns, &counts);
    assert_int_equal(counts.staged_bytes, 4096);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_makes_it),
        cmocka_unit_test(test_what_hangs_is_excused),
        cmocka_unit_test(test_nonsense_is_borne_so_often),
        cmocka_unit_test(test_without_a_plan_it_is_made),
        cmocka_unit_test(test_an_old_plan_is_ignored),
        cmocka_unit_test(test_staged_is_served_whatever_the_plan),
        cmocka_unit_test(test_drain_refuses_what_is_queued),
        cmocka_unit_test(test_what_is_out_of_range_fails),
        cmocka_unit_test(test_opens_that_are_refused),
        cmocka_unit_test(test_too_many_in_flight_drop_the_connection),
        cmocka_unit_test(test_cancelled_sends_are_not_in_flight),
        cmocka_unit_test(test_stale_handles_are_ignored),
        cmocka_unit_test(test_single_flight_serves_everyone),
        cmocka_unit_test(test_waiting_is_told_every_tick),
        cmocka_unit_test(test_least_slack_is_made_first),
        cmocka_unit_test(test_cancelled_and_closed_get_no_answer),
        cmocka_unit_test(test_unavailable_rests_and_is_tried_again),
        cmocka_unit_test(test_rest_ends_when_nobody_asks),
        cmocka_unit_test(test_failed_fails),
        cmocka_unit_test(test_what_is_being_sent_stays),
        cmocka_unit_test(test_a_closed_reader_pins_until_sent_says_so),
        cmocka_unit_test(test_causes_of_making_again),
        cmocka_unit_test(test_claims_fade_with_the_membership),
        cmocka_unit_test(test_next_use_wraps_without_epochs),
        cmocka_unit_test(test_a_removed_stream_serves_what_it_has_and_goes),
        cmocka_unit_test(test_fronts),
        cmocka_unit_test(test_used_bytes_give_the_rest_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

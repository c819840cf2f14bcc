/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of two streams of one family: when they are made together, and that nothing else is changed by it. */
#include "tests/unit/worker/bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { LEARN = 2, AGAIN = 20 }; /* as bed_start says */

static struct bed bed;

/* Job "a" reads stream 0, job "b" stream 1; all blocks are ours. */
static uint64_t begin_with(int blocks, uint32_t making_max, uint64_t items, uint32_t again)
{
    bed_start_learning(&bed, blocks, making_max, 16, again);
    bed_relate(&bed);
    for (int s = 0; s < 2; s++) {
        bed.streams[s].items = items;
        bed_add_stream(&bed, s);
        bed_plan(&bed, s, 3, 1);
    }
    uint64_t connection = bed_connect(&bed);
    assert_int_equal(bed_open(&bed, connection, 0, "a", 0)->answer, WORKER_SEND_OPENED);
    assert_int_equal(bed_open(&bed, connection, 1, "b", 0)->answer, WORKER_SEND_OPENED);
    return connection;
}

static uint64_t begin(int blocks, uint32_t making_max)
{
    return begin_with(blocks, making_max, 100, AGAIN);
}

/* All that is in the making, but nothing that begins by that. */
static void make_these(void)
{
    for (int left = bed.making_count; left > 0; left--)
        bed_made(&bed, left - 1, BASE_OK);
}

static struct bed_request *get(uint64_t connection, int stream, uint32_t epoch, uint64_t block)
{
    return bed_get(&bed, connection, stream, epoch, block);
}

static enum worker_block_state state_of(int stream, uint32_t epoch, uint64_t block)
{
    return worker_core_block(bed.core, bed.streams[stream].hash, epoch, block, NULL);
}

/* Low-water of a stream's job. */
static void mark(uint64_t connection, int stream, uint32_t epoch, uint64_t position)
{
    worker_core_mark(bed.core, bed.now_ns, connection, (uint32_t)stream + 1, epoch, position);
    bed_take(&bed);
}

/* Both streams' first blocks of epoch 0, alone; then both jobs stand at the start of epoch 1. */
static void learn(uint64_t connection)
{
    for (uint64_t block = 0; block < LEARN; block++)
        for (int s = 0; s < 2; s++) {
            get(connection, s, 0, block);
            bed_make_all(&bed);
            bed_send_all(&bed);
        }
    assert_int_equal(bed.makes, 2 * LEARN);
    assert_int_equal(bed.together, 0);
    for (int s = 0; s < 2; s++)
        mark(connection, s, 1, 0);
}

static void test_learnt_alone_then_made_together(void **state)
{
    (void)state;
    uint64_t connection = begin(16, 4);
    learn(connection);
    struct bed_request *first = get(connection, 0, 1, 3);
    assert_int_equal(bed.making_count, 2);
    assert_int_equal(bed.together, 1);
    struct bed_request *joins = get(connection, 1, 1, 3); /* of what is in the making */
    assert_int_equal(bed.makes, 2 * LEARN + 2);
    bed_made(&bed, 1, BASE_OK); /* each is made for itself */
    assert_int_equal(joins->answer, WORKER_SEND_DATA);
    assert_int_equal(first->state, BED_OPEN);
    bed_make_all(&bed);
    assert_int_equal(first->answer, WORKER_SEND_DATA);
    get(connection, 1, 1, 4); /* the other one leads */
    assert_int_equal(bed.together, 2);
    bed_make_all(&bed);
    assert_int_equal(state_of(0, 1, 4), WORKER_READY);
    assert_int_equal(get(connection, 0, 1, 4)->answer, WORKER_SEND_DATA); /* asked after it is made */
    assert_int_equal(bed.makes, 2 * LEARN + 4);
    assert_int_equal(bed.makes_of[WORKER_CAUSE_FIRST], bed.makes);
    bed_stop(&bed);
}

/* Alone 2 x 8 ms: 15.2 ms is not worth it. After so many blocks apart it is learnt and tried again. */
static void test_left_off_where_it_does_not_pay(void **state)
{
    (void)state;
    uint64_t connection = begin(64, 1);
    learn(connection);
    bed.together_cpu_ns = 15300 * 1000;
    uint32_t tried = 0, apart = 0, again = 0;
    for (uint32_t i = 0; again == 0 && i < 400; i++) {
        uint32_t epoch = 1 + i / 12, before = (uint32_t)bed.together;
        for (int s = 0; s < 2; s++) {
            bed.now_ns += BED_MS;
            mark(connection, s, epoch, i % 12 * 8);
        }
        for (int s = 0; s < 2; s++) {
            get(connection, s, epoch, i % 12);
            bed_make_all(&bed);
            bed_send_all(&bed);
        }
        bool together = (uint32_t)bed.together > before;
        tried += together && apart == 0;
        again += together && apart > 0;
        apart += !together;
    }
    assert_int_equal(tried, LEARN);
    assert_int_equal(again, 1);
    assert_in_range(apart, AGAIN, AGAIN + LEARN);
    bed_stop(&bed);
}

/* One place in the making: what two wait for goes together when it is free, and takes one. */
static void test_queued_ones_go_together_and_take_one_place(void **state)
{
    (void)state;
    uint64_t connection = begin(16, 1);
    learn(connection);
    get(connection, 0, 1, 3);
    struct bed_request *a = get(connection, 0, 1, 4), *b = get(connection, 1, 1, 4);
    assert_int_equal(state_of(0, 1, 4), WORKER_QUEUED);
    assert_int_equal(state_of(1, 1, 4), WORKER_QUEUED);
    assert_int_equal(bed.making_count, 2);
    bed_made(&bed, 1, BASE_OK); /* the one beside: no place is free by that */
    assert_int_equal(bed.making_count, 1);
    bed_made(&bed, 0, BASE_OK);
    assert_int_equal(bed.making_count, 2);
    assert_int_equal(bed.together, 2);
    bed_make_all(&bed);
    assert_int_equal(a->answer, WORKER_SEND_DATA);
    assert_int_equal(b->answer, WORKER_SEND_DATA);
    bed_stop(&bed);
}

enum given { NOTHING, JOB_OVER, PASSED, ELSEWHERE, ASKED_HERE, READY_HERE, REMOVED };

static void arrange(uint64_t connection, enum given given)
{
    static const struct worker_live_job only_a[] = {{"a", 1}};
    struct worker_get insist = bed_get_of(&bed, 1, 1, 3);
    insist.insist = true;
    switch (given) {
    case NOTHING:
        break;
    case JOB_OVER:
        worker_core_stream_jobs(bed.core, bed.now_ns, bed.streams[1].hash, only_a, 1);
        break;
    case PASSED:
        mark(connection, 1, 1, 32);
        break;
    case ASKED_HERE: /* with all places in the making taken, so that it waits */
        bed_plan(&bed, 1, 4, 1024);
        for (uint64_t block = 6; block < 10; block++)
            get(connection, 0, 1, block);
        bed_send(&bed, connection, insist);
        break;
    case ELSEWHERE:
        bed_plan(&bed, 1, 4, 1024);
        break;
    case READY_HERE:
        worker_core_stream_remove(bed.core, bed.now_ns, bed.streams[0].hash);
        get(connection, 1, 1, 3);
        bed_make_all(&bed);
        bed_add_stream(&bed, 0);
        break;
    case REMOVED:
        worker_core_stream_remove(bed.core, bed.now_ns, bed.streams[1].hash);
    }
}

/* Does stream 1's block (1, 3) go with stream 0's? */
static void test_only_what_will_be_asked_here(void **state)
{
    (void)state;
    static const struct {
        enum given given;
        int together;
        enum worker_block_state after;
    } rows[] = {
        {NOTHING, 1, WORKER_READY},    {JOB_OVER, 0, WORKER_ABSENT},  {PASSED, 0, WORKER_ABSENT},
        {ELSEWHERE, 0, WORKER_ABSENT}, {ASKED_HERE, 1, WORKER_READY}, {READY_HERE, 0, WORKER_READY},
        {REMOVED, 0, WORKER_ABSENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t connection = begin(16, 4);
        learn(connection);
        arrange(connection, rows[i].given);
        assert_int_equal(bed.together, 0);
        get(connection, 0, 1, 3);
        bed_make_all(&bed);
        assert_int_equal(state_of(0, 1, 3), WORKER_READY);
        assert_int_equal(bed.together, rows[i].together);
        assert_int_equal(state_of(1, 1, 3), rows[i].after);
        bed_stop(&bed);
    }
}

/* Staging of four blocks, three of stream 0 in it, job "a" still before them all. What is used later than stream 1's block 3
 * makes room for it, what is used sooner does not. */
static void test_memory_is_taken_from_what_is_used_later_only(void **state)
{
    (void)state;
    static const uint64_t staged[2][3] = {{0, 1, 2}, {0, 9, 10}};
    for (int later = 0; later < 2; later++) {
        uint64_t connection = begin(4, 1);
        learn(connection);
        mark(connection, 1, 2, 0); /* nobody wants these of stream 1 */
        for (int i = 0; i < 4; i++) {
            struct worker_get asked = bed_get_of(&bed, 0, 1, i < 3 ? staged[later][i] : 3);
            asked.mark_position = 0;
            if (i == 3)
                mark(connection, 1, 1, 0);
            bed_send(&bed, connection, asked);
            assert_int_equal(bed.together, i == 3 && later);
            bed_make_all(&bed);
            bed_send_all(&bed);
        }
        assert_int_equal(state_of(0, 1, staged[later][0]), WORKER_READY);
        assert_int_equal(state_of(0, 1, staged[later][1]), WORKER_READY);
        assert_int_equal(state_of(0, 1, staged[later][2]), later ? WORKER_ABSENT : WORKER_READY);
        bed_stop(&bed);
    }
}

/* Evicted before it was used, it is made again when it is asked for, and said to be so. */
static void test_evicted_before_its_use_is_made_again(void **state)
{
    (void)state;
    uint64_t connection = begin(4, 1);
    learn(connection);
    get(connection, 0, 1, 6);
    bed_make_all(&bed);
    bed_send_all(&bed);
    assert_int_equal(state_of(1, 1, 6), WORKER_READY);
    for (uint64_t block = 0; block < 4; block++) {
        mark(connection, 0, 1, 0);
        get(connection, 1, 1, block);
        bed_make_all(&bed);
        bed_send_all(&bed);
    }
    assert_int_equal(state_of(1, 1, 6), WORKER_ABSENT);
    struct bed_request *request = get(connection, 1, 1, 6);
    bed_make_all(&bed);
    assert_int_equal(request->answer, WORKER_SEND_DATA);
    assert_int_equal(bed.makes_of[WORKER_CAUSE_PRESSURE], 1);
    bed_stop(&bed);
}

/* Whoever waited for it has gone: it is made all the same, and nobody is told. */
static void test_cancelled_in_the_making(void **state)
{
    (void)state;
    uint64_t connection = begin(16, 4);
    learn(connection);
    struct bed_request *a = get(connection, 0, 1, 3), *b = get(connection, 1, 1, 3);
    b->state = BED_CANCELLED;
    worker_core_cancel(bed.core, bed.now_ns, connection, (uint64_t)(b - bed.requests));
    bed_make_all(&bed);
    assert_int_equal(a->answer, WORKER_SEND_DATA);
    assert_int_equal(state_of(1, 1, 3), WORKER_READY);
    bed_stop(&bed);
}

static void test_a_stream_removed_in_the_middle(void **state)
{
    (void)state;
    for (int removed = 0; removed < 2; removed++) {
        uint64_t connection = begin(16, 4);
        learn(connection);
        struct bed_request *request = get(connection, !removed, 1, 3);
        assert_int_equal(bed.making_count, 2);
        worker_core_stream_remove(bed.core, bed.now_ns, bed.streams[removed].hash);
        bed_take(&bed);
        assert_int_equal(bed.gone, 0); /* its context is in use */
        bed_make_all(&bed);
        assert_int_equal(request->answer, WORKER_SEND_DATA);
        bed_send_all(&bed);
        get(connection, !removed, 1, 4); /* alone from now on */
        assert_int_equal(bed.making_count, 1);
        bed_make_all(&bed);
        bed_send_all(&bed);
        bed_add_stream(&bed, removed); /* and it comes back */
        get(connection, !removed, 1, 5);
        assert_int_equal(bed.making_count, 2);
        bed_make_all(&bed);
        bed_send_all(&bed);
        bed_stop(&bed);
    }
}

/* An item that cannot be had: each rests, and is made alone next time, since only one of them may need that item. */
static void test_what_failed_is_made_alone(void **state)
{
    (void)state;
    uint64_t connection = begin(16, 4);
    learn(connection);
    struct bed_request *a = get(connection, 0, 1, 3), *b = get(connection, 1, 1, 3);
    bed_made(&bed, 0, BASE_UNAVAILABLE);
    bed_made(&bed, 0, BASE_UNAVAILABLE);
    assert_int_equal(a->answer, WORKER_SEND_RETRY);
    assert_int_equal(b->answer, WORKER_SEND_RETRY);
    bed.now_ns += WORKER_REST_FIRST_MS * BED_MS;
    int before = bed.together;
    a = get(connection, 0, 1, 3);
    assert_int_equal(bed.making_count, 1);
    bed_make_all(&bed);
    assert_int_equal(a->answer, WORKER_SEND_DATA);
    b = get(connection, 1, 1, 3);
    bed_made(&bed, 0, BASE_INTERNAL);
    assert_int_equal(b->answer, WORKER_SEND_FAIL);
    assert_int_equal(bed.together, before);
    bed_stop(&bed);
}

static void test_nothing_goes_along_while_draining(void **state)
{
    (void)state;
    uint64_t connection = begin(16, 4);
    learn(connection);
    struct bed_request *a = get(connection, 0, 1, 3);
    worker_core_drain(bed.core, bed.now_ns);
    bed_make_all(&bed);
    assert_int_equal(a->answer, WORKER_SEND_DATA);
    bed_send_all(&bed);
    assert_true(worker_core_idle(bed.core));
    assert_int_equal(get(connection, 1, 1, 3)->answer, WORKER_SEND_DATA);
    assert_int_equal(get(connection, 1, 1, 4)->answer, WORKER_SEND_RETRY);
    bed_stop(&bed);
}

/* Job "b" is an epoch behind "a", and there is memory for all that goes along. What is made for later is no reason to let it wait now. */
static void test_what_goes_along_starves_nobody(void **state)
{
    (void)state;
    enum { AHEAD = 8, ENDS = 300 };
    uint64_t connection = begin_with(2048, 1, 8 * 1024, 1000), asked[2] = {0}, served[2] = {0};
    learn(connection);
    for (int n = 0; n < ENDS; n++) {
        for (int s = 0; s < 2; s++)
            for (; asked[s] < served[s] + AHEAD; asked[s]++)
                get(connection, s, s == 0 ? 2 : 1, asked[s]);
        bool of_b = bed.making[0].stream == &bed.streams[1];
        bed.now_ns += 8 * BED_MS;
        make_these();
        bed_send_all(&bed);
        served[of_b]++;
    }
    assert_true(bed.together > 0);
    assert_in_range(served[1], ENDS / 3 - 20, ENDS / 2);
    bed_stop(&bed);
}

/* "b" stopped, and its stream's clock with it: nothing is made for it until it moves again. */
static void test_nothing_goes_along_for_who_stands_still(void **state)
{
    (void)state;
    static const struct {
        int64_t still_ms;
        int together;
    } rows[] = {{WORKER_STILL_MS - 1, 1}, {WORKER_STILL_MS, 0}, {3600000, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t connection = begin(16, 4);
        learn(connection);
        bed.now_ns += rows[i].still_ms * BED_MS;
        get(connection, 0, 1, 3);
        bed_make_all(&bed);
        bed_send_all(&bed);
        assert_int_equal(bed.together, rows[i].together);
        mark(connection, 1, 1, 8);
        get(connection, 0, 1, 4);
        bed_make_all(&bed);
        assert_int_equal(bed.together, rows[i].together + 1);
        bed_stop(&bed);
    }
}

enum reader { A, B, C, D, READERS };

static void ask_ahead(const uint64_t connections[], uint64_t asked[], uint64_t upto, enum reader reader)
{
    for (; asked[reader] < upto; asked[reader]++) {
        static const int streams[READERS] = {0, 1, 2, 1};
        struct worker_get want = bed_get_of(&bed, streams[reader], reader == D ? 1 : 2, asked[reader]);
        want.slack_ms = reader == D ? 0 : 1000;
        bed_send(&bed, connections[reader], want);
    }
}

/* Jobs "b" and "d" read stream 1, "b" beside "a" of stream 0, "d" an epoch behind and most urgently. That "b" has its blocks with those
 * of "a", before or after it asks for them, lets neither "d" wait, nor "c", who reads what is no sibling. */
static void test_a_fellow_of_what_goes_along_does_not_starve(void **state)
{
    (void)state;
    enum { AHEAD = 8, ENDS = 360 };
    for (uint64_t behind = 0; behind <= AHEAD;
         behind += AHEAD) { /* "b" asks for what is queued, or is ready */
        uint64_t connection = begin_with(2048, 1, 8 * 1024, 1000);
        uint64_t connections[READERS] = {connection, connection, connection, bed_connect(&bed)};
        uint64_t made[READERS] = {0}, asked[READERS] = {0};
        bed.streams[2].items = 8 * 1024;
        bed_add_stream(&bed, 2);
        bed_open(&bed, connections[C], 2, "c", 0);
        bed_open(&bed, connections[D], 1, "d", 0);
        learn(connection);
        for (int n = 0; n < ENDS; n++) {
            for (enum reader reader = A; reader < READERS; reader++)
                ask_ahead(connections, asked,
                          made[reader == B ? A : reader] + AHEAD - (reader == B ? behind : 0), reader);
            const struct worker_action *making = &bed.making[0];
            made[making->epoch == 1 ? D : making->stream == &bed.streams[2] ? C : A]++;
            bed.now_ns += 8 * BED_MS;
            make_these();
            bed_send_all(&bed);
        }
        assert_true((uint64_t)bed.together >= made[A]);
        assert_in_range(made[C], ENDS * 3 / 10, ENDS * 4 / 10);
        assert_in_range(made[D], ENDS * 3 / 10, ENDS * 4 / 10);
        bed_stop(&bed);
    }
}

enum asked { NEVER, WHILE_MADE, WHEN_READY };

static void make_at_cost(uint64_t block, int64_t cost_ms)
{
    worker_core_made(bed.core, bed.now_ns, block,
                     &(struct worker_made){.cost_ns = cost_ms * BED_MS, .cpu_ns = 10 * BED_MS});
    bed_take(&bed);
}

/* The first making of two, with all that is told of it. */
static void take_pair(uint64_t pair[2])
{
    assert_int_equal(bed.making_count, 2);
    pair[0] = bed.making[0].block;
    pair[1] = bed.making[1].block;
    bed.making_count = 0;
}

/* Stream 0 has had 140 ms, a window and more. Had stream 1 nothing it goes first, however urgent the other is. */
static void test_what_goes_along_is_paid_for_when_it_is_asked_for(void **state)
{
    (void)state;
    for (enum asked asked = NEVER; asked <= WHEN_READY; asked++) {
        uint64_t connection = begin(16, 1), pair[2];
        learn(connection);
        get(connection, 0, 1, 3);
        take_pair(pair);
        struct worker_get urgent = bed_get_of(&bed, 0, 1, 5), patient = bed_get_of(&bed, 1, 2, 7);
        urgent.slack_ms = 0;
        patient.slack_ms = 60000;
        bed_send(&bed, connection, patient);
        mark(connection, 1, 1, 24);
        get(connection, 0, 1, 4);
        make_at_cost(pair[1], 140);
        make_at_cost(pair[0], 140);
        take_pair(pair);
        bed_send(&bed, connection, urgent);
        if (asked == WHILE_MADE)
            get(connection, 1, 1, 4);
        make_at_cost(pair[1], 140);
        if (asked == WHEN_READY)
            assert_int_equal(get(connection, 1, 1, 4)->answer, WORKER_SEND_DATA);
        assert_int_equal(bed.making_count, 0);
        make_at_cost(pair[0], 140);
        assert_ptr_equal(bed.making[0].stream, &bed.streams[asked == NEVER]);
        bed_make_all(&bed);
        bed_stop(&bed);
    }
}

/* Staging of four, where one of three siblings finds no memory that is used later: the cost is that of the two others. */
static void test_the_cost_is_borne_by_those_that_went(void **state)
{
    (void)state;
    uint64_t connection = begin(4, 1);
    memcpy(bed.streams[2].family, bed.streams[0].family, sizeof bed.streams[2].family);
    bed_add_stream(&bed, 2);
    bed_plan(&bed, 2, 3, 1);
    bed_open(&bed, connection, 2, "c", 0);
    for (uint64_t block = 0; block < LEARN; block++)
        for (int s = 0; s < 3; s++) {
            get(connection, s, 0, block);
            bed_make_all(&bed);
            bed_send_all(&bed);
        }
    for (int s = 1; s < 3; s++)
        mark(connection, s, 2, 0);
    for (uint64_t block = 0; block < 3; block++) {
        struct worker_get asked = bed_get_of(&bed, 0, 1, block);
        asked.mark_position = 0;
        bed_send(&bed, connection, asked);
        bed_make_all(&bed);
        bed_send_all(&bed);
    }
    for (int s = 0; s < 3; s++) /* block 0 is passed, 1 and 2 are used sooner than 3 */
        mark(connection, s, 1, s == 0 ? 8 : 0);
    struct worker_get asked = bed_get_of(&bed, 0, 1, 3);
    asked.mark_position = 8;
    bed_send(&bed, connection, asked);
    assert_int_equal(bed.making_count, 2);
    assert_int_equal(state_of(0, 1, 0), WORKER_ABSENT);
    assert_int_equal(state_of(0, 1, 1), WORKER_READY);
    uint64_t leader = bed.making[0].block, beside = bed.making[1].block;
    bed.making_count = 0;
    make_at_cost(leader, 1000);
    make_at_cost(beside, 1000);
    bed_send_all(&bed);
    struct bed_request *next = get(connection, 0, 1, 9);
    bed.now_ns += WORKER_TICK_MS * BED_MS;
    worker_core_tick(bed.core, bed.now_ns);
    bed_take(&bed);
    assert_int_equal(bed.making_count, 3); /* half of three parts, each the block's mean */
    assert_in_range(next->wait_ms, (7 + 500 / 8) * 3 / 2 - 1, (7 + 500 / 8) * 3 / 2 + 1);
    bed_make_all(&bed);
    bed_stop(&bed);
}

/* What was not asked for did not wait: it says nothing of the queue. */
static void test_what_goes_along_did_not_queue(void **state)
{
    (void)state;
    enum { AHEAD = 8, ENDS = 300 };
    double queue_ms[2];
    for (int alone = 0; alone < 2; alone++) {
        uint64_t connection = begin_with(2048, 1, 8 * 1024, 1000), asked = 0;
        learn(connection);
        if (alone)
            worker_core_stream_remove(bed.core, bed.now_ns, bed.streams[1].hash);
        for (uint64_t n = 0; n < ENDS; n++) {
            for (; asked < n + AHEAD; asked++)
                get(connection, 0, 1, asked);
            bed.now_ns += 8 * BED_MS;
            make_these();
            bed_send_all(&bed);
        }
        struct worker_counts counts;
        worker_core_counts(bed.core, bed.now_ns, &counts);
        queue_ms[alone] = counts.queue_ms;
        assert_int_equal(bed.together, alone ? 0 : ENDS + 1);
        bed_stop(&bed);
    }
    assert_true(queue_ms[1] > 40 && queue_ms[0] > 0.99 * queue_ms[1]);
}

/* Streams of one family that were not met by begin(), with a job each. */
static void add_siblings(uint64_t connection, int from, int to)
{
    static const char *const jobs[BED_STREAMS] = {"a", "b", "c", "d", "e", "f"};
    for (int s = from; s < to; s++) {
        memcpy(bed.streams[s].family, bed.streams[0].family, sizeof bed.streams[s].family);
        bed.streams[s].items = bed.streams[0].items;
        bed_add_stream(&bed, s);
        bed_plan(&bed, s, 3, 1);
        bed_open(&bed, connection, s, jobs[s], 0);
        for (uint64_t block = 0; block < LEARN; block++) {
            get(connection, s, 0, block);
            bed_make_all(&bed);
            bed_send_all(&bed);
        }
        mark(connection, s, 1, 0);
    }
}

/* Staging of little more than a block for each of four places: what goes along takes no room that "c" of another stream needs at
 * once, in the fourth place and when the first is free again, its rows still being sent. */
static void test_urgent_blocks_find_room(void **state)
{
    (void)state;
    static const int together[17] = {[9] = 1, [10] = 2, [11] = 3, 3, 3, 3, 3, 3};
    for (int blocks = 5; blocks <= 16; blocks++) {
        uint64_t connection = begin(blocks, 4);
        bed_add_stream(&bed, 2);
        bed_plan(&bed, 2, 3, 1);
        bed_open(&bed, connection, 2, "c", 0);
        learn(connection);
        for (uint64_t block = 3; block < 6; block++)
            get(connection, 0, 1, block);
        assert_int_equal(bed.together, together[blocks]);
        get(connection, 2, 0, 0);
        assert_int_equal(state_of(2, 0, 0), WORKER_MAKING);
        get(connection, 2, 0, 1);
        assert_int_equal(state_of(2, 0, 1), WORKER_QUEUED);
        bed_made(&bed, 0, BASE_OK);
        assert_int_equal(state_of(2, 0, 1), WORKER_MAKING);
        bed_make_all(&bed);
        bed_stop(&bed);
    }
}

/* Twenty sets, of three out of six streams, take turns; together costs what it costs alone: known for each after two blocks. */
static void test_what_many_sets_cost_is_remembered(void **state)
{
    (void)state;
    enum { ROUNDS = 2 * LEARN };
    uint64_t connection = begin_with(512, 1, 8 * 1024, 1000), block = LEARN;
    learn(connection);
    add_siblings(connection, 2, BED_STREAMS);
    bed.together_cpu_ns = 24 * BED_MS;
    for (int round = 0, before = bed.together; round < ROUNDS; round++, before = bed.together) {
        int sets = 0;
        for (unsigned set = 0; set < 1u << BED_STREAMS; set++) {
            if (__builtin_popcount(set) != 3)
                continue;
            for (int s = 0; s < BED_STREAMS; s++) /* others have passed it */
                mark(connection, s, 1, (block + (set >> s & 1 ? 0 : 1)) * 8);
            get(connection, __builtin_ctz(set), 1, block++);
            bed_make_all(&bed);
            bed_send_all(&bed);
            sets++;
        }
        assert_int_equal(sets, 20);
        assert_int_equal(bed.together - before, round < LEARN ? 2 * sets : 0);
    }
    struct worker_counts counts;
    worker_core_counts(bed.core, bed.now_ns, &counts);
    assert_int_equal(counts.sibling_sets_forgotten, 0);
    bed_stop(&bed);
}

/* Two blocks of a second together: one that is in the making has half of it before it, the next one all of it. */
static void test_estimates_are_of_the_whole_making(void **state)
{
    (void)state;
    uint64_t connection = begin_with(256, 1, 8 * 1024, 1000), pair[2];
    learn(connection);
    for (uint64_t block = LEARN; block < 40; block++) {
        get(connection, 0, 1, block);
        take_pair(pair);
        make_at_cost(pair[0], 1000);
        make_at_cost(pair[1], 1000);
        bed_send_all(&bed);
    }
    struct bed_request *making = get(connection, 0, 1, 40), *queued = get(connection, 0, 1, 41);
    assert_in_range(queued->wait_ms, 950, 1050);
    bed.now_ns += WORKER_TICK_MS * BED_MS;
    worker_core_tick(bed.core, bed.now_ns);
    bed_take(&bed);
    assert_in_range(making->wait_ms, 450, 550);
    bed_make_all(&bed);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learnt_alone_then_made_together),
        cmocka_unit_test(test_left_off_where_it_does_not_pay),
        cmocka_unit_test(test_queued_ones_go_together_and_take_one_place),
        cmocka_unit_test(test_only_what_will_be_asked_here),
        cmocka_unit_test(test_memory_is_taken_from_what_is_used_later_only),
        cmocka_unit_test(test_evicted_before_its_use_is_made_again),
        cmocka_unit_test(test_cancelled_in_the_making),
        cmocka_unit_test(test_a_stream_removed_in_the_middle),
        cmocka_unit_test(test_what_failed_is_made_alone),
        cmocka_unit_test(test_nothing_goes_along_while_draining),
        cmocka_unit_test(test_what_goes_along_starves_nobody),
        cmocka_unit_test(test_what_goes_along_is_paid_for_when_it_is_asked_for),
        cmocka_unit_test(test_the_cost_is_borne_by_those_that_went),
        cmocka_unit_test(test_nothing_goes_along_for_who_stands_still),
        cmocka_unit_test(test_a_fellow_of_what_goes_along_does_not_starve),
        cmocka_unit_test(test_what_goes_along_did_not_queue),
        cmocka_unit_test(test_urgent_blocks_find_room),
        cmocka_unit_test(test_what_many_sets_cost_is_remembered),
        cmocka_unit_test(test_estimates_are_of_the_whole_making),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Slots move by measured load, in bounded steps, and only where loads clearly differ. Siblings stay aligned. */
#include "tests/unit/scheduler/cluster_fixture.h"

#include "base/philox.h"
#include "scheduler/cluster_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 4, SYNC_S = 3 };

static struct scheduler_cluster *cluster;
static struct base_error error;
static int64_t now;
static uint64_t draws;
static double speed[WORKERS];

static int setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    draws = 0;
    for (int i = 0; i < WORKERS; i++)
        speed[i] = 1;
    return scheduler_cluster_create(&cluster, NULL, &error);
}

static int teardown(void **state)
{
    (void)state;
    scheduler_cluster_destroy(cluster);
    return 0;
}

static void sync_worker(uint64_t id, double queue_ms)
{
    struct fake_worker worker = {.id = id, .incarnation = 1, .weight = 2, .bits = 0xaa, .queue_ms = queue_ms};
    assert_int_equal(fixture_sync(cluster, now, &worker, &error), BASE_OK);
}

static const struct scheduler_live_stream *open_job(const char *job, const char *preset)
{
    struct scheduler_job_request request = fixture_request(job);
    request.sample_text = fixture_sample_text(preset);
    assert_int_equal(scheduler_cluster_job_open(cluster, now, &request, &error), BASE_OK);
    for (uint64_t id = 1; id <= WORKERS; id++)
        sync_worker(id, 0);
    return scheduler_cluster_job(cluster, job)->stream;
}

static double noise(double least, double most)
{
    return least + (most - least) * (double)base_philox_below(5, 1, draws++, 1000) / 1000;
}

/* Trainers that keep a number of requests in flight: those who have more slots than they are fast hold the queue. */
static double queue_of(const struct scheduler_live_stream *stream, uint64_t id)
{
    double load = fixture_held(stream, id) / speed[id - 1], all = 0, speeds = 0;
    for (uint64_t i = 1; i <= WORKERS; i++)
        all += fixture_held(stream, i), speeds += speed[i - 1];
    double over = load * speeds / all; /* 1: as much as it can do */
    return over > 1.02 ? noise(300, 500) : over > 0.98 ? noise(40, 70) : noise(1, 6);
}

/* A minute of syncs and cursors; the most that one plan change moved. */
static int a_minute(const struct scheduler_live_stream *stream, bool loaded)
{
    int most = 0;
    for (int s = 0; s < 60; s += SYNC_S) {
        now += SYNC_S * SECOND;
        for (uint64_t id = 1; id <= WORKERS; id++) {
            struct scheduler_plan before = stream->plan;
            struct scheduler_job_report report = {.job = "one", .generation = 1};
            int moved = 0;
            sync_worker(id, loaded ? queue_of(stream, id) : noise(30, 70));
            scheduler_cluster_job_sync(cluster, now, &report, NULL);
            report.job = "two";
            scheduler_cluster_job_sync(cluster, now, &report, NULL);
            for (int slot = 0; slot < SCHEDULER_PLAN_SLOTS; slot++)
                moved += before.primary[slot] != stream->plan.primary[slot];
            most = moved > most ? moved : most;
        }
    }
    return most;
}

static void equal_loads_move_nothing(void **state)
{
    (void)state;
    const struct scheduler_live_stream *stream = open_job("one", "imagenet_train");
    a_minute(stream, false);
    uint32_t plan = stream->plan.version;
    for (int minute = 0; minute < 60; minute++)
        a_minute(stream, false);
    assert_int_equal(stream->plan.version, plan);
}

static void a_slow_worker_comes_to_hold_what_it_can_do_and_rests(void **state)
{
    (void)state;
    const struct scheduler_live_stream *stream = open_job("one", "imagenet_train");
    a_minute(stream, true);
    uint32_t plan = stream->plan.version;
    speed[1] = 0.5;
    int minutes = 0, held = 0;
    for (; minutes < 30; minutes++) {
        assert_true(a_minute(stream, true) <= SCHEDULER_MOVES_MOST);
        held = fixture_held(stream, 2);
        if (held > 125 && held < 165) /* 146 of 1024 */
            break;
    }
    assert_true(minutes < 15 && stream->plan.version > plan);
    for (minutes = 0; minutes < 60; minutes++)
        a_minute(stream, true);
    held = fixture_held(stream, 2);
    assert_true(held > 115 && held < 175);
    plan = stream->plan.version;
    for (minutes = 0; minutes < 60; minutes++)
        a_minute(stream, true);
    print_message("it holds %d slots of 146; %u plan changes in its third hour\n", fixture_held(stream, 2),
                  stream->plan.version - plan);
    assert_true(stream->plan.version - plan <= 6);
    speed[1] = 1; /* and back */
    for (minutes = 0; minutes < 60; minutes++)
        assert_true(a_minute(stream, true) <= SCHEDULER_MOVES_MOST);
    held = fixture_held(stream, 2);
    assert_true(held > 215 && held < 300);
}

/* One outlier among reports is no reason. */
static void a_burst_moves_nothing(void **state)
{
    (void)state;
    const struct scheduler_live_stream *stream = open_job("one", "imagenet_train");
    a_minute(stream, false);
    uint32_t plan = stream->plan.version;
    for (int minute = 0; minute < 10; minute++) {
        sync_worker(2, 5000);
        a_minute(stream, false);
    }
    assert_int_equal(stream->plan.version, plan);
}

static bool aligned(const struct scheduler_live_stream *a, const struct scheduler_live_stream *b)
{
    return memcmp(a->plan.primary, b->plan.primary, sizeof a->plan.primary) == 0 &&
           memcmp(a->plan.secondary, b->plan.secondary, sizeof a->plan.secondary) == 0;
}

static void siblings_have_equal_plans_and_keep_them(void **state)
{
    (void)state;
    const struct scheduler_live_stream *one = open_job("one", "imagenet_train");
    scheduler_cluster_worker_leave(cluster, now, 3, 1); /* its plan is no fresh one any more */
    sync_worker(3, 0);
    const struct scheduler_live_stream *two = open_job("two", "imagenet_eval");
    assert_ptr_not_equal(one, two);
    assert_memory_equal(one->identity.family, two->identity.family, sizeof one->identity.family);
    assert_true(aligned(one, two));
    speed[1] = 0.5;
    uint32_t plan = one->plan.version;
    for (int minute = 0; minute < 5; minute++) {
        a_minute(one, true);
        assert_true(aligned(one, two));
    }
    assert_true(one->plan.version > plan);
    scheduler_cluster_worker_leave(cluster, now, 1, 1);
    assert_true(aligned(one, two) && fixture_held(one, 1) == 0);
    sync_worker(1, 0);
    assert_true(aligned(one, two) && fixture_held(one, 1) > 0);
}

/* Workers that no plan has are idle, which is no measure for those that are busy: these lost weight to the least, and a joiner
 * got most of the slots. */
static void idle_workers_of_no_plan_do_not_count(void **state)
{
    (void)state;
    const struct scheduler_live_stream *stream = open_job("one", "imagenet_train");
    struct scheduler_job_report report = {.job = "one", .generation = 1};
    for (int second = 0; second < 600; second += SYNC_S, now += SYNC_S * SECOND) {
        for (uint64_t id = 1; id <= 2 * WORKERS + 1; id++) {
            struct fake_worker worker = {.id = id, .incarnation = 1, .weight = 2, .bits = 0xaa};
            worker.not_eligible = id > WORKERS;
            worker.queue_ms = id > WORKERS ? 0 : 100;
            assert_int_equal(fixture_sync(cluster, now, &worker, &error), BASE_OK);
        }
        assert_int_equal(scheduler_cluster_job_sync(cluster, now, &report, &error), BASE_OK);
    }
    sync_worker(WORKERS + 1, 100);
    assert_in_range(fixture_held(stream, WORKERS + 1), 200, 210);
}

/* It began with the weight of its cores, twice what the others of its kind can do, and was corrected by a fifth a minute. */
static void a_joiner_begins_as_its_group_is(void **state)
{
    (void)state;
    struct fake_worker joiner = {.id = WORKERS + 1, .incarnation = 1, .weight = 2, .bits = 0xaa};
    const struct scheduler_live_stream *stream = open_job("one", "imagenet_train");
    for (int i = 0; i < WORKERS; i++) {
        cluster->members[i]->load.factor = 0.5;
        cluster_member_weigh(cluster, cluster->members[i]);
    }
    assert_int_equal(fixture_sync(cluster, now, &joiner, &error), BASE_OK);
    assert_in_range(fixture_held(stream, joiner.id), 200, 210);
    joiner.incarnation++; /* starts anew */
    joiner.weight = 4;    /* of another kind: nothing is known of that */
    assert_int_equal(fixture_sync(cluster, now, &joiner, &error), BASE_OK);
    assert_true(cluster->members[WORKERS]->load.factor == 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(equal_loads_move_nothing),        TEST(a_slow_worker_comes_to_hold_what_it_can_do_and_rests),
        TEST(a_burst_moves_nothing),           TEST(idle_workers_of_no_plan_do_not_count),
        TEST(a_joiner_begins_as_its_group_is), TEST(siblings_have_equal_plans_and_keep_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Workers come and go, ranks open and are fenced, what is stored comes back. */
#include "tests/unit/scheduler/cluster_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void two_workers_and_a_job(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    scene_sync_worker(&a);
    uint64_t before = scheduler_cluster_worker(cluster, 1)->revision;
    const struct scheduler_job *job = scene_open_job(&request);
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    assert_non_null(strstr(job->reason, "fingerprints of 1 of 1 workers"));
    assert_true(scheduler_cluster_worker(cluster, 1)->revision != before);
    assert_non_null(scheduler_cluster_probe_at(cluster, 1, 0));
    assert_null(scheduler_cluster_probe_at(cluster, 1, 1));
    before = job->revision;
    scene_sync_worker(&a);
    job = scheduler_cluster_job(cluster, "first");
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->revision != before);
    assert_non_null(strstr(job->reason, "alone"));
    assert_int_equal(job->stream->plan.version, 1);
    assert_int_equal(fixture_held(job->stream, 1), SCHEDULER_PLAN_SLOTS);
    assert_ptr_equal(scheduler_cluster_served_at(cluster, 1, 0), job->stream);
    before = job->revision;
    scene_sync_worker(&b); /* joins, probes, gets its share */
    assert_int_equal(job->stream->plan.version, 2);
    assert_int_equal(fixture_held(job->stream, 2), SCHEDULER_PLAN_SLOTS / 2);
    assert_true(job->revision != before);
    assert_int_equal(job->stream->jobs, 1);
    assert_true(scheduler_cluster_deadline_ns(cluster) > now);
}

static void a_silent_worker_is_lost_and_comes_back(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    scene_sync_worker(&a), scene_sync_worker(&b);
    const struct scheduler_job *job = scene_open_job(&request);
    scene_sync_worker(&a), scene_sync_worker(&b);
    uint32_t version = job->stream->plan.version;
    now += 9 * SECOND;
    scene_sync_worker(&a);
    scene_sync_job("first", 0, 1, 0, 0);
    assert_int_equal(scheduler_cluster_deadline_ns(cluster), now + SECOND);
    now += SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(scheduler_cluster_worker(cluster, 2)->state, SCHEDULER_WORKER_LOST);
    assert_int_equal(job->stream->plan.version, version + 1);
    assert_int_equal(fixture_held(job->stream, 2), 0);
    assert_null(scheduler_cluster_served_at(cluster, 2, 0));
    assert_true(scene_log_says("worker 2 is lost"));
    scene_sync_worker(&b);
    assert_int_equal(job->stream->plan.version, version + 2);
    assert_int_equal(fixture_held(job->stream, 2), SCHEDULER_PLAN_SLOTS / 2);
    assert_int_equal(scheduler_cluster_counts(cluster).workers_lost, 1);
    scheduler_cluster_worker_leave(cluster, now, 2, 0); /* of an earlier start: ignored */
    assert_non_null(scheduler_cluster_worker(cluster, 2));
    scheduler_cluster_worker_leave(cluster, now, 2, 1);
    assert_null(scheduler_cluster_worker(cluster, 2));
    assert_int_equal(fixture_held(job->stream, 1), SCHEDULER_PLAN_SLOTS);
}

static void a_draining_worker_serves_and_is_given_nothing(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    scene_sync_worker(&a), scene_sync_worker(&b);
    const struct scheduler_job *job = scene_open_job(&request);
    scene_sync_worker(&a), scene_sync_worker(&b);
    assert_int_equal(scheduler_cluster_worker_drain(cluster, now, 2, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_worker_drain(cluster, now, 9, &error), BASE_NOT_FOUND);
    assert_int_equal(fixture_held(job->stream, 2), 0);
    assert_true(scheduler_cluster_worker(cluster, 2)->drain_ordered);
    assert_ptr_equal(scheduler_cluster_served_at(cluster, 2, 0), job->stream);
    scene_sync_worker(&b); /* still drained */
    assert_int_equal(scheduler_cluster_worker(cluster, 2)->state, SCHEDULER_WORKER_DRAINING);
    struct fake_worker again = b;
    again.incarnation = 2;
    scene_sync_worker(&again);
    assert_int_equal(scheduler_cluster_worker(cluster, 2)->state, SCHEDULER_WORKER_READY);
    assert_true(fixture_held(job->stream, 2) > 0);
    assert_int_equal(fixture_sync(cluster, now, &b, &error), BASE_CONFLICT); /* the earlier one is a zombie */
    again.draining = true;
    scene_sync_worker(&again);
    assert_int_equal(fixture_held(job->stream, 2), 0);
}

static void a_plan_admits_one_fingerprint_only(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    struct fake_worker odd = c;
    odd.bits = 0xbb;
    odd.weight = 3;
    scene_sync_worker(&odd), scene_sync_worker(&a), scene_sync_worker(&b);
    const struct scheduler_job *job = scene_open_job(&request);
    scene_sync_worker(&odd); /* the first answer alone decides nothing yet */
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    scene_sync_worker(&a), scene_sync_worker(&b);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_int_equal(job->stream->identity.fingerprint[0], 0xaa); /* weight 4 against 3 */
    assert_int_equal(fixture_held(job->stream, 3), 0);
    assert_null(scheduler_cluster_served_at(cluster, 3, 0));
}

static void the_first_answers_decide_after_settling(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    scene_sync_worker(&a), scene_sync_worker(&b);
    const struct scheduler_job *job = scene_open_job(&request);
    scene_sync_worker(&a); /* b is slow */
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    assert_int_equal(scheduler_cluster_deadline_ns(cluster), now + SECOND);
    now += SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(scheduler_cluster_deadline_ns(cluster) > now);
}

static void ranks_must_agree(void **state)
{
    (void)state;
    struct scheduler_job_request zero = fixture_request("one"), one;
    struct scheduler_job_cursor cursor = {.at = {1, 640}}, other = {.at = {1, 650}};
    fixture_version(1, cursor.dataset_version);
    fixture_version(1, other.dataset_version);
    zero.world = 4;
    zero.resume = &cursor;
    scene_open_job(&zero);
    one = zero;
    one.rank = 1;
    one.generation = 2;
    one.resume = &other;
    scene_open_fails(&one, BASE_CONFLICT, "position 650", "position 640");
    one = zero;
    one.rank = 1;
    one.batch = 11;
    scene_open_fails(&one, BASE_CONFLICT, "batch 11", "batch 10");
    one = zero;
    one.rank = 1;
    one.pipeline_text = "other";
    scene_open_fails(&one, BASE_CONFLICT, "pipeline other", "pipeline sample");
    one = zero;
    one.rank = 1;
    one.has_seed = true;
    scene_open_fails(&one, BASE_CONFLICT, "seed 0", "stream candidate");
    one = zero;
    one.rank = 1;
    one.resume = NULL;
    scene_open_fails(&one, BASE_CONFLICT, "join now", "cursor (epoch 1");
    assert_int_equal(scheduler_cluster_job(cluster, "one")->ranks_open, 1);
    one = zero;
    one.rank = 1;
    one.generation = 77;
    scene_open_job(&one);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->ranks_open, 2);
}

static void a_later_start_fences_off_the_earlier_one(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    scene_sync_worker(&a);
    request.world = 2;
    for (request.rank = 0; request.rank < 2; request.rank++)
        scene_open_job(&request);
    scene_sync_worker(&a);
    assert_int_equal(scene_sync_job("one", 0, 1, 0, 100), BASE_OK);
    assert_int_equal(scene_sync_job("one", 1, 1, 0, 80), BASE_OK);
    const struct scheduler_job *job = scheduler_cluster_job(cluster, "one");
    assert_int_equal(job->at.position, 80); /* the least of its ranks */
    request.rank = 1;
    request.generation = 5;
    job = scene_open_job(&request);
    assert_true(job->at.position == 0 && job->ranks_live == 1);
    assert_int_equal(scene_sync_job("one", 0, 1, 0, 120), BASE_CONFLICT); /* zombies */
    assert_int_equal(scene_sync_job("one", 1, 1, 0, 120), BASE_CONFLICT);
    assert_int_equal(scene_close_job("one", 1, 1), BASE_CONFLICT);
    request.rank = 0;
    request.generation = 1;
    scene_open_fails(&request, BASE_CONFLICT, "rank 0", "later start");
    request.generation = 4;
    scene_open_job(&request);
    assert_int_equal(job->ranks_live, 2);
    scene_open_job(&request); /* the same call again */
    assert_int_equal(job->ranks_live, 2);
    assert_int_equal(scene_sync_job("one", 0, 4, 0, 10), BASE_OK);
    assert_int_equal(scene_sync_job("one", 2, 4, 0, 10), BASE_CONFLICT);
    assert_true(scheduler_cluster_counts(cluster).fenced >= 5);
}

/* Started again with a larger world while the leases of the killed one run. */
static void a_restart_in_another_shape_waits_for_leases_at_most(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    scene_open_job(&request);
    request.world = 3;
    request.generation = 2;
    request.rank = 2;
    scene_open_fails(&request, BASE_UNAVAILABLE, "world 3", "world 1");
    request.rank = 0;
    scene_open_job(&request); /* the rank that was there begins the new launch */
    request.rank = 2;
    scene_open_job(&request);
    now += 10 * SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->state, SCHEDULER_JOB_LOST);
    request.world = 5;
    request.rank = 4;
    scene_open_job(&request);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->shape.world, 5);
}

static void a_lost_job_comes_back_and_an_unread_stream_goes(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    scene_sync_worker(&a);
    scene_open_job(&request);
    scene_sync_worker(&a);
    const struct scheduler_job *job = scheduler_cluster_job(cluster, "one");
    scene_sync_job("one", 0, 1, 2, 300);
    uint32_t version = job->stream->plan.version;
    now += 10 * SECOND;
    scene_sync_worker(&a);
    assert_int_equal(job->state, SCHEDULER_JOB_LOST);
    assert_int_equal(job->stream->jobs, 0);
    assert_int_equal(scene_sync_job("one", 0, 1, 2, 310), BASE_OK);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    for (int i = 0; i < 9; i++) {
        now += 9 * SECOND + 900 * MS;
        scene_sync_worker(&a);
    }
    assert_int_equal(job->state, SCHEDULER_JOB_LOST);
    assert_null(job->stream);
    assert_int_equal(scheduler_cluster_stream_count(cluster), 0);
    assert_int_equal(scene_sync_job("one", 0, 1, 2, 320),
                     BASE_OK); /* its stream is made again: the same bits, versions rise */
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    scene_sync_worker(&a);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->stream->plan.version > version);
    assert_true(job->start.epoch == 0 && job->at.position == 320);
    now += 4000 * SECOND;
    scheduler_cluster_tick(cluster, now);
    scheduler_cluster_tick(cluster, now += 3600 * SECOND);
    assert_int_equal(scheduler_cluster_job_count(cluster), 0);
    assert_int_equal(scheduler_cluster_worker_count(cluster), 0);
    assert_int_equal(scheduler_cluster_deadline_ns(cluster), INT64_MAX);
    assert_int_equal(scene_sync_job("one", 0, 1, 2, 320), BASE_NOT_FOUND);
}

static void what_is_to_be_stored_is_told(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    uint8_t hash[32];
    char id[SCHEDULER_JOB_CHARS];
    bool gone = true;
    scene_sync_worker(&a);
    const struct scheduler_job *job = scene_open_job(&request);
    scene_sync_worker(&a);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && !gone);
    assert_memory_equal(hash, job->stream->identity.hash, sizeof hash);
    assert_false(scheduler_cluster_take_stream(cluster, hash, &gone));
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && !gone);
    assert_string_equal(id, "one");
    assert_false(scheduler_cluster_take_job(cluster, id, &gone));
    scene_sync_job("one", 0, 1, 0, 10);
    assert_false(scheduler_cluster_take_job(cluster, id, &gone)); /* not more than once a second */
    now += SECOND;
    scene_sync_job("one", 0, 1, 0, 20);
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && !gone);
    scene_sync_worker(&b);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && !gone);
    scene_close_job("one", 0, 1);
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && gone);
    scheduler_cluster_tick(cluster, now += 60 * SECOND);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && gone);
    assert_false(scheduler_cluster_take_job(cluster, id, &gone));
}

/* The server dies; its heir is loaded from the store; workers and ranks sync as if nothing had been. */
static void a_restart_goes_on(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    struct scheduler_cluster_options options = {.first_revision = 1000000};
    scene_sync_worker(&a), scene_sync_worker(&b);
    request.world = 2;
    scene_open_job(&request);
    request.rank = 1;
    request.generation = 2;
    const struct scheduler_job *job = scene_open_job(&request);
    scene_sync_worker(&a), scene_sync_worker(&b);
    scene_sync_job("one", 0, 1, 6, 440), scene_sync_job("one", 1, 2, 6, 440);
    struct scheduler_stream identity = job->stream->identity;
    struct scheduler_plan plan = job->stream->plan;
    struct scheduler_cursor at = job->at;
    scheduler_cluster_destroy(cluster);
    assert_int_equal(scheduler_cluster_create(&cluster, &options, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_load_stream(cluster, now, &identity, &plan, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_load_stream(cluster, now, &identity, &plan, &error), BASE_EXISTS);
    request.rank = 0;
    struct scheduler_job_stored stored = {.at = at};
    memcpy(stored.stream, identity.hash, sizeof stored.stream);
    fixture_version(2, request.dataset_version); /* registered anew since: the job goes on with its own */
    assert_int_equal(scheduler_cluster_load_job(cluster, now, &request, &stored, &error), BASE_OK);
    fixture_version(1, request.dataset_version);
    assert_int_equal(scheduler_cluster_load_job(cluster, now, &request, &stored, &error), BASE_EXISTS);
    job = scheduler_cluster_job(cluster, "one");
    assert_int_equal(job->state, SCHEDULER_JOB_LOST);
    now += SECOND;
    assert_int_equal(scene_sync_job("one", 1, 2, 6, 460), BASE_OK); /* jobs are there before workers */
    assert_int_equal(scene_sync_job("one", 0, 1, 6, 460), BASE_OK);
    assert_int_equal(scene_sync_job("one", 0, 2, 6, 480), BASE_OK); /* the one before was a zombie */
    assert_int_equal(scene_sync_job("one", 0, 1, 6, 500), BASE_CONFLICT);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->at.epoch == 6 && job->at.position == 460);
    scene_sync_worker(&b);
    assert_false(job->stream->planned);
    assert_non_null(strstr(job->reason, "restart"));
    scene_sync_worker(&a);
    assert_true(job->stream->planned);
    assert_int_equal(job->stream->plan.version, plan.version + 1);
    assert_memory_equal(job->stream->plan.primary, plan.primary, sizeof plan.primary); /* nothing moved */
    request.generation = 9; /* a new launch does not begin at the stored cursor */
    job = scene_open_job(&request);
    assert_true(job->start.epoch == 0 && job->start.position == 0);
}

/* Clients do better with the old plan than with one of nobody; and epochs of jobs long gone are no news. */
static void a_restart_without_workers_says_nothing(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one"), late = fixture_request("late");
    scene_sync_worker(&a);
    struct scheduler_stream identity;
    const struct scheduler_plan without = {.version = 7}; /* as an older server stored it */
    {
        const struct scheduler_job *job = scene_open_job(&request);
        scene_sync_worker(&a);
        identity = job->stream->identity;
    }
    scheduler_cluster_destroy(cluster);
    assert_int_equal(scheduler_cluster_create(&cluster, NULL, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_load_stream(cluster, now, &identity, &without, &error), BASE_OK);
    struct scheduler_job_stored stored = {.at = {2, 500}};
    memcpy(stored.stream, identity.hash, sizeof stored.stream);
    assert_int_equal(scheduler_cluster_load_job(cluster, now, &request, &stored, &error), BASE_OK);
    assert_int_equal(scene_sync_job("one", 0, 1, 2, 500), BASE_OK);
    scheduler_cluster_tick(cluster, now += 5 * SECOND);
    const struct scheduler_job *job = scheduler_cluster_job(cluster, "one");
    assert_true(job->state == SCHEDULER_JOB_RUNNING && !job->stream->planned);
    assert_int_equal(job->stream->plan.version, 7);
    assert_true(scheduler_cluster_deadline_ns(cluster) > now);
    struct fake_worker teller = a;
    teller.front_stream = identity.hash;
    teller.front_epoch = 9;
    scene_sync_worker(&teller);
    assert_true(job->stream->planned && job->stream->plan.version == 8);
    late.join = SCHEDULER_JOIN_NEXT;
    const struct scheduler_job *second = scene_open_job(&late);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    scene_sync_job("one", 0, 1, 3, 0);
    assert_true(second->state == SCHEDULER_JOB_RUNNING && second->first_epoch == 3);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one"), good = request;
    request.job = "";
    scene_open_fails(&request, BASE_INVALID, "id", "1 to 127");
    request.job = "a b";
    scene_open_fails(&request, BASE_INVALID, "0x20", "offset 1");
    request = good, request.world = 0;
    scene_open_fails(&request, BASE_INVALID, "rank 0 of 0", "world");
    request = good, request.rank = 1;
    scene_open_fails(&request, BASE_INVALID, "rank 1 of 1", "");
    request = good, request.batch = 0;
    scene_open_fails(&request, BASE_INVALID, "batch 0", "");
    request = good, request.batch = 1001, request.tail = SCHEDULER_TAIL_DROP;
    scene_open_fails(&request, BASE_INVALID, "1000 items", "drop");
    request = good, request.items = 0;
    scene_open_fails(&request, BASE_INVALID, "0 items", "one");
    request = good, request.sample_text = "sample: Decode";
    scene_open_fails(&request, BASE_INVALID, "one", "size");
    assert_int_equal(scheduler_cluster_job_count(cluster), 0);
    struct fake_worker nobody = {.id = 0};
    assert_int_equal(fixture_sync(cluster, now, &nobody, &error), BASE_INVALID);
    scene_open_job(&good);
    assert_int_equal(scene_sync_job("one", 0, 1, 0, 1001), BASE_INVALID);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scene_setup, scene_teardown)
    const struct CMUnitTest tests[] = {
        TEST(two_workers_and_a_job),
        TEST(a_silent_worker_is_lost_and_comes_back),
        TEST(a_draining_worker_serves_and_is_given_nothing),
        TEST(a_plan_admits_one_fingerprint_only),
        TEST(the_first_answers_decide_after_settling),
        TEST(ranks_must_agree),
        TEST(a_later_start_fences_off_the_earlier_one),
        TEST(a_restart_in_another_shape_waits_for_leases_at_most),
        TEST(a_lost_job_comes_back_and_an_unread_stream_goes),
        TEST(what_is_to_be_stored_is_told),
        TEST(a_restart_goes_on),
        TEST(a_restart_without_workers_says_nothing),
        TEST(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

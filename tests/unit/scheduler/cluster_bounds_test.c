/* SPDX-License-Identifier: Apache-2.0 */
/* What bounds the cluster machine: full tables, writes that failed, numbers at their end, who is woken. */
#include "tests/unit/scheduler/cluster_fixture.h"

#include "scheduler/cluster_state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct scheduler_cluster *cluster;
static struct base_error error;
static int64_t now;
static const struct fake_worker a = {.id = 1, .incarnation = 1, .weight = 2, .bits = 0xaa},
                                b = {.id = 2, .incarnation = 1, .weight = 2, .bits = 0xaa};

static int setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    return scheduler_cluster_create(&cluster, NULL, &error);
}

static int teardown(void **state)
{
    (void)state;
    scheduler_cluster_destroy(cluster);
    return 0;
}

static void sync_worker(const struct fake_worker *worker)
{
    assert_int_equal(fixture_sync(cluster, now, worker, &error), BASE_OK);
}

static const struct scheduler_job *open_job(const struct scheduler_job_request *request)
{
    assert_int_equal(scheduler_cluster_job_open(cluster, now, request, &error), BASE_OK);
    return scheduler_cluster_job(cluster, request->job);
}

static enum base_code sync_at(const char *job, uint32_t epoch, uint64_t position)
{
    struct scheduler_job_report report = {
        .job = job, .generation = 1, .has_cursor = true, .at = {epoch, position}};
    return scheduler_cluster_job_sync(cluster, now, &report, &error);
}

static void close_job(const char *job)
{
    struct scheduler_job_report report = {.job = job, .generation = 1};
    assert_int_equal(scheduler_cluster_job_close(cluster, now, &report, &error), BASE_OK);
}

/* What could not be stored is told again, cursors and all. */
static void what_was_not_stored_is_told_again(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one"), other = fixture_request("two");
    uint8_t hash[32];
    char id[SCHEDULER_JOB_CHARS];
    bool gone = true;
    sync_worker(&a);
    open_job(&request), open_job(&other);
    sync_worker(&a);
    close_job("two");
    while (scheduler_cluster_take_stream(cluster, hash, &gone) ||
           scheduler_cluster_take_job(cluster, id, &gone))
        continue;
    scheduler_cluster_store_again(cluster);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && !gone);
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && gone);
    assert_string_equal(id, "two"); /* its removal may be what was not stored */
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && !gone);
    assert_string_equal(id, "one");
    assert_false(scheduler_cluster_take_job(cluster, id, &gone));
}

/* A job whose time in the list is over, and that is heard of just then, was freed under its own sync. */
static void one_that_comes_back_as_it_would_be_forgotten_stays(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one"), other = fixture_request("two");
    sync_worker(&a);
    open_job(&request), open_job(&other);
    now += 11 * SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->state, SCHEDULER_JOB_LOST);
    now += 3600 * SECOND;
    assert_int_equal(sync_at("one", 0, 0), BASE_OK);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->ranks_live, 1);
    assert_null(scheduler_cluster_job(cluster, "two"));
}

/* Workers that got new ids with each start filled the table for an hour. */
static void lost_workers_make_room(void **state)
{
    (void)state;
    struct fake_worker many = a;
    for (int i = 0; i < SCHEDULER_WORKERS_MAX; i++) {
        many.id = 1000 + (uint64_t)i;
        assert_int_equal(fixture_sync(cluster, now, &many, &error), BASE_OK);
    }
    many.id = 5;
    assert_int_equal(fixture_sync(cluster, now, &many, &error), BASE_BUSY);
    many.id = 1001;
    assert_int_equal(fixture_sync(cluster, now += 5 * SECOND, &many, &error), BASE_OK);
    now += 6 * SECOND;
    while (scheduler_cluster_deadline_ns(cluster) <= now)
        scheduler_cluster_tick(cluster, now); /* all but 1001 are lost */
    uint64_t revision = scheduler_cluster_revision(cluster);
    many.id = 5;
    assert_int_equal(fixture_sync(cluster, now, &many, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_worker_count(cluster), SCHEDULER_WORKERS_MAX);
    assert_non_null(scheduler_cluster_worker(cluster, 1001));
    assert_null(scheduler_cluster_worker(cluster, 1000));
    assert_true(scheduler_cluster_revision(cluster) > revision);
}

/* A search of many short trials was refused its 4097th within an hour. */
static void ended_jobs_make_room(void **state)
{
    (void)state;
    char id[32] = "alive";
    struct scheduler_job_request request = fixture_request(id);
    open_job(&request);
    for (int i = 1; i < SCHEDULER_JOBS_MAX; i++) {
        snprintf(id, sizeof id, "trial-%d", i);
        open_job(&request);
        close_job(id);
    }
    strcpy(id, "one-more");
    assert_int_equal(open_job(&request)->state, SCHEDULER_JOB_PREPARING);
    assert_int_equal(scheduler_cluster_job_count(cluster), SCHEDULER_JOBS_MAX);
    assert_null(scheduler_cluster_job(cluster, "trial-1"));
    assert_non_null(scheduler_cluster_job(cluster, "trial-2"));
    assert_non_null(scheduler_cluster_job(cluster, "alive"));
}

/* Whoever wants a manifest's pages waited out a poll before it heard whom to ask. */
static void the_first_holder_of_a_manifest_is_news(void **state)
{
    (void)state;
    struct fake_worker waiting = b;
    waiting.not_eligible = true;
    sync_worker(&waiting);
    uint64_t revision = scheduler_cluster_worker(cluster, b.id)->revision;
    sync_worker(&a);
    assert_true(scheduler_cluster_worker(cluster, b.id)->revision > revision);
    revision = scheduler_cluster_worker(cluster, b.id)->revision;
    sync_worker(&a);
    sync_worker(&waiting);
    assert_int_equal(scheduler_cluster_worker(cluster, b.id)->revision, revision); /* once */
}

static void an_epoch_beyond_the_last_is_refused(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    sync_worker(&a);
    open_job(&request);
    sync_worker(&a);
    assert_int_equal(sync_at("one", UINT32_MAX, 0), BASE_INVALID);
    assert_int_equal(sync_at("one", UINT32_MAX - 1, 10), BASE_OK);
}

/* A job's weight is its launch's, as its shape is. */
static void weights_are_bounded_and_the_same_on_all_ranks(void **state)
{
    (void)state;
    static const double bad[] = {-1, 0.009, 100.1, (double)INFINITY, -(double)INFINITY, (double)NAN};
    struct scheduler_job_request request = fixture_request("one");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        request.weight = bad[i];
        assert_int_equal(scheduler_cluster_job_open(cluster, now, &request, &error), BASE_INVALID);
        assert_non_null(strstr(error.text, "weight"));
    }
    request.weight = 2.5;
    request.world = 2;
    assert_true(open_job(&request)->weight == 2.5);
    request.rank = 1;
    request.weight = 0;
    assert_int_equal(scheduler_cluster_job_open(cluster, now, &request, &error), BASE_CONFLICT);
    assert_non_null(strstr(error.text, "weight 1,"));
    assert_non_null(strstr(error.text, "weight 2.5"));
    request.weight = 2.5;
    assert_int_equal(open_job(&request)->ranks_open, 2);
    struct scheduler_job_request other = fixture_request("two");
    assert_true(open_job(&other)->weight == 1);
}

static void run_until(int64_t until)
{
    for (int64_t next; (next = scheduler_cluster_deadline_ns(cluster)) <= until;) {
        now = next > now ? next : now;
        scheduler_cluster_tick(cluster, now);
    }
    now = until;
}

/* A plan for each of hundreds of joiners, for each of their streams, stopped the server. */
static void many_joiners_make_few_plans_and_a_death_one_at_once(void **state)
{
    (void)state;
    enum { FIRST = 100, ALL = 500 };
    struct scheduler_job_request request = fixture_request("one");
    struct fake_worker worker = a;
    const struct scheduler_job *job = open_job(&request);
    for (worker.id = 1; worker.id <= FIRST; worker.id++)
        sync_worker(&worker);
    run_until(now + SECOND);
    uint64_t before = scheduler_cluster_counts(cluster).plan_changes;
    for (; worker.id <= ALL; worker.id++) {
        sync_worker(&worker);
        run_until(now + MS);
    }
    run_until(now + SECOND);
    assert_true(scheduler_cluster_counts(cluster).plan_changes - before <= 6);
    for (uint64_t id = 1; id <= ALL; id++)
        assert_true(fixture_held(job->stream, id) > 0);
    sync_worker(&worker); /* waits for others ... */
    scheduler_cluster_worker_leave(cluster, now, 7, 1);
    assert_int_equal(fixture_held(job->stream, 7), 0); /* ... but not for this */
}

/* Joiners that mark everything held back the plan of a home that had just died, a step's work after the other. */
static void a_death_comes_before_whatever_joiners_mark(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    sync_worker(&a), sync_worker(&b);
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&a), sync_worker(&b);
    assert_true(fixture_held(job->stream, 2) > 0);
    cluster->step_work = 1;
    for (int i = 0; i < cluster->candidate_count; i++)
        cluster_candidate_mark(cluster, cluster->candidates[i]);
    for (int i = 0; i < cluster->job_count; i++)
        cluster_job_mark(cluster, cluster->jobs[i]);
    scheduler_cluster_worker_leave(cluster, now, 2, 1);
    assert_int_equal(fixture_held(job->stream, 2), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_was_not_stored_is_told_again),
        TEST(one_that_comes_back_as_it_would_be_forgotten_stays),
        TEST(lost_workers_make_room),
        TEST(ended_jobs_make_room),
        TEST(the_first_holder_of_a_manifest_is_news),
        TEST(an_epoch_beyond_the_last_is_refused),
        TEST(many_joiners_make_few_plans_and_a_death_one_at_once),
        TEST(a_death_comes_before_whatever_joiners_mark),
        TEST(weights_are_bounded_and_the_same_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

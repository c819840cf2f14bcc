/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster machine while memory runs out: an event says so and leaves the tables sound; told again it does all it should, and
 * what it could not do by itself (a job's stream) it does later by itself.
 */
#include "scheduler/cluster.h"
#include "scheduler/order.h"
#include "tests/support/inject.h"
#include "tests/unit/scheduler/cluster_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { EVENTS = 9 };

/* A cluster's life, an event each. */
static enum base_code event(struct scheduler_cluster *cluster, int number, int64_t now_ns,
                            struct base_error *error)
{
    static const struct fake_worker workers[] = {
        {.id = 3, .incarnation = 1, .weight = 4, .bits = 7},
        {.id = 9, .incarnation = 2, .weight = 2, .bits = 7},
    };
    struct scheduler_job_request request = fixture_request("night");
    struct scheduler_job_report report = {.job = "night", .generation = 1};
    struct scheduler_stream stored = {.items = 1000, .shuffle = true, .seed = 5};
    struct scheduler_plan plan = {.version = 7, .primary = {3}};
    fixture_version(2, stored.dataset_version);
    snprintf(stored.sample_text, sizeof stored.sample_text, "%s", fixture_sample_text("imagenet_eval"));
    memset(stored.fingerprint, 7, sizeof stored.fingerprint);
    switch (number) {
    case 0:
        return scheduler_cluster_load_stream(cluster, now_ns, &stored, &plan, error);
    case 1: {
        struct scheduler_job_request before = fixture_request("loaded");
        return scheduler_cluster_load_job(cluster, now_ns, &before,
                                          &(struct scheduler_job_stored){.at = {0, 50}}, error);
    }
    case 2:
    case 3:
        return fixture_sync(cluster, now_ns, &workers[number - 2], error);
    case 4:
        return scheduler_cluster_job_open(cluster, now_ns, &request, error);
    case 5:
        request.job = "other";
        request.has_seed = true;
        return scheduler_cluster_job_open(cluster, now_ns, &request, error);
    case 6:
        return fixture_sync(cluster, now_ns, &workers[0], error);
    case 7: /* the other worker's fingerprints were waited for long enough */
        scheduler_cluster_tick(cluster, now_ns + SECOND);
        return BASE_OK;
    default:
        return scheduler_cluster_job_sync(cluster, now_ns, &report, error);
    }
}

/* What anybody can see of it, but for revisions. */
static void describe(const struct scheduler_cluster *cluster, char *text, size_t room)
{
    size_t used = 0;
    for (int i = 0; i < scheduler_cluster_worker_count(cluster); i++) {
        const struct scheduler_worker *worker = scheduler_cluster_worker_at(cluster, i);
        used +=
            (size_t)snprintf(text + used, room - used, "worker %d %d\n", (int)worker->id, (int)worker->state);
    }
    used +=
        (size_t)snprintf(text + used, room - used, "%d streams\n", scheduler_cluster_stream_count(cluster));
    for (int i = 0; i < scheduler_cluster_job_count(cluster); i++) {
        const struct scheduler_job *job = scheduler_cluster_job_at(cluster, i);
        used +=
            (size_t)snprintf(text + used, room - used, "job %s %s %d %d: %s; worker 3 has %d slots\n",
                             job->id, scheduler_job_state_name(job->state), job->ranks_open, job->ranks_live,
                             job->reason, job->stream ? fixture_held(job->stream, 3) : 0);
    }
    assert_true(used < room);
}

static void take_all(struct scheduler_cluster *cluster)
{
    uint8_t hash[BASE_SHA256_BYTES];
    char id[SCHEDULER_JOB_CHARS];
    bool gone;
    while (scheduler_cluster_take_stream(cluster, hash, &gone))
        assert_true(gone || scheduler_cluster_stream(cluster, hash));
    while (scheduler_cluster_take_job(cluster, id, &gone))
        assert_true(gone || scheduler_cluster_job(cluster, id));
}

/* As the server does: to its deadlines, but never beyond a lease. */
static int64_t pass_time(struct scheduler_cluster *cluster, int64_t now_ns)
{
    int64_t until_ns = now_ns + 5 * SECOND;
    for (int64_t at; (at = scheduler_cluster_deadline_ns(cluster)) < until_ns;
         now_ns = at > now_ns ? at : now_ns + MS)
        scheduler_cluster_tick(cluster, at > now_ns ? at : now_ns + MS);
    scheduler_cluster_tick(cluster, until_ns);
    return until_ns;
}

struct life {
    int victim; /* the event that memory runs out in */
    char expected[4096];
};

static enum base_code live(void *context, struct base_error *error)
{
    struct life *life = context;
    struct scheduler_cluster *cluster = NULL;
    struct inject_plan plan = inject_pause();
    enum base_code code = BASE_OK, second;
    char seen[4096];
    int64_t now_ns = SECOND;
    const struct scheduler_cluster_options options = {.restart_ms = 1}; /* no deadline helps it along later */
    assert_int_equal(scheduler_cluster_create(&cluster, &options, NULL), BASE_OK);
    for (int i = 0; i < EVENTS; i++, now_ns += 10 * MS) {
        if (i != life->victim) {
            assert_int_equal(event(cluster, i, now_ns, NULL), BASE_OK);
            continue;
        }
        inject_start(&plan);
        code = event(cluster, i, now_ns, error);
        inject_stop();
        take_all(cluster);
        second = code == BASE_OK ? BASE_OK : event(cluster, i, now_ns, NULL);
        assert_int_equal(second, BASE_OK);
    }
    now_ns = pass_time(cluster, now_ns);
    describe(cluster, seen, sizeof seen);
    if (!life->expected[0])
        strcpy(life->expected, seen);
    assert_string_equal(seen, life->expected);
    pass_time(cluster, now_ns + 4000 * SECOND); /* everybody is lost, then forgotten */
    take_all(cluster);
    scheduler_cluster_destroy(cluster);
    return code;
}

static void every_event(void **state)
{
    (void)state;
    struct life life = {.victim = -1};
    struct base_error none;
    assert_int_equal(live(&life, &none), BASE_OK);
    print_message("%s", life.expected);
    for (life.victim = 0; life.victim < EVENTS - 1; life.victim++) /* the last needs no memory */ {
        char name[32];
        snprintf(name, sizeof name, "cluster: event %d", life.victim);
        inject_each(name, INJECT_MEMORY, live, &life);
    }
}

static enum base_code create(void *context, struct base_error *error)
{
    (void)context;
    struct scheduler_cluster *cluster = NULL;
    enum base_code code = scheduler_cluster_create(&cluster, NULL, error);
    inject_stop();
    assert_int_equal(cluster != NULL, code == BASE_OK);
    scheduler_cluster_destroy(cluster);
    return code;
}

static enum base_code make_order(void *context, struct base_error *error)
{
    (void)context;
    struct scheduler_order *order = NULL;
    enum base_code code = scheduler_order_create(&order, true, 1, 2, 1000, error);
    inject_stop();
    if (code == BASE_OK)
        assert_true(scheduler_order_position(order, scheduler_order_item(order, 7)) == 7);
    scheduler_order_destroy(order);
    return code;
}

static void creating(void **state)
{
    (void)state;
    inject_each("order", INJECT_MEMORY, make_order, NULL);
    inject_each("cluster: create", INJECT_MEMORY, create, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(creating), cmocka_unit_test(every_event)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

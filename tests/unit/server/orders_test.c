/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What workers are told of live streams, from the machine to what a worker makes of it: whatever answers are lost or come late, it ends
 * up with all of it; no answer is larger than a message.
 */
#include "server/replies.h"
#include "tests/unit/scheduler/cluster_fixture.h"
#include "worker/orders.h"

#include "base/philox.h"
#include "scheduler/cluster_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 12, JOBS = 60, CROWD = 300, STREAMS = 160, ANSWERS_MOST = 40 };

#define LONG_ID (UINT64_C(1) << 62) /* as workers draw them */

static struct server server;
static char dir[64];
static int64_t now;
static int plans_missing; /* of what was told, where there is one */

static int setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    server = (struct server){0};
    strcpy(dir, "/tmp/millrace-orders-XXXXXX");
    return !mkdtemp(dir) || store_open(&server.store, dir, NULL) ||
           server_datasets_create(&server.datasets, server.store, 1, NULL) ||
           scheduler_cluster_create(&server.cluster, NULL, NULL);
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    scheduler_cluster_destroy(server.cluster);
    server_datasets_destroy(server.datasets);
    store_close(&server.store);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void settle(void)
{
    for (int i = 0; i < 20000 && scheduler_cluster_deadline_ns(server.cluster) <= now; i++)
        scheduler_cluster_tick(server.cluster, now);
}

static void open_job(int number)
{
    char id[16];
    struct base_error error;
    snprintf(id, sizeof id, "job-%d", number);
    struct scheduler_job_request request = fixture_request(id);
    request.has_seed = true;
    request.seed = (uint64_t)number;
    assert_int_equal(scheduler_cluster_job_open(server.cluster, now, &request, &error), BASE_OK);
}

static struct fake_worker maker(uint64_t id)
{
    return (struct fake_worker){.id = id, .incarnation = 1, .weight = 2, .bits = 0xaa};
}

/* ---- a worker that asks ---- */

struct asker {
    struct worker_orders orders;
    uint64_t seen;
};

static void fill(const struct asker *asker, uint64_t id, Millrace__V1__WorkerSync *sync)
{
    static ProtobufCBinaryData wanted[WORKER_ORDERS_WANTED];
    millrace__v1__worker_sync__init(sync);
    sync->worker = id;
    sync->seen_revision = asker->seen;
    sync->told = asker->orders.whole ? asker->orders.whole->told : 0;
    sync->plans_told = asker->orders.whole ? asker->orders.whole->plans_told : 0;
    memcpy(wanted, asker->orders.wanted, sizeof wanted);
    sync->wanted = wanted;
    sync->n_wanted = asker->orders.wanted_count;
}

/* Returns how large the answer was. */
static size_t ask(struct asker *asker, uint64_t id, bool lost)
{
    struct server_arena arena;
    Millrace__V1__WorkerSync sync;
    fill(asker, id, &sync);
    server_arena_init(&arena);
    const Millrace__V1__WorkerOrders *reply = server_replies_orders(&arena, &server, &sync);
    assert_non_null(reply);
    assert_false(arena.failed);
    size_t bytes = millrace__v1__worker_orders__get_packed_size(reply);
    assert_true(bytes <= SERVER_REPLIES_MESSAGE_BYTES);
    for (size_t i = 0; i < reply->n_streams; i++)
        plans_missing += reply->streams[i]->plan_version != 0 && !reply->streams[i]->plan;
    if (!lost && worker_orders_take(&asker->orders, reply) == WORKER_ORDERS_TAKEN)
        asker->seen = reply->revision;
    server_arena_fini(&arena);
    return bytes;
}

static bool is_behind(const struct asker *asker, uint64_t id)
{
    Millrace__V1__WorkerSync sync;
    fill(asker, id, &sync);
    return server_replies_orders_revision(&server, id) != asker->seen ||
           server_replies_orders_behind(&server, &sync);
}

static int catch_up(struct asker *asker, uint64_t id)
{
    int answers = 0;
    for (; is_behind(asker, id) && answers < ANSWERS_MOST; answers++)
        ask(asker, id, false);
    assert_false(is_behind(asker, id));
    return answers;
}

static const Millrace__V1__StreamOrder *order_of(const struct asker *asker, const uint8_t *hash)
{
    for (size_t i = 0; i < asker->orders.whole->n_streams; i++)
        if (memcmp(asker->orders.whole->streams[i]->stream->hash.data, hash, BASE_SHA256_BYTES) == 0)
            return asker->orders.whole->streams[i];
    return NULL;
}

static uint64_t home_at(const Millrace__V1__Plan *plan, int slot)
{
    unsigned index = plan->primary.data[2 * slot] | plan->primary.data[2 * slot + 1] << 8;
    return index < plan->n_workers ? plan->workers[index]->worker : SCHEDULER_PLAN_NOBODY;
}

static void check_order(const Millrace__V1__StreamOrder *order, const struct scheduler_live_stream *live)
{
    size_t jobs = 0;
    assert_non_null(order);
    assert_int_equal(order->plan != NULL, live->planned);
    for (int slot = 0; order->plan && slot < SCHEDULER_PLAN_SLOTS; slot++)
        assert_int_equal(home_at(order->plan, slot), live->plan.primary[slot]);
    for (const struct scheduler_job *job = scheduler_cluster_reader_next(live, NULL); job;
         job = scheduler_cluster_reader_next(live, job))
        if (job->state == SCHEDULER_JOB_RUNNING || job->state == SCHEDULER_JOB_WAITING)
            jobs++;
    assert_int_equal(order->n_live, jobs);
}

/* It knows of all its live streams all that there is, and of no others. */
static void check(const struct asker *asker, uint64_t id)
{
    const struct scheduler_live_stream *live;
    size_t served = 0;
    for (; (live = scheduler_cluster_served_at(server.cluster, id, (int)served)); served++)
        check_order(order_of(asker, live->identity.hash), live);
    assert_int_equal(asker->orders.whole->n_streams, served);
}

/* ---- tests ---- */

static void all_that_there_is_comes_in_several_answers(void **state)
{
    (void)state;
    struct asker asker = {.seen = 0};
    const uint64_t me = LONG_ID + 1;
    for (int i = 0; i < STREAMS; i++)
        open_job(i);
    for (uint64_t id = me; id <= LONG_ID + CROWD; id++) {
        struct fake_worker worker = maker(id);
        for (int i = 0; i < STREAMS; i += 16) /* the fixture answers 16 probes a time */
            assert_int_equal(fixture_sync(server.cluster, now, &worker, NULL), BASE_OK);
    }
    settle();
    now += 2 * SECOND;
    scheduler_cluster_tick(server.cluster, now);
    settle();
    assert_int_equal(scheduler_cluster_stream_count(server.cluster), STREAMS);
    plans_missing = 0;
    assert_in_range(catch_up(&asker, me), 2, 4);
    check(&asker, me);
    assert_true(plans_missing == 0);
    assert_true(ask(&asker, me, false) < 1000); /* nothing has changed */
    struct scheduler_job_report report = {.job = "job-7", .generation = 1};
    assert_int_equal(scheduler_cluster_job_close(server.cluster, now, &report, NULL), BASE_OK);
    settle();
    assert_true(is_behind(&asker, me));
    assert_true(ask(&asker, me, false) <
                10000); /* of one stream, without its plan, and the names of the others */
    check(&asker, me);
    scheduler_cluster_worker_leave(server.cluster, now, LONG_ID + CROWD, 1);
    now += 2 * SECOND;
    settle();
    scheduler_cluster_tick(server.cluster, now);
    settle();
    catch_up(&asker, me);
    check(&asker, me);
    worker_orders_fini(&asker.orders);
}

/* One history: workers come, go, drain and change their bits; jobs come and go; answers are lost; askers start anew. */
static void live_through(uint64_t seed)
{
    struct asker askers[WORKERS] = {{.seen = 0}};
    uint64_t draws = 0;
    bool here[WORKERS] = {false};
    uint64_t incarnations[WORKERS] = {0}, generation = 1;
    if (seed % 2)
        server.cluster->step_work = 1; /* they ask in the midst of settling */
    for (int event = 0; event < 200; event++) {
        uint64_t w = base_philox_below(seed, 0, draws++, WORKERS),
                 kind = base_philox_below(seed, 0, draws++, 10);
        int job = (int)base_philox_below(seed, 0, draws++, JOBS);
        struct fake_worker worker = maker(w + 1);
        now += (int64_t)base_philox_below(seed, 0, draws++, 300) * MS;
        if (kind < 2)
            open_job(job);
        char id[16];
        snprintf(id, sizeof id, "job-%d", job);
        struct scheduler_job_report report = {.job = id, .generation = generation};
        if (kind == 2)
            scheduler_cluster_job_close(server.cluster, now, &report, NULL);
        if (kind == 3 && here[w]) {
            scheduler_cluster_worker_leave(server.cluster, now, w + 1, incarnations[w] + 1);
            here[w] = false;
        }
        if (kind == 4) {
            worker_orders_fini(&askers[w].orders);
            askers[w].seen = 0;
            incarnations[w]++;
        }
        if (kind >= 4) {
            worker.incarnation = incarnations[w] + 1;
            worker.bits = incarnations[w] % 3 == 2 ? 0xbb : 0xaa;
            worker.draining = incarnations[w] % 5 == 4;
            assert_int_equal(fixture_sync(server.cluster, now, &worker, NULL), BASE_OK);
            here[w] = true;
            ask(&askers[w], w + 1, base_philox_below(seed, 0, draws++, 4) == 0);
        }
        scheduler_cluster_tick(server.cluster, now);
        if (event % 10)
            continue;
        settle();
        for (uint64_t i = 0; i < WORKERS; i++)
            if (scheduler_cluster_worker(server.cluster, i + 1)) {
                catch_up(&askers[i], i + 1);
                check(&askers[i], i + 1);
            }
    }
    for (int i = 0; i < WORKERS; i++)
        worker_orders_fini(&askers[i].orders);
}

static void whatever_happens_they_end_up_with_all_of_it(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        live_through(seed);
        teardown(state);
        assert_int_equal(setup(state), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_that_there_is_comes_in_several_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(whatever_happens_they_end_up_with_all_of_it, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

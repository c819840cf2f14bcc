/* SPDX-License-Identifier: Apache-2.0 */
/* The library where its cluster does odd things, and at the edges of what may be asked of it. */
#include "tests/unit/client/bench.h"

#include "base/clock.h"
#include "proto/manifest/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A worker that has no pages: its refusals are no reason to ask faster, and the others are asked, too. */
static void test_pages_of_another_worker(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    char path[] = "/tmp/millrace-manifest-XXXXXX";
    struct mr_error error;
    struct mr_item item;
    struct bench bench = {0};
    (void)state;
    bench_make_manifest(&cluster, path);
    for (int bad = 1; bad <= 2; bad++) {
        bench_open_client(&bench, &cluster);
        fake_set_manner(bench.fake, bad, FAKE_RETRY, -1);
        bench_open_job(&bench, &options);
        if (mr_job_item(bench.job, 7, &item, BENCH_WAIT_MS, &error) != MR_OK)
            fail_msg("%s", error.text);
        mr_job_close(&bench.job);
        fake_set_manner(bench.fake, 3 - bad, FAKE_RETRY, -1);
        bench_open_job(&bench, &options);
        int before = fake_pages(bench.fake, 1) + fake_pages(bench.fake, 2);
        assert_int_not_equal(mr_job_item(bench.job, 7, &item, 1000, &error), MR_OK);
        int asked = fake_pages(bench.fake, 1) + fake_pages(bench.fake, 2) - before;
        if (asked > 40)
            fail_msg("%d pages asked for in a second", asked);
        bench_close_all(&bench);
    }
    unlink(path);
}

/* FAIL with the code of success is an error like any other, not a step that never comes. */
static void test_fail_of_nothing(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    bench_open_client(&bench, &cluster);
    fake_set_manner(bench.fake, 1, FAKE_FAIL_OK, -1);
    fake_set_manner(bench.fake, 2, FAKE_FAIL_OK, -1);
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_INTERNAL);
    assert_non_null(strstr(error.text, "no such file"));
    bench_close_all(&bench);
}

/* A server that lost its state, the dataset too, is asked now and then; the job goes on. */
static void test_forgotten_by_the_server(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    (void)state;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    fake_forget_jobs(bench.fake);
    usleep(300000); /* the poll under way, if any, has its answer now */
    int before = fake_asks(bench.fake);
    usleep(1500000);
    int asked = fake_asks(bench.fake) - before;
    if (asked < 2 || asked > 20)
        fail_msg("%d calls in 1.5 s", asked);
    bench_read_all(&bench, 0, 700, NULL);
    bench_close_all(&bench);
}

static void test_limits_of_time_and_of_batches(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *held[3];
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    bench_open_client(&bench, &cluster);
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, INT64_MAX, &error), MR_OK);
    assert_int_equal(mr_job_next(bench.job, &held[0], INT64_MAX, &error), MR_OK);
    assert_int_equal(mr_job_next(bench.job, &held[1], BENCH_WAIT_MS, &error), MR_OK);
    assert_int_equal(mr_job_next(bench.job, &held[2], BENCH_WAIT_MS, &error), MR_BUSY); /* look-ahead: two */
    assert_non_null(strstr(error.text, "release"));
    bench_check_batch(&bench, held[0]);
    bench_check_batch(&bench, held[1]);
    mr_batch_release(held[0]);
    assert_int_equal(mr_job_next(bench.job, &held[2], BENCH_WAIT_MS, &error), MR_OK);
    bench_check_batch(&bench, held[1]);
    mr_batch_release(held[2]);
    mr_batch_release(held[1]);
    fake_kill_worker(bench.fake, 1);
    fake_kill_worker(bench.fake, 2);
    for (int i = 0; i < 3 && mr_job_next(bench.job, &held[0], 0, &error) == MR_OK; i++)
        mr_batch_release(held[0]); /* what was there already */
    assert_int_equal(mr_job_next(bench.job, &held[0], -5, &error), MR_TIMEOUT);
    bench_close_all(&bench);
}

/* ---- memory and shapes at the edge ---- */

static void test_memory_that_cannot_be_used(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_error error;
    struct bench bench = {0};
    struct bench_pool pool = {.misplaced_bytes = 8};
    (void)state;
    bench_open_client(&bench, &cluster);
    options.slot_context = &pool;
    options.slot_allocate = bench_pool_allocate;
    options.slot_free = bench_pool_free;
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, BENCH_WAIT_MS, &error), MR_NO_MEMORY);
    assert_non_null(strstr(error.text, "aligned to 64"));
    pool.refuses = true;
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, BENCH_WAIT_MS, &error), MR_NO_MEMORY);
    assert_int_equal(pool.refused, 1);
    assert_int_equal(pool.live, 0);
    assert_int_equal(fake_closes(bench.fake), 2); /* the server is told of both */
    bench_close_all(&bench);
}

/* More ranks than positions: the last ones have a step without rows, and the same number of steps. */
static void test_more_ranks_than_positions(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    uint64_t rows = 0;
    (void)state;
    cluster.items = 7;
    bench_open_client(&bench, &cluster);
    for (uint32_t rank = 0; rank < 10; rank++) {
        struct mr_job_options options = bench_job_options();
        options.job = "wide";
        options.world = 10;
        options.rank = rank;
        options.batch = 3;
        bench_open_job(&bench, &options);
        assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_OK);
        assert_int_equal(batch->steps, 1);
        assert_true(batch->rows <= 1 && batch->valid_rows == batch->rows);
        for (int f = 0; f < batch->field_count && batch->rows == 0; f++)
            assert_int_equal(batch->fields[f].bytes, 0);
        rows += batch->rows;
        mr_batch_release(batch);
        assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_END);
        mr_job_close(&bench.job);
    }
    assert_int_equal(rows, 7);
    bench_close_all(&bench);
}

/* ---- ends ---- */

static int64_t ms_to_close(struct bench *bench)
{
    int64_t start_ns = base_clock_now_ns();
    mr_job_close(&bench->job);
    assert_int_equal(mr_client_close(&bench->client), MR_OK);
    return (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
}

/* Each promises less than a second, whoever hangs. */
static void test_closing_in_every_state(void **state)
{
    static const enum fake_manner manners[] = {FAKE_GOOD, FAKE_SILENT, FAKE_SLOW, FAKE_RETRY, FAKE_REFUSE};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof manners / sizeof manners[0]; i++) {
        struct fake_options cluster = bench_fake_options();
        struct mr_job_options options = bench_job_options();
        struct mr_batch *batch;
        struct bench bench = {0};
        bench_open_client(&bench, &cluster);
        for (int worker = 1; worker <= 2; worker++)
            fake_set_manner(bench.fake, worker, manners[i / 2], -1);
        bench_open_job(&bench, &options);
        if (i % 2 == 1) {
            mr_job_next(bench.job, &batch, 200, NULL); /* in the middle of things; never released */
            fake_stop_server(bench.fake);
        }
        int64_t took_ms = ms_to_close(&bench);
        fake_stop(bench.fake);
        if (took_ms > 1000)
            fail_msg("closing in manner %d took %lld ms", (int)manners[i / 2], (long long)took_ms);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_of_another_worker),
        cmocka_unit_test(test_fail_of_nothing),
        cmocka_unit_test(test_forgotten_by_the_server),
        cmocka_unit_test(test_limits_of_time_and_of_batches),
        cmocka_unit_test(test_memory_that_cannot_be_used),
        cmocka_unit_test(test_more_ranks_than_positions),
        cmocka_unit_test(test_closing_in_every_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

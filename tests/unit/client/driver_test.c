/* SPDX-License-Identifier: Apache-2.0 */
/* The library through its public header, against a fake cluster that breaks in each way the wire can. */
#include "base/clock.h"
#include "proto/manifest/manifest.h"
#include "tests/unit/client/bench.h"

#include <pthread.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- tests ---- */

static void test_quiet(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    (void)state;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    struct mr_job_info info = {.size = sizeof info};
    assert_int_equal(mr_job_info(bench.job, &info, NULL), MR_OK);
    assert_int_equal(info.items, 700);
    assert_int_equal(info.steps, 14);
    assert_int_equal(info.class_count, 2);
    assert_string_equal(info.classes[1], "dog");
    assert_int_equal(mr_client_close(&bench.client), MR_BUSY);
    bench_read_all(&bench, 0, 700, NULL);
    struct mr_job_stats stats = bench_stats(&bench);
    assert_int_equal(stats.rows, 700);
    assert_int_equal(stats.batches, 14);
    assert_true(stats.failovers == 0 && stats.retries == 0 && stats.bad_frames == 0 && stats.reconnects == 0);
    mr_job_close(&bench.job);
    assert_int_equal(fake_closes(bench.fake), 1);
    assert_int_equal(fake_closed_rows(bench.fake), 700); /* syncs are a second apart: the end must say it */
    bench_close_all(&bench);
}

static void test_padding_with_ragged_fields(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    struct mr_batch *batch;
    struct mr_error error;
    uint32_t padded = 0;
    (void)state;
    cluster.items = 130;
    options.tail = MR_TAIL_PAD;
    options.epochs = 2;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    while (mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error) == MR_OK) {
        assert_int_equal(batch->rows, 50);
        bench_check_batch(&bench, batch);
        padded += batch->rows - batch->valid_rows;
        for (uint32_t row = 0; row < batch->rows; row++)
            assert_int_equal(batch->valid[row], row < batch->valid_rows);
        mr_batch_release(batch);
    }
    assert_int_equal(error.code, MR_END);
    assert_int_equal(padded, 40);
    bench_close_all(&bench);
}

static void test_faults(void **state)
{
    static const struct {
        const char *what;
        enum fake_manner manner;
        int times;
        bool bad_frames;
    } cases[] = {
        {"reset in mid part", FAKE_RESET_MID_PART, 3, false},
        {"silence", FAKE_SILENT, 4, false},
        {"garbage", FAKE_GARBAGE, 2, true},
        {"a wrong hash", FAKE_WRONG_HASH, 2, true},
        {"a wrong item", FAKE_WRONG_ITEM, 2, true},
        {"another part", FAKE_WRONG_PART, 2, true},
        {"refusal", FAKE_REFUSE, 2, false},
        {"resets for good", FAKE_RESET_MID_PART, -1, false},
        {"a slow line", FAKE_SLOW, 1, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake_options cluster = bench_fake_options();
        struct mr_job_options options = bench_job_options();
        struct bench bench = {0};
        bench_open_client(&bench, &cluster);
        fake_set_manner(bench.fake, 1, cases[i].manner, cases[i].times);
        if (cases[i].manner == FAKE_SILENT)
            options.stall_ms = 300;
        if (cases[i].manner == FAKE_SLOW)
            options.stall_ms = 700; /* less than a run of its bytes takes */
        bench_open_job(&bench, &options);
        bench_read_all(&bench, 0, 700, NULL);
        struct mr_job_stats stats = bench_stats(&bench);
        print_message("%s: %llu requests, %llu failovers, %llu reconnects, %llu bad frames\n", cases[i].what,
                      (unsigned long long)stats.requests, (unsigned long long)stats.failovers,
                      (unsigned long long)stats.reconnects, (unsigned long long)stats.bad_frames);
        if (cases[i].manner == FAKE_SLOW)
            assert_true(stats.failovers == 0 && stats.reconnects == 0);
        else
            assert_true(stats.failovers > 0 || cases[i].manner == FAKE_REFUSE);
        assert_int_equal(stats.bad_frames > 0, cases[i].bad_frames);
        bench_close_all(&bench);
    }
}

static void kill_and_revive(struct bench *bench, uint64_t step)
{
    if (step == 2)
        fake_kill_worker(bench->fake, 1);
    if (step == 6)
        fake_revive_worker(bench->fake, 1);
    if (step == 8)
        fake_stop_server(bench->fake); /* nobody notices */
    if (step == 9)
        fake_kill_worker(bench->fake, 2);
}

static void test_deaths_and_no_server(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    (void)state;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    bench_read_all(&bench, 0, 700, kill_and_revive);
    bench_close_all(&bench);
}

static void test_nobody_there(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *batch = NULL;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    bench_open_client(&bench, &cluster);
    fake_kill_worker(bench.fake, 1);
    fake_kill_worker(bench.fake, 2);
    bench_open_job(&bench, &options);
    int64_t start_ns = base_clock_now_ns();
    assert_int_equal(mr_job_next(bench.job, &batch, 400, &error), MR_TIMEOUT);
    int64_t took_ms = (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
    assert_true(took_ms >= 399 && took_ms < 5000);
    if (!strstr(error.text, "0 of 2 workers up"))
        fail_msg("%s", error.text);
    assert_null(batch);
    fake_revive_worker(bench.fake, 2);
    bench_read_all(&bench, 0, 700, NULL);
    bench_close_all(&bench);
}

static void test_unavailable(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    options.unavailable_ms = 200;
    bench_open_client(&bench, &cluster);
    fake_set_manner(bench.fake, 1, FAKE_RETRY, -1);
    fake_set_manner(bench.fake, 2, FAKE_RETRY, -1);
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_UNAVAILABLE);
    if (!strstr(error.text, "dataset photos") || !strstr(error.text, "item 3: no such file"))
        fail_msg("%s", error.text);
    assert_int_equal(mr_job_next(bench.job, &batch, 50, &error), MR_TIMEOUT);
    fake_set_manner(bench.fake, 1, FAKE_GOOD, 0);
    fake_set_manner(bench.fake, 2, FAKE_GOOD, 0);
    bench.tolerated = MR_UNAVAILABLE; /* what was said before may still stand for later steps */
    bench_read_all(&bench, 0, 700, NULL);
    bench_close_all(&bench);
}

static void test_finish_and_own_memory(void **state)
{
    static const float means[] = {0.485f, 0.456f, 0.406f}, stds[] = {0.229f, 0.224f, 0.225f};
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    struct bench_pool pool = {0};
    (void)state;
    options.fields = NULL;
    options.apply_finish = 1;
    options.look_ahead = 4;
    options.slot_allocate = bench_pool_allocate;
    options.slot_free = bench_pool_free;
    options.slot_context = &pool;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    assert_int_equal(pool.live, 5);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_OK);
    const struct mr_field *image = mr_batch_field(batch, "image");
    assert_null(mr_batch_field(batch, "box"));
    assert_int_equal(image->dtype, MR_F32);
    assert_int_equal(image->rank, 4);
    assert_true(image->dims[0] == 50 && image->dims[1] == 3 && image->dims[2] == 64 && image->dims[3] == 64);
    assert_int_equal(image->bytes, 50 * 3 * 64 * 64 * 4);
    const float *values = image->data;
    for (uint32_t row = 0; row < 50; row++)
        for (uint64_t i = 0; i < 3 * 64 * 64; i++) {
            float x = fake_value(0, row, 0, i), want = (x / 255.0f - means[i % 3]) / stds[i % 3];
            assert_true(values[row * 3 * 64 * 64 + i % 3 * 64 * 64 + i / 3] == want);
        }
    mr_batch_release(batch);
    bench_close_all(&bench);
    assert_int_equal(pool.live, 0);
    assert_int_equal(pool.peak, 5);
}

static float value_at(const struct mr_finish *finish, uint32_t row, uint64_t i)
{
    return (fake_value(0, row, 0, i) / 255.0f - finish->mean[i % 3]) / finish->std[i % 3];
}

static void test_batch_ops(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_finish finish = {.size = sizeof finish};
    struct mr_batch_draw draw;
    struct mr_row_draw rows[50];
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    cluster.pipeline = "sample: Decode RandomResizedCrop(size=16) | finish: ToDtype(dtype=float32) Normalize "
                       "| batch: MixUp";
    options.fields = NULL;
    options.apply_finish = 1;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_finish(bench.job, &finish, &error), MR_OK);
    assert_true(finish.dtype == MR_F32 && !finish.channels_first && finish.normalizes && finish.classes == 2);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_OK);
    const struct mr_field *image = mr_batch_field(batch, "image"), *label = mr_batch_field(batch, "label");
    assert_true(label->dtype == MR_F32 && label->rank == 2 && label->dims[0] == 50 && label->dims[1] == 2);
    assert_int_equal(label->bytes, 50 * 2 * 4);
    mr_finish_draw(&finish, batch, 16, 16, &draw, rows);
    assert_int_equal(draw.mix, MR_MIX_UP);
    for (uint32_t row = 0; row < 50; row++)
        for (uint64_t i = 0; i < 16 * 16 * 3; i++)
            assert_true(((const float *)image->data)[row * 768 + i] ==
                        value_at(&finish, row, i) * draw.share +
                            value_at(&finish, row > 0 ? row - 1 : 49, i) * draw.partner_share);
    mr_batch_release(batch);
    bench_close_all(&bench);
}

static void test_cursor(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *batch[3];
    struct mr_error error;
    struct bench bench = {0};
    uint32_t epoch = 7;
    (void)state;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mr_job_next(bench.job, &batch[i], BENCH_WAIT_MS, &error), MR_OK);
        assert_int_equal(batch[i]->cursor.position, 50 * (i + 1));
        assert_memory_equal(batch[i]->cursor.stream, fake_stream(bench.fake)->hash, 32);
        assert_memory_equal(batch[i]->cursor.dataset_version, fake_stream(bench.fake)->dataset_version, 32);
    }
    assert_int_equal(mr_job_next(bench.job, &batch[2], BENCH_WAIT_MS, &error), MR_BUSY);
    mr_batch_release(batch[0]);
    mr_batch_release(batch[1]);
    mr_job_close(&bench.job);

    options.start_epoch = &epoch; /* looking at one place */
    options.start_position = 650;
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch[0], BENCH_WAIT_MS, &error), MR_OK);
    assert_true(batch[0]->stream_epoch == 7 && batch[0]->epoch == 0 && batch[0]->steps == 1);
    assert_int_equal(batch[0]->row[0].position, 650);
    assert_true(batch[0]->cursor.epoch == 8 && batch[0]->cursor.position == 0 &&
                batch[0]->cursor.first_epoch == 7);
    bench_check_batch(&bench, batch[0]);
    mr_batch_release(batch[0]);
    assert_int_equal(mr_job_next(bench.job, &batch[0], BENCH_WAIT_MS, &error), MR_END);
    bench_close_all(&bench);
}

static void test_seek(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_batch *held, *batch;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    options.epochs = 0;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &held, BENCH_WAIT_MS, &error), MR_OK);
    struct mr_cursor to = held->cursor, bad = to;
    for (uint32_t epoch = 5; epoch-- > 1;) { /* backwards, with requests under way */
        to.epoch = epoch;
        to.position = 50 * epoch;
        assert_int_equal(mr_job_seek(bench.job, &to, &error), MR_OK);
        assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_OK);
        assert_true(batch->stream_epoch == epoch && batch->row[0].position == 50 * epoch && batch->step == 0);
        bench_check_batch(&bench, batch);
        mr_batch_release(batch);
    }
    bench_check_batch(&bench, held);
    bad.stream[3] ^= 1;
    assert_int_equal(mr_job_seek(bench.job, &bad, &error), MR_CONFLICT);
    assert_non_null(strstr(error.text, "stream"));
    bad.dataset_version[3] ^= 1;
    assert_int_equal(mr_job_seek(bench.job, &bad, &error), MR_CONFLICT);
    assert_non_null(strstr(error.text, "dataset version"));
    to.position = 1 << 30;
    assert_int_equal(mr_job_seek(bench.job, &to, &error), MR_INVALID);
    mr_batch_release(held);
    bench_close_all(&bench);
}

/* ---- bad rows and names ---- */

/* Calls as short as Python's, or that only look: the name is asked for across them. */
static void short_calls_name_it(struct bench *bench, const char *words)
{
    int64_t deadline_ns = base_clock_deadline_ns(BENCH_WAIT_MS);
    enum mr_code code = MR_TIMEOUT;
    struct mr_batch *batch;
    struct mr_error error;
    for (int64_t i = 0; code == MR_TIMEOUT && base_clock_now_ns() < deadline_ns; i++)
        code = mr_job_next(bench->job, &batch, i % 3, &error);
    assert_int_equal(code, MR_BAD_SAMPLE);
    if (!strstr(error.text, words))
        fail_msg("%s", error.text);
}

static void test_bad_rows_and_names(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    char path[] = "/tmp/millrace-manifest-XXXXXX";
    struct mr_batch *batch;
    struct mr_error error;
    struct mr_item item;
    struct bench bench = {0};
    (void)state;
    bench_make_manifest(&cluster, path);
    cluster.bad_position = 3;
    cluster.bad_status = MR_ROW_SUBSTITUTED;
    options.batch = 10;
    bench_open_client(&bench, &cluster);

    bench_open_job(&bench, &options);
    for (uint64_t i = 0; i < 15000; i += 2999) {
        if (mr_job_item(bench.job, i, &item, BENCH_WAIT_MS, &error) != MR_OK)
            fail_msg("%s", error.text);
        char name[64];
        snprintf(name, sizeof name, "cat/picture-%06d.jpg", (int)i);
        assert_string_equal(item.name, name);
        assert_true(item.label == (int32_t)(i % 2) && item.size_bytes == 1000 + i);
    }
    assert_int_equal(mr_job_item(bench.job, 15000, &item, BENCH_WAIT_MS, &error), MR_NOT_FOUND);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_BAD_SAMPLE);
    struct scheduler_order *order = fake_order(bench.fake, 0);
    uint64_t bad = scheduler_order_item(order, 3);
    char words[96];
    scheduler_order_destroy(order);
    snprintf(words, sizeof words, "dataset photos: item %d (cat/picture-%06d.jpg)", (int)bad, (int)bad);
    if (!strstr(error.text, words) || !strstr(error.text, "bad_truncated"))
        fail_msg("%s", error.text);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error),
                     MR_BAD_SAMPLE); /* it can only be closed */
    mr_job_close(&bench.job);
    bench_open_job(&bench, &options);
    short_calls_name_it(&bench, words);
    mr_job_close(&bench.job);

    static const enum mr_on_bad policies[] = {MR_ON_BAD_SKIP, MR_ON_BAD_REPLACE};
    for (int i = 0; i < 2; i++) {
        options.on_bad = policies[i];
        bench_open_job(&bench, &options);
        assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_OK);
        const int64_t *labels = mr_batch_field(batch, "label")->data;
        assert_int_equal(batch->valid_rows, i == 0 ? 9 : 10);
        assert_int_equal(batch->valid[3], i == 1);
        assert_int_equal(labels[3], i == 0 ? -100 : 3);
        assert_true(batch->row[3].status == MR_ROW_SUBSTITUTED && batch->row[3].used_item == bad + 1);
        assert_string_equal(mr_cause_name(batch->row[3].cause), "bad_truncated");
        struct mr_job_stats stats = bench_stats(&bench);
        assert_true(stats.skipped == (i == 0) && stats.substituted == (i == 1));
        mr_batch_release(batch);
        mr_job_close(&bench.job);
    }
    bench_close_all(&bench);
    unlink(path);
}

/* ---- ends ---- */

static void *next_blocked(void *context)
{
    struct mr_batch *batch;
    return (void *)(uintptr_t)mr_job_next(context, &batch, BENCH_WAIT_MS, NULL);
}

static void test_close_wakes_next(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    pthread_t thread;
    void *code;
    (void)state;
    bench_open_client(&bench, &cluster);
    fake_set_manner(bench.fake, 1, FAKE_SILENT, -1);
    fake_set_manner(bench.fake, 2, FAKE_SILENT, -1);
    bench_open_job(&bench, &options);
    assert_int_equal(pthread_create(&thread, NULL, next_blocked, bench.job), 0);
    usleep(100000); /* most likely it waits by now; either way it must return */
    bench_close_all(&bench);
    pthread_join(thread, &code);
    assert_int_equal((uintptr_t)code, MR_CLOSED);
}

static void test_fork(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    int status;
    (void)state;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    pid_t child = fork();
    if (child == 0) {
        struct mr_batch *batch;
        struct mr_job_stats stats = {.size = sizeof stats};
        bool inert = mr_job_next(bench.job, &batch, 1000, NULL) == MR_CLOSED &&
                     mr_job_stats(bench.job, &stats) == MR_CLOSED;
        struct mr_job *job = NULL;
        inert = inert && mr_job_open(&job, bench.client, &options, 1000, NULL) == MR_CLOSED;
        mr_job_close(&bench.job);
        inert = inert && mr_client_close(&bench.client) == MR_OK && !bench.job && !bench.client;
        struct mr_client_options where = {.size = sizeof where, .server = "127.0.0.1:1"};
        inert = inert && mr_client_open(&bench.client, &where, NULL) == MR_CLOSED;
        _exit(inert ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    bench_read_all(&bench, 0, 700, NULL); /* the parent's go on */
    bench_close_all(&bench);
}

static void test_refusals(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_error error;
    struct bench bench = {0};
    const char *unknown[] = {"image", "depth", NULL}, *twice[] = {"image", "image", NULL};
    (void)state;
    bench_open_client(&bench, &cluster);
    static const double weights[] = {-1, 0.001, 100.1, (double)INFINITY, (double)NAN};
    for (int i = 0; i < 14; i++) {
        struct mr_job_options options = bench_job_options();
        enum mr_code want = MR_INVALID;
        options.dataset = i == 0 ? NULL : options.dataset;
        options.batch = i == 1 ? 0 : i == 2 ? 65536 : options.batch;
        options.rank = i == 3 ? 1 : 0;
        options.world = i == 4 ? 2 : 1; /* without a name to meet under */
        options.size = i == 5 ? 8 : options.size;
        options.fields = i == 6 ? unknown : i == 7 ? twice : options.fields;
        options.weight = i >= 9 ? weights[i - 9] : 0;
        if (i == 8) {
            options.dataset = "nowhere";
            want = MR_NOT_FOUND;
        }
        bench.job = NULL;
        enum mr_code code = mr_job_open(&bench.job, bench.client, &options, BENCH_WAIT_MS, &error);
        if (code != want || bench.job)
            fail_msg("case %d: %s %s", i, mr_code_name(code), error.text);
    }
    fake_stop_server(bench.fake);
    struct mr_job_options options = bench_job_options();
    int64_t start_ns = base_clock_now_ns();
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, 300, &error), MR_TIMEOUT);
    assert_true(base_clock_now_ns() - start_ns < 5 * BASE_NS_PER_S);
    if (!strstr(error.text, fake_server(bench.fake)))
        fail_msg("%s", error.text);
    bench_close_all(&bench);
}

/* Names are resolved off the loop. */
static void test_names(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    (void)state;
    cluster.host = "localhost";
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    bench_read_all(&bench, 0, 700, NULL);
    bench_close_all(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork), /* first: a fork of a process with few threads */
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_padding_with_ragged_fields),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_deaths_and_no_server),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_unavailable),
        cmocka_unit_test(test_finish_and_own_memory),
        cmocka_unit_test(test_batch_ops),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_bad_rows_and_names),
        cmocka_unit_test(test_close_wakes_next),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The library through its public header, against a fake cluster that breaks in each way the wire can. */
#include "millrace/millrace.h"

#include "base/clock.h"
#include "proto/manifest/manifest.h"
#include "tests/unit/client/fake.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define WAIT_MS 20000
#define SAMPLE                                                                                               \
    "sample: Decode RandomResizedCrop(size=64) | finish: ToDtype(dtype=float32) Normalize "                  \
    "Layout(order=NCHW)"

static const char *const all_fields[] = {"label", "image", "encoded", "flip", "box", NULL};

struct bench {
    struct fake *fake;
    struct mr_client *client;
    struct mr_job *job;
    enum mr_code tolerated; /* by read_all: asked again */
};

static struct fake_options fake_options(void)
{
    return (struct fake_options){
        .workers = 2, .items = 700, .pipeline = SAMPLE, .option = "keep_encoded=500"};
}

static struct mr_job_options job_options(void)
{
    return (struct mr_job_options){.size = sizeof(struct mr_job_options),
                                   .dataset = FAKE_DATASET,
                                   .fields = all_fields,
                                   .batch = 50,
                                   .epochs = 1,
                                   .tail = MR_TAIL_EXACT,
                                   .stall_ms = 5000};
}

static void open_client(struct bench *bench, const struct fake_options *options)
{
    struct mr_error error;
    bench->fake = fake_start(options);
    struct mr_client_options where = {.size = sizeof where, .server = fake_server(bench->fake)};
    if (mr_client_open(&bench->client, &where, &error) != MR_OK)
        fail_msg("%s", error.text);
}

static void open_job(struct bench *bench, const struct mr_job_options *options)
{
    struct mr_error error;
    if (mr_job_open(&bench->job, bench->client, options, WAIT_MS, &error) != MR_OK)
        fail_msg("%s", error.text);
}

static void close_all(struct bench *bench)
{
    int64_t start_ns = base_clock_now_ns();
    mr_job_close(&bench->job);
    assert_null(bench->job);
    assert_int_equal(mr_client_close(&bench->client), MR_OK);
    int64_t took_ms = (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
    if (took_ms > 2000) /* each promises less than a second */
        fail_msg("closing took %lld ms", (long long)took_ms);
    fake_stop(bench->fake);
}

static struct mr_job_stats stats_of(struct bench *bench)
{
    struct mr_job_stats stats = {.size = sizeof stats};
    assert_int_equal(mr_job_stats(bench->job, &stats), MR_OK);
    return stats;
}

/* ---- what a batch must hold ---- */

static int made_index(const struct fake *fake, const char *name)
{
    const struct scheduler_pipeline *made = &fake_stream(fake)->pipeline;
    for (int f = 0; f < made->field_count; f++)
        if (strcmp(made->fields[f].name, name) == 0)
            return f;
    fail_msg("field %s is not made", name);
    return -1;
}

static void check_field(const struct bench *bench, const struct mr_batch *batch, const struct mr_field *field)
{
    int made = made_index(bench->fake, field->name);
    const uint8_t *bytes = field->data;
    for (uint32_t row = 0; row < batch->rows; row++) {
        uint64_t position = batch->row[row].position, size = field->bytes / batch->rows, at = row * size;
        if (field->offsets) {
            at = (uint64_t)field->offsets[row];
            size = (uint64_t)(field->offsets[row + 1] - field->offsets[row]);
            assert_int_equal(size, fake_ragged_length(batch->stream_epoch, position));
        }
        if (strcmp(field->name, "label") == 0) {
            if (batch->row[row].status == MR_ROW_OK)
                assert_int_equal(((const int64_t *)field->data)[row], position % 1000);
            continue;
        }
        for (uint64_t i = 0; i < size; i++)
            if (bytes[at + i] != fake_value(batch->stream_epoch, position, made, i))
                fail_msg("epoch %u position %llu: byte %llu of %s", batch->stream_epoch,
                         (unsigned long long)position, (unsigned long long)i, field->name);
    }
}

static void check_batch(const struct bench *bench, const struct mr_batch *batch)
{
    for (uint32_t row = 0; row < batch->rows; row++)
        assert_int_equal(batch->row[row].item, batch->row[row].position + 10000);
    for (int f = 0; f < batch->field_count; f++)
        check_field(bench, batch, &batch->fields[f]);
}

/* To the end of the job: every position once, in order. Calls `between(step)` if given. */
static void read_all(struct bench *bench, uint64_t first, uint64_t items,
                     void (*between)(struct bench *, uint64_t))
{
    struct mr_batch *batch;
    struct mr_error error;
    uint64_t position = first, step = 0;
    enum mr_code code;
    while ((code = mr_job_next(bench->job, &batch, WAIT_MS, &error)) == MR_OK || code == bench->tolerated) {
        if (code != MR_OK)
            continue;
        for (uint32_t row = 0; row < batch->rows; row++)
            assert_int_equal(batch->row[row].position, position++);
        check_batch(bench, batch);
        mr_batch_release(batch);
        if (between)
            between(bench, step);
        step++;
    }
    if (code != MR_END)
        fail_msg("%s: %s", mr_code_name(code), error.text);
    assert_int_equal(error.code, MR_END);
    assert_int_equal(position, items);
}

/* ---- tests ---- */

static void test_quiet(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    (void)state;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    struct mr_job_info info = {.size = sizeof info};
    assert_int_equal(mr_job_info(bench.job, &info, NULL), MR_OK);
    assert_int_equal(info.items, 700);
    assert_int_equal(info.steps, 14);
    assert_int_equal(info.class_count, 2);
    assert_string_equal(info.classes[1], "dog");
    assert_int_equal(mr_client_close(&bench.client), MR_BUSY);
    read_all(&bench, 0, 700, NULL);
    struct mr_job_stats stats = stats_of(&bench);
    assert_int_equal(stats.rows, 700);
    assert_int_equal(stats.batches, 14);
    assert_true(stats.failovers == 0 && stats.retries == 0 && stats.bad_frames == 0 && stats.reconnects == 0);
    mr_job_close(&bench.job);
    assert_int_equal(fake_closes(bench.fake), 1);
    assert_int_equal(fake_closed_rows(bench.fake), 700); /* syncs are a second apart: the end must say it */
    close_all(&bench);
}

static void test_padding_with_ragged_fields(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    struct mr_batch *batch;
    struct mr_error error;
    uint32_t padded = 0;
    (void)state;
    cluster.items = 130;
    options.tail = MR_TAIL_PAD;
    options.epochs = 2;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    while (mr_job_next(bench.job, &batch, WAIT_MS, &error) == MR_OK) {
        assert_int_equal(batch->rows, 50);
        check_batch(&bench, batch);
        padded += batch->rows - batch->valid_rows;
        for (uint32_t row = 0; row < batch->rows; row++)
            assert_int_equal(batch->valid[row], row < batch->valid_rows);
        mr_batch_release(batch);
    }
    assert_int_equal(error.code, MR_END);
    assert_int_equal(padded, 40);
    close_all(&bench);
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
        {"another part", FAKE_WRONG_PART, 2, true},
        {"refusal", FAKE_REFUSE, 2, false},
        {"resets for good", FAKE_RESET_MID_PART, -1, false},
        {"a slow line", FAKE_SLOW, 1, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake_options cluster = fake_options();
        struct mr_job_options options = job_options();
        struct bench bench = {0};
        open_client(&bench, &cluster);
        fake_set_manner(bench.fake, 1, cases[i].manner, cases[i].times);
        if (cases[i].manner == FAKE_SILENT)
            options.stall_ms = 300;
        if (cases[i].manner == FAKE_SLOW)
            options.stall_ms = 700; /* less than a run of its bytes takes */
        open_job(&bench, &options);
        read_all(&bench, 0, 700, NULL);
        struct mr_job_stats stats = stats_of(&bench);
        print_message("%s: %llu requests, %llu failovers, %llu reconnects, %llu bad frames\n", cases[i].what,
                      (unsigned long long)stats.requests, (unsigned long long)stats.failovers,
                      (unsigned long long)stats.reconnects, (unsigned long long)stats.bad_frames);
        if (cases[i].manner == FAKE_SLOW)
            assert_true(stats.failovers == 0 && stats.reconnects == 0);
        else
            assert_true(stats.failovers > 0 || cases[i].manner == FAKE_REFUSE);
        assert_int_equal(stats.bad_frames > 0, cases[i].bad_frames);
        close_all(&bench);
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
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    (void)state;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    read_all(&bench, 0, 700, kill_and_revive);
    close_all(&bench);
}

static void test_nobody_there(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_batch *batch = NULL;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    open_client(&bench, &cluster);
    fake_kill_worker(bench.fake, 1);
    fake_kill_worker(bench.fake, 2);
    open_job(&bench, &options);
    int64_t start_ns = base_clock_now_ns();
    assert_int_equal(mr_job_next(bench.job, &batch, 400, &error), MR_TIMEOUT);
    int64_t took_ms = (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
    assert_true(took_ms >= 399 && took_ms < 5000);
    if (!strstr(error.text, "0 of 2 workers up"))
        fail_msg("%s", error.text);
    assert_null(batch);
    fake_revive_worker(bench.fake, 2);
    read_all(&bench, 0, 700, NULL);
    close_all(&bench);
}

static void test_unavailable(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    options.unavailable_ms = 200;
    open_client(&bench, &cluster);
    fake_set_manner(bench.fake, 1, FAKE_RETRY, -1);
    fake_set_manner(bench.fake, 2, FAKE_RETRY, -1);
    open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_UNAVAILABLE);
    if (!strstr(error.text, "dataset photos") || !strstr(error.text, "item 3: no such file"))
        fail_msg("%s", error.text);
    assert_int_equal(mr_job_next(bench.job, &batch, 50, &error), MR_TIMEOUT);
    fake_set_manner(bench.fake, 1, FAKE_GOOD, 0);
    fake_set_manner(bench.fake, 2, FAKE_GOOD, 0);
    bench.tolerated = MR_UNAVAILABLE; /* what was said before may still stand for later steps */
    read_all(&bench, 0, 700, NULL);
    close_all(&bench);
}

struct pool {
    int live, peak;
    size_t bytes;
};

static void *pool_allocate(void *context, size_t bytes)
{
    struct pool *pool = context;
    pool->live++;
    pool->peak = pool->live > pool->peak ? pool->live : pool->peak;
    pool->bytes = bytes;
    return aligned_alloc(64, bytes);
}

static void pool_free(void *context, void *memory, size_t bytes)
{
    struct pool *pool = context;
    pool->live--;
    assert_int_equal(bytes, pool->bytes);
    free(memory);
}

static void test_finish_and_own_memory(void **state)
{
    static const float means[] = {0.485f, 0.456f, 0.406f}, stds[] = {0.229f, 0.224f, 0.225f};
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    struct pool pool = {0};
    (void)state;
    options.fields = NULL;
    options.apply_finish = 1;
    options.look_ahead = 4;
    options.slot_allocate = pool_allocate;
    options.slot_free = pool_free;
    options.slot_context = &pool;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    assert_int_equal(pool.live, 5);
    assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_OK);
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
    close_all(&bench);
    assert_int_equal(pool.live, 0);
    assert_int_equal(pool.peak, 5);
}

static void test_cursor(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_batch *batch[3];
    struct mr_error error;
    struct bench bench = {0};
    uint32_t epoch = 7;
    (void)state;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mr_job_next(bench.job, &batch[i], WAIT_MS, &error), MR_OK);
        assert_int_equal(batch[i]->cursor.position, 50 * (i + 1));
        assert_memory_equal(batch[i]->cursor.stream, fake_stream(bench.fake)->hash, 32);
        assert_memory_equal(batch[i]->cursor.dataset_version, fake_stream(bench.fake)->dataset_version, 32);
    }
    assert_int_equal(mr_job_next(bench.job, &batch[2], WAIT_MS, &error), MR_BUSY);
    mr_batch_release(batch[0]);
    mr_batch_release(batch[1]);
    mr_job_close(&bench.job);

    options.start_epoch = &epoch; /* looking at one place */
    options.start_position = 650;
    open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch[0], WAIT_MS, &error), MR_OK);
    assert_true(batch[0]->stream_epoch == 7 && batch[0]->epoch == 0 && batch[0]->steps == 1);
    assert_int_equal(batch[0]->row[0].position, 650);
    assert_true(batch[0]->cursor.epoch == 8 && batch[0]->cursor.position == 0 &&
                batch[0]->cursor.first_epoch == 7);
    check_batch(&bench, batch[0]);
    mr_batch_release(batch[0]);
    assert_int_equal(mr_job_next(bench.job, &batch[0], WAIT_MS, &error), MR_END);
    close_all(&bench);
}

/* ---- bad rows and names ---- */

static void write_manifest(const char *path)
{
    struct manifest_writer *writer;
    struct base_error error;
    uint8_t version[32];
    char name[64];
    assert_int_equal(manifest_writer_create(&writer, path, &error), BASE_OK);
    assert_int_equal(manifest_writer_class(writer, "cat", &error), BASE_OK);
    assert_int_equal(manifest_writer_class(writer, "dog", &error), BASE_OK);
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "cat/picture-%06d.jpg", i);
        struct manifest_item item = {.name = name, .size_bytes = 1000 + (uint64_t)i, .label = i % 2};
        assert_int_equal(manifest_writer_item(writer, &item, &error), BASE_OK);
    }
    assert_int_equal(manifest_writer_finish(writer, version, &error), BASE_OK);
    manifest_writer_destroy(writer);
}

static void test_bad_rows_and_names(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    char path[] = "/tmp/millrace-manifest-XXXXXX";
    struct mr_batch *batch;
    struct mr_error error;
    struct mr_item item;
    struct bench bench = {0};
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_manifest(path);
    cluster.manifest = path;
    cluster.items = 15000;
    cluster.bad_position = 3;
    cluster.bad_status = MR_ROW_SUBSTITUTED;
    options.batch = 10;
    open_client(&bench, &cluster);

    open_job(&bench, &options);
    for (uint64_t i = 0; i < 15000; i += 2999) {
        if (mr_job_item(bench.job, i, &item, WAIT_MS, &error) != MR_OK)
            fail_msg("%s", error.text);
        char name[64];
        snprintf(name, sizeof name, "cat/picture-%06d.jpg", (int)i);
        assert_string_equal(item.name, name);
        assert_true(item.label == (int32_t)(i % 2) && item.size_bytes == 1000 + i);
    }
    assert_int_equal(mr_job_item(bench.job, 15000, &item, WAIT_MS, &error), MR_NOT_FOUND);
    assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_BAD_SAMPLE);
    if (!strstr(error.text, "dataset photos: item 10003 (cat/picture-010003.jpg)") ||
        !strstr(error.text, "bad_truncated"))
        fail_msg("%s", error.text);
    assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error),
                     MR_BAD_SAMPLE); /* it can only be closed */
    mr_job_close(&bench.job);

    static const enum mr_on_bad policies[] = {MR_ON_BAD_SKIP, MR_ON_BAD_REPLACE};
    for (int i = 0; i < 2; i++) {
        options.on_bad = policies[i];
        open_job(&bench, &options);
        assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_OK);
        const int64_t *labels = mr_batch_field(batch, "label")->data;
        assert_int_equal(batch->valid_rows, i == 0 ? 9 : 10);
        assert_int_equal(batch->valid[3], i == 1);
        assert_int_equal(labels[3], i == 0 ? -100 : 3);
        assert_true(batch->row[3].status == MR_ROW_SUBSTITUTED && batch->row[3].used_item == 10004);
        assert_string_equal(mr_cause_name(batch->row[3].cause), "bad_truncated");
        struct mr_job_stats stats = stats_of(&bench);
        assert_true(stats.skipped == (i == 0) && stats.substituted == (i == 1));
        mr_batch_release(batch);
        mr_job_close(&bench.job);
    }
    close_all(&bench);
    unlink(path);
}

/* A worker that has no pages: its refusals are no reason to ask faster, and the others are asked, too. */
static void test_pages_of_another_worker(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    char path[] = "/tmp/millrace-manifest-XXXXXX";
    struct mr_error error;
    struct mr_item item;
    struct bench bench = {0};
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_manifest(path);
    cluster.manifest = path;
    cluster.items = 15000;
    for (int bad = 1; bad <= 2; bad++) {
        open_client(&bench, &cluster);
        fake_set_manner(bench.fake, bad, FAKE_RETRY, -1);
        open_job(&bench, &options);
        if (mr_job_item(bench.job, 7, &item, WAIT_MS, &error) != MR_OK)
            fail_msg("%s", error.text);
        mr_job_close(&bench.job);
        fake_set_manner(bench.fake, 3 - bad, FAKE_RETRY, -1);
        open_job(&bench, &options);
        int before = fake_pages(bench.fake, 1) + fake_pages(bench.fake, 2);
        assert_int_not_equal(mr_job_item(bench.job, 7, &item, 1000, &error), MR_OK);
        int asked = fake_pages(bench.fake, 1) + fake_pages(bench.fake, 2) - before;
        if (asked > 40)
            fail_msg("%d pages asked for in a second", asked);
        close_all(&bench);
    }
    unlink(path);
}

/* FAIL with the code of success is an error like any other, not a step that never comes. */
static void test_fail_of_nothing(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    open_client(&bench, &cluster);
    fake_set_manner(bench.fake, 1, FAKE_FAIL_OK, -1);
    fake_set_manner(bench.fake, 2, FAKE_FAIL_OK, -1);
    open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_INTERNAL);
    assert_non_null(strstr(error.text, "no such file"));
    close_all(&bench);
}

/* A server that lost its state, the dataset too, is asked now and then; the job goes on. */
static void test_forgotten_by_the_server(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    (void)state;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    fake_forget_jobs(bench.fake);
    usleep(300000); /* the poll under way, if any, has its answer now */
    int before = fake_asks(bench.fake);
    usleep(1500000);
    int asked = fake_asks(bench.fake) - before;
    if (asked < 2 || asked > 20)
        fail_msg("%d calls in 1.5 s", asked);
    read_all(&bench, 0, 700, NULL);
    close_all(&bench);
}

static void test_limits_of_time_and_of_batches(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_batch *held[3];
    struct mr_error error;
    struct bench bench = {0};
    (void)state;
    open_client(&bench, &cluster);
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, INT64_MAX, &error), MR_OK);
    assert_int_equal(mr_job_next(bench.job, &held[0], INT64_MAX, &error), MR_OK);
    assert_int_equal(mr_job_next(bench.job, &held[1], WAIT_MS, &error), MR_OK);
    assert_int_equal(mr_job_next(bench.job, &held[2], WAIT_MS, &error), MR_BUSY); /* look-ahead: two */
    assert_non_null(strstr(error.text, "release"));
    check_batch(&bench, held[0]);
    check_batch(&bench, held[1]);
    mr_batch_release(held[0]);
    assert_int_equal(mr_job_next(bench.job, &held[2], WAIT_MS, &error), MR_OK);
    check_batch(&bench, held[1]);
    mr_batch_release(held[2]);
    mr_batch_release(held[1]);
    fake_kill_worker(bench.fake, 1);
    fake_kill_worker(bench.fake, 2);
    for (int i = 0; i < 3 && mr_job_next(bench.job, &held[0], 0, &error) == MR_OK; i++)
        mr_batch_release(held[0]); /* what was there already */
    assert_int_equal(mr_job_next(bench.job, &held[0], -5, &error), MR_TIMEOUT);
    close_all(&bench);
}

/* ---- memory and shapes at the edge ---- */

static void *pool_misplace(void *context, size_t bytes)
{
    struct pool *pool = context;
    pool->live++;
    return (char *)aligned_alloc(64, bytes + 64) + 8;
}

static void pool_free_misplaced(void *context, void *memory, size_t bytes)
{
    struct pool *pool = context;
    (void)bytes;
    pool->live--;
    free((char *)memory - 8);
}

static void *pool_refuse(void *context, size_t bytes)
{
    struct pool *pool = context;
    (void)bytes;
    pool->peak++;
    return NULL;
}

static void test_memory_that_cannot_be_used(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct mr_error error;
    struct bench bench = {0};
    struct pool pool = {0};
    (void)state;
    open_client(&bench, &cluster);
    options.slot_context = &pool;
    options.slot_allocate = pool_misplace;
    options.slot_free = pool_free_misplaced;
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, WAIT_MS, &error), MR_NO_MEMORY);
    assert_non_null(strstr(error.text, "aligned to 64"));
    options.slot_allocate = pool_refuse;
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, WAIT_MS, &error), MR_NO_MEMORY);
    assert_int_equal(pool.peak, 1);
    assert_int_equal(pool.live, 0);
    assert_int_equal(fake_closes(bench.fake), 2); /* the server is told of both */
    close_all(&bench);
}

/* More ranks than positions: the last ones have a step without rows, and the same number of steps. */
static void test_more_ranks_than_positions(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_batch *batch;
    struct mr_error error;
    struct bench bench = {0};
    uint64_t rows = 0;
    (void)state;
    cluster.items = 7;
    open_client(&bench, &cluster);
    for (uint32_t rank = 0; rank < 10; rank++) {
        struct mr_job_options options = job_options();
        options.job = "wide";
        options.world = 10;
        options.rank = rank;
        options.batch = 3;
        open_job(&bench, &options);
        assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_OK);
        assert_int_equal(batch->steps, 1);
        assert_true(batch->rows <= 1 && batch->valid_rows == batch->rows);
        for (int f = 0; f < batch->field_count && batch->rows == 0; f++)
            assert_int_equal(batch->fields[f].bytes, 0);
        rows += batch->rows;
        mr_batch_release(batch);
        assert_int_equal(mr_job_next(bench.job, &batch, WAIT_MS, &error), MR_END);
        mr_job_close(&bench.job);
    }
    assert_int_equal(rows, 7);
    close_all(&bench);
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
        struct fake_options cluster = fake_options();
        struct mr_job_options options = job_options();
        struct mr_batch *batch;
        struct bench bench = {0};
        open_client(&bench, &cluster);
        for (int worker = 1; worker <= 2; worker++)
            fake_set_manner(bench.fake, worker, manners[i / 2], -1);
        open_job(&bench, &options);
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

static void *next_blocked(void *context)
{
    struct mr_batch *batch;
    return (void *)(uintptr_t)mr_job_next(context, &batch, WAIT_MS, NULL);
}

static void test_close_wakes_next(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    pthread_t thread;
    void *code;
    (void)state;
    open_client(&bench, &cluster);
    fake_set_manner(bench.fake, 1, FAKE_SILENT, -1);
    fake_set_manner(bench.fake, 2, FAKE_SILENT, -1);
    open_job(&bench, &options);
    assert_int_equal(pthread_create(&thread, NULL, next_blocked, bench.job), 0);
    usleep(100000); /* most likely it waits by now; either way it must return */
    close_all(&bench);
    pthread_join(thread, &code);
    assert_int_equal((uintptr_t)code, MR_CLOSED);
}

static void test_fork(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    int status;
    (void)state;
    open_client(&bench, &cluster);
    open_job(&bench, &options);
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
    read_all(&bench, 0, 700, NULL); /* the parent's go on */
    close_all(&bench);
}

static void test_refusals(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_error error;
    struct bench bench = {0};
    const char *unknown[] = {"image", "depth", NULL}, *twice[] = {"image", "image", NULL};
    (void)state;
    open_client(&bench, &cluster);
    for (int i = 0; i < 9; i++) {
        struct mr_job_options options = job_options();
        enum mr_code want = MR_INVALID;
        options.dataset = i == 0 ? NULL : options.dataset;
        options.batch = i == 1 ? 0 : i == 2 ? 65536 : options.batch;
        options.rank = i == 3 ? 1 : 0;
        options.world = i == 4 ? 2 : 1; /* without a name to meet under */
        options.size = i == 5 ? 8 : options.size;
        options.fields = i == 6 ? unknown : i == 7 ? twice : options.fields;
        if (i == 8) {
            options.dataset = "nowhere";
            want = MR_NOT_FOUND;
        }
        bench.job = NULL;
        enum mr_code code = mr_job_open(&bench.job, bench.client, &options, WAIT_MS, &error);
        if (code != want || bench.job)
            fail_msg("case %d: %s %s", i, mr_code_name(code), error.text);
    }
    fake_stop_server(bench.fake);
    struct mr_job_options options = job_options();
    int64_t start_ns = base_clock_now_ns();
    assert_int_equal(mr_job_open(&bench.job, bench.client, &options, 300, &error), MR_TIMEOUT);
    assert_true(base_clock_now_ns() - start_ns < 5 * BASE_NS_PER_S);
    if (!strstr(error.text, fake_server(bench.fake)))
        fail_msg("%s", error.text);
    close_all(&bench);
}

/* Names are resolved off the loop. */
static void test_names(void **state)
{
    struct fake_options cluster = fake_options();
    struct mr_job_options options = job_options();
    struct bench bench = {0};
    (void)state;
    cluster.host = "localhost";
    open_client(&bench, &cluster);
    open_job(&bench, &options);
    read_all(&bench, 0, 700, NULL);
    close_all(&bench);
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
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_bad_rows_and_names),
        cmocka_unit_test(test_pages_of_another_worker),
        cmocka_unit_test(test_fail_of_nothing),
        cmocka_unit_test(test_forgotten_by_the_server),
        cmocka_unit_test(test_limits_of_time_and_of_batches),
        cmocka_unit_test(test_memory_that_cannot_be_used),
        cmocka_unit_test(test_more_ranks_than_positions),
        cmocka_unit_test(test_closing_in_every_state),
        cmocka_unit_test(test_close_wakes_next),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
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

#define SAMPLE                                                                                               \
    "sample: Decode RandomResizedCrop(size=64) | finish: ToDtype(dtype=float32) Normalize "                  \
    "Layout(order=NCHW)"

static const char *const all_fields[] = {"label", "image", "encoded", "flip", "box", NULL};

struct fake_options bench_fake_options(void)
{
    return (struct fake_options){
        .workers = 2, .items = 700, .pipeline = SAMPLE, .option = "keep_encoded=500"};
}

struct mr_job_options bench_job_options(void)
{
    return (struct mr_job_options){.size = sizeof(struct mr_job_options),
                                   .dataset = FAKE_DATASET,
                                   .fields = all_fields,
                                   .batch = 50,
                                   .epochs = 1,
                                   .tail = MR_TAIL_EXACT,
                                   .stall_ms = 5000};
}

void bench_open_client(struct bench *bench, const struct fake_options *options)
{
    struct mr_error error;
    bench->fake = fake_start(options);
    struct mr_client_options where = {.size = sizeof where, .server = fake_server(bench->fake)};
    if (mr_client_open(&bench->client, &where, &error) != MR_OK)
        fail_msg("%s", error.text);
}

void bench_open_job(struct bench *bench, const struct mr_job_options *options)
{
    struct mr_error error;
    if (mr_job_open(&bench->job, bench->client, options, BENCH_WAIT_MS, &error) != MR_OK)
        fail_msg("%s", error.text);
}

void bench_close_all(struct bench *bench)
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

struct mr_job_stats bench_stats(struct bench *bench)
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

void bench_check_batch(const struct bench *bench, const struct mr_batch *batch)
{
    struct scheduler_order *order = fake_order(bench->fake, batch->stream_epoch);
    for (uint32_t row = 0; row < batch->rows; row++)
        assert_int_equal(batch->row[row].item, scheduler_order_item(order, batch->row[row].position));
    scheduler_order_destroy(order);
    for (int f = 0; f < batch->field_count; f++)
        check_field(bench, batch, &batch->fields[f]);
}

void bench_read_all(struct bench *bench, uint64_t first, uint64_t items,
                    void (*between)(struct bench *, uint64_t))
{
    struct mr_batch *batch;
    struct mr_error error;
    uint64_t position = first, step = 0;
    enum mr_code code;
    while ((code = mr_job_next(bench->job, &batch, BENCH_WAIT_MS, &error)) == MR_OK ||
           code == bench->tolerated) {
        if (code != MR_OK)
            continue;
        for (uint32_t row = 0; row < batch->rows; row++)
            assert_int_equal(batch->row[row].position, position++);
        bench_check_batch(bench, batch);
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

void *bench_pool_allocate(void *context, size_t bytes)
{
    struct bench_pool *pool = context;
    pool->refused += pool->refuses;
    if (pool->refuses)
        return NULL;
    pool->live++;
    pool->peak = pool->live > pool->peak ? pool->live : pool->peak;
    pool->bytes = bytes;
    return (char *)aligned_alloc(64, bytes + (pool->misplaced_bytes > 0 ? 64 : 0)) + pool->misplaced_bytes;
}

void bench_pool_free(void *context, void *memory, size_t bytes)
{
    struct bench_pool *pool = context;
    pool->live--;
    assert_int_equal(bytes, pool->bytes);
    free((char *)memory - pool->misplaced_bytes);
}

void bench_make_manifest(struct fake_options *cluster, char *path)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
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
    cluster->manifest = path;
    cluster->items = 15000;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* usage: gpu_ingest_job_test [cuda]: a job whose slots are the device's memory, ingested, beside one that the client finishes on
 * its CPU: the same bits to the end of the epoch, received into the slots themselves. */
#include "millrace/millrace.h"

#include "gpu_ingest/include/millrace/ingest.h"
#include "tests/unit/client/bench.h"
#include "tests/unit/gpu_ingest/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SIDE 16
#define SLOTS 8
#define PIPELINE                                                                                             \
    "sample: Decode RandomResizedCrop(size=16) | finish: ToDtype(dtype=float32) Normalize "                  \
    "Layout(order=NCHW) | batch: RandomErasing MixUp CutMix"

static enum mr_backend backend = MR_BACKEND_HOST;

struct slots {
    struct mr_device *device;
    struct {
        const char *begin;
        size_t bytes;
    } chunks[SLOTS];
    int count;
};

static void *slot_allocate(void *context, size_t bytes)
{
    struct slots *slots = context;
    void *memory = mr_device_slot_allocate(slots->device, bytes);
    assert_true(slots->count < SLOTS);
    slots->chunks[slots->count].begin = memory;
    slots->chunks[slots->count++].bytes = bytes;
    return memory;
}

static void slot_free(void *context, void *memory, size_t bytes)
{
    mr_device_slot_free(((struct slots *)context)->device, memory, bytes);
}

static bool in_slot(const struct slots *slots, const struct mr_field *field)
{
    const char *data = field->data;
    for (int i = 0; i < slots->count; i++)
        if (data >= slots->chunks[i].begin &&
            data + field->bytes <= slots->chunks[i].begin + slots->chunks[i].bytes)
            return true;
    return false;
}

static void compare(const struct mr_device *device, const struct mr_field *made, const struct mr_field *want)
{
    void *bytes = malloc(made->bytes + 1);
    assert_string_equal(made->name, want->name);
    assert_int_equal(made->dtype, want->dtype);
    assert_int_equal(made->rank, want->rank);
    for (int d = 0; d < want->rank; d++)
        assert_int_equal(made->dims[d], want->dims[d]);
    assert_int_equal(made->bytes, want->bytes);
    memory_fetch(device, bytes, made->data, made->bytes);
    assert_memory_equal(bytes, want->data, want->bytes);
    free(bytes);
}

static void step(const struct slots *slots, struct mr_ingest *ingest, struct mr_batch *raw,
                 struct mr_batch *want)
{
    struct mr_device_batch *ready;
    struct mr_error error;
    assert_true(in_slot(slots, mr_batch_field(raw, "image")) && in_slot(slots, mr_batch_field(raw, "label")));
    if (mr_ingest_submit(ingest, raw, &ready, &error) != MR_OK)
        fail_msg("%s", error.text);
    assert_int_equal(mr_ingest_wait(ready, &error), MR_OK);
    compare(slots->device, &ready->image, mr_batch_field(want, "image"));
    compare(slots->device, &ready->label, mr_batch_field(want, "label"));
    assert_memory_equal(&ready->cursor, &want->cursor, sizeof ready->cursor);
    assert_memory_equal(ready->row, want->row, want->rows * sizeof *want->row);
    assert_int_equal(mr_ingest_release(ready, NULL, &error), MR_OK);
    mr_batch_release(want);
}

static void test_job_into_a_device(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct mr_device_options where = {.size = sizeof where, .backend = backend};
    struct mr_finish finish = {.size = sizeof finish};
    struct slots slots = {0};
    struct bench bench = {0};
    struct mr_job *finished = NULL;
    struct mr_ingest *ingest = NULL;
    struct mr_batch *raw, *want;
    struct mr_error error;
    enum mr_code code;
    int steps = 0;
    (void)state;
    assert_int_equal(mr_device_open(&slots.device, &where, &error), MR_OK);
    cluster.pipeline = PIPELINE;
    options.fields = NULL;
    bench_open_client(&bench, &cluster);
    options.apply_finish = 1;
    assert_int_equal(mr_job_open(&finished, bench.client, &options, BENCH_WAIT_MS, &error), MR_OK);
    options.apply_finish = 0;
    options.slot_allocate = slot_allocate;
    options.slot_free = slot_free;
    options.slot_context = &slots;
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_finish(bench.job, &finish, &error), MR_OK);
    struct mr_ingest_options into = {.size = sizeof into,
                                     .finish = &finish,
                                     .batch = options.batch,
                                     .height = SIDE,
                                     .width = SIDE,
                                     .batch_release = mr_batch_release};
    assert_int_equal(mr_ingest_create(&ingest, slots.device, &into, &error), MR_OK);
    while ((code = mr_job_next(bench.job, &raw, BENCH_WAIT_MS, &error)) == MR_OK) {
        assert_int_equal(mr_job_next(finished, &want, BENCH_WAIT_MS, &error), MR_OK);
        step(&slots, ingest, raw, want);
        steps++;
    }
    assert_int_equal(code, MR_END);
    assert_int_equal(steps, 14); /* 700 items */
    mr_ingest_destroy(ingest);
    mr_job_close(&finished);
    bench_close_all(&bench);
    assert_int_equal(mr_device_close(&slots.device), MR_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_job_into_a_device)};
    if (argc == 2 && strcmp(argv[1], "cuda") == 0) {
        backend = MR_BACKEND_CUDA;
        if (memory_no_cuda()) {
            printf("skipped: %s\n", memory_no_cuda());
            return 77;
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: gpu_ingest_order_test [SEEDS]: the order of copies, kernels and the trainer's work, and failures, under the fake CUDA of
 * tests/support, which runs all of it as late, or in as odd an order, as CUDA allows. What the backend `host` makes of the same batch
 * is what must be seen.
 */
#include "gpu_ingest/include/millrace/ingest.h"

#include "base/philox.h"
#include "tests/support/fake_cuda.h"
#include "tests/unit/gpu_ingest/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 3, SIDE = 9, SOURCES = 3, STEPS = 24, CLASSES = 5, VALUES = ROWS * SIDE * SIDE * 3 };

static uint64_t seeds = 60;

/* ---- batches in few slots, that a trainer's client writes again as soon as it may ---- */

struct source {
    struct mr_batch batch; /* first */
    struct mr_field fields[2];
    struct mr_row row[ROWS];
    uint8_t valid[ROWS];
    uint8_t *pixels;
    int64_t *labels;
    bool lent;
};

struct world {
    uint64_t seed, draws;
    struct mr_device *device, *host;
    struct mr_finish finish;
    struct mr_ingest *ingest, *twin;
    struct source sources[SOURCES];
    void *streams[2];
    float *seen[STEPS], *seen_labels[STEPS]; /* what the trainer's stream read */
    float *want[STEPS], *want_labels[STEPS];
    int steps;
};

static uint64_t pick(struct world *world, uint64_t below)
{
    return base_philox_word(world->seed, 9, world->draws++) % below;
}

static void source_give(struct mr_batch *batch)
{
    struct source *source = (struct source *)(void *)batch;
    assert_true(source->lent);
    source->lent = false;
    memset(source->pixels, 0xee, VALUES);
    memset(source->labels, 0xee, ROWS * sizeof *source->labels);
}

static bool source_init(struct source *source, struct mr_device *device)
{
    source->pixels = mr_device_slot_allocate(device, VALUES);
    source->labels = mr_device_slot_allocate(device, ROWS * sizeof *source->labels);
    source->fields[0] = (struct mr_field){.name = "image",
                                          .dtype = MR_U8,
                                          .rank = 4,
                                          .dims = {ROWS, SIDE, SIDE, 3},
                                          .data = source->pixels,
                                          .bytes = VALUES};
    source->fields[1] = (struct mr_field){.name = "label",
                                          .dtype = MR_I64,
                                          .rank = 1,
                                          .dims = {ROWS},
                                          .data = source->labels,
                                          .bytes = ROWS * sizeof(int64_t)};
    memset(source->valid, 1, ROWS);
    source->batch = (struct mr_batch){.rows = ROWS,
                                      .valid_rows = ROWS,
                                      .valid = source->valid,
                                      .row = source->row,
                                      .field_count = 2,
                                      .fields = source->fields};
    return source->pixels && source->labels;
}

static void source_fini(struct source *source, struct mr_device *device)
{
    mr_device_slot_free(device, source->pixels, VALUES);
    mr_device_slot_free(device, source->labels, 0);
}

static void source_fill(struct source *source, uint64_t step)
{
    for (uint64_t i = 0; i < VALUES; i++)
        source->pixels[i] = (uint8_t)base_philox_word(step, 1, i);
    for (uint64_t i = 0; i < ROWS; i++) {
        source->labels[i] = (int64_t)base_philox_word(step, 2, i) % CLASSES;
        source->row[i].position = step * ROWS + i;
    }
    source->batch.cursor.position = step * ROWS;
}

static struct source *free_source(struct world *world)
{
    for (int i = 0; i < SOURCES; i++)
        if (!world->sources[i].lent)
            return &world->sources[i];
    fail_msg("all %d slots are held: look-ahead would stall", SOURCES);
    return NULL;
}

/* ---- a world ---- */

static const struct mr_finish finish_ops = {.size = sizeof finish_ops,
                                            .dtype = MR_F32,
                                            .channels_first = 1,
                                            .normalizes = 1,
                                            .mean = {0.5f, 0.4f, 0.3f},
                                            .std = {0.2f, 0.3f, 0.4f},
                                            .erase_p = 0.3,
                                            .erase_scale = {0.02, 0.33},
                                            .erase_ratio = {0.3, 3.3},
                                            .mixup_p = 0.5,
                                            .cutmix_p = 0.3,
                                            .classes = CLASSES,
                                            .seed = 3};

static enum mr_code make_ingest(struct mr_ingest **ingest, struct mr_device *device,
                                enum mr_finish_where where, uint32_t ring, struct mr_error *error)
{
    struct mr_ingest_options options = {.size = sizeof options,
                                        .finish = &finish_ops,
                                        .batch = ROWS,
                                        .height = SIDE,
                                        .width = SIDE,
                                        .ring = ring,
                                        .where = where};
    if (mr_device_backend(device) == MR_BACKEND_CUDA)
        options.batch_release = source_give;
    return mr_ingest_create(ingest, device, &options, error);
}

static void world_open(struct world *world, uint64_t seed, enum mr_finish_where where, uint32_t ring)
{
    struct mr_device_options options = {.size = sizeof options, .backend = MR_BACKEND_CUDA};
    struct mr_error error;
    *world = (struct world){.seed = seed};
    fake_cuda_start(seed);
    assert_int_equal(mr_device_open(&world->device, &options, &error), MR_OK);
    options.backend = MR_BACKEND_HOST;
    assert_int_equal(mr_device_open(&world->host, &options, &error), MR_OK);
    assert_int_equal(make_ingest(&world->ingest, world->device, where, ring, &error), MR_OK);
    assert_int_equal(make_ingest(&world->twin, world->host, MR_FINISH_AUTO, 1, &error), MR_OK);
    for (int i = 0; i < SOURCES; i++)
        assert_true(source_init(&world->sources[i], world->device));
    world->streams[0] = memory_stream_create(world->device);
    world->streams[1] = memory_stream_create(world->device);
}

/* What is to be seen, from the twin. */
static void expect(struct world *world, struct source *source)
{
    struct mr_device_batch *batch;
    struct mr_error error;
    int step = world->steps;
    world->want[step] = malloc(VALUES * sizeof(float));
    world->want_labels[step] = malloc(ROWS * CLASSES * sizeof(float));
    assert_int_equal(mr_ingest_submit(world->twin, &source->batch, &batch, &error), MR_OK);
    memcpy(world->want[step], batch->image.data, batch->image.bytes);
    memcpy(world->want_labels[step], batch->label.data, batch->label.bytes);
    assert_int_equal(mr_ingest_release(batch, NULL, &error), MR_OK);
}

static struct mr_device_batch *world_submit(struct world *world)
{
    struct source *source = free_source(world);
    struct mr_device_batch *batch;
    struct mr_error error;
    source_fill(source, (uint64_t)world->steps + world->seed);
    expect(world, source);
    source->lent = true;
    if (mr_ingest_submit(world->ingest, &source->batch, &batch, &error) != MR_OK)
        fail_msg("%s", error.text);
    return batch;
}

/* The trainer's work: reads the batch, some time. */
static void world_train(struct world *world, struct mr_device_batch *batch, void *stream)
{
    int step = world->steps++;
    struct mr_error error;
    world->seen[step] = mr_device_slot_allocate(world->device, batch->image.bytes);
    world->seen_labels[step] = mr_device_slot_allocate(world->device, batch->label.bytes);
    assert_int_equal(mr_ingest_stream_wait(batch, stream, &error), MR_OK);
    memory_stream_copy(world->device, stream, world->seen[step], batch->image.data, batch->image.bytes);
    memory_stream_copy(world->device, stream, world->seen_labels[step], batch->label.data,
                       batch->label.bytes);
}

static void world_check(struct world *world)
{
    for (int i = 0; i < 2; i++)
        if (world->streams[i])
            memory_stream_wait(world->device, world->streams[i]);
    for (int i = 0; i < world->steps; i++) {
        assert_memory_equal(world->seen[i], world->want[i], VALUES * sizeof(float));
        assert_memory_equal(world->seen_labels[i], world->want_labels[i], ROWS * CLASSES * sizeof(float));
    }
}

static void world_close(struct world *world)
{
    mr_ingest_destroy(world->ingest);
    mr_ingest_destroy(world->twin);
    for (int i = 0; i < world->steps; i++) {
        mr_device_slot_free(world->device, world->seen[i], 0);
        mr_device_slot_free(world->device, world->seen_labels[i], 0);
        free(world->want[i]);
        free(world->want_labels[i]);
    }
    for (int i = 0; i < SOURCES; i++) {
        assert_false(world->sources[i].lent);
        source_fini(&world->sources[i], world->device);
    }
    for (int i = 0; i < 2; i++)
        if (world->streams[i])
            memory_stream_destroy(world->device, world->streams[i]);
    assert_int_equal(mr_device_close(&world->device), MR_OK);
    assert_int_equal(mr_device_close(&world->host), MR_OK);
    assert_int_equal(fake_cuda_live(), 0);
    assert_int_equal(fake_cuda_current(), -1);
}

static enum mr_finish_where where_of(uint64_t seed)
{
    return (enum mr_finish_where)(seed / 3 % 3); /* seed % 3 is the fake's way */
}

/* ---- order ---- */

/* Of one stream, or of both, the one that reads last. */
static void release(struct world *world, struct mr_device_batch *batch, void *stream)
{
    void *both[2] = {world->streams[stream == world->streams[0]], stream};
    struct mr_error error;
    if (pick(world, 2)) {
        assert_int_equal(mr_ingest_release(batch, stream, &error), MR_OK);
        return;
    }
    assert_int_equal(mr_ingest_release_streams(batch, both, 2, &error), MR_OK);
}

/* Steps of a loop that holds up to all of the ring and waits for nothing, or for some of it, as the seed says. */
static void loop(struct world *world, uint32_t ring)
{
    struct mr_device_batch *held[4];
    void *streams[4];
    struct mr_error error;
    uint32_t count = 0;
    while (world->steps < STEPS) {
        void *stream = world->streams[pick(world, 2)];
        struct mr_device_batch *batch = world_submit(world);
        world_train(world, batch, stream);
        held[count] = batch;
        streams[count++] = stream;
        if (pick(world, 4) == 0)
            assert_int_equal(mr_ingest_wait(batch, &error), MR_OK);
        if (pick(world, 4) == 0)
            mr_ingest_copied(batch, 0, &error);
        while (count == ring || (count > 0 && pick(world, 2))) {
            uint32_t at = (uint32_t)pick(world, count);
            release(world, held[at], streams[at]);
            held[at] = held[--count];
            streams[at] = streams[count];
        }
    }
}

static void test_loops(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        struct world world;
        uint32_t ring = (uint32_t)(1 + seed % 4);
        world_open(&world, seed, where_of(seed), ring);
        loop(&world, ring);
        world_check(&world);
        world_close(&world);
    }
}

/* Released with work that has not begun, then destroyed: it is seen whole nevertheless. */
static void test_destroyed_under_way(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        struct world world;
        struct mr_error error;
        world_open(&world, seed, where_of(seed), 3);
        for (int i = 0; i < 3; i++) {
            struct mr_device_batch *batch = world_submit(&world);
            world_train(&world, batch, world.streams[i % 2]);
            assert_int_equal(mr_ingest_release(batch, world.streams[i % 2], &error), MR_OK);
        }
        world_submit(&world); /* and one that nobody looks at */
        free(world.want[world.steps]);
        free(world.want_labels[world.steps]);
        mr_ingest_destroy(world.ingest);
        world.ingest = NULL;
        world_check(&world);
        world_close(&world);
    }
}

/* The trainer's stream goes when the batch has been released: its work is waited for all the same. */
static void test_stream_gone(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        struct world world;
        struct mr_error error;
        world_open(&world, seed, where_of(seed), 1);
        for (int i = 0; i < 2; i++) {
            struct mr_device_batch *batch = world_submit(&world);
            world_train(&world, batch, world.streams[i]);
            assert_int_equal(mr_ingest_release(batch, world.streams[i], &error), MR_OK);
            memory_stream_destroy(world.device, world.streams[i]);
            world.streams[i] = NULL;
        }
        mr_ingest_destroy(world.ingest);
        world.ingest = NULL;
        world_check(&world);
        world_close(&world);
    }
}

/* ---- where finish runs ---- */

static struct mr_placement measured(uint64_t seed, int64_t copy_ns_a_kib, int64_t kernel_ns)
{
    struct mr_placement placement = {.size = sizeof placement};
    struct world world;
    struct mr_error error;
    world_open(&world, seed, MR_FINISH_AUTO, 2);
    fake_cuda_costs(copy_ns_a_kib, kernel_ns);
    while (world.steps < STEPS) {
        struct mr_device_batch *batch = world_submit(&world);
        world_train(&world, batch, world.streams[0]);
        assert_int_equal(mr_ingest_wait(batch, &error), MR_OK);
        assert_int_equal(mr_ingest_release(batch, world.streams[0], &error), MR_OK);
    }
    world_check(&world);
    assert_int_equal(mr_ingest_placement(world.ingest, &placement), MR_OK);
    world_close(&world);
    return placement;
}

static void test_measured(void **state)
{
    const int64_t second_ns = 1000000000;
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct mr_placement slow_copies = measured(seed, second_ns, 0);
        struct mr_placement slow_kernels = measured(seed, 0, second_ns);
        assert_true(slow_copies.decided && slow_kernels.decided);
        assert_int_equal(slow_copies.where, MR_FINISH_GPU); /* a quarter of the bytes */
        assert_int_equal(slow_copies.gpu.copied_bytes, VALUES);
        assert_int_equal(slow_copies.client.copied_bytes,
                         VALUES * sizeof(float) + ROWS * CLASSES * sizeof(float));
        assert_true(slow_copies.client.copy_ns > 3 * slow_copies.gpu.copy_ns);
        assert_int_equal(slow_kernels.where, MR_FINISH_CLIENT);
        assert_true(slow_kernels.gpu.kernel_ns >= 2 * second_ns * 9 / 10 &&
                    slow_kernels.client.kernel_ns == 0);
        assert_int_equal(strncmp(slow_kernels.reason, "client: ", 8), 0);
        assert_int_equal(strncmp(slow_copies.reason, "gpu: ", 5), 0);
    }
}

/* ---- failures ---- */

/* Opens, does some steps, closes; whatever fails says so, and all is given back. */
static enum mr_code run(enum mr_finish_where where, struct mr_error *error)
{
    struct mr_device_options options = {.size = sizeof options, .backend = MR_BACKEND_CUDA};
    struct source source = {.lent = false};
    struct mr_device *device = NULL;
    struct mr_ingest *ingest = NULL;
    enum mr_code code = mr_device_open(&device, &options, error);
    if (code != MR_OK)
        return code;
    code = make_ingest(&ingest, device, where, 2, error);
    if (code == MR_OK && !source_init(&source, device)) {
        code = error->code = MR_NO_MEMORY;
        snprintf(error->text, sizeof error->text, "cuda: no slots");
    }
    for (uint64_t i = 0; i < 10 && code == MR_OK; i++) {
        struct mr_device_batch *batch = NULL;
        source_fill(&source, i);
        source.lent = true;
        code = mr_ingest_submit(ingest, &source.batch, &batch, error);
        if (code != MR_OK)
            source.lent = false; /* the caller's still */
        else if ((code = mr_ingest_stream_wait(batch, NULL, error)) == MR_OK &&
                 (code = mr_ingest_wait(batch, error)) == MR_OK &&
                 (code = mr_ingest_copied(batch, 1, error)) == MR_OK)
            code = mr_ingest_release_streams(batch, (void *[]){NULL, NULL}, (uint32_t)(1 + i % 2), error);
    }
    bool ours = !source.lent; /* nothing reads it any more, whatever failed */
    if (ours)
        source_fini(&source, device);
    mr_ingest_destroy(ingest);
    assert_false(source.lent);
    if (!ours)
        source_fini(&source, device);
    assert_int_equal(mr_device_close(&device), MR_OK);
    return code;
}

static void fail_each(enum mr_finish_where where, bool lost)
{
    unsigned n = 0;
    bool failed;
    do {
        struct mr_error error = {.code = MR_OK};
        fake_cuda_fail(++n, lost);
        enum mr_code code = run(where, &error);
        failed = fake_cuda_failed();
        bool told = (code == MR_IO || code == MR_NO_MEMORY || code == MR_NOT_FOUND) && error.code == code &&
                    strstr(error.text, "cuda");
        if (code != MR_OK && !(failed && told)) /* OK: it failed in measuring, or at the end */
            fail_msg("call %u: code %d, \"%s\"", n, (int)code, error.text);
        assert_int_equal(fake_cuda_live(), 0);
        assert_int_equal(fake_cuda_current(), -1);
    } while (failed);
    assert_true(n > 100);
}

static void test_failures(void **state)
{
    (void)state;
    for (int where = MR_FINISH_AUTO; where <= MR_FINISH_GPU; where++) {
        for (int lost = 0; lost < 2; lost++) {
            fake_cuda_start((uint64_t)(lost ? where : 1)); /* 1: work is late */
            fail_each((enum mr_finish_where)where, lost);
        }
    }
}

static void test_old_device(void **state)
{
    struct mr_device_options options = {.size = sizeof options, .backend = MR_BACKEND_AUTO};
    struct mr_device *device = NULL;
    struct mr_error error;
    (void)state;
    fake_cuda_old(true);
    assert_int_equal(mr_device_open(&device, &options, &error), MR_UNSUPPORTED);
    fake_cuda_old(false);
    assert_string_equal(error.text, "cuda:0 Fake 0: not with this build: no kernel image is available for "
                                    "execution on the device");
    assert_int_equal(fake_cuda_current(), -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),       cmocka_unit_test(test_destroyed_under_way),
        cmocka_unit_test(test_stream_gone), cmocka_unit_test(test_measured),
        cmocka_unit_test(test_failures),    cmocka_unit_test(test_old_device),
    };
    if (argc == 2)
        seeds = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

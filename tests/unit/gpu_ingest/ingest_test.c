/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: gpu_ingest_test [cuda]: one set of tests for both backends; `cuda` exits with 77 (skipped) where there is no device.
 *
 * Values are held against double precision, rounding against a search for the nearest number, and everything, bit for bit,
 * against the client's own finish and batch ops on the CPU.
 */
#include "gpu_ingest/include/millrace/ingest.h"

#include "base/philox.h"
#include "client/src/mix.h"
#include "gpu_ingest/kernels.h"
#include "tests/unit/gpu_ingest/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CLASSES 7

static enum mr_backend backend = MR_BACKEND_HOST;

/* ---- a batch as the client gives it ---- */

struct source {
    struct mr_batch batch; /* first */
    struct mr_field fields[2];
    struct mr_row *row;
    uint8_t *valid, *pixels;
    int64_t *labels;
    uint32_t views, height, width;
    int released;
};

static void source_init(struct source *source, struct mr_device *device, uint32_t rows, uint32_t height,
                        uint32_t width)
{
    size_t values = (size_t)rows * height * width * 3;
    *source = (struct source){.views = 1, .height = height, .width = width};
    source->row = calloc(rows + 1, sizeof *source->row);
    source->valid = calloc(rows + 1, 1);
    source->pixels = mr_device_slot_allocate(device, values + 1);
    source->labels = mr_device_slot_allocate(device, (rows + 1) * sizeof *source->labels);
    assert_true(source->row && source->valid && source->pixels && source->labels);
    source->fields[0] = (struct mr_field){.name = "image",
                                          .dtype = MR_U8,
                                          .rank = 4,
                                          .dims = {rows, height, width, 3},
                                          .data = source->pixels,
                                          .bytes = values};
    source->fields[1] = (struct mr_field){.name = "label",
                                          .dtype = MR_I64,
                                          .rank = 1,
                                          .dims = {rows},
                                          .data = source->labels,
                                          .bytes = rows * 8};
    source->batch = (struct mr_batch){.rows = rows,
                                      .valid = source->valid,
                                      .row = source->row,
                                      .field_count = 2,
                                      .fields = source->fields,
                                      .stream_epoch = 3,
                                      .step = 5};
}

/* Its images, as several views of fewer rows. */
static void source_group(struct source *source, uint32_t views)
{
    uint32_t rows = source->batch.rows / views;
    source->views = views;
    source->batch.rows = rows;
    source->fields[0].rank = 5;
    memcpy(source->fields[0].dims, (int64_t[]){rows, views, source->height, source->width, 3},
           5 * sizeof(int64_t));
    source->fields[1].dims[0] = rows;
    source->fields[1].bytes = rows * sizeof *source->labels;
}

static uint32_t images_of(const struct source *source)
{
    return source->batch.rows * source->views;
}

/* Every byte value comes in every channel, then chance. */
static void source_fill(struct source *source, uint64_t position)
{
    size_t values = source->fields[0].bytes;
    source->batch.valid_rows = 0;
    source->batch.cursor.position = position;
    for (uint32_t i = 0; i < source->batch.rows; i++) {
        source->row[i].position = position + i;
        source->valid[i] = source->batch.rows < 5 || i != 2;
        source->batch.valid_rows += source->valid[i];
        source->labels[i] =
            source->valid[i] ? (int64_t)(base_philox_word(7, 1, position + i) % CLASSES) : -100;
    }
    for (size_t i = 0; i < values; i++)
        source->pixels[i] = (uint8_t)(i < 768 ? i / 3 : base_philox_word(position, 2, i));
}

static void source_fini(struct source *source, struct mr_device *device)
{
    free(source->row);
    free(source->valid);
    mr_device_slot_free(device, source->pixels, source->fields[0].bytes + 1);
    mr_device_slot_free(device, source->labels, 0);
}

static void count_release(struct mr_batch *batch)
{
    ((struct source *)(void *)batch)->released++;
}

/* ---- an ingest ---- */

static struct mr_device *open_device(void)
{
    struct mr_device_options options = {.size = sizeof options, .backend = backend};
    struct mr_device *device = NULL;
    struct mr_error error;
    if (mr_device_open(&device, &options, &error) != MR_OK)
        fail_msg("%s", error.text);
    assert_int_equal(mr_device_backend(device), backend);
    return device;
}

static struct mr_finish plain_finish(void)
{
    return (struct mr_finish){.size = sizeof(struct mr_finish),
                              .dtype = MR_F32,
                              .channels_first = 1,
                              .normalizes = 1,
                              .mean = {0.485f, 0.456f, 0.406f},
                              .std = {0.229f, 0.224f, 0.225f},
                              .erase_scale = {0.02, 0.33},
                              .erase_ratio = {0.3, 3.3},
                              .classes = CLASSES,
                              .seed = 11};
}

static struct mr_ingest *make_at(struct mr_device *device, const struct mr_finish *finish, uint32_t rows,
                                 uint32_t height, uint32_t width, enum mr_finish_where where)
{
    struct mr_ingest_options options = {.size = sizeof options,
                                        .finish = finish,
                                        .batch = rows,
                                        .height = height,
                                        .width = width,
                                        .where = where,
                                        .batch_release = count_release};
    struct mr_ingest *ingest = NULL;
    struct mr_error error;
    if (mr_ingest_create(&ingest, device, &options, &error) != MR_OK)
        fail_msg("%s", error.text);
    return ingest;
}

static struct mr_ingest *make(struct mr_device *device, const struct mr_finish *finish, uint32_t rows,
                              uint32_t height, uint32_t width)
{
    return make_at(device, finish, rows, height, width, MR_FINISH_AUTO);
}

static struct mr_device_batch *submit(struct mr_ingest *ingest, struct source *source)
{
    struct mr_device_batch *batch = NULL;
    struct mr_error error;
    if (mr_ingest_submit(ingest, &source->batch, &batch, &error) != MR_OK)
        fail_msg("%s", error.text);
    return batch;
}

/* ---- values ---- */

static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static double bf16_value(uint16_t bits)
{
    int exponent = bits >> 7 & 255, fraction = bits & 0x7f;
    double value = exponent == 0 ? ldexp(fraction, -133) : ldexp(128 + fraction, exponent - 134);
    return bits & 0x8000 ? -value : value;
}

static double value_at(const void *data, enum mr_dtype dtype, size_t at)
{
    switch (dtype) {
    case MR_F32:
        return ((const float *)data)[at];
    case MR_F16:
        return f16_value(((const uint16_t *)data)[at]);
    case MR_BF16:
        return bf16_value(((const uint16_t *)data)[at]);
    default:
        return ((const uint8_t *)data)[at];
    }
}

/* `bits` is the number of its format that is nearest to `exact`, but for what float32 cannot tell. */
static void check_nearest(enum mr_dtype dtype, uint16_t bits, double exact)
{
    double (*value)(uint16_t) = dtype == MR_F16 ? f16_value : bf16_value;
    double slack = 1e-6 * fmax(1, fabs(exact)), error = fabs(value(bits) - exact);
    uint16_t up = bits + 1, down = (bits & 0x7fff) > 0 ? bits - 1 : bits ^ 0x8001;
    if (error > fabs(value(up) - exact) + slack || error > fabs(value(down) - exact) + slack)
        fail_msg("%s 0x%04x is not nearest to %.9g", mr_dtype_name(dtype), bits, exact);
}

static int within(struct mr_box box, uint32_t y, uint32_t x)
{
    return (int32_t)y >= box.top && (int32_t)y < box.top + box.height && (int32_t)x >= box.left &&
           (int32_t)x < box.left + box.width;
}

static double finished(const struct source *source, const struct mr_finish *finish,
                       const struct mr_row_draw *draws, uint32_t row, uint32_t y, uint32_t x, int c)
{
    static const double means[3] = {0.485, 0.456, 0.406}, stds[3] = {0.229, 0.224, 0.225};
    uint8_t byte = source->pixels[(((size_t)row * source->height + y) * source->width + x) * 3 + (size_t)c];
    if (within(draws[row].erased, y, x))
        return 0;
    return finish->normalizes ? (byte / 255.0 - means[c]) / stds[c] : byte;
}

/* In double precision, from the meaning of the ops. */
static double reference(const struct source *source, const struct mr_finish *finish,
                        const struct client_mix *mix, uint32_t row, uint32_t y, uint32_t x, int c)
{
    uint32_t partner = (uint32_t)mix->rows[row].partner;
    double own = finished(source, finish, mix->rows, row, y, x, c);
    double theirs = finished(source, finish, mix->rows, partner, y, x, c);
    if (partner != row && mix->draw.mix == MR_MIX_UP)
        return mix->draw.share * own + mix->draw.partner_share * theirs;
    return partner != row && mix->draw.mix == MR_MIX_CUT && within(mix->draw.cut, y, x) ? theirs : own;
}

static void check_values(const struct source *source, const struct mr_finish *finish,
                         const struct client_mix *mix, const void *made)
{
    uint32_t height = source->height, width = source->width;
    for (uint32_t row = 0; row < images_of(source); row++)
        for (uint32_t y = 0; y < height; y++)
            for (uint32_t x = 0; x < width; x++)
                for (int c = 0; c < 3; c++) {
                    size_t pixel = (size_t)y * width + x, plane = (size_t)height * width;
                    size_t at = finish->channels_first ? ((size_t)row * 3 + (size_t)c) * plane + pixel
                                                       : ((size_t)row * plane + pixel) * 3 + (size_t)c;
                    double want = reference(source, finish, mix, row, y, x, c);
                    if (finish->dtype == MR_F16 || finish->dtype == MR_BF16)
                        check_nearest(finish->dtype, ((const uint16_t *)made)[at], want);
                    else
                        assert_true(fabs(value_at(made, finish->dtype, at) - want) <=
                                    1e-6 * fmax(1, fabs(want)));
                }
}

/* The client's own finish on the CPU gives the same bits. */
static void check_bits(const struct source *source, const struct mr_finish *finish,
                       const struct client_mix *mix, const void *made, size_t bytes)
{
    struct client_finish cpu;
    void *want = malloc(bytes + 1);
    client_finish_init(&cpu, finish);
    client_finish_run(&cpu, source->pixels, want, images_of(source), (size_t)source->height * source->width);
    if (finish->dtype != MR_U8)
        client_mix_images(mix, &cpu, source->pixels, want);
    assert_memory_equal(made, want, bytes);
    free(want);
}

static void check_labels(const struct source *source, const struct mr_finish *finish,
                         const struct client_mix *mix, const struct mr_device *device,
                         const struct mr_field *label)
{
    static char made[1 << 17], want[1 << 17];
    bool mixes = finish->mixup_p > 0 || finish->cutmix_p > 0;
    size_t bytes = source->batch.rows * (mixes ? CLASSES * sizeof(float) : sizeof(int64_t));
    assert_true(label->bytes == bytes && bytes <= sizeof made);
    assert_int_equal(label->dtype, mixes ? MR_F32 : MR_I64);
    memory_fetch(device, made, label->data, bytes);
    memcpy(want, source->labels, source->batch.rows * sizeof(int64_t));
    if (mixes)
        client_mix_labels(mix, source->labels, CLASSES, (float *)(void *)want);
    assert_memory_equal(made, want, bytes);
}

static void check_batch(const struct mr_device *device, const struct source *source,
                        const struct mr_finish *finish, const struct mr_device_batch *batch)
{
    struct client_mix mix = {.count = source->batch.rows,
                             .views = source->views,
                             .height = (int32_t)source->height,
                             .width = (int32_t)source->width};
    struct mr_row_draw *draws = calloc(images_of(source) + 1, sizeof *draws);
    const int64_t *dims = &batch->image.dims[batch->image.rank - 3];
    size_t bytes = source->fields[0].bytes * mr_dtype_bytes(finish->dtype);
    void *made = malloc(bytes + 1);
    mr_finish_draw(finish, &source->batch, mix.height, mix.width, &mix.draw, draws);
    mix.rows = draws;
    assert_int_equal(batch->image.bytes, bytes);
    assert_int_equal(batch->image.dtype, finish->dtype);
    assert_int_equal(batch->image.rank, source->fields[0].rank);
    assert_int_equal(batch->image.dims[0], batch->rows);
    assert_true(source->views == 1 || batch->image.dims[1] == source->views);
    assert_int_equal(dims[finish->channels_first ? 0 : 2], 3);
    assert_int_equal(dims[finish->channels_first ? 2 : 1], source->width);
    assert_int_equal(batch->rows, source->batch.rows);
    assert_int_equal(batch->cursor.position, source->batch.cursor.position);
    assert_memory_equal(batch->valid, source->valid, batch->rows);
    memory_fetch(device, made, batch->image.data, bytes);
    check_bits(source, finish, &mix, made, bytes);
    check_values(source, finish, &mix, made);
    check_labels(source, finish, &mix, device, &batch->label);
    free(made);
    free(draws);
}

static const struct {
    uint32_t rows, height, width;
    enum mr_dtype dtype;
    int first, normalizes;
    double erase_p, mixup_p, cutmix_p;
    uint32_t views; /* 0: 1 */
} cases[] = {
    {3, 13, 17, MR_F32, 1, 1, 0, 0, 0, 0},   {3, 13, 17, MR_F32, 0, 1, 0, 0, 0, 0},
    {3, 13, 17, MR_F16, 1, 1, 0, 0, 0, 0},   {5, 31, 33, MR_BF16, 0, 1, 0, 0, 0, 0},
    {2, 7, 129, MR_U8, 1, 0, 0, 0, 0, 0},    {2, 129, 7, MR_U8, 0, 0, 0, 0, 0, 0},
    {1, 1, 1, MR_F32, 1, 1, 1, 1, 0, 0},     {4, 16, 16, MR_F32, 1, 0, 0, 0, 0, 0},
    {4, 16, 16, MR_BF16, 1, 0, 0, 1, 0, 0},  {7, 19, 23, MR_F32, 1, 1, 0.5, 1, 0, 0},
    {7, 19, 23, MR_F32, 0, 1, 0.5, 0, 1, 0}, {7, 19, 23, MR_F16, 1, 1, 1, 1, 0, 0},
    {7, 19, 23, MR_BF16, 0, 1, 1, 1, 1, 0},  {7, 19, 23, MR_F16, 0, 1, 0, 0, 1, 0},
    {9, 5, 200, MR_F32, 1, 1, 1, 0, 0, 0},   {6, 65, 64, MR_F16, 1, 1, 1, 0.5, 0.5, 0},
    {8, 64, 65, MR_F32, 1, 1, 1, 1, 1, 0},   {0, 8, 8, MR_F32, 1, 1, 1, 1, 1, 0},
    {5, 9, 11, MR_F32, 1, 1, 0, 0, 0, 2},    {5, 9, 11, MR_U8, 0, 0, 0, 0, 0, 3},
    {6, 9, 11, MR_F32, 1, 1, 0.5, 1, 0, 2},  {6, 9, 11, MR_BF16, 0, 1, 0.5, 0, 1, 3},
    {6, 8, 8, MR_F16, 1, 1, 1, 1, 1, 8},     {0, 8, 8, MR_F32, 1, 1, 1, 1, 1, 2},
    {9000, 1, 1, MR_F32, 1, 1, 0, 0, 0, 8}, /* more images than a grid is high */
};

static void test_against_double_precision_and_the_client(void **state)
{
    struct mr_device *device = open_device();
    struct mr_error error;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mr_finish finish = plain_finish();
        struct source source;
        finish.dtype = cases[i].dtype;
        finish.channels_first = cases[i].first;
        finish.normalizes = cases[i].normalizes;
        finish.erase_p = cases[i].erase_p;
        finish.mixup_p = cases[i].mixup_p;
        finish.cutmix_p = cases[i].cutmix_p;
        uint32_t views = cases[i].views > 0 ? cases[i].views : 1;
        source_init(&source, device, cases[i].rows * views, cases[i].height, cases[i].width);
        if (views > 1)
            source_group(&source, views);
        finish.views = cases[i].views;
        struct mr_ingest *ingest =
            make(device, &finish, cases[i].rows > 0 ? cases[i].rows : 1, cases[i].height, cases[i].width);
        for (uint64_t step = 0; step < 4; step++) {
            source_fill(&source, 1000 * i + step * cases[i].rows);
            struct mr_device_batch *batch = submit(ingest, &source);
            assert_int_equal(mr_ingest_wait(batch, &error), MR_OK);
            assert_int_equal(source.released, step + 1);
            check_batch(device, &source, &finish, batch);
            assert_int_equal(mr_ingest_release(batch, NULL, &error), MR_OK);
        }
        mr_ingest_destroy(ingest);
        source_fini(&source, device);
    }
    assert_int_equal(mr_device_close(&device), MR_OK);
    assert_null(device);
}

/* Of any float, as the client's, which numpy has judged. */
static void test_rounding(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 400000; i++) {
        uint64_t word = base_philox_word(3, 3, i);
        uint32_t exponent = i % 2 ? (uint32_t)(100 + word % 45) : (uint32_t)(word >> 40 & 255);
        uint32_t bits = (uint32_t)(word >> 32 & 0x807fffff) | exponent << 23;
        float value;
        memcpy(&value, &bits, sizeof value);
        assert_int_equal(ingest_f16(value), client_finish_f16(value));
        assert_int_equal(ingest_bf16(value), client_finish_bf16(value));
    }
}

/* ---- ring and lifetimes ---- */

static void test_ring(void **state)
{
    struct mr_device *device = open_device();
    struct mr_finish finish = plain_finish();
    struct mr_ingest *ingest = make(device, &finish, 4, 9, 11); /* a ring of 3 */
    struct source sources[4];
    struct mr_device_batch *batches[4];
    struct mr_error error;
    (void)state;
    for (int i = 0; i < 4; i++) {
        source_init(&sources[i], device, 4, 9, 11);
        source_fill(&sources[i], (uint64_t)i * 4);
    }
    for (int i = 0; i < 3; i++) {
        batches[i] = submit(ingest, &sources[i]);
        for (int before = 0; before < i; before++) /* one is being copied, at most */
            assert_int_equal(sources[before].released, 1);
        for (int before = 0; before < i; before++)
            assert_ptr_not_equal(batches[i]->image.data, batches[before]->image.data);
    }
    assert_int_equal(mr_ingest_submit(ingest, &sources[3].batch, &batches[3], &error), MR_BUSY);
    assert_non_null(strstr(error.text, "3 device batches"));
    assert_int_equal(sources[3].released, 0);
    const void *memory = batches[1]->image.data;
    assert_int_equal(mr_ingest_copied(batches[2], 1, &error), MR_OK);
    assert_int_equal(sources[2].released, 1);
    assert_int_equal(mr_ingest_release(batches[1], NULL, &error), MR_OK);
    assert_int_equal(mr_ingest_release(batches[1], NULL, &error), MR_INVALID);
    assert_int_equal(mr_ingest_wait(batches[1], &error), MR_INVALID);
    batches[3] = submit(ingest, &sources[3]);
    assert_ptr_equal(batches[3]->image.data, memory);
    for (int i = 0; i < 4; i++) {
        if (i == 1)
            continue;
        assert_int_equal(mr_ingest_wait(batches[i], &error), MR_OK);
        check_batch(device, &sources[i], &finish, batches[i]);
    }
    assert_int_equal(mr_device_close(&device), MR_BUSY);
    mr_ingest_destroy(ingest); /* with batches out */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(sources[i].released, 1);
        source_fini(&sources[i], device);
    }
    assert_int_equal(mr_device_close(&device), MR_OK);
}

/* The trainer's stream sees whole batches, though nobody waits for anything but it. */
static void test_streams(void **state)
{
    enum { STEPS = 40, ROWS = 16, SIDE = 63 };
    static const size_t bytes = (size_t)ROWS * SIDE * SIDE * 3 * sizeof(float);
    struct mr_device *device = open_device();
    struct mr_finish finish = plain_finish();
    struct mr_ingest *ingest = make(device, &finish, ROWS, SIDE, SIDE);
    void *stream = memory_stream_create(device), *seen[STEPS];
    struct source *sources = calloc(STEPS, sizeof *sources);
    struct mr_error error;
    (void)state;
    for (int i = 0; i < STEPS; i++) {
        seen[i] = mr_device_slot_allocate(device, bytes);
        source_init(&sources[i], device, ROWS, SIDE, SIDE);
        source_fill(&sources[i], (uint64_t)i * ROWS);
    }
    for (int i = 0; i < STEPS; i++) {
        struct mr_device_batch *batch = submit(ingest, &sources[i]);
        assert_int_equal(mr_ingest_stream_wait(batch, stream, &error), MR_OK);
        memory_stream_copy(device, stream, seen[i], batch->image.data, bytes);
        assert_int_equal(mr_ingest_release(batch, stream, &error), MR_OK);
    }
    memory_stream_wait(device, stream);
    for (int i = 0; i < STEPS; i++) {
        struct client_mix none = {.count = 0};
        check_bits(&sources[i], &finish, &none, seen[i], bytes);
        mr_device_slot_free(device, seen[i], bytes);
    }
    mr_ingest_destroy(ingest);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(sources[i].released, 1);
        source_fini(&sources[i], device);
    }
    free(sources);
    memory_stream_destroy(device, stream);
    assert_int_equal(mr_device_close(&device), MR_OK);
}

/* Without a batch_release, batches stay the caller's. */
static void test_callers_batches(void **state)
{
    struct mr_device *device = open_device();
    struct mr_finish finish = plain_finish();
    struct mr_ingest_options options = {
        .size = sizeof options, .finish = &finish, .batch = 2, .height = 4, .width = 4, .ring = 1};
    struct mr_ingest *ingest;
    struct mr_device_batch *batch;
    struct source source;
    struct mr_error error;
    (void)state;
    assert_int_equal(mr_ingest_create(&ingest, device, &options, &error), MR_OK);
    source_init(&source, device, 2, 4, 4);
    source_fill(&source, 0);
    source.batch.field_count = 1; /* no labels */
    batch = submit(ingest, &source);
    assert_int_equal(mr_ingest_copied(batch, 1, &error), MR_OK);
    assert_int_equal(mr_ingest_copied(batch, 0, &error), MR_OK);
    assert_int_equal(source.released, 0);
    assert_null(batch->label.name);
    assert_int_equal(mr_ingest_release(batch, NULL, &error), MR_OK);
    source_fini(&source, device);
    assert_int_equal(mr_device_close(&device), MR_BUSY);
    mr_ingest_destroy(ingest);
    assert_int_equal(mr_device_close(&device), MR_OK);
}

/* ---- where finish runs ---- */

static struct mr_placement placement_of(const struct mr_ingest *ingest)
{
    struct mr_placement placement = {.size = sizeof placement};
    assert_int_equal(mr_ingest_placement(ingest, &placement), MR_OK);
    return placement;
}

/* The bits are the client's, wherever they are made, and while that is being found out. */
static void check_place(struct mr_device *device, enum mr_finish_where asked)
{
    enum { STEPS = 12, ROWS = 6 };
    struct mr_finish finish = plain_finish();
    struct source source;
    struct mr_error error;
    finish.mixup_p = 0.5;
    finish.erase_p = 0.5;
    source_init(&source, device, ROWS, 20, 21);
    struct mr_ingest *ingest = make_at(device, &finish, ROWS, 20, 21, asked);
    for (uint64_t step = 0; step < STEPS; step++) {
        source_fill(&source, step * ROWS);
        enum mr_finish_where where = placement_of(ingest).where;
        struct mr_device_batch *batch = submit(ingest, &source);
        if (where == MR_FINISH_CLIENT) /* read to the end */
            assert_int_equal(source.released, step + 1);
        assert_int_equal(mr_ingest_wait(batch, &error), MR_OK);
        assert_int_equal(source.released, step + 1);
        check_batch(device, &source, &finish, batch);
        assert_int_equal(mr_ingest_release(batch, NULL, &error), MR_OK);
    }
    struct mr_placement placement = placement_of(ingest);
    assert_true(placement.decided);
    assert_true(asked == MR_FINISH_AUTO || placement.where == asked);
    assert_int_equal(placement.client.batches, backend == MR_BACKEND_CUDA && asked == MR_FINISH_GPU ? 0 : 3);
    assert_int_equal(placement.gpu.batches, backend == MR_BACKEND_HOST || asked == MR_FINISH_CLIENT ? 0 : 3);
    if (placement.gpu.batches > 0)
        assert_int_equal(placement.gpu.copied_bytes, source.fields[0].bytes);
    if (backend == MR_BACKEND_HOST)
        assert_string_equal(placement.reason, "client: there is no GPU");
    mr_ingest_destroy(ingest);
    source_fini(&source, device);
}

static void test_places(void **state)
{
    struct mr_device *device = open_device();
    struct mr_placement small = {.size = sizeof small - 1};
    struct mr_finish finish = plain_finish();
    struct mr_error error;
    (void)state;
    check_place(device, MR_FINISH_AUTO);
    check_place(device, MR_FINISH_CLIENT);
    if (backend == MR_BACKEND_CUDA) {
        check_place(device, MR_FINISH_GPU);
    } else {
        struct mr_ingest_options options = {sizeof options, &finish, 1, 1, 1, 0, MR_FINISH_GPU, NULL};
        struct mr_ingest *none = NULL;
        assert_int_equal(mr_ingest_create(&none, device, &options, &error), MR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "GPU"));
    }
    struct mr_ingest *ingest = make(device, &finish, 1, 1, 1);
    assert_int_equal(mr_ingest_placement(ingest, &small), MR_INVALID);
    mr_ingest_destroy(ingest);
    assert_int_equal(mr_device_close(&device), MR_OK);
}

/* ---- what is refused ---- */

static void test_options_refused(void **state)
{
    struct mr_device *device = open_device();
    struct mr_finish good = plain_finish(), bytes = good, odd = good, classless = good, many = good;
    (void)state;
    bytes.dtype = MR_U8;
    odd.dtype = MR_I64;
    classless.classes = 0;
    classless.cutmix_p = 1;
    many.views = 9;
    const struct {
        struct mr_ingest_options options;
        const char *says;
    } rows[] = {
        {{0, &good, 4, 8, 8, 0, MR_FINISH_AUTO, NULL}, "size"},
        {{sizeof rows[0].options, NULL, 4, 8, 8, 0, MR_FINISH_AUTO, NULL}, "missing"},
        {{sizeof rows[0].options, &good, 0, 8, 8, 0, MR_FINISH_AUTO, NULL}, "batch is 0"},
        {{sizeof rows[0].options, &good, 65536, 8, 8, 0, MR_FINISH_AUTO, NULL}, "65535"},
        {{sizeof rows[0].options, &good, 4, 0, 8, 0, MR_FINISH_AUTO, NULL}, "0 x 8"},
        {{sizeof rows[0].options, &good, 4, 8, 16385, 0, MR_FINISH_AUTO, NULL}, "16384"},
        {{sizeof rows[0].options, &good, 4, 8, 8, 65, MR_FINISH_AUTO, NULL}, "ring is 65"},
        {{sizeof rows[0].options, &good, 4, 8, 8, 0, (enum mr_finish_where)3, NULL}, "where is 3"},
        {{sizeof rows[0].options, &bytes, 4, 8, 8, 0, MR_FINISH_AUTO, NULL}, "float dtype"},
        {{sizeof rows[0].options, &odd, 4, 8, 8, 0, MR_FINISH_AUTO, NULL}, "int64"},
        {{sizeof rows[0].options, &classless, 4, 8, 8, 0, MR_FINISH_AUTO, NULL}, "classes"},
        {{sizeof rows[0].options, &many, 4, 8, 8, 0, MR_FINISH_AUTO, NULL}, "9 views"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mr_ingest *ingest = NULL;
        struct mr_error error = {0};
        assert_int_equal(mr_ingest_create(&ingest, device, &rows[i].options, &error), MR_INVALID);
        assert_null(ingest);
        if (!strstr(error.text, rows[i].says))
            fail_msg("row %zu: \"%s\" does not say \"%s\"", i, error.text, rows[i].says);
    }
    mr_ingest_destroy(NULL);
    assert_int_equal(mr_device_close(&device), MR_OK);
}

static void test_batches_refused(void **state)
{
    struct mr_device *device = open_device();
    struct mr_finish finish = plain_finish();
    struct mr_ingest *ingest = make(device, &finish, 4, 8, 9);
    struct source good, other, large;
    struct mr_device_batch *out = NULL;
    struct mr_error error;
    (void)state;
    source_init(&good, device, 4, 8, 9);
    source_init(&other, device, 4, 9, 8);
    source_init(&large, device, 5, 8, 9);
    assert_int_equal(mr_ingest_submit(ingest, &other.batch, &out, &error), MR_INVALID);
    assert_int_equal(mr_ingest_submit(ingest, &large.batch, &out, &error), MR_INVALID);
    assert_non_null(strstr(error.text, "5 rows"));
    good.fields[0].dtype = MR_F32; /* apply_finish was set */
    assert_int_equal(mr_ingest_submit(ingest, &good.batch, &out, &error), MR_INVALID);
    assert_non_null(strstr(error.text, "apply_finish"));
    good.fields[0].dtype = MR_U8;
    good.fields[1].dtype = MR_F32;
    assert_int_equal(mr_ingest_submit(ingest, &good.batch, &out, &error), MR_INVALID);
    good.fields[1].dtype = MR_I64;
    source_fill(&good, 0);
    assert_int_equal(mr_ingest_submit(ingest, &good.batch, &out, &error), MR_OK);
    assert_int_equal(good.released + other.released + large.released,
                     backend == MR_BACKEND_HOST ? 1 : good.released);
    mr_ingest_destroy(ingest);
    assert_int_equal(good.released, 1);
    source_fini(&good, device);
    source_fini(&other, device);
    source_fini(&large, device);
    assert_int_equal(mr_device_close(&device), MR_OK);
}

static void test_devices(void **state)
{
    static const struct {
        struct mr_device_options options;
        enum mr_code code;
    } rows[] = {
        {{0, MR_BACKEND_HOST, 0}, MR_INVALID},
        {{sizeof rows[0].options, (enum mr_backend)7, 0}, MR_INVALID},
        {{sizeof rows[0].options, MR_BACKEND_HOST, -1}, MR_INVALID},
    };
    struct mr_device_options options = {.size = sizeof options, .backend = MR_BACKEND_AUTO};
    struct mr_device *device = NULL;
    struct mr_error error;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(mr_device_open(&device, &rows[i].options, &error), rows[i].code);
    assert_int_equal(mr_device_open(&device, NULL, &error), MR_INVALID);
    assert_int_equal(mr_device_open(&device, &options, &error), MR_OK); /* anywhere */
    assert_true(memory_devices() > 0 || mr_device_backend(device) == MR_BACKEND_HOST);
    void *slot = mr_device_slot_allocate(device, 100);
    assert_non_null(slot);
    assert_int_equal((uintptr_t)slot % 64, 0);
    assert_int_equal(mr_device_close(&device), MR_BUSY);
    mr_device_slot_free(device, slot, 100);
    assert_int_equal(mr_device_close(&device), MR_OK);
    assert_int_equal(mr_device_close(&device), MR_OK);
    assert_int_equal(mr_device_close(NULL), MR_OK);
    for (int kind = MR_BACKEND_AUTO; kind <= MR_BACKEND_CUDA; kind += 2) {
        options = (struct mr_device_options){sizeof options, (enum mr_backend)kind, 999};
        enum mr_code code = mr_device_open(&device, &options, &error);
        assert_true(code == MR_NOT_FOUND || code == MR_UNSUPPORTED); /* not in this build */
        assert_non_null(strstr(error.text, "cuda"));
    }
}

/* First in line: nothing else has made a context yet. */
static void test_contexts_on_the_device_asked_for_alone(void **state)
{
    int last = memory_devices() - 1;
    struct mr_device_options options = {.size = sizeof options, .backend = backend, .ordinal = last};
    struct mr_device *device = NULL;
    struct mr_error error;
    (void)state;
    if (backend != MR_BACKEND_CUDA)
        skip();
    assert_int_equal(mr_device_open(&device, &options, &error), MR_OK);
    void *slot = mr_device_slot_allocate(device, 100);
    assert_non_null(slot);
    for (int ordinal = 0; ordinal <= last; ordinal++)
        assert_int_equal(memory_context_lives(ordinal), ordinal == last);
    mr_device_slot_free(device, slot, 100);
    assert_int_equal(mr_device_close(&device), MR_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts_on_the_device_asked_for_alone),
        cmocka_unit_test(test_against_double_precision_and_the_client),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_callers_batches),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_options_refused),
        cmocka_unit_test(test_batches_refused),
        cmocka_unit_test(test_devices),
    };
    if (argc == 2 && strcmp(argv[1], "cuda") == 0) {
        backend = MR_BACKEND_CUDA;
        if (memory_no_cuda()) {
            printf("skipped: %s\n", memory_no_cuda());
            return 77;
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* RandomErasing, MixUp and CutMix: what is drawn, and what it does to a batch. `--dump FILE`: cases that torchvision's own
 * code is to judge (mix_oracle.py). */
#include "client/src/mix.h"

#include "base/philox.h"
#include "client/src/draw.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ROWS 9
#define HEIGHT 13
#define WIDTH 17
#define CLASSES 5
#define VALUES (ROWS * HEIGHT * WIDTH * 3)

struct sample {
    struct mr_batch batch;
    struct mr_row row[ROWS];
    uint8_t valid[ROWS], in[VALUES];
    int64_t labels[ROWS];
    struct mr_row_draw draws[ROWS];
    struct client_mix mix;
    float mixed[ROWS * CLASSES];
    uint32_t out[VALUES];
};

/* `invalid`: bit i: row i is not valid. */
static void make(struct sample *sample, uint64_t position, uint32_t epoch, uint32_t rows, uint32_t invalid)
{
    memset(sample, 0, sizeof *sample);
    sample->batch =
        (struct mr_batch){.rows = rows, .valid = sample->valid, .row = sample->row, .stream_epoch = epoch};
    for (uint32_t i = 0; i < rows; i++) {
        sample->row[i].position = position + i;
        sample->valid[i] = !(invalid >> i & 1);
        sample->batch.valid_rows += sample->valid[i];
        sample->labels[i] =
            sample->valid[i] ? (int64_t)(base_philox_word(5, 2, position + i) % CLASSES) : -100;
    }
    for (uint32_t i = 0; i < VALUES; i++)
        sample->in[i] = (uint8_t)base_philox_word(position, 1, i);
}

static void run(struct sample *sample, const struct mr_finish *asked)
{
    struct client_finish finish;
    client_finish_init(&finish, asked);
    client_finish_run(&finish, sample->in, sample->out, sample->batch.rows, HEIGHT * WIDTH);
    sample->mix = (struct client_mix){
        .rows = sample->draws, .count = sample->batch.rows, .views = 1, .height = HEIGHT, .width = WIDTH};
    mr_finish_draw(asked, &sample->batch, HEIGHT, WIDTH, &sample->mix.draw, sample->draws);
    client_mix_images(&sample->mix, &finish, sample->in, sample->out);
    client_mix_labels(&sample->mix, sample->labels, CLASSES, sample->mixed);
}

static struct mr_finish asked_for(double erase_p, double mixup_p, double cutmix_p)
{
    return (struct mr_finish){.size = sizeof(struct mr_finish),
                              .dtype = MR_F32,
                              .channels_first = 1,
                              .normalizes = 1,
                              .mean = {0.485f, 0.456f, 0.406f},
                              .std = {0.229f, 0.224f, 0.225f},
                              .erase_p = erase_p,
                              .erase_scale = {0.02, 0.33},
                              .erase_ratio = {0.3, 3.3},
                              .mixup_p = mixup_p,
                              .cutmix_p = cutmix_p,
                              .classes = CLASSES,
                              .seed = 42};
}

static void test_text_becomes_numbers(void **state)
{
    struct scheduler_pipeline pipeline;
    struct mr_finish finish;
    struct base_error error;
    (void)state;
    const char *text = "sample: Decode CenterCrop(size=8) | finish: ToDtype(dtype=bfloat16) Normalize | "
                       "batch: RandomErasing(p=0.1,ratio_max=4) CutMix(p=0.75)";
    assert_int_equal(scheduler_pipeline_parse(text, NULL, 0, &pipeline, &error), BASE_OK);
    assert_int_equal(client_draw_finish(&finish, &pipeline, 3, 7, &error), BASE_OK);
    assert_int_equal(finish.dtype, MR_BF16);
    assert_true(!finish.channels_first && finish.normalizes && finish.mean[1] == 0.456f);
    assert_true(finish.std[2] == 0.225f);
    assert_true(finish.erase_p == 0.1 && finish.erase_scale[1] == 0.33 && finish.erase_ratio[1] == 4);
    assert_true(finish.mixup_p == 0 && finish.cutmix_p == 0.75 && finish.classes == 3 && finish.seed == 7);
    assert_int_equal(client_draw_finish(&finish, &pipeline, 0, 7, &error), BASE_INVALID);
    assert_non_null(strstr(error.text, "classes"));
}

static void test_partners(void **state)
{
    static const struct {
        uint32_t rows, invalid;
        int32_t partners[5];
    } cases[] = {
        {5, 0, {4, 0, 1, 2, 3}},
        {5, 1u << 0 | 1u << 3, {0, 4, 1, 3, 2}},
        {1, 0, {0}},
        {3, 7, {0, 1, 2}},
        {3, 6, {0, 1, 2}},
        {0, 0, {0}},
    };
    struct mr_finish asked = asked_for(1, 1, 0);
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sample sample;
        make(&sample, 100, 0, cases[c].rows, cases[c].invalid);
        run(&sample, &asked);
        for (uint32_t i = 0; i < cases[c].rows; i++) {
            assert_int_equal(sample.draws[i].partner, cases[c].partners[i]);
            if (!sample.valid[i])
                assert_int_equal(sample.draws[i].erased.height, 0);
        }
    }
}

static void test_draws_depend_on_seed_epoch_and_position_alone(void **state)
{
    struct sample first, again, other;
    struct mr_finish asked = asked_for(1, 0, 1), seeded = asked;
    (void)state;
    make(&first, 64, 3, ROWS, 0);
    run(&first, &asked);
    make(&again, 64, 3, ROWS, 0);
    run(&again, &asked);
    assert_memory_equal(first.out, again.out, sizeof first.out);
    assert_memory_equal(&first.mix.draw, &again.mix.draw, sizeof first.mix.draw);
    make(&other, 64, 4, ROWS, 0);
    run(&other, &asked);
    assert_memory_not_equal(first.draws, other.draws, sizeof first.draws);
    make(&other, 73, 3, ROWS, 0);
    run(&other, &asked);
    assert_memory_not_equal(first.draws, other.draws, sizeof first.draws);
    seeded.seed++;
    make(&other, 64, 3, ROWS, 0);
    run(&other, &seeded);
    assert_memory_not_equal(first.draws, other.draws, sizeof first.draws);
}

/* Within 5 standard deviations of what they should be: shares of kinds, of erased rows, mean of lambda. */
static void test_frequencies(void **state)
{
    enum { BATCHES = 4000 };
    struct mr_finish asked = asked_for(0.25, 0.8, 0.4);
    double kinds[3] = {0}, erased = 0, lambda = 0;
    (void)state;
    for (uint64_t b = 0; b < BATCHES; b++) {
        struct sample sample;
        struct mr_batch_draw draw;
        make(&sample, b * ROWS, 0, ROWS, 0);
        mr_finish_draw(&asked, &sample.batch, HEIGHT, WIDTH, &draw, sample.draws);
        kinds[draw.mix]++;
        lambda += draw.mix == MR_MIX_UP ? draw.share : 0;
        for (int i = 0; i < ROWS; i++)
            erased += sample.draws[i].erased.height > 0;
        assert_true(fabs(draw.share + draw.partner_share - 1) < 1e-6);
        assert_true(draw.cut.top >= 0 && draw.cut.top + draw.cut.height <= HEIGHT);
        assert_true(draw.cut.left >= 0 && draw.cut.left + draw.cut.width <= WIDTH);
    }
    assert_true(fabs(kinds[MR_MIX_UP] / BATCHES - 0.4) < 5 * sqrt(0.4 * 0.6 / BATCHES));
    assert_true(fabs(kinds[MR_MIX_CUT] / BATCHES - 0.2) < 5 * sqrt(0.2 * 0.8 / BATCHES));
    assert_true(fabs(lambda / kinds[MR_MIX_UP] - 0.5) < 5 * sqrt(1. / 12 / kinds[MR_MIX_UP]));
    assert_true(fabs(erased / BATCHES / ROWS - 0.25) < 5 * sqrt(0.25 * 0.75 / BATCHES / ROWS));
}

static void test_rows_not_valid_stay(void **state)
{
    struct mr_finish asked = asked_for(1, 1, 0);
    struct client_finish finish;
    struct sample sample;
    static uint32_t plain[VALUES];
    size_t row = (size_t)HEIGHT * WIDTH * 3;
    (void)state;
    make(&sample, 7, 1, ROWS, 1u << 2 | 1u << 8);
    run(&sample, &asked);
    client_finish_init(&finish, &asked);
    client_finish_run(&finish, sample.in, plain, ROWS, HEIGHT * WIDTH);
    for (int i = 0; i < ROWS; i++)
        assert_int_equal(memcmp(plain + i * row, sample.out + i * row, row * 4) == 0, i == 2 || i == 8);
    for (int c = 0; c < CLASSES; c++)
        assert_true(sample.mixed[2 * CLASSES + c] == 0);
}

/* The first view is what one view is; the others are erased by draws of their own, and mixed alike, with one label. */
static void test_views(void **state)
{
    enum { VIEWS = 3, IMAGE = HEIGHT * WIDTH * 3 };
    struct mr_finish asked = asked_for(0.5, 1, 1);
    struct client_finish finish;
    int other = 0;
    (void)state;
    client_finish_init(&finish, &asked);
    for (uint64_t b = 0; b < 20; b++) {
        struct sample one;
        static uint8_t in[VIEWS * VALUES];
        static uint32_t out[VIEWS * VALUES];
        struct mr_row_draw draws[VIEWS * ROWS];
        struct client_mix mix = {
            .rows = draws, .count = ROWS, .views = VIEWS, .height = HEIGHT, .width = WIDTH};
        float mixed[ROWS * CLASSES];
        asked.views = 0;
        make(&one, b * ROWS, 0, ROWS, b % 2 ? 1u << 4 : 0);
        run(&one, &asked);
        for (int i = 0; i < VIEWS * ROWS; i++) /* each view of a row holds the same bytes */
            memcpy(in + i * IMAGE, one.in + i / VIEWS * IMAGE, IMAGE);
        asked.views = VIEWS;
        mr_finish_draw(&asked, &one.batch, HEIGHT, WIDTH, &mix.draw, draws);
        client_finish_run(&finish, in, out, (size_t)VIEWS * ROWS, HEIGHT * WIDTH);
        client_mix_images(&mix, &finish, in, out);
        client_mix_labels(&mix, one.labels, CLASSES, mixed);
        assert_memory_equal(&mix.draw, &one.mix.draw, sizeof mix.draw);
        assert_memory_equal(mixed, one.mixed, sizeof mixed);
        for (int i = 0; i < VIEWS * ROWS; i++) {
            const struct mr_row_draw *row = &one.draws[i / VIEWS];
            assert_int_equal(draws[i].partner, row->partner * VIEWS + i % VIEWS);
            if (i % VIEWS > 0) {
                other += memcmp(&draws[i].erased, &row->erased, sizeof row->erased) != 0;
                continue;
            }
            assert_memory_equal(&draws[i].erased, &row->erased, sizeof row->erased);
            assert_memory_equal(out + i * IMAGE, one.out + i / VIEWS * IMAGE, IMAGE * sizeof out[0]);
        }
    }
    assert_true(other > 20 * ROWS);
}

static int dump(const char *path)
{
    static const enum mr_dtype dtypes[] = {MR_F32, MR_F16, MR_BF16};
    static const double ps[][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0.5, 1, 1}, {0.5, 0.5, 0.5}, {0, 0, 0}};
    FILE *file = fopen(path, "wb");
    for (uint32_t i = 0; file && i < 240; i++) {
        const double *p = ps[i % 6];
        struct mr_finish asked = asked_for(p[0], p[1], p[2]);
        struct sample sample;
        asked.dtype = dtypes[i / 6 % 3];
        asked.channels_first = i / 18 % 2;
        asked.seed = base_philox_word(1, 9, i);
        if (i % 5 == 0) /* most tries do not fit, some rows have none that does */
            asked.erase_scale[0] = 0.6, asked.erase_scale[1] = 1;
        make(&sample, (uint64_t)i << 31, i % 7, i % ROWS + 1, i % 4 == 3 ? i * 5 : 0);
        run(&sample, &asked);
        uint32_t rows = sample.batch.rows;
        const struct mr_batch_draw *d = &sample.mix.draw;
        fprintf(file, "%llu %u %llu %u %d %d %d %.17g %.17g %.17g %.17g %.17g %s %d %d %d %d %d %d\n",
                (unsigned long long)asked.seed, sample.batch.stream_epoch,
                (unsigned long long)sample.row[0].position, rows, HEIGHT, WIDTH, CLASSES, p[0], p[1], p[2],
                asked.erase_scale[0], asked.erase_scale[1], mr_dtype_name(asked.dtype), asked.channels_first,
                d->mix, d->cut.top, d->cut.left, d->cut.height, d->cut.width);
        size_t values = rows * (size_t)HEIGHT * WIDTH * 3;
        fwrite(sample.valid, 1, rows, file);
        fwrite(sample.labels, sizeof *sample.labels, rows, file);
        fwrite(sample.in, 1, values, file);
        fwrite(sample.draws, sizeof *sample.draws, rows, file);
        fwrite(sample.mixed, sizeof(float) * CLASSES, rows, file);
        fwrite(sample.out, mr_dtype_bytes(asked.dtype), values, file);
    }
    return file && fclose(file) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_becomes_numbers),
        cmocka_unit_test(test_partners),
        cmocka_unit_test(test_draws_depend_on_seed_epoch_and_position_alone),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_rows_not_valid_stay),
        cmocka_unit_test(test_views),
    };
    if (argc == 3 && strcmp(argv[1], "--dump") == 0)
        return dump(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

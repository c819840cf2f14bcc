/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows made together are those made alone: verdict, cause, text and every byte, over the built-in samples, whole, cut and
 * damaged, and over the photographs and the trouble files when the data is there.
 */
#include "base/philox.h"
#include "worker/pipeline/compiled.h"
#include "worker/pipeline/samples.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIELD_BYTES = 3 * 64 * 64 + 30000 };

static const char *const texts[] = {
    "sample: Decode RandomResizedCrop(size=40) RandomHorizontalFlip",
    "sample: Decode RandomResizedCrop(size=40)", /* the resize of the first; unflipped */
    "sample: Decode RandomResizedCrop(size=40) RandomHorizontalFlip(p=0.9) Encoded(max_bytes=6000)",
    "sample: Decode RandomResizedCrop(size=56) RandomHorizontalFlip", /* the crop of the first */
    "sample: Decode RandomResizedCrop(size=40,scale_min=0.5) RandomHorizontalFlip",
    "sample: Decode RandomResizedCrop(size=40,filter=bicubic,resize_order=pillow13)",
    "sample: Decode Resize(size=48) CenterCrop(size=40)",
    "sample: Decode Resize(size=48) CenterCrop(size=40) RandomHorizontalFlip",
    "sample: Decode CenterCrop(size=64)", /* wider than some: padded */
    "sample: Decode(max_pixels=2000) RandomResizedCrop(size=40)",
    "sample: Decode RandomResizedCrop(size=40) RandomHorizontalFlip Views(count=2)", /* the first, and another view */
    "sample: Decode CenterCrop(size=40) RandomHorizontalFlip Views(count=8)", /* one resize for all */
    "sample: Decode CenterCrop(size=40) Mask", /* bad where the image, as its own mask, has colours */
    "sample: Decode RandomResizedCrop(size=40) RandomHorizontalFlip Views(count=2) Mask(fill=9)",
};
enum { PIPELINES = sizeof texts / sizeof texts[0] };

struct outcome {
    enum pipeline_verdict verdict;
    struct base_error error;
    uint32_t encoded_length;
    uint8_t bytes[FIELD_BYTES];
};

static struct bench {
    struct scheduler_pipeline parsed[PIPELINES];
    struct pipeline *pipeline[PIPELINES];
    struct pipeline_scratch *alone, *together;
    struct outcome want[PIPELINES], got[PIPELINE_SIBLINGS];
    long rows, decodes;
} bench;

static int setup(void **state)
{
    (void)state;
    struct base_error error = {0};
    for (int i = 0; i < PIPELINES; i++)
        if (scheduler_pipeline_parse(texts[i], NULL, 0, &bench.parsed[i], &error) != BASE_OK ||
            pipeline_create(&bench.pipeline[i], &bench.parsed[i], &error) != BASE_OK) {
            print_error("%s: %s\n", texts[i], error.text);
            return -1;
        }
    return pipeline_scratch_create(&bench.alone, NULL) == BASE_OK &&
                   pipeline_scratch_create(&bench.together, NULL) == BASE_OK
               ? 0
               : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < PIPELINES; i++)
        pipeline_destroy(bench.pipeline[i]);
    pipeline_scratch_destroy(bench.alone);
    pipeline_scratch_destroy(bench.together);
    return 0;
}

static struct pipeline_row row_of(int pipeline, struct outcome *outcome)
{
    struct pipeline_row row = {.field = {NULL}};
    uint8_t *at = outcome->bytes;
    memset(outcome, 0, sizeof *outcome);
    for (int f = 0; f < bench.parsed[pipeline].field_count; f++) {
        row.field[f] = at;
        at += bench.parsed[pipeline].fields[f].max_bytes;
    }
    assert_true(at <= outcome->bytes + sizeof outcome->bytes);
    return row;
}

/* Bytes of a bad row are unspecified. */
static void note_length(int pipeline, const struct pipeline_row *row, struct outcome *outcome)
{
    int field = bench.pipeline[pipeline]->encoded_field;
    outcome->encoded_length = field >= 0 ? row->ragged_length[field] : 0;
    if (outcome->error.code != BASE_OK)
        memset(outcome->bytes, 0, sizeof outcome->bytes);
}

static void make_alone(const struct pipeline_input *input)
{
    for (int p = 0; p < PIPELINES; p++) {
        struct outcome *want = &bench.want[p];
        struct pipeline_row row = row_of(p, want);
        pipeline_run(bench.pipeline[p], bench.alone, input, &row, &want->verdict, &want->error);
        note_length(p, &row, want);
    }
}

static void make_together(const char *name, const struct pipeline_input *input, const int *chosen, int count)
{
    struct pipeline_sibling siblings[PIPELINE_SIBLINGS];
    struct pipeline_row rows[PIPELINE_SIBLINGS];
    for (int i = 0; i < count; i++) {
        rows[i] = row_of(chosen[i], &bench.got[i]);
        siblings[i] = (struct pipeline_sibling){bench.pipeline[chosen[i]], *input, &rows[i], 0, {0}, false};
    }
    bench.decodes += pipeline_siblings_run(bench.together, siblings, count);
    bench.rows += count;
    for (int i = 0; i < count; i++) {
        const struct outcome *want = &bench.want[chosen[i]];
        struct outcome *got = &bench.got[i];
        got->verdict = siblings[i].verdict;
        got->error = siblings[i].error;
        note_length(chosen[i], &rows[i], got);
        if (got->verdict != want->verdict || got->error.code != want->error.code ||
            (got->error.code && strcmp(got->error.text, want->error.text) != 0) ||
            got->encoded_length != want->encoded_length ||
            memcmp(got->bytes, want->bytes, sizeof got->bytes) != 0)
            fail_msg("%s: %d of %d, '%s': %s, %s; alone %s, %s", name, i, count, texts[chosen[i]],
                     pipeline_verdict_name(got->verdict), got->error.text,
                     pipeline_verdict_name(want->verdict), want->error.text);
    }
}

/* Each of a few draws: every pipeline alone, then some of them together. */
static void check_bytes(const char *name, const uint8_t *bytes, size_t size, int draws)
{
    uint8_t *exact = malloc(size + !size); /* no byte more, for AddressSanitizer */
    memcpy(exact, bytes, size);
    for (uint64_t draw = 0; draw < (uint64_t)draws; draw++) {
        struct pipeline_input input = {.bytes = exact,
                                       .size = size,
                                       .mask = exact,
                                       .mask_size = size,
                                       .label = 5,
                                       .sample_key = 77 + draw};
        make_alone(&input);
        for (uint64_t turn = 0; turn < 4; turn++) {
            int chosen[PIPELINE_SIBLINGS], count = 2 + (int)base_philox_below(size + draw, 1, turn, 3);
            for (int i = 0; i < count; i++)
                chosen[i] = (int)base_philox_below(size + draw, 2, turn * 4 + (uint64_t)i, PIPELINES);
            make_together(name, &input, chosen, count);
            input.known =
                bench.want[0].verdict == PIPELINE_GOOD && turn == 1 ? PIPELINE_GOOD : PIPELINE_UNKNOWN;
        }
    }
    free(exact);
}

static void samples_together(void **state)
{
    (void)state;
    char name[32];
    for (int i = 0; i < pipeline_sample_count; i++) {
        const struct pipeline_sample *sample = &pipeline_samples[i];
        snprintf(name, sizeof name, "sample %d", i);
        check_bytes(name, sample->bytes, sample->size, 40);
        for (size_t size = 0; size < sample->size; size += 97)
            check_bytes(name, sample->bytes, size, 1);
    }
    print_message("%ld rows of %ld decodes\n", bench.rows, bench.decodes);
    assert_true(bench.decodes * 3 < bench.rows * 2);
}

static void damaged_together(void **state)
{
    (void)state;
    for (int i = 0; i < pipeline_sample_count; i++) {
        size_t size = pipeline_samples[i].size;
        uint8_t *bytes = malloc(size);
        for (uint64_t n = 0; n < 25; n++) {
            memcpy(bytes, pipeline_samples[i].bytes, size);
            for (uint32_t k = 0; k <= n % 3; k++)
                bytes[base_philox_below(n, (uint32_t)i, k, size)] ^=
                    (uint8_t)(1 + base_philox_word(n, (uint32_t)i, 9) % 255);
            check_bytes("damaged", bytes, size, 1);
        }
        free(bytes);
    }
}

/* Each sibling's own refusal leaves the others their rows. */
static void each_is_refused_for_itself(void **state)
{
    (void)state;
    const struct pipeline_sample *sample = &pipeline_samples[0];
    uint8_t *bytes = calloc(1, 6001); /* zeros after the end marker, over what the third keeps */
    memcpy(bytes, sample->bytes, sample->size);
    struct pipeline_input input = {.bytes = bytes, .size = 6001, .sample_key = 9};
    make_alone(&input);
    assert_int_equal(bench.want[0].verdict, PIPELINE_GOOD);
    assert_int_equal(bench.want[2].verdict, PIPELINE_BAD_ROW_BYTES);
    make_together("long", &input, (const int[]){2, 0, 9, 6}, 4);
    make_together("long", &input, (const int[]){2, 2}, 2);
    free(bytes);
}

static void check_files(const char *pattern, int draws, size_t most)
{
    const char *data = getenv("MILLRACE_TEST_DATA");
    char path[4096];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s", data ? data : MILLRACE_DATA, pattern);
    if (glob(path, 0, NULL, &found) != 0) {
        print_message("skipped: no %s\n", path);
        skip();
    }
    for (size_t i = 0; i < found.gl_pathc && i < most; i++) {
        FILE *file = fopen(found.gl_pathv[i], "rb");
        static uint8_t bytes[4 << 20];
        if (!file)
            continue;
        size_t size = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        check_bytes(found.gl_pathv[i], bytes, size, draws);
    }
    globfree(&found);
}

static void photographs_together(void **state)
{
    (void)state;
    check_files("imagenet-mini/*/*.JPEG", 1, 20);
}

static void trouble_together(void **state)
{
    (void)state;
    check_files("trouble/images/*/*", 1, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_together),           cmocka_unit_test(damaged_together),
        cmocka_unit_test(each_is_refused_for_itself), cmocka_unit_test(photographs_together),
        cmocka_unit_test(trouble_together),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

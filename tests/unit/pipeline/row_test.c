/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and verdicts: what bad bytes give, and that nothing of one item reaches the next. */
#include "worker/pipeline/compiled.h"
#include "worker/pipeline/samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE = 40, IMAGE_BYTES = 3 * SIDE * SIDE, ENCODED_BYTES = 6000 };
enum {
    JPEG_420 = 0,
    JPEG_444 = 2,
    JPEG_PROGRESSIVE = 6,
    PNG_RGB = 7,
    PNG_GRAY16 = 10
}; /* places in samples.c */

struct made {
    enum base_code code;
    enum pipeline_verdict verdict;
    struct base_error error;
    uint8_t image[IMAGE_BYTES], label[8], box[16], flip[1], encoded[ENCODED_BYTES];
    uint32_t encoded_length;
};

struct fixture {
    struct pipeline *pipeline;
    struct pipeline_scratch *scratch;
};

static const char *const text = "sample: Decode(max_pixels=100000) RandomResizedCrop(size=40) "
                                "RandomHorizontalFlip Encoded(max_bytes=6000)";

static int setup(void **state)
{
    static struct fixture fixture;
    struct scheduler_pipeline parsed;
    struct base_error error = {0};
    if (scheduler_pipeline_parse(text, NULL, 0, &parsed, &error) != BASE_OK ||
        pipeline_create(&fixture.pipeline, &parsed, &error) != BASE_OK ||
        pipeline_scratch_create(&fixture.scratch, &error) != BASE_OK) {
        print_error("%s\n", error.text);
        return -1;
    }
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    pipeline_scratch_destroy(fixture->scratch);
    pipeline_destroy(fixture->pipeline);
    return 0;
}

static struct made *run(const struct fixture *fixture, const void *bytes, size_t size,
                        enum pipeline_verdict known)
{
    struct made *made = calloc(1, sizeof *made);
    uint8_t *exact = malloc(size + !size); /* no byte more, for AddressSanitizer */
    memcpy(exact, bytes, size);
    struct pipeline_row row = {.field = {made->image, made->label, made->box, made->flip, made->encoded}};
    struct pipeline_input input = {
        .bytes = exact, .size = size, .label = -7, .sample_key = 11, .known = known};
    made->code =
        pipeline_run(fixture->pipeline, fixture->scratch, &input, &row, &made->verdict, &made->error);
    made->encoded_length = row.ragged_length[4];
    free(exact);
    return made;
}

static struct made *run_sample(const struct fixture *fixture, int sample, enum pipeline_verdict known)
{
    return run(fixture, pipeline_samples[sample].bytes, pipeline_samples[sample].size, known);
}

static void good_samples_make_whole_rows(void **state)
{
    for (int i = 0; i < pipeline_sample_count; i++) {
        struct made *first = run_sample(*state, i, PIPELINE_UNKNOWN),
                    *again = run_sample(*state, i, PIPELINE_GOOD);
        assert_int_equal(first->code, BASE_OK);
        assert_int_equal(first->verdict, PIPELINE_GOOD);
        assert_memory_equal(first, again, sizeof *first);
        assert_int_equal(base_get_u64(first->label), -7);
        assert_int_equal(first->encoded_length, pipeline_samples[i].size);
        assert_memory_equal(first->encoded, pipeline_samples[i].bytes, pipeline_samples[i].size);
        free(first);
        free(again);
    }
}

#define BYTES(literal) literal, sizeof literal - 1

static void bytes_that_are_no_image_are_named(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
        enum pipeline_verdict verdict;
        const char *says;
    } rows[] = {
        {BYTES(""), PIPELINE_BAD_EMPTY, "empty"},
        {BYTES("x"), PIPELINE_BAD_FORMAT, "no image format"},
        {BYTES("version https://git-lfs.github.com/spec/v1\n"), PIPELINE_BAD_FORMAT, "no image format"},
        {BYTES("GIF89a\1\0\1\0"), PIPELINE_BAD_UNSUPPORTED, "GIF is not supported"},
        {BYTES("RIFF\0\0\0\0WEBPVP8 "), PIPELINE_BAD_UNSUPPORTED, "WebP is not supported"},
        {BYTES("BM\0\0\0\0"), PIPELINE_BAD_UNSUPPORTED, "BMP is not supported"},
        {BYTES("II*\0\10\0\0\0"), PIPELINE_BAD_UNSUPPORTED, "TIFF is not supported"},
        {BYTES("\0\0\0\x1c"
               "ftypavif"),
         PIPELINE_BAD_UNSUPPORTED, "AVIF is not supported"},
        {BYTES("P6\n1 1\n255\n"), PIPELINE_BAD_UNSUPPORTED, "Netpbm is not supported"},
        {BYTES("\xff\xd8\xff"), PIPELINE_BAD_TRUNCATED, "end before the first row"},
        {BYTES("\xff\xd8\xff\xd9"), PIPELINE_BAD_HEADER, "no image"},
        {BYTES("\x89PNG\r\n\x1a\n"), PIPELINE_BAD_TRUNCATED, "end too early"},
        {BYTES("\x89PNG\r\n\x1a\n\0\0\0\1IHDR\0abcd"), PIPELINE_BAD_HEADER, "PNG: "},
        {BYTES("\xff\xd8\xff\xc3\0\x0b\10\0\2\0\2\1\1\x11\0\xff\xda\0\10\1\1\0\1\0\0"),
         PIPELINE_BAD_UNSUPPORTED, "SOF"},
        {BYTES("\xff\xd8\xff\xc0\0\x0b\x0c\0\2\0\2\1\1\x11\0\xff\xda\0\10\1\1\0\0\x3f\0"),
         PIPELINE_BAD_UNSUPPORTED, "precision 12"},
        {BYTES("\xff\xd8\xff\xc0\0\x0b\10\xff\xff\xff\xff\1\1\x11\0\xff\xda\0\10\1\1\0\0\x3f\0"),
         PIPELINE_BAD_PIXELS, "dimension"},
        {BYTES("\xff\xd8\xff\xc0\0\x0b\10\1\xf5\0\xc8\1\1\x11\0\xff\xda\0\10\1\1\0\0\x3f\0"),
         PIPELINE_BAD_PIXELS, "200 x 501"},
        {BYTES("\xff\xd8\xff\xc0\0\x0e\10\0\2\0\2\2\1\x11\0\2\x11\0\xff\xda\0\x0a\2\1\0\2\0\0\x3f\0"),
         PIPELINE_BAD_UNSUPPORTED, "2 components"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct made *made = run(*state, rows[i].bytes, rows[i].size, PIPELINE_UNKNOWN);
        if (made->code != BASE_BAD_SAMPLE || made->verdict != rows[i].verdict ||
            !strstr(made->error.text, rows[i].says))
            fail_msg("row %zu: %s, %s (%s)", i, pipeline_verdict_name(made->verdict), made->error.text,
                     rows[i].says);
        free(made);
    }
}

/* However short: bad, truncated once the header is past; as a good item, judged anew and bad all the same. */
static void cut_files_are_bad_at_every_length(void **state)
{
    static const int cut[] = {JPEG_420, JPEG_PROGRESSIVE, PNG_RGB, PNG_GRAY16};
    for (size_t c = 0; c < sizeof cut / sizeof cut[0]; c++) {
        const struct pipeline_sample *sample = &pipeline_samples[cut[c]];
        size_t tail = cut[c] < PNG_RGB ? 2 : 24; /* end marker; checksum of the data, IEND */
        for (size_t size = 0; size < sample->size - tail; size += size < 700 ? 1 : 13) {
            struct made *made = run(*state, sample->bytes, size, PIPELINE_UNKNOWN);
            if (made->code != BASE_BAD_SAMPLE || (size > 700 && made->verdict != PIPELINE_BAD_TRUNCATED))
                fail_msg("sample %d cut to %zu: %s", cut[c], size, pipeline_verdict_name(made->verdict));
            free(made);
        }
        struct made *made = run(*state, sample->bytes, sample->size / 8, PIPELINE_GOOD);
        assert_int_equal(made->code, BASE_BAD_SAMPLE);
        assert_int_equal(made->verdict == PIPELINE_BAD_TRUNCATED || made->verdict == PIPELINE_BAD_HEADER,
                         true);
        free(made);
    }
}

static void damaged_files_end_in_a_verdict(void **state)
{
    int verdicts[256] = {0};
    for (int i = 0; i < pipeline_sample_count; i++) {
        size_t size = pipeline_samples[i].size;
        uint8_t *bytes = malloc(size);
        for (uint64_t n = 0; n < 300; n++) {
            memcpy(bytes, pipeline_samples[i].bytes, size);
            for (uint32_t k = 0; k <= n % 3; k++)
                bytes[base_philox_below(n, (uint32_t)i, k, size)] ^=
                    (uint8_t)(1 + base_philox_word(n, (uint32_t)i, 9) % 255);
            struct made *made = run(*state, bytes, size, n % 2 ? PIPELINE_GOOD : PIPELINE_UNKNOWN);
            assert_int_equal(made->code, pipeline_verdict_is_bad(made->verdict) ? BASE_BAD_SAMPLE : BASE_OK);
            verdicts[made->verdict]++;
            free(made);
        }
        free(bytes);
    }
    for (int i = 0; i < 256; i++)
        if (verdicts[i])
            print_message("%s: %d\n", pipeline_verdict_name((enum pipeline_verdict)i), verdicts[i]);
    assert_true(verdicts[PIPELINE_WARNED] > 0 && verdicts[PIPELINE_BAD_DATA] > 0 &&
                verdicts[PIPELINE_GOOD] > 0);
}

/* A JPEG that lacks its quantization table, after one that had it: libjpeg keeps tables from image to image if let. */
static void nothing_of_one_image_reaches_the_next(void **state)
{
    const struct pipeline_sample *sample = &pipeline_samples[JPEG_444];
    uint8_t *bytes = malloc(sample->size);
    size_t at = 2;
    memcpy(bytes, sample->bytes, sample->size);
    while (bytes[at + 1] != 0xdb)
        at += 2 + (size_t)(bytes[at + 2] << 8 | bytes[at + 3]);
    bytes[at + 1] = 0xfe; /* DQT becomes a comment */
    free(run_sample(*state, JPEG_444, PIPELINE_UNKNOWN));
    struct made *made = run(*state, bytes, sample->size, PIPELINE_UNKNOWN);
    assert_int_equal(made->code, BASE_BAD_SAMPLE);
    assert_non_null(strstr(made->error.text, "uantization"));
    free(made);
    struct made *after = run_sample(*state, JPEG_420, PIPELINE_GOOD);
    struct fixture fresh = *(struct fixture *)*state;
    assert_int_equal(pipeline_scratch_create(&fresh.scratch, NULL), BASE_OK);
    made = run_sample(&fresh, JPEG_420, PIPELINE_GOOD);
    assert_memory_equal(made, after, sizeof *made);
    pipeline_scratch_destroy(fresh.scratch);
    free(made);
    free(after);
    free(bytes);
}

static void a_known_verdict_is_kept(void **state)
{
    struct made *made = run_sample(*state, JPEG_444, PIPELINE_BAD_DATA);
    assert_int_equal(made->code, BASE_BAD_SAMPLE);
    assert_int_equal(made->verdict, PIPELINE_BAD_DATA);
    assert_non_null(strstr(made->error.text, "bad_data"));
    free(made);
    /* decoded whole again; and what another pipeline's caps refused is judged by this one's */
    static const enum pipeline_verdict open[] = {PIPELINE_WARNED, PIPELINE_BAD_PIXELS,
                                                 PIPELINE_BAD_ROW_BYTES};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        made = run_sample(*state, JPEG_444, open[i]);
        assert_int_equal(made->code, BASE_OK);
        assert_int_equal(made->verdict, PIPELINE_GOOD);
        free(made);
    }
}

static void bytes_over_their_field_are_refused(void **state)
{
    uint8_t *bytes = calloc(1, ENCODED_BYTES + 1);
    memcpy(bytes, pipeline_samples[JPEG_444].bytes, pipeline_samples[JPEG_444].size);
    struct made *made = run(*state, bytes, ENCODED_BYTES, PIPELINE_UNKNOWN); /* zeros after the end marker */
    assert_int_equal(made->code, BASE_OK);
    assert_int_equal(made->encoded_length, ENCODED_BYTES);
    free(made);
    made = run(*state, bytes, ENCODED_BYTES + 1, PIPELINE_UNKNOWN);
    assert_int_equal(made->code, BASE_BAD_SAMPLE);
    assert_int_equal(made->verdict, PIPELINE_BAD_ROW_BYTES);
    free(made);
    free(bytes);
}

/* The last scan of a progressive file, six hundred times: a few kB could keep a core busy for minutes. */
static void endless_scans_are_refused(void **state)
{
    (void)state;
    const struct pipeline_sample *sample = &pipeline_samples[JPEG_PROGRESSIVE];
    struct base_buffer many;
    struct decode_image *image;
    struct decode_info info;
    struct base_error error = {0};
    size_t scan = sample->size - 4, end = sample->size - 2;
    while (sample->bytes[scan] != 0xff || sample->bytes[scan + 1] != 0xda)
        scan--;
    base_buffer_init(&many);
    base_buffer_put(&many, sample->bytes, end);
    for (int i = 0; i < 600; i++)
        base_buffer_put(&many, sample->bytes + scan, end - scan);
    base_buffer_put(&many, sample->bytes + end, 2);
    assert_int_equal(decode_image_create(&image, &error), BASE_OK);
    assert_int_equal(decode_image_open(image, many.bytes, many.size, 100000, &info, &error), BASE_OK);
    struct decode_region region = {.right = info.width, .bottom = info.height, .whole = true};
    assert_int_equal(decode_image_begin(image, &region, &error), BASE_BAD_SAMPLE);
    assert_int_equal(decode_image_cause(image), DECODE_DATA);
    assert_non_null(strstr(error.text, "more than 500 scans"));
    decode_image_destroy(image);
    base_buffer_fini(&many);
}

static void sections_this_build_cannot_run_are_refused(void **state)
{
    (void)state;
    static const char *const base = "sample: Decode CenterCrop(size=8) RandomHorizontalFlip";
    struct scheduler_pipeline parsed, changed;
    struct pipeline *pipeline = NULL;
    struct base_error error = {0};
    assert_int_equal(scheduler_pipeline_parse(base, NULL, 0, &parsed, &error), BASE_OK);
    changed = parsed;
    changed.sample[1].version = 2;
    assert_int_equal(pipeline_create(&pipeline, &changed, &error), BASE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "CenterCrop@2"));
    changed = parsed;
    changed.sample[2] = parsed.sample[1];
    assert_int_equal(pipeline_create(&pipeline, &changed, &error), BASE_UNSUPPORTED);
    changed = parsed;
    changed.sample_count = 1;
    assert_int_equal(pipeline_create(&pipeline, &changed, &error), BASE_UNSUPPORTED);
    changed = parsed;
    changed.fields[0].max_bytes--;
    assert_int_equal(pipeline_create(&pipeline, &changed, &error), BASE_INVALID);
    assert_null(pipeline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_samples_make_whole_rows),
        cmocka_unit_test(bytes_that_are_no_image_are_named),
        cmocka_unit_test(cut_files_are_bad_at_every_length),
        cmocka_unit_test(damaged_files_end_in_a_verdict),
        cmocka_unit_test(nothing_of_one_image_reaches_the_next),
        cmocka_unit_test(a_known_verdict_is_kept),
        cmocka_unit_test(bytes_over_their_field_are_refused),
        cmocka_unit_test(endless_scans_are_refused),
        cmocka_unit_test(sections_this_build_cannot_run_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

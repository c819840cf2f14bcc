/* SPDX-License-Identifier: Apache-2.0 */
/* Several views of a sample: the first is the row of one view, and each is what its own box and flip say. */
#include "worker/pipeline/compiled.h"
#include "worker/pipeline/samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE = 40, IMAGE_BYTES = 3 * SIDE * SIDE, VIEWS = SCHEDULER_PIPELINE_VIEWS };

struct made {
    uint8_t image[VIEWS][IMAGE_BYTES], label[8], box[VIEWS][16], flip[VIEWS];
    enum pipeline_verdict verdict;
};

static const char *const texts[] = {
    "sample: Decode RandomResizedCrop(size=40) RandomHorizontalFlip",
    "sample: Decode RandomResizedCrop(size=40,filter=lanczos)",
    "sample: Decode Resize(size=48) CenterCrop(size=40) RandomHorizontalFlip",
    "sample: Decode CenterCrop(size=40) RandomHorizontalFlip",
};

static struct made *run(const char *text, int views, const struct pipeline_input *input)
{
    char option[16];
    const char *options[] = {option};
    struct scheduler_pipeline parsed;
    struct pipeline *pipeline = NULL;
    struct pipeline_scratch *scratch = NULL;
    struct base_error error = {0};
    struct made *made = calloc(1, sizeof *made);
    struct pipeline_row row = {.field = {made->image[0], made->label, made->box[0], made->flip}};
    snprintf(option, sizeof option, "views=%d", views);
    if (scheduler_pipeline_parse(text, options, 1, &parsed, &error) != BASE_OK ||
        pipeline_create(&pipeline, &parsed, &error) != BASE_OK ||
        pipeline_scratch_create(&scratch, &error) != BASE_OK ||
        pipeline_run(pipeline, scratch, input, &row, &made->verdict, &error) != BASE_OK)
        fail_msg("%s, %d views: %s", text, views, error.text);
    pipeline_scratch_destroy(scratch);
    pipeline_destroy(pipeline);
    return made;
}

/* Of K views, view v is view v of any other number of them. */
static void views_are_the_same_whatever_their_number(void **state)
{
    (void)state;
    int boxes = 0, flips = 0, all = 0;
    for (int sample = 0; sample < pipeline_sample_count; sample++) {
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
            struct pipeline_input input = {.bytes = pipeline_samples[sample].bytes,
                                           .size = pipeline_samples[sample].size,
                                           .label = 3,
                                           .sample_key = 100 * (uint64_t)sample + t};
            struct made *most = run(texts[t], VIEWS, &input);
            assert_int_equal(most->label[0], 3);
            for (int views = 1; views < VIEWS; views++) {
                input.known = views % 2 ? PIPELINE_GOOD : PIPELINE_UNKNOWN;
                struct made *made = run(texts[t], views, &input);
                assert_int_equal(made->verdict, most->verdict);
                assert_memory_equal(made->image, most->image, (size_t)views * IMAGE_BYTES);
                assert_memory_equal(made->box, most->box, (size_t)views * sizeof most->box[0]);
                assert_memory_equal(made->flip, most->flip, (size_t)views);
                free(made);
            }
            for (int v = 1; v < VIEWS; v++) {
                boxes += t < 2 && memcmp(most->box[v], most->box[0], sizeof most->box[0]) != 0;
                flips += t != 1 && most->flip[v] != most->flip[0];
                all++;
            }
            free(most);
        }
    }
    print_message("of %d views after the first, %d with another box, %d with another flip\n", all, boxes,
                  flips);
    assert_true(boxes * 10 > all * 4 && flips * 8 > all * 2 && flips * 8 < all * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_are_the_same_whatever_their_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

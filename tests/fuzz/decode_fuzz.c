/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an item, and as its mask: a verdict, no crash, and a verdict that agrees with itself: what is good when judged whole gives
 * the same row by its region. The first two bytes choose the draws.
 */
#include "base/philox.h"
#include "worker/pipeline/pipeline.h"

#include <stdlib.h>
#include <string.h>

enum { SIDE = 24, VIEWS = 2, IMAGE_BYTES = VIEWS * 3 * SIDE * SIDE };

static struct pipeline *pipeline, *masked;
static struct pipeline_scratch *scratch;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    static const char *const text =
        "sample: Decode(max_pixels=200000) RandomResizedCrop(size=24,filter=bicubic) RandomHorizontalFlip "
        "Views(count=2)";
    static const char *const masks = "sample: Decode(max_pixels=200000) CenterCrop(size=24) Mask";
    struct scheduler_pipeline parsed;
    if (scheduler_pipeline_parse(text, NULL, 0, &parsed, NULL) != BASE_OK ||
        pipeline_create(&pipeline, &parsed, NULL) != BASE_OK ||
        scheduler_pipeline_parse(masks, NULL, 0, &parsed, NULL) != BASE_OK ||
        pipeline_create(&masked, &parsed, NULL) != BASE_OK ||
        pipeline_scratch_create(&scratch, NULL) != BASE_OK)
        abort();
    return 0;
}

static enum pipeline_verdict run(const uint8_t *bytes, size_t size, uint64_t key, enum pipeline_verdict known,
                                 uint8_t *image)
{
    uint8_t label[8], box[16 * VIEWS], flip[VIEWS];
    struct pipeline_row row = {.field = {image, label, box, flip}};
    struct pipeline_input input = {.bytes = bytes, .size = size, .sample_key = key, .known = known};
    enum pipeline_verdict verdict;
    enum base_code code = pipeline_run(pipeline, scratch, &input, &row, &verdict, NULL);
    if ((code == BASE_OK) == pipeline_verdict_is_bad(verdict))
        abort();
    return verdict;
}

static void run_masked(const uint8_t *bytes, size_t size)
{
    static uint8_t image[IMAGE_BYTES], mask[SIDE * SIDE];
    uint8_t label[8], box[16], flip[1];
    struct pipeline_row row = {.field = {image, label, box, flip, mask}};
    struct pipeline_input input = {.bytes = bytes, .size = size, .mask = bytes, .mask_size = size};
    enum pipeline_verdict verdict;
    pipeline_run(masked, scratch, &input, &row, &verdict, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t whole[IMAGE_BYTES], region[IMAGE_BYTES];
    if (size < 2)
        return 0;
    run_masked(data + 2, size - 2);
    uint64_t key = base_philox_sample_key(1, (uint64_t)(data[0] | data[1] << 8), 0, 0);
    enum pipeline_verdict verdict = run(data + 2, size - 2, key, PIPELINE_UNKNOWN, whole);
    if (verdict != PIPELINE_GOOD)
        return 0;
    if (run(data + 2, size - 2, key, PIPELINE_GOOD, region) != PIPELINE_GOOD ||
        memcmp(whole, region, IMAGE_BYTES) != 0)
        abort();
    return 0;
}

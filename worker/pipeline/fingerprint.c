/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bits a build makes: each built-in sample is prepared whole and by its region, for a few keys, and the verdicts,
 * draws and pixels are hashed. A decoder or an op that answers otherwise in one bit makes another fingerprint.
 */
#include "base/hash.h"
#include "worker/pipeline/compiled.h"
#include "worker/pipeline/samples.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 2, FINGERPRINT_BYTES = 16 };

struct prints {
    struct base_buffer hashed;
    struct pipeline pipeline; /* without `encoded`: it is a copy of bytes */
    struct pipeline_scratch *scratch;
    struct pipeline_row row;
    uint8_t *image, label[8], box[16 * SCHEDULER_PIPELINE_VIEWS], flip[SCHEDULER_PIPELINE_VIEWS];
    size_t image_bytes, mask_bytes;
    uint8_t *mask;
};

static enum base_code prints_init(struct prints *prints, const struct pipeline *pipeline,
                                  struct base_error *error)
{
    base_buffer_init(&prints->hashed);
    prints->pipeline = *pipeline;
    prints->pipeline.encoded_field = prints->pipeline.mask_field = -1;
    prints->image_bytes = pipeline->parsed.fields[pipeline->image_field].max_bytes;
    prints->image = malloc(prints->image_bytes);
    prints->mask_bytes = prints->image_bytes / 3;
    prints->mask = malloc(prints->mask_bytes);
    if (!prints->image || !prints->mask)
        return base_error_set(error, BASE_NO_MEMORY, "fingerprint: out of memory");
    prints->row.field[pipeline->image_field] = prints->image;
    if (pipeline->label_field >= 0)
        prints->row.field[pipeline->label_field] = prints->label;
    if (pipeline->box_field >= 0)
        prints->row.field[pipeline->box_field] = prints->box;
    if (pipeline->flip_field >= 0)
        prints->row.field[pipeline->flip_field] = prints->flip;
    return pipeline_scratch_create(&prints->scratch, error);
}

static void prints_fini(struct prints *prints)
{
    pipeline_scratch_destroy(prints->scratch);
    base_buffer_fini(&prints->hashed);
    free(prints->image);
    free(prints->mask);
}

/* A sample over the pipeline's pixel cap is bad here as everywhere: its verdict counts, and no pixels. */
static enum base_code add_row(struct prints *prints, const struct pipeline_input *input,
                              struct base_error *error)
{
    enum pipeline_verdict verdict;
    struct base_error cause;
    enum base_code code =
        pipeline_run(&prints->pipeline, prints->scratch, input, &prints->row, &verdict, &cause);
    if (code != BASE_OK && code != BASE_BAD_SAMPLE)
        return base_error_set(error, code, "%s", cause.text);
    base_buffer_put_u8(&prints->hashed, (uint8_t)verdict);
    if (code == BASE_BAD_SAMPLE)
        return BASE_OK;
    size_t views = prints->pipeline.parsed.views;
    base_buffer_put(&prints->hashed, prints->box, 16 * views);
    base_buffer_put(&prints->hashed, prints->flip, views);
    uint8_t pixels[BASE_SHA256_BYTES];
    base_hash_sha256(prints->image, prints->image_bytes, pixels);
    base_buffer_put(&prints->hashed, pixels, sizeof pixels);
    if (prints->pipeline.mask_field < 0)
        return BASE_OK;
    base_hash_sha256(prints->mask, prints->mask_bytes, pixels);
    base_buffer_put(&prints->hashed, pixels, sizeof pixels);
    return BASE_OK;
}

static enum base_code add_sample(struct prints *prints, const struct pipeline_sample *sample,
                                 struct base_error *error)
{
    enum base_code code = BASE_OK;
    for (uint64_t key = 0; key < KEYS; key++) {
        for (int good = 0; good < 2 && code == BASE_OK; good++) {
            struct pipeline_input input = {.bytes = sample->bytes,
                                           .size = sample->size,
                                           .mask = sample->bytes,
                                           .mask_size = sample->size,
                                           .sample_key = base_philox_sample_key(key, sample->size, 0, 0),
                                           .known = good ? PIPELINE_GOOD : PIPELINE_UNKNOWN};
            code = add_row(prints, &input, error);
        }
    }
    return code;
}

enum base_code pipeline_fingerprint(const struct pipeline *pipeline, uint8_t fingerprint[16],
                                    struct base_error *error)
{
    struct prints prints = {0};
    uint8_t hash[BASE_SHA256_BYTES];
    enum base_code code = prints_init(&prints, pipeline, error);
    if (code != BASE_OK)
        goto cleanup;
    base_buffer_put_text(&prints.hashed, "millrace fingerprint 1");
    for (int i = 0; i < pipeline_sample_count && code == BASE_OK; i++)
        code = add_sample(&prints, &pipeline_samples[i], error);
    if (pipeline->mask_field >= 0) { /* once more, each as its own mask: that of most is bad */
        prints.pipeline.mask_field = pipeline->mask_field;
        prints.row.field[pipeline->mask_field] = prints.mask;
        for (int i = 0; i < pipeline_sample_count && code == BASE_OK; i++)
            code = add_sample(&prints, &pipeline_samples[i], error);
    }
    if (code == BASE_OK && prints.hashed.failed)
        code = base_error_set(error, BASE_NO_MEMORY, "fingerprint: out of memory");
    if (code != BASE_OK)
        goto cleanup;
    base_hash_sha256(prints.hashed.bytes, prints.hashed.size, hash);
    memcpy(fingerprint, hash, FINGERPRINT_BYTES);
cleanup:
    prints_fini(&prints);
    return code;
}

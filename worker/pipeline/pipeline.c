/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/pipeline/pipeline.h"

#include "worker/pipeline/compiled.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)TRANSFORM_BILINEAR == (int)SCHEDULER_BILINEAR &&
                   (int)TRANSFORM_BICUBIC == (int)SCHEDULER_BICUBIC &&
                   (int)TRANSFORM_LANCZOS == (int)SCHEDULER_LANCZOS,
               "filters are the same numbers");
_Static_assert((int)TRANSFORM_ORDER_CLASSIC == (int)SCHEDULER_ORDER_CLASSIC &&
                   (int)TRANSFORM_ORDER_PILLOW13 == (int)SCHEDULER_ORDER_PILLOW13,
               "resize orders are the same numbers");

bool pipeline_verdict_is_bad(enum pipeline_verdict verdict)
{
    return verdict >= PIPELINE_BAD_EMPTY;
}

/* Bad for every pipeline. Caps, field sizes and masks are this one's own: cheap to judge anew, and wrong to take from another. */
bool pipeline_verdict_is_final(enum pipeline_verdict verdict)
{
    return pipeline_verdict_is_bad(verdict) && verdict != PIPELINE_BAD_PIXELS &&
           verdict != PIPELINE_BAD_ROW_BYTES && verdict != PIPELINE_BAD_MASK;
}

const char *pipeline_verdict_name(enum pipeline_verdict verdict)
{
    switch (verdict) {
    case PIPELINE_UNKNOWN:
        return "unknown";
    case PIPELINE_GOOD:
        return "good";
    case PIPELINE_WARNED:
        return "warned";
    case PIPELINE_BAD_EMPTY:
        return "bad_empty";
    case PIPELINE_BAD_FORMAT:
        return "bad_format";
    case PIPELINE_BAD_UNSUPPORTED:
        return "bad_unsupported";
    case PIPELINE_BAD_PIXELS:
        return "bad_pixels";
    case PIPELINE_BAD_HEADER:
        return "bad_header";
    case PIPELINE_BAD_DATA:
        return "bad_data";
    case PIPELINE_BAD_TRUNCATED:
        return "bad_truncated";
    case PIPELINE_BAD_ROW_BYTES:
        return "bad_row_bytes";
    case PIPELINE_BAD_MASK:
        return "bad_mask";
    }
    return "unknown";
}

enum base_code pipeline_create(struct pipeline **pipeline, const struct scheduler_pipeline *parsed,
                               struct base_error *error)
{
    struct pipeline *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "pipeline: out of memory");
    enum base_code code = pipeline_compile(made, parsed, error);
    if (code != BASE_OK) {
        free(made);
        return code;
    }
    *pipeline = made;
    return BASE_OK;
}

void pipeline_destroy(struct pipeline *pipeline)
{
    free(pipeline);
}

enum base_code pipeline_scratch_create_kernel(struct pipeline_scratch **scratch,
                                              const struct transform_kernel *kernel, struct base_error *error)
{
    struct pipeline_scratch *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "prep scratch: out of memory");
    enum base_code code = decode_image_create(&made->image, error);
    for (int i = 0; i < PIPELINE_MEMBERS && code == BASE_OK; i++)
        if ((code = transform_resize_create(&made->resize[i], kernel, error)) == BASE_OK)
            code = transform_nearest_create(&made->nearest[i], error);
    if (code != BASE_OK) {
        pipeline_scratch_destroy(made);
        return code;
    }
    *scratch = made;
    return BASE_OK;
}

enum base_code pipeline_scratch_create(struct pipeline_scratch **scratch, struct base_error *error)
{
    return pipeline_scratch_create_kernel(scratch, NULL, error);
}

void pipeline_scratch_destroy(struct pipeline_scratch *scratch)
{
    if (!scratch)
        return;
    decode_image_destroy(scratch->image);
    for (int i = 0; i < PIPELINE_MEMBERS; i++) {
        transform_resize_destroy(scratch->resize[i]);
        transform_nearest_destroy(scratch->nearest[i]);
    }
    free(scratch);
}

enum base_code pipeline_run(const struct pipeline *pipeline, struct pipeline_scratch *scratch,
                            const struct pipeline_input *input, struct pipeline_row *row,
                            enum pipeline_verdict *verdict, struct base_error *error)
{
    struct pipeline_sibling alone = {.pipeline = pipeline, .input = *input, .row = row};
    pipeline_siblings_run(scratch, &alone, 1);
    *verdict = alone.verdict;
    if (error && alone.error.code != BASE_OK)
        *error = alone.error;
    return alone.error.code;
}

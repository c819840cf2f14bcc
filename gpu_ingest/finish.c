/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_ingest/finish.h"

/* On a copy of the work, which no store can change, and with dtype and layout as constants: loops without reloads. */
static inline __attribute__((always_inline)) void pixels(const struct ingest_work *given, enum mr_dtype dtype,
                                                         int first)
{
    const struct ingest_work work = *given;
    for (uint32_t image = 0; image < ingest_images(&work); image++)
        ingest_any_image(&work, dtype, first, image, 0, 1);
}

static inline __attribute__((always_inline)) void layouts(const struct ingest_work *work, enum mr_dtype dtype)
{
    if (work->channels_first)
        pixels(work, dtype, 1);
    else
        pixels(work, dtype, 0);
}

static void images(const struct ingest_work *work)
{
    switch (work->dtype) {
    case MR_F32:
        layouts(work, MR_F32);
        break;
    case MR_F16:
        layouts(work, MR_F16);
        break;
    case MR_BF16:
        layouts(work, MR_BF16);
        break;
    default:
        layouts(work, MR_U8);
    }
}

void ingest_finish_run(const struct ingest_work *work)
{
    images(work);
    for (uint32_t row = 0; work->labels && row < work->rows; row++)
        for (uint32_t at = 0; at < (work->classes > 0 ? work->classes : 1); at++)
            ingest_label(work, row, at);
}

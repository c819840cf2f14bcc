/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The batch section on the trainer's CPU: what mr_finish_draw drew is done to finished images and labels. Of a pixel that
 * changes, the value is made anew from the bytes as they came, in float32, and rounded once.
 */
#ifndef CLIENT_MIX_H
#define CLIENT_MIX_H

#include "client/src/finish.h"

struct client_mix {
    struct mr_batch_draw draw;
    const struct mr_row_draw *rows; /* of each image */
    uint32_t count, views;          /* rows; images of each, 1 at least */
    int32_t height, width;
};

/* `in`: the bytes; `out`: what client_finish_run made of them. */
void client_mix_images(const struct client_mix *mix, const struct client_finish *finish, const uint8_t *in,
                       void *out);
/* To float32 [rows, classes]. */
void client_mix_labels(const struct client_mix *mix, const int64_t *labels, uint32_t classes, float *out);

#endif

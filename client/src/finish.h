/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The finish section on the trainer's CPU: what the wire carries (u8, NHWC, 3 channels) to what the model takes.
 * ToDtype alone casts the value 0..255; Normalize is float32 (x / 255 - mean) / std in exactly that form, then
 * rounded once, to nearest even, to the dtype. A channel has 256 values, so each is computed once: the rows are
 * looked up in a table.
 */
#ifndef CLIENT_FINISH_H
#define CLIENT_FINISH_H

#include "client/include/millrace/millrace.h"

#include <stdbool.h>

#define CLIENT_FINISH_CHANNELS 3

struct client_finish {
    enum mr_dtype dtype;
    bool channels_first;                         /* NCHW */
    float values[CLIENT_FINISH_CHANNELS][256];   /* not rounded to the dtype yet */
    uint32_t table[CLIENT_FINISH_CHANNELS][256]; /* bits of the dtype */
};

void client_finish_init(struct client_finish *finish, const struct mr_finish *asked);
/* `rows` images of `pixels` pixels from `in` to `out` (rows * pixels * 3 values of the dtype). They must not overlap. */
void client_finish_run(const struct client_finish *finish, const uint8_t *in, void *out, size_t rows,
                       size_t pixels);

/* Bits of `value` in a dtype. */
uint32_t client_finish_encode(enum mr_dtype dtype, float value);
/* To nearest, ties to even, as IEEE 754 and numpy; NaN stays NaN. */
uint16_t client_finish_f16(float value);
uint16_t client_finish_bf16(float value);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Delivery arithmetic of semantics.md: which positions a rank's batch holds, how many steps are left, where a cursor
 * goes next. Pure. With W ranks of B rows, step s from p0 holds [p0 + s*W*B, p0 + (s+1)*W*B), rank r the r-th run of B.
 */
#ifndef SCHEDULER_STEPS_H
#define SCHEDULER_STEPS_H

#include <stdbool.h>
#include <stdint.h>

enum scheduler_tail { SCHEDULER_TAIL_DROP, SCHEDULER_TAIL_PAD, SCHEDULER_TAIL_EXACT };

struct scheduler_shape {
    uint64_t positions; /* M: the epoch's length */
    uint32_t world, rank, batch;
    enum scheduler_tail tail;
};

/* Stream epoch and first position of the next step; position == M is (epoch + 1, 0). The epoch after the last (2^32 - 1)
 * wraps to 0: callers refuse it. */
struct scheduler_cursor {
    uint32_t epoch;
    uint64_t position;
};

/* (epoch + 1, 0) when the cursor's epoch has no step left (at position M, or drop with a tail shorter than a step). With drop
 * and M < W*B no epoch has a step: callers refuse that shape. */
struct scheduler_cursor scheduler_cursor_normal(const struct scheduler_shape *shape,
                                                struct scheduler_cursor cursor);
/* Steps left in the cursor's epoch: drop floor((M-p)/(W*B)), pad and exact ceil; 0 from M on and for an empty shape. */
uint64_t scheduler_steps_left(const struct scheduler_shape *shape, struct scheduler_cursor cursor);
/* The cursor after the step that begins at `cursor` (which must have a step left). drop: a tail shorter than a step ends
 * the epoch. */
struct scheduler_cursor scheduler_steps_next(const struct scheduler_shape *shape,
                                             struct scheduler_cursor cursor);

/* The rows of this rank's batch in the step that begins at `cursor`: row i holds position scheduler_steps_position(i).
 * rows: B, or fewer (even 0) with tail exact; valid: rows that are not padding (the first ones). */
struct scheduler_batch {
    uint64_t step_begin, step_valid; /* the step's first position, and how many positions it has (<= W*B) */
    uint64_t rank_begin;             /* offset of this rank's first row in the step */
    uint32_t rows, valid;
};
/* All zeros when no step is left. */
struct scheduler_batch scheduler_steps_batch(const struct scheduler_shape *shape,
                                             struct scheduler_cursor cursor);
/* Padding repeats rows of the same step cyclically. */
static inline uint64_t scheduler_steps_position(const struct scheduler_batch *batch, uint32_t row)
{
    uint64_t offset = batch->rank_begin + row;
    if (offset >= batch->step_valid) /* a division costs more than all else that is done for a row */
        offset %= batch->step_valid;
    return batch->step_begin + offset;
}

#endif

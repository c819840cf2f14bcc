/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/steps.h"

static uint64_t step_rows(const struct scheduler_shape *shape)
{
    return (uint64_t)shape->world * shape->batch;
}

uint64_t scheduler_steps_left(const struct scheduler_shape *shape, struct scheduler_cursor cursor)
{
    uint64_t step = step_rows(shape);
    if (cursor.position >= shape->positions || step == 0)
        return 0;
    uint64_t left = shape->positions - cursor.position;
    bool tail = shape->tail != SCHEDULER_TAIL_DROP && left % step != 0;
    return left / step + tail;
}

struct scheduler_cursor scheduler_cursor_normal(const struct scheduler_shape *shape,
                                                struct scheduler_cursor cursor)
{
    if (scheduler_steps_left(shape, cursor) > 0)
        return cursor;
    return (struct scheduler_cursor){cursor.epoch + 1, 0};
}

/* Positions of the step at `cursor`, which has a step left. */
static uint64_t step_valid(const struct scheduler_shape *shape, struct scheduler_cursor cursor)
{
    uint64_t left = shape->positions - cursor.position, step = step_rows(shape);
    return left < step ? left : step;
}

struct scheduler_cursor scheduler_steps_next(const struct scheduler_shape *shape,
                                             struct scheduler_cursor cursor)
{
    if (scheduler_steps_left(shape, cursor) > 0)
        cursor.position += step_valid(shape, cursor);
    return scheduler_cursor_normal(shape, cursor);
}

struct scheduler_batch scheduler_steps_batch(const struct scheduler_shape *shape,
                                             struct scheduler_cursor cursor)
{
    struct scheduler_batch batch = {0};
    if (scheduler_steps_left(shape, cursor) == 0)
        return batch;
    uint64_t valid = step_valid(shape, cursor), rank = shape->rank;
    batch.step_begin = cursor.position;
    batch.step_valid = valid;
    if (shape->tail == SCHEDULER_TAIL_EXACT) { /* the first valid % W ranks take one row more */
        uint64_t share = valid / shape->world, more = valid % shape->world;
        batch.rank_begin = rank * share + (rank < more ? rank : more);
        batch.rows = batch.valid = (uint32_t)(share + (rank < more));
        return batch;
    }
    batch.rank_begin = rank * shape->batch;
    batch.rows = shape->batch;
    if (batch.rank_begin < valid) {
        uint64_t own = valid - batch.rank_begin;
        batch.valid = own < shape->batch ? (uint32_t)own : shape->batch;
    }
    return batch;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What every row must be, and which positions a step has: said again here, so that the product is not its own judge. */
#include "tests/sim/sim.h"

static const struct scheduler_order *order_of(struct sim_candidate *candidate, uint32_t epoch)
{
    if (epoch >= SIM_EPOCHS) {
        sim_fail(candidate->world, "epochs", "epoch %u is asked for", epoch);
        epoch = 0;
    }
    const struct scheduler_stream *stream = &candidate->asked;
    if (!candidate->orders[epoch])
        scheduler_order_create(&candidate->orders[epoch], stream->shuffle, stream->seed, epoch, stream->items,
                               NULL);
    return candidate->orders[epoch];
}

static bool is_bad(const struct sim_candidate *candidate, uint64_t item)
{
    uint64_t key[2] = {item, candidate->world->seed};
    return base_hash_xxh3(key, sizeof key) % 1000 < (uint64_t)candidate->bad_permille;
}

void sim_model_row(struct sim_stream *live, uint32_t epoch, uint64_t position, struct wire_row *row)
{
    struct sim_candidate *candidate = live->candidate;
    const struct scheduler_stream *stream = &candidate->asked;
    uint32_t key = stream->uses_epoch ? epoch : 0;
    uint64_t item = scheduler_order_item(order_of(candidate, key), position);
    *row = (struct wire_row){.item = item, .used_item = item};
    for (int i = 0; is_bad(candidate, row->used_item) && row->status != WIRE_ROW_BAD; i++) {
        row->status = i < 2 ? WIRE_ROW_SUBSTITUTED : WIRE_ROW_BAD; /* few tries, so that the latter happens */
        row->cause = 1;
        row->occurrence = position + 1;
        if (row->status == WIRE_ROW_SUBSTITUTED)
            row->used_item = scheduler_order_substitute(stream->seed, key, position, i, stream->items);
    }
    uint64_t parts[5] = {row->used_item, row->occurrence, key, stream->uses_epoch ? position : 0,
                         stream->seed};
    row->hash =
        base_hash_xxh3(parts, sizeof parts) ^ (uint64_t)candidate->index << 56 ^ (uint64_t)live->build << 48;
}

uint64_t sim_model_payload(const struct sim_stream *stream, const struct wire_row *row)
{
    return row->hash * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)stream->candidate->index;
}

/* ---- steps ---- */

static uint64_t step_rows(const struct sim_shape *shape)
{
    return (uint64_t)shape->world * shape->batch;
}

bool sim_model_whole(const struct sim_shape *shape, uint64_t position)
{
    uint64_t left = position < shape->items ? shape->items - position : 0;
    return shape->tail == SCHEDULER_TAIL_DROP ? left >= step_rows(shape) : left > 0;
}

struct sim_step sim_model_step(const struct sim_shape *shape, uint32_t rank, uint64_t position)
{
    uint64_t left = shape->items - position, most = step_rows(shape);
    struct sim_step step = {.begin = position, .valid = left < most ? left : most};
    if (shape->tail != SCHEDULER_TAIL_EXACT) {
        step.offset = (uint64_t)rank * shape->batch;
        step.rows = shape->batch;
        return step;
    }
    for (uint64_t i = 0; i < step.valid; i++) /* dealt out one by one, then put together by rank */
        step.rows += i % shape->world == rank;
    for (uint32_t before = 0; before < rank; before++)
        for (uint64_t i = 0; i < step.valid; i++)
            step.offset += i % shape->world == before;
    return step;
}

struct scheduler_cursor sim_model_next(const struct sim_shape *shape, struct scheduler_cursor at)
{
    at.position += step_rows(shape);
    if (!sim_model_whole(shape, at.position))
        return (struct scheduler_cursor){at.epoch + 1, 0};
    return at;
}

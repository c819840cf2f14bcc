/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/wire/random_block.h"

#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 */
uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t random_below(uint64_t *state, uint64_t most)
{
    return random_next(state) % most;
}

static void make_fields(struct random_block *block)
{
    block->field_count = 1 + (int)random_below(&block->state, SCHEDULER_PIPELINE_FIELDS);
    for (int f = 0; f < block->field_count; f++) {
        struct scheduler_field *field = &block->fields[f];
        *field =
            (struct scheduler_field){.dtype = (enum scheduler_dtype)(1 + random_below(&block->state, 6))};
        snprintf(field->name, sizeof field->name, "field%d", f);
        int64_t elements = 1 + (int64_t)random_below(&block->state, f ? 20 : 3000);
        field->ragged = random_below(&block->state, 3) == 0;
        field->rank = 1;
        field->dims[0] = field->ragged ? -1 : elements;
        field->max_bytes = (uint64_t)elements * scheduler_dtype_bytes(field->dtype);
    }
}

static void make_row(struct random_block *block, uint32_t row, uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS])
{
    struct wire_layout *layout = &block->layout;
    for (int f = 0; f < block->field_count; f++) {
        const struct scheduler_field *field = &block->fields[f];
        uint64_t element = scheduler_dtype_bytes(field->dtype), size = field->max_bytes, at = row * size;
        if (field->ragged) {
            uint64_t length = random_below(&block->state, size / element + 1);
            size = length * element;
            at = ragged_at[f];
            base_set_u32(block->block + layout->lengths[f] + row * 4, (uint32_t)length);
        }
        block->sizes[row][f] = (uint32_t)size;
        block->values[row][f] = malloc(size ? size : 1);
        for (uint64_t i = 0; i < size; i++)
            block->values[row][f][i] = (uint8_t)random_next(&block->state);
        memcpy(block->block + layout->values[f] + at, block->values[row][f], size);
    }
    block->rows[row] = (struct wire_row){.item = random_next(&block->state),
                                         .used_item = random_next(&block->state),
                                         .occurrence = random_next(&block->state),
                                         .status = (uint8_t)random_below(&block->state, 3),
                                         .cause = (uint8_t)random_next(&block->state)};
    block->rows[row].hash = wire_layout_hash_row(layout, block->block, row, ragged_at);
    wire_row_write(&block->rows[row], block->block + layout->row_table + row * WIRE_ROW_BYTES);
    for (int f = 0; f < block->field_count; f++)
        ragged_at[f] += block->sizes[row][f];
}

void random_block_init(struct random_block *block, uint64_t seed)
{
    memset(block, 0, sizeof *block);
    block->state = seed;
    make_fields(block);
    wire_layout_init(&block->layout, block->fields, block->field_count,
                     1 + (uint32_t)random_below(&block->state, 16));
    block->block = aligned_alloc(64, block->layout.size);
    memset(block->block, 0xee, block->layout.size);
    uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS] = {0};
    for (uint32_t row = 0; row < block->layout.rows; row++)
        make_row(block, row, ragged_at);
}

void random_block_fini(struct random_block *block)
{
    for (uint32_t row = 0; row < block->layout.rows; row++)
        for (int f = 0; f < block->field_count; f++)
            free(block->values[row][f]);
    free(block->block);
}

int random_block_sent(const struct random_block *block, uint8_t wanted, struct scheduler_field sent[],
                      int sent_field[])
{
    int count = 0;
    for (int f = 0; f < block->field_count; f++)
        if (wanted >> f & 1) {
            sent[count] = block->fields[f];
            sent_field[count++] = f;
        }
    return count;
}

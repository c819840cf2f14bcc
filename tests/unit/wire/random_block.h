/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of random fields, fixed and ragged, with each row's values kept apart as the truth to compare with. */
#ifndef TESTS_UNIT_WIRE_RANDOM_BLOCK_H
#define TESTS_UNIT_WIRE_RANDOM_BLOCK_H

#include "proto/wire/rows.h"

struct random_block {
    uint64_t state; /* of random_next */
    struct scheduler_field fields[SCHEDULER_PIPELINE_FIELDS];
    int field_count;
    struct wire_layout layout;
    uint8_t *block; /* as a worker makes it */
    uint8_t *values[WIRE_ROWS_MAX][SCHEDULER_PIPELINE_FIELDS];
    uint32_t sizes[WIRE_ROWS_MAX][SCHEDULER_PIPELINE_FIELDS];
    struct wire_row rows[WIRE_ROWS_MAX];
};

uint64_t random_next(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t most); /* 0 .. most - 1 */

void random_block_init(struct random_block *block, uint64_t seed);
void random_block_fini(struct random_block *block);
/* The specs of the fields of mask `wanted`; returns how many. */
int random_block_sent(const struct random_block *block, uint8_t wanted, struct scheduler_field sent[],
                      int sent_field[]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing, fixed for ever (words are base_philox_word(key, domain, index)):
 *   key of an epoch     = word(seed, 1, epoch)
 *   Fisher-Yates        for i = N-1 .. 1: swap item i with item below(key, 2, i, i + 1)
 *   Feistel             bits = ceil(log2 N); a position is left (high bits/2 bits) and right (the rest);
 * round r = 0..7: even: left ^= word(key, 16 + r, right), odd: right ^= word(key, 16 + r, left), cut to the
 * width; repeated until the value is below N substitute try t    = below(word(seed, 3, epoch), 32 + t,
 * position, N)
 */
#include "scheduler/order.h"

#include "base/philox.h"

#include <stdlib.h>

enum { DOMAIN_EPOCH = 1, DOMAIN_SWAP = 2, DOMAIN_SUBSTITUTE = 3, DOMAIN_ROUND = 16, DOMAIN_TRY = 32 };
enum { ROUNDS = 8 };

struct scheduler_order {
    uint64_t items, key;
    bool shuffle;
    int left_bits, right_bits; /* Feistel */
    uint16_t *forward, *back;  /* tables; both in one allocation, NULL above SCHEDULER_ORDER_TABLE_MAX */
};

static enum base_code fill_tables(struct scheduler_order *order, struct base_error *error)
{
    uint64_t items = order->items;
    order->forward = malloc(2 * items * sizeof *order->forward);
    if (!order->forward)
        return base_error_set(error, BASE_NO_MEMORY, "order: no memory for %llu items",
                              (unsigned long long)items);
    order->back = order->forward + items;
    for (uint64_t i = 0; i < items; i++)
        order->forward[i] = (uint16_t)i;
    for (uint64_t i = items - 1; i > 0; i--) {
        uint64_t j = base_philox_below(order->key, DOMAIN_SWAP, i, i + 1);
        uint16_t kept = order->forward[i];
        order->forward[i] = order->forward[j];
        order->forward[j] = kept;
    }
    for (uint64_t i = 0; i < items; i++)
        order->back[order->forward[i]] = (uint16_t)i;
    return BASE_OK;
}

enum base_code scheduler_order_create(struct scheduler_order **order, bool shuffle, uint64_t seed,
                                      uint32_t epoch, uint64_t items, struct base_error *error)
{
    *order = NULL;
    if (items < 1 || items > SCHEDULER_ORDER_ITEMS_MAX)
        return base_error_set(error, BASE_INVALID, "order: %llu items, must be 1 to 2^48",
                              (unsigned long long)items);
    struct scheduler_order *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "order: no memory");
    made->items = items;
    made->shuffle = shuffle;
    made->key = base_philox_word(seed, DOMAIN_EPOCH, epoch);
    int bits = 1;
    while (items > UINT64_C(1) << bits)
        bits++;
    made->left_bits = bits / 2;
    made->right_bits = bits - bits / 2;
    enum base_code code = shuffle && items <= SCHEDULER_ORDER_TABLE_MAX ? fill_tables(made, error) : BASE_OK;
    if (code) {
        scheduler_order_destroy(made);
        return code;
    }
    *order = made;
    return BASE_OK;
}

void scheduler_order_destroy(struct scheduler_order *order)
{
    if (!order)
        return;
    free(order->forward);
    free(order);
}

/* One Feistel round is its own inverse: xor with a function of the other half. */
static void feistel_round(const struct scheduler_order *order, int round, uint64_t *left, uint64_t *right)
{
    uint32_t domain = DOMAIN_ROUND + (uint32_t)round;
    if (round % 2 == 0)
        *left ^= base_philox_word(order->key, domain, *right) & ((UINT64_C(1) << order->left_bits) - 1);
    else
        *right ^= base_philox_word(order->key, domain, *left) & ((UINT64_C(1) << order->right_bits) - 1);
}

static uint64_t feistel(const struct scheduler_order *order, uint64_t value, bool forwards)
{
    uint64_t left = value >> order->right_bits, right = value & ((UINT64_C(1) << order->right_bits) - 1);
    for (int i = 0; i < ROUNDS; i++)
        feistel_round(order, forwards ? i : ROUNDS - 1 - i, &left, &right);
    return left << order->right_bits | right;
}

/* The domain is under 2 N, so that fewer than two rounds of walking are expected. */
static uint64_t walk(const struct scheduler_order *order, uint64_t value, bool forwards)
{
    do
        value = feistel(order, value, forwards);
    while (value >= order->items);
    return value;
}

uint64_t scheduler_order_item(const struct scheduler_order *order, uint64_t position)
{
    if (!order->shuffle)
        return position;
    return order->forward ? order->forward[position] : walk(order, position, true);
}

uint64_t scheduler_order_position(const struct scheduler_order *order, uint64_t item)
{
    if (!order->shuffle)
        return item;
    return order->back ? order->back[item] : walk(order, item, false);
}

uint64_t scheduler_order_substitute(uint64_t seed, uint32_t epoch, uint64_t position, int try_index,
                                    uint64_t items)
{
    uint64_t key = base_philox_word(seed, DOMAIN_SUBSTITUTE, epoch);
    return base_philox_below(key, DOMAIN_TRY + (uint32_t)try_index, position, items);
}

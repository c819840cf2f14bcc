/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counter-based randomness: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). No hidden state: the same key and counter give the same bits on every machine.
 *
 * Packing, fixed for ever:
 *   first  = philox(key = seed,        counter = {item lo, item hi, epoch, 1})
 *   sample = philox(key = first[0..1], counter = {occurrence lo, occurrence hi, first[2], first[3]})[0..1]
 *   draw   = philox(key = sample,      counter = {op index, draw index, view, 2})
 * A 64-bit key is its low word first.
 */
#ifndef BASE_PHILOX_H
#define BASE_PHILOX_H

#include <stdint.h>

struct base_philox {
    uint32_t word[4];
};

struct base_philox base_philox_block(uint64_t key, const uint32_t counter[4]);

/* The key of one sample. `occurrence` is 0 for an item in its own place, position + 1 for a substitute. */
uint64_t base_philox_sample_key(uint64_t seed, uint64_t item, uint32_t epoch, uint64_t occurrence);

/* Draw number `draw` of op number `op` (its index in the sample section) for `view` (0 unless there are several). */
struct base_philox base_philox_draw(uint64_t sample_key, uint32_t op, uint32_t draw, uint32_t view);

/* A stream of 64-bit words for tables and shuffles: word i of (key, domain). */
uint64_t base_philox_word(uint64_t key, uint32_t domain, uint64_t index);

/* Uniform in [0, bound) without modulo bias (Lemire 2019), redrawing from words index, index + 2^32, ... ; bound > 0. */
uint64_t base_philox_below(uint64_t key, uint32_t domain, uint64_t index, uint64_t bound);

/* Uniform doubles in [0, 1) from the 53 high bits of {word[0], word[1]} and {word[2], word[3]} (low word first). */
double base_philox_double(struct base_philox block, int which);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/philox.h"

enum { ROUNDS = 10 };

static uint64_t join(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

struct base_philox base_philox_block(uint64_t key, const uint32_t counter[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c0;
        uint64_t p1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct base_philox){{c0, c1, c2, c3}};
}

uint64_t base_philox_sample_key(uint64_t seed, uint64_t item, uint32_t epoch, uint64_t occurrence)
{
    struct base_philox first =
        base_philox_block(seed, (uint32_t[4]){(uint32_t)item, (uint32_t)(item >> 32), epoch, 1});
    struct base_philox sample = base_philox_block(
        join(first.word[0], first.word[1]),
        (uint32_t[4]){(uint32_t)occurrence, (uint32_t)(occurrence >> 32), first.word[2], first.word[3]});
    return join(sample.word[0], sample.word[1]);
}

struct base_philox base_philox_draw(uint64_t sample_key, uint32_t op, uint32_t draw, uint32_t view)
{
    return base_philox_block(sample_key, (uint32_t[4]){op, draw, view, 2});
}

uint64_t base_philox_word(uint64_t key, uint32_t domain, uint64_t index)
{
    struct base_philox b =
        base_philox_block(key, (uint32_t[4]){(uint32_t)index, (uint32_t)(index >> 32), domain, 3});
    return join(b.word[0], b.word[1]);
}

uint64_t base_philox_below(uint64_t key, uint32_t domain, uint64_t index, uint64_t bound)
{
    uint64_t threshold = -bound % bound;
    for (uint64_t redraw = index;; redraw += UINT64_C(1) << 32) {
        unsigned __int128 product = (unsigned __int128)base_philox_word(key, domain, redraw) * bound;
        if ((uint64_t)product >= threshold)
            return (uint64_t)(product >> 64);
    }
}

double base_philox_double(struct base_philox block, int which)
{
    uint64_t word = join(block.word[2 * which], block.word[2 * which + 1]);
    return (double)(word >> 11) * 0x1p-53;
}

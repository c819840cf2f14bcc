/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 64 };

static void test_takes_all_and_no_more(void **state)
{
    (void)state;
    struct worker_arena arena;
    uint64_t offset;
    assert_true(worker_arena_init(&arena, 3 * WORKER_ARENA_STEP + 5));
    assert_true(worker_arena_take(&arena, 1, &offset));
    assert_int_equal(offset, 0);
    assert_true(worker_arena_take(&arena, 2 * WORKER_ARENA_STEP, &offset));
    assert_int_equal(offset, WORKER_ARENA_STEP);
    assert_false(worker_arena_take(&arena, 1, &offset));
    assert_true(worker_arena_give(&arena, 0, 1));
    assert_false(worker_arena_take(&arena, WORKER_ARENA_STEP + 1, &offset));
    assert_true(worker_arena_take(&arena, WORKER_ARENA_STEP, &offset));
    worker_arena_fini(&arena);
}

/* Against a map with one byte a step. */
static void test_random_against_a_map(void **state)
{
    (void)state;
    struct worker_arena arena;
    uint8_t map[STEPS] = {0};
    uint64_t offsets[STEPS], sizes[STEPS];
    int held = 0;
    uint32_t random = 1;
    assert_true(worker_arena_init(&arena, STEPS * WORKER_ARENA_STEP));
    for (int i = 0; i < 20000; i++) {
        random = random * 1664525 + 1013904223;
        uint32_t draw = random >> 16;
        if (draw % 2 && held > 0) {
            int at = (int)(draw / 2 % (uint32_t)held);
            memset(map + offsets[at] / WORKER_ARENA_STEP, 0, sizes[at]);
            assert_true(worker_arena_give(&arena, offsets[at], sizes[at] * WORKER_ARENA_STEP));
            offsets[at] = offsets[--held];
            sizes[at] = sizes[held];
            continue;
        }
        uint64_t size = 1 + draw / 2 % 9, longest = 0, run = 0, free_steps = 0, offset;
        for (int s = 0; s < STEPS; s++) {
            run = map[s] ? 0 : run + 1;
            free_steps += map[s] ? 0 : 1;
            longest = run > longest ? run : longest;
        }
        assert_int_equal(arena.free_bytes, free_steps * WORKER_ARENA_STEP);
        bool taken = worker_arena_take(&arena, size * WORKER_ARENA_STEP, &offset);
        assert_int_equal(taken, longest >= size);
        if (!taken)
            continue;
        for (uint64_t s = 0; s < size; s++) {
            assert_int_equal(map[offset / WORKER_ARENA_STEP + s], 0);
            map[offset / WORKER_ARENA_STEP + s] = 1;
        }
        offsets[held] = offset;
        sizes[held++] = size;
    }
    worker_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_all_and_no_more),
        cmocka_unit_test(test_random_against_a_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

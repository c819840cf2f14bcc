/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { M_MAX = 40, W_MAX = 5, B_MAX = 6 };

static const enum scheduler_tail tails[] = {SCHEDULER_TAIL_DROP, SCHEDULER_TAIL_PAD, SCHEDULER_TAIL_EXACT};

/* The oracle deals positions out one by one: fill rank 0 with B, then rank 1, ... (exact: count how many each
 * rank gets by dealing round, then fill in order). */
struct oracle {
    int steps;
    int rows[M_MAX][W_MAX], valid[M_MAX][W_MAX];
    uint64_t position[M_MAX][W_MAX][B_MAX];
};

static void oracle_step(struct oracle *oracle, int s, int begin, int count, struct scheduler_shape shape)
{
    int world = (int)shape.world, batch = (int)shape.batch, quota[W_MAX] = {0}, at = 0;
    for (int i = 0; i < world * batch; i++) { /* who gets how many rows that are not padding */
        int rank = shape.tail == SCHEDULER_TAIL_EXACT ? i % world : i / batch;
        quota[rank] += i < count;
    }
    for (int r = 0; r < world; r++) {
        oracle->valid[s][r] = quota[r];
        oracle->rows[s][r] = shape.tail == SCHEDULER_TAIL_EXACT ? quota[r] : batch;
        for (int i = 0; i < oracle->rows[s][r]; i++) {
            oracle->position[s][r][i] = (uint64_t)(begin + at);
            at = (at + 1) % count;
        }
    }
}

static void oracle_fill(struct oracle *oracle, struct scheduler_shape shape, int from)
{
    int step = (int)(shape.world * shape.batch), left = (int)shape.positions - from;
    memset(oracle, 0, sizeof *oracle);
    for (int begin = from; left > 0; begin += step, left -= step) {
        if (left < step && shape.tail == SCHEDULER_TAIL_DROP)
            break;
        oracle_step(oracle, oracle->steps++, begin, left < step ? left : step, shape);
    }
}

/* Runs the cursor of one rank to the epoch's end beside the oracle; marks the valid positions. */
static void check_rank(const struct oracle *oracle, const struct scheduler_shape *shape, int from, int *met)
{
    struct scheduler_cursor cursor = {7, (uint64_t)from};
    assert_int_equal(scheduler_steps_left(shape, cursor), oracle->steps);
    for (int s = 0; s < oracle->steps; s++) {
        struct scheduler_batch batch = scheduler_steps_batch(shape, cursor);
        assert_int_equal(cursor.epoch, 7);
        assert_int_equal(scheduler_steps_left(shape, cursor), oracle->steps - s);
        assert_int_equal(batch.rows, oracle->rows[s][shape->rank]);
        assert_int_equal(batch.valid, oracle->valid[s][shape->rank]);
        for (uint32_t i = 0; i < batch.rows; i++) {
            uint64_t position = scheduler_steps_position(&batch, i);
            assert_int_equal(position, oracle->position[s][shape->rank][i]);
            if (i < batch.valid)
                met[position]++;
        }
        cursor = scheduler_steps_next(shape, cursor);
    }
    struct scheduler_cursor end = scheduler_cursor_normal(shape, cursor);
    assert_true(end.epoch == 8 && end.position == 0);
}

static void every_position_is_delivered_once_to_equal_steps(void **state)
{
    (void)state;
    struct oracle oracle;
    for (uint64_t m = 1; m <= M_MAX; m++)
        for (uint32_t w = 1; w <= W_MAX; w++)
            for (uint32_t b = 1; b <= B_MAX; b++)
                for (int t = 0; t < 3; t++)
                    for (int from = 0; from < (int)m; from += 1 + (int)m / 8) {
                        struct scheduler_shape shape = {m, w, 0, b, tails[t]};
                        int met[M_MAX] = {0};
                        oracle_fill(&oracle, shape, from);
                        for (shape.rank = 0; shape.rank < w; shape.rank++)
                            check_rank(&oracle, &shape, from, met);
                        int end =
                            tails[t] == SCHEDULER_TAIL_DROP ? from + oracle.steps * (int)(w * b) : (int)m;
                        for (int p = 0; p < (int)m; p++)
                            assert_int_equal(met[p], p >= from && p < end);
                    }
}

/* A job is saved after `before` steps of (W, B) and resumed with another (W, B): together the epoch, once. */
static void a_cursor_resumes_with_another_world_and_batch(void **state)
{
    (void)state;
    for (uint32_t w = 1; w <= 4; w++)
        for (uint32_t b = 1; b <= 5; b++)
            for (uint64_t before = 0; before < 9; before++)
                for (uint32_t w2 = 1; w2 <= 4; w2++)
                    for (uint32_t b2 = 1; b2 <= 5; b2++) {
                        struct scheduler_shape first = {37, w, 0, b, SCHEDULER_TAIL_EXACT};
                        struct scheduler_shape second = {37, w2, 0, b2, SCHEDULER_TAIL_PAD};
                        struct scheduler_cursor cursor = {0, 0};
                        int met[37] = {0};
                        for (uint64_t s = 0; cursor.epoch == 0; s++) {
                            struct scheduler_shape *shape = s < before ? &first : &second;
                            for (shape->rank = 0; shape->rank < shape->world; shape->rank++) {
                                struct scheduler_batch batch = scheduler_steps_batch(shape, cursor);
                                for (uint32_t i = 0; i < batch.valid; i++)
                                    met[scheduler_steps_position(&batch, i)]++;
                            }
                            cursor = scheduler_steps_next(shape, cursor);
                        }
                        for (int p = 0; p < 37; p++)
                            assert_int_equal(met[p], 1);
                    }
}

static const struct {
    struct scheduler_shape shape;
    struct scheduler_cursor at;
    uint64_t left;
    struct scheduler_cursor next;
} rows[] = {
    {{100, 1, 0, 10, SCHEDULER_TAIL_DROP}, {3, 90}, 1, {4, 0}},
    {{100, 1, 0, 10, SCHEDULER_TAIL_DROP}, {3, 91}, 0, {4, 0}},
    {{100, 2, 1, 30, SCHEDULER_TAIL_DROP}, {3, 0}, 1, {4, 0}}, /* 40 left are not a step */
    {{100, 2, 1, 30, SCHEDULER_TAIL_PAD}, {3, 0}, 2, {3, 60}},
    {{100, 2, 1, 30, SCHEDULER_TAIL_PAD}, {3, 60}, 1, {4, 0}},
    {{100, 2, 1, 30, SCHEDULER_TAIL_EXACT}, {3, 99}, 1, {4, 0}},
    {{100, 2, 1, 30, SCHEDULER_TAIL_EXACT}, {3, 100}, 0, {4, 0}},
    {{100, 2, 1, 30, SCHEDULER_TAIL_EXACT}, {3, 101}, 0, {4, 0}},
    {{10, 1, 0, 11, SCHEDULER_TAIL_DROP}, {0, 0}, 0, {1, 0}}, /* never a step */
    {{10, 0, 0, 11, SCHEDULER_TAIL_PAD}, {0, 0}, 0, {1, 0}},
    {{10, UINT32_MAX, 5, UINT32_MAX, SCHEDULER_TAIL_PAD}, {0, 0}, 1, {1, 0}},
    {{UINT64_C(1) << 48, UINT32_MAX, 0, UINT32_MAX, SCHEDULER_TAIL_EXACT}, {0, 1}, 1, {1, 0}},
    {{UINT64_C(1) << 48, 8, 0, 256, SCHEDULER_TAIL_DROP}, {0, 0}, UINT64_C(1) << 37, {0, 2048}},
};

static void edges(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scheduler_cursor next = scheduler_steps_next(&rows[i].shape, rows[i].at);
        assert_int_equal(scheduler_steps_left(&rows[i].shape, rows[i].at), rows[i].left);
        assert_true(next.epoch == rows[i].next.epoch && next.position == rows[i].next.position);
        struct scheduler_batch batch = scheduler_steps_batch(&rows[i].shape, rows[i].at);
        if (rows[i].left == 0)
            assert_true(batch.rows == 0 && batch.valid == 0 && batch.step_valid == 0);
    }
}

static void padding_repeats_rows_of_the_same_step(void **state)
{
    (void)state;
    struct scheduler_shape shape = {7, 2, 1, 4,
                                    SCHEDULER_TAIL_PAD}; /* one step of 8 in the second half: 5 6 | 5 6 5 6 */
    struct scheduler_batch batch = scheduler_steps_batch(&shape, (struct scheduler_cursor){0, 5});
    assert_true(batch.rows == 4 && batch.valid == 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(scheduler_steps_position(&batch, i), 5 + i % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_position_is_delivered_once_to_equal_steps),
        cmocka_unit_test(a_cursor_resumes_with_another_world_and_batch),
        cmocka_unit_test(edges),
        cmocka_unit_test(padding_repeats_rows_of_the_same_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void takes_and_gives(void **state)
{
    (void)state;
    struct base_budget budget;
    base_budget_init(&budget, "staging", 100);
    assert_true(base_budget_take(&budget, 60));
    assert_false(base_budget_take(&budget, 41));
    assert_false(base_budget_take(&budget, UINT64_MAX));
    assert_true(base_budget_take(&budget, 40));
    assert_true(base_budget_take(&budget, 0));
    assert_false(base_budget_take(&budget, 1));
    base_budget_give(&budget, 60);
    assert_int_equal(budget.used_bytes, 40);
    assert_int_equal(budget.peak_bytes, 100);
    assert_true(base_budget_take(&budget, 60));
}

/* A budget that shrank below what is used refuses until enough came back. */
static void shrunk(void **state)
{
    (void)state;
    struct base_budget budget;
    base_budget_init(&budget, "staging", 100);
    assert_true(base_budget_take(&budget, 80));
    budget.limit_bytes = 50;
    assert_false(base_budget_take(&budget, 0));
    base_budget_give(&budget, 40);
    assert_true(base_budget_take(&budget, 10));
    assert_false(base_budget_take(&budget, 1));
}

enum { THREADS = 4, ROUNDS = 20000, LIMIT = 10 };

static void *churn(void *argument)
{
    struct base_budget *budget = argument;
    uintptr_t taken = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (base_budget_take(budget, 4)) {
            taken++;
            base_budget_give(budget, 4);
        }
    }
    return (void *)taken;
}

static void never_over_the_limit(void **state)
{
    (void)state;
    struct base_budget budget;
    pthread_t threads[THREADS];
    base_budget_init(&budget, "staging", LIMIT);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &budget), 0);
    uintptr_t all = 0;
    for (int i = 0; i < THREADS; i++) {
        void *taken;
        pthread_join(threads[i], &taken);
        all += (uintptr_t)taken;
    }
    assert_true(all > 0);
    assert_int_equal(budget.used_bytes, 0);
    assert_in_range(budget.peak_bytes, 4, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_and_gives),
        cmocka_unit_test(shrunk),
        cmocka_unit_test(never_over_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

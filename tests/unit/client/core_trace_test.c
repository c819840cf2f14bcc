/* SPDX-License-Identifier: Apache-2.0 */
/* Random lives: every position once and in its place, caps kept, nothing leaked, an end for every shape. */
#include "tests/unit/client/trace.h"

#include "base/clock.h"
#include "base/philox.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t draw(uint64_t seed, uint64_t index, uint32_t below)
{
    return (uint32_t)base_philox_below(seed, 78, index, below);
}

enum kind { QUIET, FAULTS, LAGS, SEEKS };

static struct trace_options options_of(uint64_t seed, enum kind kind)
{
    struct trace_options options = {.seed = seed,
                                    .faults = kind == FAULTS || kind == SEEKS,
                                    .seeks = kind == SEEKS,
                                    .lags = kind == LAGS,
                                    .workers = 1 + (int)draw(seed, 0, 6)};
    struct client_core_options *core = &options.core;
    core->shape.world = 1 + draw(seed, 1, 4);
    core->shape.rank = draw(seed, 2, core->shape.world);
    core->shape.batch = 1 + draw(seed, 3, 40);
    core->shape.tail = (enum scheduler_tail)draw(seed, 4, 3);
    core->shape.positions = 1 + draw(seed, 5, 400);
    uint32_t whole = core->shape.world * core->shape.batch;
    if (core->shape.tail == SCHEDULER_TAIL_DROP && core->shape.positions < whole)
        core->shape.positions = whole;
    core->family[0] = (uint8_t)seed;
    core->uses_epoch = draw(seed, 6, 2);
    core->block_rows = 1u << draw(seed, 7, 9);
    if (kind == LAGS) { /* enough requests to earn hedges by */
        core->shape.positions += 2000;
        core->block_rows = 1u << draw(seed, 7, 3);
    }
    core->first_epoch = draw(seed, 8, 3);
    core->start.epoch = core->first_epoch + draw(seed, 9, 2);
    core->start.position = draw(seed, 10, 2) ? draw(seed, 11, (uint32_t)core->shape.positions) : 0;
    if (scheduler_steps_left(&core->shape, core->start) == 0)
        core->start.position = 0;
    core->epochs = 2 + draw(seed, 12, 3);
    core->look_ahead = 1 + draw(seed, 13, 4);
    core->stall_ns = 1000 * BASE_NS_PER_MS;
    core->unavailable_ns = 10 * BASE_NS_PER_S;
    return options;
}

static void run(enum kind kind)
{
    const char *text = getenv("MILLRACE_TRACES"), *first_text = getenv("MILLRACE_TRACE_FIRST");
    uint64_t count = text ? strtoull(text, NULL, 10) : 300,
             first = first_text ? strtoull(first_text, NULL, 10) : 1;
    struct trace_result all = {0};
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct trace_options options = options_of(seed, kind);
        struct trace_result result = trace_run(&options);
        if (result.failure[0] != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, result.failure);
        all.steps += result.steps, all.requests += result.requests, all.failovers += result.failovers;
        all.moved += result.moved, all.retries += result.retries;
        all.seeks += result.seeks, all.hedges += result.hedges, all.hedges_won += result.hedges_won;
    }
    print_message(
        "%llu steps, %llu requests, %llu failovers, %llu moved, %llu retries, %llu hedges, %llu won\n",
        (unsigned long long)all.steps, (unsigned long long)all.requests, (unsigned long long)all.failovers,
        (unsigned long long)all.moved, (unsigned long long)all.retries, (unsigned long long)all.hedges,
        (unsigned long long)all.hedges_won);
    if (kind == SEEKS)
        assert_true(all.seeks > count);
    if (kind == FAULTS || kind == SEEKS) /* they did happen */
        assert_true(all.failovers > count && all.moved > count && all.retries > count);
    else if (kind == LAGS)
        assert_true(all.failovers > count && all.hedges > count && all.hedges_won > count);
    else
        assert_true(all.failovers == 0 && all.moved == 0 && all.retries == 0 && all.hedges == 0);
}

static void test_quiet(void **state)
{
    (void)state;
    run(QUIET);
}

static void test_faults(void **state)
{
    (void)state;
    run(FAULTS);
}

static void test_lags(void **state)
{
    (void)state;
    run(LAGS);
}

static void test_seeks(void **state)
{
    (void)state;
    run(SEEKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quiet), cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_lags), cmocka_unit_test(test_seeks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The low-water mark: never ahead of what this rank still asks for. */
#include "client/src/core.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

enum { WORKER = 7, STEP_NS = 1000000 };

static void carry_out(struct client_core *core, int64_t now_ns, const struct client_action *action)
{
    struct wire_row rows[WIRE_ROWS_MAX] = {{0}};
    struct client_place place;
    struct client_arrival arrival = {action->request, action->block, action->epoch, action->from, action->to};
    switch (action->kind) {
    case CLIENT_ACTION_CONNECT:
        client_core_connected(core, now_ns, WORKER);
        break;
    case CLIENT_ACTION_OPEN:
        client_core_opened(core, now_ns, WORKER, 8);
        break;
    case CLIENT_ACTION_GET:
        assert_int_equal(client_core_place(core, now_ns, WORKER, &arrival, &place), CLIENT_PLACED_SLOT);
        client_core_data(core, now_ns, WORKER, action->request, rows);
        break;
    default:
        break;
    }
}

/* One rank, with all that it has asked for. Its slots hold the three steps before the one at position 36. */
static struct client_core *filled(const struct client_core_options *options)
{
    static struct scheduler_plan plan;
    const uint64_t workers[] = {WORKER};
    struct client_core *core;
    struct client_action action;
    plan.version = 1;
    for (int slot = 0; slot < SCHEDULER_PLAN_SLOTS; slot++)
        plan.primary[slot] = WORKER;
    assert_int_equal(client_core_create(&core, options, NULL), BASE_OK);
    assert_int_equal(client_core_plan(core, STEP_NS, &plan, workers, 1, NULL), BASE_OK);
    while (client_core_act(core, STEP_NS, &action))
        carry_out(core, STEP_NS, &action);
    assert_int_equal(client_core_stats(core).ready, 3);
    return core;
}

/* tests/sim seed 241: rank 2 of 3 has only padding in the last step, which wraps to the step's begin, 36. */
static void test_padding_that_wraps(void **state)
{
    (void)state;
    static const struct {
        uint64_t positions, mark;
        uint32_t rank;
        enum scheduler_tail tail;
    } rows[] = {
        {44, 36, 2, SCHEDULER_TAIL_PAD},   /* all of it wraps */
        {46, 36, 2, SCHEDULER_TAIL_PAD},   /* two rows are its own, two wrap */
        {48, 44, 2, SCHEDULER_TAIL_PAD},   /* whole */
        {44, 40, 1, SCHEDULER_TAIL_PAD},   /* whole, though the step is not */
        {44, 42, 2, SCHEDULER_TAIL_EXACT}, /* 3, 3 and 2 rows */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct client_core_options options = {
            .shape = {.positions = rows[i].positions,
                      .world = 3,
                      .rank = rows[i].rank,
                      .batch = 4,
                      .tail = rows[i].tail},
            .block_rows = 4,
            .uses_epoch = true,
            .epochs = 2,
            .look_ahead = 2,
            .stall_ns = 1000 * STEP_NS,
            .unavailable_ns = 1000 * STEP_NS,
        };
        struct client_core *core = filled(&options);
        struct scheduler_cursor mark = client_core_mark(core);
        assert_int_equal(mark.epoch, 0);
        assert_int_equal(mark.position, rows[i].mark);
        client_core_destroy(core);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_padding_that_wraps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

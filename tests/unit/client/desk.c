/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/desk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

struct client_core_options desk_options(void)
{
    return (struct client_core_options){
        .shape = {.positions = 64, .world = 1, .rank = 0, .batch = 8, .tail = SCHEDULER_TAIL_DROP},
        .uses_epoch = true,
        .block_rows = 8,
        .epochs = 1,
        .look_ahead = 2,
        .stall_ns = 1000 * MS,
        .unavailable_ns = 10000 * MS,
    };
}

void desk_act(struct desk *desk)
{
    desk->count = 0;
    while (desk->count < DESK_ACTIONS &&
           client_core_act(desk->core, desk->now_ns, &desk->actions[desk->count]))
        desk->count++;
    assert_true(desk->count < DESK_ACTIONS);
}

void desk_later(struct desk *desk, int64_t ms)
{
    desk->now_ns += ms * MS;
    desk_act(desk);
}

void desk_pass(struct desk *desk, int64_t ms)
{
    int64_t end_ns = desk->now_ns + ms * MS;
    while (client_core_wake_ns(desk->core) < end_ns) {
        desk->now_ns = client_core_wake_ns(desk->core);
        desk_act(desk);
    }
    desk->now_ns = end_ns;
    desk_act(desk);
}

int desk_count(const struct desk *desk, enum client_action_kind kind, uint64_t worker)
{
    int count = 0;
    for (int i = 0; i < desk->count; i++)
        count += desk->actions[i].kind == kind && (worker == 0 || desk->actions[i].worker == worker);
    return count;
}

const struct client_action *desk_find(const struct desk *desk, enum client_action_kind kind)
{
    for (int i = 0; i < desk->count; i++)
        if (desk->actions[i].kind == kind)
            return &desk->actions[i];
    fail_msg("no action of kind %d among %d", kind, desk->count);
    return NULL;
}

void desk_give_plan(struct desk *desk, int workers)
{
    struct scheduler_plan_worker weights[DESK_WORKERS];
    uint64_t ids[DESK_WORKERS];
    struct scheduler_plan next;
    for (int i = 0; i < workers; i++) {
        ids[i] = (uint64_t)i + 1;
        weights[i] = (struct scheduler_plan_worker){.id = ids[i], .weight = 1};
    }
    scheduler_plan_next(&desk->plan, weights, workers, NULL, &next);
    next.version = desk->plan.version + 1;
    desk->plan = next;
    assert_int_equal(client_core_plan(desk->core, desk->now_ns, &desk->plan, ids, workers, NULL), BASE_OK);
}

void desk_come_up(struct desk *desk, uint64_t worker, uint32_t cap)
{
    client_core_connected(desk->core, desk->now_ns, worker);
    desk_act(desk);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_OPEN, worker), 1);
    client_core_opened(desk->core, desk->now_ns, worker, cap);
}

void desk_start(struct desk *desk, const struct client_core_options *options, int workers, uint32_t cap)
{
    struct base_error error;
    *desk = (struct desk){.options = *options, .now_ns = 1000 * MS};
    if (client_core_create(&desk->core, options, &error) != BASE_OK)
        fail_msg("%s", error.text);
    desk_give_plan(desk, workers);
    desk_act(desk);
    assert_int_equal(desk_count(desk, CLIENT_ACTION_CONNECT, 0), workers);
    for (int i = 0; i < workers; i++)
        client_core_connected(desk->core, desk->now_ns, (uint64_t)i + 1);
    desk_act(desk);
    for (int i = 0; i < workers; i++)
        client_core_opened(desk->core, desk->now_ns, (uint64_t)i + 1, cap);
    desk_act(desk);
}

void desk_finish(struct desk *desk)
{
    client_core_destroy(desk->core);
}

enum client_placed desk_place(struct desk *desk, const struct client_action *get, struct client_place *where)
{
    struct client_arrival arrival = {get->request, get->block, get->epoch, get->from, get->to};
    return client_core_place(desk->core, desk->now_ns, get->worker, &arrival, where);
}

void desk_answer(struct desk *desk, const struct client_action *get, uint8_t status)
{
    struct wire_row rows[256] = {0};
    struct client_place where;
    assert_int_equal(desk_place(desk, get, &where), CLIENT_PLACED_SLOT);
    for (uint32_t i = 0; i < get->to - get->from; i++)
        rows[i] = (struct wire_row){.item = get->block * desk->options.block_rows + get->from + i,
                                    .status = i == 0 ? status : 0,
                                    .cause = i == 0 && status ? 22 : 0};
    client_core_data(desk->core, desk->now_ns, get->worker, get->request, rows);
}

void desk_answer_all(struct desk *desk, uint8_t status)
{
    struct client_action actions[DESK_ACTIONS];
    int count = desk->count;
    memcpy(actions, desk->actions, sizeof actions);
    for (int i = 0; i < count; i++)
        if (actions[i].kind == CLIENT_ACTION_GET)
            desk_answer(desk, &actions[i], status);
    desk_act(desk);
}

struct base_error desk_cause(enum base_code code, const char *text)
{
    struct base_error cause;
    base_error_set(&cause, code, "%s", text);
    return cause;
}

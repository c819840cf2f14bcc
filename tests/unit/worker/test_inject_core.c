/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's machine while memory runs out: by design it is then broken, and its process ends. Until then, and after a failure that
 * it can tell of (a stream), it says what it would have said with memory, and nothing else.
 */
#include "tests/support/inject.h"
#include "worker/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS INT64_C(1000000)
enum { ROWS = 8, BLOCK_BYTES = 8192, ITEMS = 400, STEPS = 260, ACTIONS = 16384, ME = 7, JOBS = 12 };

struct said {
    struct worker_action actions[ACTIONS];
    int count;
};

static struct scheduler_stream streams[2]; /* siblings */
static struct said expected;

static void take(struct worker_core *core, struct said *said)
{
    struct worker_action action;
    while (worker_core_next(core, &action)) {
        assert_true(said->count < ACTIONS);
        said->actions[said->count++] = action;
    }
}

static bool same(const struct worker_action *a, const struct worker_action *b)
{
    return a->kind == b->kind && a->sibling_count == b->sibling_count && a->connection == b->connection &&
           a->request == b->request && a->number == b->number && a->epoch == b->epoch && a->from == b->from &&
           a->to == b->to && a->offset == b->offset && a->size_bytes == b->size_bytes && a->code == b->code &&
           a->home == b->home;
}

static void finish(struct worker_core *core, int64_t now_ns, const struct worker_action *action,
                   uint64_t block)
{
    struct worker_made made = {.cost_ns = MS, .cpu_ns = MS};
    if (action->number % 7 == 3)
        made = (struct worker_made){.code = BASE_UNAVAILABLE, .text = "a.jpg is gone"};
    worker_core_made(core, now_ns, block, &made);
}

static void finish_all(struct worker_core *core, const struct said *said, int from, int64_t now_ns)
{
    for (int i = from; i < said->count && !worker_core_broken(core); i++) {
        const struct worker_action *action = &said->actions[i];
        if (action->kind == WORKER_MAKE)
            finish(core, now_ns, action, action->block);
        for (int s = 0; s < action->sibling_count && !worker_core_broken(core); s++)
            finish(core, now_ns, action, action->siblings[s].block);
        if (action->kind == WORKER_SEND_DATA)
            worker_core_sent(core, now_ns, action->send, true);
    }
}

static void open_job(struct worker_core *core, uint64_t connection, int job)
{
    char name[16];
    snprintf(name, sizeof name, "job%d", job);
    worker_core_open(core, MS, connection,
                     &(struct worker_open){.request = 1,
                                           .handle = (uint32_t)job + 1,
                                           .stream = streams[job % 2].hash,
                                           .fingerprint = streams[job % 2].fingerprint,
                                           .job = name});
}

/* Requests of many jobs over staging for six blocks: made, sent, evicted, remade, moved, cancelled, unavailable. */
static void serve(struct worker_core *core, struct said *said)
{
    uint64_t connection = worker_core_connected(core);
    int finished = 0; /* actions */
    for (int j = 0; j < JOBS && !worker_core_broken(core); j++)
        open_job(core, connection, j);
    for (int i = 0; i < STEPS && !worker_core_broken(core); i++) {
        int64_t now_ns = (i + 2) * 20 * MS;
        uint64_t block = (uint64_t)(i * 5 / 3) % (ITEMS / ROWS);
        struct worker_get get = {.request = (uint64_t)i + 2,
                                 .block = block,
                                 .handle = (uint32_t)(i % JOBS) + 1,
                                 .epoch = (uint32_t)i / 100,
                                 .to = ROWS,
                                 .insist = i % 3 == 0,
                                 .slack_ms = 1000,
                                 .mark_epoch = (uint32_t)i / 100,
                                 .mark_position = block * ROWS};
        worker_core_get(core, now_ns, connection, &get);
        if (i % 11 == 10)
            worker_core_cancel(core, now_ns, connection, (uint64_t)i);
        take(core, said);
        if (i % 2) {
            finish_all(core, said, finished, now_ns);
            finished = said->count;
        }
        worker_core_tick(core, now_ns);
        take(core, said);
    }
    worker_core_closed(core, STEPS * 50 * MS, connection);
    take(core, said);
}

static enum base_code set_up(struct worker_core **core, struct base_error *error)
{
    static struct scheduler_plan plan = {.version = 3};
    const struct worker_core_options options = {.worker = ME,
                                                .staging_bytes = 6 * BLOCK_BYTES,
                                                .making_max = 2,
                                                .requests_max = 64,
                                                .learn_blocks = 1};
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++)
        plan.primary[i] = i % 4 ? ME : 9;
    *core = NULL;
    enum base_code code = worker_core_create(core, &options, error);
    for (int i = 0; i < 2 && code == BASE_OK; i++) {
        void *context = &streams[i];
        code = worker_core_stream_add(*core, MS, &streams[i], BLOCK_BYTES, &context, error);
        if (code == BASE_OK)
            worker_core_stream_plan(*core, MS, streams[i].hash, &plan);
    }
    return code;
}

static enum base_code work(void *context, struct base_error *error)
{
    (void)context;
    static struct said said;
    struct worker_core *core;
    said.count = 0;
    enum base_code code = set_up(&core, error);
    if (code == BASE_OK)
        serve(core, &said);
    inject_stop();
    if (!expected.count)
        expected = said;
    for (int i = 0; i < said.count; i++)
        if (i >= expected.count || !same(&said.actions[i], &expected.actions[i]))
            fail_msg("action %d of %d differs from what is said with memory", i, said.count);
    bool broken = code == BASE_OK && worker_core_broken(core);
    assert_true(code != BASE_OK || broken || said.count == expected.count);
    worker_core_destroy(core);
    return broken ? base_error_set(error, BASE_NO_MEMORY, "the worker's tables") : code;
}

static void machine(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        memset(streams[i].hash, 0xa0 + i, sizeof streams[i].hash);
        memset(streams[i].fingerprint, 0xf0, sizeof streams[i].fingerprint);
        streams[i].items = ITEMS;
        streams[i].uses_epoch = true;
        streams[i].pipeline.block_rows = ROWS;
    }
    inject_each("worker's machine", INJECT_MEMORY, work, NULL);
    int together = 0;
    for (int i = 0; i < expected.count; i++)
        together += expected.actions[i].sibling_count;
    print_message("           %d actions, %d blocks made beside a sibling's\n", expected.count, together);
    assert_true(together > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

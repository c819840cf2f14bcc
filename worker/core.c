/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/core.h"

#include "worker/machine.h"

#include "base/clock.h"
#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

const char *worker_cause_name(enum worker_cause cause)
{
    static const char *const names[WORKER_CAUSES] = {"first", "plan", "death", "hedge", "pressure", "late"};
    return cause < WORKER_CAUSES ? names[cause] : "unknown";
}

/* ---- life ---- */

enum base_code worker_core_create(struct worker_core **out, const struct worker_core_options *options,
                                  struct base_error *error)
{
    *out = NULL;
    if (options->worker == SCHEDULER_PLAN_NOBODY || options->making_max == 0 || options->requests_max == 0)
        return base_error_set(error, BASE_INVALID,
                              "worker core: id, making_max and requests_max must not be 0");
    struct worker_core *core = calloc(1, sizeof *core);
    if (!core || !worker_arena_init(&core->arena, options->staging_bytes)) {
        free(core);
        return base_error_set(error, BASE_NO_MEMORY, "worker core");
    }
    core->options = *options;
    core->options.learn_blocks = options->learn_blocks > 0 ? options->learn_blocks : WORKER_LEARN_BLOCKS;
    core->options.learn_again = options->learn_again > 0 ? options->learn_again : WORKER_LEARN_AGAIN;
    core->tick_ns = INT64_MAX;
    worker_slots_init(&core->blocks, sizeof(struct worker_block));
    worker_slots_init(&core->requests, sizeof(struct worker_request));
    worker_slots_init(&core->connections, sizeof(struct worker_connection));
    worker_slots_init(&core->shares, sizeof(struct worker_share));
    *out = core;
    return BASE_OK;
}

static void free_stream(struct worker_stream *stream)
{
    worker_claims_fini(&stream->claims);
    worker_shelf_fini(&stream->shelf);
    worker_history_fini(&stream->history);
    free(stream->weights);
    free(stream->homes);
    free(stream);
}

void worker_core_destroy(struct worker_core *core)
{
    if (!core)
        return;
    worker_block_clear(core);
    worker_share_clear(core);
    for (uint32_t i = 0; i < core->connections.count; i++)
        if (worker_connection_at(core, i)->slot.used)
            free(worker_connection_at(core, i)->handles);
    for (uint32_t i = 0; i < core->stream_count; i++)
        if (core->streams[i])
            free_stream(core->streams[i]);
    for (uint32_t i = 0; i < core->action_count; i++)
        free(core->actions[(core->action_first + i) % core->action_capacity].text);
    worker_siblings_fini(core);
    worker_slots_fini(&core->blocks);
    worker_slots_fini(&core->requests);
    worker_slots_fini(&core->connections);
    worker_arena_fini(&core->arena);
    free(core->taken_text);
    free(core->actions);
    free(core->streams);
    free(core->buckets);
    free(core);
}

bool worker_core_broken(const struct worker_core *core)
{
    return core->broken;
}

/* ---- actions ---- */

static bool grow_actions(struct worker_core *core)
{
    uint32_t capacity = core->action_capacity ? core->action_capacity * 2 : 16;
    struct worker_queued_action *actions = malloc(capacity * sizeof *actions);
    if (!actions)
        return false;
    for (uint32_t i = 0; i < core->action_count; i++)
        actions[i] = core->actions[(core->action_first + i) % core->action_capacity];
    free(core->actions);
    core->actions = actions;
    core->action_capacity = capacity;
    core->action_first = 0;
    return true;
}

void worker_core_act(struct worker_core *core, const struct worker_action *action)
{
    char *text = action->text ? strdup(action->text) : NULL;
    if ((action->text && !text) || (core->action_count == core->action_capacity && !grow_actions(core))) {
        free(text);
        core->broken = true;
        return;
    }
    uint32_t at = (core->action_first + core->action_count++) % core->action_capacity;
    core->actions[at] = (struct worker_queued_action){*action, text};
}

bool worker_core_next(struct worker_core *core, struct worker_action *action)
{
    free(core->taken_text);
    core->taken_text = NULL;
    if (core->broken || core->action_count == 0)
        return false;
    struct worker_queued_action *first = &core->actions[core->action_first];
    *action = first->action;
    action->text = core->taken_text = first->text;
    core->action_first = (core->action_first + 1) % core->action_capacity;
    core->action_count--;
    return true;
}

/* ---- time ---- */

int64_t worker_core_wake_ns(const struct worker_core *core)
{
    return core->tick_ns;
}

void worker_core_begin_tick(struct worker_core *core, int64_t now_ns)
{
    if (core->tick_ns == INT64_MAX)
        core->tick_ns = now_ns + WORKER_TICK_MS * BASE_NS_PER_MS;
}

/* WAIT for each waiting request of a connection, or one PING where all that is owed is on its way. */
static void say_alive(struct worker_core *core, uint32_t index)
{
    const struct worker_connection *connection = worker_connection_at(core, index);
    if (!connection->slot.used || connection->dropped || connection->requests == 0)
        return;
    bool waited = false;
    for (uint32_t at = connection->first_request; at != WORKER_NONE;) {
        const struct worker_request *request = worker_request_at(core, at);
        if (!request->sending) {
            worker_request_wait(core, request);
            waited = true;
        }
        at = request->connection_next;
    }
    if (!waited)
        worker_core_act(
            core, &(struct worker_action){.kind = WORKER_SEND_PING,
                                          .connection = worker_slots_handle(&core->connections, index)});
}

void worker_core_tick(struct worker_core *core, int64_t now_ns)
{
    if (core->broken || now_ns < core->tick_ns) /* broken: a request may wait for no block at all */
        return;
    core->tick_ns = INT64_MAX;
    worker_block_excuse_late(core, now_ns);
    for (uint32_t i = 0; i < core->connections.count; i++)
        say_alive(core, i);
    worker_block_forget_rested(core, now_ns);
    worker_block_admit(core, now_ns);
    if (core->counts.waiting + core->counts.sending + core->resting > 0)
        worker_core_begin_tick(core, now_ns);
}

/* ---- streams ---- */

struct worker_stream *worker_core_find_stream(struct worker_core *core, const uint8_t hash[32],
                                              uint32_t *index)
{
    for (uint32_t i = 0; i < core->stream_count; i++) {
        if (!core->streams[i] || memcmp(core->streams[i]->hash, hash, 32) != 0)
            continue;
        if (index)
            *index = i;
        return core->streams[i];
    }
    return NULL;
}

static struct worker_stream **stream_place(struct worker_core *core)
{
    for (uint32_t i = 0; i < core->stream_count; i++)
        if (!core->streams[i])
            return &core->streams[i];
    if (!base_grow(&core->streams, core->stream_count, sizeof *core->streams))
        return NULL;
    struct worker_stream **place = &core->streams[core->stream_count++];
    *place = NULL;
    return place;
}

static struct worker_stream *new_stream(const struct scheduler_stream *from, uint64_t block_bytes,
                                        void *context)
{
    struct worker_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    memcpy(stream->hash, from->hash, sizeof stream->hash);
    memcpy(stream->family, from->family, sizeof stream->family);
    memcpy(stream->fingerprint, from->fingerprint, sizeof stream->fingerprint);
    stream->context = context;
    stream->items = from->items;
    stream->block_rows = from->pipeline.block_rows;
    stream->blocks = (from->items + stream->block_rows - 1) / stream->block_rows;
    stream->block_bytes = block_bytes;
    stream->uses_epoch = from->uses_epoch;
    worker_claims_init(&stream->claims, from->uses_epoch ? 0 : from->items);
    worker_history_init(&stream->history, stream->blocks);
    return stream;
}

enum base_code worker_core_stream_add(struct worker_core *core, int64_t now_ns,
                                      const struct scheduler_stream *from, uint64_t block_bytes,
                                      void **context, struct base_error *error)
{
    (void)now_ns;
    struct worker_stream *known = worker_core_find_stream(core, from->hash, NULL);
    if (known) {
        core->counts.streams += known->live ? 0 : 1;
        known->live = true;
        *context = known->context;
        return BASE_OK;
    }
    if (from->items == 0 || from->pipeline.block_rows == 0)
        return base_error_set(error, BASE_INVALID, "stream without items or rows");
    if (worker_arena_round(block_bytes) > core->arena.size_bytes)
        return base_error_set(error, BASE_TOO_LARGE,
                              "a block of %llu bytes is over the staging budget of %llu bytes",
                              (unsigned long long)block_bytes, (unsigned long long)core->arena.size_bytes);
    struct worker_stream **place = stream_place(core);
    if (!place || !(*place = new_stream(from, block_bytes, *context)))
        return base_error_set(error, BASE_NO_MEMORY, "stream");
    (*place)->share = worker_share_open(core, (uint32_t)(place - core->streams), NULL);
    if ((*place)->share == WORKER_NONE) {
        free_stream(*place);
        *place = NULL;
        return base_error_set(error, BASE_NO_MEMORY, "stream");
    }
    (*place)->live = true;
    core->counts.streams++;
    return BASE_OK;
}

void worker_core_release_stream(struct worker_core *core, uint32_t index)
{
    struct worker_stream *stream = core->streams[index];
    if (!stream || stream->live || stream->handle_count > 0 || stream->block_count > 0)
        return;
    worker_core_act(core, &(struct worker_action){.kind = WORKER_STREAM_GONE, .stream = stream->context});
    core->counts.claims -= stream->claims.in_use;
    worker_siblings_forget(core, index);
    worker_share_close(core, stream);
    free_stream(stream);
    core->streams[index] = NULL;
}

/* Nobody is left waiting for a block that will not be made. */
static void refuse_queued(struct worker_core *core, uint32_t stream, const char *text)
{
    uint32_t index;
    while ((index = worker_share_first(core, stream)) != WORKER_NONE) {
        while (worker_block_at(core, index)->first_waiter != WORKER_NONE)
            worker_request_retry(core, worker_block_at(core, index)->first_waiter, BASE_UNAVAILABLE,
                                 WORKER_REST_FIRST_MS, text);
        worker_block_forget(core, index);
    }
}

void worker_core_stream_remove(struct worker_core *core, int64_t now_ns, const uint8_t hash[32])
{
    uint32_t index;
    struct worker_stream *stream = worker_core_find_stream(core, hash, &index);
    if (!stream || !stream->live)
        return;
    stream->live = false;
    core->counts.streams--;
    refuse_queued(core, index, "this worker no longer serves the stream");
    worker_block_admit(core, now_ns);
    worker_core_release_stream(core, index);
}

void worker_core_stream_plan(struct worker_core *core, int64_t now_ns, const uint8_t hash[32],
                             const struct scheduler_plan *plan)
{
    (void)now_ns;
    struct worker_stream *stream = worker_core_find_stream(core, hash, NULL);
    if (!stream || plan->version <= stream->plan_version)
        return;
    if (!stream->homes)
        stream->homes = malloc(sizeof plan->primary);
    if (!stream->homes) {
        core->broken = true;
        return;
    }
    memcpy(stream->homes, plan->primary, sizeof plan->primary);
    stream->plan_version = plan->version;
}

void worker_core_stream_jobs(struct worker_core *core, int64_t now_ns, const uint8_t hash[32],
                             const struct worker_live_job *jobs, int count)
{
    uint32_t index;
    struct worker_stream *stream = worker_core_find_stream(core, hash, &index);
    if (!stream)
        return;
    core->counts.claims -= stream->claims.in_use;
    worker_claims_list(&stream->claims, jobs, count);
    core->counts.claims += stream->claims.in_use;
    worker_share_sweep(core, stream);
    worker_share_weigh(core, index, jobs, count);
    worker_block_admit(core, now_ns);
}

void worker_core_drain(struct worker_core *core, int64_t now_ns)
{
    core->draining = true;
    for (uint32_t i = 0; i < core->stream_count; i++)
        if (core->streams[i])
            refuse_queued(core, i, "this worker is draining");
    worker_block_admit(core, now_ns);
}

bool worker_core_idle(const struct worker_core *core)
{
    return core->counts.blocks_making + core->counts.waiting + core->counts.sending == 0;
}

/* ---- looking in ---- */

void worker_core_counts(const struct worker_core *core, int64_t now_ns, struct worker_counts *counts)
{
    *counts = core->counts;
    counts->staged_bytes = core->arena.size_bytes - core->arena.free_bytes;
    for (uint32_t i = 0; i < core->stream_count; i++)
        counts->claims_dormant += core->streams[i] ? core->streams[i]->claims.dormant : 0;
    struct worker_load load = worker_load_now(&core->load, now_ns);
    counts->queue_ms = load.queue_ms;
    counts->making_share = load.making_share;
}

void worker_core_fronts(const struct worker_core *core,
                        void (*visit)(void *context, const struct worker_front *front), void *context)
{
    for (uint32_t i = 0; i < core->stream_count; i++) {
        const struct worker_stream *stream = core->streams[i];
        if (stream && stream->live && stream->asked)
            visit(context, &(struct worker_front){stream->hash, stream->front_epoch, stream->front_position});
    }
}

enum worker_block_state worker_core_block(struct worker_core *core, const uint8_t hash[32], uint32_t epoch,
                                          uint64_t number, uint64_t *next_use)
{
    uint32_t index;
    struct worker_stream *stream = worker_core_find_stream(core, hash, &index);
    uint32_t key = stream && stream->uses_epoch ? epoch : 0;
    uint32_t at = stream ? worker_block_find(core, index, key, number) : WORKER_NONE;
    if (at == WORKER_NONE)
        return WORKER_ABSENT;
    const struct worker_block *block = worker_block_at(core, at);
    if (next_use && block->state == WORKER_READY &&
        worker_claims_sort(&stream->claims, stream->claims.heard_ns)) {
        uint64_t start = worker_block_start(stream, key, number);
        *next_use = worker_claims_next_use(&stream->claims, start, start + worker_block_rows(stream, number));
    }
    return block->state;
}

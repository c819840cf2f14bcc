/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/machine.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- states ---- */

/* moves[from] has a bit for each state that may follow. */
static const uint8_t moves[WORKER_BLOCK_STATES] = {
    [WORKER_ABSENT] = 1 << WORKER_QUEUED,
    [WORKER_QUEUED] = 1 << WORKER_MAKING | 1 << WORKER_ABSENT,
    [WORKER_MAKING] = 1 << WORKER_READY | 1 << WORKER_RESTING | 1 << WORKER_ABSENT,
    [WORKER_READY] = 1 << WORKER_ABSENT,
    [WORKER_RESTING] = 1 << WORKER_QUEUED | 1 << WORKER_ABSENT,
};

static void count_state(struct worker_core *core, enum worker_block_state state, int by)
{
    uint64_t change = (uint64_t)(int64_t)by;
    if (state == WORKER_QUEUED)
        core->counts.blocks_queued += change;
    else if (state == WORKER_MAKING)
        core->counts.blocks_making += change;
    else if (state == WORKER_READY)
        core->counts.blocks_ready += change;
    else if (state == WORKER_RESTING)
        core->resting += (uint32_t)by;
}

static void become(struct worker_core *core, struct worker_block *block, enum worker_block_state state)
{
    if (!(moves[block->state] >> state & 1))
        core->broken = true; /* a bug here: the driver ends the process rather than serve wrong rows */
    count_state(core, block->state, -1);
    count_state(core, state, 1);
    core->counts.blocks_riding -= block->rides;
    block->rides = false;
    block->state = state;
}

/* ---- geometry ---- */

uint64_t worker_block_start(const struct worker_stream *stream, uint32_t epoch, uint64_t number)
{
    return epoch * stream->items + number * stream->block_rows;
}

uint32_t worker_block_rows(const struct worker_stream *stream, uint64_t number)
{
    uint64_t left = stream->items - number * stream->block_rows;
    return left < stream->block_rows ? (uint32_t)left : stream->block_rows;
}

/* ---- the table by (stream, epoch, number) ---- */

static uint32_t bucket_of(const struct worker_core *core, uint32_t stream, uint32_t epoch, uint64_t number)
{
    uint64_t key[2] = {(uint64_t)stream << 32 | epoch, number};
    return (uint32_t)base_hash_xxh3(key, sizeof key) & (core->bucket_count - 1);
}

uint32_t worker_block_find(const struct worker_core *core, uint32_t stream, uint32_t epoch, uint64_t number)
{
    if (core->bucket_count == 0)
        return WORKER_NONE;
    for (uint32_t at = core->buckets[bucket_of(core, stream, epoch, number)]; at != WORKER_NONE;) {
        const struct worker_block *block = worker_block_at(core, at);
        if (block->stream == stream && block->epoch == epoch && block->number == number)
            return at;
        at = block->hash_next;
    }
    return WORKER_NONE;
}

static void link_block(struct worker_core *core, uint32_t index)
{
    struct worker_block *block = worker_block_at(core, index);
    uint32_t *bucket = &core->buckets[bucket_of(core, block->stream, block->epoch, block->number)];
    block->hash_next = *bucket;
    *bucket = index;
}

static void unlink_block(struct worker_core *core, uint32_t index)
{
    const struct worker_block *block = worker_block_at(core, index);
    uint32_t *at = &core->buckets[bucket_of(core, block->stream, block->epoch, block->number)];
    while (*at != index)
        at = &worker_block_at(core, *at)->hash_next;
    *at = block->hash_next;
}

static bool grow_buckets(struct worker_core *core)
{
    if (core->blocks.used < core->bucket_count)
        return true;
    uint32_t count = core->bucket_count ? core->bucket_count * 2 : 16;
    uint32_t *buckets = malloc(count * sizeof *buckets);
    if (!buckets)
        return false;
    memset(buckets, 0xff, count * sizeof *buckets);
    free(core->buckets);
    core->buckets = buckets;
    core->bucket_count = count;
    for (uint32_t i = 0; i < core->blocks.count; i++)
        if (worker_block_at(core, i)->slot.used)
            link_block(core, i);
    return true;
}

/* ---- queued ---- */

uint32_t worker_block_queue(struct worker_core *core, const struct worker_block *asked, uint32_t asker)
{
    uint32_t index;
    struct worker_block *block = grow_buckets(core) ? worker_slots_get(&core->blocks, &index) : NULL;
    if (!block) {
        core->broken = true;
        return WORKER_NONE;
    }
    block->stream = asked->stream;
    block->epoch = asked->epoch;
    block->number = asked->number;
    block->cause = asked->cause;
    block->since_ns = asked->since_ns;
    block->deadline_ns = asked->deadline_ns;
    block->first_waiter = WORKER_NONE;
    link_block(core, index);
    core->streams[block->stream]->block_count++;
    become(core, block, WORKER_QUEUED);
    worker_share_put(core, index, asker);
    return core->broken ? WORKER_NONE : index;
}

void worker_block_requeue(struct worker_core *core, uint32_t index, int64_t now_ns, int64_t deadline_ns,
                          uint32_t asker)
{
    struct worker_block *block = worker_block_at(core, index);
    free(block->text);
    block->text = NULL;
    block->since_ns = now_ns;
    block->deadline_ns = deadline_ns;
    block->unasked = block->spared = false;
    become(core, block, WORKER_QUEUED);
    worker_share_put(core, index, asker);
}

void worker_block_hasten(struct worker_core *core, uint32_t index, int64_t deadline_ns)
{
    struct worker_block *block = worker_block_at(core, index);
    if (deadline_ns >= block->deadline_ns)
        return;
    block->deadline_ns = deadline_ns;
    if (block->state == WORKER_QUEUED)
        worker_share_hasten(core, index);
    else
        worker_core_act(core, &(struct worker_action){.kind = WORKER_HASTEN,
                                                      .block = worker_slots_handle(&core->blocks, index),
                                                      .deadline_ns = deadline_ns});
}

/* ---- staging ---- */

static void give_memory(struct worker_core *core, struct worker_block *block)
{
    if (block->size_bytes > 0 && !worker_arena_give(&core->arena, block->offset, block->size_bytes))
        core->broken = true;
    block->size_bytes = 0;
}

void worker_block_forget(struct worker_core *core, uint32_t index)
{
    struct worker_block *block = worker_block_at(core, index);
    uint32_t stream_index = block->stream;
    struct worker_stream *stream = core->streams[stream_index];
    if (block->state == WORKER_QUEUED)
        worker_share_drop(core, index);
    if (block->state == WORKER_READY) {
        worker_shelf_remove(&stream->shelf, worker_block_start(stream, block->epoch, block->number));
        core->evictable_bytes -= worker_arena_round(block->size_bytes);
    }
    give_memory(core, block);
    free(block->text);
    block->text = NULL;
    become(core, block, WORKER_ABSENT);
    unlink_block(core, index);
    worker_slots_put(&core->blocks, index);
    stream->block_count--;
}

void worker_block_pin(struct worker_core *core, uint32_t index)
{
    struct worker_block *block = worker_block_at(core, index);
    struct worker_stream *stream = core->streams[block->stream];
    worker_shelf_pin(&stream->shelf, worker_block_start(stream, block->epoch, block->number), 1);
    if (block->pins++ == 0)
        core->evictable_bytes -= worker_arena_round(block->size_bytes);
}

void worker_block_unpin(struct worker_core *core, uint32_t index)
{
    struct worker_block *block = worker_block_at(core, index);
    struct worker_stream *stream = core->streams[block->stream];
    worker_shelf_pin(&stream->shelf, worker_block_start(stream, block->epoch, block->number), -1);
    if (--block->pins == 0)
        core->evictable_bytes += worker_arena_round(block->size_bytes);
}

/* The block whose next use is farthest, of all streams; those of removed streams, and of streams that stand still, have none. */
static uint32_t find_victim(struct worker_core *core, int64_t now_ns, uint64_t *next_use)
{
    uint32_t victim = WORKER_NONE;
    for (uint32_t i = 0; i < core->stream_count; i++) {
        struct worker_stream *stream = core->streams[i];
        if (!stream || stream->shelf.count == 0)
            continue;
        if (!worker_claims_sort(&stream->claims, now_ns)) {
            core->broken = true;
            return WORKER_NONE;
        }
        uint64_t use;
        const struct worker_shelf_entry *entry = worker_shelf_farthest(&stream->shelf, &stream->claims, &use);
        use = stream->live ? use : WORKER_CLAIMS_NEVER;
        if (entry && (victim == WORKER_NONE || use > *next_use)) {
            victim = entry->block;
            *next_use = use;
        }
    }
    return victim;
}

static void evict(struct worker_core *core, uint32_t index, uint64_t next_use)
{
    const struct worker_block *block = worker_block_at(core, index);
    uint32_t stream = block->stream;
    worker_history_evicted(&core->streams[stream]->history, block->epoch, block->number,
                           next_use != WORKER_CLAIMS_NEVER);
    worker_block_forget(core, index);
    core->counts.blocks_evicted++;
    worker_core_release_stream(core, stream);
}

bool worker_block_reserve(struct worker_core *core, int64_t now_ns, uint64_t size_bytes, uint64_t nearest,
                          uint64_t *offset)
{
    if (core->arena.free_bytes + core->evictable_bytes < worker_arena_round(size_bytes))
        return false;
    while (!worker_arena_take(&core->arena, size_bytes, offset)) {
        uint64_t next_use = 0;
        uint32_t victim = find_victim(core, now_ns, &next_use);
        if (victim == WORKER_NONE || next_use < nearest)
            return false;
        evict(core, victim, next_use);
    }
    return true;
}

bool worker_block_room(struct worker_core *core, int64_t now_ns, uint64_t size_bytes, uint64_t nearest)
{
    uint64_t next_use = 0;
    if (core->arena.free_bytes >= size_bytes)
        return true;
    return find_victim(core, now_ns, &next_use) != WORKER_NONE && next_use >= nearest;
}

/* ---- making ---- */

uint16_t worker_block_jobs(const struct worker_core *core, const struct worker_block *block)
{
    uint16_t jobs = 0;
    int looked_at = 0; /* it costs their number squared, and is a number for the log */
    for (uint32_t at = block->first_waiter; at != WORKER_NONE && looked_at++ < 256;) {
        const struct worker_request *request = worker_request_at(core, at);
        const struct worker_connection *connection = worker_connection_at(core, request->connection);
        const struct worker_claims *claims = &core->streams[block->stream]->claims;
        uint64_t job = claims->items[connection->handles[request->handle].claim].job_hash;
        bool again = false;
        for (uint32_t other = block->first_waiter; other != at && !again;) {
            const struct worker_request *earlier = worker_request_at(core, other);
            connection = worker_connection_at(core, earlier->connection);
            again = claims->items[connection->handles[earlier->handle].claim].job_hash == job;
            other = earlier->block_next;
        }
        jobs += again ? 0 : 1;
        at = request->block_next;
    }
    return jobs;
}

void worker_block_begin(struct worker_core *core, int64_t now_ns, uint32_t index, uint64_t offset)
{
    struct worker_block *block = worker_block_at(core, index);
    struct worker_stream *stream = core->streams[block->stream];
    worker_share_start(core, index);
    become(core, block, WORKER_MAKING);
    if (!block->unasked)
        worker_load_waited(&core->load, now_ns, now_ns - block->since_ns);
    block->since_ns = now_ns;
    block->offset = offset;
    block->size_bytes = stream->block_bytes;
    block->part = block->pays = 1;
    block->group = 0;
}

static void start_making(struct worker_core *core, int64_t now_ns, uint32_t index, uint64_t offset)
{
    const struct worker_block *block = worker_block_at(core, index);
    const struct worker_stream *stream = core->streams[block->stream];
    worker_block_begin(core, now_ns, index, offset);
    struct worker_action action = {.kind = WORKER_MAKE,
                                   .stream = stream->context,
                                   .block = worker_slots_handle(&core->blocks, index),
                                   .epoch = block->epoch,
                                   .number = block->number,
                                   .rows = worker_block_rows(stream, block->number),
                                   .offset = offset,
                                   .size_bytes = stream->block_bytes,
                                   .deadline_ns = block->deadline_ns,
                                   .jobs = worker_block_jobs(core, block),
                                   .cause = block->cause};
    worker_siblings_join(core, now_ns, index, &action);
    worker_core_act(core, &action);
}

static void start_what_can(struct worker_core *core, int64_t now_ns)
{
    while (!core->broken && worker_block_makings(core) < core->options.making_max) {
        uint32_t next = worker_share_next(core);
        uint64_t offset;
        if (next == WORKER_NONE ||
            !worker_block_reserve(
                core, now_ns, core->streams[worker_block_at(core, next)->stream]->block_bytes, 0, &offset))
            return;
        start_making(core, now_ns, next, offset);
    }
}

void worker_block_admit(struct worker_core *core, int64_t now_ns)
{
    start_what_can(core, now_ns);
    worker_load_note(&core->load, now_ns, (double)worker_block_makings(core) / core->options.making_max,
                     core->counts.blocks_queued > 0);
}

static void smooth(double *mean, double value)
{
    *mean = *mean > 0 ? 0.875 * *mean + 0.125 * value : value;
}

/* MAKING -> READY: everyone who waited is served. */
static void ready(struct worker_core *core, uint32_t index, const struct worker_made *made)
{
    struct worker_block *block = worker_block_at(core, index);
    struct worker_stream *stream = core->streams[block->stream];
    uint32_t rows = worker_block_rows(stream, block->number);
    uint64_t used = made->used_bytes > 0 ? worker_arena_round(made->used_bytes) : block->size_bytes;
    if (used < block->size_bytes) {
        if (!worker_arena_give(&core->arena, block->offset + used,
                               worker_arena_round(block->size_bytes) - used))
            core->broken = true;
        block->size_bytes = used;
    }
    become(core, block, WORKER_READY);
    block->attempts = 0;
    core->evictable_bytes += worker_arena_round(block->size_bytes);
    struct worker_shelf_entry entry = {worker_block_start(stream, block->epoch, block->number), rows, index,
                                       0};
    if (!worker_shelf_put(&stream->shelf, entry)) {
        core->broken = true;
        return;
    }
    worker_history_made(&stream->history, block->epoch, block->number);
    core->counts.blocks_made++;
    core->counts.rows_made += rows;
    core->counts.blocks_remade[block->cause]++;
    if (made->cost_ns > 0) {
        smooth(&stream->row_cost_ns, (double)made->cost_ns * block->part / rows);
        smooth(&stream->row_making_ns, (double)made->cost_ns / rows);
    }
    while (block->first_waiter != WORKER_NONE)
        worker_request_serve(core, block->first_waiter);
}

static uint32_t rest_ms(uint32_t attempts)
{
    uint32_t doublings = attempts < 16 ? attempts : 16;
    uint64_t rest = (uint64_t)WORKER_REST_FIRST_MS << doublings;
    return rest < WORKER_REST_MOST_MS ? (uint32_t)rest : WORKER_REST_MOST_MS;
}

/* MAKING -> RESTING: an item cannot be had now. */
static void rest(struct worker_core *core, int64_t now_ns, uint32_t index, const struct worker_made *made)
{
    struct worker_block *block = worker_block_at(core, index);
    const char *text = made->text ? made->text : "unavailable";
    uint32_t after_ms = rest_ms(block->attempts++);
    give_memory(core, block);
    become(core, block, WORKER_RESTING);
    block->deadline_ns = now_ns + after_ms * BASE_NS_PER_MS;
    block->text = strdup(text);
    core->counts.blocks_unavailable++;
    while (block->first_waiter != WORKER_NONE)
        worker_request_retry(core, block->first_waiter, made->code, after_ms, text);
    worker_core_begin_tick(core, now_ns);
}

void worker_core_made(struct worker_core *core, int64_t now_ns, uint64_t handle,
                      const struct worker_made *made)
{
    struct worker_block *block = worker_slots_find(&core->blocks, handle);
    if (!block || block->state != WORKER_MAKING)
        return;
    uint32_t index = (uint32_t)handle, stream = block->stream;
    worker_siblings_made(core, block, made);
    worker_share_settle(core, index, (double)made->cost_ns);
    if (made->code == BASE_OK) {
        ready(core, index, made);
    } else if (base_error_class(made->code) == BASE_CLASS_RETRYABLE) {
        rest(core, now_ns, index, made);
    } else {
        while (block->first_waiter != WORKER_NONE)
            worker_request_fail(core, block->first_waiter, made->code, made->text ? made->text : "failed");
        core->counts.blocks_failed++;
        worker_block_forget(core, index);
    }
    worker_block_admit(core, now_ns);
    worker_core_release_stream(core, stream);
}

void worker_block_forget_rested(struct worker_core *core, int64_t now_ns)
{
    for (uint32_t i = 0; i < core->blocks.count && core->resting > 0; i++) {
        const struct worker_block *block = worker_block_at(core, i);
        if (!block->slot.used || block->state != WORKER_RESTING ||
            now_ns < block->deadline_ns + WORKER_REST_FORGET_NS)
            continue;
        uint32_t stream = block->stream;
        worker_block_forget(core, i);
        worker_core_release_stream(core, stream);
    }
}

/* What hangs goes on (it cannot be called back), but nobody has to wait for it. */
void worker_block_excuse_late(struct worker_core *core, int64_t now_ns)
{
    char text[96];
    for (uint32_t i = 0; i < core->blocks.count && core->counts.blocks_making > 0; i++) {
        const struct worker_block *block = worker_block_at(core, i);
        if (!block->slot.used || block->state != WORKER_MAKING || block->first_waiter == WORKER_NONE ||
            now_ns < block->since_ns + WORKER_LATE_MS * BASE_NS_PER_MS)
            continue;
        snprintf(text, sizeof text,
                 "the block is in the making for %lld s: this worker's storage or cores hang",
                 (long long)((now_ns - block->since_ns) / BASE_NS_PER_S));
        while (worker_block_at(core, i)->first_waiter != WORKER_NONE)
            worker_request_retry(core, worker_block_at(core, i)->first_waiter, BASE_UNAVAILABLE,
                                 WORKER_REST_MOST_MS, text);
    }
}

void worker_block_clear(struct worker_core *core)
{
    for (uint32_t i = 0; i < core->blocks.count; i++)
        if (worker_block_at(core, i)->slot.used)
            free(worker_block_at(core, i)->text);
}

uint32_t worker_block_estimate_ms(const struct worker_core *core, uint32_t index)
{
    const struct worker_block *block = worker_block_at(core, index);
    const struct worker_stream *stream = core->streams[block->stream];
    double row_ns = 0.5 * stream->row_cost_ns / block->part; /* half of the making that it is in */
    if (block->state == WORKER_QUEUED)
        row_ns = stream->row_making_ns +
                 stream->row_cost_ns * worker_share_before(core, index) / core->options.making_max;
    double estimate = row_ns * stream->block_rows / 1e6;
    return estimate < 60000 ? (uint32_t)estimate : 60000;
}

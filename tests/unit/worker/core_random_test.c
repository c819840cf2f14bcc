/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded random events against brute force: every request ends once, memory stays within its budget and never overlaps, a
 * block is made by one maker at a time, and what is evicted is what is used last.
 */
#include "tests/unit/worker/bed.h"

#include "worker/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CONNECTIONS = 4, BLOCKS = 13, EPOCHS = 3, STAGED = 6, EVENTS = 300 };

static struct bed bed;
static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

/* ---- the model ---- */

struct model_claim {
    bool known, live;
    int64_t moved_ns;   /* by the stream's clock */
    uint64_t low_water; /* epoch * 100 + position; of a stream that does not use the epoch modulo 100 */
};

static struct {
    uint64_t connection[CONNECTIONS];
    bool open[CONNECTIONS][2];
    struct model_claim claims[CONNECTIONS][2]; /* connection c is job c */
    bool live[2];
    int64_t clock_ns[2], heard_ns[2]; /* stands while nobody moves */
    enum worker_block_state before[2][EPOCHS][BLOCKS];
    bool pinned_before[2][EPOCHS][BLOCKS];
} model;

static bool linear(int stream)
{
    return bed.streams[stream].uses_epoch;
}

static const char *const jobs[CONNECTIONS] = {"j0", "j1", "j2", "j3"};

static uint64_t next_use(int stream, uint64_t epoch, uint64_t block)
{
    uint64_t least = UINT64_MAX, rows = block == 12 ? 4 : 8;
    uint64_t start = epoch * 100 + block * 8;
    for (int c = 0; c < CONNECTIONS; c++) {
        const struct model_claim *claim = &model.claims[c][stream];
        bool dormant = model.clock_ns[stream] - claim->moved_ns >= WORKER_DORMANT_MS * BED_MS;
        if (!claim->known || !claim->live || dormant)
            continue;
        uint64_t use = UINT64_MAX;
        for (uint64_t row = start; row < start + rows;
             row++) { /* the first of its rows that the claim still needs */
            uint64_t distance =
                linear(stream) ? row - claim->low_water : (row + 100 - claim->low_water) % 100;
            if (linear(stream) && row < claim->low_water)
                continue;
            use = distance < use ? distance : use;
        }
        least = use < least ? use : least;
    }
    return least;
}

static bool pinned(int stream, uint32_t epoch, uint64_t block)
{
    for (int i = 0; i < bed.send_count; i++) {
        const struct worker_action *sending = &bed.sending[i];
        uint32_t key = linear(stream) ? sending->epoch : 0;
        if (sending->stream == &bed.streams[stream] && key == epoch && sending->number == block)
            return true;
    }
    return false;
}

static enum worker_block_state state_of(int stream, uint32_t epoch, uint64_t block)
{
    return worker_core_block(bed.core, bed.streams[stream].hash, epoch, block, NULL);
}

static void remember(void)
{
    for (int s = 0; s < 2; s++)
        for (uint32_t e = 0; e < (linear(s) ? EPOCHS : 1); e++)
            for (uint64_t b = 0; b < BLOCKS; b++) {
                model.before[s][e][b] = state_of(s, e, b);
                model.pinned_before[s][e][b] = model.before[s][e][b] == WORKER_READY && pinned(s, e, b);
            }
}

/* Of what was ready and could go, nothing that stayed is used later than what went. Blocks of one size: one may go for each
 * that comes. */
static void check_evictions(void)
{
    uint64_t least_gone = UINT64_MAX, most_kept = 0;
    int held = 0, gone = 0;
    for (int s = 0; s < 2; s++)
        for (uint32_t e = 0; e < (linear(s) ? EPOCHS : 1); e++)
            for (uint64_t b = 0; b < BLOCKS; b++) {
                enum worker_block_state now = state_of(s, e, b);
                held += now == WORKER_READY || now == WORKER_MAKING;
                if (model.before[s][e][b] != WORKER_READY)
                    continue;
                uint64_t use = model.live[s] ? next_use(s, e, b) : UINT64_MAX;
                if (now != WORKER_READY) {
                    assert_false(model.pinned_before[s][e][b] && pinned(s, e, b));
                    least_gone = use < least_gone ? use : least_gone;
                    gone++;
                } else if (!model.pinned_before[s][e][b] && !pinned(s, e, b)) {
                    most_kept = use > most_kept ? use : most_kept;
                }
            }
    assert_true(held <= STAGED);
    if (gone > 0)
        assert_true(least_gone >= most_kept);
}

/* ---- events ---- */

static void forget_connection(int c)
{
    for (uint64_t r = 1; r < bed.next_request; r++)
        if (bed.requests[r].connection == model.connection[c] && bed.requests[r].state == BED_OPEN)
            bed.requests[r].state = BED_GONE;
    model.open[c][0] = model.open[c][1] = false;
}

static void event_connect(int c)
{
    if (model.connection[c]) {
        forget_connection(c);
        worker_core_closed(bed.core, bed.now_ns, model.connection[c]);
    }
    for (int s = 0; s < 2; s++)
        if (!model.claims[c][s].live)
            model.claims[c][s].known = false;
    model.connection[c] = bed_connect(&bed);
    for (int s = 0; s < 2; s++) {
        struct bed_request *open = bed_open(&bed, model.connection[c], s, jobs[c], 0);
        model.open[c][s] = open->answer == WORKER_SEND_OPENED;
        assert_int_equal(model.open[c][s], model.live[s]);
    }
}

static void mark(int c, int s, uint32_t epoch, uint64_t position)
{
    uint64_t low_water = linear(s) ? epoch * 100 + position : position % 100;
    struct model_claim *claim = &model.claims[c][s];
    if (claim->known && claim->live && claim->low_water == low_water)
        return;
    int64_t step_ns = bed.now_ns - model.heard_ns[s];
    model.clock_ns[s] += step_ns < WORKER_MARK_MS * BED_MS ? step_ns : WORKER_MARK_MS * BED_MS;
    model.heard_ns[s] = bed.now_ns;
    *claim = (struct model_claim){true, true, model.clock_ns[s], low_water};
}

static void event_get(int c)
{
    int s = (int)draw(2);
    if (!model.open[c][s])
        return;
    struct worker_get get = bed_get_of(&bed, s, linear(s) ? draw(EPOCHS) : 0, draw(BLOCKS));
    get.mark_position = draw(101);
    get.mark_epoch = draw(EPOCHS);
    get.insist = draw(3) == 0;
    get.plan = draw(6);
    get.slack_ms = draw(1000);
    mark(c, s, get.mark_epoch, get.mark_position);
    bed_send(&bed, model.connection[c], get);
}

static void event_cancel(int c)
{
    uint64_t id = 1 + draw((uint32_t)bed.next_request);
    if (id >= bed.next_request)
        return;
    struct bed_request *request = &bed.requests[id];
    if (request->connection == model.connection[c] && request->state == BED_OPEN)
        request->state = BED_CANCELLED;
    worker_core_cancel(bed.core, bed.now_ns, model.connection[c], id);
}

static void event_jobs(void)
{
    int s = (int)draw(2);
    struct worker_live_job list[CONNECTIONS];
    int count = 0;
    for (int c = 0; c < CONNECTIONS; c++) {
        if (draw(4) > 0)
            list[count++] = (struct worker_live_job){jobs[c], 1 + draw(3)};
        else
            model.claims[c][s].live = false;
    }
    worker_core_stream_jobs(bed.core, bed.now_ns, bed.streams[s].hash, list, count);
}

static void event_made(void)
{
    static const enum base_code codes[] = {BASE_OK, BASE_OK,          BASE_OK,
                                           BASE_OK, BASE_UNAVAILABLE, BASE_INTERNAL};
    if (bed.making_count > 0)
        bed_made(&bed, (int)draw((uint32_t)bed.making_count), codes[draw(6)]);
}

static void event_stream(void)
{
    int s = (int)draw(2);
    if (model.live[s]) {
        worker_core_stream_remove(bed.core, bed.now_ns, bed.streams[s].hash);
        model.live[s] = false;
    } else {
        bed_add_stream(&bed, s);
        bed_plan(&bed, s, 1 + draw(5), 2);
        model.live[s] = true;
    }
}

static void event(void)
{
    int c = (int)draw(CONNECTIONS);
    switch (draw(40)) {
    case 0:
        event_connect(c);
        break;
    case 1:
        event_jobs();
        break;
    case 2:
        bed_plan(&bed, (int)draw(2), 1 + draw(9), 1 + draw(3));
        break;
    case 3:
        if (draw(4) == 0)
            event_stream();
        break;
    case 4:
    case 5:
        event_cancel(c);
        break;
    case 6:
        worker_core_tick(bed.core, bed.now_ns);
        break;
    case 7: {
        int s = (int)draw(2);
        if (model.open[c][s]) {
            uint32_t epoch = draw(EPOCHS), position = draw(101);
            mark(c, s, epoch, position);
            worker_core_mark(bed.core, bed.now_ns, model.connection[c], (uint32_t)s + 1, epoch, position);
        }
        break;
    }
    default:
        switch (draw(3)) {
        case 0:
            event_get(c);
            break;
        case 1:
            event_made();
            break;
        default:
            if (bed.send_count > 0)
                bed_sent(&bed, (int)draw((uint32_t)bed.send_count), draw(2) == 0);
        }
    }
    bed_take(&bed);
}

static void forget_gone(void)
{
    for (int s = 0; s < 2; s++)
        for (int c = 0; bed.went[s] && c < CONNECTIONS; c++)
            model.claims[c][s].known = false;
    bed.went[0] = bed.went[1] = false;
}

/* A dropped connection is closed as the driver would. */
static void close_dropped(void)
{
    for (int c = 0; c < CONNECTIONS; c++)
        for (int d = 0; d < bed.drops && d < 64; d++)
            if (model.connection[c] && bed.dropped[d] == model.connection[c])
                event_connect(c);
    bed.drops = 0;
}

static void settle(void)
{
    for (int i = 0; i < 2000 && !worker_core_idle(bed.core); i++) {
        bed_make_all(&bed);
        bed_send_all(&bed);
    }
    assert_true(worker_core_idle(bed.core));
    for (uint64_t r = 1; r < bed.next_request; r++)
        assert_int_not_equal(bed.requests[r].state, BED_OPEN);
}

/* What is counted is what is there. */
static void check_books(void)
{
    const struct worker_core *core = bed.core;
    uint64_t evictable_bytes = 0, riding = 0, keepers = 0, kept = 0;
    for (uint32_t i = 0; i < core->blocks.count; i++) {
        const struct worker_block *block = worker_block_at(core, i);
        if (!block->slot.used)
            continue;
        if (block->state == WORKER_READY && block->pins == 0)
            evictable_bytes += worker_arena_round(block->size_bytes);
        riding += block->rides;
        kept += block->state == WORKER_QUEUED || block->state == WORKER_MAKING;
    }
    for (uint32_t i = 0; i < core->stream_count; i++) {
        const struct worker_stream *stream = core->streams[i];
        kept += stream != NULL;
        for (uint32_t c = 0; stream && c < stream->claims.count; c++)
            kept += stream->claims.items[c].share != WORKER_NONE;
    }
    for (uint32_t i = 0; i < core->shares.count; i++) {
        const struct worker_share *share = worker_slots_at(&core->shares, i);
        if (share->slot.used)
            keepers += share->keepers;
    }
    assert_true(core->evictable_bytes == evictable_bytes);
    assert_true(core->counts.blocks_riding == riding);
    assert_true(keepers == kept);
}

static void run(uint64_t seed)
{
    random_state = seed * 7919 + 1;
    memset(&model, 0, sizeof model);
    bed_start(&bed, STAGED, 1 + draw(4), 8);
    bed.together_cpu_ns = (8 + (int64_t)draw(10)) * BED_MS;
    if (seed % 2)
        bed_relate(&bed);
    for (int s = 0; s < 2; s++) {
        bed_add_stream(&bed, s);
        bed_plan(&bed, s, 2, 2);
        model.live[s] = true;
    }
    for (int c = 0; c < CONNECTIONS; c++)
        event_connect(c);
    for (int i = 0; i < EVENTS; i++) {
        bed.now_ns += draw(100) * BED_MS;
        remember();
        event();
        check_evictions();
        check_books();
        forget_gone();
        close_dropped();
        forget_gone();
    }
    if (draw(2)) {
        worker_core_drain(bed.core, bed.now_ns);
        bed_take(&bed);
    }
    settle();
    for (int c = 0; c < CONNECTIONS; c++)
        worker_core_closed(bed.core, bed.now_ns, model.connection[c]);
    bed_stop(&bed);
}

static void test_random_events(void **state)
{
    (void)state;
    const char *one = getenv("MILLRACE_SEED");
    if (one) {
        run(strtoull(one, NULL, 10));
        return;
    }
    int together = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        run(seed);
        together += bed.together;
    }
    print_message("%d blocks made beside a sibling's\n", together);
    assert_true(together > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

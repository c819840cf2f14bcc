/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/core_state.h"

#include "base/clock.h"

#include <string.h>

#define BRISK_NS (200 * INT64_C(1000))
#define STEP_GUESS_NS (50 * BASE_NS_PER_MS) /* the trainer's time a step, before any was seen */

/* ---- which steps there are ---- */

/* Counts the steps of an epoch that begins; false: the job's epochs are over. core->next is normal. */
static bool next_epoch(struct client_core *core)
{
    if (core->next_steps == 0) {
        core->next_step = 0;
        core->next_steps = scheduler_steps_left(&core->options.shape, core->next);
    }
    return core->options.epochs == 0 || core->next.epoch - core->options.first_epoch < core->options.epochs;
}

/* ---- parts ---- */

/* Rows from `row` on, as many as lie side by side in one block. */
static uint32_t add_part(struct client_core *core, struct client_slot *slot, uint32_t row)
{
    uint64_t position = scheduler_steps_position(&slot->batch, row);
    uint32_t from = (uint32_t)(position % core->options.block_rows);
    uint64_t rows = slot->distinct - row, whole = core->options.block_rows - from,
             unwrapped = slot->batch.step_begin + slot->batch.step_valid - position;
    rows = rows < whole ? rows : whole;
    rows = rows < unwrapped ? rows : unwrapped;
    struct client_request *part = &slot->parts[slot->part_count++];
    *part = (struct client_request){
        .row = row,
        .block = position / core->options.block_rows,
        .from = from,
        .to = from + (uint32_t)rows,
    };
    part->plan_slot = (uint16_t)scheduler_plan_slot(core->options.family, core->options.uses_epoch,
                                                    slot->begin.epoch, part->block);
    return (uint32_t)rows;
}

static void cut_parts(struct client_core *core, struct client_slot *slot)
{
    for (uint32_t row = 0; row < slot->distinct;)
        row += add_part(core, slot, row);
    slot->unsent = slot->undone = slot->part_count;
}

static void begin(struct client_core *core, struct client_slot *slot)
{
    const struct scheduler_shape *shape = &core->options.shape;
    slot->state = CLIENT_SLOT_WANTED;
    slot->told_ready = slot->told_error = false;
    slot->begin = core->next;
    slot->batch = scheduler_steps_batch(shape, core->next);
    slot->after = core->next = scheduler_steps_next(shape, core->next);
    slot->step = core->next_step++;
    slot->steps = core->next_steps;
    if (slot->after.epoch != slot->begin.epoch)
        core->next_steps = 0;
    core->ended = slot->after.epoch < slot->begin.epoch; /* behind the last epoch that 32 bits can say */
    slot->distinct = slot->batch.rows;
    if (slot->batch.step_valid < slot->distinct)
        slot->distinct = (uint32_t)slot->batch.step_valid;
    slot->part_count = slot->retrying = slot->valid_rows = 0;
    slot->verdict.code = slot->cause.code = BASE_OK;
    cut_parts(core, slot);
    if (slot->undone == 0)
        client_step_complete(core, slot);
}

void client_step_refill(struct client_core *core)
{
    for (uint32_t i = 0; i < core->slot_count && !core->ended && core->over.code == BASE_OK; i++) {
        if (core->slots[i].state != CLIENT_SLOT_FREE)
            continue;
        core->ended = !next_epoch(core);
        if (core->ended)
            return;
        core->queue[core->queued++] = i;
        begin(core, &core->slots[i]);
    }
}

/* ---- complete ---- */

static void judge(struct client_core *core, struct client_slot *slot, uint32_t row)
{
    const struct wire_row *made = &slot->rows[row];
    if (made->status == WIRE_ROW_OK)
        return;
    if (core->options.on_bad == CLIENT_ON_BAD_ERROR && slot->verdict.code == BASE_OK) {
        slot->bad = (struct client_core_bad){.item = made->item,
                                             .position = scheduler_steps_position(&slot->batch, row),
                                             .epoch = slot->begin.epoch,
                                             .cause = made->cause};
        base_error_set(&slot->verdict, BASE_BAD_SAMPLE,
                       "item %llu at epoch %u position %llu is bad: cause %u",
                       (unsigned long long)slot->bad.item, slot->bad.epoch,
                       (unsigned long long)slot->bad.position, slot->bad.cause);
    }
    if (core->options.on_bad == CLIENT_ON_BAD_SKIP || made->status == WIRE_ROW_BAD)
        slot->valid[row] = 0;
}

void client_step_complete(struct client_core *core, struct client_slot *slot)
{
    for (uint32_t row = slot->distinct; row < slot->batch.rows; row++)
        slot->rows[row] = slot->rows[row % slot->distinct];
    for (uint32_t row = 0; row < slot->batch.rows; row++) {
        slot->valid[row] = row < slot->batch.valid;
        if (slot->valid[row]) /* padding is judged where it is no padding */
            judge(core, slot, row);
        slot->valid_rows += slot->valid[row];
    }
    slot->state = CLIENT_SLOT_READY;
}

/* ---- unavailable for too long ---- */

bool client_step_overdue(const struct client_core *core, const struct client_slot *slot, int64_t *since_ns)
{
    int64_t oldest_ns = INT64_MAX;
    for (uint32_t i = 0; i < slot->part_count && slot->retrying > 0; i++) {
        const struct client_request *part = &slot->parts[i];
        bool refused = part->state == CLIENT_REQUEST_RETRY; /* and not on its way, perhaps to success */
        if (refused && part->unavailable_since_ns < oldest_ns)
            oldest_ns = part->unavailable_since_ns;
    }
    if (since_ns)
        *since_ns = oldest_ns;
    return oldest_ns != INT64_MAX && core->now_ns - oldest_ns >= core->options.unavailable_ns;
}

static enum base_code tell_unavailable(struct client_core *core, struct client_slot *slot,
                                       struct base_error *error)
{
    for (uint32_t i = 0; i < slot->part_count; i++)
        if (slot->parts[i].unavailable_since_ns != 0)
            slot->parts[i].unavailable_since_ns = core->now_ns;
    slot->told_error = false;
    return base_error_set(error, BASE_UNAVAILABLE, "unavailable everywhere for %lld ms: %s",
                          (long long)(core->options.unavailable_ns / BASE_NS_PER_MS), slot->cause.text);
}

/* ---- hand-over ---- */

static void count_rows(struct client_core *core, const struct client_slot *slot)
{
    for (uint32_t row = 0; row < slot->batch.valid; row++) {
        if (slot->valid[row] == 0)
            core->stats.skipped++;
        else if (slot->rows[row].status == WIRE_ROW_SUBSTITUTED)
            core->stats.substituted++;
    }
    core->stats.rows += slot->batch.valid;
    core->stats.steps++;
}

static void hand_over(struct client_core *core, struct client_slot *slot, struct client_step *step)
{
    int64_t asked_ns = core->asked_ns != 0 ? core->asked_ns : core->now_ns;
    int64_t step_ns = asked_ns - core->taken_ns; /* the trainer's own time, without waiting for us */
    if (core->taken_ns != 0)
        core->step_ns = core->step_ns != 0 ? core->step_ns + (step_ns - core->step_ns) / 4 : step_ns;
    core->taken_ns = core->now_ns;
    core->asked_ns = 0;
    slot->state = CLIENT_SLOT_HELD;
    core->queued--;
    memmove(core->queue, core->queue + 1, core->queued * sizeof *core->queue);
    core->cursor = slot->after;
    core->dirty = true;
    count_rows(core, slot);
    *step = (struct client_step){
        .slot = (uint32_t)(slot - core->slots),
        .epoch = slot->begin.epoch,
        .step = slot->step,
        .steps = slot->steps,
        .after = slot->after,
        .batch = slot->batch,
        .distinct = slot->distinct,
        .valid_rows = slot->valid_rows,
        .valid = slot->valid,
        .rows = slot->rows,
    };
}

static uint32_t count_slots(const struct client_core *core, enum client_slot_state state)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->slot_count; i++)
        count += core->slots[i].state == state;
    return count;
}

enum base_code client_core_take(struct client_core *core, int64_t now_ns, struct client_step *step,
                                struct base_error *error)
{
    core->now_ns = now_ns;
    if (core->over.code != BASE_OK)
        return base_error_set(error, core->over.code, "%s", core->over.text);
    uint32_t held = count_slots(core, CLIENT_SLOT_HELD);
    if (held >= core->options.look_ahead)
        return base_error_set(error, BASE_BUSY, "%u batches are held: release one first", held);
    client_step_refill(core);
    if (core->queued == 0)
        return base_error_set(error, core->ended ? BASE_CLOSED : BASE_TIMEOUT,
                              core->ended ? "no more steps" : "abandoned steps hold all slots");
    struct client_slot *front = &core->slots[core->queue[0]];
    if (front->verdict.code != BASE_OK) {
        core->over = front->verdict;
        core->bad = front->bad;
        core->dirty = true;
        return base_error_set(error, core->over.code, "%s", core->over.text);
    }
    if (front->state == CLIENT_SLOT_READY) {
        hand_over(core, front, step);
        return BASE_OK;
    }
    if (client_step_overdue(core, front, NULL))
        return tell_unavailable(core, front, error);
    if (core->asked_ns == 0)
        core->asked_ns = now_ns;
    return base_error_set(error, BASE_TIMEOUT, "the next step is not ready");
}

struct client_core_bad client_core_bad(const struct client_core *core)
{
    return core->bad;
}

void client_core_release(struct client_core *core, int64_t now_ns, uint32_t slot)
{
    core->now_ns = now_ns;
    if (slot >= core->slot_count || core->slots[slot].state != CLIENT_SLOT_HELD)
        return;
    core->slots[slot].state = CLIENT_SLOT_FREE;
    core->dirty = true;
}

bool client_core_is_brisk(const struct client_core *core)
{
    return core->step_ns != 0 && core->step_ns < BRISK_NS;
}

uint32_t client_step_slack_ms(const struct client_core *core, uint32_t index)
{
    int64_t step_ns = core->step_ns != 0 ? core->step_ns : STEP_GUESS_NS;
    int64_t from_ns = core->taken_ns != 0 && core->asked_ns == 0 ? core->taken_ns + step_ns : core->now_ns;
    int64_t slack_ns = from_ns + index * step_ns - core->now_ns;
    return slack_ns > 0 ? (uint32_t)(slack_ns / BASE_NS_PER_MS) : 0;
}

/* ---- looking in ---- */

struct scheduler_cursor client_core_cursor(const struct client_core *core)
{
    return core->cursor;
}

/* The least position that this rank asks for in the step at `cursor`: padding that wraps begins again with the step. */
static struct scheduler_cursor first_of(const struct client_core *core, struct scheduler_cursor cursor)
{
    struct scheduler_batch batch = scheduler_steps_batch(&core->options.shape, cursor);
    bool wraps = batch.rank_begin + batch.rows > batch.step_valid;
    cursor.position += wraps ? 0 : batch.rank_begin;
    return cursor;
}

/* Steps' positions rise, so the first step that is not whole has it; a wrapped part of a padded step may lie
 * before others of it. */
struct scheduler_cursor client_core_mark(const struct client_core *core)
{
    for (uint32_t i = 0; i < core->queued; i++) {
        const struct client_slot *slot = &core->slots[core->queue[i]];
        struct scheduler_cursor mark = {slot->begin.epoch, UINT64_MAX};
        for (uint32_t p = 0; p < slot->part_count && slot->undone > 0; p++) {
            const struct client_request *part = &slot->parts[p];
            uint64_t position = part->block * core->options.block_rows + part->from;
            if (part->state != CLIENT_REQUEST_DONE && position < mark.position)
                mark.position = position;
        }
        if (mark.position != UINT64_MAX)
            return mark;
    }
    return first_of(core, core->next);
}

void client_step_count(const struct client_core *core, struct client_core_stats *stats)
{
    stats->ready = count_slots(core, CLIENT_SLOT_READY);
    stats->held = count_slots(core, CLIENT_SLOT_HELD);
}

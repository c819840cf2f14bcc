/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that nobody wants any more, because the trainer goes on elsewhere: what they asked for is cancelled, and their slots
 * are free when nothing is being received into them. */
#include "client/src/core_state.h"

/* The next step to hand over begins there already: what was fetched ahead is what is wanted. */
static bool is_there(const struct client_core *core, uint32_t first_epoch, struct scheduler_cursor to)
{
    struct scheduler_cursor front = core->queued > 0 ? core->slots[core->queue[0]].begin : core->next;
    return first_epoch == core->options.first_epoch && front.epoch == to.epoch &&
           front.position == to.position;
}

enum base_code client_core_seek(struct client_core *core, int64_t now_ns, uint32_t first_epoch,
                                struct scheduler_cursor to, struct base_error *error)
{
    const struct scheduler_shape *shape = &core->options.shape;
    if (core->over.code != BASE_OK)
        return base_error_set(error, core->over.code, "%s", core->over.text);
    if (to.position > shape->positions || to.epoch < first_epoch || to.epoch == UINT32_MAX)
        return base_error_set(
            error, BASE_INVALID, "cursor (epoch %u, position %llu) outside: first epoch %u, %llu positions",
            to.epoch, (unsigned long long)to.position, first_epoch, (unsigned long long)shape->positions);
    to = scheduler_cursor_normal(shape, to);
    core->now_ns = now_ns;
    core->cursor = to;
    core->asked_ns = 0;
    core->dirty = true;
    if (is_there(core, first_epoch, to))
        return BASE_OK;
    core->options.first_epoch = first_epoch;
    for (uint32_t i = 0; i < core->queued; i++)
        core->slots[core->queue[i]].state = CLIENT_SLOT_ABANDONED;
    core->queued = 0;
    core->next = to;
    core->next_step = core->next_steps = 0;
    core->ended = false;
    return BASE_OK;
}

bool client_abandon_act(struct client_core *core, struct client_action *action)
{
    for (uint32_t i = 0; i < core->slot_count; i++) {
        struct client_slot *slot = &core->slots[i];
        for (uint32_t p = 0; p < slot->part_count && slot->state == CLIENT_SLOT_ABANDONED; p++) {
            struct client_request *part = &slot->parts[p];
            if (!client_request_in_flight(part) || part->state == CLIENT_REQUEST_RECEIVING)
                continue;
            *action = (struct client_action){
                .kind = CLIENT_ACTION_CANCEL, .worker = part->worker, .request = part->number};
            client_peer_note_cancelled(core, part->worker);
            client_request_drop(core, slot, part);
            core->dirty = true; /* the slot may be free now */
            return true;
        }
    }
    return false;
}

void client_abandon_sweep(struct client_core *core)
{
    for (uint32_t i = 0; i < core->slot_count; i++) {
        struct client_slot *slot = &core->slots[i];
        uint32_t busy = 0;
        for (uint32_t p = 0; p < slot->part_count && slot->state == CLIENT_SLOT_ABANDONED; p++)
            busy += client_request_in_flight(&slot->parts[p]);
        if (slot->state == CLIENT_SLOT_ABANDONED && busy == 0)
            slot->state = CLIENT_SLOT_FREE;
    }
}

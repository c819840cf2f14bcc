/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/core_state.h"

#include "base/clock.h"

#define CREDIT_EACH 50 /* 2% of all requests */
#define CREDIT_MOST (CLIENT_HEDGES * CREDIT_EACH)
/* A worker says WAIT or PING each 250 ms to everyone who waits (WORKER_TICK_MS): a little more is silence. */
#define SILENCE_NS (300 * BASE_NS_PER_MS)
#define SLACK_MS 250                   /* about what a second making takes */
#define QUIET_NS (5 * BASE_NS_PER_S)   /* after RETRY */
#define AGAIN_NS (50 * BASE_NS_PER_MS) /* late, and nobody can be asked now */

int64_t client_hedge_patience_ns(const struct client_peer *peer)
{
    return base_clock_later(SILENCE_NS, 2 * peer->answer_ns);
}

void client_hedge_note_sent(struct client_core *core, const struct client_peer *peer)
{
    struct client_hedges *hedges = &core->hedges;
    hedges->credit += hedges->credit < CREDIT_MOST;
    hedges->due_ns = base_clock_earlier(hedges->due_ns, core->now_ns + client_hedge_patience_ns(peer));
}

void client_hedge_note_throttle(struct client_core *core)
{
    core->hedges.quiet_until_ns = core->now_ns + QUIET_NS;
}

/* ---- whom, and when ---- */

/* When its home will have been silent for too long. A living worker speaks of all that waits, so silence about one is silence
 * about all, or the line is full. What came while we slept is not read yet. */
static int64_t late_ns(const struct client_core *core, const struct client_request *request,
                       const struct client_peer *peer)
{
    int64_t since_ns = base_clock_later(base_clock_later(request->sent_ns, peer->heard_ns), core->woke_ns);
    return since_ns + client_hedge_patience_ns(peer);
}

static bool may_hedge(const struct client_request *request)
{
    bool asked = request->state == CLIENT_REQUEST_SENT || request->state == CLIENT_REQUEST_WAITING;
    return asked && request->hedge.number == 0 && !request->death;
}

static bool affordable(const struct client_core *core)
{
    const struct client_hedges *hedges = &core->hedges;
    return hedges->credit >= CREDIT_EACH && hedges->out < CLIENT_HEDGES &&
           core->now_ns >= hedges->quiet_until_ns;
}

static void hedge(struct client_core *core, struct client_slot *slot, struct client_request *request,
                  struct client_peer *peer, struct client_action *action)
{
    client_request_ask(core, slot, request, peer, action);
    action->insist = action->hedge = true;
    request->hedge = (struct client_ask){peer->id, action->request, core->now_ns};
    core->hedges.credit -= CREDIT_EACH;
    core->hedges.out++;
    core->stats.hedges++;
}

/* True: asked elsewhere, too. Else due_ns says when to look again. */
static bool consider(struct client_core *core, struct client_slot *slot, struct client_request *request,
                     struct client_action *action)
{
    struct client_peer *home = client_peer_find(core, request->worker), *other = NULL;
    if (!home || !may_hedge(request))
        return false;
    int64_t due_ns = late_ns(core, request, home);
    if (core->now_ns >= due_ns) {
        other = affordable(core) ? client_request_behind(core, request, home->id) : NULL;
        due_ns = core->now_ns + AGAIN_NS;
    }
    core->hedges.due_ns = base_clock_earlier(core->hedges.due_ns, due_ns);
    if (!other || other == home || other->state != CLIENT_PEER_UP || !client_peer_has_room(other))
        return false;
    hedge(core, slot, request, other, action);
    return true;
}

bool client_hedge_act(struct client_core *core, struct client_action *action)
{
    struct client_hedges *hedges = &core->hedges;
    if (core->now_ns < hedges->due_ns || core->over.code != BASE_OK)
        return false;
    hedges->due_ns = INT64_MAX;
    for (uint32_t i = 0; i < core->queued; i++) {
        struct client_slot *slot = &core->slots[core->queue[i]];
        uint32_t slack_ms = client_step_slack_ms(core, i);
        if (slack_ms > SLACK_MS) { /* the trainer will not starve for this one, nor for those behind it */
            hedges->due_ns =
                base_clock_earlier(hedges->due_ns, core->now_ns + (slack_ms - SLACK_MS) * BASE_NS_PER_MS);
            return false;
        }
        for (uint32_t p = 0; p < slot->part_count && slot->undone > 0; p++) {
            if (!consider(core, slot, &slot->parts[p], action))
                continue;
            action->slack_ms = slack_ms;
            hedges->due_ns = core->now_ns; /* there may be more */
            return true;
        }
    }
    return false;
}

/* ---- the end of one ---- */

static void cancel(struct client_core *core, uint64_t worker, uint64_t number)
{
    client_peer_note_cancelled(core, worker);
    core->hedges.cancels[core->hedges.cancel_count++] =
        (struct client_ask){.worker = worker, .number = number};
    core->dirty = true;
}

bool client_hedge_act_cancel(struct client_core *core, struct client_action *action)
{
    if (core->hedges.cancel_count == 0)
        return false;
    struct client_ask ask = core->hedges.cancels[--core->hedges.cancel_count];
    *action =
        (struct client_action){.kind = CLIENT_ACTION_CANCEL, .worker = ask.worker, .request = ask.number};
    return true;
}

void client_hedge_take(struct client_core *core, struct client_request *request)
{
    request->worker = request->hedge.worker;
    request->number = request->hedge.number;
    request->sent_ns = request->hedge.sent_ns;
    request->insist = true;
    request->fixed = request->avoid = 0;
    request->retries = 0;
    request->hedge.number = 0;
    core->hedges.out--;
}

void client_hedge_win(struct client_core *core, struct client_request *request)
{
    struct client_peer *home = client_peer_find(core, request->worker);
    if (home)
        home->doubted = true;
    client_peer_unload(core, request->worker);
    cancel(core, request->worker, request->number);
    client_hedge_take(core, request);
    core->stats.hedges_won++;
}

void client_hedge_end(struct client_core *core, struct client_request *request)
{
    client_peer_unload(core, request->hedge.worker);
    request->hedge.number = 0;
    core->hedges.out--;
}

void client_hedge_lose(struct client_core *core, struct client_request *request)
{
    if (request->hedge.number == 0)
        return;
    cancel(core, request->hedge.worker, request->hedge.number);
    client_hedge_end(core, request);
}

void client_hedge_forget(struct client_core *core, uint64_t worker)
{
    struct client_hedges *hedges = &core->hedges;
    int kept = 0;
    for (int i = 0; i < hedges->cancel_count; i++)
        if (hedges->cancels[i].worker != worker)
            hedges->cancels[kept++] = hedges->cancels[i];
    hedges->cancel_count = kept;
}

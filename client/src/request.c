/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/core_state.h"

#include "base/clock.h"

#define RETRIES_AT_ONE_WORKER 2
#define RETRY_LEAST_NS (10 * BASE_NS_PER_MS) /* whatever a worker says: no busy asking */

static const char *const state_names[CLIENT_REQUEST_STATES] = {
    "planned", "sent", "waiting", "receiving", "done", "moved", "retry", "lost", "dropped",
};

/* [from][to]: the drawing in core.h. */
#define BIT(state) (1u << CLIENT_REQUEST_##state)
static const unsigned transitions[CLIENT_REQUEST_STATES] = {
    [CLIENT_REQUEST_PLANNED] = BIT(SENT) | BIT(DROPPED),
    [CLIENT_REQUEST_SENT] =
        BIT(WAITING) | BIT(RECEIVING) | BIT(MOVED) | BIT(RETRY) | BIT(LOST) | BIT(DROPPED),
    [CLIENT_REQUEST_WAITING] =
        BIT(WAITING) | BIT(RECEIVING) | BIT(MOVED) | BIT(RETRY) | BIT(LOST) | BIT(DROPPED),
    [CLIENT_REQUEST_RECEIVING] = BIT(DONE) | BIT(LOST) | BIT(DROPPED),
    [CLIENT_REQUEST_MOVED] = BIT(SENT) | BIT(DROPPED),
    [CLIENT_REQUEST_RETRY] = BIT(SENT) | BIT(DROPPED),
    [CLIENT_REQUEST_LOST] = BIT(SENT) | BIT(DROPPED),
};

const char *client_request_state_name(enum client_request_state state)
{
    return state < CLIENT_REQUEST_STATES ? state_names[state] : "?";
}

bool client_request_in_flight(const struct client_request *request)
{
    return request->number != 0;
}

static bool go(struct client_request *request, enum client_request_state to)
{
    if (!(transitions[request->state] & 1u << to))
        return false;
    request->state = to;
    return true;
}

/* Numbers say where their request is, so that an answer finds it at once: serial * all + index + 1. */
static uint64_t all_parts(const struct client_core *core)
{
    return (uint64_t)core->slot_count * core->parts_max;
}

struct client_request *client_request_find(struct client_core *core, uint64_t worker, uint64_t number,
                                           struct client_slot **slot)
{
    if (number == 0)
        return NULL;
    uint64_t index = (number - 1) % all_parts(core);
    struct client_request *request = &core->parts[index];
    *slot = &core->slots[index / core->parts_max];
    bool asked = request->number == number && request->worker == worker;
    bool hedged = request->hedge.number == number && request->hedge.worker == worker;
    return asked || hedged ? request : NULL;
}

/* ---- whom to ask ---- */

/* Round and round. */
struct client_peer *client_request_behind(struct client_core *core, const struct client_request *request,
                                          uint64_t avoid)
{
    uint64_t ids[SCHEDULER_PLAN_WORKERS], order[SCHEDULER_PLAN_WORKERS];
    int count = 0, found = 0;
    for (int i = 0; i < core->peer_count && count < SCHEDULER_PLAN_WORKERS; i++) {
        const struct client_peer *peer = &core->peers[i];
        if (peer->id == avoid || (!peer->leaving && !client_peer_is_down(core, peer)))
            ids[count++] = peer->id;
    }
    /* the order costs its length squared: take no more of it than needed */
    for (int most = 1; found < count && most < 2 * count;) {
        most *= 2;
        found = scheduler_plan_candidates(&core->plan, request->plan_slot, ids, count, order,
                                          most < count ? most : count);
        int at = 0;
        while (at < found && order[at] != avoid)
            at++;
        int after = at < found ? at + 1 : 0;
        if (at == found && found < count && avoid != 0)
            continue;
        for (int i = 0; i < found; i++) {
            struct client_peer *peer = client_peer_find(core, order[(after + i) % found]);
            if (after + i >= found && found < count)
                break; /* there are more behind it */
            if (peer && !peer->leaving && !client_peer_is_down(core, peer))
                return peer;
        }
    }
    return NULL;
}

static struct client_peer *target(struct client_core *core, struct client_request *request)
{
    if (request->fixed != 0) {
        struct client_peer *peer = client_peer_find(core, request->fixed);
        if (peer && !peer->leaving && !client_peer_is_down(core, peer))
            return peer;
        request->avoid = request->fixed;
        request->fixed = 0;
        request->insist = true;
        request->death |= peer && client_peer_is_down(core, peer); /* not of one that the plan has let go */
    }
    uint64_t home = core->plan.primary[request->plan_slot];
    if (request->avoid == 0) {
        struct client_peer *peer = client_peer_find(core, home);
        if (peer && !client_peer_is_down(core, peer))
            return peer;
    }
    return client_request_behind(core, request, request->avoid);
}

struct client_peer *client_request_choose(struct client_core *core, struct client_request *request)
{
    struct client_peer *peer = target(core, request);
    return peer && peer->state == CLIENT_PEER_UP && client_peer_has_room(peer) ? peer : NULL;
}

/* ---- out ---- */

void client_request_ask(struct client_core *core, const struct client_slot *slot,
                        const struct client_request *request, struct client_peer *peer,
                        struct client_action *action)
{
    uint64_t index = (uint64_t)(request - core->parts);
    client_peer_load(core, peer);
    core->stats.requests++;
    *action = (struct client_action){
        .kind = CLIENT_ACTION_GET,
        .worker = peer->id,
        .request = core->serial++ * all_parts(core) + index + 1,
        .plan = core->plan.version,
        .epoch = core->options.uses_epoch ? slot->begin.epoch : 0,
        .block = request->block,
        .from = request->from,
        .to = request->to,
        .mark = core->mark,
    };
}

void client_request_send(struct client_core *core, struct client_slot *slot, struct client_request *request,
                         struct client_peer *peer, struct client_action *action)
{
    bool home = core->plan.primary[request->plan_slot] == peer->id;
    go(request, CLIENT_REQUEST_SENT);
    client_request_ask(core, slot, request, peer, action);
    request->number = action->request;
    request->worker = peer->id;
    request->sent_ns = core->now_ns;
    request->avoid = 0;
    request->making = false;
    request->queue = 0;
    slot->unsent--;
    slot->told_error = false; /* it may be well now; if not, that is news again */
    if (slot->state == CLIENT_SLOT_WANTED)
        slot->state = CLIENT_SLOT_FILLING;
    if (!home && !request->insist) /* the home is down for us */
        request->insist = request->death = true;
    action->insist = request->insist;
    action->death = request->death;
    client_hedge_note_sent(core, peer);
}

/* ---- back ---- */

static void unload(struct client_core *core, struct client_request *request)
{
    if (client_request_in_flight(request))
        client_peer_unload(core, request->worker);
    request->number = 0;
}

/* Whatever it says. */
static void answered(struct client_core *core, const struct client_request *request)
{
    if (request->state == CLIENT_REQUEST_SENT)
        client_peer_note_answer(core, request->worker, request->sent_ns);
}

void client_request_wait(struct client_core *core, struct client_request *request, bool making,
                         uint32_t queue)
{
    answered(core, request);
    if (!go(request, CLIENT_REQUEST_WAITING))
        return;
    request->making = making;
    request->queue = queue;
}

bool client_request_receive(struct client_core *core, struct client_request *request, uint64_t number)
{
    if (request->hedge.number == number)
        client_hedge_win(core, request);
    else
        client_hedge_lose(core, request);
    answered(core, request);
    return go(request, CLIENT_REQUEST_RECEIVING);
}

static void available(struct client_slot *slot, struct client_request *request)
{
    if (request->unavailable_since_ns != 0)
        slot->retrying--;
    request->unavailable_since_ns = 0;
}

void client_request_done(struct client_core *core, struct client_slot *slot, struct client_request *request)
{
    if (!go(request, CLIENT_REQUEST_DONE))
        return;
    struct client_peer *peer = client_peer_find(core, request->worker);
    if (peer)
        client_peer_praise(core, peer);
    unload(core, request);
    available(slot, request);
    slot->undone--;
}

/* Out of flight, to be sent again. */
static bool back(struct client_core *core, struct client_slot *slot, struct client_request *request,
                 enum client_request_state state)
{
    if (state != CLIENT_REQUEST_LOST)
        answered(core, request);
    if (!go(request, state))
        return false;
    unload(core, request);
    slot->unsent++;
    return true;
}

/* It is out of flight; asked elsewhere already, that is the request from now on. */
static void promote_hedge(struct client_core *core, struct client_slot *slot, struct client_request *request)
{
    if (request->hedge.number == 0)
        return;
    go(request, CLIENT_REQUEST_SENT);
    client_hedge_take(core, request);
    slot->unsent--;
}

void client_request_moved(struct client_core *core, struct client_slot *slot, struct client_request *request,
                          uint64_t home)
{
    const struct client_peer *named = client_peer_find(core, home);
    if (request->insist) { /* INSIST is never answered MOVED: have somebody else try */
        struct base_error cause;
        base_error_set(&cause, BASE_UNAVAILABLE, "worker %llu says MOVED to INSIST",
                       (unsigned long long)request->worker);
        request->retries = RETRIES_AT_ONE_WORKER;
        client_request_retry(core, slot, request, 100 * BASE_NS_PER_MS, &cause);
        return;
    }
    if (!back(core, slot, request, CLIENT_REQUEST_MOVED))
        return;
    core->stats.moved++;
    request->insist = true;
    request->retries = 0;
    request->fixed = named && !named->leaving ? home : request->worker; /* any worker answers INSIST */
    promote_hedge(core, slot, request);
}

void client_request_retry(struct client_core *core, struct client_slot *slot, struct client_request *request,
                          int64_t after_ns, const struct base_error *cause)
{
    int64_t most_ns = core->options.unavailable_ns / 4; /* others must have had their turn by then */
    if (!back(core, slot, request, CLIENT_REQUEST_RETRY))
        return;
    core->stats.retries++;
    slot->cause = *cause;
    if (request->unavailable_since_ns == 0) {
        request->unavailable_since_ns = core->now_ns;
        slot->retrying++;
    }
    after_ns = after_ns > most_ns ? most_ns : after_ns;
    request->due_ns = core->now_ns + (after_ns < RETRY_LEAST_NS ? RETRY_LEAST_NS : after_ns);
    if (++request->retries < RETRIES_AT_ONE_WORKER) {
        request->fixed = request->insist ? request->worker : 0;
    } else {
        request->retries = 0;
        request->fixed = 0;
        request->avoid = request->worker;
        request->insist = true;
    }
    client_hedge_note_throttle(core);
    promote_hedge(core, slot, request);
}

void client_request_lost(struct client_core *core, struct client_slot *slot, struct client_request *request)
{
    if (!back(core, slot, request, CLIENT_REQUEST_LOST))
        return;
    core->stats.failovers++;
    request->retries = 0;
    request->fixed = 0;
    request->avoid = request->worker;
    request->insist = request->death = true;
    promote_hedge(core, slot, request);
}

void client_request_drop(struct client_core *core, struct client_slot *slot, struct client_request *request)
{
    bool sendable = !client_request_in_flight(request);
    if (!go(request, CLIENT_REQUEST_DROPPED))
        return;
    client_hedge_lose(core, request);
    unload(core, request);
    slot->unsent -= sendable;
}

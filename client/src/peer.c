/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/core_state.h"

#include "base/clock.h"
#include "base/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_FIRST_NS (100 * BASE_NS_PER_MS)
#define PAUSE_MOST_NS (2 * BASE_NS_PER_S)
#define MARK_NS BASE_NS_PER_S
#define DOUBLINGS_MOST 3               /* of the patience with one that was excused */
#define DIAL_DOUBLINGS_MOST 2          /* of twice stall_ns: as much */
#define PROVED_NS (20 * BASE_NS_PER_S) /* well for so long: no more patience than with any other */
#define OWED_CAPS                                                                                            \
    4 /* of what was cancelled at a worker that lives: it drops us at 64 (WORKER_CANCELLED_MAX) */
#define TOGETHER 4 /* times stall_ns, when all are silent */

/* ---- who there is ---- */

static int place_of(const struct client_core *core, uint64_t id)
{
    int low = 0, high = core->peer_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (core->peers[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct client_peer *client_peer_find(struct client_core *core, uint64_t id)
{
    int at = place_of(core, id);
    return at < core->peer_count && core->peers[at].id == id ? &core->peers[at] : NULL;
}

static enum base_code add(struct client_core *core, uint64_t id, struct base_error *error)
{
    int at = place_of(core, id);
    if (!base_grow(&core->peers, (size_t)core->peer_count, sizeof *core->peers))
        return base_error_set(error, BASE_NO_MEMORY, "no memory for %d workers", core->peer_count + 1);
    memmove(core->peers + at + 1, core->peers + at, (size_t)(core->peer_count - at) * sizeof *core->peers);
    core->peers[at] = (struct client_peer){.id = id, .since_ns = core->now_ns, .pause_ns = PAUSE_FIRST_NS};
    core->peer_count++;
    return BASE_OK;
}

enum base_code client_peer_update(struct client_core *core, const uint64_t *workers, int count,
                                  struct base_error *error)
{
    for (int i = 0; i < core->peer_count; i++)
        core->peers[i].leaving = true;
    for (int i = 0; i < count; i++) {
        struct client_peer *peer = client_peer_find(core, workers[i]);
        if (peer)
            peer->leaving = false;
        else if (workers[i] != SCHEDULER_PLAN_NOBODY && add(core, workers[i], error) != BASE_OK)
            return BASE_NO_MEMORY;
    }
    return BASE_OK;
}

void client_peer_sweep(struct client_core *core)
{
    int kept = 0;
    for (int i = 0; i < core->peer_count; i++) {
        const struct client_peer *peer = &core->peers[i];
        bool gone = peer->leaving && !peer->want_close &&
                    (peer->state == CLIENT_PEER_DOWN || peer->state == CLIENT_PEER_NEW);
        if (!gone)
            core->peers[kept++] = *peer;
    }
    core->peer_count = kept;
}

/* ---- up and down ---- */

/* For an answer. */
static int64_t patience_ns(const struct client_core *core, const struct client_peer *peer)
{
    return core->options.stall_ns << peer->excused;
}

/* For a connection to stand and be opened. Nobody waits for one that was lost, so that more costs nothing. */
static int64_t dial_patience_ns(const struct client_core *core, const struct client_peer *peer)
{
    int doublings = peer->excused > peer->vain_dials ? peer->excused : peer->vain_dials;
    return 2 * core->options.stall_ns << (doublings < DIAL_DOUBLINGS_MOST ? doublings : DIAL_DOUBLINGS_MOST);
}

bool client_peer_is_down(const struct client_core *core, const struct client_peer *peer)
{
    if (peer->state == CLIENT_PEER_UP)
        return false;
    return peer->troubled || peer->state == CLIENT_PEER_DOWN ||
           core->now_ns - peer->since_ns >= dial_patience_ns(core, peer);
}

static void lose_request(struct client_core *core, struct client_slot *slot, struct client_request *request,
                         uint64_t worker)
{
    if (request->hedge.number != 0 && request->hedge.worker == worker)
        client_hedge_end(core, request);
    else if (client_request_in_flight(request) && request->worker == worker)
        client_request_lost(core, slot, request);
}

static void lose_requests(struct client_core *core, struct client_peer *peer)
{
    for (uint32_t i = 0; i < core->slot_count && peer->in_flight > 0; i++) { /* abandoned ones, too */
        struct client_slot *slot = &core->slots[i];
        for (uint32_t p = 0; p < slot->part_count && peer->in_flight > 0; p++)
            lose_request(core, slot, &slot->parts[p], peer->id);
    }
    peer->in_flight = 0;
    client_hedge_forget(core, peer->id);
}

void client_peer_lose(struct client_core *core, struct client_peer *peer, bool close, const char *why)
{
    if (peer->state == CLIENT_PEER_NEW || peer->state == CLIENT_PEER_DOWN)
        return;
    peer->state = CLIENT_PEER_DOWN;
    peer->troubled = true;
    peer->want_open = false;
    peer->want_close = close;
    peer->cap = peer->owed = 0;
    peer->again_ns = core->now_ns + peer->pause_ns;
    peer->pause_ns = 2 * peer->pause_ns > PAUSE_MOST_NS ? PAUSE_MOST_NS : 2 * peer->pause_ns;
    snprintf(peer->why, sizeof peer->why, "%s", why ? why : "connection lost");
    lose_requests(core, peer);
}

void client_peer_praise(const struct client_core *core, struct client_peer *peer)
{
    peer->pause_ns = PAUSE_FIRST_NS;
    if (core->now_ns - peer->well_since_ns >= PROVED_NS)
        peer->excused = 0;
}

void client_peer_forgive(const struct client_core *core, struct client_peer *peer, int64_t late_ns)
{
    int64_t limit_ns = patience_ns(core, peer);
    int64_t moment_ns = base_clock_earlier(late_ns, core->options.stall_ns / 2);
    int64_t heard_ns =
        base_clock_earlier(peer->heard_ns + late_ns, core->now_ns); /* our sleep is not its silence */
    peer->heard_ns = base_clock_later(heard_ns, core->now_ns - limit_ns + moment_ns);
}

/* Silence counts while something is asked: it goes on with what is asked in place of what was cancelled, or a dead worker
 * would live on seeks. One that was slower than another has a moment only: else it could be asked and outrun for ever. */
void client_peer_load(struct client_core *core, struct client_peer *peer)
{
    int64_t moment_ns = base_clock_earlier(client_hedge_patience_ns(peer), core->options.stall_ns)
                        << peer->excused;
    int64_t silent_ns = peer->doubted ? patience_ns(core, peer) - moment_ns : peer->idle_ns - peer->heard_ns;
    if (peer->in_flight++ == 0)
        peer->heard_ns = base_clock_later(peer->heard_ns, core->now_ns - base_clock_later(silent_ns, 0));
}

void client_peer_unload(struct client_core *core, uint64_t worker)
{
    struct client_peer *peer = client_peer_find(core, worker);
    if (!peer || peer->in_flight == 0)
        return;
    if (--peer->in_flight == 0)
        peer->idle_ns = core->now_ns;
}

bool client_peer_has_room(const struct client_peer *peer)
{
    uint64_t most = (uint64_t)peer->cap * (peer->doubted ? 1 : 1 + OWED_CAPS);
    return peer->in_flight < peer->cap && peer->in_flight + peer->owed < most;
}

void client_peer_note_cancelled(struct client_core *core, uint64_t worker)
{
    struct client_peer *peer = client_peer_find(core, worker);
    if (peer && peer->owed++ == 0)
        peer->owed_ns = core->now_ns;
}

void client_peer_note_stray(struct client_core *core, uint64_t worker)
{
    struct client_peer *peer = client_peer_find(core, worker);
    if (peer && peer->owed > 0) {
        peer->owed--;
        peer->owed_ns = core->now_ns;
        core->dirty = true;
    }
}

void client_peer_note_answer(struct client_core *core, uint64_t worker, int64_t sent_ns)
{
    struct client_peer *peer = client_peer_find(core, worker);
    int64_t answer_ns = core->now_ns - sent_ns;
    if (peer)
        peer->answer_ns =
            peer->answer_ns != 0 ? peer->answer_ns + (answer_ns - peer->answer_ns) / 8 : answer_ns;
}

static bool dialled(const struct client_peer *peer)
{
    return peer->state == CLIENT_PEER_CONNECTING || peer->state == CLIENT_PEER_OPENING;
}

/* Nobody who could be asked has spoken for a while, though a worker that lives speaks each 250 ms: it is likely that this
 * machine, or the way to all of them, stood still. One alone may well be dead. */
static bool all_are_silent(const struct client_core *core)
{
    int silent = 0;
    for (int i = 0; i < core->peer_count; i++) {
        const struct client_peer *peer = &core->peers[i];
        if (peer->state != CLIENT_PEER_UP)
            continue;
        if (peer->in_flight == 0 || core->now_ns - peer->heard_ns < core->options.stall_ns / 2)
            return false;
        silent++;
    }
    return silent > 1;
}

/* When one that is UP and owes something is to be lost, as things are now. */
static int64_t judged_ns(const struct client_core *core, const struct client_peer *peer)
{
    int64_t due_ns = peer->heard_ns + patience_ns(core, peer);
    if (core->now_ns < due_ns || !all_are_silent(core))
        return due_ns;
    return base_clock_later(due_ns, peer->heard_ns + TOGETHER * core->options.stall_ns);
}

static void judge(struct client_core *core, struct client_peer *peer, const char *what)
{
    char why[CLIENT_PEER_WHY_CHARS];
    snprintf(why, sizeof why, "%s %lld ms", what,
             (long long)((core->now_ns - peer->heard_ns) / BASE_NS_PER_MS));
    client_peer_lose(core, peer, true, why);
    peer->judged = true;
}

void client_peer_tick(struct client_core *core, struct client_peer *peer)
{
    if (core->now_ns - peer->owed_ns >= core->options.stall_ns)
        peer->owed = 0;
    if (peer->state == CLIENT_PEER_UP && peer->in_flight > 0 && core->now_ns >= judged_ns(core, peer))
        judge(core, peer, "silent for");
    if (dialled(peer) && core->now_ns - peer->heard_ns >= dial_patience_ns(core, peer)) {
        judge(core, peer, "no connection after");
        peer->vain_dials += peer->vain_dials < DIAL_DOUBLINGS_MOST;
    }
    if (peer->leaving && peer->in_flight == 0 && (peer->state == CLIENT_PEER_UP || dialled(peer)))
        client_peer_lose(core, peer, true, "left the plan");
}

/* ---- what it wants done ---- */

static void dial(struct client_core *core, struct client_peer *peer, struct client_action *action)
{
    if (peer->state == CLIENT_PEER_DOWN)
        core->stats.reconnects++;
    else
        peer->since_ns = core->now_ns;
    peer->state = CLIENT_PEER_CONNECTING;
    peer->heard_ns = core->now_ns;
    action->kind = CLIENT_ACTION_CONNECT;
}

bool client_peer_act(struct client_core *core, struct client_peer *peer, struct client_action *action)
{
    *action = (struct client_action){.worker = peer->id};
    if (peer->want_close) {
        peer->want_close = false;
        action->kind = CLIENT_ACTION_CLOSE;
        return true;
    }
    if (peer->leaving)
        return false;
    if (peer->state == CLIENT_PEER_NEW ||
        (peer->state == CLIENT_PEER_DOWN && core->now_ns >= peer->again_ns)) {
        dial(core, peer, action);
        return true;
    }
    if (peer->state == CLIENT_PEER_OPENING && peer->want_open && core->now_ns >= peer->again_ns) {
        peer->want_open = false;
        action->kind = CLIENT_ACTION_OPEN;
        return true;
    }
    if (peer->state == CLIENT_PEER_UP && core->now_ns - peer->marked_ns >= MARK_NS) {
        peer->marked_ns = core->now_ns;
        action->kind = CLIENT_ACTION_MARK;
        action->mark = core->mark;
        return true;
    }
    return false;
}

int64_t client_peer_wake_ns(const struct client_core *core, const struct client_peer *peer)
{
    int64_t wake_ns = INT64_MAX;
    switch (peer->state) {
    case CLIENT_PEER_NEW:
        break;
    case CLIENT_PEER_DOWN:
        wake_ns = peer->leaving ? INT64_MAX : peer->again_ns;
        break;
    case CLIENT_PEER_CONNECTING:
    case CLIENT_PEER_OPENING:
        wake_ns = peer->heard_ns + dial_patience_ns(core, peer);
        if (peer->want_open)
            wake_ns = base_clock_earlier(wake_ns, peer->again_ns);
        if (!client_peer_is_down(core, peer)) /* those who wait for it go elsewhere then */
            wake_ns = base_clock_earlier(wake_ns, peer->since_ns + dial_patience_ns(core, peer));
        break;
    case CLIENT_PEER_UP:
        wake_ns = peer->leaving ? INT64_MAX : peer->marked_ns + MARK_NS;
        if (peer->in_flight > 0)
            wake_ns = base_clock_earlier(wake_ns, judged_ns(core, peer));
        if (peer->owed > 0)
            wake_ns = base_clock_earlier(wake_ns, peer->owed_ns + core->options.stall_ns);
        break;
    }
    return wake_ns;
}

/* ---- events ---- */

/* It was lost by our judgement alone, and is there: that was wrong. */
static void excuse(const struct client_core *core, struct client_peer *peer)
{
    peer->excused += peer->judged && peer->excused < DOUBLINGS_MOST;
    peer->judged = false;
    peer->vain_dials = 0;
    peer->well_since_ns = core->now_ns;
}

void client_core_connected(struct client_core *core, int64_t now_ns, uint64_t worker)
{
    struct client_peer *peer = client_peer_find(core, worker);
    core->now_ns = now_ns;
    if (!peer || peer->state != CLIENT_PEER_CONNECTING)
        return;
    peer->state = CLIENT_PEER_OPENING;
    peer->want_open = true;
    peer->again_ns = peer->heard_ns = now_ns;
    core->dirty = true;
}

void client_core_opened(struct client_core *core, int64_t now_ns, uint64_t worker, uint32_t requests_max)
{
    struct client_peer *peer = client_peer_find(core, worker);
    core->now_ns = now_ns;
    if (!peer || peer->state != CLIENT_PEER_OPENING)
        return;
    peer->state = CLIENT_PEER_UP;
    peer->troubled = peer->doubted = false;
    excuse(core, peer);
    peer->cap = requests_max > 0 ? requests_max : 1;
    peer->heard_ns = now_ns;
    peer->idle_ns = now_ns;
    peer->marked_ns = now_ns - MARK_NS; /* it hears at once how far we are */
    core->dirty = true;
}

void client_core_not_opened(struct client_core *core, int64_t now_ns, uint64_t worker, uint32_t after_ms)
{
    struct client_peer *peer = client_peer_find(core, worker);
    core->now_ns = now_ns;
    if (!peer || peer->state != CLIENT_PEER_OPENING)
        return;
    peer->want_open = true;
    peer->heard_ns = now_ns;
    peer->again_ns = now_ns + (after_ms > 0 ? after_ms : 1) * BASE_NS_PER_MS;
    core->dirty = true;
}

void client_core_lost(struct client_core *core, int64_t now_ns, uint64_t worker, const char *why)
{
    struct client_peer *peer = client_peer_find(core, worker);
    core->now_ns = now_ns;
    if (!peer)
        return;
    if (peer->state == CLIENT_PEER_CONNECTING) /* nobody there: it had died */
        peer->judged = false;
    client_peer_lose(core, peer, false, why);
    core->dirty = true;
}

void client_core_heard(struct client_core *core, int64_t now_ns, uint64_t worker, uint32_t plan_version)
{
    struct client_peer *peer = client_peer_find(core, worker);
    core->now_ns = now_ns;
    if (peer && (peer->state == CLIENT_PEER_UP || dialled(peer))) {
        if (peer->in_flight > 0 && now_ns - peer->heard_ns >= core->options.stall_ns)
            peer->well_since_ns = now_ns; /* it needed our patience */
        peer->heard_ns = now_ns;
        peer->doubted = false;
    }
    if (plan_version > core->plan_seen) {
        core->plan_seen = plan_version;
        core->dirty = true;
    }
}

void client_core_stray(struct client_core *core, int64_t now_ns, uint64_t worker)
{
    struct client_peer *peer = client_peer_find(core, worker);
    core->now_ns = now_ns;
    if (peer)
        peer->owed_ns = now_ns;
}

void client_core_load(const struct client_core *core, uint64_t worker, uint32_t *in_flight, uint32_t *most)
{
    int at = place_of(core, worker);
    bool known = at < core->peer_count && core->peers[at].id == worker;
    *in_flight = known ? core->peers[at].in_flight : 0;
    *most = known ? core->peers[at].cap : 0;
}

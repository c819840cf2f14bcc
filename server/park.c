/* SPDX-License-Identifier: Apache-2.0 */
#include "server/park.h"

#include "base/clock.h"

#include <stdlib.h>

struct parked {
    struct parked *next;
    const struct server_park_kind *kind;
    struct rpc_call *call;
    const ProtobufCMessage *request;
    int64_t deadline_ns;
    bool asked; /* whether it is ready, since the revision last changed */
};

struct server_park {
    void *context;
    struct parked *first;
    size_t count;
    uint64_t revision;
};

enum base_code server_park_create(struct server_park **out, void *context, struct base_error *error)
{
    struct server_park *park = calloc(1, sizeof *park);
    if (!park)
        return base_error_set(error, BASE_NO_MEMORY, "long polls: no memory");
    park->context = context;
    *out = park;
    return BASE_OK;
}

void server_park_destroy(struct server_park *park)
{
    if (!park)
        return;
    while (park->first) {
        struct parked *gone = park->first;
        park->first = gone->next;
        rpc_fail(gone->call, BASE_UNAVAILABLE, "the server is stopping");
        free(gone);
    }
    free(park);
}

void server_park_add(struct server_park *park, int64_t now_ns, uint32_t wait_ms,
                     const struct server_park_kind *kind, struct rpc_call *call,
                     const ProtobufCMessage *request)
{
    if (wait_ms > SERVER_PARK_WAIT_MAX_MS)
        wait_ms = SERVER_PARK_WAIT_MAX_MS;
    struct parked *parked = park->count < SERVER_PARK_MAX ? malloc(sizeof *parked) : NULL;
    if (!parked) {
        rpc_fail(call, BASE_BUSY, "the server keeps as many waiting calls as it can (%d)", SERVER_PARK_MAX);
        return;
    }
    *parked = (struct parked){park->first, kind, call, request, now_ns + wait_ms * BASE_NS_PER_MS, false};
    park->first = parked;
    park->count++;
}

static bool is_due(const struct server_park *park, struct parked *parked, int64_t now_ns)
{
    if (!parked->kind->ready || parked->deadline_ns <= now_ns || rpc_call_cancelled(parked->call))
        return true;
    if (parked->asked)
        return false;
    parked->asked = true;
    return parked->kind->ready(park->context, parked->request);
}

int64_t server_park_poll(struct server_park *park, int64_t now_ns, uint64_t revision)
{
    struct parked **at = &park->first;
    int64_t wake_ns = INT64_MAX;
    bool changed = revision != park->revision;
    park->revision = revision;
    while (*at) {
        struct parked *parked = *at;
        parked->asked = parked->asked && !changed;
        if (!is_due(park, parked, now_ns)) {
            wake_ns = parked->deadline_ns < wake_ns ? parked->deadline_ns : wake_ns;
            at = &parked->next;
            continue;
        }
        *at = parked->next;
        park->count--;
        parked->kind->answer(park->context, parked->call, parked->request);
        free(parked);
    }
    return wake_ns;
}

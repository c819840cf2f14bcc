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
};

struct server_park {
    void *context;
    struct parked *first;
    size_t count;
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
    struct parked *parked = NULL;
    if (wait_ms && park->count < SERVER_PARK_MAX && !kind->ready(park->context, request))
        parked = malloc(sizeof *parked);
    if (!parked) {
        kind->answer(park->context, call, request);
        return;
    }
    *parked = (struct parked){park->first, kind, call, request, now_ns + wait_ms * BASE_NS_PER_MS};
    park->first = parked;
    park->count++;
}

void server_park_poll(struct server_park *park, int64_t now_ns)
{
    struct parked **at = &park->first;
    while (*at) {
        struct parked *parked = *at;
        if (parked->deadline_ns > now_ns && !rpc_call_cancelled(parked->call) &&
            !parked->kind->ready(park->context, parked->request)) {
            at = &parked->next;
            continue;
        }
        *at = parked->next;
        park->count--;
        parked->kind->answer(park->context, parked->call, parked->request);
        free(parked);
    }
}

int64_t server_park_wake_ns(const struct server_park *park)
{
    int64_t wake_ns = INT64_MAX;
    for (const struct parked *parked = park->first; parked; parked = parked->next) {
        if (parked->deadline_ns < wake_ns)
            wake_ns = parked->deadline_ns;
    }
    return wake_ns;
}

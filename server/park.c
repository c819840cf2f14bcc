/* SPDX-License-Identifier: Apache-2.0 */
#include "server/park.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHAINS = 8192,
    SWEPT = 64
}; /* SWEPT: calls of one poll that are looked at for a caller that has gone */

struct parked {
    struct base_heap_node node;  /* first; by deadline */
    struct parked *next, **link; /* in its key's chain */
    struct parked *next_asked;   /* to be looked at */
    struct server_park_call call;
    bool asked;
};

struct server_park {
    void *context;
    struct parked *chains[CHAINS], *asked;
    struct base_heap all;
    int swept; /* where the sweep goes on */
};

uint64_t server_park_worker_key(uint64_t worker)
{
    return worker; /* never 0 */
}

uint64_t server_park_job_key(const char *job)
{
    return base_hash_xxh3(job, strlen(job)) | 1; /* one that meets another key is looked at for nothing */
}

enum base_code server_park_create(struct server_park **out, void *context, struct base_error *error)
{
    struct server_park *park = calloc(1, sizeof *park);
    if (!park)
        return base_error_set(error, BASE_NO_MEMORY, "long polls: no memory");
    park->context = context;
    *out = park;
    return BASE_OK;
}

static struct parked *first_of(const struct server_park *park)
{
    return (struct parked *)base_heap_first(&park->all);
}

static void take_out(struct server_park *park, struct parked *parked)
{
    *parked->link = parked->next;
    if (parked->next)
        parked->next->link = parked->link;
    base_heap_remove(&park->all, &parked->node);
}

void server_park_destroy(struct server_park *park)
{
    if (!park)
        return;
    for (struct parked *gone; (gone = first_of(park));) {
        take_out(park, gone);
        rpc_fail(gone->call.call, BASE_UNAVAILABLE, "the server is stopping");
        free(gone);
    }
    base_heap_fini(&park->all);
    free(park);
}

static void ask(struct server_park *park, struct parked *parked)
{
    if (parked->asked)
        return;
    parked->asked = true;
    parked->next_asked = park->asked;
    park->asked = parked;
}

static struct parked **chain_of(struct server_park *park, uint64_t key)
{
    return &park->chains[(key * UINT64_C(0x9E3779B97F4A7C15) >> 32) % CHAINS];
}

void server_park_add(struct server_park *park, int64_t now_ns, uint32_t wait_ms,
                     const struct server_park_call *call)
{
    if (wait_ms > SERVER_PARK_WAIT_MAX_MS)
        wait_ms = SERVER_PARK_WAIT_MAX_MS;
    if (park->all.count >= SERVER_PARK_MAX) {
        rpc_fail(call->call, BASE_BUSY, "the server keeps as many waiting calls as it can (%d)",
                 SERVER_PARK_MAX);
        return;
    }
    bool room = base_heap_reserve(&park->all, park->all.count + 1);
    struct parked *parked = room ? malloc(sizeof *parked) : NULL;
    if (!parked) {
        rpc_fail(call->call, BASE_NO_MEMORY, "the server has no memory to keep a call");
        return;
    }
    struct parked **chain = chain_of(park, call->key);
    *parked = (struct parked){.next = *chain, .link = chain, .call = *call};
    if (parked->next)
        parked->next->link = &parked->next;
    *chain = parked;
    base_heap_set(&park->all, &parked->node, now_ns + wait_ms * BASE_NS_PER_MS);
    ask(park, parked);
}

void server_park_wake(struct server_park *park, uint64_t key)
{
    for (struct parked *parked = *chain_of(park, key); parked; parked = parked->next)
        if (parked->call.key == key)
            ask(park, parked);
}

void server_park_wake_all(struct server_park *park)
{
    for (int i = 0; i < park->all.count; i++)
        ask(park, (struct parked *)park->all.nodes[i]);
}

static void ask_gone(struct server_park *park)
{
    for (int i = 0; i < SWEPT && i < park->all.count; i++) {
        park->swept = park->swept + 1 < park->all.count ? park->swept + 1 : 0;
        struct parked *parked = (struct parked *)park->all.nodes[park->swept];
        if (rpc_call_cancelled(parked->call.call))
            ask(park, parked);
    }
}

static void ask_late(struct server_park *park, int64_t now_ns)
{
    for (struct parked *parked; (parked = first_of(park)) && parked->node.key <= now_ns;) {
        ask(park, parked);
        base_heap_set(&park->all, &parked->node, INT64_MAX); /* answered below */
    }
}

int64_t server_park_poll(struct server_park *park, int64_t now_ns)
{
    ask_gone(park);
    ask_late(park, now_ns);
    while (park->asked) {
        struct parked *parked = park->asked;
        park->asked = parked->next_asked;
        parked->asked = false;
        if (parked->call.kind->ready && parked->node.key != INT64_MAX &&
            !rpc_call_cancelled(parked->call.call) &&
            !parked->call.kind->ready(park->context, parked->call.request))
            continue;
        take_out(park, parked);
        parked->call.kind->answer(park->context, parked->call.call, parked->call.request);
        free(parked);
    }
    return first_of(park) ? first_of(park)->node.key : INT64_MAX;
}

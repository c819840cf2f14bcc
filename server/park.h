/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that wait: long polls until something changed or their time is up, all others until what they did is stored. Loop thread
 * only. Bounded: over the limit a call fails with BUSY.
 */
#ifndef SERVER_PARK_H
#define SERVER_PARK_H

#include "proto/rpc/rpc.h"

#define SERVER_PARK_MAX 20000
#define SERVER_PARK_WAIT_MAX_MS 60000

struct server_park;

/* What a waiting call waits for (NULL: for nothing more), and what it then gets. answer must answer the call. */
struct server_park_kind {
    bool (*ready)(void *context, const ProtobufCMessage *request);
    void (*answer)(void *context, struct rpc_call *call, const ProtobufCMessage *request);
};

enum base_code server_park_create(struct server_park **park, void *context, struct base_error *error);
/* Calls still waiting are failed with UNAVAILABLE. */
void server_park_destroy(struct server_park *park);

/* Keeps the call, for the next poll at least; wait_ms is capped. */
void server_park_add(struct server_park *park, int64_t now_ns, uint32_t wait_ms,
                     const struct server_park_kind *kind, struct rpc_call *call,
                     const ProtobufCMessage *request);
/* Answers all that are ready, over time, or whose caller has gone. `revision` is that of all that calls wait for: while it
 * stays, nobody is asked again. Returns when poll has something to do although nothing changed; INT64_MAX: never. */
int64_t server_park_poll(struct server_park *park, int64_t now_ns, uint64_t revision);

#endif

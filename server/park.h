/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that wait: long polls until something changed or their time is up, all others until what they did is stored. Loop thread
 * only. Bounded: over the limit a call fails with BUSY. A call waits for a key, and is looked at when that is woken: ten thousand
 * that wait cost nothing meanwhile.
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

uint64_t server_park_worker_key(uint64_t worker);
uint64_t server_park_job_key(const char *job);
#define SERVER_PARK_ANY_KEY UINT64_C(0) /* woken with all */

enum base_code server_park_create(struct server_park **park, void *context, struct base_error *error);
/* Calls still waiting are failed with UNAVAILABLE. */
void server_park_destroy(struct server_park *park);

struct server_park_call {
    const struct server_park_kind *kind;
    uint64_t key;
    struct rpc_call *call;
    const ProtobufCMessage *request;
};
/* Keeps the call, for the next poll at least; wait_ms is capped. */
void server_park_add(struct server_park *park, int64_t now_ns, uint32_t wait_ms,
                     const struct server_park_call *call);
/* The next poll looks at the calls that wait for `key`, or at all. */
void server_park_wake(struct server_park *park, uint64_t key);
void server_park_wake_all(struct server_park *park);
/* Answers those of the new and woken calls that are ready, all that are over time, and in turn those whose caller has gone. Returns when
 * it has something to do although nothing is woken; INT64_MAX: never. */
int64_t server_park_poll(struct server_park *park, int64_t now_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the server wants, whole: it tells of live streams only what has changed, and the rest is kept here from before. Loop thread only.
 */
#ifndef WORKER_ORDERS_H
#define WORKER_ORDERS_H

#include "proto/schema/millrace.pb-c.h"

#include <stdbool.h>

enum { WORKER_ORDERS_WANTED = 64 }; /* of one sync: the others are asked for in later ones */

struct worker_orders {                                /* zeroed: nothing was ordered yet */
    Millrace__V1__WorkerOrders *whole;                /* owned; NULL: nothing yet */
    ProtobufCBinaryData wanted[WORKER_ORDERS_WANTED]; /* hashes of streams that it lacks, in `hashes` */
    uint8_t hashes[WORKER_ORDERS_WANTED][32];
    size_t wanted_count;
};

void worker_orders_fini(struct worker_orders *orders);

enum worker_orders_taken { WORKER_ORDERS_TAKEN, WORKER_ORDERS_OLD, WORKER_ORDERS_NO_MEMORY };
/* OLD: they have lost a race with those that we have; NO_MEMORY: to be told again; nothing changes. */
enum worker_orders_taken worker_orders_take(struct worker_orders *orders,
                                            const Millrace__V1__WorkerOrders *reply);

#endif

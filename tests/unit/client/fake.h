/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server and workers for the client library to meet over loopback, in this process. The server knows one stream and says
 * "running" at once. Workers make rows by fake_value and misbehave as told; each connection has a thread that blocks.
 */
#ifndef TESTS_UNIT_CLIENT_FAKE_H
#define TESTS_UNIT_CLIENT_FAKE_H

#include "base/error.h"
#include "scheduler/order.h"
#include "scheduler/stream.h"

#include <stdatomic.h>

#define FAKE_WORKERS 4
#define FAKE_DATASET "photos"

enum fake_manner {
    FAKE_GOOD,
    FAKE_RESET_MID_PART, /* half a DATA frame, then a reset */
    FAKE_SILENT,         /* reads, answers nothing */
    FAKE_GARBAGE,        /* bytes that are no frame instead of DATA */
    FAKE_WRONG_HASH,     /* one byte of a row changed */
    FAKE_WRONG_ITEM,     /* a row says that it is of another item, and nothing else is wrong with it */
    FAKE_WRONG_PART,     /* DATA of another block under the number asked */
    FAKE_RETRY,          /* unavailable, always */
    FAKE_SLOW,           /* DATA drop by drop, over SLOW_MS */
    FAKE_FAIL_OK,        /* FAIL of a request with the code of success */
    FAKE_REFUSE,         /* FAIL of the connection after HELLO */
    FAKE_MUTE,           /* accepts, and not even HELLO */
    FAKE_MUTE_OPEN,      /* HELLO, and then nothing */
    FAKE_HALF_HEADER,    /* half a header, and then nothing */
    FAKE_HALF_PART,      /* half a DATA frame, and then nothing */
};

enum fake_server_manner {
    FAKE_SERVER_GOOD,
    FAKE_SERVER_WAITING, /* jobs are never running */
    FAKE_SERVER_HUNG,    /* takes calls, answers none */
};

struct fake; /* the cluster */

struct fake_options {
    int workers;
    uint64_t items;
    const char *pipeline; /* all sections */
    const char *option;   /* KEY=VALUE, or NULL */
    const char *manifest; /* file that pages come from, or NULL */
    uint8_t bad_status;   /* of position `bad_position` */
    uint64_t bad_position;
    const char *host; /* how workers are named in the plan; NULL: 127.0.0.1 */
};

struct fake *fake_start(const struct fake_options *options);
void fake_stop(struct fake *fake);
const char *fake_server(const struct fake *fake);

/* Worker 1 .. n behaves so for `times` answers (then well); -1: for good. */
void fake_set_manner(struct fake *fake, int worker, enum fake_manner manner, int times);
void fake_kill_worker(struct fake *fake, int worker); /* no port any more, connections reset */
void fake_revive_worker(struct fake *fake, int worker);
void fake_set_server(struct fake *fake, enum fake_server_manner manner);
void fake_stop_server(struct fake *fake);
void fake_set_address(struct fake *fake, int worker, const char *address); /* that the plan tells */

const struct scheduler_stream *fake_stream(const struct fake *fake);
struct scheduler_order *fake_order(const struct fake *fake, uint32_t epoch); /* the caller's */
int fake_closes(const struct fake *fake);                                    /* Jobs.Close calls */
uint64_t fake_closed_rows(const struct fake *fake);                          /* that the last of them told */
void fake_forget_jobs(struct fake *fake);            /* the server knows neither job nor dataset any more */
int fake_asks(const struct fake *fake);              /* Jobs.Open and Jobs.Sync calls */
int fake_pages(const struct fake *fake, int worker); /* that a worker was asked for */

/* Byte `index` of field `field` (made index) of the row at (epoch key, position); labels are position % 1000. */
uint8_t fake_value(uint32_t epoch, uint64_t position, int field, uint64_t index);
uint32_t fake_ragged_length(uint32_t epoch, uint64_t position); /* elements of `encoded` */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the worker and the server tell each other: a long poll that goes on for ever, and what its orders set going.
 *
 *   sync    WorkerSync(what we hold, can and did) -> WorkerOrders; while one poll is out, news go by a second, short one
 *   datasets (holdings.c)  manifest in the state folder, else pulled from holders -> files probed -> eligible
 *   index    (indexing.c)  walk a folder, or compare it -> Indexed, until the server has it
 *   streams  (streams.c)   fingerprint of the candidates' pipelines; live streams, plans, jobs -> the machine
 *
 * While the server is away all goes on with what it said last. Loop thread only.
 */
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

#include "proto/rpc/rpc.h"
#include "worker/chore.h"
#include "worker/serve.h"

struct worker_control;

struct worker_control_options {
    struct event_base *loop;
    struct base_mailbox *mailbox;
    struct worker_core *core;
    struct worker_chores *chores;
    const struct source_roots *roots;
    const char *server;    /* address */
    const char *token_key; /* NULL: no token */
    const char *name;      /* for HELLO to holders */
    const char *state_dir; /* manifests/ is made beneath it */
    uint64_t worker, incarnation, staging_bytes;
    uint32_t cores;
};

enum base_code worker_control_create(struct worker_control **control,
                                     const struct worker_control_options *options, struct base_error *error);
/* After chores and serve have stopped. Clears *control. */
void worker_control_destroy(struct worker_control **control);
/* Begins to sync. `serve` and `make` are told what comes, and asked for their metrics; addresses outlive control. */
void worker_control_start(struct worker_control *control, struct worker_serve *serve,
                          struct worker_make *make, const char *const *addresses, int address_count);
void worker_control_stop(struct worker_control *control); /* closes the channel: its calls end */

/* Draining, from our side: the server is told. */
void worker_control_drain(struct worker_control *control);
/* True when an answered sync has told the server of it. */
bool worker_control_drain_told(const struct worker_control *control);

/* Goodbye: one last sync, with which the server forgets this worker; no other follows. */
void worker_control_leave(struct worker_control *control);
bool worker_control_left(const struct worker_control *control); /* it is answered, or cannot be */

/* What serve and make want (hooks). */
const struct worker_serve_hooks *worker_control_serve_hooks(void); /* context: the control */
void worker_control_bad_item(struct worker_control *control, const struct worker_dataset *dataset,
                             uint64_t item, const char *name, const char *cause);

#endif

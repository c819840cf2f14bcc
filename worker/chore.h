/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What takes long and is no block: indexing a folder, pulling a manifest, probing. Work runs on a thread of its own pool, `done`
 * runs on the loop thread, exactly once, and frees the chore.
 */
#ifndef WORKER_CHORE_H
#define WORKER_CHORE_H

#include "base/mailbox.h"
#include "base/pool.h"

#include <stdatomic.h>

struct worker_chores;

struct worker_chore {
    struct base_task task;
    struct base_message message;
    struct worker_chores *chores;
    struct worker_chore *next, **before; /* of those not done */
    void (*work)(struct worker_chore *chore);
    void (*done)(struct worker_chore *chore);
    bool dropped; /* done is told that work has not run: we are ending */
};

enum base_code worker_chores_start(struct worker_chores **chores, struct base_mailbox *mailbox, int threads,
                                   struct base_error *error);
/* Raises cancel, waits for those running, drains the mailbox, drops the rest. Clears *chores. */
void worker_chores_stop(struct worker_chores **chores);
/* True soon before stop: long work polls it. */
const _Atomic bool *worker_chores_cancel(const struct worker_chores *chores);
void worker_chore_begin(struct worker_chores *chores, struct worker_chore *chore);

#endif

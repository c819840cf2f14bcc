/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/chore.h"

#include <stddef.h>
#include <stdlib.h>

struct worker_chores {
    struct base_pool *pool;
    struct base_mailbox *mailbox;
    struct worker_chore *first;
    _Atomic bool cancel;
};

enum base_code worker_chores_start(struct worker_chores **out, struct base_mailbox *mailbox, int threads,
                                   struct base_error *error)
{
    struct worker_chores *chores = calloc(1, sizeof *chores);
    if (!chores)
        return base_error_set(error, BASE_NO_MEMORY, "chores");
    chores->mailbox = mailbox;
    enum base_code code =
        base_pool_start(&chores->pool, &(struct base_pool_options){"chore", threads, false}, error);
    if (code != BASE_OK) {
        free(chores);
        return code;
    }
    *out = chores;
    return BASE_OK;
}

const _Atomic bool *worker_chores_cancel(const struct worker_chores *chores)
{
    return &chores->cancel;
}

static void finish(struct worker_chore *chore)
{
    *chore->before = chore->next;
    if (chore->next)
        chore->next->before = chore->before;
    chore->done(chore);
}

static void run_message(struct base_message *message)
{
    finish((struct worker_chore *)((char *)message - offsetof(struct worker_chore, message)));
}

static void run_task(struct base_task *task, int thread)
{
    (void)thread;
    struct worker_chore *chore = (struct worker_chore *)task;
    chore->work(chore);
    chore->message.run = run_message;
    base_mailbox_post(chore->chores->mailbox, &chore->message);
}

void worker_chore_begin(struct worker_chores *chores, struct worker_chore *chore)
{
    chore->chores = chores;
    chore->next = chores->first;
    chore->before = &chores->first;
    if (chore->next)
        chore->next->before = &chore->next;
    chores->first = chore;
    chore->task.run = run_task;
    base_pool_post(chores->pool, &chore->task, 0);
}

void worker_chores_stop(struct worker_chores **out)
{
    struct worker_chores *chores = *out;
    *out = NULL;
    if (!chores)
        return;
    atomic_store(&chores->cancel, true);
    base_pool_stop(&chores->pool);
    base_mailbox_drain(chores->mailbox);
    while (chores->first) {
        chores->first->dropped = true;
        finish(chores->first);
    }
    free(chores);
}

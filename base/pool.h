/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed set of threads that run tasks in the order of their key (lowest first; equal keys in order of posting).
 * Used for prep (key = deadline) and for reading files. Tasks are intrusive and never allocated by the pool.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/error.h"

struct base_task {
    struct base_task *next;
    int64_t key;
    uint64_t order;
    void (*run)(struct base_task *task, int thread); /* thread: 0 .. threads - 1, for per-thread scratch */
};

struct base_pool_options {
    const char *name; /* at most 12 bytes; shown by ps */
    int threads;
    bool idle; /* SCHED_IDLE: run only when nothing else wants the core */
};

struct base_pool;

enum base_code base_pool_start(struct base_pool **pool, const struct base_pool_options *options,
                               struct base_error *error);
void base_pool_post(struct base_pool *pool, struct base_task *task, int64_t key);
/* Moves a task that has not started to another key; false if it has started. */
bool base_pool_rekey(struct base_pool *pool, struct base_task *task, int64_t key);
/* Runs nothing more, waits for the running tasks, ends the threads, clears *pool. Tasks left are not run. */
void base_pool_stop(struct base_pool **pool);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_BYTES = 16 };

struct thread {
    struct base_pool *pool;
    pthread_t id;
    int number;
};

/* The queue is a sorted list: it is short (blocks, not samples), and most tasks come with the latest deadline
 * yet, so that the tail is looked at first. */
struct base_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct base_task *head, *tail;
    uint64_t posted;
    bool stopping, idle;
    char name[NAME_BYTES];
    int threads;
    struct thread thread[];
};

static bool before(const struct base_task *a, const struct base_task *b)
{
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

static void insert(struct base_pool *pool, struct base_task *task)
{
    struct base_task **at = &pool->head;
    if (pool->tail && before(pool->tail, task))
        at = &pool->tail->next;
    while (*at && before(*at, task))
        at = &(*at)->next;
    task->next = *at;
    *at = task;
    if (!task->next)
        pool->tail = task;
}

/* False when it is not queued. */
static bool take_out(struct base_pool *pool, struct base_task *task)
{
    struct base_task *previous = NULL;
    struct base_task *at = pool->head;
    while (at && at != task) {
        previous = at;
        at = at->next;
    }
    if (!at)
        return false;
    *(previous ? &previous->next : &pool->head) = task->next;
    if (pool->tail == task)
        pool->tail = previous;
    task->next = NULL;
    return true;
}

/* NULL when the pool stops. */
static struct base_task *wait_for_task(struct base_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (!pool->head && !pool->stopping)
        pthread_cond_wait(&pool->work, &pool->lock);
    struct base_task *task = pool->stopping ? NULL : pool->head;
    if (task)
        take_out(pool, task);
    pthread_mutex_unlock(&pool->lock);
    return task;
}

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    struct base_pool *pool = thread->pool;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%.12s%u", pool->name, (unsigned)thread->number % 1000);
    pthread_setname_np(pthread_self(), name);
    if (pool->idle) /* always allowed; a kernel that refuses leaves it at normal */
        pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){0});
    for (struct base_task *task; (task = wait_for_task(pool));)
        task->run(task, thread->number);
    return NULL;
}

static void stop(struct base_pool *pool, int started)
{
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < started; i++)
        pthread_join(pool->thread[i].id, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

enum base_code base_pool_start(struct base_pool **pool, const struct base_pool_options *options,
                               struct base_error *error)
{
    if (options->threads < 1)
        return base_error_set(error, BASE_INVALID, "pool %s: %d threads", options->name, options->threads);
    struct base_pool *made = calloc(1, sizeof *made + (size_t)options->threads * sizeof made->thread[0]);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "pool %s: memory is out", options->name);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    snprintf(made->name, sizeof made->name, "%s", options->name);
    made->threads = options->threads;
    made->idle = options->idle;
    for (int i = 0; i < made->threads; i++) {
        made->thread[i] = (struct thread){.pool = made, .number = i};
        int why = pthread_create(&made->thread[i].id, NULL, thread_main, &made->thread[i]);
        if (why) {
            stop(made, i);
            return base_error_errno(error, why, "pool %s: thread %d", options->name, i);
        }
    }
    *pool = made;
    return BASE_OK;
}

void base_pool_post(struct base_pool *pool, struct base_task *task, int64_t key)
{
    pthread_mutex_lock(&pool->lock);
    task->key = key;
    task->order = pool->posted++;
    insert(pool, task);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

bool base_pool_rekey(struct base_pool *pool, struct base_task *task, int64_t key)
{
    pthread_mutex_lock(&pool->lock);
    bool queued = take_out(pool, task);
    if (queued) {
        task->key = key;
        insert(pool, task);
    }
    pthread_mutex_unlock(&pool->lock);
    return queued;
}

void base_pool_stop(struct base_pool **pool)
{
    if (!pool || !*pool)
        return;
    stop(*pool, (*pool)->threads);
    *pool = NULL;
}

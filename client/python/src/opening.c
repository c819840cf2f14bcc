/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/opening.h"

#include "client/python/src/ring.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_S INT64_C(1000000000)

struct python_opening {
    struct python_request request;
    struct python_pool *pool;
    int64_t timeout_ms;
    pthread_mutex_t mutex; /* guards done, abandoned */
    pthread_cond_t changed;
    bool done, abandoned;
    struct python_opened opened; /* the thread's until done */
};

const char *python_request_keep(struct python_request *request, const char *text)
{
    if (!text)
        return NULL;
    char *copy = request->text_count < PYTHON_TEXTS ? strdup(text) : NULL;
    if (copy)
        request->texts[request->text_count++] = copy;
    request->failed = request->failed || !copy;
    return copy;
}

static void drop_texts(struct python_request *request)
{
    for (int i = 0; i < request->text_count; i++)
        free(request->texts[i]);
    request->text_count = 0;
}

static void destroy(struct python_opening *opening)
{
    mr_job_close(&opening->opened.job);
    mr_client_close(&opening->opened.client);
    drop_texts(&opening->request);
    python_memory_put(opening->pool);
    pthread_cond_destroy(&opening->changed);
    pthread_mutex_destroy(&opening->mutex);
    free(opening);
}

static void *run(void *context)
{
    struct python_opening *opening = context;
    struct python_opened *opened = &opening->opened;
    opened->code = mr_client_open(&opened->client, &opening->request.where, &opened->error);
    if (opened->code == MR_OK)
        opened->code = mr_job_open(&opened->job, opened->client, &opening->request.what, opening->timeout_ms,
                                   &opened->error);
    if (opened->code != MR_OK)
        mr_client_close(&opened->client);
    pthread_mutex_lock(&opening->mutex);
    bool abandoned = opening->abandoned;
    opening->done = true;
    pthread_cond_signal(&opening->changed);
    pthread_mutex_unlock(&opening->mutex);
    if (abandoned)
        destroy(opening);
    return NULL;
}

/* Detached, and deaf to signals: they are the interpreter's. */
static bool start_thread(struct python_opening *opening)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &attributes, run, opening) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Pointers into the request itself move with it. */
static void take_request(struct python_opening *opening, const struct python_request *request)
{
    struct mr_job_options *what = &opening->request.what;
    opening->request = *request;
    what->options = what->options ? opening->request.options : NULL;
    what->fields = what->fields ? opening->request.fields : NULL;
    what->seed = what->seed ? &opening->request.seed : NULL;
    what->resume = what->resume ? &opening->request.resume : NULL;
    what->slot_allocate = python_memory_allocate;
    what->slot_free = python_memory_free;
    what->slot_context = opening->pool;
    if (!opening->pool->ring)
        return;
    what->slot_allocate = mr_device_slot_allocate; /* nobody sees slots: no need to outlive the job */
    what->slot_free = mr_device_slot_free;
    what->slot_context = python_ring_device(opening->pool->ring);
}

struct python_opening *python_opening_start(struct python_request *request, struct python_pool *pool,
                                            int64_t timeout_ms)
{
    struct python_opening *opening = request->failed ? NULL : calloc(1, sizeof *opening);
    if (!opening) {
        drop_texts(request);
        return NULL;
    }
    python_memory_get(pool);
    opening->pool = pool;
    opening->timeout_ms = timeout_ms;
    take_request(opening, request);
    pthread_condattr_t attributes;
    pthread_mutex_init(&opening->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&opening->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (start_thread(opening))
        return opening;
    destroy(opening);
    return NULL;
}

bool python_opening_wait(struct python_opening *opening, int64_t timeout_ms, struct python_opened *opened)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t end_ns = until.tv_sec * NS_PER_S + until.tv_nsec + timeout_ms * (NS_PER_S / 1000);
    until = (struct timespec){end_ns / NS_PER_S, end_ns % NS_PER_S};
    pthread_mutex_lock(&opening->mutex);
    while (!opening->done && pthread_cond_timedwait(&opening->changed, &opening->mutex, &until) == 0)
        ;
    bool done = opening->done;
    pthread_mutex_unlock(&opening->mutex);
    if (!done)
        return false;
    *opened = opening->opened;
    opening->opened.job = NULL;
    opening->opened.client = NULL;
    destroy(opening);
    return true;
}

void python_opening_abandon(struct python_opening *opening)
{
    pthread_mutex_lock(&opening->mutex);
    bool done = opening->done;
    opening->abandoned = true;
    pthread_mutex_unlock(&opening->mutex);
    if (done)
        destroy(opening);
}

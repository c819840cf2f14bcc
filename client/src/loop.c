/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/loop.h"

#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct client_loop {
    struct event_base *base;
    struct base_mailbox *mailbox;
    struct event *mail;
    pthread_t thread;
};

struct call {
    struct base_message message;
    void (*run)(void *context);
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t done_changed;
    bool done;
};

static void on_mail(evutil_socket_t fd, short what, void *context)
{
    struct client_loop *loop = context;
    (void)fd;
    (void)what;
    base_mailbox_drain(loop->mailbox);
}

static void *run_loop(void *context)
{
    struct client_loop *loop = context;
    event_base_loop(loop->base, EVLOOP_NO_EXIT_ON_EMPTY);
    return NULL;
}

static void loop_free(struct client_loop *loop)
{
    base_mailbox_destroy(loop->mailbox); /* runs what is left, which may still name events */
    if (loop->mail)
        event_free(loop->mail);
    if (loop->base)
        event_base_free(loop->base);
    free(loop);
}

static enum base_code start_thread(struct client_loop *loop, struct base_error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&loop->thread, NULL, run_loop, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? base_error_errno(error, failed, "client: starting its thread") : BASE_OK;
}

static struct event_base *new_base(void)
{
    struct event_config *config = event_config_new();
    if (!config)
        return NULL;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK); /* one thread touches it */
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

enum base_code client_loop_start(struct client_loop **out, struct base_error *error)
{
    struct client_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a client");
    enum base_code code = base_mailbox_create(&loop->mailbox, error);
    if (code == BASE_OK) {
        loop->base = new_base();
        if (loop->base)
            loop->mail =
                event_new(loop->base, base_mailbox_fd(loop->mailbox), EV_READ | EV_PERSIST, on_mail, loop);
        if (!loop->mail || event_add(loop->mail, NULL) != 0)
            code = base_error_set(error, BASE_NO_MEMORY, "no memory for a client's event loop");
    }
    if (code == BASE_OK)
        code = start_thread(loop, error);
    if (code != BASE_OK) {
        loop_free(loop);
        return code;
    }
    *out = loop;
    return BASE_OK;
}

static void break_loop(void *context)
{
    struct client_loop *loop = context;
    event_base_loopbreak(loop->base);
}

void client_loop_stop(struct client_loop **loop)
{
    if (!*loop)
        return;
    client_loop_call(*loop, break_loop, *loop);
    pthread_join((*loop)->thread, NULL);
    loop_free(*loop);
    *loop = NULL;
}

struct event_base *client_loop_base(const struct client_loop *loop)
{
    return loop->base;
}

struct base_mailbox *client_loop_mailbox(const struct client_loop *loop)
{
    return loop->mailbox;
}

static void run_call(struct base_message *message)
{
    struct call *call = (struct call *)message;
    call->run(call->context);
    pthread_mutex_lock(&call->mutex);
    call->done = true;
    pthread_cond_signal(&call->done_changed);
    pthread_mutex_unlock(&call->mutex);
}

void client_loop_call(struct client_loop *loop, void (*run)(void *context), void *context)
{
    struct call call = {.message = {.run = run_call}, .run = run, .context = context};
    pthread_mutex_init(&call.mutex, NULL);
    pthread_cond_init(&call.done_changed, NULL);
    base_mailbox_post(loop->mailbox, &call.message);
    pthread_mutex_lock(&call.mutex);
    while (!call.done) /* bounded: nothing on the loop waits */
        pthread_cond_wait(&call.done_changed, &call.mutex);
    pthread_mutex_unlock(&call.mutex);
    pthread_mutex_destroy(&call.mutex);
    pthread_cond_destroy(&call.done_changed);
}

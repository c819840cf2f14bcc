/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace-worker: prepares blocks of rows on an idle machine and serves them to trainers.
 *
 *   1. Options, limits, identity: what this process may use (affinity, cgroup), who it is (kept in the state folder).
 *   2. Budgets are taken: staging memory, raw bytes, threads, descriptors.
 *   3. The data port listens; the machine (core.h), its makers (make.h) and its port (serve.h) start.
 *   4. Control begins to sync with the server: datasets to hold, folders to index, streams to serve.
 *   5. `ready ADDR` on stdout. The loop runs until SIGTERM or SIGINT.
 *   6. Drain: nothing new is made, the server is told, what is staged is served until nobody asks or --drain-ms is over; then
 *      it says goodbye, so that nobody waits for its lease to end.
 *   7. Everything stops in the order that lets no callback meet what is gone; what hangs is left behind after two seconds.
 *
 * Limits: one loop thread owns all state; prep threads never block on I/O; every wait has a deadline.
 * Security: only loopback without --secret-file (or --insecure); files are read beneath --data-root only.
 */
#include "base/address.h"
#include "base/clock.h"
#include "base/limits.h"
#include "worker/control.h"
#include "worker/settings.h"
#include "worker/staging.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHORE_THREADS = 4,
    REQUESTS_MAX = 32,
    DESCRIPTORS_KEPT = 128,
    DRAIN_CHECK_MS = 50,
    QUIET_MS = 500,
    LEAVE_MS = 500,
    STOP_S = 2
};
#define QUEUE_MAX_BYTES (UINT64_C(256) << 20)
#define STAGING_LEAST_BYTES (UINT64_C(4) << 20) /* two blocks of the usual size */

struct node {
    struct worker_settings settings;
    struct event_base *loop;
    struct base_mailbox *mailbox;
    struct event *mail, *terminate, *interrupt, *drain_check;
    struct worker_staging staging;
    struct worker_local *local; /* NULL: nobody can map it */
    struct source_roots *roots;
    struct worker_core *core;
    struct worker_chores *chores;
    struct worker_make *make;
    struct worker_serve *serve;
    struct worker_control *control;
    int listen_fd;
    char address[BASE_ADDRESS_CHARS], name[128];
    const char *addresses[BASE_OPTIONS_LIST_MAX];
    int address_count;
    int64_t drain_deadline_ns, quiet_ns; /* quiet since; 0: not draining */
    int64_t leave_deadline_ns;           /* of the goodbye; 0: not said */
};

/* ---- 5. the loop ---- */

static void on_mail(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct node *node = context;
    base_mailbox_drain(node->mailbox);
    worker_serve_pump(node->serve);
}

static void on_made(void *context, uint64_t block, const struct worker_made *made)
{
    struct node *node = context;
    worker_core_made(node->core, base_clock_now_ns(), block, made);
    worker_serve_pump(node->serve);
}

static void on_bad_item(void *context, const struct worker_dataset *dataset, uint64_t item, const char *name,
                        const char *cause)
{
    const struct node *node = context;
    worker_control_bad_item(node->control, dataset, item, name, cause);
}

static const struct worker_make_events make_events = {on_made, on_bad_item};

/* ---- 6. drain ---- */

static void on_drain_check(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct node *node = context;
    int64_t now_ns = base_clock_now_ns();
    if (!worker_core_idle(node->core) || !worker_control_drain_told(node->control))
        node->quiet_ns = now_ns;
    if (now_ns < node->drain_deadline_ns && now_ns - node->quiet_ns < QUIET_MS * BASE_NS_PER_MS)
        return;
    if (node->leave_deadline_ns == 0) {
        node->leave_deadline_ns = now_ns + LEAVE_MS * BASE_NS_PER_MS;
        worker_control_leave(node->control);
    }
    if (worker_control_left(node->control) || now_ns >= node->leave_deadline_ns)
        event_base_loopbreak(node->loop);
}

static void on_terminate(evutil_socket_t signal_number, short what, void *context)
{
    (void)what;
    struct node *node = context;
    if (node->quiet_ns != 0) { /* asked twice: at once */
        event_base_loopbreak(node->loop);
        return;
    }
    base_log(BASE_LOG_INFO, "ending", "signal=%d drain_ms=%lld", (int)signal_number,
             (long long)node->settings.drain_ms);
    node->quiet_ns = base_clock_now_ns();
    node->drain_deadline_ns = node->quiet_ns + node->settings.drain_ms * BASE_NS_PER_MS;
    worker_control_drain(node->control);
    struct timeval every = {0, DRAIN_CHECK_MS * 1000};
    event_add(node->drain_check, &every);
}

/* ---- 2. budgets ---- */

static enum base_code take_staging(struct node *node, struct base_error *error)
{
    uint64_t bytes = node->settings.staging_bytes;
    if (bytes < STAGING_LEAST_BYTES)
        return base_error_set(error, BASE_INVALID, "--staging: %llu bytes hold no block; at least %llu",
                              (unsigned long long)bytes, (unsigned long long)STAGING_LEAST_BYTES);
    return worker_staging_open(&node->staging, bytes, error);
}

static enum base_code start_events(struct node *node, struct base_error *error)
{
    enum base_code code = base_mailbox_create(&node->mailbox, error);
    if (code != BASE_OK)
        return code;
    node->loop = event_base_new();
    if (!node->loop)
        return base_error_set(error, BASE_NO_MEMORY, "event loop");
    int mail_fd = base_mailbox_fd(node->mailbox);
    node->mail = event_new(node->loop, mail_fd, EV_READ | EV_PERSIST, on_mail, node);
    node->terminate = evsignal_new(node->loop, SIGTERM, on_terminate, node);
    node->interrupt = evsignal_new(node->loop, SIGINT, on_terminate, node);
    node->drain_check = event_new(node->loop, -1, EV_PERSIST, on_drain_check, node);
    if (!node->mail || !node->terminate || !node->interrupt || !node->drain_check ||
        event_add(node->mail, NULL) || event_add(node->terminate, NULL) || event_add(node->interrupt, NULL))
        return base_error_set(error, BASE_NO_MEMORY, "event loop");
    return BASE_OK;
}

/* ---- 3. parts ---- */

static enum base_code open_port(struct node *node, struct base_error *error)
{
    enum base_code code = base_address_listen(node->settings.listen, &node->listen_fd, error);
    if (code == BASE_OK)
        code = base_address_local(node->listen_fd, node->address, sizeof node->address, error);
    if (code != BASE_OK)
        return code;
    node->addresses[node->address_count++] = node->address;
    if (node->settings.advertise.count > 0)
        node->address_count = 0;
    for (int i = 0; i < node->settings.advertise.count; i++)
        node->addresses[node->address_count++] = node->settings.advertise.values[i];
    return BASE_OK;
}

static enum base_code start_control(struct node *node, struct base_error *error)
{
    const struct worker_settings *settings = &node->settings;
    struct worker_control_options options = {.loop = node->loop,
                                             .mailbox = node->mailbox,
                                             .core = node->core,
                                             .chores = node->chores,
                                             .roots = node->roots,
                                             .server = settings->server,
                                             .token_key = settings->has_key ? settings->token_key : NULL,
                                             .name = node->name,
                                             .state_dir = settings->state_dir,
                                             .worker = settings->worker,
                                             .incarnation = (uint64_t)(base_clock_wall_ns() / BASE_NS_PER_MS),
                                             .staging_bytes = settings->staging_bytes,
                                             .cores = (uint32_t)settings->threads};
    return worker_control_create(&node->control, &options, error);
}

static enum base_code start_makers(struct node *node, struct base_error *error)
{
    const struct worker_settings *settings = &node->settings;
    struct worker_make_options options = {.prep_threads = (int)settings->threads,
                                          .io_threads = (int)settings->io_threads,
                                          .idle = settings->idle,
                                          .raw_bytes = settings->raw_bytes,
                                          .staging = &node->staging,
                                          .mailbox = node->mailbox,
                                          .events = &make_events,
                                          .context = node};
    return worker_make_start(&node->make, &options, error);
}

/* Without it trainers of this host get their rows as all others do. */
static void start_local(struct node *node)
{
    struct base_error error;
    if (node->staging.fd >= 0 &&
        worker_local_start(&node->local, node->loop, node->staging.fd, &error) != BASE_OK)
        base_log(BASE_LOG_WARN, "local_off", "cause=\"%s\"", error.text);
}

static enum base_code start_port(struct node *node, struct base_error *error)
{
    const struct worker_settings *settings = &node->settings;
    struct worker_serve_options options = {.loop = node->loop,
                                           .listen_fd = node->listen_fd,
                                           .core = node->core,
                                           .make = node->make,
                                           .staging = node->staging.memory,
                                           .token_key = settings->has_key ? settings->token_key : NULL,
                                           .name = node->name,
                                           .requests_max = REQUESTS_MAX,
                                           .connections_max = base_limits_descriptors() - DESCRIPTORS_KEPT,
                                           .queue_max_bytes = QUEUE_MAX_BYTES,
                                           .hooks = worker_control_serve_hooks(),
                                           .context = node->control};
    start_local(node);
    options.local = node->local;
    node->listen_fd = -1; /* handed over, whatever happens */
    return worker_serve_start(&node->serve, &options, error);
}

static enum base_code start(struct node *node, struct base_error *error)
{
    const struct worker_settings *settings = &node->settings;
    struct worker_core_options core = {.worker = settings->worker,
                                       .staging_bytes = settings->staging_bytes,
                                       .making_max = 2 * (uint32_t)settings->threads + 2,
                                       .requests_max = REQUESTS_MAX};
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(node->name, sizeof node->name, "millrace-worker %s", host);
    enum base_code code = take_staging(node, error);
    if (code == BASE_OK)
        code = start_events(node, error);
    if (code == BASE_OK)
        code = source_roots_open(&node->roots, settings->data_roots.values, settings->data_roots.count,
                                 settings->map_list, settings->maps.count, error);
    if (code == BASE_OK)
        code = open_port(node, error);
    if (code == BASE_OK)
        code = worker_core_create(&node->core, &core, error);
    if (code == BASE_OK)
        code = worker_chores_start(&node->chores, node->mailbox, CHORE_THREADS, error);
    if (code == BASE_OK)
        code = start_control(node, error);
    if (code == BASE_OK)
        code = start_makers(node, error);
    return code == BASE_OK ? start_port(node, error) : code;
}

/* ---- 7. the end ---- */

static void free_event(struct event *event)
{
    if (event)
        event_free(event);
}

static void leave(int signal)
{
    static const char text[] = "millrace-worker: left threads that storage or the want of a core holds up\n";
    (void)signal;
    _exit(write(2, text, sizeof text - 1) < 0 ? 1 : 0); /* what is worth keeping is on disk already */
}

/* A thread in a read that hangs, or one of idle class on a busy host, cannot be waited for: a guest goes when told. */
static void stop(struct node *node)
{
    signal(SIGALRM, leave);
    alarm(STOP_S);
    if (node->control)
        worker_control_stop(node->control);
    worker_make_stop(&node->make);
    worker_chores_stop(&node->chores);
    worker_serve_stop(&node->serve);
    worker_local_stop(&node->local);
    if (node->mailbox)
        base_mailbox_drain(node->mailbox);
    worker_control_destroy(&node->control);
    worker_core_destroy(node->core);
    if (node->roots)
        source_roots_close(&node->roots);
    free_event(node->mail);
    free_event(node->terminate);
    free_event(node->interrupt);
    free_event(node->drain_check);
    base_mailbox_destroy(node->mailbox);
    if (node->loop)
        event_base_free(node->loop);
    if (node->listen_fd >= 0)
        close(node->listen_fd);
    worker_staging_close(&node->staging);
}

static int run(struct node *node)
{
    struct base_error error = {0};
    rpc_start();
    if (start(node, &error) == BASE_OK) {
        worker_control_start(node->control, node->serve, node->make, node->addresses, node->address_count);
        base_log(BASE_LOG_INFO, "ready", "worker=%llu address=%s threads=%lld staging_bytes=%llu",
                 (unsigned long long)node->settings.worker, node->address, (long long)node->settings.threads,
                 (unsigned long long)node->settings.staging_bytes);
        printf("ready %s\n", node->address);
        fflush(stdout);
        event_base_dispatch(node->loop);
        base_log(BASE_LOG_INFO, "ended", "worker=%llu", (unsigned long long)node->settings.worker);
    }
    stop(node);
    rpc_stop();
    if (error.code == BASE_OK)
        return 0;
    fprintf(stderr, "millrace-worker: %s\n", error.text);
    return 1;
}

int main(int argc, char **argv)
{
    static struct node node = {.listen_fd = -1, .staging.fd = -1};
    struct base_error error = {0};
    base_log_start("worker", 2, BASE_LOG_INFO);
    enum base_code code = worker_settings_parse(&node.settings, argc, argv, &error);
    if (code == BASE_OK && node.settings.rest.help) {
        worker_settings_help(stdout);
        return 0;
    }
    if (code == BASE_OK && node.settings.rest.version) {
        puts("millrace-worker " MILLRACE_VERSION);
        return 0;
    }
    umask(S_IRWXG | S_IRWXO); /* the state folder names files that are nobody else's business */
    if (code == BASE_OK) {
        base_log_start("worker", 2, node.settings.level);
        code = worker_settings_identify(&node.settings, &error);
    }
    if (code != BASE_OK) {
        fprintf(stderr, "millrace-worker: %s\n", error.text);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    base_limits_heap();
    return run(&node);
}

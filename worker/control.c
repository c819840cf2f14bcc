/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/control.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/indexing.h"
#include "worker/orders.h"
#include "worker/report.h"
#include "worker/streams.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    WAIT_MS = 1000,
    GRACE_MS = 2000 /* beyond a poll's wait no answer comes */,
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MOST_MS = 2000,
    TICK_MS = 250
};

/* Two syncs at most are out: the long poll, and a short one that carries news past it. */
struct call {
    struct worker_control *control;
    bool out, drain, leave; /* drain, leave: this one told of it */
    size_t bad_items;       /* that it carried */
};

struct worker_control {
    struct worker_control_options options;
    struct rpc_channel *channel;
    struct worker_holdings *holdings;
    struct worker_indexing *indexing;
    struct worker_streams *streams;
    struct worker_serve *serve;
    struct worker_make *make;
    struct worker_report *report;
    struct event *tick;
    struct worker_orders orders;
    uint64_t seen_revision;
    struct call poll, news;
    bool news_wanted, stopped, draining, drain_told, away, leaving, left;
    int64_t again_ns, backoff_ms;
};

/* ---- life ---- */

static void changed(void *context);
static void indexed(void *context);

static enum base_code make_folder(const char *state_dir, struct base_error *error)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/manifests", state_dir);
    if (mkdir(state_dir, 0700) != 0 && errno != EEXIST)
        return base_error_errno(error, errno, "making %s", state_dir);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return base_error_errno(error, errno, "making %s", path);
    return BASE_OK;
}

static enum base_code create_parts(struct worker_control *control, struct base_error *error)
{
    const struct worker_control_options *o = &control->options;
    struct worker_holdings_options holdings = {.chores = o->chores,
                                               .roots = o->roots,
                                               .state_dir = o->state_dir,
                                               .token_key = o->token_key,
                                               .name = o->name,
                                               .changed = changed,
                                               .context = control};
    enum base_code code = worker_holdings_create(&control->holdings, &holdings, error);
    if (code != BASE_OK)
        return code;
    struct worker_indexing_options indexing = {.chores = o->chores,
                                               .roots = o->roots,
                                               .holdings = control->holdings,
                                               .state_dir = o->state_dir,
                                               .worker = o->worker,
                                               .finished = indexed,
                                               .context = control};
    code = worker_indexing_create(&control->indexing, &indexing, error);
    if (code != BASE_OK)
        return code;
    struct worker_streams_options streams = {.chores = o->chores,
                                             .core = o->core,
                                             .holdings = control->holdings,
                                             .changed = changed,
                                             .context = control};
    code = worker_streams_create(&control->streams, &streams, error);
    return code == BASE_OK ? worker_report_create(&control->report, error) : code;
}

static void on_tick(evutil_socket_t fd, short what, void *context);

enum base_code worker_control_create(struct worker_control **out,
                                     const struct worker_control_options *options, struct base_error *error)
{
    enum base_code code = make_folder(options->state_dir, error);
    if (code != BASE_OK)
        return code;
    struct worker_control *control = calloc(1, sizeof *control);
    if (!control)
        return base_error_set(error, BASE_NO_MEMORY, "control");
    control->options = *options;
    control->poll.control = control->news.control = control;
    control->backoff_ms = BACKOFF_FIRST_MS;
    control->tick = event_new(options->loop, -1, EV_PERSIST, on_tick, control);
    code = control->tick ? create_parts(control, error) : base_error_set(error, BASE_NO_MEMORY, "control");
    struct rpc_channel_options channel = {
        .target = options->server, .token_key = options->token_key, .mailbox = options->mailbox};
    if (code == BASE_OK)
        code = rpc_channel_open(&control->channel, &channel, error);
    *out = control;
    if (code != BASE_OK)
        worker_control_destroy(out);
    return code;
}

void worker_control_stop(struct worker_control *control)
{
    control->stopped = true;
    rpc_channel_close(&control->channel);
}

void worker_control_destroy(struct worker_control **out)
{
    struct worker_control *control = *out;
    *out = NULL;
    if (!control)
        return;
    if (control->tick)
        event_free(control->tick);
    worker_report_destroy(control->report);
    worker_streams_destroy(control->streams);
    worker_indexing_destroy(control->indexing);
    worker_holdings_destroy(control->holdings);
    worker_orders_fini(&control->orders);
    free(control);
}

/* ---- orders ---- */

static void carry_out(struct worker_control *control)
{
    const Millrace__V1__WorkerOrders *orders = control->orders.whole;
    int64_t now_ns = base_clock_now_ns();
    if (!orders)
        return;
    worker_serve_pump(control->serve); /* a stream that is gone, and comes back now, is begun anew */
    worker_holdings_order(control->holdings, now_ns, orders->datasets, orders->n_datasets);
    worker_indexing_order(control->indexing, orders->index, orders->n_index);
    worker_streams_order(control->streams, now_ns, orders);
    if (orders->drain)
        worker_control_drain(control);
    worker_serve_pump(control->serve);
}

static void keep_orders(struct worker_control *control, const ProtobufCMessage *reply)
{
    const Millrace__V1__WorkerOrders *orders = (const Millrace__V1__WorkerOrders *)reply;
    switch (worker_orders_take(&control->orders, orders)) {
    case WORKER_ORDERS_OLD:
        return;
    case WORKER_ORDERS_NO_MEMORY: /* not seen, so that they are told again */
        control->again_ns = base_clock_now_ns() + BACKOFF_FIRST_MS * BASE_NS_PER_MS;
        return;
    case WORKER_ORDERS_TAKEN:
        control->seen_revision = orders->revision;
        control->news_wanted |= control->orders.wanted_count > 0;
        carry_out(control);
    }
}

/* ---- syncs ---- */

static void send_sync(struct worker_control *control, struct call *call, uint32_t wait_ms);

static void note_away(struct worker_control *control, enum base_code code, const char *text)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    control->again_ns = base_clock_now_ns() + control->backoff_ms * BASE_NS_PER_MS;
    control->backoff_ms =
        control->backoff_ms * 2 < BACKOFF_MOST_MS ? control->backoff_ms * 2 : BACKOFF_MOST_MS;
    if (!control->away)
        base_log(BASE_LOG_WARN, "server_away", "server=%s code=%s error=%s", control->options.server,
                 base_error_name(code), base_log_quote(text ? text : "", quoted, sizeof quoted));
    control->away = true;
}

static void note_back(struct worker_control *control, const struct call *call)
{
    if (control->away || control->seen_revision == 0)
        base_log(BASE_LOG_INFO, "server_here", "server=%s", control->options.server);
    control->away = false;
    control->backoff_ms = BACKOFF_FIRST_MS;
    control->again_ns = 0;
    control->drain_told = control->drain_told || call->drain;
}

/* What is to be sent now is sent: news at once, the poll when the last one ended. */
static void go_on(struct worker_control *control)
{
    if (control->leaving && !control->stopped && !control->left && !control->news.out)
        send_sync(control, &control->news, 0);
    if (control->stopped || control->leaving || base_clock_now_ns() < control->again_ns)
        return;
    if (!control->poll.out) {
        control->news_wanted = control->news_wanted && control->news.out;
        send_sync(control, &control->poll, WAIT_MS);
    } else if (control->news_wanted && !control->news.out && !control->away) {
        control->news_wanted = false;
        send_sync(control, &control->news, 0);
    }
}

static void on_synced(void *context, enum base_code code, const char *text, const ProtobufCMessage *reply)
{
    struct call *call = context;
    struct worker_control *control = call->control;
    call->out = false;
    if (control->stopped)
        return;
    bool refused =
        code == BASE_OK && ((const Millrace__V1__WorkerOrders *)(const void *)reply)->bad_items_refused;
    worker_report_answered(control->report, call->bad_items, code == BASE_OK && !refused);
    control->left = control->left || call->leave;
    if (control->leaving) {
        go_on(control);
        return;
    }
    if (code == BASE_OK) {
        note_back(control, call);
        keep_orders(control, reply);
    } else {
        note_away(control, code, text);
    }
    go_on(control);
}

static void send_sync(struct worker_control *control, struct call *call, uint32_t wait_ms)
{
    const struct worker_control_options *o = &control->options;
    struct worker_report_sync sync = {.worker = o->worker,
                                      .incarnation = o->incarnation,
                                      .cores = o->cores,
                                      .staging_bytes = o->staging_bytes,
                                      .draining = control->draining,
                                      .leaving = control->leaving,
                                      .seen_revision = control->seen_revision,
                                      .orders = &control->orders,
                                      .wait_ms = wait_ms,
                                      .core = o->core,
                                      .holdings = control->holdings,
                                      .streams = control->streams,
                                      .serve_metrics = worker_serve_metrics(control->serve),
                                      .make_metrics = worker_make_metrics(control->make)};
    call->out = true;
    call->drain = control->draining;
    call->leave = control->leaving;
    const Millrace__V1__WorkerSync *message = worker_report_fill(control->report, &sync, &call->bad_items);
    if (!rpc_call_start(control->channel,
                        &(struct rpc_request){&millrace__v1__cluster__descriptor, "Sync", &message->base,
                                              wait_ms + GRACE_MS},
                        on_synced, call))
        on_synced(call, BASE_NO_MEMORY, "no memory for a call", NULL);
}

static void changed(void *context)
{
    struct worker_control *control = context;
    if (control->stopped || !control->serve)
        return;
    control->news_wanted = true;
    carry_out(control);
    go_on(control);
}

static void indexed(void *context)
{
    struct worker_control *control = context;
    if (!control->stopped && !control->away)
        worker_indexing_tell(control->indexing, control->channel);
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct worker_control *control = context;
    if (control->stopped)
        return;
    worker_holdings_tick(control->holdings, base_clock_now_ns());
    if (!control->away)
        worker_indexing_tell(control->indexing, control->channel);
    go_on(control);
}

void worker_control_start(struct worker_control *control, struct worker_serve *serve,
                          struct worker_make *make, const char *const *addresses, int address_count)
{
    control->serve = serve;
    control->make = make;
    worker_report_set_addresses(control->report, addresses, address_count);
    event_add(control->tick, &(struct timeval){0, TICK_MS * 1000});
    go_on(control);
}

void worker_control_drain(struct worker_control *control)
{
    if (control->draining)
        return;
    control->draining = true;
    base_log(BASE_LOG_INFO, "draining", "worker=%llu", (unsigned long long)control->options.worker);
    worker_core_drain(control->options.core, base_clock_now_ns());
    control->news_wanted = true;
    worker_serve_pump(control->serve);
    go_on(control);
}

bool worker_control_drain_told(const struct worker_control *control)
{
    return control->drain_told;
}

void worker_control_leave(struct worker_control *control)
{
    control->leaving = true;
    control->left = control->left || control->away;
    go_on(control);
}

bool worker_control_left(const struct worker_control *control)
{
    return control->left;
}

/* ---- hooks ---- */

static void want_sync(void *context)
{
    struct worker_control *control = context;
    control->news_wanted = true;
    go_on(control);
}

static void stream_gone(void *context, struct worker_kit *kit)
{
    const struct worker_control *control = context;
    worker_streams_gone(control->streams, kit);
}

static struct worker_kit *find_kit(void *context, const uint8_t stream[32])
{
    const struct worker_control *control = context;
    return worker_streams_find(control->streams, stream);
}

static const struct worker_dataset *find_dataset(void *context, const uint8_t version[32])
{
    const struct worker_control *control = context;
    return worker_holdings_find(control->holdings, version);
}

const struct worker_serve_hooks *worker_control_serve_hooks(void)
{
    static const struct worker_serve_hooks hooks = {want_sync, stream_gone, find_kit, find_dataset};
    return &hooks;
}

void worker_control_bad_item(struct worker_control *control, const struct worker_dataset *dataset,
                             uint64_t item, const char *name, const char *cause)
{
    worker_report_bad_item(control->report, manifest_version(dataset->manifest), item, name, cause);
    control->news_wanted = true;
}

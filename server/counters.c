/* SPDX-License-Identifier: Apache-2.0 */
/* The counters that workers send, as they last said them; printed for /metrics with the worker's id as a label. */
#include "server/server.h"

#include "base/grow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTERS_MAX = 256, TEXT_MAX = 128 };

struct counter {
    char name[TEXT_MAX], labels[TEXT_MAX];
    double value;
    bool gauge;
};

struct server_worker_counters {
    uint64_t worker;
    size_t count;
    struct counter counter[];
};

/* Outside text goes into an exposition format: only what may stand there. */
static bool is_clean(const Millrace__V1__Counter *from)
{
    static const char name[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    static const char labels[] = "abcdefghijklmnopqrstuvwxyz0123456789_=\",-";
    return from->name[0] && strlen(from->name) < TEXT_MAX && strlen(from->labels) < TEXT_MAX &&
           strspn(from->name, name) == strlen(from->name) &&
           strspn(from->labels, labels) == strlen(from->labels);
}

static struct server_worker_counters *make(const Millrace__V1__WorkerSync *sync)
{
    size_t most = sync->n_counters < COUNTERS_MAX ? sync->n_counters : COUNTERS_MAX;
    struct server_worker_counters *made = calloc(1, sizeof *made + most * sizeof(struct counter));
    if (!made)
        return NULL;
    made->worker = sync->worker;
    for (size_t i = 0; i < most; i++) {
        const Millrace__V1__Counter *from = sync->counters[i];
        if (!is_clean(from))
            continue;
        struct counter *to = &made->counter[made->count++];
        memcpy(to->name, from->name, strlen(from->name) + 1);
        memcpy(to->labels, from->labels, strlen(from->labels) + 1);
        to->value = from->value;
        to->gauge = from->gauge;
    }
    return made;
}

/* Index of the first whose worker is not below. */
static int lower_bound(const struct server *server, uint64_t worker)
{
    int low = 0, high = server->counters_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (server->counters[middle]->worker < worker)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct server_worker_counters *find(const struct server *server, uint64_t worker)
{
    int at = lower_bound(server, worker);
    return at < server->counters_count && server->counters[at]->worker == worker ? server->counters[at]
                                                                                 : NULL;
}

void server_counters_set(struct server *server, const Millrace__V1__WorkerSync *sync)
{
    struct server_worker_counters *made =
        sync->n_counters &&
                base_grow(&server->counters, (size_t)server->counters_count, sizeof *server->counters)
            ? make(sync)
            : NULL;
    if (!made)
        return; /* nothing said, or no memory: the old ones stay */
    int at = lower_bound(server, sync->worker);
    if (find(server, sync->worker)) {
        free(server->counters[at]);
    } else {
        memmove(&server->counters[at + 1], &server->counters[at],
                (size_t)(server->counters_count++ - at) * sizeof made);
    }
    server->counters[at] = made;
}

void server_counters_prune(struct server *server)
{
    int kept = 0;
    if (server->counters_count <= scheduler_cluster_worker_count(server->cluster))
        return;
    for (int i = 0; i < server->counters_count; i++) {
        if (scheduler_cluster_worker(server->cluster, server->counters[i]->worker))
            server->counters[kept++] = server->counters[i];
        else
            free(server->counters[i]);
    }
    server->counters_count = kept;
}

double server_counters_sum(const struct server *server, uint64_t worker, const char *name)
{
    const struct server_worker_counters *w = find(server, worker);
    double sum = 0;
    for (size_t i = 0; w && i < w->count; i++)
        sum += strcmp(w->counter[i].name, name) ? 0 : w->counter[i].value;
    return sum;
}

static void print_name(const struct server *server, int first, const struct counter *named,
                       struct base_buffer *out)
{
    base_buffer_printf(out, "# TYPE %s %s\n", named->name, named->gauge ? "gauge" : "counter");
    for (int at = first; at < server->counters_count; at++) {
        const struct server_worker_counters *w = server->counters[at];
        for (size_t i = 0; i < w->count; i++) {
            const struct counter *c = &w->counter[i];
            if (!strcmp(c->name, named->name))
                base_buffer_printf(out, "%s{worker=\"%" PRIu64 "\"%s%s} %.17g\n", c->name, w->worker,
                                   c->labels[0] ? "," : "", c->labels, c->value);
        }
    }
}

/* Whether an earlier row has the name: each is printed once, with all workers' rows. */
static bool is_printed(const struct server *server, const struct counter *counter)
{
    for (int at = 0; at < server->counters_count; at++) {
        const struct server_worker_counters *w = server->counters[at];
        for (size_t i = 0; i < w->count; i++) {
            if (&w->counter[i] == counter)
                return false;
            if (!strcmp(w->counter[i].name, counter->name))
                return true;
        }
    }
    return false;
}

void server_counters_print(const struct server *server, struct base_buffer *out)
{
    for (int at = 0; at < server->counters_count; at++) {
        const struct server_worker_counters *w = server->counters[at];
        for (size_t i = 0; i < w->count; i++) {
            if (!is_printed(server, &w->counter[i]))
                print_name(server, at, &w->counter[i], out);
        }
    }
}

void server_counters_fini(struct server *server)
{
    for (int i = 0; i < server->counters_count; i++)
        free(server->counters[i]);
    free(server->counters);
    server->counters = NULL;
    server->counters_count = 0;
}

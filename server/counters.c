/* SPDX-License-Identifier: Apache-2.0 */
/* The counters that workers send, as they last said them; printed for /metrics with the worker's id as a label. */
#include "server/server.h"

#include "base/grow.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTERS_MAX = 256, NAMES_MAX = 4096, TEXT_MAX = 128 }; /* of a worker, of all */

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

/* ---- printing: by name, each name's rows in the order of the workers ---- */

struct row {
    const struct counter *counter;
    uint64_t worker;
    size_t next; /* row of this name; 0: the last */
};

struct name {
    const char *text; /* NULL: free */
    size_t first, last;
};

/* Rows chained by name; names in a hash table at most half full. */
struct page {
    struct row *rows; /* from 1 on */
    struct name *names;
    size_t row_count, name_count, room;
};

static bool page_init(struct page *page, const struct server *server)
{
    size_t counters = 0;
    for (int at = 0; at < server->counters_count; at++)
        counters += server->counters[at]->count;
    *page = (struct page){.room = 16};
    while (page->room < 2 * counters && page->room < 2 * NAMES_MAX)
        page->room *= 2;
    page->rows = malloc((counters + 1) * sizeof *page->rows);
    page->names = calloc(page->room, sizeof *page->names);
    return page->rows && page->names;
}

static void page_fini(struct page *page)
{
    free(page->rows);
    free(page->names);
}

/* NULL: there are too many already. */
static struct name *page_name(struct page *page, const char *text)
{
    size_t at = base_hash_xxh3(text, strlen(text)) % page->room;
    while (page->names[at].text && strcmp(page->names[at].text, text) != 0)
        at = (at + 1) % page->room;
    if (!page->names[at].text && page->name_count == NAMES_MAX)
        return NULL;
    if (!page->names[at].text) {
        page->names[at].text = text;
        page->name_count++;
    }
    return &page->names[at];
}

static void page_add(struct page *page, const struct counter *counter, uint64_t worker)
{
    struct name *name = page_name(page, counter->name);
    if (!name)
        return;
    page->rows[++page->row_count] = (struct row){counter, worker, 0};
    if (name->last)
        page->rows[name->last].next = page->row_count;
    else
        name->first = page->row_count;
    name->last = page->row_count;
}

static int compare_names(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    if (!x->text || !y->text)
        return (y->text != NULL) - (x->text != NULL);
    return strcmp(x->text, y->text);
}

static void print_name(const struct page *page, const struct name *name, struct base_buffer *out)
{
    const struct row *row = &page->rows[name->first];
    base_buffer_printf(out, "# TYPE %s %s\n", name->text, row->counter->gauge ? "gauge" : "counter");
    for (size_t at = name->first; at; at = row->next) {
        row = &page->rows[at];
        const struct counter *c = row->counter;
        base_buffer_printf(out, "%s{worker=\"%" PRIu64 "\"%s%s} %.17g\n", c->name, row->worker,
                           c->labels[0] ? "," : "", c->labels, c->value);
    }
}

void server_counters_print(const struct server *server, struct base_buffer *out)
{
    struct page page;
    if (!page_init(&page, server)) {
        out->failed = true;
        page_fini(&page);
        return;
    }
    for (int at = 0; at < server->counters_count; at++) {
        const struct server_worker_counters *w = server->counters[at];
        for (size_t i = 0; i < w->count; i++)
            page_add(&page, &w->counter[i], w->worker);
    }
    qsort(page.names, page.room, sizeof *page.names, compare_names);
    for (size_t i = 0; i < page.name_count; i++)
        print_name(&page, &page.names[i], out);
    page_fini(&page);
}

void server_counters_fini(struct server *server)
{
    for (int i = 0; i < server->counters_count; i++)
        free(server->counters[i]);
    free(server->counters);
    server->counters = NULL;
    server->counters_count = 0;
}

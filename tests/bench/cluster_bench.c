/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's machine at scale: cluster_bench [WORKERS [JOBS [STREAMS]]], 10000, 1000 and 100 when not said. Workers join and probe,
 * jobs open; then a time of syncs, cursors, fronts, deaths, joins, closes and opens, each event followed by as many ticks as the
 * deadline asks for. Prints how much of a core's time one step took (an event or a tick, with what it left to store and to log taken),
 * by kind.
 */
#include "scheduler/cluster.h"

#include "base/clock.h"
#include "base/philox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MS BASE_NS_PER_MS

enum kind { JOIN, PROBED, OPEN, WORKER, CURSOR, CLOSE, DEATH, TICK, KINDS };
static const char *const kind_names[] = {"worker joins", "worker's prints", "job opens",     "worker syncs",
                                         "cursor moves", "job closes",      "worker leaves", "tick"};
enum { PROBES = 256, EVENTS = 60000, WORLD = 4 };

struct bench {
    struct scheduler_cluster *cluster;
    int workers, jobs, streams;
    int64_t now_ns;
    uint32_t *us10[KINDS]; /* of each step, in tenths of us */
    int count[KINDS], room[KINDS];
    uint64_t draws, incarnation, *generation;
    char text[SCHEDULER_PIPELINE_TEXT_BYTES];
};

/* Of this thread: a step's own time, on a busy machine, too. */
static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * BASE_NS_PER_S + now.tv_nsec;
}

static uint64_t draw(struct bench *bench, uint64_t below)
{
    return base_philox_below(7, 0, bench->draws++, below);
}

static void take_outputs(struct bench *bench)
{
    uint8_t hash[BASE_SHA256_BYTES];
    char text[SCHEDULER_WORDS_CHARS];
    bool gone;
    while (scheduler_cluster_take_stream(bench->cluster, hash, &gone) ||
           scheduler_cluster_take_job(bench->cluster, text, &gone) ||
           scheduler_cluster_take_line(bench->cluster, text))
        continue;
}

static void note(struct bench *bench, enum kind kind, int64_t begun_ns)
{
    take_outputs(bench);
    scheduler_cluster_deadline_ns(bench->cluster);
    int64_t took_ns = cpu_ns() - begun_ns;
    if (bench->count[kind] == bench->room[kind]) {
        bench->room[kind] = bench->room[kind] ? 2 * bench->room[kind] : 1024;
        bench->us10[kind] = realloc(bench->us10[kind], (size_t)bench->room[kind] * sizeof **bench->us10);
        if (!bench->us10[kind])
            abort();
    }
    bench->us10[kind][bench->count[kind]++] = (uint32_t)(took_ns / 100);
}

/* What a server does between events: it comes back at once while there is something to do, here at most every 20 us. */
static void settle(struct bench *bench, int most)
{
    for (int i = 0; i < most && scheduler_cluster_deadline_ns(bench->cluster) <= bench->now_ns; i++) {
        int64_t begun_ns = cpu_ns();
        scheduler_cluster_tick(bench->cluster, bench->now_ns);
        note(bench, TICK, begun_ns);
    }
}

static void version(uint8_t out[BASE_SHA256_BYTES])
{
    memset(out, 0xd1, BASE_SHA256_BYTES);
}

static void sync_worker(struct bench *bench, uint64_t id, enum kind kind, int fronts)
{
    static struct scheduler_probe_result probes[PROBES];
    struct scheduler_dataset_held held = {.eligible = true};
    struct scheduler_front front[8];
    char addresses[64];
    snprintf(addresses, sizeof addresses, "10.%llu.%llu.%llu:7000", (unsigned long long)(id >> 16),
             (unsigned long long)(id >> 8 & 255), (unsigned long long)(id & 255));
    struct scheduler_worker_report report = {.id = id,
                                             .incarnation = bench->incarnation,
                                             .addresses = addresses,
                                             .weight = (double)(4 << id % 3),
                                             .queue_ms = (double)draw(bench, 40),
                                             .datasets = &held,
                                             .dataset_count = 1,
                                             .probes = probes,
                                             .fronts = front};
    version(held.version);
    const struct scheduler_stream *probe;
    while (report.probe_count < PROBES &&
           (probe = scheduler_cluster_probe_at(bench->cluster, id, report.probe_count))) {
        memcpy(probes[report.probe_count].key, probe->hash, sizeof probe->hash);
        memset(probes[report.probe_count++].fingerprint, 0xaa, sizeof probes->fingerprint);
    }
    int streams = scheduler_cluster_stream_count(bench->cluster);
    for (; streams > 0 && report.front_count < fronts; report.front_count++) {
        const struct scheduler_live_stream *stream =
            scheduler_cluster_stream_at(bench->cluster, (int)draw(bench, (uint64_t)streams));
        front[report.front_count] = (struct scheduler_front){.position = draw(bench, 1000000)};
        memcpy(front[report.front_count].stream, stream->identity.hash, BASE_SHA256_BYTES);
    }
    int64_t begun_ns = cpu_ns();
    if (scheduler_cluster_worker_sync(bench->cluster, bench->now_ns, &report, NULL))
        abort();
    note(bench, kind, begun_ns);
}

static void open_job(struct bench *bench, int job)
{
    char id[32];
    struct scheduler_job_request request = {.job = id,
                                            .world = WORLD,
                                            .batch = 64,
                                            .dataset = "set",
                                            .items = 1281167,
                                            .shuffle = true,
                                            .has_seed = true,
                                            .seed = (uint64_t)(job % bench->streams),
                                            .sample_text = bench->text,
                                            .pipeline_text = bench->text,
                                            .generation = ++bench->generation[job]};
    snprintf(id, sizeof id, "job-%d", job);
    version(request.dataset_version);
    for (request.rank = 0; request.rank < WORLD; request.rank++) {
        int64_t begun_ns = cpu_ns();
        if (scheduler_cluster_job_open(bench->cluster, bench->now_ns, &request, NULL))
            abort();
        note(bench, OPEN, begun_ns);
    }
}

static void job_event(struct bench *bench, int job, enum kind kind)
{
    char id[32];
    struct scheduler_job_report report = {
        .job = id, .generation = bench->generation[job], .has_cursor = true};
    snprintf(id, sizeof id, "job-%d", job);
    const struct scheduler_job *view = scheduler_cluster_job(bench->cluster, id);
    report.at = view ? view->at : (struct scheduler_cursor){0};
    report.at.position = (report.at.position + 256) % 1281167;
    for (report.rank = 0; report.rank < WORLD; report.rank++) {
        int64_t begun_ns = cpu_ns();
        if (kind == CLOSE)
            scheduler_cluster_job_close(bench->cluster, bench->now_ns, &report, NULL);
        else
            scheduler_cluster_job_sync(bench->cluster, bench->now_ns, &report, NULL);
        note(bench, kind, begun_ns);
    }
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_row(const char *name, uint32_t *us10, int count)
{
    qsort(us10, (size_t)count, sizeof *us10, compare);
    if (count > 0)
        printf("%-16s %9d %10.1f %10.1f %10.1f %10.1f\n", name, count, us10[count / 2] / 10.,
               us10[(size_t)count * 99 / 100] / 10., us10[(size_t)count * 999 / 1000] / 10.,
               us10[count - 1] / 10.);
}

static void print(struct bench *bench, const char *what)
{
    int total = 0;
    for (int k = 0; k < KINDS; k++)
        total += bench->count[k];
    uint32_t *all = malloc(((size_t)total + 1) * sizeof *all);
    struct rusage usage;
    struct scheduler_cluster_counts counts = scheduler_cluster_counts(bench->cluster);
    if (!all)
        abort();
    total = 0;
    printf("%s\n%-16s %9s %10s %10s %10s %10s\n", what, "step", "count", "median us", "p99 us", "p99.9 us",
           "worst us");
    for (int k = 0; k < KINDS; k++) {
        if (bench->count[k] > 0)
            memcpy(all + total, bench->us10[k], (size_t)bench->count[k] * sizeof *all);
        total += bench->count[k];
        print_row(kind_names[k], bench->us10[k], bench->count[k]);
        bench->count[k] = 0;
    }
    print_row("all", all, total);
    free(all);
    getrusage(RUSAGE_SELF, &usage);
    printf("plans made %llu, slots moved %llu; resident at most %ld MB\n\n",
           (unsigned long long)counts.plan_changes, (unsigned long long)counts.slots_moved,
           usage.ru_maxrss / 1024);
}

static void begin(struct bench *bench)
{
    for (int i = 0; i < bench->workers; i++) {
        bench->now_ns += MS / 4;
        sync_worker(bench, (uint64_t)i + 1, JOIN, 0);
        settle(bench, 4);
    }
    for (int i = 0; i < bench->jobs; i++) {
        bench->now_ns += MS;
        open_job(bench, i);
        settle(bench, 4);
    }
    for (int i = 0; i < bench->workers; i++) {
        bench->now_ns += MS / 8;
        while (scheduler_cluster_probe_at(bench->cluster, (uint64_t)i + 1, 0))
            sync_worker(bench, (uint64_t)i + 1, PROBED, 0);
        settle(bench, 4);
    }
    for (int i = 0; i < 3000; i++) {
        bench->now_ns += MS / 2;
        settle(bench, 64);
    }
}

static void event(struct bench *bench, int i)
{
    uint64_t worker = 1 + (uint64_t)i % (uint64_t)bench->workers, what = draw(bench, 1000);
    int job = (int)draw(bench, (uint64_t)bench->jobs);
    bench->now_ns += MS / 3; /* all workers within 3.3 s */
    if (what < 400)
        job_event(bench, job, CURSOR);
    if (what == 999) {
        int64_t begun_ns = cpu_ns();
        scheduler_cluster_worker_leave(bench->cluster, bench->now_ns, worker, bench->incarnation);
        note(bench, DEATH, begun_ns);
    } else {
        sync_worker(bench, worker, scheduler_cluster_worker(bench->cluster, worker) ? WORKER : JOIN, 4);
        while (scheduler_cluster_probe_at(bench->cluster, worker, 0))
            sync_worker(bench, worker, PROBED, 0);
    }
    if (what >= 990 && what < 993) {
        job_event(bench, job, CLOSE);
        open_job(bench, job);
    }
    settle(bench, 8);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.workers = 10000, .jobs = 1000, .streams = 100, .incarnation = 1};
    struct scheduler_pipeline pipeline;
    struct base_error error = {0};
    int *sizes[] = {&bench.workers, &bench.jobs, &bench.streams};
    for (int i = 1; i < argc && i <= 3; i++)
        if ((*sizes[i - 1] = atoi(argv[i])) < 1) {
            fprintf(stderr, "usage: cluster_bench [WORKERS [JOBS [STREAMS]]]\n");
            return 2;
        }
    bench.generation = calloc((size_t)bench.jobs + 1, sizeof *bench.generation);
    bench.now_ns = BASE_NS_PER_S;
    if (!bench.generation || scheduler_pipeline_parse("imagenet_train", NULL, 0, &pipeline, &error) ||
        scheduler_pipeline_print(&pipeline, "sample", bench.text, sizeof bench.text, &error) ||
        scheduler_cluster_create(&bench.cluster, NULL, &error)) {
        fprintf(stderr, "cluster_bench: %s\n", error.text);
        return 1;
    }
    begin(&bench);
    printf("%d workers, %d jobs of %d ranks, %d streams\n\n", scheduler_cluster_worker_count(bench.cluster),
           scheduler_cluster_job_count(bench.cluster), WORLD, scheduler_cluster_stream_count(bench.cluster));
    print(&bench, "all come");
    for (int i = 0; i < EVENTS; i++)
        event(&bench, i);
    print(&bench, "running");
    scheduler_cluster_destroy(bench.cluster);
    for (int k = 0; k < KINDS; k++)
        free(bench.us10[k]);
    free(bench.generation);
    return 0;
}

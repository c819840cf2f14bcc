/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace bench: what this machine prepares and what the data plane carries, in one run.
 *   1. fork the socket copy's sender and start a cluster of our own (unless --server names one)
 *   2. --against: another loader's figures (against.h); first, as it may fail
 *   3. preparation: imagenet_train through the whole system, after an epoch to warm up
 *   4. data plane: a staged imagenet_eval stream by sockets, through memory where the worker is on this host and of this user, and a plain
 *      socket copy with messages of the same sizes, in turn, five times each; rounds side by side are compared, and the medians are told.
 *   5. hand-off: batches of the same stream that have labels only, through memory, five times: wall time from batch to batch of a trainer
 *      that does nothing else, with the usual look-ahead. All that a batch costs but for its bytes: requests, references to the rows of
 *      each block, their hashes, the trainer's wake-up and release; with the CPU time of worker and client for it
 */
#include "client/cli/cli.h"
#include "client/cli/against.h"
#include "client/cli/cluster.h"
#include "client/cli/copy.h"

#include "base/clock.h"
#include "base/limits.h"
#include "client/include/millrace/millrace.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 5, LOOK_AHEAD = 2, WAIT_MS = 60000, SLICE_MS = 250, PHOTOS = 400 };

struct options {
    struct cli_common common;
    int64_t seconds, batch, threads;
    const char *staging, *against;
    bool finish;
};

static const struct base_option table[] = {
    {"server", BASE_OPTION_TEXT, NULL, "HOST:PORT", "measure this cluster; not given: one is started here",
     offsetof(struct options, common.server), 0, 0},
    {"secret-file", BASE_OPTION_TEXT, NULL, "FILE", "the cluster's secret",
     offsetof(struct options, common.secret_file), 0, 0},
    {"timeout-ms", BASE_OPTION_INT, "10000", "MS", "longest wait for an answer of the server",
     offsetof(struct options, common.timeout_ms), 1, INT32_MAX},
    {"json", BASE_OPTION_BOOL, NULL, NULL, "print JSON", offsetof(struct options, common.json), 0, 0},
    {"seconds", BASE_OPTION_INT, "10", "S", "for preparation; each round of the data plane takes a fifth",
     offsetof(struct options, seconds), 1, 3600},
    {"batch", BASE_OPTION_INT, "64", "ROWS", "rows of a batch", offsetof(struct options, batch), 1, 65535},
    {"threads", BASE_OPTION_INT, "0", "N", "prep threads of our own worker; 0: all cores but one",
     offsetof(struct options, threads), 0, 1024},
    {"staging", BASE_OPTION_TEXT, "512MiB", "BYTES", "memory of our own worker for prepared rows",
     offsetof(struct options, staging), 0, 0},
    {"finish", BASE_OPTION_BOOL, NULL, NULL, "float32, normalised, as the preset finishes; else u8",
     offsetof(struct options, finish), 0, 0},
    {"against", BASE_OPTION_TEXT, NULL, "FILE.py|COMMAND",
     "measure it, too: loader() of the file gives batches; a command prints `images/s X` and `cpu_s/1000 Y`",
     offsetof(struct options, against), 0, 0},
};
const struct base_options cli_bench_options = {
    "millrace bench",
    "[DATASET | FOLDER] [options]",
    "Measures images/s of imagenet_train through the whole system, and GB/s and CPU time of the data plane "
    "beside a plain socket\n"
    "copy, by sockets and through memory. FOLDER, a path with a slash, has images (nothing given: "
    "photographs are made); DATASET one of the "
    "cluster that "
    "--server names.",
    table,
    sizeof table / sizeof *table,
    0,
    1};

/* How rows come. */
enum path { SOCKETS, MEMORY, PATHS };

struct rate {
    uint64_t rows, batches, bytes, requests;
    uint64_t memory_bytes; /* of those that came: not by sockets */
    double wall_s, worker_cpu_s, client_cpu_s;
};

struct bench {
    const struct options *options;
    struct cli_copy *copy;
    struct cli_cluster *cluster; /* NULL: somebody else's */
    struct mr_client *client;
    char state[PATH_MAX]; /* our own folder; "": none */
    char dataset[PATH_MAX];
    struct rate prep, planes[PATHS][ROUNDS], labels[ROUNDS]; /* labels: alone, through memory */
    bool has_memory;                                         /* rows can come so */
    struct cli_copy_result copied[ROUNDS];
    struct cli_against against;
    int64_t look_ns; /* for a signal, again */
    int signal;      /* that ended it; 0: none */
};

static enum base_code from_mr(const struct mr_error *cause, struct base_error *error)
{
    return base_error_set(error, (enum base_code)cause->code, "%s", cause->text);
}

/* ---- a cluster of our own ---- */

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *walk)
{
    (void)stat;
    (void)type;
    (void)walk;
    return remove(path);
}

static enum base_code make_photos(const struct bench *bench, char folder[PATH_MAX], struct base_error *error)
{
    char self[PATH_MAX], command[3 * PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    self[size > 0 ? size : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    snprintf(folder, PATH_MAX, "%.*s/photos", PATH_MAX - 16, bench->state);
    snprintf(command, sizeof command, "'%s/millrace-photos' '%s' %d >/dev/null", self, folder, PHOTOS);
    fprintf(stderr, "millrace bench: no folder given: making %d photograph-like files\n", PHOTOS);
    return system(command) == 0 ? BASE_OK
                                : base_error_set(error, BASE_UNAVAILABLE, "%s/millrace-photos failed", self);
}

static enum base_code start_cluster(struct bench *bench, const char *folder, struct base_error *error)
{
    const struct options *o = bench->options;
    int cores = base_limits_cores();
    struct cli_cluster_options what = {.workers = 1,
                                       .threads = o->threads  ? (int)o->threads
                                                  : cores > 1 ? cores - 1
                                                              : 1,
                                       .listen = "127.0.0.1:0",
                                       .http = "127.0.0.1:0",
                                       .state = bench->state,
                                       .staging = o->staging,
                                       .data_roots = &folder,
                                       .data_root_count = 1};
    return cli_cluster_start(&bench->cluster, &what, WAIT_MS, error);
}

static enum base_code register_folder(struct bench *bench, const struct cli_common *common,
                                      const char *folder, struct base_error *error)
{
    Millrace__V1__DatasetAdd request = MILLRACE__V1__DATASET_ADD__INIT;
    ProtobufCMessage *reply = NULL;
    request.name = bench->dataset;
    request.path = (char *)(uintptr_t)folder;
    request.wait_ms = WAIT_MS;
    enum base_code code = cli_call(
        common, &(struct rpc_request){&millrace__v1__datasets__descriptor, "Add", &request.base, 2 * WAIT_MS},
        &reply, error);
    cli_free(reply);
    return code;
}

static enum base_code begin_own(struct bench *bench, const char *given, struct cli_common *common,
                                struct base_error *error)
{
    const char *tmp = getenv("TMPDIR");
    char folder[PATH_MAX];
    snprintf(bench->state, sizeof bench->state, "%s/millrace-bench-XXXXXX",
             tmp && *tmp == '/' ? tmp : "/tmp");
    if (!mkdtemp(bench->state))
        return base_error_errno(error, errno, "%s", bench->state);
    enum base_code code = BASE_OK;
    if (!given)
        code = make_photos(bench, folder, error);
    else if (!realpath(given, folder))
        code = base_error_errno(error, errno, "%s", given);
    if (code == BASE_OK)
        code = start_cluster(bench, folder, error);
    if (code != BASE_OK)
        return code;
    common->server = cli_cluster_address(bench->cluster);
    snprintf(bench->dataset, sizeof bench->dataset, "bench");
    return register_folder(bench, common, folder, error);
}

static enum base_code begin(struct bench *bench, const char *given, struct base_error *error)
{
    struct cli_common common = bench->options->common;
    enum base_code code = cli_copy_start(&bench->copy, error);
    if (given && strchr(given, '/')) /* a folder, whatever $MILLRACE_SERVER says */
        common.server = NULL;
    if (code == BASE_OK && common.server && !given)
        code =
            base_error_set(error, BASE_INVALID, "with --server, DATASET is the name of one of its datasets");
    else if (code == BASE_OK && common.server)
        snprintf(bench->dataset, sizeof bench->dataset, "%s", given);
    else if (code == BASE_OK)
        code = begin_own(bench, given, &common, error);
    if (code != BASE_OK)
        return code;
    struct mr_error cause;
    struct mr_client_options where = {
        .size = sizeof where, .server = common.server, .secret_file = common.secret_file};
    return mr_client_open(&bench->client, &where, &cause) == MR_OK ? BASE_OK : from_mr(&cause, error);
}

static void end(struct bench *bench)
{
    if (bench->client)
        mr_client_close(&bench->client);
    cli_cluster_stop(&bench->cluster, 2000);
    cli_copy_stop(&bench->copy);
    if (bench->state[0])
        nftw(bench->state, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- measuring ---- */

struct wanted {
    const char *pipeline, *field; /* NULL: the usual ones */
    enum path path;
};

static enum base_code open_job(struct bench *bench, const struct wanted *wanted, struct mr_job **job,
                               uint64_t *items, struct base_error *error)
{
    struct mr_error cause;
    const char *fields[] = {wanted->field, NULL};
    struct mr_job_options what = {.size = sizeof what,
                                  .dataset = bench->dataset,
                                  .pipeline = wanted->pipeline,
                                  .fields = wanted->field ? fields : NULL,
                                  .sockets_only = wanted->path == SOCKETS,
                                  .batch = (uint32_t)bench->options->batch,
                                  .look_ahead = LOOK_AHEAD,
                                  .tail = MR_TAIL_EXACT,
                                  .on_bad = MR_ON_BAD_REPLACE,
                                  .apply_finish = bench->options->finish && !wanted->field};
    if (mr_job_open(job, bench->client, &what, WAIT_MS, &cause) != MR_OK)
        return from_mr(&cause, error);
    struct mr_job_info info = {.size = sizeof info};
    mr_job_info(*job, &info, NULL);
    *items = info.items;
    return BASE_OK;
}

static bool interrupted(struct bench *bench, struct base_error *error)
{
    bool any_left;
    bench->signal = bench->cluster ? cli_cluster_watch(bench->cluster, 0, &any_left) : 0;
    if (bench->signal != 0)
        base_error_set(error, BASE_CANCELLED, "interrupted");
    return bench->signal != 0;
}

/* Looks now and then only: it would be a part of what a batch costs. */
static bool looks_interrupted(struct bench *bench, struct base_error *error)
{
    int64_t now_ns = base_clock_now_ns();
    if (now_ns < bench->look_ns)
        return false;
    bench->look_ns = now_ns + SLICE_MS * BASE_NS_PER_MS;
    return interrupted(bench, error);
}

/* In slices, so that a signal is heard while nothing comes. */
static enum base_code next(struct bench *bench, struct mr_job *job, struct mr_batch **batch,
                           struct base_error *error)
{
    int64_t deadline_ns = base_clock_deadline_ns(WAIT_MS);
    struct mr_error cause;
    enum mr_code code;
    do {
        if (looks_interrupted(bench, error))
            return BASE_CANCELLED;
        code = mr_job_next(job, batch, SLICE_MS, &cause);
    } while (code == MR_TIMEOUT && base_clock_now_ns() < deadline_ns);
    return code == MR_OK ? BASE_OK : from_mr(&cause, error);
}

/* Takes batches until `rows` have come and `seconds` have passed. */
static enum base_code take(struct bench *bench, struct mr_job *job, uint64_t rows, double seconds,
                           struct rate *rate, struct base_error *error)
{
    struct mr_job_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    double client_cpu_s = cli_copy_cpu_s(), worker_cpu_s = 0;
    if (bench->cluster)
        worker_cpu_s = cli_cluster_worker_cpu_s(bench->cluster);
    mr_job_stats(job, &before);
    int64_t start_ns = base_clock_now_ns();
    do {
        struct mr_batch *batch;
        enum base_code code = next(bench, job, &batch, error);
        if (code != BASE_OK)
            return code;
        rate->rows += batch->rows;
        rate->batches++;
        mr_batch_release(batch);
        rate->wall_s = (double)(base_clock_now_ns() - start_ns) / 1e9;
    } while (rate->rows < rows || rate->wall_s < seconds);
    mr_job_stats(job, &after);
    rate->bytes = after.bytes - before.bytes;
    rate->requests = after.requests - before.requests;
    rate->memory_bytes = after.memory_bytes - before.memory_bytes;
    rate->client_cpu_s = cli_copy_cpu_s() - client_cpu_s;
    if (bench->cluster)
        rate->worker_cpu_s = cli_cluster_worker_cpu_s(bench->cluster) - worker_cpu_s;
    return BASE_OK;
}

static enum base_code measure_prep(struct bench *bench, struct base_error *error)
{
    struct mr_job *job = NULL;
    uint64_t items = 0;
    struct rate warm = {0};
    struct wanted train = {.pipeline = "imagenet_train", .path = MEMORY};
    enum base_code code = open_job(bench, &train, &job, &items, error);
    if (code == BASE_OK)
        code = take(bench, job, items, 0, &warm, error);
    if (code == BASE_OK)
        code = take(bench, job, 1, (double)bench->options->seconds, &bench->prep, error);
    mr_job_close(&job);
    return code;
}

/* The same sizes: what one request brought, from and to as much memory as the stream and the slots have. */
static struct cli_copy_work work_like(const struct bench *bench, const struct rate *plane, uint64_t items)
{
    uint64_t row = plane->rows ? plane->bytes / plane->rows : 1;
    size_t message = (size_t)(plane->requests ? plane->bytes / plane->requests : row);
    size_t slots = (size_t)(row * (uint64_t)bench->options->batch) * (LOOK_AHEAD + 1);
    size_t set = (size_t)(row * items);
    message = message ? message : 1;
    return (struct cli_copy_work){.message_bytes = message,
                                  .sent_set_bytes = set > message ? set : message,
                                  .received_set_bytes = slots > message ? slots : message,
                                  .duration_ns = bench->options->seconds * BASE_NS_PER_S / ROUNDS};
}

/* Until all slots are full: what the client still receives would count as the socket copy's CPU time. */
static enum base_code settle(struct mr_job *job, struct base_error *error)
{
    int64_t deadline_ns = base_clock_deadline_ns(WAIT_MS);
    struct mr_job_stats stats = {.size = sizeof stats};
    while (mr_job_stats(job, &stats) == MR_OK && stats.ready <= LOOK_AHEAD) {
        if (base_clock_now_ns() >= deadline_ns)
            return base_error_set(error, BASE_TIMEOUT, "data plane: its slots did not fill");
        poll(NULL, 0, 1);
    }
    return BASE_OK;
}

/* A round that begins, as it ends, with slots that are being filled: those that are full already are not counted. */
static enum base_code plane_round(struct bench *bench, struct mr_job *job, struct rate *rate,
                                  struct base_error *error)
{
    struct rate full = {0};
    enum base_code code =
        take(bench, job, (LOOK_AHEAD + 1) * (uint64_t)bench->options->batch, 0, &full, error);
    if (code == BASE_OK)
        code = take(bench, job, 1, (double)bench->options->seconds / ROUNDS, rate, error);
    return code == BASE_OK ? settle(job, error) : code;
}

/* Rounds of each path and of the socket copy, in turn. */
static enum base_code rounds(struct bench *bench, struct mr_job *const jobs[PATHS], uint64_t items,
                             struct base_error *error)
{
    enum base_code code = BASE_OK;
    for (int i = 0; code == BASE_OK && i < ROUNDS; i++) {
        for (int p = 0; code == BASE_OK && p < PATHS; p++)
            code = plane_round(bench, jobs[p], &bench->planes[p][i], error);
        struct cli_copy_work work = work_like(bench, &bench->planes[SOCKETS][i], items);
        if (code == BASE_OK)
            code = cli_copy_run(bench->copy, &work, &bench->copied[i], error);
    }
    return code;
}

static enum base_code measure_plane(struct bench *bench, struct base_error *error)
{
    struct mr_job *jobs[PATHS] = {NULL};
    uint64_t items = 0;
    enum base_code code = BASE_OK;
    for (int p = 0; code == BASE_OK && p < PATHS; p++) {
        struct wanted eval = {.pipeline = "imagenet_eval", .path = (enum path)p};
        struct rate staged = {0};
        code = open_job(bench, &eval, &jobs[p], &items, error);
        if (code == BASE_OK)
            code = take(bench, jobs[p], 2 * items, 0, &staged, error);
        bench->has_memory = staged.memory_bytes > 0;
    }
    if (code == BASE_OK)
        code = rounds(bench, jobs, items, error);
    for (int p = 0; p < PATHS; p++)
        mr_job_close(&jobs[p]);
    return code;
}

static enum base_code measure_labels(struct bench *bench, struct base_error *error)
{
    struct mr_job *job = NULL;
    uint64_t items = 0;
    struct rate warm = {0};
    struct wanted labels = {.pipeline = "imagenet_eval", .field = "label", .path = MEMORY};
    enum base_code code = open_job(bench, &labels, &job, &items, error);
    if (code == BASE_OK)
        code = take(bench, job, 2 * items, 0, &warm, error);
    for (int i = 0; code == BASE_OK && i < ROUNDS; i++)
        code =
            take(bench, job, 1, (double)bench->options->seconds / ROUNDS / ROUNDS, &bench->labels[i], error);
    mr_job_close(&job);
    return code;
}

static enum base_code measure_against(struct bench *bench, struct base_error *error)
{
    enum base_code code =
        cli_against_run(bench->options->against, bench->options->seconds, &bench->against, error);
    return code != BASE_OK && interrupted(bench, error) ? BASE_CANCELLED : code;
}

/* ---- telling ---- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

struct plane {
    double gb_s, sender_cpu_s_gb, receiver_cpu_s_gb; /* CPU: 0 where it is not known */
};

struct figures {
    double images_s, images_s_core, cpu_s_1000; /* 0: not known */
    struct plane ours[PATHS], copy;
    /* Of rounds side by side: what else the machine does hits both alike. */
    double gb_s_ratio, cpu_ratio;               /* sockets to socket copy */
    double memory_gb_s_ratio, memory_cpu_ratio; /* memory to sockets */
    double handoff_us, handoff_cpu_us;          /* a batch: wall time; CPU time of both ends */
    double handoff_messages;
};

static struct plane plane_of(uint64_t bytes, double wall_s, double sender_cpu_s, double receiver_cpu_s)
{
    double gb = (double)bytes / 1e9;
    return (struct plane){gb / wall_s, sender_cpu_s / gb, receiver_cpu_s / gb};
}

static double cpu_of(const struct plane *plane)
{
    return plane->sender_cpu_s_gb + plane->receiver_cpu_s_gb;
}

static struct plane median_plane(const struct plane planes[ROUNDS])
{
    double gb_s[ROUNDS], sender[ROUNDS], receiver[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        gb_s[i] = planes[i].gb_s;
        sender[i] = planes[i].sender_cpu_s_gb;
        receiver[i] = planes[i].receiver_cpu_s_gb;
    }
    return (struct plane){median(gb_s), median(sender), median(receiver)};
}

/* Medians of the ratios of rounds side by side. */
static void compare(const struct plane a[ROUNDS], const struct plane b[ROUNDS], double *gb_s_ratio,
                    double *cpu_ratio)
{
    double gb_s[ROUNDS], cpu[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        gb_s[i] = a[i].gb_s / b[i].gb_s;
        cpu[i] = cpu_of(&a[i]) / cpu_of(&b[i]);
    }
    *gb_s_ratio = median(gb_s);
    *cpu_ratio = median(cpu);
}

static void compare_planes(const struct bench *bench, struct figures *f)
{
    struct plane ours[PATHS][ROUNDS], copy[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const struct cli_copy_result *copied = &bench->copied[i];
        copy[i] = plane_of(copied->bytes, copied->wall_s, copied->sender_cpu_s, copied->receiver_cpu_s);
        for (int p = 0; p < PATHS; p++) {
            const struct rate *rate = &bench->planes[p][i];
            ours[p][i] = plane_of(rate->bytes, rate->wall_s, rate->worker_cpu_s, rate->client_cpu_s);
        }
    }
    for (int p = 0; p < PATHS; p++)
        f->ours[p] = median_plane(ours[p]);
    f->copy = median_plane(copy);
    compare(ours[SOCKETS], copy, &f->gb_s_ratio, &f->cpu_ratio);
    compare(ours[MEMORY], ours[SOCKETS], &f->memory_gb_s_ratio, &f->memory_cpu_ratio);
}

static void figure_handoff(const struct bench *bench, struct figures *f)
{
    double wall_us[ROUNDS], cpu_us[ROUNDS], messages[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const struct rate *labels = &bench->labels[i];
        double batches = (double)labels->batches;
        wall_us[i] = 1e6 * labels->wall_s / batches;
        cpu_us[i] = 1e6 * (labels->worker_cpu_s + labels->client_cpu_s) / batches;
        messages[i] = (double)labels->requests / batches;
    }
    f->handoff_us = median(wall_us);
    f->handoff_cpu_us = median(cpu_us);
    f->handoff_messages = median(messages);
}

static struct figures figure(const struct bench *bench)
{
    const struct rate *prep = &bench->prep;
    struct figures f = {.images_s = (double)prep->rows / prep->wall_s};
    compare_planes(bench, &f);
    figure_handoff(bench, &f);
    if (bench->cluster) {
        f.images_s_core = f.images_s / cli_cluster_threads(bench->cluster);
        f.cpu_s_1000 = 1000 * (prep->worker_cpu_s + prep->client_cpu_s) / (double)prep->rows;
    }
    return f;
}

/* A prep core of ours beside what the other program does (with one worker, it is meant). */
static double ratio_of(const struct bench *bench, const struct figures *f)
{
    return (f->images_s_core > 0 ? f->images_s_core : f->images_s) / bench->against.images_s;
}

static void print_plane(const char *name, const struct plane *plane, bool both_known)
{
    printf("  %-11s  %4.2f  ", name, plane->gb_s);
    if (both_known)
        printf("    %4.2f    %4.2f      %4.2f\n", cpu_of(plane), plane->sender_cpu_s_gb,
               plane->receiver_cpu_s_gb);
    else
        printf("       -       -      %4.2f\n", plane->receiver_cpu_s_gb);
}

static void print_ratio(double gb_s, double cpu, bool cpu_known)
{
    printf("  ratio       %4.2fx", gb_s);
    if (cpu_known)
        printf("     %4.2fx", cpu);
    printf("\n");
}

static void print_text(const struct bench *bench, const struct figures *f)
{
    const struct rate *plane = &bench->planes[SOCKETS][0];
    printf("preparation, imagenet_train, %s\n", bench->options->finish ? "float32" : "u8");
    printf("  images/s            %.1f\n", f->images_s);
    if (bench->cluster) {
        printf("  per prep core       %.1f  (%d)\n", f->images_s_core, cli_cluster_threads(bench->cluster));
        printf("  CPU-s/1000 images   %.2f  (worker and client)\n", f->cpu_s_1000);
    }
    if (bench->options->against) {
        printf("  against             %.1f images/s", bench->against.images_s);
        if (bench->against.cpu_s_1000 > 0)
            printf(", %.2f CPU-s/1000", bench->against.cpu_s_1000);
        printf("\n  ratio               %.2fx", ratio_of(bench, f));
        if (bench->against.cpu_s_1000 > 0 && f->cpu_s_1000 > 0)
            printf(", by CPU time %.2fx", bench->against.cpu_s_1000 / f->cpu_s_1000);
        printf("\n");
    }
    printf("data plane, staged imagenet_eval, %.0f kB a message, medians of %d\n",
           plane->requests ? (double)plane->bytes / (double)plane->requests / 1e3 : 0, ROUNDS);
    printf("               GB/s  CPU-s/GB  sender  receiver\n");
    print_plane("sockets", &f->ours[SOCKETS], bench->cluster != NULL);
    print_plane("socket copy", &f->copy, true);
    print_ratio(f->gb_s_ratio, f->cpu_ratio, bench->cluster != NULL);
    if (!bench->has_memory) {
        printf("  memory       not used: the worker is on another host or another user's\n");
        return;
    }
    print_plane("memory", &f->ours[MEMORY], bench->cluster != NULL);
    print_ratio(f->memory_gb_s_ratio, f->memory_cpu_ratio, bench->cluster != NULL);
    printf("hand-off, labels only, through memory, medians of %d\n", ROUNDS);
    printf("  us a batch of %-5" PRId64 " %.1f  in %.1f messages\n", bench->options->batch, f->handoff_us,
           f->handoff_messages);
    if (bench->cluster)
        printf("  CPU-us a batch      %.1f  (worker and client)\n", f->handoff_cpu_us);
}

static void print_json(const struct bench *bench, const struct figures *f)
{
    struct base_buffer out;
    struct base_json json;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    base_json_object(&json, NULL);
    base_json_object(&json, "prep");
    base_json_double(&json, "images_per_s", f->images_s);
    base_json_double(&json, "images_per_s_per_core", f->images_s_core);
    base_json_double(&json, "cpu_s_per_1000", f->cpu_s_1000);
    if (bench->options->against) {
        base_json_double(&json, "against_images_per_s", bench->against.images_s);
        base_json_double(&json, "against_cpu_s_per_1000", bench->against.cpu_s_1000);
        base_json_double(&json, "ratio", ratio_of(bench, f));
    }
    base_json_object_end(&json);
    base_json_object(&json, "plane");
    base_json_double(&json, "gb_per_s", f->ours[SOCKETS].gb_s);
    base_json_double(&json, "cpu_s_per_gb", cpu_of(&f->ours[SOCKETS]));
    base_json_double(&json, "worker_cpu_s_per_gb", f->ours[SOCKETS].sender_cpu_s_gb);
    base_json_double(&json, "client_cpu_s_per_gb", f->ours[SOCKETS].receiver_cpu_s_gb);
    base_json_double(&json, "copy_gb_per_s", f->copy.gb_s);
    base_json_double(&json, "copy_cpu_s_per_gb", cpu_of(&f->copy));
    base_json_double(&json, "copy_sender_cpu_s_per_gb", f->copy.sender_cpu_s_gb);
    base_json_double(&json, "copy_receiver_cpu_s_per_gb", f->copy.receiver_cpu_s_gb);
    base_json_double(&json, "gb_per_s_ratio", f->gb_s_ratio);
    base_json_double(&json, "cpu_ratio", f->cpu_ratio);
    base_json_object_end(&json);
    if (bench->has_memory) {
        base_json_object(&json, "memory");
        base_json_double(&json, "gb_per_s", f->ours[MEMORY].gb_s);
        base_json_double(&json, "cpu_s_per_gb", cpu_of(&f->ours[MEMORY]));
        base_json_double(&json, "gb_per_s_ratio", f->memory_gb_s_ratio);
        base_json_double(&json, "cpu_ratio", f->memory_cpu_ratio);
        base_json_double(&json, "handoff_us", f->handoff_us);
        base_json_double(&json, "handoff_cpu_us", f->handoff_cpu_us);
        base_json_double(&json, "handoff_messages", f->handoff_messages);
        base_json_object_end(&json);
    }
    base_json_object_end(&json);
    cli_flush(&out);
}

int cli_bench(int argc, char **argv)
{
    static struct options options;
    static struct bench bench;
    struct base_options_rest rest;
    struct base_error error;
    int status;
    if (!cli_parse(&cli_bench_options, argc, argv, &options, &rest, &status))
        return status;
    bench.options = &options;
    enum base_code code = begin(&bench, rest.count ? rest.positional[0] : NULL, &error);
    if (code == BASE_OK && options.against)
        code = measure_against(&bench, &error);
    if (code == BASE_OK)
        code = measure_prep(&bench, &error);
    if (code == BASE_OK)
        code = measure_plane(&bench, &error);
    if (code == BASE_OK)
        code = measure_labels(&bench, &error);
    if (code == BASE_OK) {
        struct figures figures = figure(&bench);
        options.common.json ? print_json(&bench, &figures) : print_text(&bench, &figures);
    }
    if (code == BASE_OK)
        interrupted(&bench, &error);
    end(&bench);
    if (bench.signal != 0)
        return CLI_EXIT_SIGNAL + bench.signal;
    return code == BASE_OK ? CLI_EXIT_OK : cli_fail("millrace bench", options.common.json, &error);
}

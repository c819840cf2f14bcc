/* SPDX-License-Identifier: Apache-2.0 */
/*
 * millrace run: trainers that do not train. Each job is a thread with a client of its own, as separate programs would be; the main
 * thread draws a bar for each and, at the end, a table.
 */
#include "client/cli/cli.h"

#include "base/clock.h"
#include "client/include/millrace/millrace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS_MAX = 64, SLICE_MS = 250, DRAW_MS = 200, PLAIN_DRAW_MS = 5000, BAR_CHARS = 30, SETTLE_MS = 3000 };

struct options {
    struct cli_common common;
    int64_t jobs, epochs, batch, wait_ms;
    const char *transforms, *seed, *ledger, *weight_text, *join_text;
    enum mr_join join;
    double weight;
    struct base_option_list options;
    bool quiet;
};

static const struct base_option table[] = {
    CLI_COMMON_ROWS,
    {"jobs", BASE_OPTION_INT, "1", "N", "jobs at once", offsetof(struct options, jobs), 1, JOBS_MAX},
    {"epochs", BASE_OPTION_INT, "1", "N", "epochs of each", offsetof(struct options, epochs), 1, UINT32_MAX},
    {"batch", BASE_OPTION_INT, "64", "ROWS", "rows of a batch", offsetof(struct options, batch), 1, 65535},
    {"transforms", BASE_OPTION_TEXT, "imagenet_train", "NAME", "preset or pipeline text",
     offsetof(struct options, transforms), 0, 0},
    {"option", BASE_OPTION_LIST, NULL, "KEY=VALUE", "of the pipeline", offsetof(struct options, options), 0,
     0},
    {"seed", BASE_OPTION_TEXT, NULL, "S", "of another stream than the dataset's own",
     offsetof(struct options, seed), 0, 0},
    {"join", BASE_OPTION_TEXT, "now", "WHEN",
     "now, next (waits for the stream's next epoch) or partial (a short first one)",
     offsetof(struct options, join_text), 0, 0},
    {"weight", BASE_OPTION_TEXT, "1", "W", "of each job's share of the workers, 0.01 to 100",
     offsetof(struct options, weight_text), 0, 0},
    {"wait-ms", BASE_OPTION_INT, "60000", "MS", "longest wait for one batch, and to begin",
     offsetof(struct options, wait_ms), 1, INT32_MAX},
    {"ledger", BASE_OPTION_TEXT, NULL, "DIR",
     "folder for a ledger of each job, made if need be: see millrace audit", offsetof(struct options, ledger),
     0, 0},
    {"quiet", BASE_OPTION_BOOL, NULL, NULL, "no progress bars", offsetof(struct options, quiet), 0, 0},
};
const struct base_options cli_run_options = {
    "millrace run",
    "DATASET [options]",
    "Streams a dataset as so many training jobs would, without training: shows how fast batches come, how "
    "long each job waited\n"
    "(stall: nearly always, as nothing is trained), and how many items the workers prepared meanwhile, for "
    "other jobs, too.",
    table,
    sizeof table / sizeof *table,
    1,
    1};

struct run_job {
    pthread_t thread;
    const struct options *options;
    const char *dataset;
    const uint64_t *seed;
    int number;
    _Atomic bool *stop;
    _Atomic uint64_t rows, total, epoch; /* total: of all its epochs; 0: not known yet */
    _Atomic bool ended;
    int64_t start_ns, end_ns;
    struct mr_job_stats stats;
    enum mr_code code;
    struct mr_error error;
};

/* ---- one job ---- */

static enum mr_code stream(struct run_job *run, struct mr_job *job)
{
    int64_t deadline_ns = base_clock_deadline_ns(run->options->wait_ms);
    while (!atomic_load(run->stop)) {
        struct mr_batch *batch;
        enum mr_code code = mr_job_next(job, &batch, SLICE_MS, &run->error);
        if (code == MR_TIMEOUT && base_clock_now_ns() < deadline_ns)
            continue;
        if (code != MR_OK)
            return code == MR_END ? MR_OK : code;
        atomic_fetch_add(&run->rows, batch->valid_rows);
        atomic_store(&run->epoch, batch->epoch);
        mr_batch_release(batch);
        deadline_ns = base_clock_deadline_ns(run->options->wait_ms);
    }
    return MR_CANCELLED;
}

static enum mr_code open_and_stream(struct run_job *run, struct mr_client *client)
{
    const struct options *o = run->options;
    const char *keys[BASE_OPTIONS_LIST_MAX + 1] = {NULL};
    struct mr_job *job = NULL;
    memcpy(keys, o->options.values, (size_t)o->options.count * sizeof *keys);
    struct mr_job_options what = {.size = sizeof what,
                                  .dataset = run->dataset,
                                  .pipeline = o->transforms,
                                  .options = keys,
                                  .seed = run->seed,
                                  .join = o->join,
                                  .tail = MR_TAIL_EXACT,
                                  .on_bad = MR_ON_BAD_REPLACE,
                                  .batch = (uint32_t)o->batch,
                                  .epochs = (uint32_t)o->epochs,
                                  .ledger = o->ledger,
                                  .weight = o->weight};
    enum mr_code code = mr_job_open(&job, client, &what, o->wait_ms, &run->error);
    if (code != MR_OK)
        return code;
    struct mr_job_info info = {.size = sizeof info};
    if (mr_job_info(job, &info, NULL) == MR_OK)
        atomic_store(&run->total, info.items * (uint64_t)o->epochs);
    run->start_ns = base_clock_now_ns();
    code = stream(run, job);
    run->end_ns = base_clock_now_ns();
    run->stats.size = sizeof run->stats;
    mr_job_stats(job, &run->stats);
    mr_job_close(&job);
    return code;
}

static void *run_job(void *context)
{
    struct run_job *run = context;
    struct mr_client *client = NULL;
    struct mr_client_options where = {.size = sizeof where,
                                      .server = run->options->common.server,
                                      .secret_file = run->options->common.secret_file};
    run->code = mr_client_open(&client, &where, &run->error);
    if (run->code == MR_OK)
        run->code = open_and_stream(run, client);
    if (client)
        mr_client_close(&client);
    atomic_store(&run->ended, true);
    return NULL;
}

/* ---- bars ---- */

static void draw_bar(const struct run_job *run)
{
    uint64_t rows = atomic_load(&run->rows), total = atomic_load(&run->total);
    double part = total > 0 ? (double)rows / (double)total : 0;
    int full = (int)(part * BAR_CHARS);
    char bar[BAR_CHARS + 1];
    memset(bar, '-', BAR_CHARS);
    memset(bar, '#', (size_t)(full < BAR_CHARS ? full : BAR_CHARS));
    bar[BAR_CHARS] = 0;
    fprintf(stderr, "job %-2d  epoch %" PRIu64 "/%" PRId64 "  [%s] %3.0f%%  %" PRIu64 " rows%s", run->number,
            atomic_load(&run->epoch) + 1, run->options->epochs, bar, 100 * part, rows,
            total == 0 ? "  (waiting)" : "");
}

static void draw(const struct run_job *jobs, int count, bool terminal, bool again)
{
    if (terminal && again)
        fprintf(stderr, "\x1b[%dA", count);
    for (int i = 0; i < count; i++) {
        draw_bar(&jobs[i]);
        fputs(terminal ? "\x1b[K\n" : "\n", stderr);
    }
}

/* Until all have ended or a signal came, whose number is returned. */
static int watch(struct run_job *jobs, int count, const struct options *options)
{
    sigset_t set;
    bool terminal = isatty(2), again = false;
    int64_t drawn_ns = base_clock_now_ns() - (terminal ? BASE_NS_PER_S : 0);
    int64_t every_ns = (terminal ? DRAW_MS : PLAIN_DRAW_MS) * BASE_NS_PER_MS;
    const struct timespec wait = {0, 50 * BASE_NS_PER_MS};
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    for (;;) {
        int running = 0, number = sigtimedwait(&set, NULL, &wait);
        bool begun = false;
        for (int i = 0; i < count; i++) {
            running += !atomic_load(&jobs[i].ended);
            begun |= atomic_load(&jobs[i].total) > 0;
        }
        bool due = running == 0 || base_clock_now_ns() - drawn_ns >= every_ns;
        if (due && !options->quiet && (begun || running > 0)) {
            draw(jobs, count, terminal, again);
            again = true;
            drawn_ns = base_clock_now_ns();
        }
        if (number > 0 || running == 0)
            return number > 0 ? number : 0;
    }
}

/* ---- what the workers did ---- */

static uint64_t rows_made(const struct cli_common *common)
{
    ProtobufCMessage *reply = NULL;
    Millrace__V1__WorkersRequest request = MILLRACE__V1__WORKERS_REQUEST__INIT;
    uint64_t rows = 0;
    if (cli_call(common,
                 &(struct rpc_request){&millrace__v1__cluster__descriptor, "Workers", &request.base,
                                       common->timeout_ms},
                 &reply, NULL) != BASE_OK)
        return 0;
    const Millrace__V1__WorkersReply *workers = (const Millrace__V1__WorkersReply *)reply;
    for (size_t i = 0; i < workers->n_workers; i++)
        rows += workers->workers[i]->rows_made;
    cli_free(reply);
    return rows;
}

/* Workers tell the server what they made about once a second: waits until the count stands. */
static uint64_t rows_made_settled(const struct cli_common *common)
{
    uint64_t rows = rows_made(common);
    int64_t now_ns = base_clock_now_ns(), same_since_ns = now_ns,
            deadline_ns = now_ns + SETTLE_MS * BASE_NS_PER_MS;
    while (now_ns < deadline_ns && now_ns - same_since_ns < 3 * BASE_NS_PER_S / 2) {
        usleep(200000);
        uint64_t again = rows_made(common);
        now_ns = base_clock_now_ns();
        if (again != rows)
            same_since_ns = now_ns;
        rows = again;
    }
    return rows;
}

/* ---- the end ---- */

static double rate_of(const struct run_job *run)
{
    double seconds = (double)(run->end_ns - run->start_ns) / 1e9;
    return seconds > 0 ? (double)run->rows / seconds : 0;
}

static double stall_of(const struct run_job *run)
{
    double ns = (double)(run->end_ns - run->start_ns);
    return ns > 0 ? (double)run->stats.stall_ns / ns : 0;
}

static void print_table(const struct run_job *jobs, int count, uint64_t prepared)
{
    static const char *const titles[] = {">JOB", ">ROWS", ">ROWS/S", ">STALL", ">REPLACED", NULL};
    struct cli_table out;
    uint64_t delivered = 0;
    cli_table_begin(&out, titles);
    for (int i = 0; i < count; i++) {
        cli_table_cell(&out, "%d", jobs[i].number);
        cli_table_cell(&out, "%" PRIu64, jobs[i].rows);
        cli_table_cell(&out, "%.0f", rate_of(&jobs[i]));
        cli_table_cell(&out, "%.1f%%", 100 * stall_of(&jobs[i]));
        cli_table_cell(&out, "%" PRIu64, jobs[i].stats.substituted);
        delivered += jobs[i].rows;
    }
    cli_table_print(&out, 0);
    printf("\nitems prepared   %" PRIu64 "\nitems delivered  %" PRIu64, prepared, delivered);
    if (prepared > 0)
        printf("  (%.2f for each prepared)", (double)delivered / (double)prepared);
    printf("\n");
}

static void print_json(const struct run_job *jobs, int count, uint64_t prepared)
{
    struct base_buffer out;
    struct base_json json;
    uint64_t delivered = 0;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    base_json_object(&json, NULL);
    base_json_array(&json, "jobs");
    for (int i = 0; i < count; i++) {
        base_json_object(&json, NULL);
        base_json_int(&json, "job", jobs[i].number);
        base_json_uint(&json, "rows", jobs[i].rows);
        base_json_double(&json, "rows_per_s", rate_of(&jobs[i]));
        base_json_double(&json, "stall_share", stall_of(&jobs[i]));
        base_json_uint(&json, "substituted", jobs[i].stats.substituted);
        base_json_uint(&json, "failovers", jobs[i].stats.failovers);
        base_json_uint(&json, "hedges", jobs[i].stats.hedges);
        base_json_uint(&json, "hedges_won", jobs[i].stats.hedges_won);
        base_json_uint(&json, "socket_bytes", jobs[i].stats.socket_bytes);
        base_json_uint(&json, "memory_bytes", jobs[i].stats.memory_bytes);
        base_json_object_end(&json);
        delivered += jobs[i].rows;
    }
    base_json_array_end(&json);
    base_json_uint(&json, "prepared", prepared);
    base_json_uint(&json, "delivered", delivered);
    base_json_object_end(&json);
    cli_flush(&out);
}

static int finish(const struct options *options, struct run_job *jobs, int count, uint64_t made_before)
{
    for (int i = 0; i < count; i++) {
        if (jobs[i].code == MR_OK)
            continue;
        struct base_error error;
        base_error_set(&error, (enum base_code)jobs[i].code, "job %d: %s", jobs[i].number,
                       jobs[i].error.text);
        return cli_fail("millrace run", options->common.json, &error);
    }
    uint64_t prepared = rows_made_settled(&options->common) - made_before;
    if (options->common.json)
        print_json(jobs, count, prepared);
    else
        print_table(jobs, count, prepared);
    return CLI_EXIT_OK;
}

static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static int run(const struct options *options, const char *dataset, const uint64_t *seed)
{
    static struct run_job jobs[JOBS_MAX];
    _Atomic bool stop = false;
    int count = 0, number = 0;
    block_signals();
    uint64_t made_before = rows_made(&options->common);
    for (; count < options->jobs; count++) {
        jobs[count].options = options;
        jobs[count].dataset = dataset;
        jobs[count].seed = seed;
        jobs[count].number = count + 1;
        jobs[count].stop = &stop;
        if (pthread_create(&jobs[count].thread, NULL, run_job, &jobs[count]) != 0)
            break;
    }
    if (count == options->jobs)
        number = watch(jobs, count, options);
    atomic_store(&stop, number > 0 || count < options->jobs);
    for (int i = 0; i < count; i++)
        pthread_join(jobs[i].thread, NULL);
    if (number > 0)
        return CLI_EXIT_SIGNAL + number;
    if (count < options->jobs) {
        fputs("millrace run: no more threads\n", stderr);
        return CLI_EXIT_FAILED;
    }
    return finish(options, jobs, count, made_before);
}

static bool take_weight(struct options *options)
{
    char *end;
    options->weight = strtod(options->weight_text, &end);
    if (end != options->weight_text && !*end && options->weight >= 0.01 && options->weight <= 100)
        return true;
    fprintf(stderr, "millrace run: --weight %s: must be 0.01 to 100\n", options->weight_text);
    return false;
}

static bool take_join(struct options *options)
{
    static const char *const words[] = {
        [MR_JOIN_NOW] = "now", [MR_JOIN_NEXT] = "next", [MR_JOIN_PARTIAL] = "partial"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        options->join = (enum mr_join)i;
        if (strcmp(options->join_text, words[i]) == 0)
            return true;
    }
    fprintf(stderr, "millrace run: --join %s: must be now, next or partial\n", options->join_text);
    return false;
}

static bool make_ledger_folder(const char *path)
{
    struct stat about;
    if (mkdir(path, 0777) == 0)
        return true;
    int cause = errno;
    if (cause == EEXIST && stat(path, &about) == 0) {
        if (S_ISDIR(about.st_mode))
            return true;
        cause = ENOTDIR;
    }
    fprintf(stderr, "millrace run: --ledger %s: %s\n", path, strerror(cause));
    return false;
}

int cli_run(int argc, char **argv)
{
    static struct options options;
    struct base_options_rest rest;
    int status;
    if (!cli_parse(&cli_run_options, argc, argv, &options, &rest, &status))
        return status;
    uint64_t seed = 0;
    if (options.seed && cli_number(options.seed, &seed) != BASE_OK) {
        fprintf(stderr, "millrace run: --seed %s: not a number of 64 bits\n", options.seed);
        return CLI_EXIT_USAGE;
    }
    if (!take_weight(&options) || !take_join(&options) ||
        (options.ledger && !make_ledger_folder(options.ledger)))
        return CLI_EXIT_USAGE;
    return run(&options, rest.positional[0], options.seed ? &seed : NULL);
}

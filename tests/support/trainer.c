/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer for tests: reads a job through the public header only, at a pace, and writes down what it was handed.
 *   1. open client and job (a cursor read from a file, if asked); with --gate, wait until that file is there
 *   2. for each batch: one line a row to --rows, one with time, rows and CPU so far to --progress, the cursor to --cursor-out
 *      (renamed into place), wait for the pace; until the epochs, --batches or --seconds are over
 *   3. one line of totals to stdout, and after closing one more: how long that took
 * Exit codes: 0 done, 1 the library said no (its text on stderr), 2 usage.
 */
#include "base/clock.h"
#include "base/options.h"
#include "millrace/millrace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct options {
    const char *server, *secret_file, *job, *dataset, *pipeline, *tail, *on_bad, *join, *sampler;
    const char *cursor_in, *cursor_out, *rows, *ledger, *progress, *gate;
    struct base_option_list option, field;
    int64_t rank, world, batch, epochs, look_ahead, batches, seconds, pace, timeout_ms, open_timeout_ms, seed,
        unavailable_ms, why_ms;
    bool finish, accept_new_bits;
};

#define TEXT(flag, field, value)                                                                             \
    {                                                                                                        \
        flag, BASE_OPTION_TEXT, value, "TEXT", "", offsetof(struct options, field), 0, 0                     \
    }
#define INT(flag, field, value)                                                                              \
    {                                                                                                        \
        flag, BASE_OPTION_INT, value, "N", "", offsetof(struct options, field), 0, 0                         \
    }
#define BOOL(flag, field)                                                                                    \
    {                                                                                                        \
        flag, BASE_OPTION_BOOL, NULL, NULL, "", offsetof(struct options, field), 0, 0                        \
    }
#define LIST(flag, field)                                                                                    \
    {                                                                                                        \
        flag, BASE_OPTION_LIST, NULL, "TEXT", "", offsetof(struct options, field), 0, 0                      \
    }
static const struct base_option table[] = {
    TEXT("server", server, NULL),
    TEXT("secret-file", secret_file, NULL),
    TEXT("job", job, NULL),
    TEXT("dataset", dataset, NULL),
    TEXT("pipeline", pipeline, NULL),
    TEXT("tail", tail, "drop"),
    TEXT("on-bad", on_bad, "error"),
    TEXT("join", join, "now"),
    TEXT("sampler", sampler, "pipeline"),
    TEXT("cursor-in", cursor_in, NULL),
    TEXT("cursor-out", cursor_out, NULL),
    TEXT("rows", rows, NULL),
    TEXT("ledger", ledger, NULL),
    TEXT("progress", progress, NULL),
    TEXT("gate", gate, NULL),
    LIST("option", option),
    LIST("field", field),
    INT("rank", rank, "0"),
    INT("world", world, "1"),
    INT("batch", batch, "16"),
    INT("epochs", epochs, "1"),
    INT("look-ahead", look_ahead, "2"),
    INT("batches", batches, "0"),
    INT("seconds", seconds, "0"),
    INT("pace", pace, "0"),
    INT("timeout-ms", timeout_ms, "30000"),
    INT("open-timeout-ms", open_timeout_ms, "0"), /* 0: timeout-ms */
    INT("seed", seed, "-1"),
    INT("unavailable-ms", unavailable_ms, "0"),
    INT("why-ms", why_ms, "0"), /* say why each time that it has waited so long */
    BOOL("finish", finish),
    BOOL("accept-new-bits", accept_new_bits),
};

static int choose(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (!strcmp(word, words[i]))
            return i;
    }
    fprintf(stderr, "trainer: '%s' is no choice\n", word);
    exit(2);
}

static bool read_cursor(const char *path, struct mr_cursor *cursor)
{
    char text[MR_CURSOR_TEXT_BYTES] = "";
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    char *got = fgets(text, sizeof text, file);
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    struct mr_error error;
    if (!got || mr_cursor_parse(cursor, text, &error)) {
        fprintf(stderr, "trainer: cursor %s: %s\n", path, got ? error.text : "empty");
        exit(1);
    }
    return true;
}

static void write_cursor(const char *path, const struct mr_cursor *cursor)
{
    char text[MR_CURSOR_TEXT_BYTES], aside[4096];
    mr_cursor_print(cursor, text);
    snprintf(aside, sizeof aside, "%s.new", path);
    FILE *file = fopen(aside, "w");
    if (!file || fprintf(file, "%s\n", text) < 0 || fclose(file) || rename(aside, path))
        perror(path);
}

/* job epoch, stream epoch, step, position, item, used item, hash, valid, status, cause */
static void write_rows(FILE *file, const struct mr_batch *batch)
{
    for (uint32_t i = 0; i < batch->rows; i++) {
        const struct mr_row *row = &batch->row[i];
        fprintf(file, "%u %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 " %d %d %s\n",
                batch->epoch, batch->stream_epoch, batch->step, row->position, row->item, row->used_item,
                row->hash, batch->valid[i], row->status, row->cause ? mr_cause_name(row->cause) : "-");
    }
    fflush(file);
}

/* monotonic ns, rows handed over so far, CPU ns of this process so far */
static void write_progress(FILE *file, uint64_t rows)
{
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    fprintf(file, "%" PRId64 " %" PRIu64 " %" PRId64 "\n", base_clock_now_ns(), rows,
            (int64_t)cpu.tv_sec * BASE_NS_PER_S + cpu.tv_nsec);
    fflush(file);
}

static void keep_pace(int64_t began_ns, uint64_t rows, int64_t rows_per_s)
{
    if (!rows_per_s)
        return;
    int64_t due_ns = began_ns + (int64_t)rows * BASE_NS_PER_S / rows_per_s;
    struct timespec until = {due_ns / BASE_NS_PER_S, due_ns % BASE_NS_PER_S};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Trainers that are to begin at the same moment have opened their jobs before. */
static bool pass_gate(const struct options *o)
{
    int64_t deadline_ns = base_clock_now_ns() + o->timeout_ms * BASE_NS_PER_MS;
    while (o->gate && access(o->gate, F_OK)) {
        if (base_clock_now_ns() > deadline_ns) {
            fprintf(stderr, "trainer: %s did not come\n", o->gate);
            return false;
        }
        nanosleep(&(struct timespec){0, 5 * BASE_NS_PER_MS}, NULL);
    }
    return true;
}

static struct mr_job_options job_options(const struct options *o, struct mr_cursor *cursor, uint64_t *seed)
{
    static const char *const tails[] = {"drop", "pad", "exact", NULL};
    static const char *const policies[] = {"error", "skip", "replace", NULL};
    static const char *const joins[] = {"now", "next", "partial", NULL};
    static const char *const samplers[] = {"pipeline", "shuffle", "sequential", NULL};
    struct mr_job_options what = {
        .size = sizeof what,
        .job = o->job,
        .dataset = o->dataset,
        .pipeline = o->pipeline,
        .options = o->option.count ? o->option.values : NULL,
        .fields = o->field.count ? o->field.values : NULL,
        .tail = (enum mr_tail)choose(o->tail, tails),
        .on_bad = (enum mr_on_bad)choose(o->on_bad, policies),
        .join = (enum mr_join)choose(o->join, joins),
        .sampler = (enum mr_sampler)choose(o->sampler, samplers),
        .rank = (uint32_t)o->rank,
        .world = (uint32_t)o->world,
        .batch = (uint32_t)o->batch,
        .epochs = (uint32_t)o->epochs,
        .look_ahead = (uint32_t)o->look_ahead,
        .unavailable_ms = (uint32_t)o->unavailable_ms,
        .apply_finish = o->finish,
        .accept_new_bits = o->accept_new_bits,
        .ledger = o->ledger,
    };
    if (o->cursor_in && read_cursor(o->cursor_in, cursor))
        what.resume = cursor;
    if (o->seed >= 0) {
        *seed = (uint64_t)o->seed;
        what.seed = seed;
    }
    return what;
}

/* The next batch within the timeout; meanwhile it says why it waits. */
static enum mr_code await_batch(struct mr_job *job, const struct options *o, struct mr_batch **batch,
                                struct mr_error *error)
{
    int64_t end_ns = base_clock_now_ns() + o->timeout_ms * BASE_NS_PER_MS, slice_ms = o->timeout_ms;
    enum mr_code code;
    do {
        int64_t left_ms = (end_ns - base_clock_now_ns()) / BASE_NS_PER_MS;
        if (o->why_ms > 0)
            slice_ms = o->why_ms < left_ms ? o->why_ms : left_ms;
        code = mr_job_next(job, batch, slice_ms, error);
        if (code == MR_TIMEOUT && o->why_ms > 0)
            fprintf(stderr, "trainer: %s\n", error->text);
    } while (code == MR_TIMEOUT && base_clock_now_ns() < end_ns);
    return code;
}

static enum mr_code train(struct mr_job *job, const struct options *o, struct mr_error *error)
{
    FILE *rows = o->rows ? fopen(o->rows, "a") : NULL,
         *progress = o->progress ? fopen(o->progress, "a") : NULL;
    int64_t began_ns = base_clock_now_ns();
    uint64_t taken = 0, steps = 0, longest_ms = 0, later_ms = 0; /* later: without the first batch */
    enum mr_code code;
    for (;;) {
        struct mr_batch *batch;
        int64_t asked_ns = base_clock_now_ns();
        code = await_batch(job, o, &batch, error);
        uint64_t waited_ms = (uint64_t)((base_clock_now_ns() - asked_ns) / BASE_NS_PER_MS);
        longest_ms = waited_ms > longest_ms ? waited_ms : longest_ms;
        later_ms = taken && waited_ms > later_ms ? waited_ms : later_ms;
        if (code)
            break;
        if (rows)
            write_rows(rows, batch);
        taken += batch->rows;
        if (progress)
            write_progress(progress, taken);
        struct mr_cursor cursor = batch->cursor;
        mr_batch_release(batch);
        keep_pace(began_ns, taken, o->pace);
        if (o->cursor_out)
            write_cursor(o->cursor_out, &cursor);
        if (o->batches && ++steps >= (uint64_t)o->batches)
            break;
        if (o->seconds && base_clock_now_ns() - began_ns >= o->seconds * BASE_NS_PER_S)
            break;
    }
    if (rows)
        fclose(rows);
    if (progress)
        fclose(progress);
    struct mr_job_stats stats = {.size = sizeof stats};
    mr_job_stats(job, &stats);
    printf("rows=%" PRIu64 " longest_wait_ms=%" PRIu64 " later_wait_ms=%" PRIu64 " requests=%" PRIu64
           " moved=%" PRIu64 " retries=%" PRIu64 " failovers=%" PRIu64 " reconnects=%" PRIu64
           " bad_frames=%" PRIu64 " substituted=%" PRIu64 " skipped=%" PRIu64 " hedges=%" PRIu64
           " hedges_won=%" PRIu64 " socket_bytes=%" PRIu64 " memory_bytes=%" PRIu64 "\n",
           taken, longest_ms, later_ms, stats.requests, stats.moved, stats.retries, stats.failovers,
           stats.reconnects, stats.bad_frames, stats.substituted, stats.skipped, stats.hedges,
           stats.hedges_won, stats.socket_bytes, stats.memory_bytes);
    fflush(stdout);
    return code == MR_END ? MR_OK : code;
}

int main(int argc, char **argv)
{
    const struct base_options all = {
        "trainer", "--dataset NAME", "A trainer for tests.", table, sizeof table / sizeof *table, 0, 0};
    struct options o = {0};
    struct base_options_rest rest;
    struct base_error usage;
    if (base_options_parse(&all, argc, argv, &o, &rest, &usage)) {
        fprintf(stderr, "trainer: %s\n", usage.text);
        return 2;
    }
    struct mr_client *client = NULL;
    struct mr_job *job = NULL;
    struct mr_error error = {MR_OK, ""};
    struct mr_cursor cursor;
    uint64_t seed;
    struct mr_client_options where = {.size = sizeof where, .server = o.server, .secret_file = o.secret_file};
    struct mr_job_options what = job_options(&o, &cursor, &seed);
    enum mr_code code = mr_client_open(&client, &where, &error);
    if (!code)
        code = mr_job_open(&job, client, &what, o.open_timeout_ms ? o.open_timeout_ms : o.timeout_ms, &error);
    if (!code) {
        struct mr_job_info info = {.size = sizeof info};
        if (!mr_job_info(job, &info, NULL))
            fprintf(stderr, "trainer: %s\n", info.note ? info.note : "");
        code = pass_gate(&o) ? train(job, &o, &error) : MR_TIMEOUT;
    }
    if (code)
        fprintf(stderr, "trainer: %s: %s\n", mr_code_name(code), error.text);
    int64_t closing_ns = base_clock_now_ns();
    mr_job_close(&job);
    if (client)
        mr_client_close(&client);
    printf("close_ms=%" PRId64 "\n", (base_clock_now_ns() - closing_ns) / BASE_NS_PER_MS);
    return code ? 1 : 0;
}

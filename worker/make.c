/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/make.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "worker/rows.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum stage { STAGE_LOOKED_UP, STAGE_READ_FAILED, STAGE_PREPARED };

struct making;

struct read_task {
    struct base_task task;
    struct making *making;
    uint32_t row;
};

/* A bad sample that a prep thread met first. */
struct finding {
    struct finding *next;
    uint64_t item;
    char name[256], cause[256];
};

struct making {
    struct base_message message;
    struct base_task task;
    struct worker_make *make;
    struct making *next; /* of all, and in the order of begin */
    struct making_block {
        struct worker_kit *kit;
        uint64_t handle, used_bytes;
        enum worker_cause cause;
        uint16_t jobs;
    } blocks[PIPELINE_SIBLINGS];
    uint32_t block_count;
    struct scheduler_order *order; /* the first kit's: siblings have the same */
    struct worker_rows *rows;
    uint64_t number;
    uint32_t epoch, row_count;
    int64_t begun_ns, cpu_ns;
    _Atomic int64_t deadline_ns;
    enum stage stage;   /* that has ended: written by its thread, read by step */
    bool waits_for_raw; /* loop thread */
    uint64_t raw_wanted_bytes, raw_held_bytes;
    uint32_t shared; /* rows */
    _Atomic uint32_t reads_left;
    _Atomic bool read_failed;
    struct base_error error;
    struct finding *findings; /* owned */
    struct finding *spares;   /* owned; a verdict is news once: telling it may not need memory */
    uint32_t spare_count;
    struct read_task reads[]; /* one a row */
};
_Static_assert(WORKER_SIBLINGS + 1 == PIPELINE_SIBLINGS, "a block and its siblings");

struct worker_make {
    struct worker_make_options options;
    struct base_pool *prep, *io;
    struct pipeline_scratch **scratch; /* one a prep thread */
    struct making *first;
    uint64_t raw_used_bytes;
    bool stopping;
    pthread_mutex_t lock;
    struct base_metric metrics[WORKER_MAKE_METRICS];
};

static const struct base_metric metric_table[WORKER_MAKE_METRICS] = {
    [WORKER_METRIC_READ_ITEMS] = {.name = "millrace_worker_items_read_total",
                                  .help = "Raw items read from storage"},
    [WORKER_METRIC_READ_BYTES] = {.name = "millrace_worker_read_bytes_total",
                                  .help = "Bytes of raw items read"},
    [WORKER_METRIC_READ_ERRORS] = {.name = "millrace_worker_read_errors_total",
                                   .help = "Raw items that were missing, changed or unreadable"},
    [WORKER_METRIC_DECODED_ITEMS] = {.name = "millrace_worker_items_decoded_total",
                                     .help = "Raw items decoded"},
    [WORKER_METRIC_SHARED_ROWS] = {.name = "millrace_worker_rows_shared_total",
                                   .help =
                                       "Rows made from an item that was decoded for another stream's row"},
    [WORKER_METRIC_TOGETHER_BLOCKS] = {.name = "millrace_worker_blocks_together_total",
                                       .help = "Blocks made together with those of other streams"},
    [WORKER_METRIC_PREP_NS] = {.name = "millrace_worker_prep_seconds_total",
                               .help = "CPU time of prep threads in decode and transform",
                               .scale = 1e-9},
    [WORKER_METRIC_ROWS_OK] = {.name = "millrace_worker_rows_total",
                               .labels = "status=\"ok\"",
                               .help = "Rows made, by status"},
    [WORKER_METRIC_ROWS_SUBSTITUTED] = {.name = "millrace_worker_rows_total",
                                        .labels = "status=\"substituted\""},
    [WORKER_METRIC_ROWS_BAD] = {.name = "millrace_worker_rows_total", .labels = "status=\"bad\""},
    [WORKER_METRIC_BAD_ITEMS] = {.name = "millrace_worker_bad_items_total",
                                 .help = "Items found to be bad samples"},
    [WORKER_METRIC_RAW_BYTES] = {.name = "millrace_worker_raw_bytes",
                                 .help = "Raw bytes in memory or being read",
                                 .type = BASE_METRIC_GAUGE},
};

struct base_metric *worker_make_metrics(struct worker_make *make)
{
    return make->metrics;
}

/* ---- life ---- */

static enum base_code create_scratch(struct worker_make *make, struct base_error *error)
{
    size_t count = (size_t)make->options.prep_threads;
    make->scratch = calloc(count, sizeof *make->scratch);
    if (!make->scratch)
        return base_error_set(error, BASE_NO_MEMORY, "prep threads");
    for (size_t i = 0; i < count; i++) {
        enum base_code code = pipeline_scratch_create(&make->scratch[i], error);
        if (code != BASE_OK)
            return code;
    }
    return BASE_OK;
}

enum base_code worker_make_start(struct worker_make **out, const struct worker_make_options *options,
                                 struct base_error *error)
{
    struct worker_make *make = calloc(1, sizeof *make);
    if (!make)
        return base_error_set(error, BASE_NO_MEMORY, "maker");
    make->options = *options;
    memcpy(make->metrics, metric_table, sizeof metric_table);
    pthread_mutex_init(&make->lock, NULL);
    struct base_pool_options prep = {"prep", options->prep_threads, options->idle};
    struct base_pool_options io = {"io", options->io_threads, false};
    enum base_code code = create_scratch(make, error);
    if (code == BASE_OK)
        code = base_pool_start(&make->prep, &prep, error);
    if (code == BASE_OK)
        code = base_pool_start(&make->io, &io, error);
    if (code != BASE_OK)
        worker_make_stop(&make);
    *out = make;
    return code;
}

static void free_findings(struct finding *finding)
{
    while (finding) {
        struct finding *next = finding->next;
        free(finding);
        finding = next;
    }
}

static void free_making(struct making *making)
{
    free_findings(making->findings);
    free_findings(making->spares);
    worker_kit_put_order(making->blocks[0].kit, making->order);
    worker_rows_destroy(making->rows);
    free(making);
}

void worker_make_stop(struct worker_make **out)
{
    struct worker_make *make = *out;
    *out = NULL;
    if (!make)
        return;
    base_pool_stop(&make->io);
    base_pool_stop(&make->prep);
    make->stopping = true;
    base_mailbox_drain(make->options.mailbox); /* no message of ours may outlive its making */
    while (make->first) {
        struct making *next = make->first->next;
        free_making(make->first);
        make->first = next;
    }
    for (int i = 0; make->scratch && i < make->options.prep_threads; i++)
        pipeline_scratch_destroy(make->scratch[i]);
    free(make->scratch);
    pthread_mutex_destroy(&make->lock);
    free(make);
}

/* ---- the loop thread ---- */

static void count_rows(struct worker_make *make, const struct worker_rows *rows)
{
    static const int metric[] = {[WIRE_ROW_OK] = WORKER_METRIC_ROWS_OK,
                                 [WIRE_ROW_SUBSTITUTED] = WORKER_METRIC_ROWS_SUBSTITUTED,
                                 [WIRE_ROW_BAD] = WORKER_METRIC_ROWS_BAD};
    for (uint32_t i = 0; i < rows->block_count * rows->count; i++)
        base_metric_add(&make->metrics[metric[rows->row[i].status]], 1);
    if (rows->block_count > 1)
        base_metric_add(&make->metrics[WORKER_METRIC_TOGETHER_BLOCKS], rows->block_count);
}

static void log_made(const struct making *making, const struct making_block *block, int64_t took_ns)
{
    base_log(BASE_LOG_INFO, "block_made",
             "stream=%s epoch=%u block=%llu rows=%u cause=%s ms=%.1f jobs=%u together=%u shared=%u",
             block->kit->hex, (unsigned)making->epoch, (unsigned long long)making->number,
             (unsigned)making->row_count, worker_cause_name(block->cause), (double)took_ns / 1e6,
             (unsigned)block->jobs, (unsigned)making->block_count, (unsigned)making->shared);
}

static void log_not_made(const struct making *making, const struct making_block *block)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_log(BASE_LOG_WARN, "block_not_made", "stream=%s epoch=%u block=%llu code=%s error=%s",
             block->kit->hex, (unsigned)making->epoch, (unsigned long long)making->number,
             base_error_name(making->error.code), base_log_quote(making->error.text, quoted, sizeof quoted));
}

static void tell_findings(struct making *making)
{
    struct worker_make *make = making->make;
    char name[600], cause[600];
    for (const struct finding *finding = making->findings; finding; finding = finding->next) {
        base_log(BASE_LOG_WARN, "bad_item", "dataset=%s item=%llu name=%s cause=%s",
                 making->blocks[0].kit->dataset->name, (unsigned long long)finding->item,
                 base_log_quote(finding->name, name, sizeof name),
                 base_log_quote(finding->cause, cause, sizeof cause));
        base_metric_add(&make->metrics[WORKER_METRIC_BAD_ITEMS], 1);
        make->options.events->bad_item(make->options.context, making->blocks[0].kit->dataset, finding->item,
                                       finding->name, finding->cause);
    }
}

static void start_reads(struct making *making);

static void give_raw(struct making *making)
{
    struct worker_make *make = making->make;
    make->raw_used_bytes -= making->raw_held_bytes;
    making->raw_held_bytes = 0;
    base_metric_set(&make->metrics[WORKER_METRIC_RAW_BYTES], (int64_t)make->raw_used_bytes);
}

/* One block may always go, however large. A block that holds some already does not wait for more: it could not end. */
static bool take_raw(struct making *making)
{
    struct worker_make *make = making->make;
    bool first = making->raw_held_bytes == 0;
    if (first && make->raw_used_bytes > 0 &&
        make->raw_used_bytes + making->raw_wanted_bytes > make->options.raw_bytes)
        return false;
    make->raw_used_bytes += making->raw_wanted_bytes;
    making->raw_held_bytes += making->raw_wanted_bytes;
    base_metric_set(&make->metrics[WORKER_METRIC_RAW_BYTES], (int64_t)make->raw_used_bytes);
    return true;
}

static void wake_waiting(struct worker_make *make)
{
    for (;;) {
        struct making *soonest = NULL;
        for (struct making *making = make->first; making; making = making->next)
            if (making->waits_for_raw && (!soonest || making->deadline_ns < soonest->deadline_ns))
                soonest = making;
        if (!soonest || !take_raw(soonest))
            return;
        soonest->waits_for_raw = false;
        start_reads(soonest);
    }
}

static void forget(struct making *making)
{
    struct making **at = &making->make->first;
    while (*at != making)
        at = &(*at)->next;
    *at = making->next;
    free_making(making);
}

/* The making is forgotten before anybody hears of its blocks: who hears begins others. */
static void finish(struct making *making)
{
    struct worker_make *make = making->make;
    struct making_block blocks[PIPELINE_SIBLINGS];
    struct base_error error = making->error;
    uint32_t count = making->block_count;
    struct worker_made made = {.code = error.code,
                               .text = error.code != BASE_OK ? error.text : NULL,
                               .cost_ns = base_clock_now_ns() - making->begun_ns,
                               .cpu_ns = making->cpu_ns};
    memcpy(blocks, making->blocks, sizeof blocks);
    for (uint32_t i = 0; i < count; i++)
        if (error.code == BASE_OK)
            log_made(making, &blocks[i], made.cost_ns);
        else
            log_not_made(making, &blocks[i]);
    if (error.code == BASE_OK)
        count_rows(make, making->rows);
    tell_findings(making);
    give_raw(making);
    forget(making);
    wake_waiting(make);
    for (uint32_t i = 0; i < count; i++) {
        made.used_bytes = blocks[i].used_bytes;
        make->options.events->made(make->options.context, blocks[i].handle, &made);
    }
}

static void look_up(struct making *making);

/* A step of a making is done: the next one. */
static void step(struct base_message *message)
{
    struct making *making = (struct making *)message;
    if (making->make->stopping)
        return;
    if (making->error.code != BASE_OK) {
        finish(making);
        return;
    }
    switch (making->stage) {
    case STAGE_LOOKED_UP:
        making->waits_for_raw = !take_raw(making);
        if (!making->waits_for_raw)
            start_reads(making);
        break;
    case STAGE_PREPARED:
        if (making->rows->wanted > 0)
            look_up(making);
        else
            finish(making);
        break;
    default:
        finish(making);
    }
}

static void say(struct making *making, enum stage stage)
{
    making->stage = stage;
    making->message.run = step;
    base_mailbox_post(making->make->options.mailbox, &making->message);
}

/* ---- I/O threads ---- */

/* Another place may have the item, and it may come back: never taken for a bad sample. */
static void note_unavailable(struct making *making, struct base_error *error)
{
    if (base_error_class(error->code) != BASE_CLASS_RETRYABLE)
        error->code = BASE_UNAVAILABLE;
    base_metric_add(&making->make->metrics[WORKER_METRIC_READ_ERRORS], 1);
    pthread_mutex_lock(&making->make->lock);
    if (making->error.code == BASE_OK)
        making->error = *error;
    pthread_mutex_unlock(&making->make->lock);
}

static void run_look_up(struct base_task *task, int thread)
{
    (void)thread;
    struct making *making = (struct making *)((char *)task - offsetof(struct making, task));
    struct base_error error = {0};
    uint64_t raw_bytes = making->make->options.raw_bytes;
    uint64_t item_max_bytes = raw_bytes > WORKER_RAW_ITEM_BYTES ? raw_bytes : WORKER_RAW_ITEM_BYTES;
    if (worker_rows_look_up(making->rows, item_max_bytes, &making->raw_wanted_bytes, &error) != BASE_OK)
        note_unavailable(making, &error);
    say(making, STAGE_LOOKED_UP);
}

static void look_up(struct making *making)
{
    making->task.run = run_look_up;
    base_pool_post(making->make->io, &making->task, making->deadline_ns);
}

static void run_prep(struct base_task *task, int thread);

static void run_read(struct base_task *task, int thread)
{
    (void)thread;
    struct read_task *read = (struct read_task *)task;
    struct making *making = read->making;
    struct worker_make *make = making->make;
    struct base_error error = {0};
    if (!atomic_load(&making->read_failed)) {
        if (worker_rows_read(making->rows, read->row, &error) == BASE_OK) {
            base_metric_add(&make->metrics[WORKER_METRIC_READ_ITEMS], 1);
            base_metric_add(
                &make->metrics[WORKER_METRIC_READ_BYTES],
                (int64_t)(making->rows->row[read->row].size_bytes + making->rows->row[read->row].mask_bytes));
        } else {
            note_unavailable(making, &error);
            atomic_store(&making->read_failed, true);
        }
    }
    if (atomic_fetch_sub(&making->reads_left, 1) > 1)
        return;
    if (atomic_load(&making->read_failed)) {
        say(making, STAGE_READ_FAILED);
        return;
    }
    making->task.run = run_prep;
    base_pool_post(make->prep, &making->task, making->deadline_ns);
}

static void start_reads(struct making *making)
{
    struct worker_rows *rows = making->rows;
    uint32_t reads = rows->reads, started = 0;
    if (reads == 0) { /* all rows are bad without a substitute */
        making->task.run = run_prep;
        base_pool_post(making->make->prep, &making->task, making->deadline_ns);
        return;
    }
    atomic_store(&making->reads_left, reads);
    for (uint32_t i = 0; started < reads; i++) { /* the last one that is posted takes the making away */
        if (rows->row[i].borrows || rows->row[i].state != WORKER_ROW_WANTED)
            continue;
        making->reads[i] = (struct read_task){.task.run = run_read, .making = making, .row = i};
        started++;
        base_pool_post(making->make->io, &making->reads[i].task, making->deadline_ns);
    }
}

/* ---- prep threads ---- */

/* One for each row that worker_rows_make() may judge. */
static bool have_spares(struct making *making)
{
    for (; making->spare_count < making->rows->block_count; making->spare_count++) {
        struct finding *spare = calloc(1, sizeof *spare);
        if (!spare)
            return false;
        spare->next = making->spares;
        making->spares = spare;
    }
    return true;
}

static void find(void *context, uint64_t item, const struct base_error *error)
{
    struct making *making = context;
    struct manifest_entry entry;
    struct finding *finding = making->spares;
    making->spares = finding->next;
    making->spare_count--;
    finding->item = item;
    if (manifest_entry(making->blocks[0].kit->dataset->manifest, item, &entry, NULL) == BASE_OK)
        snprintf(finding->name, sizeof finding->name, "%.255s", entry.name);
    else
        snprintf(finding->name, sizeof finding->name, "(item %llu)", (unsigned long long)item);
    snprintf(finding->cause, sizeof finding->cause, "%.255s", error->text);
    finding->next = making->findings;
    making->findings = finding;
}

static void prepare_memory(const struct worker_make *make, const struct worker_rows *rows)
{
    const struct worker_staging *staging = make->options.staging;
    for (uint32_t i = 0; i < rows->block_count; i++)
        worker_staging_prepare(staging, (uint64_t)(rows->blocks[i].bytes - staging->memory),
                               rows->blocks[i].kit->layout.size);
}

static void run_prep(struct base_task *task, int thread)
{
    struct making *making = (struct making *)((char *)task - offsetof(struct making, task));
    struct worker_make *make = making->make;
    struct worker_rows *rows = making->rows;
    struct worker_rows_work work = {.scratch = make->scratch[thread], .bad = find, .context = making};
    int64_t begun_ns = base_clock_thread_cpu_ns();
    prepare_memory(make, rows);
    for (uint32_t i = 0; i < rows->count && making->error.code == BASE_OK; i++)
        if (have_spares(making))
            worker_rows_make(rows, i, &work, &making->error);
        else
            base_error_set(&making->error, BASE_NO_MEMORY, "worker: no memory for findings");
    for (uint32_t i = 0; i < rows->block_count && making->error.code == BASE_OK && rows->wanted == 0; i++)
        making->blocks[i].used_bytes = worker_rows_finish(rows, i);
    int64_t cpu_ns = base_clock_thread_cpu_ns() - begun_ns;
    making->cpu_ns += cpu_ns;
    making->shared += work.shared;
    base_metric_add(&make->metrics[WORKER_METRIC_PREP_NS], cpu_ns);
    base_metric_add(&make->metrics[WORKER_METRIC_DECODED_ITEMS], work.decodes);
    base_metric_add(&make->metrics[WORKER_METRIC_SHARED_ROWS], work.shared);
    say(making, STAGE_PREPARED);
}

/* ---- begin ---- */

static void take_blocks(struct making *making, const struct worker_action *action,
                        struct worker_rows_block *rows)
{
    uint8_t *staging = making->make->options.staging->memory;
    making->block_count = 1 + (uint32_t)action->sibling_count;
    making->blocks[0] = (struct making_block){action->stream, action->block, 0, action->cause, action->jobs};
    rows[0] = (struct worker_rows_block){action->stream, staging + action->offset};
    for (int i = 0; i < action->sibling_count; i++) {
        const struct worker_sibling *sibling = &action->siblings[i];
        making->blocks[i + 1] =
            (struct making_block){sibling->stream, sibling->block, 0, sibling->cause, sibling->jobs};
        rows[i + 1] = (struct worker_rows_block){sibling->stream, staging + sibling->offset};
    }
}

/* Without memory for a making, say so at once: the blocks rest. */
static void refuse(struct worker_make *make, const struct worker_action *action)
{
    struct worker_made made = {.code = BASE_NO_MEMORY, .text = "worker: no memory for a block's rows"};
    make->options.events->made(make->options.context, action->block, &made);
    for (int i = 0; i < action->sibling_count; i++)
        make->options.events->made(make->options.context, action->siblings[i].block, &made);
}

void worker_make_begin(struct worker_make *make, const struct worker_action *action)
{
    struct worker_kit *kit = action->stream;
    struct worker_rows_block blocks[PIPELINE_SIBLINGS];
    size_t reads = (size_t)action->rows * (1 + (size_t)action->sibling_count);
    struct making *making = calloc(1, sizeof *making + reads * sizeof making->reads[0]);
    if (!making) {
        refuse(make, action);
        return;
    }
    making->make = make;
    take_blocks(making, action, blocks);
    making->number = action->number;
    making->epoch = action->epoch;
    making->row_count = action->rows;
    making->begun_ns = base_clock_now_ns();
    making->deadline_ns = action->deadline_ns;
    making->next = make->first;
    make->first = making;
    if (worker_kit_get_order(kit, action->epoch, &making->order, &making->error) == BASE_OK)
        making->rows =
            worker_rows_create(blocks, making->block_count, action->epoch,
                               action->number * kit->stream.pipeline.block_rows, action->rows, making->order);
    if (making->rows) {
        look_up(making);
        return;
    }
    if (making->error.code == BASE_OK)
        base_error_set(&making->error, BASE_NO_MEMORY, "worker: no memory for a block's rows");
    say(making, STAGE_READ_FAILED);
}

static bool makes(const struct making *making, uint64_t block)
{
    for (uint32_t i = 0; i < making->block_count; i++)
        if (making->blocks[i].handle == block)
            return true;
    return false;
}

void worker_make_hasten(struct worker_make *make, uint64_t block, int64_t deadline_ns)
{
    for (struct making *making = make->first; making; making = making->next) {
        if (!makes(making, block) || making->deadline_ns <= deadline_ns)
            continue;
        making->deadline_ns = deadline_ns;
        if (!base_pool_rekey(make->prep, &making->task, deadline_ns))
            base_pool_rekey(make->io, &making->task, deadline_ns);
    }
}

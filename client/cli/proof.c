/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: all starts first, then the batches of each start in the order of launches. */
#include "client/cli/proof.h"

#include "base/grow.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 3 }; /* so many of a kind are named */

void cli_proof_say(struct cli_proof *proof, const char *format, ...)
{
    va_list args;
    proof->violations++;
    if (proof->word_count == CLI_PROOF_WORDS_MAX)
        return;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 loses it where stdio.h comes before stdarg.h */
    vsnprintf(proof->words[proof->word_count++], CLI_PROOF_WORDS_CHARS, format, args);
    va_end(args);
}

int cli_proof_compare(struct cli_proof_cursor a, struct cli_proof_cursor b)
{
    if (a.epoch != b.epoch)
        return a.epoch < b.epoch ? -1 : 1;
    return a.position < b.position ? -1 : a.position > b.position;
}

/* One more of `size` bytes, zeroed; NULL: no memory. */
static void *grow(void *array, size_t *count, size_t size)
{
    char *records;
    if (!base_grow(array, *count, size))
        return NULL;
    memcpy(&records, array, sizeof records);
    return memset(records + (*count)++ * size, 0, size);
}
#define GROW(array, count) grow(&(array), &(count), sizeof *(array))

static enum base_code no_memory(struct base_error *error)
{
    return base_error_set(error, BASE_NO_MEMORY, "no memory to audit so much at once: fewer jobs at a time");
}

/* ---- starts ---- */

static struct cli_proof_start *new_start(struct cli_proof *proof)
{
    return GROW(proof->starts, proof->start_count);
}

/* A record that was read, or the damage in its place. */
static enum base_code take_record(struct cli_proof *proof, size_t file, const struct ledger_reader *reader,
                                  const struct ledger_record *record, struct base_error *error)
{
    bool first = !proof->start_count || proof->starts[proof->start_count - 1].file != file;
    if (record->kind == LEDGER_START) {
        struct cli_proof_start *start = new_start(proof);
        if (!start)
            return no_memory(error);
        start->is = record->start;
        start->file = file;
        start->offset = start->until = reader->offset;
        start->at = (struct cli_proof_cursor){record->start.epoch, record->start.position};
    } else if (first) {
        return base_error_set(error, BASE_CORRUPT, "ledger %s: does not begin with a start", reader->path);
    } else {
        proof->starts[proof->start_count - 1].until = reader->offset;
        proof->starts[proof->start_count - 1].batches++;
    }
    return BASE_OK;
}

static enum base_code read_starts(struct cli_proof *proof, size_t file, struct base_error *error)
{
    struct ledger_reader reader;
    struct ledger_record record;
    enum base_code code = ledger_reader_open(&reader, proof->paths[file], error);
    while (code == BASE_OK) {
        uint64_t before = reader.offset;
        code = ledger_reader_next(&reader, &record, error);
        bool begun = before > 0;
        if (code == BASE_OK)
            code = take_record(proof, file, &reader, &record, error);
        else if (code == BASE_CORRUPT && begun) {
            cli_proof_say(proof, "%s", error->text);
            code = reader.offset > before ? BASE_OK : BASE_CLOSED;
        }
    }
    proof->torn += reader.torn;
    ledger_reader_close(&reader);
    return code == BASE_CLOSED ? BASE_OK : code;
}

static bool same_chain(const struct ledger_start *a, const struct ledger_start *b)
{
    return strcmp(a->job, b->job) == 0 && a->first_epoch == b->first_epoch && a->items == b->items &&
           memcmp(a->dataset_version, b->dataset_version, sizeof a->dataset_version) == 0;
}

static int by_generation(const void *a, const void *b)
{
    const struct cli_proof_start *x = a, *y = b;
    if (x->is.generation != y->is.generation)
        return x->is.generation < y->is.generation ? -1 : 1;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static enum base_code find_group(struct cli_proof *proof, struct cli_proof_start *start,
                                 struct base_error *error)
{
    for (start->group = 0; start->group < proof->group_count; start->group++)
        if (same_chain(&proof->groups[start->group].is, &start->is))
            return BASE_OK;
    struct cli_proof_group *group = GROW(proof->groups, proof->group_count);
    if (!group)
        return no_memory(error);
    group->is = start->is;
    group->last = (size_t)(start - proof->starts);
    return BASE_OK;
}

static bool same_launch(const struct ledger_start *a, const struct ledger_start *b)
{
    return a->world == b->world && a->batch == b->batch && a->tail == b->tail && a->epoch == b->epoch &&
           a->position == b->position && memcmp(a->stream, b->stream, sizeof a->stream) == 0;
}

static bool has_rank(const struct cli_proof *proof, size_t count, const struct cli_proof_start *like,
                     uint32_t rank)
{
    for (size_t i = 0; i < count; i++) {
        const struct cli_proof_start *start = &proof->starts[i];
        if (start->group == like->group && start->launch == like->launch && start->is.rank == rank)
            return true;
    }
    return false;
}

/* The latest launch that it may be a rank of, which has no such rank yet; else a new one. */
static enum base_code find_launch(struct cli_proof *proof, size_t index, struct base_error *error)
{
    struct cli_proof_start *start = &proof->starts[index];
    struct cli_proof_group *group = &proof->groups[start->group];
    for (size_t i = index; i-- > 0 && !start->launch;) {
        const struct cli_proof_start *other = &proof->starts[i];
        if (other->group == start->group && same_launch(&other->is, &start->is) &&
            !has_rank(proof, index, other, start->is.rank))
            start->launch = other->launch;
    }
    if (!start->launch && group->launches == UINT16_MAX)
        return base_error_set(error, BASE_TOO_LARGE, "job %s: more than %d launches", start->is.job,
                              UINT16_MAX);
    if (!start->launch)
        start->launch = ++group->launches;
    return BASE_OK;
}

static enum base_code seal(struct cli_proof *proof, struct base_error *error)
{
    enum base_code code = BASE_OK;
    qsort(proof->starts, proof->start_count, sizeof *proof->starts, by_generation);
    for (size_t i = 0; i < proof->start_count && code == BASE_OK; i++) {
        struct cli_proof_start *start = &proof->starts[i];
        bool twice = i > 0 && start[-1].is.generation == start->is.generation &&
                     start[-1].is.rank == start->is.rank && strcmp(start[-1].is.job, start->is.job) == 0;
        code = twice ? base_error_set(error, BASE_INVALID, "ledgers %s and %s have the same start: a copy?",
                                      proof->paths[start[-1].file], proof->paths[start->file])
                     : find_group(proof, start, error);
        if (code == BASE_OK)
            code = find_launch(proof, i, error);
        if (code == BASE_OK && (start->batches || !proof->starts[proof->groups[start->group].last].batches))
            proof->groups[start->group].last = i;
    }
    return code;
}

/* ---- batches ---- */

static struct cli_proof_epoch *find_epoch(struct cli_proof *proof, size_t group, uint32_t job_epoch)
{
    for (size_t i = proof->epoch_count; i-- > 0;)
        if (proof->epochs[i].group == group && proof->epochs[i].job_epoch == job_epoch)
            return &proof->epochs[i];
    struct cli_proof_epoch *epoch = GROW(proof->epochs, proof->epoch_count);
    if (!epoch)
        return NULL;
    epoch->group = group;
    epoch->job_epoch = job_epoch;
    epoch->stream_epoch = proof->groups[group].is.first_epoch + job_epoch;
    epoch->seen = calloc(proof->groups[group].is.items, sizeof *epoch->seen);
    return epoch->seen ? epoch : NULL;
}

static struct cli_proof_rows *find_rows(struct cli_proof *proof, const struct ledger_start *start,
                                        uint32_t stream_epoch)
{
    uint32_t key = start->uses_epoch ? stream_epoch : 0;
    for (size_t i = proof->rows_count; i-- > 0;) {
        struct cli_proof_rows *rows = &proof->rows[i];
        if (rows->epoch == key && rows->items == start->items &&
            memcmp(rows->stream, start->stream, sizeof rows->stream) == 0)
            return rows;
    }
    struct cli_proof_rows *rows = GROW(proof->rows, proof->rows_count);
    if (!rows)
        return NULL;
    memcpy(rows->stream, start->stream, sizeof rows->stream);
    rows->epoch = key;
    rows->items = start->items;
    rows->hashes = calloc(rows->items, sizeof *rows->hashes);
    rows->known = calloc(rows->items, 1);
    return rows->hashes && rows->known ? rows : NULL;
}

#define WHO "job %s rank %u epoch %u"
#define WHO_OF(start, epoch) (start)->is.job, (start)->is.rank, (epoch)->job_epoch

static void take_row(struct cli_proof *proof, const struct cli_proof_start *start,
                     struct cli_proof_epoch *epoch, struct cli_proof_rows *rows, uint64_t position,
                     uint64_t hash)
{
    if (!epoch->seen[position])
        epoch->delivered++;
    else if (epoch->seen[position] != start->launch)
        epoch->again++;
    else if (epoch->doubled++ < FIRST)
        cli_proof_say(proof, WHO " position %" PRIu64 ": doubled, without a restart between",
                      WHO_OF(start, epoch), position);
    epoch->seen[position] = start->launch;
    if (!rows->known[position])
        rows->hashes[position] = hash;
    else if (rows->hashes[position] != hash && epoch->differing++ < FIRST)
        cli_proof_say(proof,
                      WHO " position %" PRIu64 ": differing, row hash %016" PRIx64 ", elsewhere %016" PRIx64,
                      WHO_OF(start, epoch), position, hash, rows->hashes[position]);
    rows->known[position] = 1;
}

/* Whether its numbers agree with each other and with its start. */
static bool is_sound(const struct ledger_start *start, const struct ledger_batch *batch)
{
    uint64_t end = batch->step_begin + batch->step_valid;
    bool ends = batch->after_epoch == batch->epoch + 1 && batch->after_position == 0;
    bool goes_on = batch->after_epoch == batch->epoch && batch->after_position == end;
    bool sound = batch->epoch - start->first_epoch == batch->job_epoch && end <= start->items &&
                 (ends || goes_on) && batch->rows + (uint64_t)batch->padding <= start->batch;
    for (int i = 0; i < batch->run_count && sound; i++)
        sound =
            batch->runs[i].begin >= batch->step_begin && batch->runs[i].begin + batch->runs[i].count <= end;
    return sound;
}

static void take_order(struct cli_proof *proof, struct cli_proof_start *start, struct cli_proof_epoch *epoch,
                       const struct ledger_batch *batch)
{
    struct cli_proof_cursor begin = {batch->epoch, batch->step_begin};
    if (cli_proof_compare(begin, start->at) != 0 && epoch->others++ < FIRST)
        cli_proof_say(proof,
                      WHO " step %" PRIu64 ": begins at position %" PRIu64
                          ", after a batch that led to epoch %u position %" PRIu64,
                      WHO_OF(start, epoch), batch->step, batch->step_begin,
                      start->at.epoch - start->is.first_epoch, start->at.position);
    start->at = (struct cli_proof_cursor){batch->after_epoch, batch->after_position};
    uint64_t end = batch->step_begin + batch->step_valid;
    if (batch->after_epoch == batch->epoch || (epoch->ended && end <= epoch->end))
        return;
    epoch->ended = true;
    epoch->end = end;
    epoch->end_rows = (uint64_t)start->is.world * start->is.batch;
    epoch->end_drops = start->is.tail == 0;
}

static enum base_code take_batch(struct cli_proof *proof, size_t index, const struct ledger_batch *batch,
                                 struct base_error *error)
{
    struct cli_proof_start *start = &proof->starts[index];
    proof->batches++;
    if (!is_sound(&start->is, batch)) {
        cli_proof_say(proof, "job %s rank %u epoch %u step %" PRIu64 ": its numbers contradict each other",
                      start->is.job, start->is.rank, batch->job_epoch, batch->step);
        return BASE_OK;
    }
    struct cli_proof_epoch *epoch = find_epoch(proof, start->group, batch->job_epoch);
    struct cli_proof_rows *rows = find_rows(proof, &start->is, batch->epoch);
    struct cli_proof_step *step = GROW(proof->steps, proof->step_count);
    if (!epoch || !rows || !step)
        return no_memory(error);
    *step = (struct cli_proof_step){start->group, index, batch->epoch, start->is.rank, batch->step_begin};
    take_order(proof, start, epoch, batch);
    uint32_t row = 0;
    for (int i = 0; i < batch->run_count; i++)
        for (uint32_t j = 0; j < batch->runs[i].count; j++, row++) {
            epoch->skipped += !epoch->seen[batch->runs[i].begin + j] && !ledger_valid(batch, row);
            take_row(proof, start, epoch, rows, batch->runs[i].begin + j, ledger_hash(batch, row));
        }
    return BASE_OK;
}

static enum base_code read_batches(struct cli_proof *proof, size_t index, struct base_error *error)
{
    struct ledger_reader reader;
    struct ledger_record record;
    const struct cli_proof_start *start = &proof->starts[index];
    enum base_code code = ledger_reader_open(&reader, proof->paths[start->file], error);
    if (code == BASE_OK && fseeko(reader.file, (off_t)start->offset, SEEK_SET) != 0)
        code = base_error_set(error, BASE_IO, "ledger %s: cannot be read again", reader.path);
    reader.offset = start->offset;
    while (code == BASE_OK && reader.offset < start->until) {
        uint64_t before = reader.offset;
        code = ledger_reader_next(&reader, &record, error);
        if (code == BASE_OK && record.kind == LEDGER_BATCH)
            code = take_batch(proof, index, &record.batch, error);
        else if (code == BASE_CORRUPT && reader.offset > before) /* told before */
            code = BASE_OK;
    }
    ledger_reader_close(&reader);
    return code;
}

enum base_code cli_proof_open(struct cli_proof *proof, const char *const *paths, size_t count,
                              struct base_error *error)
{
    *proof = (struct cli_proof){.paths = paths};
    proof->words = calloc(CLI_PROOF_WORDS_MAX, sizeof *proof->words);
    enum base_code code = proof->words ? BASE_OK : no_memory(error);
    for (size_t i = 0; i < count && code == BASE_OK; i++)
        code = read_starts(proof, i, error);
    if (code == BASE_OK)
        code = seal(proof, error);
    for (size_t i = 0; i < proof->start_count && code == BASE_OK; i++)
        code = read_batches(proof, i, error);
    if (code != BASE_OK)
        cli_proof_close(proof);
    return code;
}

void cli_proof_close(struct cli_proof *proof)
{
    for (size_t i = 0; i < proof->epoch_count; i++)
        free(proof->epochs[i].seen);
    for (size_t i = 0; i < proof->rows_count; i++) {
        free(proof->rows[i].hashes);
        free(proof->rows[i].known);
    }
    free(proof->starts);
    free(proof->groups);
    free(proof->epochs);
    free(proof->rows);
    free(proof->steps);
    free(proof->words);
    *proof = (struct cli_proof){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What is written is read again; a cut end is normal; a changed byte never passes; a full disk loses nothing. */
#include "client/src/ledger.h"

#include "millrace/millrace.h"
#include "tests/unit/client/fake.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { BATCH = 5, ITEMS = 1000 };

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/millrace-ledger-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/one.ledger", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static struct ledger_start start_of(uint64_t generation)
{
    struct ledger_start start = {.job = "night-run",
                                 .rank = 1,
                                 .world = 2,
                                 .batch = BATCH,
                                 .tail = 1,
                                 .uses_epoch = true,
                                 .generation = generation,
                                 .items = ITEMS,
                                 .first_epoch = 3,
                                 .epoch = 4,
                                 .position = 20};
    memset(start.dataset_version, 1, 32);
    memset(start.stream, 2, 32);
    memset(start.fingerprint, 3, 16);
    return start;
}

static void append(struct client_ledger *ledger, uint64_t step)
{
    struct mr_row rows[BATCH];
    uint8_t valid[BATCH] = {1, 0, 1, 1, 0};
    struct base_error error;
    struct mr_batch batch = {.rows = BATCH,
                             .valid_rows = 3,
                             .valid = valid,
                             .row = rows,
                             .epoch = 1,
                             .stream_epoch = 4,
                             .step = step,
                             .steps = 100,
                             .cursor = {.epoch = 4, .position = 10 * step + 10}};
    for (uint64_t i = 0; i < BATCH; i++)
        rows[i] = (struct mr_row){.position = 10 * step + 5 + i + (i > 1), .hash = 1000 * step + i};
    struct client_ledger_step lies = {10 * step, 10, 4}; /* the last row is padding */
    if (client_ledger_append(ledger, &batch, &lies, &error) != BASE_OK)
        fail_msg("%s", error.text);
}

static struct client_ledger *open_at(const char *where, uint64_t generation)
{
    struct ledger_start start = start_of(generation);
    struct client_ledger *ledger;
    struct base_error error;
    if (client_ledger_open(&ledger, where, &start, &error) != BASE_OK)
        fail_msg("%s", error.text);
    return ledger;
}

static void check_batch(const struct ledger_batch *batch, uint64_t step)
{
    assert_int_equal(batch->step, step);
    assert_int_equal(batch->job_epoch, 1);
    assert_int_equal(batch->epoch, 4);
    assert_int_equal(batch->step_begin, 10 * step);
    assert_int_equal(batch->step_valid, 10);
    assert_int_equal(batch->after_position, 10 * step + 10);
    assert_int_equal(batch->padding, 1);
    assert_int_equal(batch->run_count, 2);
    assert_int_equal(batch->runs[0].begin, 10 * step + 5);
    assert_int_equal(batch->runs[0].count, 2);
    assert_int_equal(batch->runs[1].begin, 10 * step + 8);
    assert_int_equal(batch->rows, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(ledger_hash(batch, i), 1000 * step + i);
        assert_int_equal(ledger_valid(batch, i), i != 1);
    }
}

/* Reads the file: records of each kind until the end, or the code of the first error. Contents are checked. */
static enum base_code read_all(int *starts, int *batches, bool *torn)
{
    struct ledger_reader reader;
    struct ledger_record record;
    struct base_error error;
    *starts = *batches = 0;
    enum base_code code = ledger_reader_open(&reader, path, &error);
    while (code == BASE_OK) {
        code = ledger_reader_next(&reader, &record, &error);
        if (code == BASE_OK && record.kind == LEDGER_START) {
            struct ledger_start expected = start_of(++*starts), found = record.start;
            assert_string_equal(found.job, expected.job);
            assert_int_equal(found.generation, expected.generation);
            assert_memory_equal(found.stream, expected.stream, 32);
            assert_int_equal(found.position, 20);
        } else if (code == BASE_OK) {
            check_batch(&record.batch, (uint64_t)(*batches)++);
        }
    }
    *torn = reader.torn;
    ledger_reader_close(&reader);
    return code;
}

static void expect(int starts, int batches, bool torn)
{
    int has_starts, has_batches;
    bool is_torn;
    assert_int_equal(read_all(&has_starts, &has_batches, &is_torn), BASE_CLOSED);
    assert_int_equal(has_starts, starts);
    assert_int_equal(has_batches, batches);
    assert_int_equal(is_torn, torn);
}

static void write_three(void)
{
    unlink(path);
    struct client_ledger *ledger = open_at(path, 1);
    for (uint64_t step = 0; step < 3; step++)
        append(ledger, step);
    client_ledger_close(&ledger);
    assert_null(ledger);
}

static off_t size_of(void)
{
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    return about.st_size;
}

static void test_round_trip(void **state)
{
    (void)state;
    write_three();
    expect(1, 3, false);
}

/* Cut anywhere in the last record: the rest is read, and a new start goes on behind it. */
static void test_torn(void **state)
{
    (void)state;
    write_three();
    off_t whole = size_of(), last = (off_t)ledger_batch_bytes(4, 2);
    for (off_t cut = 1; cut < last; cut++) {
        write_three();
        assert_int_equal(truncate(path, whole - cut), 0);
        expect(1, 2, true);
        struct client_ledger *ledger = open_at(path, 2);
        append(ledger, 2);
        client_ledger_close(&ledger);
        expect(2, 3, false);
    }
}

/* No changed byte passes: the reader says so where it is, and never hands out other contents (read_all checks). */
static void test_changed_bytes(void **state)
{
    (void)state;
    write_three();
    off_t size = size_of();
    for (off_t at = 0; at < size; at++) {
        int starts, batches;
        bool torn;
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        fseeko(file, at, SEEK_SET);
        int byte = fgetc(file);
        fseeko(file, at, SEEK_SET);
        fputc(byte ^ 0x10, file);
        fclose(file);
        enum base_code code = read_all(&starts, &batches, &torn);
        if (code != BASE_CORRUPT)
            fail_msg("byte %lld changed: %s", (long long)at, base_error_name(code));
        file = fopen(path, "r+b");
        fseeko(file, at, SEEK_SET);
        fputc(byte, file);
        fclose(file);
    }
    expect(1, 3, false);
}

static void test_foreign_files_are_not_touched(void **state)
{
    (void)state;
    static const char *const texts[] = {"x", "MRLx", "weights of a model, precious",
                                        "MRLG but nothing of ours"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct client_ledger *ledger;
        struct base_error error;
        struct ledger_start start = start_of(1);
        FILE *file = fopen(path, "wb");
        fputs(texts[i], file);
        fclose(file);
        assert_int_equal(client_ledger_open(&ledger, path, &start, &error), BASE_CORRUPT);
        assert_non_null(strstr(error.text, path));
        assert_null(ledger);
        assert_int_equal(size_of(), strlen(texts[i]));
    }
}

static void test_one_writer_and_folders(void **state)
{
    (void)state;
    char expected[256];
    struct client_ledger *first = open_at(folder, 1), *second;
    struct base_error error;
    struct ledger_start start = start_of(2);
    assert_int_equal(client_ledger_open(&second, folder, &start, &error), BASE_CONFLICT);
    snprintf(expected, sizeof expected, "%s/night-run.1.ledger", folder);
    assert_non_null(strstr(error.text, expected));
    client_ledger_close(&first);
    assert_int_equal(unlink(expected), 0);
    snprintf(expected, sizeof expected, "%s/none/x.ledger", folder);
    assert_int_equal(client_ledger_open(&second, expected, &start, &error), BASE_NOT_FOUND);
    assert_int_equal(client_ledger_open(&second, "/dev/full", &start, &error), BASE_IO);
    assert_non_null(strstr(error.text, "/dev/full"));
}

/* ---- through the library: a disk that is full for a while ---- */

static void limit_size(rlim_t most)
{
    struct rlimit limit = {most, RLIM_INFINITY};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_full_disk(void **state)
{
    (void)state;
    enum { ROWS = 50, FAKE_ITEMS = 700 };
    struct fake *fake = fake_start(&(struct fake_options){
        .workers = 2, .items = FAKE_ITEMS, .pipeline = "sample: Decode CenterCrop(size=8) | finish:"});
    struct mr_client *client;
    struct mr_job *job;
    struct mr_batch *batch;
    struct mr_error error = {0};
    struct mr_client_options where = {.size = sizeof where, .server = fake_server(fake)};
    struct mr_job_options what = {.size = sizeof what,
                                  .dataset = FAKE_DATASET,
                                  .batch = ROWS,
                                  .epochs = 1,
                                  .tail = MR_TAIL_EXACT,
                                  .ledger = path};
    unlink(path);
    assert_int_equal(mr_client_open(&client, &where, &error), MR_OK);
    if (mr_job_open(&job, client, &what, 20000, &error) != MR_OK)
        fail_msg("%s", error.text);
    uint64_t expected = 0;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGXFSZ, &ignore, &before);
    for (int step = 0;; step++) {
        struct mr_job_info info = {.size = sizeof info};
        if (step % 3 == 1) { /* some bytes of the record fit */
            limit_size((rlim_t)size_of() + (rlim_t)step);
            for (int again = 0; again < 2; again++) {
                enum mr_code code = mr_job_next(job, &batch, 20000, &error);
                assert_int_equal(code, MR_IO);
                assert_non_null(strstr(error.text, path));
                assert_int_equal(mr_job_info(job, &info, &error), MR_OK);
                assert_int_equal(info.cursor.position, expected);
            }
            limit_size(RLIM_INFINITY);
        }
        enum mr_code code = mr_job_next(job, &batch, 20000, &error);
        if (code == MR_END)
            break;
        assert_int_equal(code, MR_OK);
        assert_int_equal(batch->row[0].position, expected);
        expected += batch->rows;
        mr_batch_release(batch);
    }
    sigaction(SIGXFSZ, &before, NULL);
    assert_int_equal(expected, FAKE_ITEMS);
    mr_job_close(&job);
    assert_int_equal(mr_client_close(&client), MR_OK);
    fake_stop(fake);

    struct ledger_reader reader;
    struct ledger_record record;
    struct base_error why;
    assert_int_equal(ledger_reader_open(&reader, path, &why), BASE_OK);
    assert_int_equal(ledger_reader_next(&reader, &record, &why), BASE_OK);
    assert_int_equal(record.kind, LEDGER_START);
    for (uint64_t at = 0; at < FAKE_ITEMS; at += record.batch.rows) {
        assert_int_equal(ledger_reader_next(&reader, &record, &why), BASE_OK);
        assert_int_equal(record.batch.runs[0].begin, at);
        assert_int_equal(record.batch.rows, ROWS);
    }
    assert_int_equal(ledger_reader_next(&reader, &record, &why), BASE_CLOSED);
    assert_false(reader.torn);
    ledger_reader_close(&reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_torn),
        cmocka_unit_test(test_changed_bytes),
        cmocka_unit_test(test_foreign_files_are_not_touched),
        cmocka_unit_test(test_one_writer_and_folders),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

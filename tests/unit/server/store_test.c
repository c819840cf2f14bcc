/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/millrace-store-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static struct store *open_it(void)
{
    struct store *store = NULL;
    struct base_error error;
    if (store_open(&store, dir, &error))
        fail_msg("%s", error.text);
    return store;
}

struct seen {
    int count;
    struct store_dataset dataset;
    char name[64], classes[64], record[64];
    uint8_t homes[64];
    size_t homes_size;
    uint64_t number, version;
};

static void see_dataset(void *context, const struct store_dataset *dataset)
{
    struct seen *seen = context;
    seen->count++;
    seen->dataset = *dataset;
    strcpy(seen->name, dataset->name);
    strcpy(seen->classes, dataset->classes);
}

static void see_job(void *context, const struct store_job *job)
{
    struct seen *seen = context;
    seen->count++;
    strcpy(seen->name, job->id);
    memcpy(seen->record, job->record, job->record_size);
    seen->number = job->position;
    seen->version = job->epoch;
}

static void see_stream(void *context, const struct store_stream *stream)
{
    struct seen *seen = context;
    seen->count++;
    seen->number = stream->seed;
    seen->version = stream->plan_version;
    seen->homes_size = stream->homes_size;
    if (stream->homes_size > 0)
        memcpy(seen->homes, stream->homes, stream->homes_size);
}

static void see_bad(void *context, const struct store_bad_item *bad)
{
    struct seen *seen = context;
    seen->count++;
    seen->number = bad->item;
    strcpy(seen->name, bad->name);
}

static void datasets_survive_a_restart(void **state)
{
    (void)state;
    struct store *store = open_it();
    struct store_dataset put = {.name = "photos",
                                .path = "/data/p\xc3\xa9",
                                .state = "ready",
                                .items = UINT64_MAX,
                                .classes = "a\nb"};
    put.version[31] = 7;
    assert_int_equal(store_dataset_put(store, &put, NULL), BASE_OK);
    put.items = 3;
    assert_int_equal(store_dataset_put(store, &put, NULL), BASE_OK);
    store_close(&store);
    assert_null(store);

    store = open_it();
    struct seen seen = {0};
    assert_int_equal(store_datasets_each(store, see_dataset, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 1);
    assert_string_equal(seen.name, "photos");
    assert_string_equal(seen.classes, "a\nb");
    assert_int_equal(seen.dataset.items, 3);
    assert_int_equal(seen.dataset.version[31], 7);
    assert_int_equal(store_dataset_remove(store, "photos", NULL), BASE_OK);
    seen.count = 0;
    assert_int_equal(store_datasets_each(store, see_dataset, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 0);
    store_close(&store);
}

static void jobs_streams_and_bad_items_survive(void **state)
{
    (void)state;
    struct store *store = open_it();
    struct store_job job = {.id = "run-1",
                            .dataset = "photos",
                            .record = "\0x\0",
                            .record_size = 3,
                            .epoch = UINT32_MAX,
                            .position = 5};
    struct store_stream stream = {.seed = UINT64_MAX - 1,
                                  .sample_text = "sample:",
                                  .plan_version = 9,
                                  .shuffle = true,
                                  .homes = (const uint8_t *)"\1\0\2",
                                  .homes_size = 3};
    struct store_bad_item bad = {.item = 4, .name = "x.jpg", .cause = "bad_truncated"};
    assert_int_equal(store_job_put(store, &job, NULL), BASE_OK);
    assert_int_equal(store_stream_put(store, &stream, NULL), BASE_OK);
    for (int i = 0; i < 3; i++, bad.item++)
        assert_int_equal(store_bad_item_put(store, &bad, NULL), BASE_OK);
    store_close(&store);

    store = open_it();
    struct seen seen = {0};
    assert_int_equal(store_jobs_each(store, see_job, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 1);
    assert_memory_equal(seen.record, "\0x\0", 3);
    assert_int_equal(seen.version, UINT32_MAX);
    assert_int_equal(store_streams_each(store, see_stream, &seen, NULL), BASE_OK);
    assert_true(seen.number == UINT64_MAX - 1 && seen.version == 9 && seen.homes_size == 3);
    assert_memory_equal(seen.homes, "\1\0\2", 3);
    uint64_t count = 0;
    seen.count = 0;
    assert_int_equal(store_bad_items_count(store, bad.version, &count, NULL), BASE_OK);
    assert_int_equal(store_bad_items_each(store, bad.version, 2, see_bad, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 2);
    assert_int_equal(count, 3);
    assert_int_equal(store_stream_remove(store, stream.hash, NULL), BASE_OK);
    assert_int_equal(store_job_remove(store, "run-1", NULL), BASE_OK);
    store_close(&store);
}

/* Revisions and orders of an earlier start, still held by workers, must not be taken for ours. */
static void numbers_rise_over_restarts_whatever_the_clock_says(void **state)
{
    (void)state;
    static const uint64_t clocks_us[] = {5000, 5000, 4, UINT64_C(1) << 50, (UINT64_C(1) << 50) - 9};
    uint64_t before = 0, first = 0;
    for (size_t i = 0; i < sizeof clocks_us / sizeof *clocks_us; i++) {
        struct store *store = open_it();
        assert_int_equal(store_first_number(store, clocks_us[i], &first, NULL), BASE_OK);
        assert_true(first >= clocks_us[i] && first >= before + STORE_NUMBERS_A_START);
        before = first;
        store_close(&store);
    }
}

static void sql(const char *text)
{
    char path[128];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/server.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void an_older_schema_is_brought_up_to_date(void **state)
{
    (void)state;
    struct store *store = open_it();
    struct store_dataset put = {.name = "photos", .path = "/data", .state = "ready"};
    assert_int_equal(store_dataset_put(store, &put, NULL), BASE_OK);
    store_close(&store);
    sql("DROP TABLE numbers; ALTER TABLE streams DROP COLUMN homes; ALTER TABLE datasets DROP COLUMN masks; "
        "PRAGMA user_version=1;" /* as the first build left it */
        "INSERT INTO streams VALUES(zeroblob(32),zeroblob(32),zeroblob(16),5,6,0,'sample:',7)");
    store = open_it();
    struct seen seen = {0};
    uint64_t first;
    assert_int_equal(store_datasets_each(store, see_dataset, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 1);
    assert_int_equal(store_first_number(store, 1, &first, NULL), BASE_OK);
    assert_int_equal(store_streams_each(store, see_stream, &seen, NULL), BASE_OK);
    assert_true(seen.version == 7 && seen.homes_size == 0);
    store_close(&store);
}

static void a_write_is_all_or_nothing(void **state)
{
    (void)state;
    struct store *store = open_it();
    struct store_job job = {.id = "run", .dataset = "photos", .record = "x", .record_size = 1};
    struct seen seen = {0};
    assert_int_equal(store_begin(store, NULL), BASE_OK);
    assert_int_equal(store_job_put(store, &job, NULL), BASE_OK);
    store_rollback(store);
    assert_int_equal(store_jobs_each(store, see_job, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 0);
    assert_int_equal(store_begin(store, NULL), BASE_OK);
    assert_int_equal(store_job_put(store, &job, NULL), BASE_OK);
    assert_int_equal(store_commit(store, NULL), BASE_OK);
    assert_int_equal(store_jobs_each(store, see_job, &seen, NULL), BASE_OK);
    assert_int_equal(seen.count, 1);
    store_close(&store);
}

static void two_servers_cannot_share_a_state(void **state)
{
    (void)state;
    struct store *first = open_it(), *second = NULL;
    struct base_error error;
    assert_int_equal(store_open(&second, dir, &error), BASE_IO);
    assert_null(second);
    assert_non_null(strstr(error.text, "locked"));
    assert_non_null(strstr(error.text, dir));
    store_close(&first);
}

static void a_newer_schema_and_garbage_are_refused(void **state)
{
    (void)state;
    struct store *store = open_it();
    store_close(&store);
    char path[128];
    snprintf(path, sizeof path, "%s/server.db", dir);
    sql("PRAGMA user_version=99");
    struct base_error error;
    assert_int_equal(store_open(&store, dir, &error), BASE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "schema 99"));

    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("this is no database, and it is long enough to be looked at by the library", file);
    fclose(file);
    assert_int_not_equal(store_open(&store, dir, &error), BASE_OK);
    assert_non_null(strstr(error.text, path));
    assert_int_not_equal(store_open(&store, "/proc/no/such", &error), BASE_OK);
    assert_non_null(strstr(error.text, "/proc/no"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(datasets_survive_a_restart, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(jobs_streams_and_bad_items_survive, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(numbers_rise_over_restarts_whatever_the_clock_says, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(an_older_schema_is_brought_up_to_date, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_write_is_all_or_nothing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(two_servers_cannot_share_a_state, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_newer_schema_and_garbage_are_refused, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

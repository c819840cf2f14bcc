/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's state while memory runs out and the disk fills up, in SQLite itself: a write is told to have failed and is not there, or
 * is whole; what was there before stays.
 */
#include "server/store/store.h"
#include "tests/support/inject.h"
#include "tests/unit/server/store_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

enum { JOBS = 20 };

/* ---- SQLite's own hooks ---- */

static sqlite3_mem_methods heap;

static void *heap_malloc(int size)
{
    return inject_hit(INJECT_MEMORY) ? NULL : heap.xMalloc(size);
}

static void *heap_realloc(void *block, int size)
{
    return inject_hit(INJECT_MEMORY) ? NULL : heap.xRealloc(block, size);
}

static int hook_open(const char *path, int flags, int mode)
{
    return inject_hit(INJECT_CALL) ? -1 : open(path, flags, mode);
}

static ssize_t hook_pread(int fd, void *bytes, size_t size, off_t at)
{
    return inject_hit(INJECT_CALL) ? -1 : pread(fd, bytes, size, at);
}

static ssize_t hook_pwrite(int fd, const void *bytes, size_t size, off_t at)
{
    return inject_hit(INJECT_CALL) ? -1 : pwrite(fd, bytes, size, at);
}

static int hook_fstat(int fd, struct stat *about)
{
    return inject_hit(INJECT_CALL) ? -1 : fstat(fd, about);
}

static int hook_ftruncate(int fd, off_t size)
{
    return inject_hit(INJECT_CALL) ? -1 : ftruncate(fd, size);
}

static int hook_sqlite(void **state)
{
    const struct {
        const char *name;
        sqlite3_syscall_ptr call;
    } calls[] = {
        {"open", (sqlite3_syscall_ptr)hook_open},           {"pread", (sqlite3_syscall_ptr)hook_pread},
        {"pread64", (sqlite3_syscall_ptr)hook_pread},       {"pwrite", (sqlite3_syscall_ptr)hook_pwrite},
        {"pwrite64", (sqlite3_syscall_ptr)hook_pwrite},     {"fstat", (sqlite3_syscall_ptr)hook_fstat},
        {"ftruncate", (sqlite3_syscall_ptr)hook_ftruncate},
    };
    if (store_folder_make(state) || sqlite3_config(SQLITE_CONFIG_GETMALLOC, &heap) != SQLITE_OK)
        return -1;
    sqlite3_mem_methods ours = heap;
    ours.xMalloc = heap_malloc;
    ours.xRealloc = heap_realloc;
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &ours) != SQLITE_OK || sqlite3_initialize() != SQLITE_OK)
        return -1;
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (vfs->xGetSystemCall(vfs, calls[i].name))
            vfs->xSetSystemCall(vfs, calls[i].name, calls[i].call);
    return 0;
}

/* ---- what is written ---- */

struct seen {
    int jobs, datasets;
    uint64_t sum;
};

static void see_job(void *context, const struct store_job *job)
{
    struct seen *seen = context;
    seen->jobs++;
    seen->sum += job->position;
}

static void see_dataset(void *context, const struct store_dataset *dataset)
{
    struct seen *seen = context;
    seen->datasets++;
    seen->sum += dataset->items + strlen(dataset->classes) / 1000;
}

static enum base_code put_job(struct store *store, int number, uint64_t position, struct base_error *error)
{
    char id[16], record[500] = {0};
    snprintf(id, sizeof id, "job%d", number);
    const struct store_job job = {
        .id = id, .dataset = "photos", .record = record, .record_size = sizeof record, .position = position};
    return store_job_put(store, &job, error);
}

/* All jobs come to `position` together. */
static enum base_code move_jobs(struct store *store, uint64_t position, struct base_error *error)
{
    enum base_code code = store_begin(store, error);
    if (code != BASE_OK)
        return code;
    for (int i = 0; i < JOBS && code == BASE_OK; i++)
        code = put_job(store, i, position, error);
    if (code == BASE_OK)
        return store_commit(store, error);
    store_rollback(store);
    return code;
}

static enum base_code put_dataset(struct store *store, struct base_error *error)
{
    static char classes[9001];
    memset(classes, 'c', sizeof classes - 1);
    const struct store_dataset dataset = {
        .name = "photos", .path = "/data", .state = "ready", .items = 5000, .classes = classes};
    return store_dataset_put(store, &dataset, error);
}

static struct seen look(void)
{
    struct store *store = NULL;
    struct base_error error;
    struct seen seen = {0};
    if (store_open(&store, store_folder, &error) != BASE_OK)
        fail_msg("afterwards: %s", error.text);
    assert_int_equal(store_jobs_each(store, see_job, &seen, NULL), BASE_OK);
    assert_int_equal(store_datasets_each(store, see_dataset, &seen, NULL), BASE_OK);
    store_close(&store);
    return seen;
}

/* Upon jobs at position 1: a dataset, then all jobs to position 2. */
static enum base_code write_state(void *context, struct base_error *error)
{
    (void)context;
    struct inject_plan plan = inject_pause();
    struct store *store = NULL;
    store_folder_clear();
    struct base_error why = {0};
    if (store_open(&store, store_folder, &why) != BASE_OK || move_jobs(store, 1, &why) != BASE_OK)
        fail_msg("%s", why.text);
    store_close(&store);
    inject_start(&plan);
    bool has_dataset = false;
    enum base_code code = store_open(&store, store_folder, error);
    if (code == BASE_OK)
        code = put_dataset(store, error);
    has_dataset = code == BASE_OK;
    if (code == BASE_OK)
        code = move_jobs(store, 2, error);
    inject_stop();
    if (store && code != BASE_OK && move_jobs(store, 3, &why) != BASE_OK) /* it is as good as before */
        fail_msg("after %s: %s", error->text, why.text);
    bool moved_later = store && code != BASE_OK;
    if (store)
        store_close(&store);
    struct seen seen = look();
    uint64_t jobs_sum = seen.sum - (seen.datasets ? 5009 : 0);
    assert_int_equal(seen.jobs, JOBS);
    assert_true(seen.datasets == 1 || !has_dataset);
    assert_int_equal(jobs_sum, JOBS * (code == BASE_OK ? 2 : moved_later ? 3 : 1));
    return code;
}

/* What is read is all that is there, as it is, or told. */
static enum base_code read_state(void *context, struct base_error *error)
{
    (void)context;
    struct store *store = NULL;
    struct seen seen = {0};
    enum base_code code = store_open(&store, store_folder, error);
    if (code == BASE_OK)
        code = store_jobs_each(store, see_job, &seen, error);
    if (code == BASE_OK)
        code = store_datasets_each(store, see_dataset, &seen, error);
    inject_stop();
    if (code == BASE_OK) {
        assert_int_equal(seen.jobs, JOBS);
        assert_int_equal(seen.sum, JOBS * 2 + 5009);
    }
    if (store)
        store_close(&store);
    return code;
}

static void states(void **state)
{
    (void)state;
    inject_each("store: write", INJECT_MEMORY | INJECT_CALL, write_state, NULL);
    inject_each("store: read", INJECT_MEMORY | INJECT_CALL, read_state, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(states)};
    return cmocka_run_group_tests(tests, hook_sqlite, store_folder_remove);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of datasets while memory runs out: what was told to have failed is not there, and goes when it is done again. */
#include "base/log.h"
#include "server/datasets.h"
#include "tests/support/inject.h"
#include "tests/unit/server/store_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKER = 5, STEPS = 4 };

static enum base_code tell_indexed(struct server_datasets *datasets, struct base_error *error)
{
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    char cats[] = "a/cats", dogs[] = "dogs\nand more", readme[] = "README", *classes[] = {cats, dogs},
         *skipped[] = {readme};
    uint8_t version[BASE_SHA256_BYTES] = {1, 2, 3};
    result.worker = WORKER;
    result.order = server_datasets_find(datasets, "photos")->index.id;
    result.version.data = version;
    result.version.len = sizeof version;
    result.items = 7;
    result.classes = classes;
    result.n_classes = 2;
    result.skipped_names = skipped;
    result.n_skipped_names = 1;
    return server_datasets_indexed(datasets, &result, error);
}

static enum base_code step(struct server_datasets *datasets, int number, struct base_error *error)
{
    struct server_dataset *dataset;
    switch (number) {
    case 0:
        return server_datasets_add(datasets, "photos", &(struct server_dataset_place){"/data/photos", ""},
                                   &dataset, error);
    case 1:
        server_datasets_assign(datasets, (uint64_t[]){WORKER}, 1);
        return BASE_OK;
    case 2:
        return tell_indexed(datasets, error);
    default:
        return server_datasets_add(datasets, "other", &(struct server_dataset_place){"/data/other", ""},
                                   &dataset, error);
    }
}

static void check(const struct server_datasets *datasets)
{
    const struct server_dataset *photos = server_datasets_find(datasets, "photos");
    assert_non_null(photos);
    assert_int_equal(photos->state, SERVER_DATASET_READY);
    assert_true(photos->has_version && photos->items == 7);
    assert_int_equal(photos->classes.count, 2);
    assert_string_equal(photos->classes.line[1], "dogs\nand more");
    assert_int_equal(photos->skipped_names.count, 1);
    assert_non_null(server_datasets_find(datasets, "other"));
}

/* The steps with a failure in them, each again if it was told to have failed; then what a restarted server finds. */
static enum base_code live(void *context, struct base_error *error)
{
    (void)context;
    struct inject_plan plan = inject_pause();
    struct store *store = NULL;
    struct server_datasets *datasets = NULL;
    store_folder_clear();
    assert_int_equal(store_open(&store, store_folder, NULL), BASE_OK);
    inject_start(&plan);
    enum base_code code = server_datasets_create(&datasets, store, 0, error), first = code;
    if (code != BASE_OK) {
        inject_stop();
        assert_int_equal(server_datasets_create(&datasets, store, 0, NULL), BASE_OK);
    }
    for (int i = 0; i < STEPS; i++) {
        code = step(datasets, i, first == BASE_OK ? error : NULL);
        if (code == BASE_OK)
            continue;
        inject_stop();
        first = code;
        assert_int_equal(step(datasets, i, NULL), BASE_OK);
    }
    check(datasets);
    server_datasets_destroy(datasets);
    code = server_datasets_create(&datasets, store, 1000, first == BASE_OK ? error : NULL);
    inject_stop();
    if (code != BASE_OK) {
        first = code;
        assert_int_equal(server_datasets_create(&datasets, store, 1000, NULL), BASE_OK);
    }
    check(datasets);
    server_datasets_destroy(datasets);
    store_close(&store);
    return first;
}

static void registry(void **state)
{
    (void)state;
    inject_each("datasets", INJECT_MEMORY, live, NULL);
}

int main(void)
{
    base_log_start("test", -1, BASE_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(registry)};
    return cmocka_run_group_tests(tests, store_folder_make, store_folder_remove);
}

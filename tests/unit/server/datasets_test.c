/* SPDX-License-Identifier: Apache-2.0 */
#include "server/datasets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[64];
static struct store *store;
static struct server_datasets *datasets;
static uint64_t first_order; /* of this start, as the store would say it */

static int open_all(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/millrace-datasets-XXXXXX");
    return !mkdtemp(dir) || store_open(&store, dir, NULL) ||
           server_datasets_create(&datasets, store, first_order, NULL);
}

static int close_all(void **state)
{
    (void)state;
    char command[128];
    server_datasets_destroy(datasets);
    store_close(&store);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void restart(void)
{
    server_datasets_destroy(datasets);
    first_order += 1000;
    assert_int_equal(server_datasets_create(&datasets, store, first_order, NULL), BASE_OK);
}

static struct server_dataset *add(const char *name, const char *path)
{
    struct server_dataset *dataset = NULL;
    assert_int_equal(
        server_datasets_add(datasets, name, &(struct server_dataset_place){path, ""}, &dataset, NULL),
        BASE_OK);
    return dataset;
}

static uint8_t version[BASE_SHA256_BYTES] = {1, 2, 3};

static enum base_code answer_masks(const struct server_order *order, uint64_t worker, uint32_t code,
                                   char *error, bool masks)
{
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    char cats[] = "a/cats", dogs[] = "dogs\nand more", *classes[] = {cats, dogs};
    result.worker = worker;
    result.order = order->id;
    result.code = code;
    result.error = error;
    result.version.data = version;
    result.version.len = sizeof version;
    result.items = 7;
    result.classes = classes;
    result.n_classes = 2;
    result.masks = masks;
    return server_datasets_indexed(datasets, &result, NULL);
}

static enum base_code answer(const struct server_order *order, uint64_t worker, uint32_t code, char *error)
{
    return answer_masks(order, worker, code, error, false);
}

static void other_masks_are_another_index(void **state)
{
    (void)state;
    struct server_dataset_place place = {"/data/photos", "/data/masks"};
    struct server_dataset *dataset = add("photos", "/data/photos");
    uint64_t first = dataset->index.id;
    assert_string_equal(dataset->masks, "");
    assert_int_equal(server_datasets_add(datasets, "photos", &place, &dataset, NULL), BASE_OK);
    assert_true(dataset->index.id > first); /* what a worker may say of the first is for nobody */
    first = dataset->index.id;
    assert_int_equal(server_datasets_add(datasets, "photos", &place, &dataset, NULL), BASE_OK);
    assert_true(dataset->index.id == first);
    restart();
    dataset = server_datasets_find(datasets, "photos");
    assert_string_equal(dataset->masks, "/data/masks");
    place.masks = "masks";
    assert_int_equal(server_datasets_add(datasets, "photos", &place, &dataset, NULL), BASE_INVALID);
}

static struct server_dataset *add_masks(const char *masks)
{
    struct server_dataset *dataset = NULL;
    struct server_dataset_place place = {"/data/photos", masks};
    assert_int_equal(server_datasets_add(datasets, "photos", &place, &dataset, NULL), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    return dataset;
}

/* What is served has the masks that it was indexed with, whatever becomes of an index with others. */
static void masks_change_with_the_version(void **state)
{
    (void)state;
    char gone[] = "cats/1.jpg has no mask", fine[] = "";
    struct server_dataset *dataset = add_masks("/data/first");
    assert_int_equal(answer_masks(&dataset->index, 5, BASE_OK, fine, true), BASE_OK);
    assert_int_equal(dataset->state, SERVER_DATASET_READY);

    static const char *const others[] = {"/data/second", "/data/third", ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        dataset = add_masks(others[i]);
        assert_string_equal(dataset->masks, "/data/first");
        assert_string_equal(server_dataset_asked_masks(dataset), others[i]);
        answer_masks(&dataset->index, 5, BASE_INVALID, gone, false);
        server_datasets_assign(datasets, (uint64_t[]){5}, 1);
        assert_int_equal(dataset->state, SERVER_DATASET_READY);
        assert_true(dataset->index.id == 0);
        assert_string_equal(dataset->error, gone);
        assert_string_equal(dataset->masks, "/data/first");
        assert_string_equal(server_dataset_asked_masks(dataset), "/data/first");
    }
    add_masks("/data/second"); /* and then the server dies: nobody remembers that order */
    restart();
    dataset = server_datasets_find(datasets, "photos");
    assert_string_equal(server_dataset_asked_masks(dataset), "/data/first");

    dataset = add_masks("/data/second");
    assert_int_equal(answer_masks(&dataset->index, 5, BASE_OK, fine, true), BASE_OK);
    assert_string_equal(dataset->masks, "/data/second");
    dataset = add_masks("");
    assert_int_equal(answer(&dataset->index, 5, BASE_OK, fine), BASE_OK);
    assert_string_equal(dataset->masks, "");
    restart();
    assert_string_equal(server_datasets_find(datasets, "photos")->masks, "");
}

/* One that knows no masks indexes without, and says that it is done. */
static void an_index_without_the_masks_asked_for_is_none(void **state)
{
    (void)state;
    char fine[] = "";
    struct server_dataset *dataset = add_masks("/data/masks");
    assert_int_equal(answer_masks(&dataset->index, 5, BASE_OK, fine, false), BASE_OK);
    assert_int_equal(dataset->state, SERVER_DATASET_INDEXING);
    server_datasets_assign(datasets, (uint64_t[]){5, 6}, 2);
    assert_true(dataset->index.worker == 6);
    assert_int_equal(answer_masks(&dataset->index, 6, BASE_OK, fine, false), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5, 6}, 2);
    assert_int_equal(dataset->state, SERVER_DATASET_FAILED);
    assert_int_equal(dataset->index_code, BASE_UNSUPPORTED);
}

static void an_unknown_name_is_told_with_those_that_are_known(void **state)
{
    (void)state;
    struct base_error error;
    assert_int_equal(server_datasets_remove(datasets, "photos", &error), BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "'photos' is not registered; none is: `millrace dataset add"));
    add("cats", "/data/cats");
    add("dogs", "/data/dogs");
    assert_int_equal(server_datasets_remove(datasets, "photos", &error), BASE_NOT_FOUND);
    assert_string_equal(error.text, "dataset 'photos' is not registered; there is cats, dogs");
    for (int i = 0; i < 100; i++) {
        char name[24];
        snprintf(name, sizeof name, "more-%d", i);
        add(name, "/data/more");
    }
    assert_int_equal(server_datasets_unknown(datasets, "photos", &error), BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "...: `millrace dataset list` has all"));
}

static void a_dataset_waits_for_workers_and_becomes_ready(void **state)
{
    (void)state;
    struct server_dataset *dataset = add("photos", "/data/photos");
    server_datasets_assign(datasets, NULL, 0);
    assert_int_equal(dataset->state, SERVER_DATASET_INDEXING);
    assert_int_equal(dataset->index.worker, 0);
    uint64_t revision = server_datasets_revision(datasets);
    server_datasets_assign(datasets, (uint64_t[]){5, 6}, 2);
    assert_int_equal(dataset->index.worker, 5);
    assert_true(server_datasets_revision(datasets) > revision);
    char none[] = "";
    assert_int_equal(answer(&dataset->index, 6, 0, none), BASE_OK); /* not its order: ignored */
    assert_int_equal(dataset->state, SERVER_DATASET_INDEXING);
    assert_int_equal(answer(&dataset->index, 5, 0, none), BASE_OK);
    assert_int_equal(dataset->state, SERVER_DATASET_READY);
    restart();
    dataset = server_datasets_find(datasets, "photos");
    assert_int_equal(dataset->state, SERVER_DATASET_READY);
    assert_int_equal(dataset->classes.count, 2);
    assert_string_equal(dataset->classes.line[0], "a/cats");
    assert_string_equal(dataset->classes.line[1], "dogs\nand more");
    assert_memory_equal(dataset->version, version, sizeof version);
}

static void an_order_goes_on_when_its_worker_dies_or_refuses(void **state)
{
    (void)state;
    struct server_dataset *dataset = add("photos", "/data/photos");
    char no[] = "/data/photos lies outside the data roots";
    server_datasets_assign(datasets, (uint64_t[]){5, 6}, 2);
    server_datasets_assign(datasets, (uint64_t[]){6}, 1);
    assert_int_equal(dataset->index.worker, 6);
    assert_int_equal(answer(&dataset->index, 6, BASE_REFUSED, no), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5, 6}, 2);
    assert_int_equal(dataset->index.worker, 5);
    assert_int_equal(answer(&dataset->index, 5, BASE_REFUSED, no), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5, 6}, 2);
    assert_int_equal(dataset->state, SERVER_DATASET_FAILED);
    assert_string_equal(dataset->error, no);
    restart();
    dataset = server_datasets_find(datasets, "photos");
    assert_int_equal(dataset->state, SERVER_DATASET_FAILED);
    assert_string_equal(dataset->error, no);
    assert_ptr_equal(add("photos", "/data/photos"), dataset); /* tried again */
    assert_int_equal(dataset->state, SERVER_DATASET_INDEXING);
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    assert_int_equal(answer(&dataset->index, 5, BASE_NOT_FOUND, no), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    assert_int_equal(dataset->state, SERVER_DATASET_FAILED);
    dataset = add("photos", "/data/corrected"); /* and a corrected path needs no rm before */
    assert_string_equal(dataset->path, "/data/corrected");
    restart(); /* and an order survives a restart */
    assert_int_not_equal(server_datasets_find(datasets, "photos")->index.id, 0);
}

/* The order of one dataset had the number that another's has after the restart: its manifest went to the wrong one. */
static void an_answer_to_an_order_of_an_earlier_start_is_ignored(void **state)
{
    (void)state;
    struct server_dataset *dataset = add("zebras", "/data/zebras");
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    struct server_order old = dataset->index;
    add("apples", "/data/apples");
    restart();
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    char none[] = "";
    assert_int_equal(answer(&old, 5, 0, none), BASE_OK);
    for (struct server_dataset *d = server_datasets_first(datasets); d; d = d->next)
        assert_int_equal(d->state, SERVER_DATASET_INDEXING);
}

/* More workers than the list of those who refused could hold were asked again and again. */
static void a_dataset_that_nobody_can_read_fails_however_many_there_are(void **state)
{
    (void)state;
    enum { WORKERS = 200 };
    uint64_t live[WORKERS];
    for (uint64_t i = 0; i < WORKERS; i++)
        live[i] = i + 1;
    struct server_dataset *dataset = add("photos", "/data/photos");
    char no[] = "/data/photos: no such directory";
    for (int i = 0; i < WORKERS + 1 && dataset->state == SERVER_DATASET_INDEXING; i++) {
        server_datasets_assign(datasets, live, WORKERS);
        answer(&dataset->index, dataset->index.worker, BASE_NOT_FOUND, no);
    }
    assert_int_equal(dataset->state, SERVER_DATASET_FAILED);
    assert_string_equal(dataset->error, no);
}

static void names_of_files_that_are_not_utf8_are_escaped(void **state)
{
    (void)state;
    struct server_dataset *dataset = add("photos", "/data/photos");
    char cafe[] = "caf\xe9", *names[] = {cafe};
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    result.worker = 5;
    result.order = dataset->index.id;
    result.version.data = version;
    result.version.len = sizeof version;
    result.items = 1;
    result.classes = result.skipped_names = names;
    result.n_classes = result.n_skipped_names = 1;
    assert_int_equal(server_datasets_indexed(datasets, &result, NULL), BASE_OK);
    assert_string_equal(dataset->classes.line[0], "caf\\xe9");
    assert_string_equal(dataset->skipped_names.line[0], "caf\\xe9");
}

static void lists_and_datasets_are_bounded(void **state)
{
    (void)state;
    enum { NAMES = 1000, LENGTH = 1000 };
    static char name[LENGTH + 1], *names[NAMES];
    memset(name, 'x', LENGTH);
    for (int i = 0; i < NAMES; i++)
        names[i] = name;
    struct server_dataset *dataset = add("photos", "/data/photos");
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    result.worker = 5;
    result.order = dataset->index.id;
    result.version.data = version;
    result.version.len = sizeof version;
    result.items = 1;
    result.classes = result.skipped_names = names;
    result.n_classes = result.n_skipped_names = NAMES;
    assert_int_equal(server_datasets_indexed(datasets, &result, NULL), BASE_OK);
    assert_in_range(dataset->classes.count, 700, 800);
    assert_in_range(dataset->skipped_names.count, 60, 65);
    enum base_code code = BASE_OK;
    int count = 1;
    assert_int_equal(store_begin(store, NULL), BASE_OK); /* or each waits for the disk */
    for (; !code && count < 5000; count++) {
        char text[32];
        snprintf(text, sizeof text, "set-%d", count);
        code =
            server_datasets_add(datasets, text, &(struct server_dataset_place){"/data", ""}, &dataset, NULL);
    }
    assert_int_equal(store_commit(store, NULL), BASE_OK);
    assert_int_equal(code, BASE_BUSY);
    assert_int_equal(count, 1025);
}

static void bad_names_and_paths_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *path;
        enum base_code code;
    } rows[] = {
        {"", "/data", BASE_INVALID},      {"a b", "/data", BASE_INVALID},  {"a/b", "/data", BASE_INVALID},
        {"a\xff", "/data", BASE_INVALID}, {"a", "data", BASE_INVALID},     {"a", "", BASE_INVALID},
        {"known", "/other", BASE_EXISTS}, {"a", "/caf\xe9", BASE_INVALID},
    };
    add("known", "/data");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct server_dataset *dataset = NULL;
        assert_int_equal(server_datasets_add(datasets, rows[i].name,
                                             &(struct server_dataset_place){rows[i].path, ""}, &dataset,
                                             NULL),
                         rows[i].code);
        assert_null(dataset);
    }
    char name[SERVER_DATASET_NAME_CHARS + 1];
    struct server_dataset *dataset = NULL;
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(
        server_datasets_add(datasets, name, &(struct server_dataset_place){"/data", ""}, &dataset, NULL),
        BASE_INVALID);
    assert_int_equal(server_datasets_remove(datasets, "nobody", NULL), BASE_NOT_FOUND);
    assert_int_equal(server_datasets_remove(datasets, "known", NULL), BASE_OK);
    assert_null(server_datasets_first(datasets));
}

static void verify_is_an_order_beside_the_dataset(void **state)
{
    (void)state;
    struct server_dataset *dataset = add("photos", "/data/photos");
    char none[] = "", gone[] = "gone";
    assert_int_equal(server_datasets_verify(datasets, dataset, NULL), BASE_UNAVAILABLE);
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    answer(&dataset->index, 5, 0, none);
    assert_int_equal(server_datasets_verify(datasets, dataset, NULL), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    assert_int_equal(answer(&dataset->verify, 5, BASE_NOT_FOUND, gone), BASE_OK);
    server_datasets_assign(datasets, (uint64_t[]){5}, 1);
    assert_int_equal(dataset->verify_done, 1);
    assert_int_equal(dataset->verify_code, BASE_UNAVAILABLE);
    assert_int_equal(dataset->state, SERVER_DATASET_READY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(other_masks_are_another_index, open_all, close_all),
        cmocka_unit_test_setup_teardown(masks_change_with_the_version, open_all, close_all),
        cmocka_unit_test_setup_teardown(an_index_without_the_masks_asked_for_is_none, open_all, close_all),
        cmocka_unit_test_setup_teardown(an_unknown_name_is_told_with_those_that_are_known, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(a_dataset_waits_for_workers_and_becomes_ready, open_all, close_all),
        cmocka_unit_test_setup_teardown(an_order_goes_on_when_its_worker_dies_or_refuses, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(an_answer_to_an_order_of_an_earlier_start_is_ignored, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(a_dataset_that_nobody_can_read_fails_however_many_there_are, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(names_of_files_that_are_not_utf8_are_escaped, open_all, close_all),
        cmocka_unit_test_setup_teardown(lists_and_datasets_are_bounded, open_all, close_all),
        cmocka_unit_test_setup_teardown(bad_names_and_paths_are_refused, open_all, close_all),
        cmocka_unit_test_setup_teardown(verify_is_an_order_beside_the_dataset, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

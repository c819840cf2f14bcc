/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block made while memory, threads and files fail: the same bytes, or a retryable error, never a bad sample; what was found of an
 * item is told.
 */
#include "tests/support/inject.h"
#include "worker/make.h"

#include "base/clock.h"
#include "base/log.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WAIT_MS = 20000 };

static const char *script;
static char dir[] = "/tmp/millrace-inject-make-XXXXXX", data[64], manifest_path[64];
static uint8_t version[BASE_SHA256_BYTES];
static uint8_t *expected;
static struct worker_staging staging;
static uint64_t expected_bytes, number;

static struct {
    int made, findings;
    enum base_code code;
    uint64_t used_bytes;
    char text[BASE_ERROR_TEXT_BYTES];
} seen;

static void on_made(void *context, uint64_t block, const struct worker_made *made)
{
    (void)context;
    assert_int_equal(block, 1);
    seen.made++;
    seen.code = made->code;
    seen.used_bytes = made->used_bytes;
    snprintf(seen.text, sizeof seen.text, "%s", made->text ? made->text : "");
}

static void on_bad_item(void *context, const struct worker_dataset *dataset, uint64_t item, const char *name,
                        const char *cause)
{
    (void)context, (void)dataset, (void)item;
    assert_true(name[0] && cause[0]);
    seen.findings++;
}

static const struct worker_make_events events = {on_made, on_bad_item};

/* What a run builds, in order. */
struct bench {
    struct source_roots *roots;
    struct manifest *manifest;
    struct worker_dataset *dataset;
    struct worker_kit *kit;
    struct base_mailbox *mailbox;
    struct worker_make *make;
};

static enum base_code make_kit(struct bench *bench, struct base_error *error)
{
    struct scheduler_pipeline pipeline;
    struct scheduler_stream stream = {.items = bench->dataset->items, .shuffle = true, .seed = 99};
    const char *option = "keep_encoded=100000";
    assert_int_equal(scheduler_pipeline_parse("imagenet_train", &option, 1, &pipeline, NULL), BASE_OK);
    assert_int_equal(
        scheduler_pipeline_print(&pipeline, "sample", stream.sample_text, sizeof stream.sample_text, NULL),
        BASE_OK);
    memcpy(stream.dataset_version, version, sizeof version);
    assert_int_equal(scheduler_stream_seal(&stream, NULL), BASE_OK);
    return worker_kit_create(&bench->kit, &stream, bench->dataset, error);
}

static enum base_code build(struct bench *bench, struct base_error *error)
{
    const char *const paths[] = {dir};
    struct worker_make_options options = {
        .prep_threads = 1, .io_threads = 2, .raw_bytes = 1, .staging = &staging, .events = &events};
    enum base_code code = source_roots_open(&bench->roots, paths, 1, NULL, 0, error);
    if (code == BASE_OK)
        code = manifest_open(&bench->manifest, manifest_path, version, error);
    if (code == BASE_OK)
        code = worker_dataset_create(&bench->dataset, bench->manifest, "pictures", data, bench->roots, error);
    if (code == BASE_OK)
        code = make_kit(bench, error);
    if (code == BASE_OK)
        code = base_mailbox_create(&bench->mailbox, error);
    options.mailbox = bench->mailbox;
    return code == BASE_OK ? worker_make_start(&bench->make, &options, error) : code;
}

static void take_down(struct bench *bench)
{
    if (bench->make)
        worker_make_stop(&bench->make);
    base_mailbox_destroy(bench->mailbox);
    worker_kit_destroy(bench->kit);
    if (bench->dataset)
        worker_dataset_release(bench->dataset);
    else if (bench->manifest)
        manifest_close(&bench->manifest);
    if (bench->roots)
        source_roots_close(&bench->roots);
}

static void make_block(struct bench *bench)
{
    struct worker_action action = {.kind = WORKER_MAKE,
                                   .stream = bench->kit,
                                   .block = 1,
                                   .number = number,
                                   .rows = scheduler_stream_block_rows(&bench->kit->stream, number)};
    int64_t deadline_ns = base_clock_deadline_ns(WAIT_MS);
    int before = seen.made;
    worker_make_begin(bench->make, &action);
    while (seen.made == before) {
        struct pollfd polled = {base_mailbox_fd(bench->mailbox), POLLIN, 0};
        poll(&polled, 1, 100);
        base_mailbox_drain(bench->mailbox);
        assert_true(base_clock_now_ns() < deadline_ns);
    }
}

static void assert_as_expected(void)
{
    assert_int_equal(seen.code, BASE_OK);
    assert_int_equal(seen.used_bytes, expected_bytes);
    assert_memory_equal(staging.memory, expected, expected_bytes);
}

static enum base_code make_one(void *context, struct base_error *error)
{
    (void)context;
    struct bench bench = {NULL, NULL, NULL, NULL, NULL, NULL};
    memset(&seen, 0, sizeof seen);
    enum base_code code = build(&bench, error);
    if (code == BASE_OK) {
        make_block(&bench);
        code = seen.code;
        base_error_set(error, code, "%s", seen.text);
    }
    inject_stop();
    if (code == BASE_OK && expected)
        assert_as_expected();
    else if (code == BASE_OK)
        expected_bytes = seen.used_bytes;
    if (code != BASE_OK && bench.make) { /* the block rests, and is made when it is asked for again */
        assert_int_equal(base_error_class(code), BASE_CLASS_RETRYABLE);
        make_block(&bench);
        assert_as_expected();
    }
    if (bench.make && expected)
        assert_int_equal(seen.findings, 1); /* once, whatever else went wrong */
    take_down(&bench);
    return code;
}

static void blocks(void **state)
{
    (void)state;
    struct base_error error;
    staging.memory = calloc(1, 8 << 20);
    for (number = 0;; number++) { /* the block that has the item that is no picture */
        if (make_one(NULL, &error) != BASE_OK)
            fail_msg("%s", error.text);
        if (seen.findings == 1)
            break;
    }
    expected = malloc(expected_bytes);
    memcpy(expected, staging.memory, expected_bytes);
    inject_each("worker: make", INJECT_ALL | INJECT_SPARSE, make_one, NULL);
    free(expected);
    free(staging.memory);
}

static int make_data(void **state)
{
    (void)state;
    char command[300];
    struct source_roots *roots = NULL;
    const char *const paths[] = {dir};
    if (!mkdtemp(dir))
        return -1;
    snprintf(data, sizeof data, "%s/data", dir);
    snprintf(manifest_path, sizeof manifest_path, "%s/manifest", dir);
    snprintf(command, sizeof command, "/usr/bin/python3 %s %s", script, data);
    if (system(command) != 0 || source_roots_open(&roots, paths, 1, NULL, 0, NULL) != BASE_OK)
        return -1;
    enum base_code code =
        source_folder_index(roots, &(struct source_place){.path = data}, manifest_path, NULL, version, NULL);
    source_roots_close(&roots);
    return code == BASE_OK ? 0 : -1;
}

static int remove_data(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    script = argv[1];
    base_log_start("test", -1, BASE_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks)};
    return cmocka_run_group_tests(tests, make_data, remove_data);
}

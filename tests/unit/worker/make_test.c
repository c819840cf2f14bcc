/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks made by the real pipeline from real files, against rows made one by one without any of the machinery. */
#include "worker/make.h"
#include "worker/rows.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/philox.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WAIT_MS = 20000, BLOCK_MAX_BYTES = 3 << 20, BLOCKS = 4, PLACES = 12 };

static const char *script;
static struct {
    char dir[64], data[80];
    struct source_roots *roots;
    struct base_mailbox *mailbox;
    struct worker_make *make;
    struct worker_staging staging;
    int made, findings;
    enum base_code codes[PLACES];
    uint64_t used[PLACES];
    char text[BASE_ERROR_TEXT_BYTES];
    char found[64];
} bed;

static void on_made(void *context, uint64_t block, const struct worker_made *made)
{
    (void)context;
    bed.made++;
    bed.codes[block] = made->code;
    bed.used[block] = made->used_bytes;
    snprintf(bed.text, sizeof bed.text, "%s", made->text ? made->text : "");
}

static void on_bad_item(void *context, const struct worker_dataset *dataset, uint64_t item, const char *name,
                        const char *cause)
{
    (void)context, (void)dataset, (void)item;
    assert_true(cause[0] != '\0');
    bed.findings++;
    snprintf(bed.found, sizeof bed.found, "%.60s", name);
}

static const struct worker_make_events events = {on_made, on_bad_item};

static void start(uint64_t raw_bytes)
{
    char command[300];
    snprintf(bed.dir, sizeof bed.dir, "/tmp/millrace-make-XXXXXX");
    assert_non_null(mkdtemp(bed.dir));
    snprintf(bed.data, sizeof bed.data, "%s/data", bed.dir);
    snprintf(command, sizeof command, "/usr/bin/python3 %s %s", script, bed.data);
    assert_int_equal(system(command), 0);
    const char *const roots[] = {bed.dir};
    assert_int_equal(source_roots_open(&bed.roots, roots, 1, NULL, 0, NULL), BASE_OK);
    assert_int_equal(base_mailbox_create(&bed.mailbox, NULL), BASE_OK);
    bed.staging.memory = malloc(PLACES * (size_t)BLOCK_MAX_BYTES);
    memset(bed.staging.memory, 0xee, PLACES * (size_t)BLOCK_MAX_BYTES); /* whatever lay there before */
    bed.made = bed.findings = 0;
    struct worker_make_options options = {.prep_threads = 2,
                                          .io_threads = 3,
                                          .idle = true,
                                          .raw_bytes = raw_bytes,
                                          .staging = &bed.staging,
                                          .mailbox = bed.mailbox,
                                          .events = &events};
    assert_int_equal(worker_make_start(&bed.make, &options, NULL), BASE_OK);
}

static void stop(void)
{
    char command[300];
    worker_make_stop(&bed.make);
    base_mailbox_destroy(bed.mailbox);
    source_roots_close(&bed.roots);
    free(bed.staging.memory);
    snprintf(command, sizeof command, "rm -rf %s", bed.dir);
    assert_int_equal(system(command), 0);
}

static struct worker_dataset *index_data(void)
{
    char path[100];
    struct manifest *manifest;
    struct worker_dataset *dataset;
    uint8_t version[32];
    static const _Atomic bool cancel = false;
    snprintf(path, sizeof path, "%s/manifest", bed.dir);
    assert_int_equal(source_folder_index(bed.roots, &(struct source_place){.path = bed.data}, path, &cancel,
                                         version, NULL),
                     BASE_OK);
    assert_int_equal(manifest_open(&manifest, path, version, NULL), BASE_OK);
    assert_int_equal(worker_dataset_create(&dataset, manifest, "pictures", bed.data, bed.roots, NULL),
                     BASE_OK);
    return dataset;
}

static struct worker_kit *kit_of(struct worker_dataset *dataset, const char *text, const char *option)
{
    struct scheduler_pipeline pipeline;
    struct scheduler_stream stream = {.items = dataset->items, .shuffle = true, .seed = 99};
    struct worker_kit *kit;
    assert_int_equal(scheduler_pipeline_parse(text, &option, option ? 1 : 0, &pipeline, NULL), BASE_OK);
    assert_int_equal(
        scheduler_pipeline_print(&pipeline, "sample", stream.sample_text, sizeof stream.sample_text, NULL),
        BASE_OK);
    memcpy(stream.dataset_version, manifest_version(dataset->manifest), 32);
    assert_int_equal(scheduler_stream_seal(&stream, NULL), BASE_OK);
    assert_int_equal(worker_kit_create(&kit, &stream, dataset, NULL), BASE_OK);
    assert_true(kit->layout.size <= BLOCK_MAX_BYTES);
    return kit;
}

static uint8_t *block_at(uint64_t block)
{
    return bed.staging.memory + block * BLOCK_MAX_BYTES;
}

static void begin(struct worker_kit *kit, uint64_t block, uint32_t epoch, uint64_t number)
{
    struct worker_action action = {.kind = WORKER_MAKE,
                                   .stream = kit,
                                   .block = block,
                                   .epoch = epoch,
                                   .number = number,
                                   .rows = scheduler_stream_block_rows(&kit->stream, number),
                                   .offset = block * BLOCK_MAX_BYTES};
    worker_make_begin(bed.make, &action);
}

/* Block i of `kits` is block `first` + i in staging. */
static void begin_together(struct worker_kit *const *kits, int count, uint64_t first, uint32_t epoch,
                           uint64_t number)
{
    struct worker_action action = {.kind = WORKER_MAKE,
                                   .stream = kits[0],
                                   .block = first,
                                   .epoch = epoch,
                                   .number = number,
                                   .rows = scheduler_stream_block_rows(&kits[0]->stream, number),
                                   .offset = first * BLOCK_MAX_BYTES,
                                   .sibling_count = count - 1};
    for (uint64_t i = 1; i < (uint64_t)count; i++)
        action.siblings[i - 1] = (struct worker_sibling){
            .stream = kits[i], .block = first + i, .offset = (first + i) * BLOCK_MAX_BYTES};
    worker_make_begin(bed.make, &action);
}

static void wait_made(int count)
{
    int64_t deadline_ns = base_clock_deadline_ns(WAIT_MS);
    while (bed.made < count) {
        struct pollfd polled = {base_mailbox_fd(bed.mailbox), POLLIN, 0};
        poll(&polled, 1, 100);
        base_mailbox_drain(bed.mailbox);
        assert_true(base_clock_now_ns() < deadline_ns);
    }
}

/* ---- the oracle: a row made alone ---- */

struct lone_row {
    uint8_t *field[SCHEDULER_PIPELINE_FIELDS];
    uint32_t ragged_length[SCHEDULER_PIPELINE_FIELDS];
    enum base_code code;
};

static struct lone_row make_alone(const struct worker_kit *kit, uint64_t item, uint32_t epoch,
                                  uint64_t occurrence)
{
    struct lone_row row = {.code = BASE_OK};
    struct pipeline_row out = {.field = {NULL}};
    struct pipeline_scratch *scratch;
    struct manifest_entry entry;
    enum pipeline_verdict verdict;
    const struct worker_dataset *dataset = kit->dataset;
    assert_int_equal(pipeline_scratch_create(&scratch, NULL), BASE_OK);
    assert_int_equal(manifest_entry(dataset->manifest, item, &entry, NULL), BASE_OK);
    uint8_t *bytes = malloc(entry.size_bytes + 1);
    uint64_t size = 0;
    assert_int_equal(source_folder_read(&dataset->folder, item, bytes, &size, NULL), BASE_OK);
    for (int f = 0; f < kit->layout.field_count; f++)
        out.field[f] = row.field[f] = malloc(kit->layout.fields[f].max_bytes);
    struct pipeline_input input = {bytes,
                                   size,
                                   NULL,
                                   0,
                                   entry.label,
                                   base_philox_sample_key(kit->stream.seed, item, epoch, occurrence),
                                   PIPELINE_UNKNOWN};
    row.code = pipeline_run(kit->pipeline, scratch, &input, &out, &verdict, NULL);
    memcpy(row.ragged_length, out.ragged_length, sizeof row.ragged_length);
    free(bytes);
    pipeline_scratch_destroy(scratch);
    return row;
}

static void free_alone(struct lone_row *row)
{
    for (int f = 0; f < SCHEDULER_PIPELINE_FIELDS; f++)
        free(row->field[f]);
}

/* Row `index` of a block equals the one made alone, as a receiver reads it. */
static void check_row(const struct worker_kit *kit, uint8_t *block, uint32_t index, uint32_t epoch,
                      struct wire_row *row)
{
    const struct wire_layout *layout = &kit->layout;
    struct iovec iov[WIRE_PART_IOVECS];
    uint64_t length, at = 0;
    uint8_t all = (uint8_t)((1 << layout->field_count) - 1);
    uint8_t *scratch = malloc(wire_part_scratch_bytes(layout, all, 1));
    int count =
        wire_part_gather(layout, block, &(struct wire_cut){all, index, index + 1}, scratch, iov, &length);
    uint8_t *payload = malloc(length);
    for (int i = 0; i < count; at += iov[i++].iov_len)
        memcpy(payload + at, iov[i].iov_base, iov[i].iov_len);
    struct wire_part_head head = wire_part_head_view(payload, layout->field_count, 1);
    assert_int_equal(wire_part_check(&head, layout->fields, length, NULL), BASE_OK);
    assert_true(wire_part_verify_row(&head, 0));
    assert_int_equal(wire_row_read(head.row_table, row, NULL), BASE_OK);
    struct wire_part_run runs[WIRE_PART_RUNS];
    int run_count = wire_part_runs(&head, layout->fields, runs);
    struct lone_row alone = make_alone(kit, row->used_item, epoch, row->occurrence);
    for (int r = 0; r < run_count && row->status != WIRE_ROW_BAD; r++) {
        int f = runs[r].sent_index;
        if (runs[r].is_lengths) {
            assert_int_equal(base_get_u32(payload + runs[r].offset), alone.ragged_length[f]);
            continue;
        }
        assert_true(wire_part_verify_field(&head, 0, f, payload + runs[r].offset, runs[r].size));
        if (layout->fields[f].ragged)
            assert_int_equal(runs[r].size,
                             alone.ragged_length[f] * scheduler_dtype_bytes(layout->fields[f].dtype));
        assert_memory_equal(payload + runs[r].offset, alone.field[f], runs[r].size);
    }
    assert_int_equal(alone.code, row->status == WIRE_ROW_BAD ? BASE_BAD_SAMPLE : BASE_OK);
    free_alone(&alone);
    free(payload);
    free(scratch);
}

/* ---- tests ---- */

static void check_block(const struct worker_kit *kit, uint64_t block, uint32_t epoch, uint64_t number,
                        int *substituted)
{
    struct scheduler_order *order;
    const struct scheduler_stream *stream = &kit->stream;
    assert_int_equal(bed.codes[block], BASE_OK);
    assert_int_equal(scheduler_order_create(&order, true, stream->seed, epoch, stream->items, NULL), BASE_OK);
    for (uint32_t i = 0; i < scheduler_stream_block_rows(stream, number); i++) {
        struct wire_row row;
        uint64_t position = number * stream->pipeline.block_rows + i;
        check_row(kit, block_at(block), i, epoch, &row);
        assert_int_equal(row.item, scheduler_order_item(order, position));
        if (row.status == WIRE_ROW_OK) {
            assert_int_equal(row.used_item, row.item);
            assert_int_equal(row.cause, 0);
            continue;
        }
        assert_int_equal(row.status, WIRE_ROW_SUBSTITUTED);
        assert_int_equal(row.occurrence, position + 1);
        assert_true(pipeline_verdict_is_bad((enum pipeline_verdict)row.cause));
        ++*substituted;
    }
    scheduler_order_destroy(order);
}

/* All blocks of an epoch, with a ragged field, with raw memory for one block at a time; then again, with the verdicts known. */
static void test_rows_are_those_made_alone(void **state)
{
    (void)state;
    start(1);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *kit = kit_of(dataset, "imagenet_train", "keep_encoded=100000");
    int substituted = 0;
    uint64_t blocks = scheduler_stream_blocks(&kit->stream);
    for (int again = 0; again < 2; again++)
        for (uint64_t number = 0; number < blocks; number += BLOCKS) {
            int before = bed.made, begun = 0;
            for (; begun < BLOCKS && number + (uint64_t)begun < blocks; begun++)
                begin(kit, (uint64_t)begun, 3, number + (uint64_t)begun);
            wait_made(before + begun);
            for (int i = 0; i < begun; i++) {
                check_block(kit, (uint64_t)i, 3, number + (uint64_t)i, &substituted);
                assert_true(bed.used[i] <
                            kit->layout.size); /* ragged values are packed, the rest is given back */
            }
        }
    assert_int_equal(substituted, 2);
    assert_int_equal(bed.findings, 1);
    assert_string_equal(bed.found, "cats/13.jpg");
    assert_int_equal(base_metric_get(&worker_make_metrics(bed.make)[WORKER_METRIC_RAW_BYTES]), 0);
    worker_kit_destroy(kit);
    worker_dataset_release(dataset);
    stop();
}

/* Nothing in the dataset is a picture: after 16 substitutes a row is bad, zeros and label -100. */
static void test_rows_without_a_substitute_are_bad(void **state)
{
    (void)state;
    char command[300];
    start(1 << 20);
    snprintf(command, sizeof command, "for f in %s/*/*; do echo no picture > $f; done", bed.data);
    assert_int_equal(system(command), 0);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *kit = kit_of(dataset, "imagenet_train", "keep_encoded=1000");
    for (int again = 0; again < 2; again++) {
        begin(kit, 0, 0, 1);
        wait_made(again + 1);
        assert_int_equal(bed.codes[0], BASE_OK);
        for (uint32_t i = 0; i < kit->layout.rows; i++) {
            struct wire_row row;
            check_row(kit, block_at(0), i, 0, &row);
            assert_int_equal(row.status, WIRE_ROW_BAD);
            assert_int_equal(row.used_item, row.item);
            const uint8_t *image = block_at(0) + kit->layout.values[0] + i * kit->layout.fields[0].max_bytes;
            assert_true(image[0] == 0 && memcmp(image, image + 1, kit->layout.fields[0].max_bytes - 1) == 0);
            const uint8_t *label = block_at(0) + kit->layout.values[kit->label_field] + i * 8;
            assert_int_equal((int64_t)base_get_u64(label), WIRE_LABEL_BAD);
        }
    }
    worker_kit_destroy(kit);
    worker_dataset_release(dataset);
    stop();
}

/* Refused by every cap of one pipeline, the items of another are what they would be on a worker that never saw the first; and what
 * another found does not change a cause. */
static void test_a_pipelines_caps_are_its_own(void **state)
{
    (void)state;
    start(1 << 20);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *capped = kit_of(dataset, "imagenet_train", "keep_encoded=10");
    struct worker_kit *kit = kit_of(dataset, "imagenet_train", NULL);
    struct wire_row row;
    int substituted = 0;
    uint64_t blocks = scheduler_stream_blocks(&kit->stream);
    begin(capped, 0, 0, 0);
    wait_made(1);
    for (uint64_t number = 0; number < blocks; number++) {
        begin(kit, number % 4, 0, number);
        wait_made(2 + (int)number);
        check_block(kit, number % 4, 0, number, &substituted);
    }
    assert_int_equal(substituted, 1); /* the one that is no picture */
    for (int again = 0; again < 2; again++) {
        int before = bed.made;
        for (uint64_t number = 0; number < blocks; number++) {
            begin(capped, number % 4, 0, number);
            wait_made(before + 1 + (int)number);
            for (uint32_t i = 0; i < scheduler_stream_block_rows(&capped->stream, number); i++) {
                check_row(capped, block_at(number % 4), i, 0, &row);
                assert_int_equal(row.cause, PIPELINE_BAD_ROW_BYTES);
            }
        }
    }
    worker_kit_destroy(kit);
    worker_kit_destroy(capped);
    worker_dataset_release(dataset);
    stop();
}

static int64_t metric(int row)
{
    return base_metric_get(&worker_make_metrics(bed.make)[row]);
}

/* Four streams of one family: the bad item and its substitute, and the one whose cap refuses every item, change nothing for the
 * others; an item that they have in common is read and decoded once. Again, with the verdicts known. */
static void test_siblings_rows_are_those_made_alone(void **state)
{
    (void)state;
    start(1);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *kits[] = {
        kit_of(dataset, "imagenet_train", "keep_encoded=100000"),
        kit_of(dataset, "sample: Decode RandomResizedCrop(size=224)", NULL),
        kit_of(dataset, "sample: Decode Resize(size=256) CenterCrop(size=224)", NULL),
        kit_of(dataset, "imagenet_train", "keep_encoded=10"),
    };
    uint64_t blocks = scheduler_stream_blocks(&kits[0]->stream);
    int substituted[3] = {0}, begun = 0;
    struct wire_row row;
    for (int again = 0; again < 2; again++)
        for (uint64_t number = 0; number < blocks; number++) {
            for (int i = 1; i < 4; i++)
                assert_int_equal(kits[i]->stream.pipeline.block_rows, kits[0]->stream.pipeline.block_rows);
            begin_together(kits, number % 2 ? 3 : 4, 0, 3, number);
            wait_made(begun += number % 2 ? 3 : 4);
            for (uint64_t i = 0; i < 3; i++)
                check_block(kits[i], i, 3, number, &substituted[i]);
            for (uint32_t i = 0; number % 2 == 0 && i < scheduler_stream_block_rows(&kits[3]->stream, number);
                 i++) {
                check_row(kits[3], block_at(3), i, 3, &row);
                assert_int_equal(row.cause, PIPELINE_BAD_ROW_BYTES);
            }
        }
    for (int i = 0; i < 3; i++)
        assert_int_equal(substituted[i], 2);
    int64_t items = 2 * (int64_t)dataset->items;
    print_message("%lld rows, %lld read, %lld decoded\n", (long long)metric(WORKER_METRIC_ROWS_OK),
                  (long long)metric(WORKER_METRIC_READ_ITEMS),
                  (long long)metric(WORKER_METRIC_DECODED_ITEMS));
    assert_true(metric(WORKER_METRIC_DECODED_ITEMS) >= items &&
                metric(WORKER_METRIC_DECODED_ITEMS) <= items + 2);
    assert_true(metric(WORKER_METRIC_SHARED_ROWS) >= 2 * items);
    assert_int_equal(metric(WORKER_METRIC_TOGETHER_BLOCKS), begun);
    assert_int_equal(metric(WORKER_METRIC_RAW_BYTES), 0);
    for (int i = 0; i < 4; i++)
        worker_kit_destroy(kits[i]);
    worker_dataset_release(dataset);
    stop();
}

static void test_what_is_not_there_is_unavailable(void **state)
{
    (void)state;
    char path[200];
    start(1 << 20);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *kit = kit_of(dataset, "imagenet_train", NULL);
    struct scheduler_order *order;
    assert_int_equal(scheduler_order_create(&order, true, 99, 0, dataset->items, NULL), BASE_OK);
    struct manifest_entry entry;
    assert_int_equal(manifest_entry(dataset->manifest, scheduler_order_item(order, 11), &entry, NULL),
                     BASE_OK);
    snprintf(path, sizeof path, "%s/%.100s", bed.data, entry.name);
    assert_int_equal(unlink(path), 0);
    begin(kit, 0, 0, 0);
    begin(kit, 1, 0, 1);
    begin(kit, 2, 0, 2);
    wait_made(3);
    assert_int_equal(bed.codes[0], BASE_OK);
    assert_int_equal(bed.codes[1], BASE_UNAVAILABLE);
    assert_int_equal(bed.codes[2], BASE_OK);
    struct worker_kit *sibling = kit_of(dataset, "sample: Decode RandomResizedCrop(size=224)", NULL);
    bed.codes[1] = bed.codes[2] = BASE_OK;
    begin_together((struct worker_kit *[]){kit, sibling}, 2, 1, 0, 1); /* each is told */
    wait_made(5);
    assert_int_equal(bed.codes[1], BASE_UNAVAILABLE);
    assert_int_equal(bed.codes[2], BASE_UNAVAILABLE);
    worker_kit_destroy(sibling);
    assert_int_equal(worker_dataset_verdict(dataset, scheduler_order_item(order, 11)), PIPELINE_UNKNOWN);
    scheduler_order_destroy(order);
    worker_kit_destroy(kit);
    worker_dataset_release(dataset);
    stop();
}

/* One file can be larger than the machine: nobody tries to read it, and it is named. */
static void test_what_is_too_large_is_unavailable(void **state)
{
    (void)state;
    char path[200];
    start(1 << 20);
    snprintf(path, sizeof path, "%s/cats/13.jpg", bed.data);
    assert_int_equal(truncate(path, (off_t)WORKER_RAW_ITEM_BYTES + 1), 0);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *kit = kit_of(dataset, "imagenet_eval", NULL);
    begin(kit, 0, 0, 0);
    wait_made(1);
    for (uint64_t number = 1; bed.codes[0] == BASE_OK && number < scheduler_stream_blocks(&kit->stream);
         number++) {
        begin(kit, 0, 0, number);
        wait_made(1 + (int)number);
    }
    assert_int_equal(bed.codes[0], BASE_UNAVAILABLE);
    assert_non_null(strstr(bed.text, "cats/13.jpg"));
    assert_non_null(strstr(bed.text, "--raw"));
    worker_kit_destroy(kit);
    worker_dataset_release(dataset);
    stop();
}

/* More epochs at once than orders are kept, and an end in the middle of it all. */
static void test_many_epochs_and_an_early_end(void **state)
{
    (void)state;
    start(1 << 20);
    struct worker_dataset *dataset = index_data();
    struct worker_kit *kit = kit_of(dataset, "imagenet_train", NULL);
    for (uint32_t epoch = 0; epoch < PLACES; epoch++)
        begin(kit, epoch, epoch, epoch % 5);
    worker_make_hasten(bed.make, 2, -5);
    wait_made(2);
    stop();
    worker_kit_destroy(kit);
    worker_dataset_release(dataset);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    script = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_those_made_alone),
        cmocka_unit_test(test_rows_without_a_substitute_are_bad),
        cmocka_unit_test(test_a_pipelines_caps_are_its_own),
        cmocka_unit_test(test_siblings_rows_are_those_made_alone),
        cmocka_unit_test(test_what_is_not_there_is_unavailable),
        cmocka_unit_test(test_what_is_too_large_is_unavailable),
        cmocka_unit_test(test_many_epochs_and_an_early_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

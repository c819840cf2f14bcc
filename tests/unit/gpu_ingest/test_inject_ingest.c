/* SPDX-License-Identifier: Apache-2.0 */
/* Device, slot and ingest while memory runs out: refused with a text, nothing left. On the host, and under the fake CUDA where
 * it is built. Once made, they take no memory: no step can fail. */
#include "gpu_ingest/include/millrace/ingest.h"

#include "tests/support/inject.h"
#include "tests/unit/gpu_ingest/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

enum { ROWS = 2, SIDE = 4, CLASSES = 3 };

static const struct mr_finish finish = {
    .size = sizeof finish, .dtype = MR_F32, .mixup_p = 1, .classes = CLASSES};

static void step(struct mr_ingest *ingest, void *slot, uint64_t number)
{
    int64_t labels[ROWS] = {0, 2};
    struct mr_field fields[] = {
        {.name = "image",
         .dtype = MR_U8,
         .rank = 4,
         .dims = {ROWS, SIDE, SIDE, 3},
         .data = slot,
         .bytes = ROWS * SIDE * SIDE * 3},
        {.name = "label", .dtype = MR_I64, .rank = 1, .dims = {ROWS}, .data = labels, .bytes = sizeof labels},
    };
    struct mr_row row[ROWS] = {{.position = number * ROWS}, {.position = number * ROWS + 1}};
    struct mr_batch batch = {.rows = ROWS,
                             .valid_rows = ROWS,
                             .valid = (const uint8_t[]){1, 1},
                             .row = row,
                             .field_count = 2,
                             .fields = fields};
    struct mr_device_batch *ready;
    assert_int_equal(mr_ingest_submit(ingest, &batch, &ready, NULL), MR_OK);
    assert_int_equal(mr_ingest_wait(ready, NULL), MR_OK);
    assert_int_equal(mr_ingest_copied(ready, 1, NULL), MR_OK);
    assert_int_equal(mr_ingest_release(ready, NULL, NULL), MR_OK);
}

static enum base_code live(void *context, struct base_error *error)
{
    const enum mr_backend *backend = context;
    struct mr_device_options where = {.size = sizeof where, .backend = *backend};
    struct mr_ingest_options options = {
        .size = sizeof options, .finish = &finish, .batch = ROWS, .height = SIDE, .width = SIDE};
    struct mr_error said = {.code = MR_OK};
    struct mr_device *device = NULL;
    struct mr_ingest *ingest = NULL;
    void *slot = NULL;
    enum mr_code code = mr_device_open(&device, &where, &said);
    if (code == MR_OK && !(slot = mr_device_slot_allocate(device, ROWS * SIDE * SIDE * 3)))
        code = ((said = (struct mr_error){MR_NO_MEMORY, "a slot: no memory"}), MR_NO_MEMORY);
    if (code == MR_OK)
        code = mr_ingest_create(&ingest, device, &options, &said);
    for (uint64_t i = 0; i < 12 && code == MR_OK; i++)
        step(ingest, slot, i);
    inject_stop();
    mr_ingest_destroy(ingest);
    if (slot)
        mr_device_slot_free(device, slot, 0);
    assert_int_equal(mr_device_close(&device), MR_OK);
    error->code = (enum base_code)said.code;
    snprintf(error->text, sizeof error->text, "%s", said.text);
    return (enum base_code)code;
}

static void test_no_memory(void **state)
{
    enum mr_backend backends[] = {MR_BACKEND_HOST, MR_BACKEND_CUDA};
    (void)state;
    inject_each("ingest on the host", INJECT_MEMORY, live, &backends[0]);
    if (!memory_no_cuda())
        inject_each("ingest under CUDA", INJECT_MEMORY, live, &backends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

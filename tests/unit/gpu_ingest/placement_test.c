/* SPDX-License-Identifier: Apache-2.0 */
/* Where finish runs, from times that are made up. */
#include "gpu_ingest/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define US INT64_C(1000)
#define BATCHES 8 /* until AUTO has decided */

static struct mr_placement describe(const struct ingest_placement *placement)
{
    struct mr_placement out = {.size = sizeof out};
    ingest_placement_describe(placement, &out);
    return out;
}

/* The batches that AUTO does both ways, at the same costs each time but for the first, which is dear. */
static void measure(struct ingest_placement *placement, const struct ingest_sample *client,
                    const struct ingest_sample *gpu)
{
    const struct ingest_sample cold = {.cpu_ns = 1000000 * US};
    for (int i = 0; i < BATCHES; i++) {
        enum mr_finish_where where = ingest_placement_where(placement);
        const struct ingest_sample *sample = where == MR_FINISH_GPU ? gpu : client;
        assert_int_equal(where, i % 2 == 0 ? MR_FINISH_GPU : MR_FINISH_CLIENT);
        assert_false(ingest_placement_decided(placement));
        assert_true(ingest_placement_wants(placement, where));
        ingest_placement_add(placement, where, i < 2 ? &cold : sample);
    }
}

static const struct {
    struct ingest_sample client, gpu;
    enum mr_finish_where where;
    const char *reason;
} rows[] = {
    {{3000 * US, 900 * US, 0, 400},
     {10 * US, 150 * US, 50 * US, 100},
     MR_FINISH_GPU,
     "gpu: 0.21 ms a batch there, 3.90 ms on the trainer's CPU"},
    /* a small batch: launching costs more than finishing */
    {{5 * US, 5 * US, 0, 40},
     {40 * US, 10 * US, 30 * US, 10},
     MR_FINISH_CLIENT,
     "client: 0.01 ms a batch on the trainer's CPU, 0.08 ms on the GPU"},
    /* a GPU that is busy: kernels count */
    {{3000 * US, 900 * US, 0, 400},
     {10 * US, 150 * US, 9000 * US, 100},
     MR_FINISH_CLIENT,
     "client: 3.90 ms a batch on the trainer's CPU, 9.16 ms on the GPU"},
    /* a narrow bus: copies count */
    {{1000 * US, 8000 * US, 0, 400}, {10 * US, 2000 * US, 50 * US, 100}, MR_FINISH_GPU, "gpu: 2.06 ms"},
    /* within a tenth: the GPU's */
    {{900 * US, 0, 0, 0}, {0, 0, 1000 * US, 0}, MR_FINISH_GPU, "gpu: 1.00 ms a batch there, 0.90 ms"},
    {{899 * US, 0, 0, 0}, {0, 0, 1000 * US, 0}, MR_FINISH_CLIENT, "client: 0.90 ms"},
    {{0, 0, 0, 0}, {0, 0, 0, 0}, MR_FINISH_GPU, "gpu: 0.00 ms"},
};

static void test_cheaper_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ingest_placement placement;
        ingest_placement_init(&placement, MR_FINISH_AUTO, true);
        measure(&placement, &rows[i].client, &rows[i].gpu);
        struct mr_placement out = describe(&placement);
        assert_true(out.decided);
        assert_int_equal(out.where, rows[i].where);
        if (strncmp(out.reason, rows[i].reason, strlen(rows[i].reason)) != 0)
            fail_msg("row %zu: \"%s\"", i, out.reason);
        assert_int_equal(out.client.batches, 3);
        assert_int_equal(out.client.cpu_ns, rows[i].client.cpu_ns);
        assert_int_equal(out.client.copied_bytes, rows[i].client.copied_bytes);
        assert_int_equal(out.gpu.copy_ns, rows[i].gpu.copy_ns);
        assert_int_equal(out.gpu.kernel_ns, rows[i].gpu.kernel_ns);
    }
}

/* One batch that took long, of whatever cause, decides nothing; what comes late changes nothing. */
static void test_median(void **state)
{
    const struct ingest_sample slow = {.cpu_ns = 500 * US}, quick = {.cpu_ns = 10 * US},
                               usual = {.cpu_ns = 20 * US};
    const struct ingest_sample *samples[] = {&usual, &slow, &quick, &usual, &slow, &slow};
    struct ingest_placement placement;
    (void)state;
    ingest_placement_init(&placement, MR_FINISH_AUTO, true);
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
        ingest_placement_add(&placement, MR_FINISH_GPU, samples[i]);
    assert_false(ingest_placement_wants(&placement, MR_FINISH_GPU));
    assert_int_equal(ingest_placement_where(&placement), MR_FINISH_CLIENT);
    struct mr_placement out = describe(&placement);
    assert_int_equal(out.gpu.batches, 3);
    assert_int_equal(out.gpu.cpu_ns, 20 * US);
    assert_int_equal(out.client.batches + out.client.cpu_ns, 0);
    assert_false(out.decided);
    assert_string_equal(out.reason, "client: being measured, 4 of 8 batches");
}

static void test_asked_for(void **state)
{
    static const struct {
        enum mr_finish_where asked;
        bool gpu;
        enum mr_finish_where where;
        const char *reason;
    } asked[] = {
        {MR_FINISH_CLIENT, true, MR_FINISH_CLIENT, "client: asked for"},
        {MR_FINISH_GPU, true, MR_FINISH_GPU, "gpu: asked for"},
        {MR_FINISH_AUTO, false, MR_FINISH_CLIENT, "client: there is no GPU"},
        {MR_FINISH_CLIENT, false, MR_FINISH_CLIENT, "client: there is no GPU"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        const struct ingest_sample dear = {.cpu_ns = 1000 * US};
        struct ingest_placement placement;
        ingest_placement_init(&placement, asked[i].asked, asked[i].gpu);
        for (int n = 0; n < BATCHES; n++)
            ingest_placement_add(&placement, asked[i].where, &dear);
        struct mr_placement out = describe(&placement);
        assert_true(out.decided);
        assert_int_equal(out.where, asked[i].where);
        assert_string_equal(out.reason, asked[i].reason);
        assert_int_equal(out.where == MR_FINISH_GPU ? out.gpu.cpu_ns : out.client.cpu_ns, 1000 * US);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cheaper_place),
        cmocka_unit_test(test_median),
        cmocka_unit_test(test_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker says of streams that it is asked about and cannot read. */
#include "worker/streams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void count(void *context)
{
    ++*(int *)context;
}

/* An op of a later version: silence would have the server wait for this worker's fingerprint, and tell nobody why. */
static void a_text_that_it_cannot_read_is_told(void **state)
{
    (void)state;
    int changes = 0;
    struct worker_streams_options options = {.changed = count, .context = &changes};
    struct worker_streams *streams;
    uint8_t version[BASE_SHA256_BYTES] = {1}, hash[BASE_SHA256_BYTES] = {2};
    char text[] = "sample: Decode@1(exif=ignore,max_pixels=1000) OpOfTomorrow@1(size=9)";
    Millrace__V1__Stream stream = MILLRACE__V1__STREAM__INIT, *list[] = {&stream};
    Millrace__V1__WorkerOrders orders = MILLRACE__V1__WORKER_ORDERS__INIT;
    Millrace__V1__StreamProbe said;
    stream.dataset_version = (ProtobufCBinaryData){sizeof version, version};
    stream.hash = (ProtobufCBinaryData){sizeof hash, hash};
    stream.sample_text = text;
    stream.items = 5;
    orders.probe = list;
    orders.n_probe = 1;
    assert_int_equal(worker_streams_create(&streams, &options, NULL), BASE_OK);
    for (int i = 0; i < 2; i++) {
        worker_streams_order(streams, 0, &orders);
        assert_int_equal(worker_streams_probes(streams), 1);
        assert_int_equal(changes, 1);
    }
    assert_true(worker_streams_report(streams, 0, &said));
    assert_memory_equal(said.key.data, hash, sizeof hash);
    assert_int_equal(said.fingerprint.len, 0);
    assert_non_null(strstr(said.error, "no op is named 'OpOfTomorrow'"));
    stream.hash.len = 0; /* whom would it be told of? */
    worker_streams_order(streams, 0, &orders);
    assert_int_equal(worker_streams_probes(streams), 1);
    worker_streams_destroy(streams);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_text_that_it_cannot_read_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Orders that tell only what has changed, put together again. */
#include "worker/orders.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 80 };

/* A reply in the making: streams are bytes, their hashes that byte 32 times. */
static struct {
    Millrace__V1__WorkerOrders is;
    Millrace__V1__StreamOrder orders[MOST], *list[MOST];
    Millrace__V1__Stream streams[MOST];
    Millrace__V1__Plan plans[MOST];
    ProtobufCBinaryData kept[MOST];
    uint8_t hashes[MOST][32];
} reply;

static struct worker_orders orders;

static int teardown(void **state)
{
    (void)state;
    worker_orders_fini(&orders);
    return 0;
}

static void begin(uint64_t revision, uint64_t told)
{
    millrace__v1__worker_orders__init(&reply.is);
    reply.is.revision = revision;
    reply.is.told = told;
    reply.is.streams = reply.list;
    reply.is.kept = reply.kept;
    for (int i = 0; i < MOST; i++)
        memset(reply.hashes[i], i, sizeof reply.hashes[i]);
}

/* version 0: no plan yet. */
static void tell(uint8_t stream, uint32_t version, bool with_plan)
{
    size_t at = reply.is.n_streams++;
    millrace__v1__stream__init(&reply.streams[at]);
    millrace__v1__stream_order__init(&reply.orders[at]);
    millrace__v1__plan__init(&reply.plans[at]);
    reply.streams[at].hash = (ProtobufCBinaryData){32, reply.hashes[stream]};
    reply.plans[at].version = version;
    reply.orders[at].stream = &reply.streams[at];
    reply.orders[at].plan_version = version;
    reply.orders[at].plan = with_plan ? &reply.plans[at] : NULL;
    reply.list[at] = &reply.orders[at];
}

static void keep(uint8_t stream)
{
    reply.kept[reply.is.n_kept++] = (ProtobufCBinaryData){32, reply.hashes[stream]};
}

static void take(enum worker_orders_taken expected)
{
    assert_int_equal(worker_orders_take(&orders, &reply.is), expected);
}

/* "stream:version of its plan" in the order of streams, 0: none; and what is wanted. */
static void expect(const char *streams, const char *wanted)
{
    char text[512] = "", want[512] = "";
    for (unsigned s = 0; s < MOST; s++)
        for (size_t i = 0; i < orders.whole->n_streams; i++) {
            const Millrace__V1__StreamOrder *order = orders.whole->streams[i];
            if (order->stream->hash.data[0] == s)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%u:%u ", s,
                         order->plan ? order->plan->version : 0);
        }
    for (size_t i = 0; i < orders.wanted_count; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%u ", orders.wanted[i].data[0]);
    assert_string_equal(text, streams);
    assert_string_equal(want, wanted);
}

static void what_is_named_only_is_kept(void **state)
{
    (void)state;
    begin(1, 10);
    tell(1, 5, true), tell(2, 6, true), tell(3, 0, false);
    take(WORKER_ORDERS_TAKEN);
    expect("1:5 2:6 3:0 ", "");
    begin(2, 20); /* 1 is gone, 2 has another plan, 3 has not changed */
    keep(3), tell(2, 7, true);
    take(WORKER_ORDERS_TAKEN);
    expect("2:7 3:0 ", "");
    begin(3, 30); /* another job reads 2, by the same plan */
    tell(2, 7, false), keep(3);
    take(WORKER_ORDERS_TAKEN);
    expect("2:7 3:0 ", "");
    begin(3, 30);
    reply.is.streams_kept = true;
    take(WORKER_ORDERS_TAKEN);
    expect("2:7 3:0 ", "");
    begin(4, 40); /* none is named: none is live */
    take(WORKER_ORDERS_TAKEN);
    expect("", "");
}

static void what_it_lacks_is_wanted(void **state)
{
    (void)state;
    begin(1, 10);
    tell(1, 5, true), keep(2), tell(3, 4, false);
    take(WORKER_ORDERS_TAKEN);
    expect("1:5 3:0 ", "3 2 ");
    begin(1, 10);
    tell(2, 6, true), tell(3, 4, true), keep(1);
    take(WORKER_ORDERS_TAKEN);
    expect("1:5 2:6 3:4 ", "");
    begin(2, 20); /* a plan between was lost */
    tell(2, 8, false), keep(1), keep(3);
    take(WORKER_ORDERS_TAKEN);
    expect("1:5 2:0 3:4 ", "2 ");
    begin(3, 20); /* a name of another length is none */
    keep(1), keep(3);
    reply.kept[1].len = 31;
    take(WORKER_ORDERS_TAKEN);
    expect("1:5 ", "");
}

static void old_orders_change_nothing(void **state)
{
    (void)state;
    begin(2, 20);
    tell(1, 5, true);
    take(WORKER_ORDERS_TAKEN);
    begin(1, 20);
    take(WORKER_ORDERS_OLD);
    begin(3, 19); /* told to somebody who knew less */
    tell(1, 4, true), keep(2);
    take(WORKER_ORDERS_OLD);
    expect("1:5 ", "");
    begin(2, 20);
    tell(1, 6, true);
    take(WORKER_ORDERS_TAKEN);
    expect("1:6 ", "");
}

static void wants_are_bounded(void **state)
{
    (void)state;
    begin(1, 10);
    for (uint8_t s = 0; s < MOST; s++)
        keep(s);
    take(WORKER_ORDERS_TAKEN);
    assert_int_equal(orders.wanted_count, WORKER_ORDERS_WANTED);
    assert_int_equal(orders.whole->n_streams, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_named_only_is_kept, teardown),
        cmocka_unit_test_teardown(what_it_lacks_is_wanted, teardown),
        cmocka_unit_test_teardown(old_orders_change_nothing, teardown),
        cmocka_unit_test_teardown(wants_are_bounded, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Who is woken, when, and once; the calls are played here. */
#include "server/park.h"

#include "base/clock.h"
#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS BASE_NS_PER_MS

enum { CALLS = 300, KEYS = 40, EVENTS = 4000 };

struct rpc_call {
    bool cancelled;
    int answers, failures, looks; /* looks: how often it was asked whether it is ready */
    enum base_code code;
};

/* A request names its call and the change that it waits for. */
struct request {
    ProtobufCMessage base;
    struct rpc_call *call;
    uint64_t key, seen;
};

static struct server_park *park;
static uint64_t changes[KEYS + 1]; /* of each key */

void rpc_fail(struct rpc_call *call, enum base_code code, const char *format, ...)
{
    (void)format;
    call->failures++;
    call->code = code;
}

bool rpc_call_cancelled(const struct rpc_call *call)
{
    return call->cancelled;
}

static bool is_ready(void *context, const ProtobufCMessage *message)
{
    const struct request *request = (const struct request *)(const void *)message;
    assert_ptr_equal(context, changes);
    request->call->looks++;
    return changes[request->key] != request->seen;
}

static void answer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    assert_ptr_equal(context, changes);
    assert_ptr_equal(((const struct request *)(const void *)message)->call, call);
    call->answers++;
}

static const struct server_park_kind poll_kind = {is_ready, answer}, once_kind = {NULL, answer};

static int setup(void **state)
{
    (void)state;
    memset(changes, 0, sizeof changes);
    return server_park_create(&park, changes, NULL) != BASE_OK;
}

static int teardown(void **state)
{
    (void)state;
    server_park_destroy(park);
    park = NULL;
    return 0;
}

static void add(struct rpc_call *call, struct request *request, uint64_t key, int64_t now_ns,
                uint32_t wait_ms)
{
    *call = (struct rpc_call){.cancelled = false};
    *request = (struct request){.call = call, .key = key, .seen = changes[key]};
    server_park_add(park, now_ns, wait_ms, &(struct server_park_call){&poll_kind, key, call, &request->base});
}

static void a_call_is_answered_when_its_key_has_changed(void **state)
{
    (void)state;
    struct rpc_call calls[3];
    struct request requests[3];
    for (int i = 0; i < 3; i++)
        add(&calls[i], &requests[i], (uint64_t)i / 2 + 1, 0, 1000); /* two on one key */
    assert_int_equal(server_park_poll(park, 0), 1000 * MS);
    changes[1]++, changes[2]++;
    server_park_poll(park, 1);
    assert_int_equal(calls[0].looks, 1); /* not woken: when it came only */
    server_park_wake(park, 1);
    server_park_wake(park, 1);
    server_park_poll(park, 2);
    assert_int_equal(calls[0].answers, 1);
    assert_int_equal(calls[1].answers, 1);
    assert_int_equal(calls[2].answers, 0);
    server_park_wake_all(park);
    server_park_poll(park, 3);
    assert_int_equal(calls[2].answers, 1);
    assert_true(server_park_poll(park, 4) == INT64_MAX);
}

static void one_that_was_woken_for_nothing_waits_on(void **state)
{
    (void)state;
    struct rpc_call call;
    struct request request;
    add(&call, &request, 1, 0, 1000);
    for (int i = 0; i < 3; i++) {
        server_park_wake(park, 1);
        assert_int_equal(server_park_poll(park, i), 1000 * MS);
    }
    assert_int_equal(call.answers, 0);
    changes[1]++;
    server_park_wake(park, 1);
    server_park_poll(park, 3);
    assert_int_equal(call.answers, 1);
}

static void what_has_changed_before_it_came_is_answered_at_once(void **state)
{
    (void)state;
    struct rpc_call call, other;
    struct request request, one = {.call = &other};
    add(&call, &request, 1, 0, 1000);
    request.seen = 7;
    other = (struct rpc_call){.cancelled = false};
    server_park_add(park, 0, 60000,
                    &(struct server_park_call){&once_kind, SERVER_PARK_ANY_KEY, &other, &one.base});
    assert_int_equal(call.answers, 0); /* not before the poll: what it did must be stored */
    assert_int_equal(other.answers, 0);
    server_park_poll(park, 0);
    assert_int_equal(call.answers, 1);
    assert_int_equal(other.answers, 1);
}

static void times_end_in_their_order_and_are_capped(void **state)
{
    (void)state;
    struct rpc_call calls[4];
    struct request requests[4];
    static const uint32_t waits_ms[] = {500, UINT32_MAX, 100, 300};
    for (int i = 0; i < 4; i++)
        add(&calls[i], &requests[i], 1, 0, waits_ms[i]);
    assert_int_equal(server_park_poll(park, 0), 100 * MS);
    assert_int_equal(server_park_poll(park, 100 * MS), 300 * MS);
    assert_int_equal(calls[2].answers, 1);
    assert_int_equal(server_park_poll(park, 499 * MS), 500 * MS);
    assert_int_equal(server_park_poll(park, 500 * MS), SERVER_PARK_WAIT_MAX_MS * MS);
    assert_true(server_park_poll(park, SERVER_PARK_WAIT_MAX_MS * MS) == INT64_MAX);
    for (int i = 0; i < 4; i++)
        assert_int_equal(calls[i].answers, 1);
}

static void whoever_has_gone_is_found(void **state)
{
    (void)state;
    static struct rpc_call calls[CALLS];
    static struct request requests[CALLS];
    for (int i = 0; i < CALLS; i++)
        add(&calls[i], &requests[i], 1, 0, 60000);
    server_park_poll(park, 0);
    for (int i = 0; i < CALLS; i++)
        calls[i].cancelled = i % 3 == 0;
    for (int i = 0; i < 10; i++) /* 64 a poll; some move while others go */
        server_park_poll(park, i);
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(calls[i].answers, i % 3 == 0);
}

static void those_over_the_limit_fail(void **state)
{
    (void)state;
    struct rpc_call *calls = calloc(SERVER_PARK_MAX + 1, sizeof *calls);
    struct request *requests = calloc(SERVER_PARK_MAX + 1, sizeof *requests);
    assert_true(calls && requests);
    for (int i = 0; i <= SERVER_PARK_MAX; i++)
        add(&calls[i], &requests[i], 1, 0, 1000);
    assert_int_equal(calls[SERVER_PARK_MAX].failures, 1);
    assert_int_equal(calls[SERVER_PARK_MAX].code, BASE_BUSY);
    assert_int_equal(calls[SERVER_PARK_MAX - 1].failures, 0);
    teardown(NULL); /* those that wait are told so */
    for (int i = 0; i < SERVER_PARK_MAX; i++) {
        assert_int_equal(calls[i].failures, 1);
        assert_int_equal(calls[i].code, BASE_UNAVAILABLE);
    }
    free(calls);
    free(requests);
}

/* Against the rule, on random histories: a call is answered once, at the first poll after its key's change, its time or its end. */
static void every_call_is_answered_once_and_in_time(void **state)
{
    (void)state;
    static struct rpc_call calls[CALLS];
    static struct request requests[CALLS];
    static int64_t until_ns[CALLS]; /* 0: it does not wait */
    uint64_t draws = 0;
    int64_t now_ns = 1;
    for (int event = 0; event < EVENTS; event++) {
        int at = (int)base_philox_below(1, 0, draws++, CALLS);
        uint64_t key = base_philox_below(1, 0, draws++, KEYS) + 1, kind = base_philox_below(1, 0, draws++, 4);
        now_ns += (int64_t)base_philox_below(1, 0, draws++, 10) * MS;
        if (kind < 2 && until_ns[at] == 0) {
            uint32_t wait_ms = (uint32_t)base_philox_below(1, 0, draws++, 500);
            add(&calls[at], &requests[at], key, now_ns, wait_ms);
            until_ns[at] = now_ns + wait_ms * MS;
        } else if (kind == 2) {
            changes[key]++;
            server_park_wake(park, key);
        }
        int64_t next_ns = server_park_poll(park, now_ns), least_ns = INT64_MAX;
        for (int i = 0; i < CALLS; i++) {
            if (until_ns[i] == 0)
                continue;
            bool due = until_ns[i] <= now_ns || changes[requests[i].key] != requests[i].seen;
            assert_int_equal(calls[i].answers, due);
            until_ns[i] = due ? 0 : until_ns[i];
            least_ns = !due && until_ns[i] < least_ns ? until_ns[i] : least_ns;
        }
        assert_true(next_ns == least_ns);
    }
}

static void keys_of_jobs_and_workers(void **state)
{
    (void)state;
    assert_true(server_park_job_key("a") != server_park_job_key("b"));
    assert_true(server_park_job_key("") != SERVER_PARK_ANY_KEY);
    assert_true(server_park_worker_key(1) != server_park_worker_key(2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_is_answered_when_its_key_has_changed, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_was_woken_for_nothing_waits_on, setup, teardown),
        cmocka_unit_test_setup_teardown(what_has_changed_before_it_came_is_answered_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(times_end_in_their_order_and_are_capped, setup, teardown),
        cmocka_unit_test_setup_teardown(whoever_has_gone_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(those_over_the_limit_fail, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_is_answered_once_and_in_time, setup, teardown),
        cmocka_unit_test(keys_of_jobs_and_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The server's calls, HTTP pages and long polls while the store refuses writes and memory runs out: each call is answered once, and what
 * was answered well is on the disk. The calls are played here. */
#include "base/clock.h"
#include "base/log.h"
#include "server/server.h"
#include "server/views.h"
#include "tests/support/inject.h"
#include "tests/unit/scheduler/cluster_fixture.h"
#include "tests/unit/server/store_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKER = 5, JOBS_OPEN = 0, JOBS_SYNC = 1, JOBS_CLOSE = 2, CLUSTER_SYNC = 0 };

struct rpc_call {
    int answers;
    enum base_code code;
    bool refused; /* its bad items */
    char text[200];
};

static struct server server;

void rpc_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    call->answers++;
    call->code = BASE_OK;
    if (reply->descriptor == &millrace__v1__worker_orders__descriptor)
        call->refused = ((const Millrace__V1__WorkerOrders *)(const void *)reply)->bad_items_refused;
}

void rpc_fail(struct rpc_call *call, enum base_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(call->text, sizeof call->text, format, args);
    va_end(args);
    call->answers++;
    call->code = code;
}

bool rpc_call_cancelled(const struct rpc_call *call)
{
    (void)call;
    return false;
}

/* One call, to its answer. */
static struct rpc_call ask(const rpc_handler *handlers, int method, const void *message, int64_t after_ns)
{
    struct rpc_call call = {0};
    handlers[method](&server, &call, message);
    for (int i = 0; i < 1000 && call.answers == 0; i++)
        server_settle(&server, base_clock_now_ns() + after_ns);
    assert_int_equal(call.answers, 1);
    return call;
}

static const Millrace__V1__JobOpen *open_of(void)
{
    static Millrace__V1__JobOpen open;
    static char job[] = "night", dataset[] = "photos";
    millrace__v1__job_open__init(&open);
    open.job = job;
    open.dataset = dataset;
    open.world = 1;
    open.batch = 2;
    open.generation = 3;
    return &open;
}

static const Millrace__V1__WorkerSync *sync_of(bool bad)
{
    static Millrace__V1__WorkerSync sync;
    static Millrace__V1__BadItem item, *items[] = {&item};
    static char address[] = "10.0.0.1:7", *addresses[] = {address}, cause[] = "bad_truncated";
    static uint8_t version[BASE_SHA256_BYTES] = {1, 2, 3};
    millrace__v1__worker_sync__init(&sync);
    millrace__v1__bad_item__init(&item);
    sync.worker = WORKER;
    sync.incarnation = 1;
    sync.addresses = addresses;
    sync.n_addresses = 1;
    sync.cores = 2;
    item.dataset_version = (ProtobufCBinaryData){sizeof version, version};
    item.item = 4;
    item.cause = cause;
    sync.bad_items = items;
    sync.n_bad_items = bad;
    return &sync;
}

static enum base_code register_photos(struct base_error *error)
{
    struct server_dataset *dataset;
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    uint8_t version[BASE_SHA256_BYTES] = {1, 2, 3};
    enum base_code code = server_datasets_add(server.datasets, "photos",
                                              &(struct server_dataset_place){"/data", ""}, &dataset, error);
    if (code)
        return code;
    server_datasets_assign(server.datasets, (uint64_t[]){WORKER}, 1);
    result.worker = WORKER;
    result.order = dataset->index.id;
    result.version = (ProtobufCBinaryData){sizeof version, version};
    result.items = 7;
    return server_datasets_indexed(server.datasets, &result, error);
}

static int setup(void **state)
{
    (void)state;
    store_folder_clear();
    return server_open(&server, store_folder, 60000, NULL) || register_photos(NULL);
}

static int teardown(void **state)
{
    (void)state;
    server_close(&server);
    return 0;
}

static void count_job(void *context, const struct store_job *job)
{
    *(int *)context += strcmp(job->id, "night") == 0;
}

static int stored_jobs(void)
{
    int count = 0;
    assert_int_equal(store_jobs_each(server.store, count_job, &count, NULL), BASE_OK);
    return count;
}

/* ---- a store that refuses ---- */

/* The next write fails: it would begin within another one. */
static void refuse_a_write(void)
{
    assert_int_equal(store_begin(server.store, NULL), BASE_OK);
}

static void an_open_is_answered_when_it_is_stored(void **state)
{
    (void)state;
    refuse_a_write();
    struct rpc_call call = ask(server_jobs_handlers, JOBS_OPEN, open_of(), 0);
    assert_int_equal(call.code, BASE_UNAVAILABLE); /* the client asks again */
    assert_non_null(strstr(call.text, "night"));
    assert_non_null(strstr(call.text, "store"));
    assert_int_equal(ask(server_jobs_handlers, JOBS_OPEN, open_of(), 0).code,
                     BASE_UNAVAILABLE); /* no try yet */
    Millrace__V1__JobSync sync = MILLRACE__V1__JOB_SYNC__INIT;
    sync.job = open_of()->job;
    sync.generation = open_of()->generation;
    assert_int_equal(ask(server_jobs_handlers, JOBS_SYNC, &sync, 0).code, BASE_OK); /* who runs runs on */
    assert_int_equal(ask(server_jobs_handlers, JOBS_OPEN, open_of(), 2 * SECOND).code, BASE_OK);
    assert_int_equal(stored_jobs(), 1);
    Millrace__V1__JobClose closing = MILLRACE__V1__JOB_CLOSE__INIT;
    closing.job = open_of()->job;
    closing.generation = open_of()->generation;
    refuse_a_write();
    assert_int_equal(ask(server_jobs_handlers, JOBS_CLOSE, &closing, 2 * SECOND).code, BASE_UNAVAILABLE);
    server_settle(&server, base_clock_now_ns() + 4 * SECOND);
    assert_int_equal(server.unstored.code, BASE_OK);
    assert_int_equal(ask(server_jobs_handlers, JOBS_CLOSE, &closing, 4 * SECOND).code, BASE_OK);
    assert_int_equal(stored_jobs(), 0); /* or the heir would wait for it */
}

/* Its record stayed for ever, and each start of a server reported it. */
static void a_job_of_a_dataset_that_is_gone_is_forgotten(void **state)
{
    (void)state;
    assert_int_equal(ask(server_jobs_handlers, JOBS_OPEN, open_of(), 0).code, BASE_OK);
    server_close(&server);
    assert_int_equal(server_open(&server, store_folder, 60000, NULL), BASE_OK);
    assert_int_equal(stored_jobs(), 1);
    assert_int_equal(server_datasets_remove(server.datasets, "photos", NULL), BASE_OK);
    server_close(&server);
    assert_int_equal(server_open(&server, store_folder, 60000, NULL), BASE_OK);
    assert_int_equal(stored_jobs(), 0);
}

static void see_bad(void *context, const struct store_bad_item *bad)
{
    *(uint64_t *)context = bad->item;
}

static void bad_items_are_asked_for_again(void **state)
{
    (void)state;
    uint64_t item = 0;
    refuse_a_write();
    struct rpc_call call = ask(server_cluster_handlers, CLUSTER_SYNC, sync_of(true), 0);
    assert_true(call.code == BASE_OK && call.refused);
    call = ask(server_cluster_handlers, CLUSTER_SYNC, sync_of(true), 0);
    assert_true(call.code == BASE_OK && !call.refused);
    const struct server_dataset *photos = server_datasets_find(server.datasets, "photos");
    assert_int_equal(store_bad_items_each(server.store, photos->version, 9, see_bad, &item, NULL), BASE_OK);
    assert_int_equal(item, 4);
}

/* ---- memory ---- */

/* Fails with the code of a call that has failed, the error's text being the call's. */
static enum base_code result_of(const struct rpc_call *call, struct base_error *error)
{
    return call->code ? base_error_set(error, call->code, "%s", call->text) : BASE_OK;
}

static enum base_code call_number(int number, struct base_error *error)
{
    struct rpc_call call;
    switch (number) {
    case 0:
        call = ask(server_cluster_handlers, CLUSTER_SYNC, sync_of(true), 0);
        break;
    case 1:
        call = ask(server_jobs_handlers, JOBS_OPEN, open_of(), 0);
        break;
    case 2:
        call = ask(server_jobs_handlers, 3, open_of(), 0); /* List looks at no request */
        break;
    default: {
        Millrace__V1__JobClose closing = MILLRACE__V1__JOB_CLOSE__INIT;
        closing.job = open_of()->job;
        closing.generation = open_of()->generation;
        call = ask(server_jobs_handlers, JOBS_CLOSE, &closing, 0);
    }
    }
    return result_of(&call, error);
}

static enum base_code print_pages(struct base_error *error)
{
    bool failed = false;
    for (int i = 0; i < server_route_count; i++) {
        struct base_buffer body;
        base_buffer_init(&body);
        int status = server_routes[i].answer(&server, &body);
        failed |= status == 503 || body.failed;
        base_buffer_fini(&body);
    }
    return failed ? base_error_set(error, BASE_NO_MEMORY, "a page: no memory") : BASE_OK;
}

/* Each call again, if it was told to have failed; then all is as if nothing had been. */
static enum base_code live(void *context, struct base_error *error)
{
    (void)context;
    struct inject_plan plan = inject_pause();
    assert_int_equal(setup(NULL), 0);
    enum base_code first = BASE_OK;
    inject_start(&plan);
    for (int i = 0; i < 5; i++) {
        struct base_error *told = first == BASE_OK ? error : NULL;
        enum base_code code = i < 3    ? call_number(i, told)
                              : i == 3 ? print_pages(told)
                                       : call_number(3, told);
        if (code == BASE_OK)
            continue;
        inject_stop();
        first = first == BASE_OK ? code : first;
        assert_int_equal(i == 3 ? print_pages(NULL) : call_number(i < 3 ? i : 3, NULL), BASE_OK);
    }
    inject_stop();
    assert_int_equal(print_pages(NULL), BASE_OK);
    teardown(NULL);
    return first;
}

static void memory_runs_out(void **state)
{
    (void)state;
    inject_each("server", INJECT_MEMORY, live, NULL);
}

/* The port: it is there, or the error says what failed. */
static enum base_code listen_on(void *context, struct base_error *error)
{
    struct http *http = NULL;
    struct base_metric connections = {0}, full = {0};
    struct http_options options = {.address = "127.0.0.1:0",
                                   .routes = server_routes,
                                   .count = server_route_count,
                                   .context = &server,
                                   .connections_max = 4,
                                   .connections = &connections,
                                   .full = &full};
    enum base_code code = http_start(&http, context, &options, error);
    inject_stop();
    if (code == BASE_OK)
        assert_non_null(strchr(http_address(http), ':'));
    http_stop(&http);
    return code;
}

static void http_finds_no_memory_or_no_socket(void **state)
{
    (void)state;
    struct event_base *loop = event_base_new();
    inject_each("http", INJECT_MEMORY | INJECT_CALL | INJECT_FOREIGN, listen_on, loop);
    event_base_free(loop);
}

int main(void)
{
    base_log_start("test", -1, BASE_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_of_a_dataset_that_is_gone_is_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(an_open_is_answered_when_it_is_stored, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_items_are_asked_for_again, setup, teardown),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(http_finds_no_memory_or_no_socket),
    };
    return cmocka_run_group_tests(tests, store_folder_make, store_folder_remove);
}

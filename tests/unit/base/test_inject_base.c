/* SPDX-License-Identifier: Apache-2.0 */
/* What base does when memory, a thread or a call fails. */
#include "base/buffer.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/options.h"
#include "base/pool.h"
#include "tests/support/inject.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static enum base_code no_memory(struct base_error *error)
{
    return base_error_set(error, BASE_NO_MEMORY, "buffer: no memory");
}

/* Puts after a failure do nothing, what was there before stays, and after a clear it is as good as new. */
static enum base_code use_buffer(void *context, struct base_error *error)
{
    (void)context;
    struct base_buffer buffer;
    base_buffer_init(&buffer);
    for (uint32_t i = 0; i < 1000; i++)
        base_buffer_put_u32(&buffer, i);
    base_buffer_printf(&buffer, "%0600d", 7);
    base_buffer_put_text(&buffer, "text");
    const char *text = base_buffer_text(&buffer);
    inject_stop();
    assert_int_equal(text == NULL, buffer.failed);
    for (uint32_t i = 0; i < 1000 && 4 * (i + 1) <= buffer.size; i++)
        assert_int_equal(base_get_u32(buffer.bytes + 4 * (size_t)i), i);
    bool failed = buffer.failed;
    assert_true(failed || buffer.size == 4000 + 600 + 2 + 4);
    base_buffer_clear(&buffer);
    base_buffer_put_u8(&buffer, 42);
    assert_false(buffer.failed);
    assert_int_equal(buffer.bytes[0], 42);
    base_buffer_fini(&buffer);
    return failed ? no_memory(error) : BASE_OK;
}

static enum base_code write_json(void *context, struct base_error *error)
{
    (void)context;
    static struct base_metric metric = {.name = "millrace_test_total", .help = "A test"};
    struct base_buffer out;
    struct base_json json;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    base_json_object(&json, NULL);
    base_json_array(&json, "many");
    for (int i = 0; i < 200; i++)
        base_json_text(&json, NULL, "a \"text\"");
    base_json_array_end(&json);
    base_json_double(&json, "number", 0.1);
    base_json_object_end(&json);
    base_metrics_print(&metric, 1, NULL, &out);
    inject_stop();
    bool failed = out.failed;
    assert_true(failed || strstr(base_buffer_text(&out), "\"number\":0.1}"));
    base_buffer_fini(&out);
    return failed ? no_memory(error) : BASE_OK;
}

static int messages_run;

static void count(struct base_message *message)
{
    (void)message;
    messages_run++;
}

static enum base_code use_mailbox(void *context, struct base_error *error)
{
    (void)context;
    struct base_mailbox *mailbox = NULL;
    struct base_message message = {.run = count};
    messages_run = 0;
    enum base_code code = base_mailbox_create(&mailbox, error);
    if (code == BASE_OK) {
        base_mailbox_post(mailbox, &message);
        assert_int_equal(base_mailbox_drain(mailbox), 1);
    }
    inject_stop();
    assert_int_equal(messages_run, code == BASE_OK);
    base_mailbox_destroy(mailbox);
    return code;
}

static atomic_int tasks_run;

static void run_task(struct base_task *task, int thread)
{
    (void)task;
    (void)thread;
    tasks_run++;
}

/* A pool that lacks one thread is no pool: the others end. */
static enum base_code use_pool(void *context, struct base_error *error)
{
    (void)context;
    struct base_pool *pool = NULL;
    const struct base_pool_options options = {.name = "inject", .threads = 4};
    enum base_code code = base_pool_start(&pool, &options, error);
    inject_stop();
    assert_int_equal(pool != NULL, code == BASE_OK);
    struct base_task task = {.run = run_task};
    tasks_run = 0;
    if (pool) {
        base_pool_post(pool, &task, 0);
        for (int64_t until_ns = base_clock_now_ns() + 10 * BASE_NS_PER_S;
             tasks_run == 0 && base_clock_now_ns() < until_ns;)
            sched_yield();
    }
    base_pool_stop(&pool);
    assert_int_equal(tasks_run, code == BASE_OK);
    return code;
}

/* A log that cannot be written changes nothing; a line is one write, whole or not at all. */
static enum base_code write_log(void *context, struct base_error *error)
{
    (void)error;
    const int *pipe_ends = context;
    char line[512];
    base_log_start("inject", pipe_ends[1], BASE_LOG_INFO);
    base_log(BASE_LOG_INFO, "test", "number=%d", 7);
    bool failed = inject_stop();
    base_log(BASE_LOG_INFO, "next", "number=%d", 8);
    base_log_start("inject", 2, BASE_LOG_INFO);
    ssize_t size = read(pipe_ends[0], line, sizeof line - 1);
    assert_true(size > 0);
    line[size] = 0;
    assert_true(failed || strstr(line, "id=test number=7\n"));
    assert_non_null(strstr(line, "id=next number=8\n"));
    return BASE_OK;
}

/* Limits that cannot be read are none: the machine's own count. */
static enum base_code read_limits(void *context, struct base_error *error)
{
    (void)context;
    (void)error;
    int cores = base_limits_cores();
    uint64_t memory_bytes = base_limits_memory_bytes();
    inject_stop();
    assert_true(cores >= 1);
    assert_true(memory_bytes > 0);
    return BASE_OK;
}

/* Options take no memory at all. */
static void options_need_no_memory(void **state)
{
    (void)state;
    struct {
        int64_t number;
        struct base_option_list list;
    } into;
    const struct base_option table[] = {
        {.name = "number", .type = BASE_OPTION_INT},
        {.name = "list", .type = BASE_OPTION_LIST, .offset = offsetof(__typeof__(into), list)},
    };
    const struct base_options options = {.program = "test", .usage = "", .table = table, .count = 2};
    struct base_options_rest rest;
    char *arguments[] = {(char[]){"test"}, (char[]){"--number=7"}, (char[]){"--list"}, (char[]){"a"}, NULL};
    inject_start(&(struct inject_plan){.kinds = INJECT_ALL, .first = 1, .on = true});
    enum base_code code = base_options_parse(&options, 4, arguments, &into, &rest, NULL);
    assert_false(inject_stop());
    assert_int_equal(code, BASE_OK);
    assert_int_equal(into.number, 7);
    assert_int_equal(into.list.count, 1);
}

static void buffers(void **state)
{
    (void)state;
    inject_each("buffer", INJECT_MEMORY, use_buffer, NULL);
    inject_each("json and metrics", INJECT_MEMORY, write_json, NULL);
}

static void threads(void **state)
{
    (void)state;
    inject_each("mailbox", INJECT_ALL & ~(unsigned)INJECT_THREAD & ~(unsigned)INJECT_SHORT, use_mailbox,
                NULL);
    inject_each("pool", INJECT_MEMORY | INJECT_THREAD, use_pool, NULL);
}

static void logs(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    inject_each("log", INJECT_CALL, write_log, ends);
    close(ends[0]);
    close(ends[1]);
}

static void limits(void **state)
{
    (void)state;
    inject_each("limits", INJECT_MEMORY | INJECT_CALL, read_limits, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers),
        cmocka_unit_test(threads),
        cmocka_unit_test(logs),
        cmocka_unit_test(limits),
        cmocka_unit_test(options_need_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

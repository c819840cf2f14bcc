/* SPDX-License-Identifier: Apache-2.0 */
/* What workers count, as /metrics prints it: each name once, with all workers' rows; in a time that grows with their number. */
#include "server/server.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNTERS = 40, FEW = 1000, MANY = 10000 };

static struct server server;

static int teardown(void **state)
{
    (void)state;
    server_counters_fini(&server);
    return 0;
}

static void say(uint64_t worker, const char *prefix, int first, int count)
{
    Millrace__V1__WorkerSync sync = MILLRACE__V1__WORKER_SYNC__INIT;
    static Millrace__V1__Counter counters[COUNTERS], *list[COUNTERS];
    static char names[COUNTERS][64], labels[] = "cause=\"late\"";
    sync.worker = worker;
    sync.counters = list;
    sync.n_counters = (size_t)count;
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s%d", prefix, first + i);
        list[i] = &counters[i];
        millrace__v1__counter__init(&counters[i]);
        counters[i].name = names[i];
        counters[i].labels = i % 2 ? labels : labels + sizeof labels - 1;
        counters[i].value = (double)worker;
        counters[i].gauge = i == 0;
    }
    server_counters_set(&server, &sync);
}

static void a_name_is_printed_once_with_all_rows(void **state)
{
    (void)state;
    static const char wanted[] = "# TYPE b_1 gauge\nb_1{worker=\"2\"} 2\nb_1{worker=\"9\"} 9\n"
                                 "# TYPE b_2 counter\nb_2{worker=\"2\",cause=\"late\"} 2\n"
                                 "# TYPE b_3 counter\nb_3{worker=\"2\"} 2\n";
    struct base_buffer page;
    base_buffer_init(&page);
    say(9, "b_", 1, 1);
    say(2, "b_", 1, 3);
    say(9, "no good name ", 1, 0);
    server_counters_print(&server, &page);
    assert_int_equal(page.size, sizeof wanted - 1);
    assert_memory_equal(page.bytes, wanted, sizeof wanted - 1);
    base_buffer_fini(&page);
}

/* CPU a worker, for so many that share few names with each other. */
static double cost_ns(int workers)
{
    struct base_buffer page;
    char prefix[32];
    for (int i = 1; i <= workers; i++) {
        snprintf(prefix, sizeof prefix, "of_%d_and_", i % 97);
        say((uint64_t)i, prefix, 0, COUNTERS);
    }
    base_buffer_init(&page);
    int64_t begun_ns = base_clock_thread_cpu_ns();
    server_counters_print(&server, &page);
    int64_t took_ns = base_clock_thread_cpu_ns() - begun_ns;
    assert_false(page.failed);
    base_buffer_fini(&page);
    server_counters_fini(&server);
    return (double)took_ns / workers;
}

/* It held the loop for minutes. */
static void the_time_grows_with_the_workers(void **state)
{
    (void)state;
    double few = cost_ns(FEW), many = cost_ns(MANY);
    print_message("           a worker: %.1f us with %d, %.1f us with %d\n", few / 1000, FEW, many / 1000,
                  MANY);
    assert_true(many < 4 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_name_is_printed_once_with_all_rows, teardown),
        cmocka_unit_test_teardown(the_time_grows_with_the_workers, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metrics.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MADE, REMADE_PLAN, REMADE_DEATH, STALL, N };

static struct base_metric table[N] = {
    [MADE] = {.name = "t_made_total", .help = "Blocks made.", .type = BASE_METRIC_COUNTER},
    [REMADE_PLAN] = {.name = "t_remade_total",
                     .labels = "cause=\"plan\"",
                     .help = "Remade.",
                     .type = BASE_METRIC_COUNTER},
    [REMADE_DEATH] = {.name = "t_remade_total",
                      .labels = "cause=\"death\"",
                      .help = "Remade.",
                      .type = BASE_METRIC_COUNTER},
    [STALL] = {.name = "t_stall_seconds", .help = "Stall.", .type = BASE_METRIC_GAUGE, .scale = 1e-9},
};

static void text_format(void **state)
{
    (void)state;
    struct base_buffer out;
    base_buffer_init(&out);
    base_metric_add(&table[MADE], 3);
    base_metric_add(&table[MADE], INT64_C(1) << 53);
    base_metric_add(&table[REMADE_DEATH], 2);
    base_metric_set(&table[STALL], 1500000000);
    base_metrics_print(table, N, NULL, &out);
    assert_string_equal(base_buffer_text(&out), "# HELP t_made_total Blocks made.\n"
                                                "# TYPE t_made_total counter\n"
                                                "t_made_total 9007199254740995\n"
                                                "# HELP t_remade_total Remade.\n"
                                                "# TYPE t_remade_total counter\n"
                                                "t_remade_total{cause=\"plan\"} 0\n"
                                                "t_remade_total{cause=\"death\"} 2\n"
                                                "# HELP t_stall_seconds Stall.\n"
                                                "# TYPE t_stall_seconds gauge\n"
                                                "t_stall_seconds 1.5\n");
    base_buffer_clear(&out);
    base_metrics_print(&table[REMADE_PLAN], 1, "worker=\"w1\"", &out);
    assert_string_equal(base_buffer_text(&out), "# HELP t_remade_total Remade.\n"
                                                "# TYPE t_remade_total counter\n"
                                                "t_remade_total{worker=\"w1\",cause=\"plan\"} 0\n");
    base_buffer_clear(&out);
    base_metrics_print(&table[STALL], 1, "worker=\"w1\"", &out);
    assert_string_equal(base_buffer_text(&out), "# HELP t_stall_seconds Stall.\n"
                                                "# TYPE t_stall_seconds gauge\n"
                                                "t_stall_seconds{worker=\"w1\"} 1.5\n");
    base_buffer_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_format)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

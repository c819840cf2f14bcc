/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/schema/json.h"

#include "proto/schema/millrace.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void expect(const void *message, const char *text)
{
    struct base_buffer out;
    struct base_json json;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    schema_json_print(message, &json, NULL);
    assert_string_equal(base_buffer_text(&out), text);
    base_buffer_fini(&out);
}

static void scalars_texts_bytes_and_arrays(void **state)
{
    (void)state;
    char name[] = "a\"b", one[] = "x", two[] = "y", *skipped[] = {one, two};
    uint8_t bytes[] = {0xde, 0xad};
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    result.worker = UINT64_MAX;
    result.error = name;
    result.version.data = bytes;
    result.version.len = 2;
    result.skipped_names = skipped;
    result.n_skipped_names = 2;
    expect(
        &result,
        "{\"worker\":18446744073709551615,\"order\":0,\"code\":0,\"error\":\"a\\\"b\",\"version\":\"dead\","
        "\"items\":0,\"bytes\":0,\"classes\":[],\"skipped\":0,\"skipped_names\":[\"x\",\"y\"],"
        "\"changed\":0,\"changed_names\":[],\"masks\":false}");
}

static void nested_messages_doubles_and_bools(void **state)
{
    (void)state;
    Millrace__V1__Counter counter = MILLRACE__V1__COUNTER__INIT, *counters[] = {&counter};
    counter.value = 1.5;
    counter.gauge = 1;
    Millrace__V1__WorkerSync sync = MILLRACE__V1__WORKER_SYNC__INIT;
    sync.counters = counters;
    sync.n_counters = 1;
    expect(
        &sync,
        "{\"worker\":0,\"incarnation\":0,\"addresses\":[],\"cores\":0,\"staging_bytes\":0,\"draining\":false,"
        "\"seen_revision\":0,\"wait_ms\":0,\"datasets\":[],\"probes\":[],\"fronts\":[],\"bad_items\":[],"
        "\"counters\":[{\"name\":\"\",\"labels\":\"\",\"value\":1.5,\"gauge\":true}],\"queue_ms\":0,"
        "\"leaving\":false,\"told\":0,\"wanted\":[],\"plans_told\":0}");
}

static void an_absent_message_is_null_and_an_unset_choice_is_left_out(void **state)
{
    (void)state;
    Millrace__V1__JobOpen open = MILLRACE__V1__JOB_OPEN__INIT;
    struct base_buffer out;
    struct base_json json;
    for (int set = 0; set < 2; set++) {
        if (set) {
            open.seed_case_case = MILLRACE__V1__JOB_OPEN__SEED_CASE_SEED;
            open.seed = 7;
        }
        base_buffer_init(&out);
        base_json_begin(&json, &out);
        schema_json_print(&open.base, &json, NULL);
        const char *text = base_buffer_text(&out);
        assert_non_null(strstr(text, "\"resume\":null"));
        assert_int_equal(strstr(text, "\"seed\":7") != NULL, set);
        base_buffer_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_texts_bytes_and_arrays),
        cmocka_unit_test(nested_messages_doubles_and_bools),
        cmocka_unit_test(an_absent_message_is_null_and_an_unset_choice_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

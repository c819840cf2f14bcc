/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/args.h"
#include "proto/rpc/code.h"
#include "proto/rpc/rpc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <grpc/slice.h>
#include <cmocka.h>

static enum base_code from_text(grpc_status_code status, const char *text, bool *exact)
{
    grpc_metadata pairs[2] = {
        {.key = grpc_slice_from_static_string("other"), .value = grpc_slice_from_static_string("4")},
        {.key = grpc_slice_from_static_string(RPC_CODE_KEY),
         .value = grpc_slice_from_static_string(text ? text : "")}};
    grpc_metadata_array array = {.count = text ? 2 : 1, .capacity = 2, .metadata = pairs};
    return rpc_code_from_status(status, &array, exact);
}

static void test_every_code_returns(void **state)
{
    (void)state;
    for (int code = 1; code < 128; code++) {
        if (!strcmp(base_error_name((enum base_code)code), "unknown"))
            continue;
        char text[16];
        snprintf(text, sizeof text, "%d", code);
        bool exact;
        grpc_status_code status = rpc_code_to_status((enum base_code)code);
        assert_int_not_equal(status, GRPC_STATUS_OK);
        assert_int_not_equal(status, GRPC_STATUS_UNKNOWN);
        assert_int_equal(from_text(status, text, &exact), code);
        assert_true(exact);
        /* Without the metadata the class at least survives, but for codes that share a status with a
         * permanent one. */
        enum base_code kin = from_text(status, NULL, &exact);
        assert_false(exact);
        if (code != BASE_BUSY && code != BASE_NO_MEMORY && code != BASE_BAD_SAMPLE)
            assert_int_equal(base_error_class(kin), base_error_class((enum base_code)code));
    }
}

static void test_what_is_not_a_code(void **state)
{
    (void)state;
    static const char *const rows[] = {"", "0", "-1", "3x", " ", "63", "99", "999", "12345678", "x"};
    bool exact;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(from_text(GRPC_STATUS_NOT_FOUND, rows[i], &exact), BASE_NOT_FOUND);
        assert_false(exact);
    }
    assert_int_equal(from_text(GRPC_STATUS_OK, "3", &exact), BASE_OK);
    assert_int_equal(from_text((grpc_status_code)17, NULL, NULL), BASE_INTERNAL);
    assert_int_equal(from_text((grpc_status_code)-1, NULL, NULL), BASE_INTERNAL);
    for (int status = 1; status <= 16; status++)
        assert_int_not_equal(from_text((grpc_status_code)status, NULL, NULL), BASE_OK);
}

static void test_args_have_room(void **state)
{
    (void)state;
    struct rpc_args args;
    rpc_args_init(&args);
    assert_true(args.list.num_args + 8 <= RPC_ARGS_MAX); /* the most that is added to them (channel.c) */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_code_returns),
                                       cmocka_unit_test(test_what_is_not_a_code),
                                       cmocka_unit_test(test_args_have_room)};
    rpc_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_stop();
    return failed;
}

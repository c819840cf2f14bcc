/* SPDX-License-Identifier: Apache-2.0 */
#include "base/grow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Up to `most`, down to a third and up again, three times: nothing is lost, and there is always room (ASan looks). */
static void records_stay(void **state)
{
    (void)state;
    for (size_t most = 1; most < 300; most++) {
        uint32_t *records = NULL;
        size_t count = 0;
        for (int round = 0; round < 3; round++, count = most / 3) {
            for (; count < most; count++) {
                assert_true(base_grow(&records, count, sizeof *records));
                records[count] = (uint32_t)count;
            }
            for (size_t i = 0; i < count; i++)
                assert_int_equal(records[i], i);
        }
        free(records);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(records_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

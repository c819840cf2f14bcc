/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/hash.h"
#include "worker/pipeline/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* These bits are promised to cursors and streams: a change here is a change of every stream. */
static const struct {
    const char *text, *option, *fingerprint;
} pinned[] = {
    {"imagenet_train", NULL, "250414066f899e5a28d8a4aeabf8d03c"},
    {"imagenet_train", "resize_order=pillow13", "250414066f899e5a28d8a4aeabf8d03c"},
    {"imagenet_train", "filter=lanczos", "d820438315e0afffcb0a8402f1b5edb8"},
    {"imagenet_train", "keep_encoded=9", "250414066f899e5a28d8a4aeabf8d03c"},
    {"imagenet_eval", NULL, "adaac15b27ee0749e3cb051beec2bc1d"},
    {"imagenet_train", "mask=255", "db3ae1b7670ab699bb02ca32d66e29aa"},
    {"imagenet_train", "views=1", "250414066f899e5a28d8a4aeabf8d03c"},
    {"imagenet_train", "views=2", "bf87c0d5d12b42b4c4219b50ce8f71c6"},
};

static void builds_make_the_pinned_bits(void **state)
{
    (void)state;
    struct base_error error = {0};
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++) {
        struct scheduler_pipeline parsed;
        const char *options[] = {pinned[i].option};
        assert_int_equal(
            scheduler_pipeline_parse(pinned[i].text, options, pinned[i].option != NULL, &parsed, &error), 0);
        struct pipeline *pipeline;
        assert_int_equal(pipeline_create(&pipeline, &parsed, &error), BASE_OK);
        uint8_t fingerprint[16];
        char hex[33];
        assert_int_equal(pipeline_fingerprint(pipeline, fingerprint, &error), BASE_OK);
        base_hash_to_hex(fingerprint, sizeof fingerprint, hex);
        if (strcmp(hex, pinned[i].fingerprint) != 0)
            fail_msg("%s %s: %s, pinned %s", pinned[i].text, pinned[i].option ? pinned[i].option : "", hex,
                     pinned[i].fingerprint);
        pipeline_destroy(pipeline);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builds_make_the_pinned_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct scheduler_stream sealed(const char *preset, const char *option, bool shuffle, uint64_t seed)
{
    struct scheduler_pipeline pipeline;
    struct scheduler_stream stream = {.items = 397, .shuffle = shuffle, .seed = seed};
    struct base_error error = {0};
    memset(stream.dataset_version, 0xab, sizeof stream.dataset_version);
    memset(stream.fingerprint, 0x11, sizeof stream.fingerprint);
    if (scheduler_pipeline_parse(preset, &option, option ? 1 : 0, &pipeline, &error) ||
        scheduler_pipeline_print(&pipeline, "sample", stream.sample_text, sizeof stream.sample_text,
                                 &error) ||
        scheduler_stream_seal(&stream, &error))
        fail_msg("%s", error.text);
    return stream;
}

static bool same(const struct scheduler_stream *a, const struct scheduler_stream *b)
{
    return memcmp(a->hash, b->hash, sizeof a->hash) == 0;
}

static void any_part_makes_another_stream(void **state)
{
    (void)state;
    struct scheduler_stream base = sealed("imagenet_train", NULL, true, 5), other = base;
    assert_int_equal(scheduler_stream_seal(&other, NULL), BASE_OK);
    assert_true(same(&base, &other));
    struct scheduler_stream changed[] = {
        sealed("imagenet_train", NULL, false, 5),
        sealed("imagenet_train", NULL, true, 6),
        sealed("imagenet_train", "size=192", true, 5),
        sealed("imagenet_train", "keep_encoded=9", true, 5),
        base,
        base,
        base,
    };
    changed[4].dataset_version[31] ^= 1;
    changed[5].items++;
    changed[6].fingerprint[15] ^= 1;
    static const bool siblings[] = {false, false, true, true, false, false, true};
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        assert_int_equal(scheduler_stream_seal(&changed[i], NULL), BASE_OK);
        assert_false(same(&base, &changed[i]));
        assert_true(siblings[i] == (memcmp(base.family, changed[i].family, sizeof base.family) == 0));
        for (size_t j = 0; j < i; j++)
            assert_false(same(&changed[i], &changed[j]));
    }
}

static void what_is_not_used_does_not_enter(void **state)
{
    (void)state;
    struct scheduler_stream a = sealed("imagenet_eval", NULL, false, 5),
                            b = sealed("imagenet_eval", NULL, false, 6);
    assert_true(same(&a, &b) && a.seed == 0 && !a.uses_epoch);
    struct scheduler_stream c = sealed("imagenet_eval", NULL, true, 5),
                            d = sealed("imagenet_eval", NULL, true, 6);
    assert_true(!same(&c, &d) && c.seed == 5 && c.uses_epoch); /* shuffled: the order uses both */
    struct scheduler_stream e = sealed("imagenet_train", NULL, false, 5);
    assert_true(e.seed == 5 && e.uses_epoch); /* in order, and cropped at random */
    struct scheduler_stream f =
        sealed("sample: Decode CenterCrop(size=224) | finish: Layout", NULL, false, 0);
    struct scheduler_stream g =
        sealed("sample: Decode CenterCrop(size=224) | finish: ToDtype", NULL, false, 0);
    assert_true(same(&f, &g)); /* the finish section is the job's */
}

static void text_that_is_not_canonical_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "imagenet_train", "sample: Decode CenterCrop(size=224)",
        "sample: Decode@1(exif=ignore,max_pixels=134217728) CenterCrop@1(size=224) ",
        "sample: Decode@1(exif=ignore,max_pixels=134217728) CenterCrop@1(size=224) | finish:"};
    struct base_error error = {0};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct scheduler_stream stream = {.items = 1};
        strcpy(stream.sample_text, texts[i]);
        assert_int_equal(scheduler_stream_seal(&stream, &error), BASE_INVALID);
    }
    struct scheduler_stream stream = sealed("imagenet_eval", NULL, false, 0);
    stream.items = 0;
    assert_int_equal(scheduler_stream_seal(&stream, &error), BASE_INVALID);
    stream.items = (UINT64_C(1) << 48) + 1;
    assert_int_equal(scheduler_stream_seal(&stream, &error), BASE_INVALID);
    stream.items = 1;
    memset(stream.sample_text, 'x', sizeof stream.sample_text);
    assert_int_equal(scheduler_stream_seal(&stream, &error), BASE_TOO_LARGE);
}

static void blocks_cover_the_epoch(void **state)
{
    (void)state;
    struct scheduler_stream stream = sealed("imagenet_train", NULL, true, 5);
    assert_int_equal(scheduler_stream_blocks(&stream), 50); /* 397 = 49 * 8 + 5 */
    assert_int_equal(scheduler_stream_block_rows(&stream, 0), 8);
    assert_int_equal(scheduler_stream_block_rows(&stream, 49), 5);
    assert_int_equal(scheduler_stream_block_rows(&stream, 50), 0);
    stream.items = 400;
    assert_int_equal(scheduler_stream_blocks(&stream), 50);
    assert_int_equal(scheduler_stream_block_rows(&stream, 49), 8);
}

/* Cursors and stored streams outlive builds. Values from Python's hashlib. */
static void hash_and_default_seed_do_not_change(void **state)
{
    (void)state;
    struct scheduler_stream stream = sealed("imagenet_train", NULL, true, 5);
    char hex[BASE_SHA256_HEX_CHARS + 1];
    base_hash_to_hex(stream.hash, sizeof stream.hash, hex);
    assert_string_equal(hex, "7f9dcdb0424fbf022e0a90425943e24326fd2a724fe9d4a237ca82512e445d8b");
    base_hash_to_hex(stream.family, sizeof stream.family, hex);
    assert_string_equal(hex, "4bcad236199c0103e0b1d16eeea84d43444cbbd64683963c7725646c2775202b");
    assert_true(scheduler_stream_default_seed(stream.dataset_version) == UINT64_C(0x904c0ed4c58a2cd6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_makes_another_stream),
        cmocka_unit_test(what_is_not_used_does_not_enter),
        cmocka_unit_test(text_that_is_not_canonical_is_refused),
        cmocka_unit_test(blocks_cover_the_epoch),
        cmocka_unit_test(hash_and_default_seed_do_not_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

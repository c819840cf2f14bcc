/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/number.h"
#include "scheduler/pipeline.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FINISH                                                                                               \
    " | finish: ToDtype@1(dtype=float32) "                                                                   \
    "Normalize@1(mean0=0.485,mean1=0.456,mean2=0.406,std0=0.229,std1=0.224,std2=0.225) "                     \
    "Layout@1(order=NCHW) | batch:"
#define DECODE "sample: Decode@1(exif=ignore,max_pixels=134217728) "
#define TRAIN                                                                                                \
    DECODE "RandomResizedCrop@1(size=224,scale_min=0.08,scale_max=1,ratio_min=0.75,ratio_max=1."             \
           "3333333333333333,"                                                                               \
           "filter=bilinear,resize_order=classic) RandomHorizontalFlip@1(p=0.5)"
#define EVAL DECODE "Resize@1(size=256,filter=bilinear,resize_order=classic) CenterCrop@1(size=224)"

static void canonical(const char *text, const char *option, const char *want)
{
    struct scheduler_pipeline pipeline, again;
    struct base_error error = {0};
    char printed[SCHEDULER_PIPELINE_TEXT_BYTES];
    const char *options[] = {option};
    if (scheduler_pipeline_parse(text, options, option ? 1 : 0, &pipeline, &error))
        fail_msg("%s: %s", text, error.text);
    assert_int_equal(scheduler_pipeline_print(&pipeline, NULL, printed, sizeof printed, &error), BASE_OK);
    assert_string_equal(printed, want);
    assert_int_equal(scheduler_pipeline_parse(printed, NULL, 0, &again, &error), BASE_OK);
    assert_memory_equal(&pipeline, &again, sizeof again);
}

static void presets_and_texts_have_one_canonical_form(void **state)
{
    (void)state;
    canonical("imagenet_train", NULL, TRAIN FINISH);
    canonical(" imagenet_train\n", NULL, TRAIN FINISH);
    canonical("imagenet_eval", NULL, EVAL FINISH);
    canonical("sample:Decode Resize( size = 256 )CenterCrop(size=224)", NULL, EVAL " | finish: | batch:");
    canonical("batch: | finish: Layout | sample: Decode() CenterCrop@1(size=2.24e2)", NULL,
              DECODE "CenterCrop@1(size=224) | finish: Layout@1(order=NCHW) | batch:");
    canonical("imagenet_eval", "keep_encoded=1000", EVAL " Encoded@1(max_bytes=1000)" FINISH);
    canonical("sample: Decode Resize(size=256) CenterCrop(size=224) Encoded(max_bytes=9)", "keep_encoded=8",
              EVAL " Encoded@1(max_bytes=8) | finish: | batch:");
    canonical("imagenet_train", "mask=255", TRAIN " Mask@1(fill=255)" FINISH);
    canonical("sample: Decode RandomResizedCrop(size=224) RandomHorizontalFlip Views(count=2) Mask "
              "Encoded(max_bytes=9)",
              "views=3", TRAIN " Views@1(count=3) Mask@1(fill=0) Encoded@1(max_bytes=9) | finish: | batch:");
    canonical("imagenet_train", "views=1", TRAIN FINISH);
    canonical("imagenet_train", "views=8", TRAIN " Views@1(count=8)" FINISH);
    canonical("sample: Decode RandomResizedCrop(size=224) RandomHorizontalFlip Encoded(max_bytes=9)",
              "views=2", TRAIN " Views@1(count=2) Encoded@1(max_bytes=9) | finish: | batch:");
    canonical("sample: Decode RandomResizedCrop(size=224) RandomHorizontalFlip Views(count=3)", "views=2",
              TRAIN " Views@1(count=2) | finish: | batch:");
    canonical("sample: Decode RandomResizedCrop(size=224) RandomHorizontalFlip Views(count=3)", "views=1",
              TRAIN " | finish: | batch:");
    canonical("sample: Decode CenterCrop(size=8) RandomHorizontalFlip(p=-0)", NULL,
              DECODE "CenterCrop@1(size=8) RandomHorizontalFlip@1(p=0) | finish: | batch:");
    canonical(
        "sample: Decode CenterCrop(size=8) | batch: RandomErasing MixUp(p=0.5) CutMix | finish: ToDtype",
        NULL,
        DECODE "CenterCrop@1(size=8) | finish: ToDtype@1(dtype=float32) | batch: RandomErasing@1(p=0.5,"
               "scale_min=0.02,scale_max=0.33,ratio_min=0.3,ratio_max=3.3) MixUp@1(p=0.5,alpha=1) "
               "CutMix@1(p=1,alpha=1)");
    canonical("imagenet_eval", "size=32",
              DECODE "Resize@1(size=32,filter=bilinear,resize_order=classic) CenterCrop@1(size=32)" FINISH);
    canonical("imagenet_eval", "resize_order=pillow13",
              DECODE
              "Resize@1(size=256,filter=bilinear,resize_order=pillow13) CenterCrop@1(size=224)" FINISH);
}

static const struct {
    const char *text, *option;
    enum base_code code;
    const char *says[3];
} refused[] = {
    {"", NULL, BASE_INVALID, {"offset 0", "no preset"}},
    {"imagenet_tran",
     NULL,
     BASE_INVALID,
     {"offset 0", "'imagenet_tran'", "no preset (imagenet_train, imagenet_eval)"}},
    {"sample", NULL, BASE_INVALID, {"offset 6", "ends", "':'"}},
    {"sample: Decode Blur(size=3)",
     NULL,
     BASE_INVALID,
     {"offset 15", "'Blur'", "sample has Decode, RandomResizedCrop, "}},
    {"sample: Decode Resize(size=256)", NULL, BASE_INVALID, {"does not fix the size"}},
    {"sample: Decode", NULL, BASE_INVALID, {"does not fix the size"}},
    {"sample: CenterCrop(size=3)", NULL, BASE_INVALID, {"begin with Decode"}},
    {"finish: Layout", NULL, BASE_INVALID, {"begin with Decode"}},
    {"sample: Decode CenterCrop",
     NULL,
     BASE_INVALID,
     {"offset 15", "CenterCrop needs size=, as in CenterCrop(size=224)"}},
    {"sample: Decode CenterCrop(side=3)",
     NULL,
     BASE_INVALID,
     {"offset 26", "CenterCrop", "'side', but size"}},
    {"sample: Decode CenterCrop(size=3,size=3)", NULL, BASE_INVALID, {"offset 33", "twice"}},
    {"sample: Decode CenterCrop(size=0)", NULL, BASE_INVALID, {"offset 31", "size=0", "1 to 4096"}},
    {"sample: Decode CenterCrop(size=2.5)", NULL, BASE_INVALID, {"size=2.5", "whole"}},
    {"sample: Decode CenterCrop(size=nan)", NULL, BASE_INVALID, {"size=nan", "not a number"}},
    {"sample: Decode CenterCrop(size=1e999)", NULL, BASE_INVALID, {"not a number"}},
    {"sample: Decode CenterCrop(size=0x10)", NULL, BASE_INVALID, {"not a number"}},
    {"sample: Decode CenterCrop(size=)", NULL, BASE_INVALID, {"offset 31", "')'", "a value"}},
    {"sample: Decode CenterCrop(size=8", NULL, BASE_INVALID, {"ends", "',' or ')'"}},
    {"sample: Decode CenterCrop(size=8,)", NULL, BASE_INVALID, {"argument's name"}},
    {"sample: Decode CenterCrop(size 8)", NULL, BASE_INVALID, {"'8'", "'='"}},
    {"sample: Decode CenterCrop(size=8) \x01", NULL, BASE_INVALID, {"offset 34", "0x01"}},
    {"sample: Decode@2 CenterCrop(size=8)", NULL, BASE_UNSUPPORTED, {"offset 15", "Decode", "version 2"}},
    {"sample: Decode@ CenterCrop(size=8)", NULL, BASE_INVALID, {"version"}},
    {"sample: Decode@0 CenterCrop(size=8)", NULL, BASE_INVALID, {"version"}},
    {"sample: Decode(exif=apply) CenterCrop(size=8)", NULL, BASE_INVALID, {"exif=apply", "one of ignore"}},
    {"sample: Decode CenterCrop(size=8) Decode",
     NULL,
     BASE_INVALID,
     {"Decode cannot stand after CenterCrop"}},
    {"sample: Decode RandomResizedCrop(size=8) CenterCrop(size=8)",
     NULL,
     BASE_INVALID,
     {"cannot stand after"}},
    {"sample: Decode Resize(size=9) RandomResizedCrop(size=8)",
     NULL,
     BASE_INVALID,
     {"cannot stand after Resize"}},
    {"sample: Decode RandomResizedCrop(size=8,scale_min=0.5,scale_max=0.4)",
     NULL,
     BASE_INVALID,
     {"scale_min"}},
    {"sample: Decode CenterCrop(size=8) | sample: Decode", NULL, BASE_INVALID, {"offset 36", "twice"}},
    {"sample: Decode CenterCrop(size=8) |", NULL, BASE_INVALID, {"no section"}},
    {"sample: Decode CenterCrop(size=8) | finish: Normalize",
     NULL,
     BASE_INVALID,
     {"Normalize needs ToDtype"}},
    {"sample: Decode CenterCrop(size=8) | finish: ToDtype(dtype=uint8) Normalize",
     NULL,
     BASE_INVALID,
     {"float"}},
    {"sample: Decode CenterCrop(size=8) | finish: Layout ToDtype",
     NULL,
     BASE_INVALID,
     {"cannot stand after"}},
    {"sample: Decode CenterCrop(size=8) | finish: CenterCrop(size=8)",
     NULL,
     BASE_INVALID,
     {"section sample, not finish"}},
    {"sample: Decode CenterCrop(size=8) | batch: MixUp", NULL, BASE_INVALID, {"MixUp needs ToDtype"}},
    {"sample: Decode CenterCrop(size=8) | finish: ToDtype(dtype=uint8) | batch: CutMix",
     NULL,
     BASE_INVALID,
     {"CutMix needs ToDtype"}},
    {"sample: Decode CenterCrop(size=8) | finish: ToDtype | batch: MixUp RandomErasing",
     NULL,
     BASE_INVALID,
     {"RandomErasing cannot stand after MixUp"}},
    {"sample: Decode CenterCrop(size=8) | finish: ToDtype | batch: MixUp(alpha=0.2)",
     NULL,
     BASE_INVALID,
     {"alpha=0.2", "1 to 1"}},
    {"sample: Decode CenterCrop(size=8) | finish: ToDtype | batch: RandomErasing(ratio_min=4)",
     NULL,
     BASE_INVALID,
     {"RandomErasing", "ratio_min"}},
    {"sample: Decode CenterCrop(size=8) | finish: ToDtype MixUp",
     NULL,
     BASE_INVALID,
     {"section batch, not finish"}},
    {"imagenet_eval", "size", BASE_INVALID, {"'size'", "KEY=VALUE"}},
    {"imagenet_eval", "=3", BASE_INVALID, {"KEY=VALUE"}},
    {"imagenet_eval", "scale_min=3", BASE_INVALID, {"'scale_min'", "no op"}},
    {"imagenet_eval", "size=-1", BASE_INVALID, {"option", "Resize", "size=-1"}},
    {"imagenet_eval", "keep_encoded=no", BASE_INVALID, {"keep_encoded", "not a number"}},
    {"imagenet_train", "mask=256", BASE_INVALID, {"option mask", "fill=256"}},
    {"sample: Decode CenterCrop(size=8) Mask | finish: ToDtype | batch: MixUp",
     NULL,
     BASE_INVALID,
     {"not masks"}},
    {"imagenet_train", "views=9", BASE_INVALID, {"option views", "count=9", "2 to 8"}},
    {"imagenet_train", "views=0", BASE_INVALID, {"option views", "count=0"}},
    {"imagenet_train", "views=", BASE_INVALID, {"option views", "not a number"}},
    {"imagenet_eval", "views=2", BASE_INVALID, {"Views", "no op draws"}},
    {"sample: Decode RandomResizedCrop(size=8) Views", NULL, BASE_INVALID, {"Views needs count="}},
    {"sample: Decode RandomResizedCrop(size=8) Views(count=1)", NULL, BASE_INVALID, {"2 to 8"}},
    {"sample: Decode RandomResizedCrop(size=8) Views(count=2) RandomHorizontalFlip",
     NULL,
     BASE_INVALID,
     {"cannot stand after Views"}},
};

static void wrong_texts_are_refused_with_op_argument_and_offset(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct scheduler_pipeline pipeline;
        struct base_error error = {0};
        enum base_code code = scheduler_pipeline_parse(refused[i].text, &refused[i].option,
                                                       refused[i].option ? 1 : 0, &pipeline, &error);
        if (code != refused[i].code || error.code != code)
            fail_msg("'%s': code %d: %s", refused[i].text, code, error.text);
        for (int s = 0; s < 3 && refused[i].says[s]; s++)
            if (!strstr(error.text, refused[i].says[s]))
                fail_msg("'%s': \"%s\" does not say %s", refused[i].text, error.text, refused[i].says[s]);
    }
}

static void outside_text_is_bounded(void **state)
{
    (void)state;
    struct scheduler_pipeline pipeline;
    struct base_error error = {0};
    char text[2 * SCHEDULER_PIPELINE_TEXT_BYTES] = "";
    memset(text, ' ', sizeof text - 1);
    memcpy(text, "imagenet_eval", 13);
    assert_int_equal(scheduler_pipeline_parse(text, NULL, 0, &pipeline, &error), BASE_TOO_LARGE);
    text[SCHEDULER_PIPELINE_TEXT_BYTES] = 0;
    assert_int_equal(scheduler_pipeline_parse(text, NULL, 0, &pipeline, &error), BASE_OK);
    strcpy(text, "sample:");
    for (int i = 0; i < 17; i++)
        strcat(text, " Decode");
    assert_int_equal(scheduler_pipeline_parse(text, NULL, 0, &pipeline, &error), BASE_TOO_LARGE);
    assert_int_equal(scheduler_pipeline_parse("imagenet_train", NULL, 0, &pipeline, &error), BASE_OK);
    for (size_t room = 0; room < strlen(TRAIN) + 2; room++) {
        memset(text, 'x', sizeof text);
        enum base_code code = scheduler_pipeline_print(&pipeline, "sample", text, room, &error);
        assert_int_equal(code, room > strlen(TRAIN) ? BASE_OK : BASE_TOO_LARGE);
        assert_int_equal(text[room], 'x');
    }
    assert_int_equal(scheduler_pipeline_print(&pipeline, "nothing", text, sizeof text, &error), BASE_INVALID);
}

static void rows_and_blocks_have_the_stated_size(void **state)
{
    (void)state;
    struct scheduler_pipeline p;
    const char *options[] = {"size=32", "keep_encoded=1000"};
    assert_int_equal(scheduler_pipeline_parse("imagenet_train", NULL, 0, &p, NULL), BASE_OK);
    assert_true(p.shuffle && p.uses_randomness);
    assert_int_equal(p.field_count, 4);
    assert_int_equal(p.row_bytes, 224 * 224 * 3 + 8 + 16 + 1);
    assert_int_equal(p.block_rows, 8);
    assert_int_equal(scheduler_pipeline_parse("imagenet_eval", options, 2, &p, NULL), BASE_OK);
    assert_false(p.shuffle || p.uses_randomness);
    assert_int_equal(p.field_count, 5);
    assert_string_equal(p.fields[4].name, "encoded");
    assert_true(p.fields[4].ragged && p.fields[4].dims[0] == -1 && p.fields[4].max_bytes == 1000);
    assert_int_equal(p.row_bytes, 32 * 32 * 3 + 25 + 1000);
    assert_int_equal(p.block_rows, 256);
    options[0] = "views=3";
    assert_int_equal(scheduler_pipeline_parse("imagenet_train", options, 1, &p, NULL), BASE_OK);
    assert_int_equal(p.views, 3);
    assert_int_equal(p.row_bytes, 3 * (224 * 224 * 3 + 16 + 1) + 8);
    assert_int_equal(p.block_rows, 4);
    static const int ranks[] = {4, 0, 2, 1};
    static const int64_t dims[4][4] = {{3, 224, 224, 3}, {0}, {3, 4}, {3}};
    for (int f = 0; f < p.field_count; f++) {
        assert_int_equal(p.fields[f].rank, ranks[f]);
        assert_memory_equal(p.fields[f].dims, dims[f], sizeof dims[f]);
    }
    options[0] = "mask=0";
    assert_int_equal(scheduler_pipeline_parse("imagenet_train", options, 1, &p, NULL), BASE_OK);
    assert_true(p.mask);
    assert_string_equal(p.fields[4].name, "mask");
    assert_int_equal(p.fields[4].max_bytes, 224 * 224);
    assert_int_equal(p.row_bytes, 224 * 224 * 4 + 8 + 16 + 1);
    assert_int_equal(scheduler_pipeline_parse("sample: Decode CenterCrop(size=4096)", NULL, 0, &p, NULL),
                     BASE_OK);
    assert_int_equal(p.block_rows, 1);
    assert_int_equal(p.fields[0].max_bytes, 4096 * 4096 * 3);
    assert_true(isnan(scheduler_op_arg(&p.sample[0], "size")));
    assert_true(scheduler_op_arg(&p.sample[1], "size") == 4096);
}

static const struct {
    double value;
    const char *text;
} numbers[] = {
    {0, "0"},
    {1, "1"},
    {-2, "-2"},
    {0.1, "0.1"},
    {100, "100"},
    {1e16, "10000000000000000"},
    {1e17, "1e17"},
    {123456789012345680., "1.2345678901234568e17"},
    {0.00001, "0.00001"},
    {0.000001, "1e-6"},
    {4. / 3, "1.3333333333333333"},
    {-0.0000125, "-0.0000125"},
    {5e-324, "5e-324"},
    {1.7976931348623157e308, "1.7976931348623157e308"},
    {0.30000000000000004, "0.30000000000000004"},
};

static void numbers_print_shortest_and_read_back(void **state)
{
    (void)state;
    char text[SCHEDULER_NUMBER_CHARS];
    double back = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        scheduler_number_print(numbers[i].value, text);
        assert_string_equal(text, numbers[i].text);
        assert_true(scheduler_number_parse(text, strlen(text), &back) && back == numbers[i].value);
    }
    uint64_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        double value = 0;
        bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        scheduler_number_print(value, text);
        assert_true(scheduler_number_parse(text, strlen(text), &back) &&
                    memcmp(&back, &value, sizeof value) == 0);
    }
    static const char *const wrong[] = {
        "",   "-",   ".5",  "5.",      "1e",    "1e+",   "+1",  "1 ",
        " 1", "inf", "0x1", "1e99999", "1e400", "1.5.2", "1,5", "1111111111111111111111111111111111111111"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(scheduler_number_parse(wrong[i], strlen(wrong[i]), &back));
}

/* Every locale of this machine with a decimal comma must change nothing; without one the test says that it
 * saw none. */
static void the_locale_changes_nothing(void **state)
{
    (void)state;
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"};
    bool met = false;
    for (size_t i = 0; i < sizeof commas / sizeof commas[0] && !met; i++)
        met = setlocale(LC_ALL, commas[i]) != NULL;
    if (!met)
        print_message("no locale with a decimal comma here: checked in C only\n");
    canonical("imagenet_train", "scale_min=0.125",
              DECODE "RandomResizedCrop@1(size=224,scale_min=0.125,scale_max=1,ratio_min=0.75,"
                     "ratio_max=1.3333333333333333,filter=bilinear,resize_order=classic) "
                     "RandomHorizontalFlip@1(p=0.5)" FINISH);
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_and_texts_have_one_canonical_form),
        cmocka_unit_test(wrong_texts_are_refused_with_op_argument_and_offset),
        cmocka_unit_test(outside_text_is_bounded),
        cmocka_unit_test(rows_and_blocks_have_the_stated_size),
        cmocka_unit_test(numbers_print_shortest_and_read_back),
        cmocka_unit_test(the_locale_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Input: a pipeline's text, then, after a zero byte each, options. What parses prints, and what was printed is a fixed
 * point: it parses to the same pipeline and prints the same. */
#include "scheduler/pipeline.h"
#include "scheduler/stream.h"

#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_fixed_point(const struct scheduler_pipeline *pipeline)
{
    struct scheduler_pipeline again;
    char text[SCHEDULER_PIPELINE_TEXT_BYTES], second[SCHEDULER_PIPELINE_TEXT_BYTES];
    check(scheduler_pipeline_print(pipeline, NULL, text, sizeof text, NULL) == BASE_OK);
    check(scheduler_pipeline_parse(text, NULL, 0, &again, NULL) == BASE_OK);
    check(memcmp(pipeline, &again, sizeof again) == 0);
    check(scheduler_pipeline_print(&again, NULL, second, sizeof second, NULL) == BASE_OK);
    check(strcmp(text, second) == 0);
    check(pipeline->block_rows >= 1 && pipeline->block_rows <= 256 && pipeline->row_bytes > 0);

    static struct scheduler_stream stream;
    stream = (struct scheduler_stream){.items = 1, .shuffle = true};
    check(scheduler_pipeline_print(pipeline, "sample", stream.sample_text, sizeof stream.sample_text, NULL) ==
          BASE_OK);
    check(scheduler_stream_seal(&stream, NULL) == BASE_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct scheduler_pipeline pipeline;
    struct base_error error = {0};
    const char *options[OPTIONS_MAX];
    int count = 0;
    char *text = malloc(size + 1);
    check(text != NULL);
    memcpy(text, bytes, size);
    text[size] = 0;
    for (size_t at = strlen(text); at < size && count < OPTIONS_MAX; at += strlen(text + at))
        options[count++] = text + ++at;
    enum base_code code = scheduler_pipeline_parse(text, options, count, &pipeline, &error);
    check(code == error.code);
    if (code)
        check(error.text[0] != 0 && base_error_class(code) == BASE_CLASS_PERMANENT);
    else
        check_fixed_point(&pipeline);
    free(text);
    return 0;
}

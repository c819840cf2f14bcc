/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the oracle compares: reads paths from standard input and writes, for each of them and each epoch, one line
 *   path TAB code TAB verdict TAB top left height width flip TAB width height TAB bytes TAB error text
 * and then that many bytes of RGB. With --decode the whole decoded image, else the row of a pipeline; each view as if it were a row.
 * With a path TAB the path of its mask, the row's mask behind the RGB, and its bytes counted, too.
 */
#include "worker/pipeline/compiled.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EPOCHS_MAX = 1000 };

struct dump {
    bool decode, good;
    int epochs;
    const struct transform_kernel *kernel;
    struct scheduler_pipeline parsed;
    struct pipeline *pipeline;
    struct pipeline_scratch *scratch;
    struct decode_image *image;
};

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    /* exactly as large as the file, so that AddressSanitizer sees a read past its end */
    uint8_t *bytes = malloc(*size ? *size : 1);
    if (bytes && fread(bytes, 1, *size, file) != *size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    return bytes;
}

static enum base_code decode_whole(struct dump *dump, const uint8_t *bytes, size_t size,
                                   struct decode_info *info, uint8_t **pixels, bool *warned,
                                   struct base_error *error)
{
    enum base_code code = decode_image_open(dump->image, bytes, size, 134217728, info, error);
    if (code != BASE_OK)
        return code;
    size_t pitch = 3 * (size_t)info->width;
    *pixels = malloc(pitch * info->height);
    struct decode_region region = {.right = info->width, .bottom = info->height, .whole = true};
    struct decode_band band = {.rows = 1};
    code = decode_image_begin(dump->image, &region, error);
    while (code == BASE_OK && band.rows > 0) {
        code = decode_image_read(dump->image, &band, error);
        for (uint32_t i = 0; code == BASE_OK && i < band.rows; i++)
            memcpy(*pixels + (band.top + i) * pitch, band.pixels + i * band.pitch, pitch);
    }
    return code == BASE_OK ? decode_image_end(dump->image, warned, error) : code;
}

static void dump_decoded(struct dump *dump, const char *path, const uint8_t *bytes, size_t size)
{
    struct base_error error = {0};
    struct decode_info info = {0};
    uint8_t *pixels = NULL;
    bool warned = false;
    enum base_code code = decode_whole(dump, bytes, size, &info, &pixels, &warned, &error);
    size_t out = code == BASE_OK ? 3 * (size_t)info.width * info.height : 0;
    printf("%s\t%s\t%s\t0 0 0 0 0\t%u %u\t%zu\t%s\n", path, base_error_name(code),
           code != BASE_OK ? "bad"
           : warned        ? "warned"
                           : "good",
           info.width, info.height, out, code == BASE_OK ? "" : error.text);
    if (out > 0)
        fwrite(pixels, 1, out, stdout);
    free(pixels);
}

static void dump_row(struct dump *dump, const char *path, const struct pipeline_input *input)
{
    struct base_error error = {0};
    struct pipeline_row row = {0};
    size_t out = dump->pipeline->view_bytes, mask_out = dump->pipeline->mask_field < 0 ? 0 : out / 3;
    for (int i = 0; i < dump->parsed.field_count; i++)
        row.field[i] = calloc(1, dump->parsed.fields[i].max_bytes);
    enum pipeline_verdict verdict;
    enum base_code code = pipeline_run(dump->pipeline, dump->scratch, input, &row, &verdict, &error);
    if (code != BASE_OK)
        out = mask_out = 0;
    for (uint32_t view = 0; view < dump->parsed.views; view++) {
        const uint8_t *box = row.field[dump->pipeline->box_field] + 16 * view;
        printf("%s\t%s\t%s\t%u %u %u %u %u\t0 0\t%zu\t%s\n", path, base_error_name(code),
               pipeline_verdict_name(verdict), base_get_u32(box), base_get_u32(box + 4),
               base_get_u32(box + 8), base_get_u32(box + 12), row.field[dump->pipeline->flip_field][view],
               out + mask_out, code ? error.text : "");
        fwrite(row.field[dump->pipeline->image_field] + view * out, 1, out, stdout);
        if (mask_out > 0)
            fwrite(row.field[dump->pipeline->mask_field] + view * mask_out, 1, mask_out, stdout);
    }
    for (int i = 0; i < dump->parsed.field_count; i++)
        free(row.field[i]);
}

static int dump_paths(struct dump *dump)
{
    char path[8192];
    for (uint64_t item = 0; fgets(path, sizeof path, stdin); item++) {
        path[strcspn(path, "\n")] = 0;
        char *tab = strchr(path, '\t');
        if (tab)
            *tab = 0;
        size_t size = 0, mask_size = 0;
        uint8_t *bytes = read_file(path, &size), *mask = tab ? read_file(tab + 1, &mask_size) : NULL;
        if (!bytes || (tab && !mask)) {
            fprintf(stderr, "row_dump: cannot read %s\n", path);
            return 1;
        }
        for (int epoch = 0; epoch < dump->epochs; epoch++) {
            struct pipeline_input input = {.bytes = bytes,
                                           .size = size,
                                           .mask = mask,
                                           .mask_size = mask_size,
                                           .label = (int64_t)item,
                                           .sample_key = base_philox_sample_key(7, item, (uint32_t)epoch, 0),
                                           .known = dump->good ? PIPELINE_GOOD : PIPELINE_UNKNOWN};
            if (dump->decode)
                dump_decoded(dump, path, bytes, size);
            else
                dump_row(dump, path, &input);
        }
        free(bytes);
        free(mask);
    }
    return 0;
}

static bool choose_kernel(struct dump *dump, const char *name)
{
    for (int i = 0; i < transform_kernel_count; i++)
        if (strcmp(transform_kernels[i]->name, name) == 0 && transform_kernels[i]->available())
            dump->kernel = transform_kernels[i];
    return dump->kernel;
}

int main(int argc, char **argv)
{
    struct dump dump = {.epochs = 1};
    struct base_error error = {0};
    int at = 1, status = 2;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "--decode") == 0)
            dump.decode = true;
        else if (strcmp(argv[at], "--good") == 0)
            dump.good = true;
        else if (strncmp(argv[at], "--epochs=", 9) == 0)
            dump.epochs = atoi(argv[at] + 9);
        else if (strncmp(argv[at], "--kernel=", 9) != 0 || !choose_kernel(&dump, argv[at] + 9))
            goto usage;
    }
    if (dump.epochs < 1 || dump.epochs > EPOCHS_MAX || (at == argc && !dump.decode))
        goto usage;
    enum base_code code = decode_image_create(&dump.image, &error);
    if (code == BASE_OK && !dump.decode)
        code = scheduler_pipeline_parse(argv[at], (const char *const *)argv + at + 1, argc - at - 1,
                                        &dump.parsed, &error);
    if (code == BASE_OK && !dump.decode)
        code = pipeline_create(&dump.pipeline, &dump.parsed, &error);
    if (code == BASE_OK)
        code = pipeline_scratch_create_kernel(&dump.scratch, dump.kernel, &error);
    if (code == BASE_OK)
        status = dump_paths(&dump);
    else
        fprintf(stderr, "row_dump: %s\n", error.text);
    pipeline_scratch_destroy(dump.scratch);
    pipeline_destroy(dump.pipeline);
    decode_image_destroy(dump.image);
    return status;
usage:
    fprintf(
        stderr,
        "usage: row_dump [--decode] [--good] [--epochs=N] [--kernel=NAME] PIPELINE [KEY=VALUE...] < PATHS\n");
    return status;
}

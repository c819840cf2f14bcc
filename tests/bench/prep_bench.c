/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU time of one image, one thread, bytes already in memory: the whole row, and the decoding of its region alone.
 * usage: prep_bench FOLDER [ROUNDS]     (FOLDER/<class>/<image>; the median of the rounds is printed)
 */
#include "base/clock.h"
#include "worker/pipeline/compiled.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 99 };

struct file {
    uint8_t *bytes;
    size_t size;
};

struct bench {
    struct file *files;
    size_t count;
    struct scheduler_pipeline parsed;
    struct pipeline *pipeline;
    struct pipeline_scratch *scratch;
    struct decode_image *image;
    struct pipeline_row row;
};

static bool load(struct file *file, const char *path)
{
    FILE *from = fopen(path, "rb");
    if (!from)
        return false;
    fseek(from, 0, SEEK_END);
    file->size = (size_t)ftell(from);
    rewind(from);
    file->bytes = malloc(file->size + 1);
    bool done = file->bytes && fread(file->bytes, 1, file->size, from) == file->size;
    fclose(from);
    return done;
}

static bool load_folder(struct bench *bench, const char *folder)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*/*", folder);
    if (glob(pattern, 0, NULL, &found) != 0)
        return false;
    bench->files = calloc(found.gl_pathc, sizeof *bench->files);
    for (size_t i = 0; bench->files && i < found.gl_pathc; i++)
        if (load(&bench->files[bench->count], found.gl_pathv[i]))
            bench->count++;
    globfree(&found);
    return bench->count > 0;
}

struct cost {
    int64_t row_ns, decode_ns, first_ns;
    size_t bad;
};

static bool run_row(struct bench *bench, const struct file *file, uint64_t key, enum pipeline_verdict known)
{
    struct pipeline_input input = {
        .bytes = file->bytes, .size = file->size, .sample_key = key, .known = known};
    enum pipeline_verdict verdict;
    return pipeline_run(bench->pipeline, bench->scratch, &input, &bench->row, &verdict, NULL) == BASE_OK;
}

/* Decodes the box that run_row draws for this key, and nothing else. */
static void run_decode(struct bench *bench, const struct file *file, uint64_t key)
{
    struct decode_info info;
    struct decode_band band = {.rows = 1};
    enum base_code code =
        decode_image_open(bench->image, file->bytes, file->size, bench->pipeline->max_pixels, &info, NULL);
    if (code != BASE_OK)
        return;
    struct transform_box box = {.width = (int32_t)info.width, .height = (int32_t)info.height};
    if (bench->pipeline->random_crop_op >= 0)
        box = transform_crop_random(&bench->pipeline->range, box.width, box.height, key,
                                    (uint32_t)bench->pipeline->random_crop_op, 0);
    struct decode_region region = {.left = (uint32_t)box.left,
                                   .top = (uint32_t)box.top,
                                   .right = (uint32_t)(box.left + box.width),
                                   .bottom = (uint32_t)(box.top + box.height)};
    code = decode_image_begin(bench->image, &region, NULL);
    while (code == BASE_OK && band.rows > 0)
        code = decode_image_read(bench->image, &band, NULL);
    decode_image_close(bench->image);
}

/* The three in turn for each image, so that a busy machine slows all of them alike. */
static struct cost run_round(struct bench *bench, int round)
{
    struct cost cost = {0};
    for (size_t i = 0; i < bench->count; i++) {
        uint64_t key = base_philox_sample_key(1, i, (uint32_t)round, 0);
        int64_t t0 = base_clock_thread_cpu_ns();
        cost.bad += !run_row(bench, &bench->files[i], key, PIPELINE_UNKNOWN);
        int64_t t1 = base_clock_thread_cpu_ns();
        run_decode(bench, &bench->files[i], key);
        int64_t t2 = base_clock_thread_cpu_ns();
        run_row(bench, &bench->files[i], key, PIPELINE_GOOD);
        int64_t t3 = base_clock_thread_cpu_ns();
        cost.first_ns += t1 - t0;
        cost.decode_ns += t2 - t1;
        cost.row_ns += t3 - t2;
    }
    return cost;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static bool bench_text(struct bench *bench, const char *text, const struct transform_kernel *kernel,
                       int rounds)
{
    struct base_error error = {0};
    double rows[ROUNDS_MAX], first[ROUNDS_MAX], decodes[ROUNDS_MAX];
    size_t bad = 0;
    if (scheduler_pipeline_parse(text, NULL, 0, &bench->parsed, &error) != BASE_OK ||
        pipeline_create(&bench->pipeline, &bench->parsed, &error) != BASE_OK ||
        pipeline_scratch_create_kernel(&bench->scratch, kernel, &error) != BASE_OK) {
        fprintf(stderr, "prep_bench: %s\n", error.text);
        return false;
    }
    for (int i = 0; i < bench->parsed.field_count; i++)
        bench->row.field[i] = malloc(bench->parsed.fields[i].max_bytes);
    for (int round = 0; round < rounds; round++) {
        struct cost cost = run_round(bench, round);
        double scale = 1.0 / 1000.0 / (double)bench->count;
        rows[round] = (double)cost.row_ns * scale;
        decodes[round] = (double)cost.decode_ns * scale;
        first[round] = (double)cost.first_ns * scale;
        bad = cost.bad;
    }
    double row = median(rows, rounds), decode = median(decodes, rounds);
    printf("%-15s %-7s %7.0f us/image (decode %.0f, resize and rest %.0f), %.0f images/s; first sight %.0f "
           "us; %zu bad\n",
           text, kernel->name, row, decode, row - decode, 1e6 / row, median(first, rounds), bad);
    for (int i = 0; i < bench->parsed.field_count; i++)
        free(bench->row.field[i]);
    pipeline_scratch_destroy(bench->scratch);
    pipeline_destroy(bench->pipeline);
    return true;
}

int main(int argc, char **argv)
{
    struct bench bench = {0};
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX || !load_folder(&bench, argv[1])) {
        fprintf(stderr, "usage: prep_bench FOLDER [ROUNDS]\n");
        return 2;
    }
    if (decode_image_create(&bench.image, NULL) != BASE_OK)
        return 1;
    bool done = true;
    for (int i = 0; i < transform_kernel_count; i++)
        if (transform_kernels[i]->available())
            done = bench_text(&bench, "imagenet_train", transform_kernels[i], rounds) &&
                   bench_text(&bench, "imagenet_eval", transform_kernels[i], rounds) && done;
    decode_image_destroy(bench.image);
    for (size_t i = 0; i < bench.count; i++)
        free(bench.files[i].bytes);
    free(bench.files);
    return done ? 0 : 1;
}

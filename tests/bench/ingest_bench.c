/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch of 256 x 224 x 224 x 3 bytes to what a model takes, one thread: the client's own finish on the CPU, the ingest's on the CPU
 * and on the GPU, and the place that it chooses with what it measured.
 * usage: ingest_bench [host|cuda [ROUNDS]]     (the median of the rounds; GB/s of bytes in and of values out
 * together; CPU time of the thread, with cuda the time that passes)
 */
#include "base/clock.h"
#include "base/philox.h"
#include "client/src/mix.h"
#include "gpu_ingest/include/millrace/ingest.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256, SIDE = 224, CLASSES = 1000, ROUNDS_MAX = 99, AUTO_ROUNDS = 9 /* decided after 8 */ };

#define VALUES ((size_t)ROWS * SIDE * SIDE * 3)

struct bench {
    struct mr_device *device;
    struct mr_batch batch;
    struct mr_field fields[2];
    struct mr_row row[ROWS];
    struct mr_row_draw draws[ROWS];
    uint8_t valid[ROWS], *in;
    int64_t *labels;
    void *out;
    int rounds;
};

static const struct {
    const char *what;
    enum mr_dtype dtype;
    int first;
    double erase_p, mixup_p, cutmix_p;
} cases[] = {
    {"f32 NCHW", MR_F32, 1, 0, 0, 0},         {"f32 NHWC", MR_F32, 0, 0, 0, 0},
    {"f16 NCHW", MR_F16, 1, 0, 0, 0},         {"bf16 NHWC", MR_BF16, 0, 0, 0, 0},
    {"f32 NCHW erase", MR_F32, 1, 0.5, 0, 0}, {"f32 NCHW MixUp", MR_F32, 1, 0, 1, 0},
    {"f32 NCHW CutMix", MR_F32, 1, 0, 0, 1},  {"bf16 NCHW MixUp", MR_BF16, 1, 0, 1, 0},
};

/* Of this thread: the machine may be busy with other things. On a GPU, time as it passes. */
static int64_t now_ns(const struct bench *bench)
{
    bool cuda = mr_device_backend(bench->device) == MR_BACKEND_CUDA;
    return cuda ? base_clock_now_ns() : base_clock_thread_cpu_ns();
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median_ms(int64_t *took_ns, int rounds)
{
    qsort(took_ns, (size_t)rounds, sizeof *took_ns, by_size);
    return (double)took_ns[rounds / 2] / BASE_NS_PER_MS;
}

static double run_client(struct bench *bench, const struct mr_finish *finish)
{
    int64_t took_ns[ROUNDS_MAX];
    struct client_finish cpu;
    struct client_mix mix = {.rows = bench->draws, .count = ROWS, .views = 1, .height = SIDE, .width = SIDE};
    client_finish_init(&cpu, finish);
    for (int i = 0; i < bench->rounds; i++) {
        int64_t begun_ns = now_ns(bench);
        client_finish_run(&cpu, bench->in, bench->out, ROWS, SIDE * SIDE);
        mr_finish_draw(finish, &bench->batch, SIDE, SIDE, &mix.draw, bench->draws);
        client_mix_images(&mix, &cpu, bench->in, bench->out);
        took_ns[i] = now_ns(bench) - begun_ns;
    }
    return median_ms(took_ns, bench->rounds);
}

/* Fills *placement with where the rounds were done in the end. Negative: failed. */
static double run_ingest(struct bench *bench, const struct mr_finish *finish, enum mr_finish_where where,
                         int rounds, struct mr_placement *placement)
{
    int64_t took_ns[ROUNDS_MAX];
    struct mr_ingest_options options = {.size = sizeof options,
                                        .finish = finish,
                                        .batch = ROWS,
                                        .height = SIDE,
                                        .width = SIDE,
                                        .where = where};
    struct mr_device_batch *batch;
    struct mr_ingest *ingest = NULL;
    struct mr_error error;
    enum mr_code code = mr_ingest_create(&ingest, bench->device, &options, &error);
    for (int i = 0; i < rounds && code == MR_OK; i++) {
        int64_t begun_ns = now_ns(bench);
        code = mr_ingest_submit(ingest, &bench->batch, &batch, &error);
        if (code == MR_OK)
            code = mr_ingest_wait(batch, &error);
        took_ns[i] = now_ns(bench) - begun_ns;
        if (code == MR_OK)
            code = mr_ingest_release(batch, NULL, &error);
    }
    if (code == MR_OK)
        code = mr_ingest_placement(ingest, placement);
    else
        fprintf(stderr, "ingest_bench: %s\n", error.text);
    mr_ingest_destroy(ingest);
    return code == MR_OK ? median_ms(took_ns, rounds) : -1;
}

static void print_ms(double ms, double moved_mb)
{
    if (ms > 0)
        printf(" %10.2f %8.2f", ms, moved_mb / ms);
    else
        printf(" %10s %8s", "-", "-");
}

static void print_cost(const char *place, const struct mr_place_cost *cost)
{
    if (cost->batches > 0)
        printf("  %s: CPU %.2f + copy of %.1f MB %.2f + kernels %.2f ms", place, (double)cost->cpu_ns / 1e6,
               (double)cost->copied_bytes / 1e6, (double)cost->copy_ns / 1e6, (double)cost->kernel_ns / 1e6);
}

static bool run_case(struct bench *bench, const char *what, const struct mr_finish *finish)
{
    struct mr_placement placement = {.size = sizeof placement};
    double moved_mb = (double)VALUES * (double)(1 + mr_dtype_bytes(finish->dtype)) / 1e6;
    bool cuda = mr_device_backend(bench->device) == MR_BACKEND_CUDA;
    double client_ms = run_client(bench, finish);
    double here_ms = run_ingest(bench, finish, MR_FINISH_CLIENT, bench->rounds, &placement);
    double there_ms = cuda ? run_ingest(bench, finish, MR_FINISH_GPU, bench->rounds, &placement) : 0;
    double auto_ms = run_ingest(bench, finish, MR_FINISH_AUTO, AUTO_ROUNDS, &placement);
    printf("%-18s", what);
    print_ms(client_ms, moved_mb);
    print_ms(here_ms, moved_mb);
    print_ms(there_ms, moved_mb);
    printf("   %s", placement.reason);
    print_cost("client", &placement.client);
    print_cost("gpu", &placement.gpu);
    printf("\n");
    return here_ms > 0 && there_ms >= 0 && auto_ms > 0;
}

static bool set_up(struct bench *bench)
{
    bench->in = mr_device_slot_allocate(bench->device, VALUES);
    bench->labels = mr_device_slot_allocate(bench->device, ROWS * sizeof *bench->labels);
    bench->out = mr_device_slot_allocate(bench->device, VALUES * sizeof(float));
    if (!bench->in || !bench->labels || !bench->out)
        return false;
    memset(bench->out, 0, VALUES * sizeof(float));
    for (size_t i = 0; i < VALUES; i++)
        bench->in[i] = (uint8_t)(base_philox_word(1, 1, i / 8) >> i % 8 * 8);
    for (uint32_t i = 0; i < ROWS; i++) {
        bench->labels[i] = i % CLASSES;
        bench->valid[i] = 1;
        bench->row[i].position = i;
    }
    bench->fields[0] = (struct mr_field){.name = "image",
                                         .dtype = MR_U8,
                                         .rank = 4,
                                         .dims = {ROWS, SIDE, SIDE, 3},
                                         .data = bench->in,
                                         .bytes = VALUES};
    bench->fields[1] = (struct mr_field){.name = "label",
                                         .dtype = MR_I64,
                                         .rank = 1,
                                         .dims = {ROWS},
                                         .data = bench->labels,
                                         .bytes = ROWS * 8};
    bench->batch = (struct mr_batch){.rows = ROWS,
                                     .valid_rows = ROWS,
                                     .valid = bench->valid,
                                     .row = bench->row,
                                     .field_count = 2,
                                     .fields = bench->fields};
    return true;
}

static bool run_all(struct bench *bench)
{
    bool good = true;
    printf("%-18s %10s %8s %10s %8s %10s %8s   chosen (%s, %d rounds)\n", "", "client ms", "GB/s",
           "on CPU ms", "GB/s", "on GPU ms", "GB/s", mr_device_name(bench->device), bench->rounds);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && good; i++) {
        struct mr_finish finish = {.size = sizeof finish,
                                   .dtype = cases[i].dtype,
                                   .channels_first = cases[i].first,
                                   .normalizes = 1,
                                   .mean = {0.485f, 0.456f, 0.406f},
                                   .std = {0.229f, 0.224f, 0.225f},
                                   .erase_p = cases[i].erase_p,
                                   .erase_scale = {0.02, 0.33},
                                   .erase_ratio = {0.3, 3.3},
                                   .mixup_p = cases[i].mixup_p,
                                   .cutmix_p = cases[i].cutmix_p,
                                   .classes = CLASSES};
        good = run_case(bench, cases[i].what, &finish);
    }
    return good;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    bool cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    struct mr_device_options options = {.size = sizeof options,
                                        .backend = cuda ? MR_BACKEND_CUDA : MR_BACKEND_HOST};
    struct mr_error error;
    bench.rounds = argc > 2 ? atoi(argv[2]) : 9;
    if (argc > 3 || (argc > 1 && !cuda && strcmp(argv[1], "host") != 0) || bench.rounds < 1 ||
        bench.rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: ingest_bench [host|cuda [ROUNDS]]\n");
        return 2;
    }
    if (mr_device_open(&bench.device, &options, &error) != MR_OK) {
        fprintf(stderr, "ingest_bench: %s\n", error.text);
        return 1;
    }
    bool good = set_up(&bench) && run_all(&bench);
    mr_device_slot_free(bench.device, bench.in, VALUES);
    mr_device_slot_free(bench.device, bench.labels, ROWS * sizeof *bench.labels);
    mr_device_slot_free(bench.device, bench.out, VALUES * sizeof(float));
    mr_device_close(&bench.device);
    return good ? 0 : 1;
}

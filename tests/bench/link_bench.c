/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GB/s and CPU-s per GB of the data port's link beside a plain sendmsg/recv loop of the same sizes, over TCP loopback, in
 * one run: rounds of all modes take turns, so that what else the machine does hits them alike.
 *   link_bench [ROUNDS [FRAMES]]
 * Blocks of 8 rows (image u8[224,224,3], label, box, flip): 1.2 MB a DATA frame, received into one of 8 slots in turn.
 */
#include "base/address.h"
#include "base/clock.h"
#include "proto/wire/link.h"
#include "proto/wire/rows.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROWS = 8, SLOTS = 8, FIELDS = 4, IN_FLIGHT = 16, ROUNDS_MAX = 1000, WARM_UP = 2 };

enum mode { PLAIN, LINK, LINK_VERIFIED, MODES };
static const char *const mode_names[MODES] = {"plain sendmsg/recv", "link", "link, rows verified"};

static const struct scheduler_field fields[FIELDS] = {
    {.name = "image", .dtype = SCHEDULER_U8, .rank = 3, .dims = {224, 224, 3}, .max_bytes = 150528},
    {.name = "label", .dtype = SCHEDULER_I64, .max_bytes = 8},
    {.name = "box", .dtype = SCHEDULER_I32, .rank = 1, .dims = {4}, .max_bytes = 16},
    {.name = "flip", .dtype = SCHEDULER_U8, .max_bytes = 1},
};

/* One end of a round. */
struct side {
    enum mode mode;
    void (*work)(struct side *side);
    int fd, core;
    uint64_t frames, bytes; /* to do; payload of one */
    struct wire_layout layout;
    uint8_t *blocks[SLOTS]; /* sender: made; receiver: one slot each, runs as in a block */
    uint8_t *scratch[SLOTS];
    struct wire_link *link;
    struct wire_part_head head;
    struct wire_part_run runs[WIRE_PART_RUNS];
    int run_count;
    uint32_t verified; /* rows of the image of this frame */
    uint64_t done;
    double cpu_s;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void must(enum base_code code, const struct base_error *error)
{
    if (code == BASE_OK)
        return;
    fprintf(stderr, "%s\n", error->text);
    exit(1);
}

/* ---- blocks ---- */

static void make_block(struct side *side, int slot)
{
    uint8_t *block = side->blocks[slot];
    for (size_t i = 0; i < side->layout.size; i++)
        block[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint32_t row = 0; row < ROWS; row++) {
        struct wire_row made = {.item = row, .used_item = row};
        made.hash = wire_layout_hash_row(&side->layout, block, row, (uint64_t[SCHEDULER_PIPELINE_FIELDS]){0});
        wire_row_write(&made, block + side->layout.row_table + row * WIRE_ROW_BYTES);
    }
}

static void side_init(struct side *side, int core, bool sends)
{
    *side = (struct side){.core = core};
    wire_layout_init(&side->layout, fields, FIELDS, ROWS);
    for (int i = 0; i < SLOTS; i++) {
        side->blocks[i] = aligned_alloc(4096, (side->layout.size + 4095) / 4096 * 4096);
        side->scratch[i] = malloc(wire_part_head_bytes(FIELDS, ROWS));
        if (!side->blocks[i] || !side->scratch[i])
            die("memory");
        memset(side->blocks[i], 1, side->layout.size);
        if (sends)
            make_block(side, i);
    }
}

static int part_of(struct side *side, int slot, struct iovec iov[WIRE_PART_IOVECS])
{
    return wire_part_gather(&side->layout, side->blocks[slot], &(struct wire_cut){(1 << FIELDS) - 1, 0, ROWS},
                            side->scratch[slot], iov, &side->bytes);
}

/* ---- plain ---- */

static void plain_send(struct side *side)
{
    uint8_t header[WIRE_HEADER_BYTES] = {0};
    for (uint64_t i = 0; i < side->frames; i++) {
        struct iovec iov[2] = {{header, sizeof header}, {side->blocks[i % SLOTS], side->bytes}};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
        for (size_t left = sizeof header + side->bytes; left;) {
            ssize_t sent = sendmsg(side->fd, &message, MSG_NOSIGNAL);
            if (sent <= 0)
                die("sendmsg");
            left -= (size_t)sent;
            for (size_t skip = (size_t)sent; skip;) {
                struct iovec *first = message.msg_iov;
                size_t taken = skip < first->iov_len ? skip : first->iov_len;
                first->iov_base = (uint8_t *)first->iov_base + taken;
                first->iov_len -= taken;
                skip -= taken;
                if (!first->iov_len) {
                    message.msg_iov++;
                    message.msg_iovlen--;
                }
            }
        }
    }
}

static void plain_receive_all(int fd, uint8_t *to, size_t size)
{
    while (size) {
        ssize_t came = recv(fd, to, size, 0);
        if (came <= 0)
            die("recv");
        to += came;
        size -= (size_t)came;
    }
}

static void plain_receive(struct side *side)
{
    uint8_t header[WIRE_HEADER_BYTES];
    for (uint64_t i = 0; i < side->frames; i++) {
        plain_receive_all(side->fd, header, sizeof header);
        plain_receive_all(side->fd, side->blocks[i % SLOTS], side->bytes);
    }
}

/* ---- link ---- */

static void on_sent(void *context, uint64_t token, bool done)
{
    struct side *side = context;
    (void)token;
    side->done += done;
}

static void verify_field(const struct side *side, uint32_t row, int field)
{
    const uint8_t *values = side->blocks[side->done % SLOTS] + side->layout.values[field];
    if (!wire_part_verify_field(&side->head, row, field, values + row * fields[field].max_bytes,
                                fields[field].max_bytes)) {
        fprintf(stderr, "row %u field %d differs\n", row, field);
        exit(1);
    }
}

static enum base_code on_sink(void *context, const struct wire_header *header, uint64_t offset,
                              struct iovec *into, struct base_error *error)
{
    struct side *side = context;
    uint8_t *block = side->blocks[side->done % SLOTS], *head = side->scratch[side->done % SLOTS];
    size_t head_bytes = wire_part_head_bytes(FIELDS, ROWS);
    if (offset < head_bytes) {
        *into = (struct iovec){head, head_bytes};
        return BASE_OK;
    }
    if (offset == head_bytes) {
        side->head = wire_part_head_view(head, FIELDS, ROWS);
        must(wire_part_check(&side->head, fields, header->length, error), error);
        side->run_count = wire_part_runs(&side->head, fields, side->runs);
        side->verified = 0;
    }
    for (int i = 0; i < side->run_count; i++) {
        const struct wire_part_run *run = &side->runs[i];
        if (offset < run->offset || offset >= run->offset + run->size)
            continue;
        uint64_t at = offset - run->offset;
        *into = (struct iovec){block + side->layout.values[run->sent_index] + at, run->size - at};
        return BASE_OK;
    }
    return BASE_INTERNAL;
}

/* The image is the first run: its rows are hashed while they are warm. */
static enum base_code on_placed(void *context, const struct wire_header *header, uint64_t offset,
                                struct base_error *error)
{
    (void)header, (void)error;
    struct side *side = context;
    uint64_t head_bytes = wire_part_head_bytes(FIELDS, ROWS);
    while (side->mode == LINK_VERIFIED && side->verified < ROWS &&
           head_bytes + (side->verified + 1) * fields[0].max_bytes <= offset)
        verify_field(side, side->verified++, 0);
    return BASE_OK;
}

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    (void)payload, (void)error;
    struct side *side = context;
    if (header->type != WIRE_DATA)
        return BASE_OK;
    if (side->mode == LINK_VERIFIED) {
        for (; side->verified < ROWS; side->verified++)
            verify_field(side, side->verified, 0);
        for (uint32_t row = 0; row < ROWS; row++) {
            for (int field = 1; field < FIELDS; field++)
                verify_field(side, row, field);
            if (!wire_part_verify_row(&side->head, row))
                die("row hash");
        }
    }
    side->done++;
    return BASE_OK;
}

static const struct wire_link_events events = {
    .sink = on_sink, .placed = on_placed, .frame = on_frame, .sent = on_sent};

static void link_open(struct side *side)
{
    struct base_error error;
    struct wire_link_options options = {
        .fd = side->fd, .events = &events, .context = side, .queue_max_bytes = UINT64_C(1) << 30};
    must(wire_link_create(&side->link, &options, &error), &error);
}

static void wait_for(const struct side *side, short what)
{
    struct pollfd pollfd = {.fd = side->fd, .events = what};
    if (poll(&pollfd, 1, 10000) <= 0)
        die("poll");
}

static void link_send(struct side *side)
{
    struct base_error error;
    link_open(side);
    must(wire_link_send(side->link, &(struct wire_header){.type = WIRE_HELLO}, NULL, 0, &error), &error);
    for (uint64_t i = 0; side->done < side->frames;) {
        for (; i < side->frames && i - side->done < SLOTS; i++) {
            struct wire_header header = {.type = WIRE_DATA, .request = i + 1, .to = ROWS};
            struct iovec iov[WIRE_PART_IOVECS];
            int count = part_of(side, (int)(i % SLOTS), iov);
            must(wire_link_send_parts(side->link, &header, iov, count, i, &error), &error);
        }
        if (wire_link_wants_write(side->link)) {
            wait_for(side, POLLOUT);
            must(wire_link_write(side->link, &error), &error);
        }
    }
}

static void link_receive(struct side *side)
{
    struct base_error error;
    link_open(side);
    while (side->done < side->frames) {
        wait_for(side, POLLIN);
        must(wire_link_read(side->link, 4 << 20, &error), &error);
    }
}

/* ---- a round ---- */

static void *run_side(void *context)
{
    struct side *side = context;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(side->core, &cpus);
    (void)pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
    int64_t begin_ns = base_clock_thread_cpu_ns();
    side->work(side);
    side->cpu_s = (double)(base_clock_thread_cpu_ns() - begin_ns) * 1e-9;
    return NULL;
}

static void connect_tcp(int *a, int *b)
{
    struct base_error error;
    int listener;
    char text[BASE_ADDRESS_CHARS];
    must(base_address_listen("127.0.0.1:0", &listener, &error), &error);
    must(base_address_local(listener, text, sizeof text, &error), &error);
    must(base_address_dial(text, a, &error), &error);
    if (poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 5000) <= 0 ||
        (*b = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
        die("accept");
    if (poll(&(struct pollfd){.fd = *a, .events = POLLOUT}, 1, 5000) <= 0)
        die("connect");
    close(listener);
}

struct figure {
    double gb_per_s, cpu_s_per_gb;
};

static struct figure run_round(enum mode mode, struct side *sender, struct side *receiver, uint64_t frames)
{
    connect_tcp(&sender->fd, &receiver->fd);
    struct side *sides[] = {sender, receiver};
    sender->work = mode == PLAIN ? plain_send : link_send;
    receiver->work = mode == PLAIN ? plain_receive : link_receive;
    for (int i = 0; i < 2; i++) {
        sides[i]->mode = mode;
        sides[i]->frames = frames;
        sides[i]->done = 0;
        sides[i]->bytes = sender->bytes;
        if (mode == PLAIN) /* blocking: the plainest loop there is */
            (void)fcntl(sides[i]->fd, F_SETFL, 0);
    }
    pthread_t threads[2];
    int64_t begin_ns = base_clock_now_ns();
    if (pthread_create(&threads[0], NULL, run_side, sender) ||
        pthread_create(&threads[1], NULL, run_side, receiver))
        die("threads");
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    double wall_s = (double)(base_clock_now_ns() - begin_ns) * 1e-9;
    for (int i = 0; i < 2; i++) {
        if (mode == PLAIN)
            close(sides[i]->fd);
        else
            wire_link_destroy(sides[i]->link);
    }
    double gb = (double)(frames * sender->bytes) * 1e-9;
    return (struct figure){.gb_per_s = gb / wall_s, .cpu_s_per_gb = (sender->cpu_s + receiver->cpu_s) / gb};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static double rate[MODES][ROUNDS_MAX], cpu[MODES][ROUNDS_MAX];

/* Ratios are taken round by round: neighbours in time met the same load. */
static void print_mode(enum mode mode, int rounds)
{
    double rates[ROUNDS_MAX], cpus[ROUNDS_MAX], rate_ratio[ROUNDS_MAX], cpu_ratio[ROUNDS_MAX];
    for (int i = 0; i < rounds; i++) {
        rates[i] = rate[mode][i];
        cpus[i] = cpu[mode][i];
        rate_ratio[i] = rate[mode][i] / rate[PLAIN][i];
        cpu_ratio[i] = cpu[mode][i] / cpu[PLAIN][i];
    }
    double mid_rate = median(rates, rounds), mid_cpu = median(cpus, rounds);
    printf("%-20s %5.2f GB/s (best %5.2f) x%.2f   %.3f CPU-s/GB (best %.3f) x%.2f\n", mode_names[mode],
           mid_rate, rates[rounds - 1], median(rate_ratio, rounds), mid_cpu, cpus[0],
           median(cpu_ratio, rounds));
}

int main(int argc, char **argv)
{
    static struct side sender, receiver;
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    uint64_t frames = argc > 2 ? strtoull(argv[2], NULL, 10) : 400;
    if (rounds < 1 || rounds > ROUNDS_MAX || !frames) {
        fprintf(stderr, "usage: link_bench [ROUNDS 1..%d [FRAMES]]\n", ROUNDS_MAX);
        return 2;
    }
    side_init(&sender, 0, true);
    side_init(&receiver, 1, false);
    struct iovec iov[WIRE_PART_IOVECS];
    (void)part_of(&sender, 0, iov);
    for (int round = -WARM_UP; round < rounds; round++)
        for (enum mode mode = 0; mode < MODES; mode++) {
            struct figure figure = run_round(mode, &sender, &receiver, frames);
            if (round >= 0) {
                rate[mode][round] = figure.gb_per_s;
                cpu[mode][round] = figure.cpu_s_per_gb;
            }
        }
    printf("%d rounds of %llu frames of %llu bytes, TCP loopback, both ends' CPU; medians, and\nmedian "
           "ratios to the plain loop of the same round\n",
           rounds, (unsigned long long)frames, (unsigned long long)sender.bytes);
    for (enum mode mode = 0; mode < MODES; mode++)
        print_mode(mode, rounds);
    return 0;
}

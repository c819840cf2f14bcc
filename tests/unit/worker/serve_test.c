/* SPDX-License-Identifier: Apache-2.0 */
/* A worker process over loopback: what it serves, and that nobody's bad frames disturb anybody else. */
#include "tests/unit/worker/site.h"

#include "base/clock.h"
#include "proto/rpc/token.h"
#include "proto/wire/local.h"
#include "scheduler/order.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS = 40, BAD_ITEM = 13 };

static struct site site;
static const char *program, *script;
static struct peer witness; /* a connection that lives through all tests */

/* ---- what it serves ---- */

static struct wire_row row_of(const struct frame *frame, int fields_sent, uint32_t rows, uint32_t index)
{
    struct wire_part_head head = wire_part_head_view(frame->payload, fields_sent, rows);
    struct wire_row row;
    assert_int_equal(wire_row_read(head.row_table + index * WIRE_ROW_BYTES, &row, NULL), BASE_OK);
    return row;
}

static void check_part(const struct peer *peer, const struct frame *frame)
{
    uint32_t rows = (uint32_t)(frame->header.to - frame->header.from);
    struct wire_part_head head = wire_part_head_view(frame->payload, peer->fields_sent, rows);
    assert_int_equal(wire_part_check(&head, peer->opened.fields, frame->header.length, NULL), BASE_OK);
    struct wire_part_run runs[WIRE_PART_RUNS];
    int count = wire_part_runs(&head, peer->opened.fields, runs);
    for (uint32_t i = 0; i < rows; i++) {
        assert_true(wire_part_verify_row(&head, i));
        for (int r = 0; r < count; r++) {
            uint64_t size = runs[r].size / rows;
            assert_true(wire_part_verify_field(&head, i, runs[r].sent_index,
                                               frame->payload + runs[r].offset + i * size, size));
        }
    }
}

/* Gets block `block` on the witness, whatever else goes on. */
static struct frame witness_get(uint32_t epoch, uint64_t block)
{
    uint64_t request = peer_get(&witness, 0, epoch, block, 8);
    struct frame frame = peer_expect(&witness, WIRE_DATA);
    assert_true(frame.header.request == request);
    assert_int_equal(frame.header.block, block);
    check_part(&witness, &frame);
    return frame;
}

static void check_undisturbed(void)
{
    free(witness_get(0, 2).payload);
}

static void test_an_epoch_holds_every_item_once(void **state)
{
    (void)state;
    bool seen[ITEMS] = {false};
    int substituted = 0;
    struct scheduler_order *order;
    const struct scheduler_stream *stream = &site.streams[0];
    assert_int_equal(scheduler_order_create(&order, true, stream->seed, 0, ITEMS, NULL), BASE_OK);
    for (uint64_t block = 0; block < 5; block++) {
        struct frame frame = witness_get(0, block);
        for (uint32_t i = 0; i < 8; i++) {
            struct wire_row row = row_of(&frame, witness.fields_sent, 8, i);
            assert_int_equal(row.item, scheduler_order_item(order, block * 8 + i));
            assert_false(seen[row.item]);
            seen[row.item] = true;
            assert_int_equal(row.status == WIRE_ROW_SUBSTITUTED, row.item == BAD_ITEM);
            substituted += row.status == WIRE_ROW_SUBSTITUTED;
            if (row.item == BAD_ITEM) {
                assert_int_equal(row.occurrence, block * 8 + i + 1);
                assert_int_not_equal(row.used_item, BAD_ITEM);
                assert_int_not_equal(row.cause, 0);
            }
        }
        free(frame.payload);
    }
    scheduler_order_destroy(order);
    assert_int_equal(substituted, 1);
    assert_int_equal(site_log_lines(&site, "id=block_made"), 5);
    assert_int_equal(site_log_lines(&site, "id=bad_item"), 1);
    site_counter(&site, "millrace_worker_bad_items_total", "", 1);
    assert_int_equal(site_bad_items(&site), 1);
}

static void test_parts_and_chosen_fields(void **state)
{
    (void)state;
    static const char *const fields[] = {"label", NULL};
    struct frame whole = witness_get(0, 1), opened, part;
    struct peer peer = peer_greeted(&site);
    peer_open(&peer, &site, 0, fields);
    opened = peer_expect(&peer, WIRE_OPEN);
    struct wire_header header = {
        .type = WIRE_GET, .request = 9, .handle = 1, .block = 1, .from = 3, .to = 6, .time_ms = 10};
    uint8_t mark[12] = {0};
    peer_send(&peer, header, mark, sizeof mark);
    part = peer_expect(&peer, WIRE_DATA);
    assert_int_equal(part.header.from, 3);
    for (uint32_t i = 0; i < 3; i++) {
        struct wire_row a = row_of(&part, 1, 3, i), b = row_of(&whole, witness.fields_sent, 8, i + 3);
        assert_memory_equal(&a, &b, sizeof a);
    }
    assert_int_equal(part.header.length, wire_part_head_bytes(1, 3) + 3 * 8);
    free(whole.payload);
    free(opened.payload);
    free(part.payload);
    peer_close(&peer);
}

static void test_opens_that_are_refused(void **state)
{
    (void)state;
    static const char *const fields[] = {"image", "nonsense", NULL};
    struct peer peer = peer_greeted(&site);
    peer_open(&peer, &site, 0, fields);
    struct frame frame = peer_expect(&peer, WIRE_FAIL);
    assert_int_equal(frame.header.status, BASE_INVALID);
    assert_non_null(strstr((char *)frame.payload, "nonsense"));
    free(frame.payload);
    struct site other = site;
    other.streams[0].hash[0] ^= 1;
    peer_open(&peer, &other, 0, NULL);
    frame = peer_expect(&peer, WIRE_RETRY);
    assert_int_equal(frame.header.status, BASE_UNAVAILABLE);
    assert_int_equal(frame.header.time_ms, 200);
    free(frame.payload);
    peer_open(&peer, &site, 0, NULL); /* and the connection lives */
    free(peer_expect(&peer, WIRE_OPEN).payload);
    peer_close(&peer);
}

/* ---- rows in memory ---- */

/* Greeted with the feature; `name` is what LOCAL says. */
static struct peer peer_offered(uint8_t name[WIRE_LOCAL_NAME_BYTES])
{
    struct peer peer = peer_connect(&site);
    struct wire_hello theirs, hello = {.version_min = WIRE_VERSION_MIN,
                                       .version_max = WIRE_VERSION_MAX,
                                       .features = WIRE_FEATURE_LOCAL,
                                       .name = "test"};
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_hello_write(&hello, &payload);
    peer_send(&peer, (struct wire_header){.type = WIRE_HELLO}, payload.bytes, payload.size);
    base_buffer_fini(&payload);
    struct frame frame = peer_expect(&peer, WIRE_HELLO);
    assert_int_equal(wire_hello_read(frame.payload, frame.header.length, &theirs, NULL), BASE_OK);
    assert_int_equal(theirs.features, WIRE_FEATURE_LOCAL);
    free(frame.payload);
    frame = peer_expect(&peer, WIRE_LOCAL);
    assert_int_equal(frame.header.length, WIRE_LOCAL_NAME_BYTES);
    memcpy(name, frame.payload, WIRE_LOCAL_NAME_BYTES);
    free(frame.payload);
    return peer;
}

static int ask_descriptor(const uint8_t name[WIRE_LOCAL_NAME_BYTES])
{
    struct sockaddr_un address;
    socklen_t size = wire_local_address(name, &address);
    int got = -1, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, size), 0);
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    assert_int_equal(recvmsg(fd, &message, MSG_CMSG_CLOEXEC), 1);
    assert_non_null(CMSG_FIRSTHDR(&message));
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    assert_int_equal(recv(fd, &byte, 1, 0), 0); /* nothing more is said */
    close(fd);
    return got;
}

/* Its size; it can be read, and written by no way. */
static const uint8_t *map_descriptor(int fd, uint64_t *size)
{
    struct stat stat;
    char path[64];
    assert_int_equal(fstat(fd, &stat), 0);
    *size = (uint64_t)stat.st_size;
    int seals = fcntl(fd, F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | 0x10;
    assert_int_equal(seals & wanted, wanted);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        int any = i ? again : fd;
        assert_true(mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, any, 0) == MAP_FAILED);
        assert_int_equal(pwrite(any, "x", 1, 0), -1);
        assert_int_equal(ftruncate(any, 0), -1);
    }
    if (again >= 0)
        close(again);
    void *memory = mmap(NULL, *size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory, *size, PROT_READ | PROT_WRITE), -1);
    return memory;
}

static struct peer peer_mapped(const uint8_t **memory, uint64_t *size)
{
    uint8_t name[WIRE_LOCAL_NAME_BYTES];
    struct peer peer = peer_offered(name);
    int fd = ask_descriptor(name);
    *memory = map_descriptor(fd, size);
    close(fd);
    peer_send(&peer, (struct wire_header){.type = WIRE_LOCAL}, NULL, 0);
    peer_open(&peer, &site, 0, NULL);
    struct frame frame = peer_expect(&peer, WIRE_OPEN);
    assert_int_equal(wire_opened_read(frame.payload, frame.header.length, &peer.opened, NULL), BASE_OK);
    free(frame.payload);
    return peer;
}

static void test_rows_in_memory(void **state)
{
    (void)state;
    const uint8_t *memory;
    uint64_t size;
    struct peer peer = peer_mapped(&memory, &size);
    struct frame same = witness_get(0, 1);
    peer_get(&peer, 0, 0, 1, 8);
    struct frame frame = peer_expect(&peer, WIRE_DATA);
    struct wire_local_part part;
    assert_int_equal(frame.header.flags, WIRE_FLAG_LOCAL);
    assert_int_equal(wire_local_read(frame.payload, frame.header.length, size, &part, NULL), BASE_OK);
    assert_int_equal(part.length, same.header.length);
    assert_memory_equal(part.head, same.payload, part.head_bytes);
    const uint8_t *at = same.payload + part.head_bytes;
    for (int i = 0; i < part.run_count; at += part.runs[i++].size)
        assert_memory_equal(memory + part.runs[i].offset, at, part.runs[i].size);
    struct base_buffer done;
    base_buffer_init(&done);
    wire_done_write(part.loan, &done);
    struct wire_header header = {.type = WIRE_DONE, .request = frame.header.request};
    peer_send(&peer, header, done.bytes, done.size);
    peer_send(&peer, header, done.bytes, done.size); /* twice: it is nobody's loan any more */
    peer_expect_refusal(&peer, BASE_INVALID);
    base_buffer_fini(&done);
    free(frame.payload);
    free(same.payload);
    munmap((void *)(uintptr_t)memory, size);
    peer_close(&peer);
    site_counter(&site, "millrace_worker_lent_bytes_total", "", 1);
    check_undisturbed();
}

/* One frame for several loans; one that names the same twice is refused. */
static void test_loans_are_done_together(void **state)
{
    (void)state;
    const uint8_t *memory;
    uint64_t size;
    struct peer peer = peer_mapped(&memory, &size);
    for (int again = 0; again < 2; again++) {
        struct base_buffer done;
        base_buffer_init(&done);
        peer_get_together(&peer, 0, 3, 8);
        for (int i = 0; i < 3; i++) {
            struct frame frame = peer_expect(&peer, WIRE_DATA);
            wire_done_write(base_get_u64(frame.payload), &done);
            free(frame.payload);
        }
        if (again)
            wire_done_write(wire_done_loan(done.bytes, 1), &done);
        peer_send(&peer, (struct wire_header){.type = WIRE_DONE}, done.bytes, done.size);
        base_buffer_fini(&done);
    }
    peer_expect_refusal(&peer, BASE_INVALID);
    munmap((void *)(uintptr_t)memory, size);
    peer_close(&peer);
    check_undisturbed();
}

/* Each system call of the worker's is a segment of its own here. */
static void test_references_leave_together(void **state)
{
    (void)state;
    const uint8_t *memory;
    uint64_t size;
    struct peer peer = peer_mapped(&memory, &size);
    uint32_t before;
    for (int again = 0; again < 2; again++) { /* first they may have to be made */
        before = peer_segments(&peer);
        peer_get_together(&peer, 0, 3, 8);
        for (int i = 0; i < 3; i++)
            free(peer_expect(&peer, WIRE_DATA).payload);
    }
    assert_int_equal(peer_segments(&peer) - before, 1);
    munmap((void *)(uintptr_t)memory, size);
    peer_close(&peer);
    check_undisturbed();
}

static void test_memory_that_was_not_offered(void **state)
{
    (void)state;
    struct peer peer = peer_greeted(&site); /* without the feature */
    peer_send(&peer, (struct wire_header){.type = WIRE_LOCAL}, NULL, 0);
    peer_expect_refusal(&peer, BASE_INVALID);
    peer_close(&peer);
    peer = peer_greeted(&site);
    peer_send(&peer, (struct wire_header){.type = WIRE_DONE}, "\1\0\0\0\0\0\0\0", 8);
    peer_expect_refusal(&peer, BASE_INVALID);
    peer_close(&peer);
    check_undisturbed();
}

static void test_loans_that_are_not_done(void **state)
{
    (void)state;
    const uint8_t *memory;
    uint64_t size;
    struct frame frame;
    struct peer peer = peer_mapped(&memory, &size);
    for (uint64_t block = 0; block < 3; block++)
        peer_get(&peer, 0, 0, block, 8);
    for (uint64_t block = 0; block < 3; block++)
        free(peer_expect(&peer, WIRE_DATA).payload);
    assert_false(peer_receive(&peer, &frame)); /* given up, though its socket is empty */
    assert_true(site_log_lines(&site, "it copied nothing for 1 s") >= 1);
    munmap((void *)(uintptr_t)memory, size);
    peer_close(&peer);
    check_undisturbed();
}

static void test_moved_and_insist(void **state)
{
    (void)state;
    struct peer peer = peer_ready(&site, 0);
    site_set_plan(&site, 2, 1234);
    uint8_t mark[12] = {0};
    struct wire_header header = {
        .type = WIRE_GET, .request = 50, .handle = 1, .epoch = 100000, .block = 2, .to = 8, .plan = 2};
    peer_send(&peer, header, mark, sizeof mark);
    struct frame frame = peer_expect(&peer, WIRE_MOVED);
    uint64_t home;
    assert_int_equal(wire_moved_read(frame.payload, frame.header.length, &home, NULL), BASE_OK);
    assert_int_equal(home, 1234);
    assert_int_equal(frame.header.plan, 2);
    free(frame.payload);
    header.request = 51;
    header.flags = WIRE_FLAG_INSIST | WIRE_FLAG_DEATH;
    peer_send(&peer, header, mark, sizeof mark);
    free(peer_expect(&peer, WIRE_DATA).payload);
    assert_int_equal(site_log_lines(&site, "cause=death"), 1);
    site_set_plan(&site, 3, SITE_WORKER);
    peer_close(&peer);
}

/* A file that goes after indexing is unavailable, named, and never a bad sample. */
static void test_a_missing_file_is_unavailable(void **state)
{
    (void)state;
    char path[300], hidden[300];
    snprintf(path, sizeof path, "%s/data/cats/09.jpg",
             site.dir); /* item 9: block 1 of the sequential stream */
    snprintf(hidden, sizeof hidden, "%s/hidden", site.dir);
    assert_int_equal(rename(path, hidden), 0);
    struct peer peer = peer_ready(&site, 1);
    peer_get(&peer, 1, 0, 1, 8);
    struct frame frame = peer_expect(&peer, WIRE_RETRY);
    assert_int_equal(frame.header.status, BASE_UNAVAILABLE);
    assert_non_null(strstr((char *)frame.payload, "09.jpg"));
    assert_true(frame.header.time_ms > 0);
    free(frame.payload);
    assert_int_equal(rename(hidden, path), 0);
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    do {
        peer_get(&peer, 1, 0, 1, 8);
        assert_true(peer_receive(&peer, &frame));
        free(frame.payload);
        poll(NULL, 0, frame.header.type == WIRE_RETRY ? (int)frame.header.time_ms : 0);
        assert_true(base_clock_now_ns() < deadline_ns);
    } while (frame.header.type == WIRE_RETRY);
    assert_int_equal(frame.header.type, WIRE_DATA);
    assert_int_equal(site_bad_items(&site), 1);
    peer_close(&peer);
}

static void test_manifest_pages(void **state)
{
    (void)state;
    struct peer peer = peer_greeted(&site);
    uint8_t unknown[32] = {1}, hash[32];
    struct wire_header header = {.type = WIRE_PAGE, .request = 1};
    peer_send(&peer, header, unknown, 32);
    struct frame frame = peer_expect(&peer, WIRE_FAIL);
    assert_int_equal(frame.header.status, BASE_NOT_FOUND);
    assert_int_equal(frame.header.request, 1);
    free(frame.payload);
    header.block = MANIFEST_PAGE_TABLE;
    peer_send(&peer, header, site.version, 32);
    struct frame table = peer_expect(&peer, WIRE_PAGE);
    base_hash_sha256(table.payload, table.header.length, hash);
    header.block = 0;
    peer_send(&peer, header, site.version, 32);
    struct frame page = peer_expect(&peer, WIRE_PAGE);
    base_hash_sha256(page.payload, page.header.length, hash);
    assert_memory_equal(hash, table.payload, 32);
    header.block = 99;
    peer_send(&peer, header, site.version, 32);
    frame = peer_expect(&peer, WIRE_FAIL);
    free(frame.payload);
    free(table.payload);
    free(page.payload);
    peer_close(&peer);
}

/* ---- who breaks the rules ---- */

static void test_garbage(void **state)
{
    (void)state;
    uint8_t garbage[4096];
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (uint8_t)(i * 37 + 11);
    struct peer early = peer_connect(&site);
    peer_send_bytes(&early, garbage, sizeof garbage);
    peer_expect_refusal(&early, BASE_CORRUPT);
    struct peer late = peer_ready(&site, 0);
    peer_send_bytes(&late, garbage, sizeof garbage);
    peer_expect_refusal(&late, BASE_CORRUPT);
    check_undisturbed();
    site_counter(&site, "millrace_worker_connections_dropped_total", "cause=\"bad_frame\"", 2);
    assert_int_equal(site_log_lines(&site, "id=connection_dropped"), 2);
}

static void test_every_broken_bit_of_a_header(void **state)
{
    (void)state;
    struct wire_header header = {.type = WIRE_GET, .request = 77, .handle = 1, .to = 8, .length = 12};
    for (int bit = 0; bit < WIRE_HEADER_BYTES * 8; bit += 13) {
        uint8_t bytes[WIRE_HEADER_BYTES];
        wire_header_write(&header, bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        struct peer peer = peer_ready(&site, 0);
        peer_send_bytes(&peer, bytes, sizeof bytes);
        peer_expect_refusal(&peer, BASE_CORRUPT);
    }
    check_undisturbed();
}

static void test_oversize(void **state)
{
    (void)state;
    static const struct {
        uint8_t type;
        uint64_t length;
    } rows[] = {{WIRE_GET, WIRE_SMALL_MAX_BYTES + 1}, {WIRE_OPEN, UINT64_MAX}, {WIRE_PAGE, 1 << 20}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct peer peer = peer_ready(&site, 0);
        struct wire_header header = {
            .type = rows[i].type, .request = 7, .handle = 1, .to = 8, .length = rows[i].length};
        uint8_t bytes[WIRE_HEADER_BYTES];
        wire_header_write(&header, bytes);
        peer_send_bytes(&peer, bytes, sizeof bytes);
        peer_expect_refusal(&peer, BASE_TOO_LARGE);
    }
    check_undisturbed();
}

static void test_truncated(void **state)
{
    (void)state;
    int lost = site_log_lines(&site, "id=connection_lost");
    struct wire_header header = {.type = WIRE_GET, .request = 7, .handle = 1, .to = 8, .length = 12};
    uint8_t bytes[WIRE_HEADER_BYTES + 12] = {0};
    wire_header_write(&header, bytes);
    for (size_t size = 1; size < sizeof bytes; size += 15) {
        struct peer peer = peer_ready(&site, 0);
        peer_send_bytes(&peer, bytes, size);
        peer_close(&peer);
    }
    check_undisturbed();
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    while (site_log_lines(&site, "id=connection_lost") < lost + 5)
        assert_true(base_clock_now_ns() < deadline_ns);
}

static void test_payloads_of_the_wrong_size(void **state)
{
    (void)state;
    static const uint8_t types[] = {WIRE_GET, WIRE_MARK, WIRE_OPEN, WIRE_PAGE};
    uint8_t payload[40] = {0};
    for (size_t i = 0; i < sizeof types; i++) {
        struct peer peer = peer_ready(&site, 0);
        struct wire_header header = {.type = types[i], .request = 7, .handle = 1, .to = 8};
        peer_send(&peer, header, payload, 11);
        struct frame frame = peer_expect(&peer, WIRE_FAIL);
        free(frame.payload);
        assert_false(peer_receive(&peer, &frame));
        peer_close(&peer);
    }
    check_undisturbed();
}

static void test_out_of_order(void **state)
{
    (void)state;
    uint8_t mark[12] = {0};
    struct wire_header get = {.type = WIRE_GET, .request = 7, .handle = 1, .to = 8};
    struct peer rude = peer_connect(&site); /* without HELLO */
    peer_send(&rude, get, mark, sizeof mark);
    struct frame frame = peer_expect(&rude, WIRE_FAIL);
    free(frame.payload);
    assert_false(peer_receive(&rude, &frame));
    peer_close(&rude);
    struct peer twice = peer_greeted(&site); /* a second HELLO */
    peer_hello(&twice, 1, 1, "");
    frame = peer_expect(&twice, WIRE_FAIL);
    free(frame.payload);
    assert_false(peer_receive(&twice, &frame));
    peer_close(&twice);
    struct peer unopened = peer_greeted(&site); /* a handle that is not open: refused, and it may go on */
    peer_send(&unopened, get, mark, sizeof mark);
    frame = peer_expect(&unopened, WIRE_FAIL);
    assert_int_equal(frame.header.request, 7);
    free(frame.payload);
    peer_open(&unopened, &site, 0, NULL);
    free(peer_expect(&unopened, WIRE_OPEN).payload);
    peer_close(&unopened);
    struct peer worker_like = peer_greeted(&site); /* what only workers send */
    peer_send(&worker_like, (struct wire_header){.type = WIRE_MOVED, .request = 1}, mark, 8);
    peer_expect_refusal(&worker_like, BASE_INVALID);
    check_undisturbed();
}

static void test_wrong_versions(void **state)
{
    (void)state;
    struct peer future = peer_connect(&site);
    peer_hello(&future, 7, 9, "");
    peer_expect_refusal(&future, BASE_UNSUPPORTED);
    struct peer framed = peer_connect(&site);
    struct wire_header header = {.version = 9, .type = WIRE_HELLO};
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_header_write(&header, bytes);
    peer_send_bytes(&framed, bytes, sizeof bytes);
    peer_expect_refusal(&framed, BASE_UNSUPPORTED);
    struct peer critical = peer_ready(&site, 0);
    peer_send(&critical, (struct wire_header){.type = 99, .flags = WIRE_FLAG_CRITICAL, .request = 1}, NULL,
              0);
    peer_expect_refusal(&critical, BASE_UNSUPPORTED);
    struct peer tolerated = peer_ready(&site, 0); /* unknown and not critical: skipped */
    peer_send(&tolerated, (struct wire_header){.type = 99, .request = 1}, "abc", 3);
    peer_get(&tolerated, 0, 0, 1, 8);
    free(peer_expect(&tolerated, WIRE_DATA).payload);
    peer_close(&tolerated);
    check_undisturbed();
}

/* All at once for a block that is not made yet. */
static void test_too_many_requests(void **state)
{
    (void)state;
    struct peer greedy = peer_ready(&site, 0);
    uint8_t mark[12] = {0}, bytes[200][WIRE_HEADER_BYTES + 12] = {{0}};
    struct wire_header header = {.type = WIRE_GET, .handle = 1, .epoch = 50, .to = 1, .length = sizeof mark};
    for (uint64_t i = 0; i < 200; i++) {
        header.request = i + 1;
        wire_header_write(&header, bytes[i]);
    }
    peer_send_bytes(&greedy, bytes, sizeof bytes);
    struct frame frame;
    bool failed = false;
    while (!failed && peer_receive(&greedy, &frame)) {
        failed = frame.header.type == WIRE_FAIL && frame.header.status == BASE_TOO_LARGE;
        free(frame.payload);
    }
    assert_true(failed);
    peer_close(&greedy);
    check_undisturbed();
}

/* One that asks and does not read is closed after a second; others are served meanwhile. */
static void test_a_stalled_reader_pins_nothing(void **state)
{
    (void)state;
    struct peer stalled = peer_ready(&site, 0);
    for (uint32_t i = 0; i < 30; i++)
        peer_get(&stalled, 0, 200 + i / 5, i % 5, 8);
    for (uint32_t i = 0; i < 30; i++)
        free(witness_get(300 + i / 5, i % 5).payload);
    site_counter(&site, "millrace_worker_connections_dropped_total", "cause=\"stalled\"", 1);
    peer_close(&stalled);
    check_undisturbed();
}

/* As many as the socket takes, until the other side has enough of it. */
static bool flood(const struct peer *peer, const void *bytes, size_t size)
{
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    while (base_clock_now_ns() < deadline_ns) {
        ssize_t sent = send(peer->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN)
            return true;
        if (sent < 0)
            poll(NULL, 0, 5);
    }
    return false;
}

/* What asks and never reads is dropped: for pages after a few, for what makes no sense after some more. */
static void test_floods(void **state)
{
    (void)state;
    uint8_t bytes[WIRE_HEADER_BYTES + 32] = {0};
    struct peer pages = peer_greeted(&site);
    wire_header_write(&(struct wire_header){.type = WIRE_PAGE, .request = 1, .length = 32}, bytes);
    memcpy(bytes + WIRE_HEADER_BYTES, site.version, 32);
    assert_true(flood(&pages, bytes, sizeof bytes));
    peer_close(&pages);
    struct peer nonsense = peer_greeted(&site);
    wire_header_write(
        &(struct wire_header){.type = WIRE_GET, .request = 1, .handle = 9, .to = 8, .length = 12}, bytes);
    assert_true(flood(&nonsense, bytes, WIRE_HEADER_BYTES + 12));
    peer_close(&nonsense);
    struct peer opens = peer_greeted(&site);
    struct site other = site;
    other.streams[0].fingerprint[0] ^= 1;
    for (int i = 0; i < 64; i++) {
        peer_open(&opens, &other, 0, NULL);
        struct frame frame = peer_expect(&opens, WIRE_FAIL);
        assert_int_equal(frame.header.status, BASE_CONFLICT);
        free(frame.payload);
    }
    peer_open(&opens, &other, 0, NULL);
    peer_expect_refusal(&opens, BASE_INVALID);
    check_undisturbed();
}

static long cpu_ticks(pid_t pid)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    const char *rest = strrchr(text, ')');
    assert_non_null(rest);
    assert_int_equal(sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system),
                     2);
    return (long)(user + system);
}

/* A peer that is refused while much waits for it: nothing more leaves, and the loop does not spin over it. */
static void test_refused_with_a_full_queue(void **state)
{
    (void)state;
    struct peer peer = peer_ready(&site, 0);
    for (uint64_t block = 0; block < 5; block++)
        free(witness_get(0, block).payload); /* staged */
    for (uint32_t i = 0; i < 60; i++)
        peer_get(&peer, 0, 0, i % 5, 8);
    poll(NULL, 0, 200);
    uint8_t garbage[64];
    memset(garbage, 'g', sizeof garbage);
    peer_send_bytes(&peer, garbage, sizeof garbage);
    poll(NULL, 0, 50);
    uint8_t *trash = malloc(1 << 20); /* and now its socket has room */
    for (int i = 0; i < 20 && recv(peer.fd, trash, 1 << 20, MSG_DONTWAIT) > 0; i++)
        continue;
    free(trash);
    long before = cpu_ticks(site.worker);
    poll(NULL, 0, 300);
    long used = cpu_ticks(site.worker) - before;
    if (used > sysconf(_SC_CLK_TCK) / 12)
        fail_msg("%ld ticks in 300 ms of doing nothing", used);
    peer_close(&peer);
    check_undisturbed();
}

/* ---- tokens, and the end ---- */

static void test_tokens(void **state)
{
    (void)state;
    char secret[300], token[RPC_TOKEN_CHARS], other[RPC_TOKEN_CHARS];
    snprintf(secret, sizeof secret, "%s/secret", site.dir);
    FILE *file = fopen(secret, "we");
    fputs("a secret of twenty bytes\n", file);
    fclose(file);
    chmod(secret, 0600);
    struct site guarded = site;
    snprintf(guarded.server_address, sizeof guarded.server_address, "127.0.0.1:1"); /* nobody there */
    const char *const extra[] = {"--secret-file", secret, "--worker-id", "78", NULL};
    site_start_worker(&guarded, program, extra);
    int64_t now_s = base_clock_wall_ns() / BASE_NS_PER_S;
    assert_int_equal(rpc_token_issue("another secret, longer", "job", now_s, other, NULL), BASE_OK);
    const char *const bad[] = {"", "v1.job.99999999999.00", other};
    for (size_t i = 0; i < 3; i++) {
        struct peer peer = peer_connect(&guarded);
        peer_hello(&peer, 1, 1, bad[i]);
        peer_expect_refusal(&peer, BASE_REFUSED);
    }
    /* peer_open opens for "job": neither another's token does, nor a worker's */
    const char *const holders[] = {"job-2", "worker", "job"};
    for (size_t i = 0; i < 3; i++) {
        struct peer peer = peer_connect(&guarded);
        assert_int_equal(rpc_token_issue("a secret of twenty bytes", holders[i], now_s, token, NULL),
                         BASE_OK);
        peer_hello(&peer, 1, 1, token);
        free(peer_expect(&peer, WIRE_HELLO).payload);
        peer_open(&peer, &site, 0, NULL);
        if (i < 2)
            peer_expect_refusal(&peer, BASE_REFUSED);
        else { /* this worker has been told of no stream */
            free(peer_expect(&peer, WIRE_RETRY).payload);
            peer_close(&peer);
        }
    }
    int status = site_end_worker(&guarded, SIGTERM);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Drain: staged blocks are served, new ones are not made, and it ends by itself with 0. */
static void test_drain_on_sigterm(void **state)
{
    (void)state;
    struct peer peer = peer_ready(&site, 0);
    peer_get(&peer, 0, 0, 2, 8);
    free(peer_expect(&peer, WIRE_DATA).payload);
    kill(site.worker, SIGTERM);
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    while (site_log_lines(&site, "id=draining") == 0)
        assert_true(base_clock_now_ns() < deadline_ns);
    peer_get(&peer, 0, 0, 2, 8);
    free(peer_expect(&peer, WIRE_DATA).payload);
    peer_get(&peer, 0, 900, 2, 8);
    free(peer_expect(&peer, WIRE_RETRY).payload);
    int status = site_end_worker(&site, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    peer_close(&peer);
}

static int set_up(void **state)
{
    (void)state;
    site_start(&site, script);
    site_start_worker(&site, program, NULL);
    site_bring_up(&site);
    assert_int_equal(site.items, ITEMS);
    witness = peer_ready(&site, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    peer_close(&witness);
    site_stop(&site);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    program = argv[1];
    script = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_epoch_holds_every_item_once),
        cmocka_unit_test(test_parts_and_chosen_fields),
        cmocka_unit_test(test_opens_that_are_refused),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_every_broken_bit_of_a_header),
        cmocka_unit_test(test_oversize),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_payloads_of_the_wrong_size),
        cmocka_unit_test(test_out_of_order),
        cmocka_unit_test(test_wrong_versions),
        cmocka_unit_test(test_too_many_requests),
        cmocka_unit_test(test_a_stalled_reader_pins_nothing),
        cmocka_unit_test(test_floods),
        cmocka_unit_test(test_refused_with_a_full_queue),
        cmocka_unit_test(test_rows_in_memory),
        cmocka_unit_test(test_loans_are_done_together),
        cmocka_unit_test(test_references_leave_together),
        cmocka_unit_test(test_memory_that_was_not_offered),
        cmocka_unit_test(test_loans_that_are_not_done),
        cmocka_unit_test(test_moved_and_insist),
        cmocka_unit_test(test_a_missing_file_is_unavailable),
        cmocka_unit_test(test_manifest_pages),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_drain_on_sigterm),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

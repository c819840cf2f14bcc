/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outside bytes of the data port, without a socket: frames in random chunks through the receiver, small payloads through
 * their readers, DATA through the part's head, directory and lengths, as a client does.
 *
 * Input: one byte (1: each frame's magic and checksums are made right, so that the fuzzer gets past them; 6: how large chunks
  * are; all of it seeds them), then the stream. OPEN's answers in the stream change the fields that DATA is read with.
 * How the bytes are cut must change nothing: each stream runs twice, in random chunks and in the largest ones.
 */
#include "base/buffer.h"
#include "base/hash.h"
#include "proto/wire/local.h"
#include "proto/wire/messages.h"
#include "proto/wire/receive.h"
#include "proto/wire/rows.h"

#include <stdlib.h>
#include <string.h>

enum { PLACE_BYTES = 1 << 16, MAPPED_BYTES = 1 << 20 };

struct state {
    struct wire_receive receive;
    struct wire_opened opened;
    struct scheduler_field sent[WIRE_FIELDS_MAX];
    int sent_count;
    uint32_t chunks; /* random */
    int chunk_kind;
    uint8_t *head; /* of the DATA frame begun; exactly as large as it must be */
    struct wire_part_run runs[WIRE_PART_RUNS];
    int run_count;
    uint64_t digest;            /* of all that was seen */
    struct iovec given;         /* the sink being filled */
    uint8_t place[PLACE_BYTES]; /* values are dropped */
};

static uint32_t random_next(struct state *state)
{
    state->chunks = state->chunks * 1664525 + 1013904223;
    return state->chunks >> 8;
}

/* Byte by byte (FNV-1a), so that the sizes of sinks do not enter. */
static void digest(struct state *state, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++)
        state->digest = (state->digest ^ at[i]) * UINT64_C(0x100000001b3);
}

static void digest_given(struct state *state)
{
    digest(state, state->given.iov_base, state->given.iov_len);
    state->given = (struct iovec){0};
}

/* ---- small payloads ---- */

static void choose_sent(struct state *state)
{
    state->sent_count = 0;
    for (int i = 0; i < state->opened.field_count; i++)
        if (state->opened.wanted >> i & 1)
            state->sent[state->sent_count++] = state->opened.fields[i];
}

static void read_opened(struct state *state, const uint8_t *bytes, size_t size)
{
    struct wire_opened opened;
    if (wire_opened_read(bytes, size, &opened, NULL) != BASE_OK)
        return;
    struct base_buffer again;
    base_buffer_init(&again);
    wire_opened_write(&opened, &again);
    if (again.size != size || memcmp(again.bytes, bytes, size) != 0)
        abort(); /* what is accepted has one spelling */
    base_buffer_fini(&again);
    state->opened = opened;
    choose_sent(state);
}

/* Every run of what is accepted lies in the memory, and all of it together is as long as it says. */
static void read_done(const uint8_t *bytes, size_t size)
{
    uint32_t count;
    if (wire_done_read(size, &count, NULL) != BASE_OK)
        return;
    for (uint32_t i = 0; i < count; i++)
        (void)wire_done_loan(bytes, i);
}

static void read_local(const uint8_t *bytes, size_t size)
{
    struct wire_local_part part;
    if (wire_local_read(bytes, size, MAPPED_BYTES, &part, NULL) != BASE_OK)
        return;
    uint64_t sum = part.head_bytes;
    for (int i = 0; i < part.run_count; i++) {
        if (part.runs[i].offset > MAPPED_BYTES || part.runs[i].size > MAPPED_BYTES - part.runs[i].offset)
            abort();
        sum += part.runs[i].size;
    }
    if (sum != part.length || part.head + part.head_bytes != bytes + size)
        abort();
}

static void read_message(struct state *state, const struct wire_header *header, const uint8_t *payload,
                         size_t size)
{
    struct wire_hello hello;
    struct wire_open open;
    struct wire_mark mark;
    uint64_t worker;
    if (header->type == WIRE_HELLO)
        (void)wire_hello_read(payload, size, &hello, NULL);
    else if (header->type == WIRE_OPEN && header->flags & WIRE_FLAG_REPLY)
        read_opened(state, payload, size);
    else if (header->type == WIRE_OPEN)
        (void)wire_open_read(payload, size, &open, NULL);
    else if (header->type == WIRE_GET || header->type == WIRE_MARK)
        (void)wire_mark_read(payload, size, &mark, NULL);
    else if (header->type == WIRE_MOVED)
        (void)wire_moved_read(payload, size, &worker, NULL);
    else if (header->type == WIRE_DONE)
        read_done(payload, size);
    else if (header->type == WIRE_DATA)
        read_local(payload, size);
}

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    (void)error;
    struct state *state = context;
    if (!wire_type_known(header->type) || (payload == NULL) != wire_header_is_bulk(header))
        abort();
    digest_given(state);
    uint8_t header_bytes[WIRE_HEADER_BYTES];
    wire_header_write(header, header_bytes);
    digest(state, header_bytes, sizeof header_bytes);
    if (payload) { /* a copy of its own, so that a read past the end is seen */
        uint8_t *bytes = malloc(header->length ? header->length : 1);
        memcpy(bytes, payload, header->length);
        digest(state, bytes, header->length);
        read_message(state, header, bytes, header->length);
        free(bytes);
    }
    free(state->head);
    state->head = NULL;
    return BASE_OK;
}

/* ---- DATA ---- */

static enum base_code check_head(struct state *state, const struct wire_part_head *head, uint64_t length,
                                 struct base_error *error)
{
    enum base_code code = wire_part_check(head, state->sent, length, error);
    if (code != BASE_OK)
        return code;
    state->run_count = wire_part_runs(head, state->sent, state->runs);
    uint64_t at = wire_part_head_bytes(head->fields_sent, head->rows);
    for (int i = 0; i < state->run_count; i++) {
        if (state->runs[i].offset != at)
            abort();
        at += state->runs[i].size;
        if (state->runs[i].is_lengths)
            (void)wire_part_check_lengths(head, state->sent, state->runs[i].sent_index,
                                          state->place + PLACE_BYTES - state->runs[i].size, NULL);
    }
    if (at != length)
        abort();
    for (uint32_t row = 0; row < head->rows; row++) {
        (void)wire_part_verify_row(head, row);
        (void)wire_part_verify_field(head, row, head->fields_sent - 1, "", 0);
    }
    return BASE_OK;
}

static enum base_code choose_sink(struct state *state, const struct wire_header *header, uint64_t offset,
                                  struct iovec *into, struct base_error *error)
{
    uint64_t left = header->length - offset;
    if (header->type == WIRE_DATA) {
        uint32_t rows = (uint32_t)(header->to - header->from);
        size_t head_bytes = wire_part_head_bytes(state->sent_count, rows);
        if (rows > state->opened.block_rows || head_bytes > header->length)
            return base_error_set(error, BASE_CORRUPT, "DATA that was not asked for");
        if (!state->head)
            state->head = malloc(head_bytes);
        if (offset < head_bytes) {
            *into = (struct iovec){.iov_base = state->head + offset, .iov_len = head_bytes - offset};
            return BASE_OK;
        }
        struct wire_part_head head = wire_part_head_view(state->head, state->sent_count, rows);
        enum base_code code =
            offset == head_bytes ? check_head(state, &head, header->length, error) : BASE_OK;
        if (code != BASE_OK)
            return code;
    }
    uint64_t size = 1 + random_next(state) % PLACE_BYTES;
    *into = (struct iovec){.iov_base = state->place, .iov_len = size < left ? size : left};
    return BASE_OK;
}

static enum base_code on_sink(void *context, const struct wire_header *header, uint64_t offset,
                              struct iovec *into, struct base_error *error)
{
    struct state *state = context;
    digest_given(state);
    enum base_code code = choose_sink(state, header, offset, into, error);
    if (code == BASE_OK)
        state->given = *into;
    return code;
}

/* ---- the stream ---- */

static const struct wire_link_events events = {.sink = on_sink, .frame = on_frame};

/* Rights the checksum of a DATA frame's head, for the default fields. */
static void seal_part(uint8_t *frame, size_t size)
{
    uint16_t from = base_get_u16(frame + 28), to = base_get_u16(frame + 30);
    size_t head_bytes = wire_part_head_bytes(2, from < to ? (uint32_t)(to - from) : 0);
    if (frame[5] != WIRE_DATA || size < WIRE_HEADER_BYTES + head_bytes)
        return;
    uint8_t *end = frame + WIRE_HEADER_BYTES + head_bytes - sizeof(uint64_t);
    base_set_u64(end, base_hash_xxh3(frame + WIRE_HEADER_BYTES, head_bytes - sizeof(uint64_t)));
}

/* Rights magic and checksum of each header, following the lengths. */
static void seal(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; size - at >= WIRE_HEADER_BYTES;) {
        base_set_u32(bytes + at, WIRE_MAGIC);
        base_set_u64(bytes + at + 56, base_hash_xxh3(bytes + at, 56));
        seal_part(bytes + at, size - at);
        uint64_t length = base_get_u64(bytes + at + 40);
        at += WIRE_HEADER_BYTES;
        at += length < size - at ? length : size - at;
    }
}

static size_t put_chunk(struct state *state, const uint8_t *bytes, size_t size)
{
    struct iovec iov[2];
    int count = wire_receive_room(&state->receive, UINT64_MAX, iov);
    static const uint32_t chunk_max[] = {4, 16, 300, 8192};
    size_t most = state->chunk_kind < 0 ? size : 1 + random_next(state) % chunk_max[state->chunk_kind],
           put = 0;
    for (int i = 0; i < count; i++) {
        if (!iov[i].iov_len)
            abort();
        size_t part = size - put < iov[i].iov_len ? size - put : iov[i].iov_len;
        part = part < most - put ? part : most - put;
        memcpy(iov[i].iov_base, bytes + put, part);
        put += part;
    }
    return put;
}

static void default_fields(struct state *state)
{
    state->opened = (struct wire_opened){
        .requests_max = 1,
        .block_rows = 4,
        .field_count = 2,
        .fields = {{.name = "image", .dtype = SCHEDULER_U8, .rank = 1, .dims = {12}, .max_bytes = 12},
                   {.name = "ragged",
                    .dtype = SCHEDULER_F32,
                    .rank = 1,
                    .dims = {-1},
                    .ragged = true,
                    .max_bytes = 40}},
        .wanted = 3,
    };
    choose_sent(state);
}

static void run_stream(struct state *state, const uint8_t *bytes, size_t size)
{
    default_fields(state);
    state->run_count = 0;
    state->digest = UINT64_C(0xcbf29ce484222325);
    state->given = (struct iovec){0};
    wire_receive_init(&state->receive, &events, state);
    enum base_code code = BASE_OK;
    struct base_error error = {.code = BASE_OK};
    for (size_t at = 0; at < size && code == BASE_OK;) {
        size_t put = put_chunk(state, bytes + at, size - at);
        at += put;
        code = wire_receive_advance(&state->receive, put, &error);
    }
    if (code == BASE_OK)
        code = wire_receive_end(&state->receive, &error);
    if (code == BASE_INTERNAL || !error.text[0])
        abort();              /* each end has a cause that is not a bug */
    if (state->given.iov_len) /* a stream may end inside a sink */
        state->given.iov_len -= state->receive.place.iov_len;
    digest_given(state);
    digest(state, error.text, strlen(error.text));
    wire_receive_fini(&state->receive);
    free(state->head);
    state->head = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    static struct state state;
    uint8_t *stream = malloc(size);
    memcpy(stream, bytes + 1, size - 1);
    if (bytes[0] & 1)
        seal(stream, size - 1);
    state.chunks = bytes[0];
    state.chunk_kind = bytes[0] >> 1 & 3;
    run_stream(&state, stream, size - 1);
    uint64_t seen = state.digest;
    state.chunk_kind = -1;
    run_stream(&state, stream, size - 1);
    if (state.digest != seen)
        abort();
    free(stream);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/fake.h"

#include "base/address.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/philox.h"
#include "proto/manifest/manifest.h"
#include "proto/rpc/rpc.h"
#include "proto/schema/millrace.pb-c.h"
#include "proto/wire/header.h"
#include "proto/wire/messages.h"
#include "proto/wire/rows.h"
#include "scheduler/plan.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 256
#define POLL_MS 20
#define SLOW_MS 1500
#define SLOW_PARTS 30
#define HELD 256 /* calls that a hung server has */

struct connection {
    struct worker *worker;
    pthread_t thread;
    int fd;
    uint8_t wanted;
    bool hung; /* says nothing more */
};

struct worker {
    struct fake *fake;
    int number, listener;
    char address[64];
    pthread_t thread;
    atomic_bool stop;
    atomic_int manner, times, pages;
    struct connection connections[CONNECTIONS]; /* never used twice */
    int connection_count;
};

struct fake {
    struct fake_options options;
    struct scheduler_stream stream;
    struct scheduler_pipeline pipeline;
    char pipeline_text[SCHEDULER_PIPELINE_TEXT_BYTES], server_address[64];
    struct rpc_server *server;
    struct scheduler_plan plan;
    struct manifest *manifest;
    atomic_int closes, asks, server_manner;
    pthread_mutex_t mutex; /* of what is held, and of addresses told */
    struct rpc_call *held[HELD];
    int held_count;
    atomic_bool forgetful;
    _Atomic uint64_t closed_rows;
    struct worker workers[FAKE_WORKERS];
};

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "fake: %s failed\n", what);
    abort();
}

/* ---- rows ---- */

uint8_t fake_value(uint32_t epoch, uint64_t position, int field, uint64_t index)
{
    return (uint8_t)(position * 7 + epoch * 31 + (uint64_t)field * 101 + index * 13 + (index >> 8));
}

uint32_t fake_ragged_length(uint32_t epoch, uint64_t position)
{
    return (uint32_t)((position * 37 + epoch) % 97);
}

struct canvas { /* a block in the making */
    const struct fake *fake;
    struct wire_layout layout;
    uint8_t *block;
    uint32_t epoch;
    uint64_t ragged_at[SCHEDULER_PIPELINE_FIELDS];
};

static void make_row(struct canvas *canvas, uint64_t position, uint64_t item, uint32_t row)
{
    const struct fake *fake = canvas->fake;
    const struct wire_layout *layout = &canvas->layout;
    uint64_t *ragged_at = canvas->ragged_at;
    uint8_t *block = canvas->block;
    uint32_t epoch = canvas->epoch;
    for (int f = 0; f < layout->field_count; f++) {
        const struct scheduler_field *field = &layout->fields[f];
        uint64_t size = field->ragged ? fake_ragged_length(epoch, position) : field->max_bytes;
        uint8_t *values = block + layout->values[f] + (field->ragged ? ragged_at[f] : row * size);
        for (uint64_t i = 0; i < size; i++)
            values[i] = fake_value(epoch, position, f, i);
        if (strcmp(field->name, "label") == 0)
            base_set_u64(values, position % 1000);
        if (field->ragged)
            base_set_u32(block + layout->lengths[f] + row * 4, (uint32_t)size);
    }
    bool bad = fake->options.bad_status != 0 && position == fake->options.bad_position;
    struct wire_row made = {.item = item,
                            .used_item = item + bad,
                            .occurrence = bad ? position + 1 : 0,
                            .status = bad ? fake->options.bad_status : 0,
                            .cause = bad ? 22 : 0};
    made.hash = wire_layout_hash_row(layout, block, row, ragged_at);
    wire_row_write(&made, block + layout->row_table + row * WIRE_ROW_BYTES);
    for (int f = 0; f < layout->field_count; f++)
        ragged_at[f] += layout->fields[f].ragged ? fake_ragged_length(epoch, position) : 0;
}

/* ---- frames ---- */

static bool write_all(int fd, const void *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t sent = send(fd, (const uint8_t *)bytes + at, size - at, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += (size_t)sent;
    }
    return true;
}

static bool read_all(int fd, void *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t got = recv(fd, (uint8_t *)bytes + at, size - at, 0);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

static bool send_frame(int fd, struct wire_header header, const void *payload, size_t size)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    header.version = WIRE_VERSION_MAX;
    header.length = size;
    wire_header_write(&header, bytes);
    return write_all(fd, bytes, sizeof bytes) && write_all(fd, payload, size);
}

static bool send_buffer(int fd, struct wire_header header, struct base_buffer *payload)
{
    bool sent = send_frame(fd, header, payload->bytes, payload->size);
    base_buffer_fini(payload);
    return sent;
}

static bool reset(int fd)
{
    struct linger hard = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    return false;
}

/* The DATA payload of a part, in one piece. */
static uint8_t *make_part(const struct fake *fake, const struct wire_header *get, uint8_t wanted,
                          bool wrong_item, uint64_t *length)
{
    struct canvas canvas = {.fake = fake, .epoch = get->epoch};
    struct iovec iov[WIRE_PART_IOVECS];
    uint32_t rows = scheduler_stream_block_rows(&fake->stream, get->block);
    wire_layout_init(&canvas.layout, fake->stream.pipeline.fields, fake->stream.pipeline.field_count, rows);
    uint8_t *block = canvas.block = calloc(1, canvas.layout.size);
    uint8_t *scratch = malloc(wire_part_scratch_bytes(&canvas.layout, wanted, rows));
    must(block && scratch && get->to <= rows, "making a part");
    struct scheduler_order *order = fake_order(fake, get->epoch);
    for (uint32_t row = 0; row < rows; row++) {
        uint64_t position = get->block * fake->stream.pipeline.block_rows + row;
        uint64_t item = scheduler_order_item(order, position);
        if (wrong_item && row + 1 == get->to)
            item ^= 1;
        make_row(&canvas, position, item, row);
    }
    scheduler_order_destroy(order);
    int count = wire_part_gather(&canvas.layout, block, &(struct wire_cut){wanted, get->from, get->to},
                                 scratch, iov, length);
    uint8_t *payload = malloc(*length);
    must(payload != NULL, "making a part");
    for (int i = 0, at = 0; i < count; at += (int)iov[i++].iov_len)
        memcpy(payload + at, iov[i].iov_base, iov[i].iov_len);
    free(block);
    free(scratch);
    return payload;
}

static enum fake_manner manner_now(struct worker *worker)
{
    int times = atomic_load(&worker->times);
    if (times == 0)
        return FAKE_GOOD;
    if (times > 0)
        atomic_fetch_sub(&worker->times, 1);
    return (enum fake_manner)atomic_load(&worker->manner);
}

static bool answer_data(struct connection *connection, const struct wire_header *get, enum fake_manner manner)
{
    struct wire_header header = *get;
    uint8_t bytes[WIRE_HEADER_BYTES];
    uint64_t length;
    header.type = WIRE_DATA;
    header.flags = 0;
    if (manner == FAKE_WRONG_PART)
        header.block++;
    uint8_t *payload =
        make_part(connection->worker->fake, get, connection->wanted, manner == FAKE_WRONG_ITEM, &length);
    header.length = length;
    if (manner == FAKE_WRONG_HASH)
        payload[length - 1] ^= 1;
    wire_header_write(&header, bytes);
    connection->hung = manner == FAKE_HALF_HEADER || manner == FAKE_HALF_PART;
    bool sent =
        write_all(connection->fd, bytes, manner == FAKE_HALF_HEADER ? sizeof bytes / 2 : sizeof bytes);
    if (manner == FAKE_HALF_PART) {
        sent = sent && write_all(connection->fd, payload, length / 2);
    } else if (manner == FAKE_RESET_MID_PART) {
        sent = sent && write_all(connection->fd, payload, length / 2);
        usleep(2000); /* so that the half arrives before the reset takes it away */
        sent = reset(connection->fd);
    } else if (manner == FAKE_SLOW) {
        for (uint64_t part = 0; part < SLOW_PARTS && sent; part++) {
            uint64_t from = length * part / SLOW_PARTS, to = length * (part + 1) / SLOW_PARTS;
            usleep(SLOW_MS * 1000 / SLOW_PARTS);
            sent = write_all(connection->fd, payload + from, to - from);
        }
    } else if (manner != FAKE_HALF_HEADER) {
        sent = sent && write_all(connection->fd, payload, length);
    }
    free(payload);
    return sent;
}

static bool answer_get(struct connection *connection, const struct wire_header *get)
{
    static const char cause[] = "item 3: no such file";
    struct wire_header header = {.request = get->request, .handle = get->handle};
    enum fake_manner manner = manner_now(connection->worker);
    char garbage[512];
    switch (manner) {
    case FAKE_SILENT:
        return true;
    case FAKE_GARBAGE:
        memset(garbage, 'g', sizeof garbage);
        return write_all(connection->fd, garbage, sizeof garbage);
    case FAKE_FAIL_OK:
        header.type = WIRE_FAIL;
        return send_frame(connection->fd, header, cause, sizeof cause - 1);
    case FAKE_RETRY:
        header.type = WIRE_RETRY;
        header.status = BASE_UNAVAILABLE;
        header.time_ms = 20;
        return send_frame(connection->fd, header, cause, sizeof cause - 1);
    default:
        header.type = WIRE_WAIT;
        header.status = WIRE_WAIT_MAKING;
        return send_frame(connection->fd, header, NULL, 0) && answer_data(connection, get, manner);
    }
}

static bool answer_open(struct connection *connection, const struct wire_header *asked,
                        const uint8_t *payload)
{
    const struct scheduler_pipeline *made = &connection->worker->fake->stream.pipeline;
    struct wire_open open;
    struct wire_opened opened = {
        .requests_max = 4, .block_rows = made->block_rows, .field_count = made->field_count};
    struct wire_header header = {
        .type = WIRE_OPEN, .flags = WIRE_FLAG_REPLY, .request = asked->request, .handle = asked->handle};
    struct base_buffer out;
    must(wire_open_read(payload, asked->length, &open, NULL) == BASE_OK, "reading OPEN");
    must(memcmp(open.stream, connection->worker->fake->stream.hash, 32) == 0, "OPEN's stream");
    for (int f = 0; f < made->field_count; f++) {
        opened.fields[f] = made->fields[f];
        for (int i = 0; i < open.field_count; i++)
            if (strcmp(open.fields[i], made->fields[f].name) == 0)
                opened.wanted |= (uint8_t)(1u << f);
    }
    connection->wanted = opened.wanted;
    base_buffer_init(&out);
    wire_opened_write(&opened, &out);
    return send_buffer(connection->fd, header, &out);
}

static bool answer_hello(const struct connection *connection)
{
    static const char text[] = "not today";
    struct wire_hello hello = {.version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MAX};
    struct base_buffer out;
    base_buffer_init(&out);
    wire_hello_write(&hello, &out);
    bool sent =
        send_buffer(connection->fd, (struct wire_header){.type = WIRE_HELLO, .flags = WIRE_FLAG_REPLY}, &out);
    if (atomic_load(&connection->worker->manner) == FAKE_REFUSE &&
        manner_now(connection->worker) == FAKE_REFUSE)
        return send_frame(connection->fd, (struct wire_header){.type = WIRE_FAIL, .status = BASE_REFUSED},
                          text, sizeof text - 1) &&
               false;
    return sent;
}

static bool answer_page(const struct connection *connection, const struct wire_header *asked)
{
    struct manifest *manifest = connection->worker->fake->manifest;
    struct wire_header header = {
        .type = WIRE_PAGE, .flags = WIRE_FLAG_REPLY, .request = asked->request, .block = asked->block};
    const uint8_t *bytes;
    size_t size;
    atomic_fetch_add(&connection->worker->pages, 1);
    if (atomic_load(&connection->worker->manner) == FAKE_SILENT)
        return true;
    if (!manifest || atomic_load(&connection->worker->manner) == FAKE_RETRY) {
        header.type = WIRE_FAIL;
        header.flags = 0;
        header.status = BASE_NOT_FOUND;
        return send_frame(connection->fd, header, "no", 2);
    }
    must(manifest_page(manifest, asked->block, &bytes, &size, NULL) == BASE_OK, "a page");
    return send_frame(connection->fd, header, bytes, size);
}

static void *serve(void *context)
{
    struct connection *connection = context;
    uint8_t bytes[WIRE_HEADER_BYTES], payload[WIRE_SMALL_MAX_BYTES];
    struct wire_header header;
    bool going = true;
    while (going) {
        going = read_all(connection->fd, bytes, sizeof bytes) &&
                wire_header_read(bytes, &header, NULL) == BASE_OK && header.length <= sizeof payload &&
                read_all(connection->fd, payload, header.length);
        enum fake_manner manner = (enum fake_manner)atomic_load(&connection->worker->manner);
        connection->hung |= manner == FAKE_MUTE || (manner == FAKE_MUTE_OPEN && header.type != WIRE_HELLO);
        if (connection->hung)
            continue;
        if (going && header.type == WIRE_HELLO)
            going = answer_hello(connection);
        else if (going && header.type == WIRE_OPEN)
            going = answer_open(connection, &header, payload);
        else if (going && header.type == WIRE_GET)
            going = answer_get(connection, &header);
        else if (going && header.type == WIRE_PAGE)
            going = answer_page(connection, &header);
    }
    shutdown(connection->fd, SHUT_RDWR);
    return NULL;
}

/* ---- workers ---- */

static void *listen_loop(void *context)
{
    struct worker *worker = context;
    while (!atomic_load(&worker->stop)) {
        struct pollfd poll_for = {worker->listener, POLLIN, 0};
        if (poll(&poll_for, 1, POLL_MS) <= 0)
            continue;
        int fd = accept(worker->listener, NULL, NULL);
        if (fd < 0)
            continue;
        must(worker->connection_count < CONNECTIONS, "counting connections");
        struct connection *connection = &worker->connections[worker->connection_count++];
        *connection = (struct connection){.worker = worker, .fd = fd};
        must(pthread_create(&connection->thread, NULL, serve, connection) == 0, "a thread");
    }
    return NULL;
}

static void start_worker(struct worker *worker, const char *address)
{
    struct base_error error;
    must(base_address_listen(address, &worker->listener, &error) == BASE_OK, "listening");
    if (worker->address[0] == 0) /* it keeps its port over deaths */
        base_address_local(worker->listener, worker->address, sizeof worker->address, NULL);
    atomic_store(&worker->stop, false);
    must(pthread_create(&worker->thread, NULL, listen_loop, worker) == 0, "a thread");
}

static void stop_worker(struct worker *worker)
{
    if (worker->listener < 0)
        return;
    atomic_store(&worker->stop, true);
    pthread_join(worker->thread, NULL);
    close(worker->listener);
    worker->listener = -1;
    for (int i = 0; i < worker->connection_count; i++) {
        reset(worker->connections[i].fd);
        shutdown(worker->connections[i].fd, SHUT_RDWR);
        pthread_join(worker->connections[i].thread, NULL);
        close(worker->connections[i].fd);
    }
    worker->connection_count = 0;
}

void fake_set_manner(struct fake *fake, int worker, enum fake_manner manner, int times)
{
    atomic_store(&fake->workers[worker - 1].manner, manner);
    atomic_store(&fake->workers[worker - 1].times, times);
}

void fake_set_address(struct fake *fake, int worker, const char *address)
{
    pthread_mutex_lock(&fake->mutex);
    snprintf(fake->workers[worker - 1].address, sizeof fake->workers[worker - 1].address, "%s", address);
    pthread_mutex_unlock(&fake->mutex);
}

void fake_kill_worker(struct fake *fake, int worker)
{
    stop_worker(&fake->workers[worker - 1]);
}

void fake_revive_worker(struct fake *fake, int worker)
{
    char address[64];
    snprintf(address, sizeof address, "%s", fake->workers[worker - 1].address);
    start_worker(&fake->workers[worker - 1], address);
}

/* ---- the server ---- */

static ProtobufCBinaryData data_of(const void *bytes, size_t size)
{
    return (ProtobufCBinaryData){size, (uint8_t *)(uintptr_t)bytes};
}

/* A hung server: true, and the call is answered when the server stops. */
static bool hold(struct fake *fake, struct rpc_call *call)
{
    if (atomic_load(&fake->server_manner) != FAKE_SERVER_HUNG)
        return false;
    pthread_mutex_lock(&fake->mutex);
    must(fake->held_count < HELD, "holding a call");
    fake->held[fake->held_count++] = call;
    pthread_mutex_unlock(&fake->mutex);
    return true;
}

static void release_held(struct fake *fake)
{
    pthread_mutex_lock(&fake->mutex);
    while (fake->held_count > 0)
        rpc_fail(fake->held[--fake->held_count], BASE_CANCELLED, "too late");
    pthread_mutex_unlock(&fake->mutex);
}

static void answer(struct fake *fake, struct rpc_call *call)
{
    atomic_fetch_add(&fake->asks, 1);
    if (hold(fake, call))
        return;
    if (atomic_load(&fake->forgetful)) {
        rpc_fail(call, BASE_NOT_FOUND, "not known here");
        return;
    }
    Millrace__V1__JobAnswer answer = MILLRACE__V1__JOB_ANSWER__INIT;
    Millrace__V1__Stream stream = MILLRACE__V1__STREAM__INIT;
    Millrace__V1__Plan plan = MILLRACE__V1__PLAN__INIT;
    Millrace__V1__JobCursor start = MILLRACE__V1__JOB_CURSOR__INIT;
    Millrace__V1__Cursor at = MILLRACE__V1__CURSOR__INIT;
    Millrace__V1__Endpoint endpoints[FAKE_WORKERS], *list[FAKE_WORKERS];
    char texts[FAKE_WORKERS][300], *addresses[FAKE_WORKERS];
    uint8_t indices[2][2 * SCHEDULER_PLAN_SLOTS];
    char *classes[] = {(char *)(uintptr_t) "cat", (char *)(uintptr_t) "dog"};
    for (int w = 0; w < fake->options.workers; w++) {
        pthread_mutex_lock(&fake->mutex);
        snprintf(texts[w], sizeof texts[w], "%s%s", fake->options.host ? fake->options.host : "127.0.0.1",
                 strrchr(fake->workers[w].address, ':'));
        pthread_mutex_unlock(&fake->mutex);
        millrace__v1__endpoint__init(&endpoints[w]);
        addresses[w] = texts[w];
        endpoints[w].worker = (uint64_t)w + 1;
        endpoints[w].n_addresses = 1;
        endpoints[w].addresses = &addresses[w];
        list[w] = &endpoints[w];
    }
    for (int slot = 0; slot < SCHEDULER_PLAN_SLOTS; slot++) {
        base_set_u16(indices[0] + 2 * slot, (uint16_t)(fake->plan.primary[slot] - 1));
        base_set_u16(indices[1] + 2 * slot, (uint16_t)(fake->plan.secondary[slot] - 1)); /* nobody: 65535 */
    }
    plan.version = fake->plan.version;
    plan.n_workers = (size_t)fake->options.workers;
    plan.workers = list;
    plan.primary = data_of(indices[0], sizeof indices[0]);
    plan.secondary = data_of(indices[1], sizeof indices[1]);
    stream.dataset_version = data_of(fake->stream.dataset_version, 32);
    stream.items = fake->stream.items;
    stream.shuffle = fake->stream.shuffle;
    stream.seed = fake->stream.seed;
    stream.sample_text = (char *)(uintptr_t)fake->stream.sample_text;
    stream.fingerprint = data_of(fake->stream.fingerprint, 16);
    stream.hash = data_of(fake->stream.hash, 32);
    start.at = &at;
    answer.revision = 1;
    bool waits = atomic_load(&fake->server_manner) == FAKE_SERVER_WAITING;
    answer.state = (char *)(uintptr_t)(waits ? "waiting" : "running");
    answer.reason = (char *)(uintptr_t) "alone";
    answer.stream = &stream;
    answer.pipeline_text = (char *)(uintptr_t)fake->pipeline_text;
    answer.plan = &plan;
    answer.start = &start;
    answer.lease_ms = 10000;
    answer.n_classes = 2;
    answer.classes = classes;
    rpc_reply(call, &answer.base);
}

static void on_open(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Millrace__V1__JobOpen *open = (const Millrace__V1__JobOpen *)(const void *)request;
    struct fake *fake = context;
    if (strcmp(open->dataset, FAKE_DATASET) != 0)
        rpc_fail(call, BASE_NOT_FOUND, "no dataset %s", open->dataset);
    else
        answer(fake, call);
}

static void on_sync(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)request;
    answer(context, call);
}

static void on_close(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    Millrace__V1__Empty empty = MILLRACE__V1__EMPTY__INIT;
    struct fake *fake = context;
    const Millrace__V1__JobClose *closing = (const Millrace__V1__JobClose *)(const void *)request;
    if (hold(fake, call))
        return;
    if (closing->last)
        atomic_store(&fake->closed_rows, closing->last->rows);
    atomic_fetch_add(&fake->closes, 1);
    rpc_reply(call, &empty.base);
}

static void on_list(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)context;
    (void)request;
    rpc_fail(call, BASE_UNSUPPORTED, "not here");
}

static void start_server(struct fake *fake)
{
    static const rpc_handler handlers[] = {on_open, on_sync, on_close, on_list}; /* as the schema has them */
    struct rpc_service service = {&millrace__v1__jobs__descriptor, handlers, fake};
    struct rpc_server_options options = {.address = "127.0.0.1:0", .services = &service, .service_count = 1};
    struct base_error error;
    must(rpc_server_start(&fake->server, &options, &error) == BASE_OK, "the server");
    snprintf(fake->server_address, sizeof fake->server_address, "%s", rpc_server_address(fake->server));
}

void fake_set_server(struct fake *fake, enum fake_server_manner manner)
{
    atomic_store(&fake->server_manner, manner);
}

void fake_stop_server(struct fake *fake)
{
    fake_set_server(fake, FAKE_SERVER_GOOD);
    release_held(fake);
    if (fake->server)
        rpc_server_stop(&fake->server, 0);
}

/* ---- all of it ---- */

static void make_stream(struct fake *fake)
{
    struct base_error error;
    const struct fake_options *options = &fake->options;
    enum base_code code = scheduler_pipeline_parse(options->pipeline, &options->option,
                                                   options->option ? 1 : 0, &fake->pipeline, &error);
    must(code == BASE_OK, error.text);
    scheduler_pipeline_print(&fake->pipeline, NULL, fake->pipeline_text, sizeof fake->pipeline_text, NULL);
    scheduler_pipeline_print(&fake->pipeline, "sample", fake->stream.sample_text,
                             sizeof fake->stream.sample_text, NULL);
    if (options->manifest) {
        must(manifest_open(&fake->manifest, options->manifest, NULL, &error) == BASE_OK, "the manifest");
        memcpy(fake->stream.dataset_version, manifest_version(fake->manifest), 32);
    } else {
        memset(fake->stream.dataset_version, 9, 32);
    }
    fake->stream.items = options->items;
    fake->stream.shuffle = true;
    fake->stream.seed = 42;
    memset(fake->stream.fingerprint, 5, sizeof fake->stream.fingerprint);
    must(scheduler_stream_seal(&fake->stream, &error) == BASE_OK, "the stream");
}

struct fake *fake_start(const struct fake_options *options)
{
    struct fake *fake = calloc(1, sizeof *fake);
    struct scheduler_plan_worker weights[FAKE_WORKERS];
    struct scheduler_plan none = {0};
    must(fake != NULL, "memory");
    fake->options = *options;
    pthread_mutex_init(&fake->mutex, NULL);
    make_stream(fake);
    for (int w = 0; w < FAKE_WORKERS; w++)
        fake->workers[w] = (struct worker){.fake = fake, .number = w + 1, .listener = -1};
    for (int w = 0; w < options->workers; w++) {
        start_worker(&fake->workers[w], "127.0.0.1:0");
        weights[w] = (struct scheduler_plan_worker){.id = (uint64_t)w + 1, .weight = 1};
    }
    scheduler_plan_next(&none, weights, options->workers, NULL, &fake->plan);
    rpc_start();
    start_server(fake);
    return fake;
}

void fake_stop(struct fake *fake)
{
    fake_stop_server(fake);
    rpc_stop();
    for (int w = 0; w < FAKE_WORKERS; w++)
        stop_worker(&fake->workers[w]);
    manifest_close(&fake->manifest);
    pthread_mutex_destroy(&fake->mutex);
    free(fake);
}

const char *fake_server(const struct fake *fake)
{
    return fake->server_address;
}

struct scheduler_order *fake_order(const struct fake *fake, uint32_t epoch)
{
    const struct scheduler_stream *stream = &fake->stream;
    struct scheduler_order *order;
    must(scheduler_order_create(&order, stream->shuffle, stream->seed, epoch, stream->items, NULL) == BASE_OK,
         "an order");
    return order;
}

const struct scheduler_stream *fake_stream(const struct fake *fake)
{
    return &fake->stream;
}

int fake_closes(const struct fake *fake)
{
    return atomic_load(&fake->closes);
}

uint64_t fake_closed_rows(const struct fake *fake)
{
    return atomic_load(&fake->closed_rows);
}

void fake_forget_jobs(struct fake *fake)
{
    atomic_store(&fake->forgetful, true);
}

int fake_asks(const struct fake *fake)
{
    return atomic_load(&fake->asks);
}

int fake_pages(const struct fake *fake, int worker)
{
    return atomic_load(&fake->workers[worker - 1].pages);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/worker/site.h"

#include "base/address.h"
#include "base/clock.h"
#include "proto/rpc/rpc.h"
#include "proto/schema/millrace.pb-c.h"
#include "scheduler/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { CALLS = 16, COUNTERS = 96, SLOTS_BYTES = 2 * SCHEDULER_PLAN_SLOTS };

/* ---- the server ---- */

/* What the test wants, and what the worker said. Calls come on gRPC's thread and are answered by the test's. */
static struct {
    pthread_mutex_t lock;
    struct rpc_server *server;
    struct rpc_call *calls[CALLS];
    int call_count;
    bool index, hold, probe, serve;
    uint64_t revision, home;
    bool up_to_date;
    uint32_t plan_version;
    bool indexed, eligible, probed[SITE_STREAMS], served;
    uint8_t version[32], fingerprint[SITE_STREAMS][16];
    uint64_t items;
    int bad_items;
    struct {
        char name[64], labels[64];
        double value;
    } counters[COUNTERS];
    int counter_count;
    struct site *site;
} control = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_counters(const Millrace__V1__WorkerSync *sync)
{
    control.counter_count = 0;
    for (size_t i = 0; i < sync->n_counters && control.counter_count < COUNTERS; i++) {
        int at = control.counter_count++;
        snprintf(control.counters[at].name, sizeof control.counters[at].name, "%s", sync->counters[i]->name);
        snprintf(control.counters[at].labels, sizeof control.counters[at].labels, "%s",
                 sync->counters[i]->labels);
        control.counters[at].value = sync->counters[i]->value;
        if (strcmp(sync->counters[i]->name, "millrace_worker_streams") == 0)
            control.served = sync->counters[i]->value == SITE_STREAMS;
    }
}

static void on_sync(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)context;
    const Millrace__V1__WorkerSync *sync = (const Millrace__V1__WorkerSync *)request;
    pthread_mutex_lock(&control.lock);
    control.bad_items += (int)sync->n_bad_items;
    control.up_to_date = sync->seen_revision == control.revision;
    control.eligible = sync->n_datasets > 0 && sync->datasets[0]->eligible;
    for (size_t i = 0; i < sync->n_probes; i++)
        for (int s = 0; s < SITE_STREAMS; s++) {
            struct scheduler_stream bare = control.site->streams[s];
            memset(bare.fingerprint, 0, sizeof bare.fingerprint);
            scheduler_stream_seal(&bare, NULL);
            if (memcmp(sync->probes[i]->key.data, bare.hash, 32) != 0 ||
                sync->probes[i]->fingerprint.len != 16)
                continue;
            memcpy(control.fingerprint[s], sync->probes[i]->fingerprint.data, 16);
            control.probed[s] = true;
        }
    note_counters(sync);
    control.calls[control.call_count++ % CALLS] = call;
    pthread_mutex_unlock(&control.lock);
}

static void on_indexed(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)context;
    const Millrace__V1__IndexResult *result = (const Millrace__V1__IndexResult *)request;
    pthread_mutex_lock(&control.lock);
    if (result->code == BASE_OK && result->version.len == 32) {
        memcpy(control.version, result->version.data, 32);
        control.items = result->items;
        control.indexed = true;
    }
    pthread_mutex_unlock(&control.lock);
    Millrace__V1__Empty empty = MILLRACE__V1__EMPTY__INIT;
    rpc_reply(call, &empty.base);
}

static void on_other(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)context, (void)request;
    rpc_fail(call, BASE_UNSUPPORTED, "not played");
}

static void fill_stream(Millrace__V1__Stream *message, struct scheduler_stream *stream, bool bare)
{
    millrace__v1__stream__init(message);
    message->dataset_version = (ProtobufCBinaryData){32, stream->dataset_version};
    message->items = stream->items;
    message->shuffle = stream->shuffle;
    message->seed = stream->seed;
    message->sample_text = stream->sample_text;
    message->hash = (ProtobufCBinaryData){32, stream->hash};
    if (!bare)
        message->fingerprint = (ProtobufCBinaryData){16, stream->fingerprint};
}

static void answer(struct rpc_call *call)
{
    Millrace__V1__WorkerOrders orders = MILLRACE__V1__WORKER_ORDERS__INIT;
    Millrace__V1__IndexOrder index = MILLRACE__V1__INDEX_ORDER__INIT, *indexes = &index;
    Millrace__V1__DatasetOrder dataset = MILLRACE__V1__DATASET_ORDER__INIT, *datasets = &dataset;
    Millrace__V1__Stream streams[SITE_STREAMS], *probes[SITE_STREAMS];
    Millrace__V1__StreamOrder live[SITE_STREAMS], *lives[SITE_STREAMS];
    Millrace__V1__Plan plan = MILLRACE__V1__PLAN__INIT;
    Millrace__V1__Endpoint endpoint = MILLRACE__V1__ENDPOINT__INIT, *endpoints = &endpoint;
    static uint8_t slots[SLOTS_BYTES];
    static char pictures[300], name[] = "pictures", job_name[] = "job";
    Millrace__V1__LiveJob job = MILLRACE__V1__LIVE_JOB__INIT, *jobs = &job;
    snprintf(pictures, sizeof pictures, "%s/data", control.site->dir);
    job.job = job_name;
    job.weight = 1;
    index.order = 5;
    index.dataset = dataset.dataset = name;
    index.path = dataset.path = pictures;
    dataset.version = (ProtobufCBinaryData){32, control.version};
    dataset.items = control.items;
    endpoint.worker = control.home;
    plan.version = control.plan_version;
    plan.workers = &endpoints;
    plan.n_workers = 1;
    plan.primary = (ProtobufCBinaryData){SLOTS_BYTES, slots};
    plan.secondary = plan.primary;
    for (int s = 0; s < SITE_STREAMS; s++) {
        fill_stream(&streams[s], &control.site->streams[s], !control.serve);
        millrace__v1__stream_order__init(&live[s]);
        live[s].stream = probes[s] = &streams[s];
        live[s].plan = &plan;
        live[s].live = &jobs;
        live[s].n_live = 1;
        lives[s] = &live[s];
    }
    orders.revision = control.revision;
    orders.index = &indexes;
    orders.n_index = control.index;
    orders.datasets = &datasets;
    orders.n_datasets = control.hold;
    orders.probe = probes;
    orders.n_probe = control.probe ? SITE_STREAMS : 0;
    orders.streams = lives;
    orders.n_streams = control.serve ? SITE_STREAMS : 0;
    rpc_reply(call, &orders.base);
}

static void answer_all(void)
{
    pthread_mutex_lock(&control.lock);
    for (int i = 0; i < control.call_count; i++)
        answer(control.calls[i]);
    control.call_count = 0;
    pthread_mutex_unlock(&control.lock);
}

/* Answers syncs every 20 ms until *flag. */
static void serve_until(const bool *flag, const char *what)
{
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    for (bool set = false; !set;) {
        answer_all();
        poll(NULL, 0, 20);
        pthread_mutex_lock(&control.lock);
        set = *flag;
        pthread_mutex_unlock(&control.lock);
        if (base_clock_now_ns() > deadline_ns)
            fail_msg("no %s within %d ms", what, SITE_WAIT_MS);
    }
    answer_all();
}

void site_start(struct site *site, const char *script)
{
    char command[600];
    memset(site, 0, sizeof *site);
    snprintf(site->dir, sizeof site->dir, "/tmp/millrace-site-XXXXXX");
    assert_non_null(mkdtemp(site->dir));
    snprintf(command, sizeof command, "/usr/bin/python3 %s %s/data", script, site->dir);
    assert_int_equal(system(command), 0);
    rpc_start();
    control.site = site;
    control.home = SITE_WORKER;
    control.plan_version = 1;
    control.revision = 1;
    static const rpc_handler handlers[] = {on_sync, on_indexed, on_other, on_other};
    struct rpc_service service = {&millrace__v1__cluster__descriptor, handlers, NULL};
    struct rpc_server_options options = {.address = "127.0.0.1:0", .services = &service, .service_count = 1};
    assert_int_equal(rpc_server_start(&control.server, &options, NULL), BASE_OK);
    snprintf(site->server_address, sizeof site->server_address, "%s", rpc_server_address(control.server));
}

void site_start_worker(struct site *site, const char *program, const char *const *extra)
{
    char data[300], state[300], log[300], number[32], line[128] = "";
    int ready[2], count = 0;
    const char *arguments[40];
    snprintf(data, sizeof data, "%s/data", site->dir);
    snprintf(state, sizeof state, "%s/state", site->dir);
    snprintf(log, sizeof log, "%s/worker.log", site->dir);
    snprintf(number, sizeof number, "%d", SITE_WORKER);
    const char *given[] = {program,       "--server",    site->server_address,
                           "--data-root", data,          "--state",
                           state,         "--worker-id", number,
                           "--staging",   "24MB",        "--cpu-class",
                           "normal",      "--threads",   "2"};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        arguments[count++] = given[i];
    for (int i = 0; extra && extra[i]; i++)
        arguments[count++] = extra[i];
    arguments[count] = NULL;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    site->worker = vfork();
    if (site->worker == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
        dup2(ready[1], 1);
        dup2(fd, 2);
        execv(program, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    close(ready[1]);
    for (size_t at = 0; at < sizeof line - 1 && !strchr(line, '\n');) {
        struct pollfd polled = {ready[0], POLLIN, 0};
        assert_int_equal(poll(&polled, 1, SITE_WAIT_MS), 1);
        ssize_t came = read(ready[0], line + at, sizeof line - 1 - at);
        assert_true(came > 0);
        at += (size_t)came;
    }
    close(ready[0]);
    assert_int_equal(sscanf(line, "ready %63s", site->worker_address), 1);
}

static void describe(struct site *site, int s)
{
    struct scheduler_stream *stream = &site->streams[s];
    struct scheduler_pipeline pipeline;
    assert_int_equal(
        scheduler_pipeline_parse(s == 0 ? "imagenet_train" : "imagenet_eval", NULL, 0, &pipeline, NULL),
        BASE_OK);
    memcpy(stream->dataset_version, control.version, 32);
    stream->items = control.items;
    stream->shuffle = s == 0;
    stream->seed = s == 0 ? 4711 : 0;
    assert_int_equal(
        scheduler_pipeline_print(&pipeline, "sample", stream->sample_text, sizeof stream->sample_text, NULL),
        BASE_OK);
    assert_int_equal(scheduler_stream_seal(stream, NULL), BASE_OK);
}

static void want(bool *what)
{
    pthread_mutex_lock(&control.lock);
    *what = true;
    control.revision++;
    pthread_mutex_unlock(&control.lock);
}

void site_bring_up(struct site *site)
{
    want(&control.index);
    serve_until(&control.indexed, "index");
    memcpy(site->version, control.version, 32);
    site->items = control.items;
    control.index = false;
    want(&control.hold);
    serve_until(&control.eligible, "eligible dataset");
    for (int s = 0; s < SITE_STREAMS; s++)
        describe(site, s);
    want(&control.probe);
    for (int s = 0; s < SITE_STREAMS; s++)
        serve_until(&control.probed[s], "fingerprint");
    pthread_mutex_lock(&control.lock);
    for (int s = 0; s < SITE_STREAMS; s++) {
        memcpy(site->streams[s].fingerprint, control.fingerprint[s], 16);
        assert_int_equal(scheduler_stream_seal(&site->streams[s], NULL), BASE_OK);
    }
    control.probe = false;
    pthread_mutex_unlock(&control.lock);
    want(&control.serve);
    serve_until(&control.served, "served streams");
}

void site_set_plan(struct site *site, uint32_t version, uint64_t home)
{
    (void)site;
    pthread_mutex_lock(&control.lock);
    control.plan_version = version;
    control.home = home;
    control.revision++;
    control.up_to_date = false;
    pthread_mutex_unlock(&control.lock);
    serve_until(&control.up_to_date, "sync with the new plan");
}

double site_counter(struct site *site, const char *name, const char *labels, double least)
{
    (void)site;
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    for (double value = -1;; poll(NULL, 0, 20)) {
        answer_all();
        pthread_mutex_lock(&control.lock);
        for (int i = 0; i < control.counter_count; i++)
            if (strcmp(control.counters[i].name, name) == 0 &&
                strcmp(control.counters[i].labels, labels) == 0)
                value = control.counters[i].value;
        pthread_mutex_unlock(&control.lock);
        if (value >= least)
            return value;
        if (base_clock_now_ns() > deadline_ns)
            fail_msg("%s{%s} is %g, not %g", name, labels, value, least);
    }
}

int site_bad_items(struct site *site)
{
    (void)site;
    answer_all();
    pthread_mutex_lock(&control.lock);
    int count = control.bad_items;
    pthread_mutex_unlock(&control.lock);
    return count;
}

int site_log_lines(const struct site *site, const char *text)
{
    char path[300], line[4096];
    int count = 0;
    snprintf(path, sizeof path, "%s/worker.log", site->dir);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

int site_end_worker(struct site *site, int signal_number)
{
    int status;
    int64_t deadline_ns = base_clock_deadline_ns(SITE_WAIT_MS);
    if (signal_number)
        kill(site->worker, signal_number);
    while (waitpid(site->worker, &status, WNOHANG) == 0) {
        answer_all();
        poll(NULL, 0, 20);
        if (base_clock_now_ns() > deadline_ns)
            fail_msg("the worker does not end");
    }
    site->worker = 0;
    return status;
}

void site_stop(struct site *site)
{
    char command[300];
    if (site->worker > 0)
        site_end_worker(site, SIGKILL);
    pthread_mutex_lock(&control.lock);
    for (int i = 0; i < control.call_count; i++)
        answer(control.calls[i]);
    control.call_count = 0;
    pthread_mutex_unlock(&control.lock);
    rpc_server_stop(&control.server, 100);
    rpc_stop();
    snprintf(command, sizeof command, "rm -rf %s", site->dir);
    assert_int_equal(system(command), 0);
}

/* ---- peers ---- */

struct peer peer_connect(const struct site *site)
{
    struct peer peer = {.next_request = 1};
    assert_int_equal(base_address_dial(site->worker_address, &peer.fd, NULL), BASE_OK);
    struct pollfd polled = {peer.fd, POLLOUT, 0};
    assert_int_equal(poll(&polled, 1, SITE_WAIT_MS), 1);
    assert_int_equal(base_address_connected(peer.fd, site->worker_address, NULL), BASE_OK);
    return peer;
}

void peer_close(struct peer *peer)
{
    close(peer->fd);
}

void peer_send_bytes(struct peer *peer, const void *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        struct pollfd polled = {peer->fd, POLLOUT, 0};
        assert_int_equal(poll(&polled, 1, SITE_WAIT_MS), 1);
        ssize_t sent = send(peer->fd, (const char *)bytes + at, size - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return; /* the worker has closed already: what it said is read next */
        at += sent > 0 ? (size_t)sent : 0;
    }
}

void peer_send(struct peer *peer, struct wire_header header, const void *payload, size_t size)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    header.length = size;
    wire_header_write(&header, bytes);
    peer_send_bytes(peer, bytes, sizeof bytes);
    peer_send_bytes(peer, payload, size);
}

void peer_hello(struct peer *peer, uint16_t version_min, uint16_t version_max, const char *token)
{
    struct wire_hello hello = {.version_min = version_min, .version_max = version_max, .name = "test"};
    snprintf(hello.token, sizeof hello.token, "%s", token);
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_hello_write(&hello, &payload);
    peer_send(peer, (struct wire_header){.type = WIRE_HELLO}, payload.bytes, payload.size);
    base_buffer_fini(&payload);
}

static bool receive_bytes(struct peer *peer, void *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        struct pollfd polled = {peer->fd, POLLIN, 0};
        if (poll(&polled, 1, SITE_WAIT_MS) != 1)
            fail_msg("nothing came for %d ms", SITE_WAIT_MS);
        ssize_t came = recv(peer->fd, (char *)bytes + at, size - at, 0);
        if (came == 0 || (came < 0 && errno != EAGAIN))
            return false;
        at += came > 0 ? (size_t)came : 0;
    }
    return true;
}

bool peer_receive(struct peer *peer, struct frame *frame)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    do {
        if (!receive_bytes(peer, bytes, sizeof bytes))
            return false;
        assert_int_equal(wire_header_read(bytes, &frame->header, NULL), BASE_OK);
        frame->payload = calloc(1, frame->header.length + 1);
        if (receive_bytes(peer, frame->payload, frame->header.length) && frame->header.type != WIRE_WAIT &&
            frame->header.type != WIRE_PING)
            return true;
        free(frame->payload);
    } while (frame->header.type == WIRE_WAIT || frame->header.type == WIRE_PING);
    return false;
}

struct frame peer_expect(struct peer *peer, enum wire_type type)
{
    struct frame frame;
    if (!peer_receive(peer, &frame))
        fail_msg("the connection ended instead of a %s frame", wire_type_name((uint8_t)type));
    if (frame.header.type != type)
        fail_msg("a %s frame (%s) instead of %s", wire_type_name(frame.header.type), (char *)frame.payload,
                 wire_type_name((uint8_t)type));
    return frame;
}

void peer_expect_refusal(struct peer *peer, enum base_code code)
{
    struct frame frame = peer_expect(peer, WIRE_FAIL);
    assert_int_equal(frame.header.status, code);
    assert_true(frame.header.length > 0);
    free(frame.payload);
    assert_false(peer_receive(peer, &frame));
    peer_close(peer);
}

struct peer peer_greeted(const struct site *site)
{
    struct peer peer = peer_connect(site);
    peer_hello(&peer, WIRE_VERSION_MIN, WIRE_VERSION_MAX, "");
    free(peer_expect(&peer, WIRE_HELLO).payload);
    return peer;
}

void peer_open(struct peer *peer, const struct site *site, int stream, const char *const *fields)
{
    static const char *const all[] = {"image", "label", "box", "flip", NULL};
    struct wire_open open = {.job = "job"};
    memcpy(open.stream, site->streams[stream].hash, 32);
    memcpy(open.fingerprint, site->streams[stream].fingerprint, 16);
    for (fields = fields ? fields : all; fields[open.field_count]; open.field_count++)
        snprintf(open.fields[open.field_count], sizeof open.fields[0], "%s", fields[open.field_count]);
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_open_write(&open, &payload);
    struct wire_header header = {
        .type = WIRE_OPEN, .request = peer->next_request++, .handle = (uint32_t)stream + 1};
    peer_send(peer, header, payload.bytes, payload.size);
    base_buffer_fini(&payload);
    peer->fields_sent = open.field_count;
}

uint64_t peer_get(struct peer *peer, int stream, uint32_t epoch, uint64_t block, uint16_t to)
{
    struct wire_header header = {.type = WIRE_GET,
                                 .request = peer->next_request++,
                                 .handle = (uint32_t)stream + 1,
                                 .epoch = epoch,
                                 .block = block,
                                 .to = to,
                                 .time_ms = 1000};
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_mark_write(&(struct wire_mark){epoch, 0}, &payload);
    peer_send(peer, header, payload.bytes, payload.size);
    base_buffer_fini(&payload);
    return header.request;
}

void peer_get_together(struct peer *peer, int stream, uint64_t blocks, uint16_t to)
{
    assert_int_equal(setsockopt(peer->fd, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int)), 0);
    for (uint64_t block = 0; block < blocks; block++)
        peer_get(peer, stream, 0, block, to);
    assert_int_equal(setsockopt(peer->fd, IPPROTO_TCP, TCP_CORK, &(int){0}, sizeof(int)), 0);
}

uint32_t peer_segments(const struct peer *peer)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    assert_int_equal(getsockopt(peer->fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return info.tcpi_data_segs_in;
}

struct peer peer_ready(const struct site *site, int stream)
{
    struct peer peer = peer_greeted(site);
    peer_open(&peer, site, stream, NULL);
    struct frame frame = peer_expect(&peer, WIRE_OPEN);
    assert_int_equal(wire_opened_read(frame.payload, frame.header.length, &peer.opened, NULL), BASE_OK);
    free(frame.payload);
    return peer;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/worker/bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

void bed_start(struct bed *bed, int blocks, uint32_t making_max, uint32_t requests_max)
{
    bed_start_learning(bed, blocks, making_max, requests_max, 20);
}

void bed_start_learning(struct bed *bed, int blocks, uint32_t making_max, uint32_t requests_max,
                        uint32_t learn_again)
{
    memset(bed, 0, sizeof *bed);
    bed->now_ns = BED_MS;
    bed->next_request = 1;
    bed->together_cpu_ns = 10 * BED_MS;
    struct worker_core_options options = {.worker = BED_ME,
                                          .staging_bytes = (uint64_t)blocks * 8192,
                                          .making_max = making_max,
                                          .requests_max = requests_max,
                                          .learn_blocks = 2,
                                          .learn_again = learn_again};
    assert_int_equal(worker_core_create(&bed->core, &options, NULL), BASE_OK);
    for (int s = 0; s < BED_STREAMS; s++) {
        struct scheduler_stream *stream = &bed->streams[s];
        memset(stream->hash, 0xa0 + s, sizeof stream->hash);
        memset(stream->family, 0xb0 + s, sizeof stream->family);
        memset(stream->fingerprint, 0xf0 + s, sizeof stream->fingerprint);
        stream->items = 100;
        stream->uses_epoch = s != 1;
        stream->pipeline.block_rows = 8;
    }
}

void bed_relate(struct bed *bed)
{
    memcpy(bed->streams[1].family, bed->streams[0].family, sizeof bed->streams[1].family);
    bed->streams[1].uses_epoch = bed->streams[0].uses_epoch;
}

void bed_stop(struct bed *bed)
{
    assert_false(worker_core_broken(bed->core));
    assert_int_equal(bed->second_answers, 0);
    worker_core_destroy(bed->core);
}

void bed_add_stream(struct bed *bed, int stream)
{
    void *context = &bed->streams[stream];
    assert_int_equal(
        worker_core_stream_add(bed->core, bed->now_ns, &bed->streams[stream], 8192, &context, NULL), BASE_OK);
    assert_ptr_equal(context, &bed->streams[stream]);
}

void bed_plan(struct bed *bed, int stream, uint32_t version, uint32_t of)
{
    static struct scheduler_plan plan;
    plan.version = version;
    for (uint32_t i = 0; i < SCHEDULER_PLAN_SLOTS; i++)
        plan.primary[i] = i % of == 0 ? BED_ME : BED_OTHER;
    worker_core_stream_plan(bed->core, bed->now_ns, bed->streams[stream].hash, &plan);
}

static struct bed_request *new_request(struct bed *bed, uint64_t connection)
{
    assert_true(bed->next_request < BED_REQUESTS);
    struct bed_request *request = &bed->requests[bed->next_request++];
    *request = (struct bed_request){.state = BED_OPEN, .connection = connection};
    return request;
}

static uint64_t id_of(const struct bed *bed, const struct bed_request *request)
{
    return (uint64_t)(request - bed->requests);
}

static void note_answer(struct bed *bed, const struct worker_action *action)
{
    if (action->request == 0)
        return;
    struct bed_request *request = &bed->requests[action->request];
    assert_true(action->connection == request->connection);
    if (request->state == BED_ANSWERED || request->state == BED_CANCELLED)
        bed->second_answers++;
    if (request->state == BED_OPEN)
        request->state = BED_ANSWERED;
    request->answer = action->kind;
    request->action = *action;
    snprintf(request->text, sizeof request->text, "%s", action->text ? action->text : "");
}

static void note_make(struct bed *bed, const struct worker_action *action)
{
    assert_true(bed->making_count < BED_MAKING);
    for (int i = 0; i < bed->making_count; i++) { /* single flight, and no overlap in memory */
        const struct worker_action *other = &bed->making[i];
        assert_false(other->stream == action->stream && other->epoch == action->epoch &&
                     other->number == action->number);
        assert_true(other->offset + other->size_bytes <= action->offset ||
                    action->offset + action->size_bytes <= other->offset);
    }
    bed->making[bed->making_count++] = *action;
    bed->makes++;
    bed->makes_of[action->cause]++;
}

/* Siblings are in the list as if each had been said alone. */
static void note_makes(struct bed *bed, const struct worker_action *action)
{
    note_make(bed, action);
    for (int i = 0; i < action->sibling_count; i++) {
        const struct worker_sibling *sibling = &action->siblings[i];
        struct worker_action beside = *action;
        beside.stream = sibling->stream;
        beside.block = sibling->block;
        beside.offset = sibling->offset;
        beside.size_bytes = sibling->size_bytes;
        beside.cause = sibling->cause;
        beside.jobs = sibling->jobs;
        note_make(bed, &beside);
        bed->together++;
    }
}

static void note(struct bed *bed, const struct worker_action *action)
{
    switch (action->kind) {
    case WORKER_SEND_DATA:
        assert_true(bed->send_count < BED_SENDS);
        bed->sending[bed->send_count] = *action;
        bed->sends[bed->send_count++] = action->send;
        note_answer(bed, action);
        break;
    case WORKER_SEND_OPENED:
    case WORKER_SEND_MOVED:
    case WORKER_SEND_RETRY:
    case WORKER_SEND_FAIL:
        note_answer(bed, action);
        break;
    case WORKER_SEND_WAIT:
        bed->requests[action->request].waits++;
        bed->requests[action->request].wait_ms = action->time_ms;
        break;
    case WORKER_SEND_PING:
        bed->pings++;
        break;
    case WORKER_DROP:
        bed->dropped[bed->drops++ % 64] = action->connection;
        break;
    case WORKER_MAKE:
        note_makes(bed, action);
        break;
    case WORKER_HASTEN:
        bed->hastened++;
        break;
    case WORKER_WANT_SYNC:
        bed->syncs++;
        break;
    case WORKER_STREAM_GONE:
        bed->gone++;
        bed->went[action->stream == &bed->streams[1]] = true;
        break;
    }
}

void bed_take(struct bed *bed)
{
    struct worker_action action;
    while (worker_core_next(bed->core, &action))
        note(bed, &action);
}

uint64_t bed_connect(struct bed *bed)
{
    uint64_t connection = worker_core_connected(bed->core);
    assert_true(connection != 0);
    return connection;
}

struct bed_request *bed_open(struct bed *bed, uint64_t connection, int stream, const char *job, uint32_t rank)
{
    struct bed_request *request = new_request(bed, connection);
    struct worker_open open = {.request = id_of(bed, request),
                               .handle = (uint32_t)stream + 1,
                               .rank = rank,
                               .stream = bed->streams[stream].hash,
                               .fingerprint = bed->streams[stream].fingerprint,
                               .job = job};
    worker_core_open(bed->core, bed->now_ns, connection, &open);
    bed_take(bed);
    return request;
}

struct worker_get bed_get_of(struct bed *bed, int stream, uint32_t epoch, uint64_t block)
{
    (void)bed;
    return (struct worker_get){.block = block,
                               .handle = (uint32_t)stream + 1,
                               .epoch = epoch,
                               .slack_ms = 1000,
                               .to = block == 12 ? 4 : 8,
                               .mark_epoch = epoch,
                               .mark_position = block * 8};
}

struct bed_request *bed_send(struct bed *bed, uint64_t connection, struct worker_get get)
{
    struct bed_request *request = new_request(bed, connection);
    get.request = id_of(bed, request);
    worker_core_get(bed->core, bed->now_ns, connection, &get);
    bed_take(bed);
    return request;
}

struct bed_request *bed_get(struct bed *bed, uint64_t connection, int stream, uint32_t epoch, uint64_t block)
{
    return bed_send(bed, connection, bed_get_of(bed, stream, epoch, block));
}

void bed_made(struct bed *bed, int making, enum base_code code)
{
    uint64_t block = bed->making[making].block;
    int64_t cpu_ns = bed->making[making].sibling_count > 0 ? bed->together_cpu_ns : 8 * BED_MS;
    bed->making[making] = bed->making[--bed->making_count];
    struct worker_made made = {
        .code = code, .text = code ? "file a.jpg is gone" : NULL, .cost_ns = 8 * BED_MS, .cpu_ns = cpu_ns};
    worker_core_made(bed->core, bed->now_ns, block, &made);
    bed_take(bed);
}

void bed_make_all(struct bed *bed)
{
    while (bed->making_count > 0)
        bed_made(bed, 0, BASE_OK);
}

void bed_sent(struct bed *bed, int send, bool done)
{
    uint64_t token = bed->sends[send];
    bed->sends[send] = bed->sends[--bed->send_count];
    bed->sending[send] = bed->sending[bed->send_count];
    worker_core_sent(bed->core, bed->now_ns, token, done);
    bed_take(bed);
}

void bed_send_all(struct bed *bed)
{
    while (bed->send_count > 0)
        bed_sent(bed, 0, true);
}

uint64_t bed_block(const struct bed *bed, int stream, uint32_t epoch, uint64_t block, bool ours, uint32_t of)
{
    const struct scheduler_stream *s = &bed->streams[stream];
    while ((scheduler_plan_slot(s->family, s->uses_epoch, epoch, block) % of == 0) != ours)
        block++;
    assert_true(block < 13);
    return block;
}

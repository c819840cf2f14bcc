/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/trace.h"

#include "base/clock.h"
#include "base/philox.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS BASE_NS_PER_MS
#define STEPS_MAX 200
#define FAULTS_END_NS (20 * BASE_NS_PER_S)
#define PATIENCE_NS (60 * BASE_NS_PER_S) /* for one step once there are no faults */

/* What a worker (or the road to it) has under way. */
struct answer {
    enum { CONNECTED, OPENED, NOT_OPENED, WAIT, HEAD, BODY, MOVED, RETRY, FAIL, BREAK, PLAN } kind;
    int64_t at_ns;
    uint64_t connection; /* a break makes it void */
    int worker;
    struct client_action get;
    struct client_place place;
    bool scratch;
};

struct worker {
    uint64_t connection; /* 0: none */
    bool hung;           /* takes everything, says nothing */
    int64_t silent_until_ns;
    uint32_t cap, in_flight;
    uint64_t requests[256]; /* not answered for good */
};

struct trace {
    struct trace_options options;
    struct client_core *core;
    struct trace_result result;
    uint64_t draws, connections;
    int64_t now_ns, quiet_ns; /* since when without a step */
    struct answer *answers;
    int answer_count, answer_room;
    struct worker workers[TRACE_WORKERS];
    struct scheduler_plan plan;
    bool member[TRACE_WORKERS];
    uint64_t *memory; /* [slots][batch]: the position written there */
    uint8_t *ready;   /* [slots] */
    int idle;         /* wakes in a row at one instant */
    /* the oracle's */
    uint32_t epoch;
    uint64_t position, step, steps;
    struct client_step held[4];
    int held_count;
};

static uint64_t draw(struct trace *trace, uint64_t below)
{
    return base_philox_below(trace->options.seed, 77, trace->draws++, below);
}

static bool chance(struct trace *trace, int percent)
{
    return trace->options.faults && trace->now_ns < FAULTS_END_NS && draw(trace, 100) < (uint64_t)percent;
}

static void fail(struct trace *trace, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct trace *trace, const char *format, ...)
{
    va_list args;
    if (trace->result.failure[0] != 0)
        return;
    va_start(args, format);
    vsnprintf(trace->result.failure, sizeof trace->result.failure, format, args);
    va_end(args);
}

static void later(struct trace *trace, struct answer answer, uint64_t most_ms)
{
    answer.at_ns = trace->now_ns + (int64_t)(1 + draw(trace, most_ms * 1000)) * 1000;
    answer.connection = answer.worker >= 0 ? trace->workers[answer.worker].connection : 0;
    if (answer.worker >= 0 && answer.at_ns < trace->workers[answer.worker].silent_until_ns)
        answer.at_ns += trace->workers[answer.worker].silent_until_ns - trace->now_ns;
    if (trace->answer_count == trace->answer_room) {
        trace->answer_room = trace->answer_room ? 2 * trace->answer_room : 64;
        trace->answers = realloc(trace->answers, (size_t)trace->answer_room * sizeof *trace->answers);
    }
    trace->answers[trace->answer_count++] = answer;
}

/* ---- workers ---- */

static void forget(struct worker *worker, uint64_t request)
{
    for (uint32_t i = 0; i < worker->in_flight; i++)
        if (worker->requests[i] == request) {
            worker->requests[i] = worker->requests[--worker->in_flight];
            return;
        }
}

static void hang_up(struct trace *trace, int w)
{
    trace->workers[w].connection = 0;
    trace->workers[w].in_flight = 0;
    trace->workers[w].hung = false;
}

static void new_plan(struct trace *trace)
{
    struct scheduler_plan_worker workers[TRACE_WORKERS];
    uint64_t ids[TRACE_WORKERS];
    struct scheduler_plan next;
    int count = 0;
    for (int w = 0; w < trace->options.workers; w++)
        if (trace->member[w]) {
            ids[count] = (uint64_t)w + 1;
            workers[count++] =
                (struct scheduler_plan_worker){.id = (uint64_t)w + 1, .weight = 1 + (double)draw(trace, 4)};
        }
    scheduler_plan_next(&trace->plan, workers, count, NULL, &next);
    next.version = trace->plan.version + 1;
    trace->plan = next;
    if (client_core_plan(trace->core, trace->now_ns, &trace->plan, ids, count, NULL) != BASE_OK)
        fail(trace, "plan refused");
}

static void change_members(struct trace *trace)
{
    int w = (int)draw(trace, (uint64_t)trace->options.workers), count = 0;
    trace->member[w] = !trace->member[w];
    for (int i = 0; i < trace->options.workers; i++)
        count += trace->member[i];
    if (count == 0)
        trace->member[w] = true;
    new_plan(trace);
}

static void answer_get(struct trace *trace, int w, const struct client_action *get)
{
    struct answer answer = {.worker = w, .get = *get, .kind = HEAD};
    if (trace->workers[w].hung)
        return;
    if (trace->options.lags && draw(trace, 100) == 0)
        trace->workers[w].silent_until_ns = trace->now_ns + (int64_t)(200 + draw(trace, 1300)) * MS;
    if (!get->insist && chance(trace, 8))
        answer.kind = MOVED;
    else if (chance(trace, 8))
        answer.kind = RETRY;
    else if (chance(trace, 3))
        answer.kind = FAIL;
    else if (draw(trace, 3) == 0)
        answer.kind = WAIT;
    later(trace, answer, 30);
    if (chance(trace, 3)) /* said twice */
        later(trace, answer, 60);
}

static void on_get(struct trace *trace, const struct client_action *get)
{
    int w = (int)get->worker - 1;
    struct worker *worker = &trace->workers[w];
    if (get->request <= 0 || get->from >= get->to || get->to > trace->options.core.block_rows)
        fail(trace, "GET of rows %u to %u", get->from, get->to);
    if (trace->options.core.uses_epoch && get->mark.epoch == get->epoch &&
        get->mark.position > get->block * trace->options.core.block_rows + get->from)
        fail(trace, "low-water %llu behind what is asked for", (unsigned long long)get->mark.position);
    if (worker->connection == 0 || worker->cap == 0)
        fail(trace, "GET at worker %d, which is not open", w + 1);
    else if (worker->in_flight >= worker->cap)
        fail(trace, "%u requests in flight at worker %d", worker->in_flight + 1, w + 1);
    else
        worker->requests[worker->in_flight++] = get->request;
    answer_get(trace, w, get);
}

/* ---- actions ---- */

static void on_connect(struct trace *trace, int w)
{
    if (trace->workers[w].connection != 0)
        fail(trace, "worker %d dialled twice", w + 1);
    trace->workers[w].connection = ++trace->connections;
    trace->workers[w].cap = 0;
    trace->workers[w].hung = chance(trace, 10);
    if (!trace->workers[w].hung)
        later(trace, (struct answer){.kind = chance(trace, 10) ? BREAK : CONNECTED, .worker = w}, 20);
}

static void carry_out(struct trace *trace, const struct client_action *action)
{
    int w = (int)action->worker - 1;
    switch (action->kind) {
    case CLIENT_ACTION_CONNECT:
        on_connect(trace, w);
        break;
    case CLIENT_ACTION_OPEN:
        later(trace, (struct answer){.kind = chance(trace, 10) ? NOT_OPENED : OPENED, .worker = w}, 20);
        break;
    case CLIENT_ACTION_CLOSE:
        hang_up(trace, w);
        break;
    case CLIENT_ACTION_GET:
        on_get(trace, action);
        break;
    case CLIENT_ACTION_READY:
        if (trace->ready[action->slot]++)
            fail(trace, "slot %u ready twice", action->slot);
        break;
    case CLIENT_ACTION_CANCEL:
        forget(&trace->workers[w], action->request);
        trace->result.cancelled++;
        break;
    case CLIENT_ACTION_MARK:
    case CLIENT_ACTION_ERROR:
        break;
    case CLIENT_ACTION_FETCH_PLAN:
        fail(trace, "nobody has a newer plan");
    }
}

static void write_rows(struct trace *trace, const struct answer *answer, bool good)
{
    uint64_t first = answer->get.block * trace->options.core.block_rows;
    uint64_t *row = trace->memory + (size_t)answer->place.slot * trace->options.core.shape.batch;
    for (uint32_t i = answer->get.from; i < answer->get.to; i++)
        row[answer->place.row + i - answer->get.from] = good ? first + i : UINT64_MAX;
}

static void on_head(struct trace *trace, struct answer answer)
{
    const struct client_action *get = &answer.get;
    struct client_arrival arrival = {get->request, get->block, get->epoch, get->from, get->to};
    enum client_placed placed =
        client_core_place(trace->core, trace->now_ns, get->worker, &arrival, &answer.place);
    if (placed ==
        CLIENT_PLACED_WRONG) { /* a second head while the first is being read: not on one connection */
        hang_up(trace, answer.worker);
        client_core_lost(trace->core, trace->now_ns, get->worker, "wrong part");
        return;
    }
    answer.scratch = placed == CLIENT_PLACED_SCRATCH;
    if (!answer.scratch)
        write_rows(trace, &answer, false);
    answer.kind = BODY;
    later(trace, answer, 5);
}

static void on_body(struct trace *trace, const struct answer *answer)
{
    struct wire_row rows[256];
    if (answer->scratch)
        return;
    uint64_t first = answer->get.block * trace->options.core.block_rows;
    for (uint32_t i = answer->get.from; i < answer->get.to; i++)
        rows[i - answer->get.from] = (struct wire_row){.item = first + i, .hash = first + i};
    write_rows(trace, answer, true);
    forget(&trace->workers[answer->worker], answer->get.request);
    client_core_data(trace->core, trace->now_ns, answer->get.worker, answer->get.request, rows);
}

static void on_answer(struct trace *trace, const struct answer *answer)
{
    struct worker *worker = &trace->workers[answer->worker];
    uint64_t id = (uint64_t)answer->worker + 1;
    struct base_error cause;
    if (answer->connection != worker->connection || worker->hung)
        return;
    if (chance(trace, 1)) { /* resets and silences come at any moment */
        worker->hung = draw(trace, 2) == 0;
        if (!worker->hung) {
            hang_up(trace, answer->worker);
            client_core_lost(trace->core, trace->now_ns, id, "reset");
        }
        return;
    }
    base_error_set(&cause, BASE_UNAVAILABLE, "item of block %llu", (unsigned long long)answer->get.block);
    client_core_heard(trace->core, trace->now_ns, id, trace->plan.version);
    switch (answer->kind) {
    case CONNECTED:
        client_core_connected(trace->core, trace->now_ns, id);
        break;
    case OPENED:
        worker->cap = 1 + (uint32_t)draw(trace, 8);
        client_core_opened(trace->core, trace->now_ns, id, worker->cap);
        break;
    case NOT_OPENED:
        client_core_not_opened(trace->core, trace->now_ns, id, (uint32_t)draw(trace, 200));
        break;
    case WAIT:
        client_core_wait(trace->core, trace->now_ns, id, answer->get.request, true, 0);
        later(trace, (struct answer){.kind = HEAD, .worker = answer->worker, .get = answer->get}, 100);
        break;
    case HEAD:
        on_head(trace, *answer);
        break;
    case BODY:
        on_body(trace, answer);
        break;
    case MOVED:
        forget(worker, answer->get.request);
        client_core_moved(trace->core, trace->now_ns, id, answer->get.request,
                          1 + draw(trace, TRACE_WORKERS + 1));
        break;
    case RETRY:
        forget(worker, answer->get.request);
        client_core_retry(trace->core, trace->now_ns, id, answer->get.request, (uint32_t)draw(trace, 300),
                          &cause);
        break;
    case FAIL:
        forget(worker, answer->get.request);
        client_core_fail(trace->core, trace->now_ns, id, answer->get.request, &cause);
        break;
    case BREAK:
        hang_up(trace, answer->worker);
        client_core_lost(trace->core, trace->now_ns, id, "refused");
        break;
    case PLAN:
        break;
    }
}

/* ---- the trainer and the oracle: semantics.md, position by position ---- */

static uint64_t oracle_steps(const struct scheduler_shape *shape, uint64_t position)
{
    uint64_t steps = 0, whole = (uint64_t)shape->world * shape->batch;
    while (position + whole <= shape->positions) {
        position += whole;
        steps++;
    }
    return steps + (position < shape->positions && shape->tail != SCHEDULER_TAIL_DROP);
}

/* Row `row` of the rank's batch: its position; false: there is no such row. */
static bool oracle_row(const struct scheduler_shape *shape, uint64_t begin, uint32_t row, uint64_t *position,
                       bool *valid)
{
    uint64_t whole = (uint64_t)shape->world * shape->batch, left = shape->positions - begin;
    uint64_t have = left < whole ? left : whole, offset = 0;
    if (shape->tail == SCHEDULER_TAIL_EXACT) { /* split evenly, the first ranks one more */
        for (uint32_t rank = 0; rank < shape->rank; rank++)
            offset += have / shape->world + (rank < have % shape->world);
        *position = begin + offset + row;
        *valid = true;
        return row < have / shape->world + (shape->rank < have % shape->world);
    }
    offset = (uint64_t)shape->rank * shape->batch + row;
    *valid = offset < have;
    *position = begin + offset % have;
    return row < shape->batch;
}

static void check_step(struct trace *trace, const struct client_step *step)
{
    const struct scheduler_shape *shape = &trace->options.core.shape;
    uint64_t position, whole = (uint64_t)shape->world * shape->batch;
    uint32_t row = 0, valid_rows = 0;
    bool valid;
    if (trace->position == shape->positions || oracle_steps(shape, trace->position) == 0)
        trace->epoch++, trace->position = 0, trace->step = 0, trace->steps = 0;
    if (trace->steps == 0)
        trace->steps = oracle_steps(shape, trace->position);
    if (step->epoch != trace->epoch || step->step != trace->step || step->steps != trace->steps)
        fail(trace, "step %llu of %llu in epoch %u instead of %llu of %llu in %u",
             (unsigned long long)step->step, (unsigned long long)step->steps, step->epoch,
             (unsigned long long)trace->step, (unsigned long long)trace->steps, trace->epoch);
    for (; oracle_row(shape, trace->position, row, &position, &valid); row++) {
        uint32_t from = row < step->distinct ? row : row % step->distinct;
        uint64_t got = trace->memory[(size_t)step->slot * shape->batch + from];
        if (row >= step->batch.rows || got != position || step->rows[row].hash != position ||
            step->valid[row] != valid)
            fail(trace, "row %u of step %llu holds %llu instead of %llu", row, (unsigned long long)step->step,
                 (unsigned long long)got, (unsigned long long)position);
        valid_rows += valid;
    }
    if (row != step->batch.rows || valid_rows != step->valid_rows)
        fail(trace, "%u rows instead of %u", step->batch.rows, row);
    if (!trace->ready[step->slot] &&
        step->batch.rows > 0) /* one without rows may be taken the moment it begins */
        fail(trace, "taken and never said to be ready");
    trace->ready[step->slot] = 0;
    trace->position = trace->position + whole < shape->positions ? trace->position + whole : shape->positions;
    trace->step++;
    trace->result.steps++;
    trace->quiet_ns = trace->now_ns;
}

static void release_one(struct trace *trace)
{
    int which = (int)draw(trace, (uint64_t)trace->held_count);
    client_core_release(trace->core, trace->now_ns, trace->held[which].slot);
    trace->held[which] = trace->held[--trace->held_count];
}

static struct scheduler_cursor oracle_normal(const struct scheduler_shape *shape, struct scheduler_cursor at)
{
    return oracle_steps(shape, at.position) > 0 ? at : (struct scheduler_cursor){at.epoch + 1, 0};
}

/* Anywhere in the job's epochs, rather often to where it is, or to an epoch's beginning. */
static void go_elsewhere(struct trace *trace)
{
    const struct client_core_options *core = &trace->options.core;
    struct scheduler_cursor now = {trace->epoch, trace->position}, to = now;
    uint64_t kind = draw(trace, 4);
    if (kind > 0)
        to = (struct scheduler_cursor){core->first_epoch + (uint32_t)draw(trace, core->epochs),
                                       kind > 1 ? draw(trace, core->shape.positions + 1) : 0};
    if (client_core_seek(trace->core, trace->now_ns, core->first_epoch, to, NULL) != BASE_OK)
        fail(trace, "no seek to epoch %u position %llu", to.epoch, (unsigned long long)to.position);
    trace->result.seeks++;
    now = oracle_normal(&core->shape, now);
    to = oracle_normal(&core->shape, to);
    if (now.epoch == to.epoch && now.position == to.position)
        return;
    trace->epoch = to.epoch;
    trace->position = to.position;
    trace->step = trace->steps = 0;
    memset(trace->ready, 0, core->look_ahead + 1);
}

/* True: the end. */
static bool trainer(struct trace *trace)
{
    struct client_step step;
    struct base_error error;
    if (trace->held_count > 0 && draw(trace, 2) == 0)
        release_one(trace);
    if (trace->options.seeks && draw(trace, trace->now_ns < FAULTS_END_NS ? 6 : 30) == 0)
        go_elsewhere(trace);
    enum base_code code = client_core_take(trace->core, trace->now_ns, &step, &error);
    switch (code) {
    case BASE_OK:
        check_step(trace, &step);
        trace->held[trace->held_count++] = step;
        if (trace->held_count == 4)
            release_one(trace);
        break;
    case BASE_BUSY:
        if (trace->held_count != (int)trace->options.core.look_ahead)
            fail(trace, "busy with %d held", trace->held_count);
        release_one(trace);
        break;
    case BASE_CLOSED:
        return true;
    case BASE_TIMEOUT:
    case BASE_UNAVAILABLE:
        break;
    default:
        fail(trace, "take: %s", error.text);
    }
    return trace->result.steps >= STEPS_MAX;
}

/* ---- time ---- */

static void act(struct trace *trace)
{
    struct client_action action;
    int guard = 0;
    while (client_core_act(trace->core, trace->now_ns, &action)) {
        carry_out(trace, &action);
        if (++guard > 100000)
            fail(trace, "no end of actions");
        if (trace->result.failure[0] != 0)
            return;
    }
}

static int earliest(const struct trace *trace)
{
    int best = -1;
    for (int i = 0; i < trace->answer_count; i++)
        if (best < 0 || trace->answers[i].at_ns < trace->answers[best].at_ns)
            best = i;
    return best;
}

static bool step_time(struct trace *trace, int64_t *trainer_ns)
{
    int next = earliest(trace);
    int64_t at_ns = client_core_wake_ns(trace->core);
    if (*trainer_ns < at_ns)
        at_ns = *trainer_ns;
    if (next >= 0 && trace->answers[next].at_ns <= at_ns) {
        struct answer answer = trace->answers[next];
        trace->answers[next] = trace->answers[--trace->answer_count];
        trace->now_ns = answer.at_ns;
        on_answer(trace, &answer);
    } else {
        trace->idle = at_ns > trace->now_ns ? 0 : trace->idle + 1;
        trace->now_ns = at_ns > trace->now_ns ? at_ns : trace->now_ns;
        if (trace->idle > 1000)
            fail(trace, "woken again and again for nothing");
    }
    act(trace);
    if (trace->now_ns >= *trainer_ns) {
        *trainer_ns = trace->now_ns + (int64_t)(1 + draw(trace, 40)) * MS;
        if (trainer(trace))
            return false;
        if (chance(trace, 3))
            change_members(trace);
    }
    act(trace);
    int64_t quiet_from_ns = trace->quiet_ns > FAULTS_END_NS ? trace->quiet_ns : FAULTS_END_NS;
    if (trace->now_ns - quiet_from_ns > PATIENCE_NS)
        fail(trace, "no step for %lld ms", (long long)(PATIENCE_NS / MS));
    return trace->result.failure[0] == 0;
}

static void check_end(struct trace *trace)
{
    const struct client_core_options *core = &trace->options.core;
    struct client_core_stats stats = client_core_stats(trace->core);
    uint64_t want = oracle_steps(&core->shape, core->start.position);
    uint32_t epochs = core->epochs - (core->start.epoch - core->first_epoch);
    want += (epochs - 1) * oracle_steps(&core->shape, 0);
    if (trace->result.steps < STEPS_MAX && trace->result.steps != want && !trace->options.seeks)
        fail(trace, "%llu steps in all instead of %llu", (unsigned long long)trace->result.steps,
             (unsigned long long)want);
    if (trace->result.steps < STEPS_MAX && stats.in_flight != 0 && !trace->options.seeks)
        fail(trace, "%u requests leaked", stats.in_flight);
    trace->result.requests = stats.requests;
    trace->result.failovers = stats.failovers;
    trace->result.moved = stats.moved;
    trace->result.retries = stats.retries;
    trace->result.hedges = stats.hedges;
    trace->result.hedges_won = stats.hedges_won;
    if (stats.hedges * 50 > stats.requests)
        fail(trace, "%llu hedges are more than 2%% of %llu requests", (unsigned long long)stats.hedges,
             (unsigned long long)stats.requests);
}

struct trace_result trace_run(const struct trace_options *options)
{
    struct trace trace = {.options = *options};
    uint32_t slots = options->core.look_ahead + 1;
    struct base_error error;
    int64_t trainer_ns = 0;
    trace.epoch = options->core.start.epoch;
    trace.position = options->core.start.position;
    trace.memory = calloc((size_t)slots * options->core.shape.batch, sizeof *trace.memory);
    trace.ready = calloc(slots, 1);
    if (client_core_create(&trace.core, &options->core, &error) != BASE_OK) {
        fail(&trace, "create: %s", error.text);
        goto cleanup;
    }
    for (int w = 0; w < options->workers; w++)
        trace.member[w] = true;
    new_plan(&trace);
    act(&trace);
    while (step_time(&trace, &trainer_ns))
        ;
    if (trace.result.failure[0] == 0)
        check_end(&trace);
cleanup:
    client_core_destroy(trace.core);
    free(trace.memory);
    free(trace.ready);
    free(trace.answers);
    return trace.result;
}

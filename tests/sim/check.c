/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers such as "deaths 7" are of architecture.md's lists: "Life of a block", "Plan changes and deaths". */
#include "tests/sim/check.h"

#include <string.h>

#define PROGRESS_NS (60 * SIM_S) /* without faults each job takes a step in such a time */
#define LONGEST_NS (3600 * SIM_S)
#define UNANSWERED_NS (60 * SIM_S)
#define RECOVERY_NS (30 * SIM_S)

static unsigned long long u64(uint64_t value)
{
    return value;
}

static bool same(struct scheduler_cursor a, struct scheduler_cursor b)
{
    return a.epoch == b.epoch && a.position == b.position;
}

static uint64_t position_of(const struct sim_step *step, uint32_t row)
{
    return step->begin + (step->offset + row) % step->valid;
}

/* ---- what a trainer is given ---- */

/* Delivery, "joining": `now` from the first epoch, `next` at an epoch's beginning, `partial` anywhere. */
void sim_check_start(struct sim_rank *rank)
{
    const struct sim_job *job = rank->job;
    bool at_zero = rank->at.epoch == 0 && rank->at.position == 0;
    if ((job->join == SCHEDULER_JOIN_NOW && !at_zero) || rank->at.epoch != rank->first_epoch ||
        (job->join != SCHEDULER_JOIN_PARTIAL && rank->at.position != 0))
        sim_fail(rank->world, "start", "%s joins (%d) and begins at (%u, %llu) with first epoch %u",
                 job->name, (int)job->join, rank->at.epoch, u64(rank->at.position), rank->first_epoch);
}

/* A cursor is three integers, and resuming is arithmetic: at the saved place, with the bits that it was saved with. */
void sim_check_resume(struct sim_rank *rank, struct scheduler_cursor wanted)
{
    const struct sim_job *job = rank->job;
    if (!same(rank->at, wanted) || rank->first_epoch != job->first_epoch)
        sim_fail(rank->world, "resume", "%s resumes at (%u, %llu), not (%u, %llu)", job->name, rank->at.epoch,
                 u64(rank->at.position), wanted.epoch, u64(wanted.position));
    if (rank->stream != job->stream)
        sim_fail(rank->world, "resume", "%s resumes with the bits of build %d, not %d", job->name,
                 rank->stream->build, job->stream->build);
}

/* The ranks of a launch begin at one place, unless the server lost those before: then trainers refuse to begin. */
void sim_check_together(struct sim_rank *rank)
{
    const struct sim_launch *launch = rank->launch;
    if (sim_job_kept(launch))
        sim_fail(rank->world, "together", "%s/%u begins at (%u, %llu), the ranks before it at (%u, %llu)",
                 rank->job->name, rank->rank, rank->at.epoch, u64(rank->at.position), launch->start.epoch,
                 u64(launch->start.position));
}

/* Step s of an epoch holds positions [s*W*B, (s+1)*W*B), rank r the r-th run of B: `drop`, `pad`, `exact`. */
void sim_check_step(struct sim_rank *rank, const struct client_step *step, const struct sim_step *wanted)
{
    struct sim_world *world = rank->world;
    const struct sim_job *job = rank->job;
    uint64_t distinct = wanted->rows < wanted->valid ? wanted->rows : wanted->valid;
    if (rank->at.epoch - rank->first_epoch >= job->epochs)
        sim_fail(world, "step", "%s/%u is given a step after its last", job->name, rank->rank);
    if (step->epoch != rank->at.epoch || step->batch.step_begin != rank->at.position ||
        step->batch.rows != wanted->rows || step->distinct != distinct)
        sim_fail(world, "step", "%s/%u is given %u rows of the step at (%u, %llu), not %u of (%u, %llu)",
                 job->name, rank->rank, step->batch.rows, step->epoch, u64(step->batch.step_begin),
                 wanted->rows, rank->at.epoch, u64(rank->at.position));
}

static bool is_valid(const struct sim_job *job, const struct wire_row *row)
{
    return row->status == WIRE_ROW_OK ||
           (row->status == WIRE_ROW_SUBSTITUTED && job->on_bad != CLIENT_ON_BAD_SKIP);
}

/* "A batch is a pure function": each row, its hash and its bytes are what stream, epoch and position say. */
void sim_check_row(struct sim_rank *rank, const struct client_step *step, const struct sim_step *wanted,
                   uint32_t i)
{
    uint64_t position = position_of(wanted, i);
    const struct wire_row *got = &step->rows[i];
    struct wire_row row;
    sim_model_row(rank->stream, rank->at.epoch, position, &row);
    if (got->item != row.item || got->used_item != row.used_item || got->hash != row.hash ||
        got->occurrence != row.occurrence || got->status != row.status)
        sim_fail(rank->world, "row", "%s/%u: row %u of (%u, %llu) holds item %llu, not %llu", rank->job->name,
                 rank->rank, i, rank->at.epoch, u64(position), u64(got->item), u64(row.item));
    uint64_t payload = rank->payload[(uint64_t)step->slot * rank->launch->shape.batch + i];
    if (i < step->distinct && payload != sim_model_payload(rank->stream, &row))
        sim_fail(rank->world, "row", "%s/%u: the bytes of row %u of (%u, %llu) are another row's",
                 rank->job->name, rank->rank, i, rank->at.epoch, u64(position));
    bool counts = wanted->offset + i < wanted->valid;
    if ((step->valid[i] != 0) != (counts && is_valid(rank->job, &row)))
        sim_fail(rank->world, "row", "%s/%u: row %u of (%u, %llu) is %s", rank->job->name, rank->rank, i,
                 rank->at.epoch, u64(position), step->valid[i] ? "valid" : "not valid");
}

/* Each batch carries its own cursor. */
void sim_check_cursor(struct sim_rank *rank, const struct client_step *step)
{
    if (!same(step->after, rank->at) || !same(client_core_cursor(rank->core), rank->at))
        sim_fail(rank->world, "cursor", "%s/%u: the cursor is (%u, %llu), not (%u, %llu)", rank->job->name,
                 rank->rank, step->after.epoch, u64(step->after.position), rank->at.epoch,
                 u64(rank->at.position));
}

/* One epoch of one job delivers every position exactly once: no launch delivers one twice ... */
void sim_check_once(struct sim_rank *rank, uint64_t position, bool again)
{
    if (again)
        sim_fail(rank->world, "once", "%s/%u: position (%u, %llu) is delivered twice", rank->job->name,
                 rank->rank, rank->at.epoch, u64(position));
}

/* ... and behind no saved cursor is one that was not. */
void sim_check_saved(struct sim_job *job, uint64_t position, bool delivered)
{
    if (!delivered)
        sim_fail(job->world, "saved", "%s: position (%u, %llu) was not delivered before its cursor was saved",
                 job->name, job->saved.epoch, u64(position));
}

void sim_check_end(struct sim_rank *rank)
{
    if (rank->at.epoch - rank->first_epoch < rank->job->epochs)
        sim_fail(rank->world, "end", "%s/%u ends at (%u, %llu)", rank->job->name, rank->rank, rank->at.epoch,
                 u64(rank->at.position));
}

/* Every rank gets the same number of steps, always. */
void sim_check_even(struct sim_job *job)
{
    const struct sim_launch *launch = job->launch;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (launch->ranks[i]->taken != launch->whole)
            sim_fail(job->world, "even", "%s: rank %u had %llu steps, another %llu", job->name, i,
                     u64(launch->ranks[i]->taken), u64(launch->whole));
}

/* Generations fence off processes of an earlier start, and nobody else; a job reads one stream. */
void sim_check_fenced(struct sim_rank *rank)
{
    const struct sim_launch *launch = rank->launch;
    if (launch == rank->job->launch && !launch->over && sim_job_kept(launch))
        sim_fail(rank->world, "fenced", "%s/%u is fenced, though nobody has started its job anew",
                 rank->job->name, rank->rank);
}

void sim_check_refused(struct sim_job *job)
{
    if (job->refusals > 30)
        sim_fail(job->world, "refused", "%s is refused again and again", job->name);
}

static bool has_bad(const struct sim_rank *rank)
{
    struct sim_step step = sim_model_step(&rank->launch->shape, rank->rank, rank->at.position);
    for (uint32_t i = 0; i < step.rows && step.offset + i < step.valid; i++) {
        struct wire_row row;
        sim_model_row(rank->stream, rank->at.epoch, position_of(&step, i), &row);
        if (row.status != WIRE_ROW_OK)
            return true;
    }
    return false;
}

/* Of the steps that it reads ahead one has a row of the deleted file's block. */
static bool has_gone(const struct sim_rank *rank)
{
    const struct sim_candidate *candidate = rank->stream->candidate;
    uint32_t k = candidate->asked.pipeline.block_rows;
    struct scheduler_cursor at = rank->at;
    for (uint32_t ahead = 0; ahead < rank->job->look_ahead + 2; ahead++) {
        struct sim_step step = sim_model_step(&rank->launch->shape, rank->rank, at.position);
        for (uint32_t i = 0; i < step.rows; i++)
            if (position_of(&step, i) / k == candidate->gone_block)
                return true;
        at = sim_model_next(&rank->launch->shape, at);
    }
    return false;
}

/* Errors: a bad sample by its bytes alone and by the job's policy; a deleted file to those who read it; nothing is
 * unavailable for long once its faults are over. */
void sim_check_told(struct sim_rank *rank, enum base_code code, const struct base_error *error)
{
    const struct sim_world *world = rank->world;
    bool right = false;
    if (code == BASE_UNAVAILABLE)
        right = !world->calm || world->now_ns - world->faults_until_ns < RECOVERY_NS;
    else if (code == BASE_BAD_SAMPLE)
        right = rank->job->on_bad == CLIENT_ON_BAD_ERROR && has_bad(rank);
    else if (code == BASE_NOT_FOUND)
        right = has_gone(rank);
    if (!right)
        sim_fail(rank->world, "told", "%s/%u is told %s: %s", rank->job->name, rank->rank,
                 base_error_name(code), error->text);
}

/* ---- what a client does ---- */

/* One connection to each worker, and nothing is sent without it. */
void sim_check_connection(struct sim_rank *rank, const struct client_action *action)
{
    uint64_t worker = action->worker;
    if (action->kind >= CLIENT_ACTION_READY)
        return;
    if (worker == 0 || worker > (uint64_t)rank->world->worker_count) {
        sim_fail(rank->world, "connection", "%s/%u wants worker %llu", rank->job->name, rank->rank,
                 u64(worker));
        return;
    }
    bool open = rank->to[worker - 1];
    if (action->kind == CLIENT_ACTION_CONNECT && open)
        sim_fail(rank->world, "connection", "%s/%u dials worker %llu twice", rank->job->name, rank->rank,
                 u64(worker));
    if (action->kind != CLIENT_ACTION_CONNECT && action->kind != CLIENT_ACTION_CLOSE && !open)
        sim_fail(rank->world, "connection", "%s/%u sends to worker %llu without a connection",
                 rank->job->name, rank->rank, u64(worker));
}

/* The least position of the step at `at` that is not here; UINT64_MAX: all are. */
static uint64_t least_missing(const struct sim_rank *rank, struct scheduler_cursor at)
{
    const struct sim_shape *shape = &rank->launch->shape;
    struct sim_step step = sim_model_step(shape, rank->rank, at.position);
    const uint8_t *received = rank->received + (size_t)(at.epoch - rank->first_epoch) * shape->items;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < step.rows && i < step.valid; i++)
        if (!received[position_of(&step, i)] && position_of(&step, i) < least)
            least = position_of(&step, i);
    return least;
}

/* Life 5: the low-water cursor is the first position that a rank has not received, never one behind it. */
void sim_check_mark(struct sim_rank *rank, struct scheduler_cursor mark)
{
    if (!rank->stream->identity.uses_epoch)
        return; /* parts do not say of which epoch they are */
    while (rank->low.epoch - rank->first_epoch < rank->job->epochs) {
        uint64_t least = least_missing(rank, rank->low);
        if (least == UINT64_MAX) {
            rank->low = sim_model_next(&rank->launch->shape, rank->low);
            continue;
        }
        if (mark.epoch > rank->low.epoch || (mark.epoch == rank->low.epoch && mark.position > least))
            sim_fail(rank->world, "low-water",
                     "%s/%u: low-water (%u, %llu), though (%u, %llu) has not been received", rank->job->name,
                     rank->rank, mark.epoch, u64(mark.position), rank->low.epoch, u64(least));
        return;
    }
}

/* Life 1: the OPEN reply caps requests in flight. */
void sim_check_in_flight(struct sim_rank *rank, const struct sim_link *link,
                         const struct client_action *action)
{
    uint32_t in_flight, most;
    client_core_load(rank->core, action->worker, &in_flight, &most);
    if (in_flight > most || link->asked > link->cap)
        sim_fail(rank->world, "in flight", "%s/%u has %u requests in flight at worker %u, %u allowed",
                 rank->job->name, rank->rank, link->asked, (unsigned)action->worker, link->cap);
}

/* The block's home, as this rank's plan says, is not up. */
static bool is_home_down(const struct sim_rank *rank, const struct client_action *action)
{
    const struct scheduler_stream *of = &rank->stream->identity;
    uint32_t slot = scheduler_plan_slot(of->family, of->uses_epoch, action->epoch, action->block);
    uint64_t home = rank->plan ? rank->plan->plan.primary[slot] : SCHEDULER_PLAN_NOBODY;
    uint32_t in_flight, most = 0;
    client_core_load(rank->core, home, &in_flight, &most);
    return most == 0;
}

/* Deaths 4, 5: INSIST only after MOVED, RETRY or with a lost connection; DEATH only with the last of these. */
void sim_check_insist(struct sim_rank *rank, const struct client_action *action)
{
    if (!action->insist || action->hedge)
        return;
    rank->broken += is_home_down(rank, action); /* may be said of this part for long */
    if (rank->broken > 0)
        return;
    if (action->death || rank->refused == 0)
        sim_fail(rank->world, "insist", "%s/%u insists on block %llu at worker %u%s without a reason",
                 rank->job->name, rank->rank, u64(action->block), (unsigned)action->worker,
                 action->death ? " for a death" : "");
}

/* Deaths 8: hedging, at most 2% of requests. */
void sim_check_hedge(struct sim_rank *rank)
{
    if (rank->hedges * 50 > rank->requests)
        sim_fail(rank->world, "hedge", "%s/%u hedges %llu of %llu requests", rank->job->name, rank->rank,
                 u64(rank->hedges), u64(rank->requests));
}

/* An answer is to what was asked there under that number. */
void sim_check_arrival(struct sim_link *link, const struct sim_frame *frame)
{
    if (link->placed == CLIENT_PLACED_WRONG)
        sim_fail(link->world, "arrival",
                 "%s/%u did not ask worker %u for block %llu [%u, %u) of epoch %u under %llu",
                 link->rank->job->name, link->rank->rank, (unsigned)link->worker->id, u64(frame->block),
                 frame->from, frame->to, frame->epoch, u64(frame->request));
}

/* Life 6: one writer per slot range, and never into what the trainer holds. */
void sim_check_place(struct sim_link *link, const struct sim_frame *frame)
{
    const struct sim_rank *rank = link->rank;
    uint32_t rows = frame->to - frame->from;
    for (uint32_t i = 0; i < rank->held_count; i++)
        if (rank->held[i] == link->place.slot)
            sim_fail(link->world, "place", "%s/%u: a part is received into slot %u, which the trainer holds",
                     rank->job->name, rank->rank, link->place.slot);
    if (link->place.row + rows > rank->launch->shape.batch)
        sim_fail(link->world, "place", "%s/%u: a part of %u rows goes to row %u of %u", rank->job->name,
                 rank->rank, rows, link->place.row, rank->launch->shape.batch);
    for (int i = 0; i < link->world->worker_count; i++) {
        const struct sim_link *other = rank->to[i];
        if (!other || other == link || other->placed != CLIENT_PLACED_SLOT || !other->arriving ||
            other->place.slot != link->place.slot)
            continue;
        uint32_t theirs = other->arriving->to - other->arriving->from;
        if (link->place.row < other->place.row + theirs && other->place.row < link->place.row + rows)
            sim_fail(link->world, "place", "%s/%u: two writers of slot %u, rows %u and %u", rank->job->name,
                     rank->rank, link->place.slot, link->place.row, other->place.row);
    }
}

/* ---- what a worker does ---- */

/* Byte budgets are taken at start, and kept; so are the places in the making. */
void sim_check_budget(struct sim_worker *worker)
{
    struct worker_counts counts;
    worker_core_counts(worker->core, sim_process_now_ns(&worker->process), &counts);
    if (counts.staged_bytes > worker->staging_bytes)
        sim_fail(worker->world, "budget", "worker %u stages %llu of %llu bytes", (unsigned)worker->id,
                 u64(counts.staged_bytes), u64(worker->staging_bytes));
    if (counts.blocks_making - counts.blocks_riding > worker->making_max)
        sim_fail(worker->world, "budget", "worker %u makes %llu blocks at once", (unsigned)worker->id,
                 u64(counts.blocks_making));
    if (worker_core_broken(worker->core))
        sim_fail(worker->world, "budget", "worker %u is broken", (unsigned)worker->id);
}

/* Life 5: evicted is never a block in the making or being sent; all of it lies in the budget. */
void sim_check_memory(struct sim_worker *worker, const struct sim_extent *wanted)
{
    if (wanted->offset + wanted->size > worker->staging_bytes)
        sim_fail(worker->world, "memory",
                 "worker %u: block %llu at %llu + %llu is over the budget of %llu bytes",
                 (unsigned)worker->id, u64(wanted->number), u64(wanted->offset), u64(wanted->size),
                 u64(worker->staging_bytes));
    for (int i = 0; i < worker->extent_count; i++) {
        const struct sim_extent *extent = &worker->extents[i];
        bool apart = extent->offset >= wanted->offset + wanted->size ||
                     wanted->offset >= extent->offset + extent->size;
        if (!apart && (extent->pins > 0 || !extent->made))
            sim_fail(worker->world, "memory",
                     "worker %u: block %llu takes the memory of block %llu, which is being %s",
                     (unsigned)worker->id, u64(wanted->number), u64(extent->number),
                     extent->made ? "sent" : "made");
    }
}

/* Life 2: single flight; and a block is K positions of its epoch. */
void sim_check_make(struct sim_worker *worker, const struct worker_action *action,
                    const struct worker_sibling *block)
{
    const struct sim_stream *stream = block->stream;
    for (int i = 0; i < worker->extent_count; i++)
        if (!worker->extents[i].made && worker->extents[i].stream == stream &&
            worker->extents[i].epoch == action->epoch && worker->extents[i].number == action->number)
            sim_fail(worker->world, "single flight", "worker %u makes block %llu twice at once",
                     (unsigned)worker->id, u64(action->number));
    if (action->rows != scheduler_stream_block_rows(&stream->identity, action->number) ||
        block->size_bytes != stream->candidate->block_bytes)
        sim_fail(worker->world, "block", "worker %u: MAKE of block %llu of stream %d with %u rows",
                 (unsigned)worker->id, u64(action->number), stream->candidate->index, action->rows);
}

/* Made together are blocks of one family: position p is the same item in all of them. */
void sim_check_sibling(struct sim_worker *worker, const struct sim_stream *stream,
                       const struct sim_stream *sibling)
{
    if (memcmp(sibling->identity.family, stream->identity.family, BASE_SHA256_BYTES) != 0)
        sim_fail(worker->world, "sibling", "worker %u makes blocks of streams %d and %d together",
                 (unsigned)worker->id, stream->candidate->index, sibling->candidate->index);
}

/* What is sent is the block that was asked for. */
void sim_check_sent(struct sim_worker *worker, const struct sim_link *link,
                    const struct worker_action *action, const struct sim_extent *found)
{
    const struct sim_stream *stream = link->rank->stream;
    uint32_t key = stream->identity.uses_epoch ? action->epoch : 0;
    if (!found || found->stream != stream || found->number != action->number || found->epoch != key)
        sim_fail(worker->world, "sent", "worker %u sends %s as block %llu of epoch %u", (unsigned)worker->id,
                 found ? "another block" : "no block's memory", u64(action->number), action->epoch);
}

/* A block that is being sent stays where it is. */
void sim_check_pinned(struct sim_link *link, const struct sim_frame *frame)
{
    const struct sim_extent *extent = sim_worker_extent(link->worker, frame->extent);
    if (!extent || !extent->made)
        sim_fail(link->world, "pinned", "worker %u: memory of block %llu went away while it was sent",
                 (unsigned)link->worker->id, u64(frame->block));
}

/* A request ends in exactly one of DATA, MOVED, RETRY, FAIL. */
void sim_check_waiting(struct sim_link *link, uint64_t request, const char *how)
{
    for (int i = 0; i < link->get_count; i++)
        if (link->gets[i].request == request)
            return;
    sim_fail(link->world, "waiting", "worker %u answers request %llu of %s/%u with %s, which is not waiting",
             (unsigned)link->worker->id, u64(request), link->rank->job->name, link->rank->rank, how);
}

/* Only what cannot be made fails for good: the block of a deleted file. */
void sim_check_fail(struct sim_worker *worker, const struct sim_link *link,
                    const struct worker_action *action)
{
    const struct sim_candidate *candidate = link->rank->stream->candidate;
    if (action->code != BASE_NOT_FOUND || candidate->gone_block == UINT64_MAX)
        sim_fail(worker->world, "fail", "worker %u says FAIL to %s/%u: %s", (unsigned)worker->id,
                 link->rank->job->name, link->rank->rank, action->text);
}

/* Life 5: the next use of a staged block is the distance from the nearest low-water behind it: a rank that moves on counts,
 * however long it has stood still before. */
void sim_check_claim(struct sim_link *link, const struct sim_frame *get)
{
    const struct scheduler_stream *stream = &link->rank->stream->identity;
    bool moves = get->mark.epoch != link->mark.epoch || get->mark.position != link->mark.position;
    uint64_t next_use = 0;
    if (!moves || !link->marked || !stream->uses_epoch || !link->worker_open || get->epoch < get->mark.epoch)
        return;
    if (worker_core_block(link->worker->core, stream->hash, get->epoch, get->block, &next_use) ==
            WORKER_READY &&
        next_use == UINT64_MAX)
        sim_fail(link->world, "claim",
                 "worker %u: nobody will use block %llu, which %s/%u asks for with a new low-water",
                 (unsigned)link->worker->id, u64(get->block), link->rank->job->name, link->rank->rank);
}

/* No request is forgotten: of those that waited through the faults the minute begins after them. */
void sim_check_age(struct sim_link *link)
{
    const struct sim_world *world = link->world;
    int64_t latest_ns = world->now_ns - UNANSWERED_NS;
    if (!world->calm || !link->worker_open || !link->client_open || world->faults_until_ns > latest_ns)
        return;
    for (int i = 0; i < link->get_count; i++)
        if (!link->gets[i].cancelled && link->gets[i].since_ns < latest_ns)
            sim_fail(link->world, "unanswered",
                     "worker %u: request %llu of %s/%u has no answer after a minute",
                     (unsigned)link->worker->id, u64(link->gets[i].request), link->rank->job->name,
                     link->rank->rank);
}

/* A worker serves streams of its own bits. */
void sim_check_served(struct sim_worker *worker, const struct sim_stream *stream)
{
    if (stream->candidate->stream_count > 1 && stream->build != worker->build)
        sim_fail(worker->world, "fingerprint", "worker %u of build %d is to serve a stream of build %d",
                 (unsigned)worker->id, worker->build, stream->build);
}

/* ---- what the scheduler does ---- */

/* A job is where the last of its ranks is: once the server knows of a seek no older report undoes it. */
void sim_check_told_cursor(const struct sim_rank *rank, const struct scheduler_job *job)
{
    if (!rank->core || rank->dead || rank->seeks == 0 || rank->seeks_told != rank->seeks)
        return;
    struct scheduler_cursor at = client_core_cursor(rank->core);
    if (job->at.epoch > at.epoch || (job->at.epoch == at.epoch && job->at.position > at.position))
        sim_fail(rank->world, "went back", "the server has %s at (%u, %llu), rank %u is at (%u, %llu)",
                 rank->job->name, job->at.epoch, u64(job->at.position), rank->rank, at.epoch,
                 u64(at.position));
}

/* Deaths 2: a version names one plan, over restarts of the server, too. */
void sim_check_plan_version(struct sim_world *world, const struct sim_stream *stream,
                            const struct scheduler_plan *known, const struct scheduler_plan *plan)
{
    if (memcmp(known->primary, plan->primary, sizeof plan->primary) != 0 ||
        memcmp(known->secondary, plan->secondary, sizeof plan->secondary) != 0)
        sim_fail(world, "plan version", "two different plans of stream %d have version %u",
                 stream->candidate->index, plan->version);
}

/* Blocks of moved slots that the old home has, or makes. */
static void count_moved(struct sim_world *world, const struct sim_stream *stream,
                        const struct scheduler_plan *before, const struct scheduler_plan *plan)
{
    const struct scheduler_stream *of = &stream->identity;
    for (int w = 0; w < world->worker_count; w++) {
        const struct sim_worker *worker = &world->workers[w];
        for (int i = 0; i < worker->extent_count; i++) {
            const struct sim_extent *extent = &worker->extents[i];
            uint32_t slot = scheduler_plan_slot(of->family, of->uses_epoch, extent->epoch, extent->number);
            if (extent->stream == stream && before->primary[slot] == worker->id &&
                plan->primary[slot] != worker->id)
                world->tally.moved++;
        }
    }
}

static bool has_home(const struct scheduler_plan *plan, uint64_t worker)
{
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++)
        if (plan->primary[i] == worker)
            return true;
    return false;
}

/* Slots that change between workers that have some before and after; -1: others come or go. */
static int count_reweighted(const struct scheduler_plan *before, const struct scheduler_plan *plan)
{
    int moves = 0;
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++) {
        if (before->primary[i] == plan->primary[i])
            continue;
        if (!has_home(plan, before->primary[i]) || !has_home(before, plan->primary[i]))
            return -1;
        moves++;
    }
    return moves;
}

/* Deaths 3: reweighting at most once a minute, at most 5% of slots. */
static void check_reweighting(struct sim_world *world, struct sim_stream *stream,
                              const struct scheduler_plan *before, const struct scheduler_plan *plan)
{
    bool goes_on = plan->version == before->version + 1 && !stream->dropped &&
                   stream->server_life == world->server.life; /* else it is made from nothing */
    int moves = goes_on ? count_reweighted(before, plan) : -1;
    int64_t now_ns = sim_process_now_ns(&world->server.process);
    stream->dropped = false;
    if (stream->server_life != world->server.life || now_ns - stream->moves_since_ns > 60 * SIM_S)
        stream->moves = 0;
    if (stream->moves == 0)
        stream->moves_since_ns = now_ns;
    stream->server_life = world->server.life;
    if (moves <= 0)
        return;
    stream->moves += moves;
    world->tally.reweighted += (uint64_t)moves;
    if (stream->moves > SCHEDULER_MOVES_MOST)
        sim_fail(world, "reweight", "%d slots of stream %d move in a minute though its workers stay",
                 stream->moves, stream->candidate->index);
}

/* Deaths 3, over a restart of the server: a slot stays with a home that stays, or goes to one that had none. */
void sim_check_plan_kept(struct sim_world *world, const struct sim_stream *stream,
                         const struct scheduler_plan *before, const struct scheduler_plan *plan)
{
    int moves = 0;
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++)
        moves += before->primary[i] != plan->primary[i] && has_home(plan, before->primary[i]) &&
                 has_home(before, plan->primary[i]);
    if (moves > SCHEDULER_MOVES_MOST)
        sim_fail(world, "kept", "%d slots of stream %d change homes over a restart of the server", moves,
                 stream->candidate->index);
}

/* "A stream's plan admits workers of one fingerprint only"; versions rise. */
void sim_check_plan_new(struct sim_world *world, struct sim_stream *stream,
                        const struct scheduler_plan *before, const struct scheduler_plan *plan)
{
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++) {
        uint64_t home = plan->primary[i];
        if (home > (uint64_t)world->worker_count)
            sim_fail(world, "plan", "slot %d of stream %d has home %llu", i, stream->candidate->index,
                     u64(home));
        else if (home != SCHEDULER_PLAN_NOBODY)
            sim_check_served(&world->workers[home - 1], stream);
        if (world->failed)
            return;
    }
    if (!before) {
        stream->server_life = world->server.life;
        return;
    }
    world->tally.plan_changes++;
    if (plan->version < before->version)
        return; /* an answer that was late; its version was new to us */
    count_moved(world, stream, before, plan);
    check_reweighting(world, stream, before, plan);
}

/* ---- all together ---- */

static void check_job(struct sim_world *world, const struct sim_job *job)
{
    char why[300] = "not begun";
    int64_t since_ns = job->launch && job->launch->started ? job->progress_ns : world->progress_ns;
    since_ns = since_ns > world->faults_until_ns ? since_ns : world->faults_until_ns;
    int64_t waited_ns = world->now_ns - since_ns;
    if (job->done)
        return;
    if (waited_ns > world->longest_ns)
        world->longest_ns = waited_ns;
    if (waited_ns < PROGRESS_NS)
        return;
    for (uint32_t r = 0; job->launch && r < job->launch->shape.world; r++)
        if (job->launch->ranks[r]->core && job->launch->ranks[r]->taken == job->launch->whole)
            client_core_why(job->launch->ranks[r]->core, why, sizeof why);
    sim_fail(world, "progress", "%s has taken no step for %lld s: %s", job->name,
             (long long)(PROGRESS_NS / SIM_S), why);
}

/* No deadlock: every job makes progress within a bound once faults stop. */
void sim_check_progress(struct sim_world *world)
{
    for (int i = 0; i < world->job_count; i++)
        check_job(world, &world->jobs[i]);
    if (world->now_ns > LONGEST_NS)
        sim_fail(world, "progress", "the jobs do not end");
}

/* When the last job is over nothing waits, nothing is made or pinned, and nobody is connected. */
void sim_check_rest(struct sim_world *world)
{
    for (int i = 0; i < world->worker_count; i++) {
        const struct sim_worker *worker = &world->workers[i];
        struct worker_counts counts;
        if (!worker->core)
            continue;
        worker_core_counts(worker->core, sim_process_now_ns(&worker->process), &counts);
        if (counts.waiting + counts.sending + counts.connections + counts.handles + counts.blocks_making +
                counts.blocks_queued >
            0)
            sim_fail(
                world, "rest",
                "worker %u does not come to rest: %llu wait, %llu sent, %llu connections, %llu made, %llu "
                "queued",
                (unsigned)worker->id, u64(counts.waiting), u64(counts.sending), u64(counts.connections),
                u64(counts.blocks_making), u64(counts.blocks_queued));
        for (int e = 0; e < worker->extent_count; e++)
            if (worker->extents[e].pins > 0)
                sim_fail(world, "rest", "worker %u: a block stays pinned", (unsigned)worker->id);
    }
}

/* N jobs that train on one dataset pay for its prep once: without faults and with room for everything each position of
 * each epoch is prepared once, for all jobs, and `blocks_remade` is 0. Of an epoch in which only a sibling is read, too,
 * perhaps: a worker does not know when a job will end. */
void sim_check_quiet(struct sim_world *world)
{
    for (int c = 0; c < world->candidate_count; c++) {
        const struct sim_candidate *candidate = &world->candidates[c];
        uint64_t least = 0, most = 0, related = 0, made = 0;
        for (int i = 0; i < world->job_count; i++) {
            const struct sim_job *job = &world->jobs[i];
            uint64_t rows = world->items * (candidate->asked.uses_epoch ? job->epochs : 1);
            if (memcmp(job->candidate->asked.family, candidate->asked.family, BASE_SHA256_BYTES) == 0)
                related = rows > related ? rows : related;
            if (job->candidate != candidate)
                continue;
            most = rows > most ? rows : most;
            if (job->tail != SCHEDULER_TAIL_DROP && rows > least)
                least = rows;
        }
        most = most > 0 ? related : 0;
        for (int b = 0; b < candidate->stream_count; b++)
            made += candidate->streams[b].rows_made;
        if (made < least || made > most)
            sim_fail(world, "quiet", "a quiet world made %llu rows of stream %d, not %llu", u64(made), c,
                     u64(most));
    }
    for (int i = WORKER_CAUSE_FIRST + 1; i < WORKER_CAUSES; i++)
        if (world->tally.remade[i] > 0)
            sim_fail(world, "quiet", "a quiet world made %llu blocks again (%s)", u64(world->tally.remade[i]),
                     worker_cause_name((enum worker_cause)i));
}

/* Deaths 7: remade are blocks lost with the dead, staged or half-made blocks of moved slots, and what was made elsewhere than
 * at home or evicted; nothing else. Each cause is bounded by what can have caused it. */
void sim_check_remade(struct sim_world *world)
{
    const struct sim_tally *t = &world->tally;
    uint64_t allowed = t->lost + t->moved + t->evicted + t->elsewhere;
    if (t->made_again > allowed)
        sim_fail(
            world, "remade",
            "%llu blocks were made again: %llu lost, %llu of moved slots, %llu evicted, %llu made elsewhere",
            u64(t->made_again), u64(t->lost), u64(t->moved), u64(t->evicted), u64(t->elsewhere));
    if (t->remade[WORKER_CAUSE_DEATH] > t->insisted_death)
        sim_fail(world, "remade", "%llu blocks remade for deaths, %llu asked for so",
                 u64(t->remade[WORKER_CAUSE_DEATH]), u64(t->insisted_death));
    if (t->remade[WORKER_CAUSE_PLAN] > t->insisted)
        sim_fail(world, "remade", "%llu blocks remade for plans, %llu insisted on",
                 u64(t->remade[WORKER_CAUSE_PLAN]), u64(t->insisted));
    if (t->remade[WORKER_CAUSE_HEDGE] > t->hedged)
        sim_fail(world, "remade", "%llu blocks remade for hedges, of which there were %llu",
                 u64(t->remade[WORKER_CAUSE_HEDGE]), u64(t->hedged));
    uint64_t again = t->remade[WORKER_CAUSE_PRESSURE] + t->remade[WORKER_CAUSE_LATE];
    if (again > t->evicted)
        sim_fail(world, "remade", "%llu blocks remade that were here, %llu were evicted", u64(again),
                 u64(t->evicted));
    if (world->rules.ample && t->remade[WORKER_CAUSE_PRESSURE] > 0)
        sim_fail(world, "remade", "%llu blocks remade for pressure, with room for everything",
                 u64(t->remade[WORKER_CAUSE_PRESSURE]));
}

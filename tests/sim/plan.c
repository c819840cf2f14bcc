/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include <stdlib.h>

/* ids[1 ..]: each worker of the plan once. */
static void note_ids(struct sim_plan *plan, const struct sim_world *world)
{
    const struct scheduler_plan *from = &plan->plan;
    bool *seen = calloc((size_t)world->worker_count + 1, sizeof *seen);
    if (!seen)
        abort();
    seen[SCHEDULER_PLAN_NOBODY] = true;
    for (int i = 0; i < 2 * SCHEDULER_PLAN_SLOTS; i++) {
        uint64_t id = i % 2 ? from->secondary[i / 2] : from->primary[i / 2];
        if (id > (uint64_t)world->worker_count || seen[id])
            continue;
        seen[id] = true;
        plan->ids[plan->id_count++] = id;
    }
    free(seen);
}

const struct sim_plan *sim_plan_keep(struct sim_stream *stream, const struct scheduler_plan *plan)
{
    struct sim_world *world = stream->candidate->world;
    for (const struct sim_plan *known = stream->plans; known; known = known->next) {
        if (known->plan.version != plan->version)
            continue;
        sim_check_plan_version(world, stream, &known->plan, plan);
        return known;
    }
    struct sim_plan *kept = sim_memory_get(&world->memory, sizeof *kept);
    kept->ids = sim_memory_get(&world->memory, (size_t)world->worker_count * sizeof *kept->ids);
    kept->plan = *plan;
    note_ids(kept, world);
    sim_check_plan_new(world, stream, stream->plans ? &stream->plans->plan : NULL, plan);
    const struct sim_plan **at = &stream->plans;
    while (*at && (*at)->plan.version > plan->version)
        at = (const struct sim_plan **)(uintptr_t) & (*at)->next;
    kept->next = *at;
    *at = kept;
    return kept;
}

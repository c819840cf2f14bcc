/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <string.h>

static void note_id(struct sim_plan *plan, uint64_t id)
{
    for (int i = 0; i < plan->id_count; i++)
        if (plan->ids[i] == id)
            return;
    if (id != SCHEDULER_PLAN_NOBODY && plan->id_count < SIM_WORKERS)
        plan->ids[plan->id_count++] = id;
}

const struct sim_plan *sim_plan_keep(struct sim_candidate *candidate, const struct scheduler_plan *plan)
{
    struct sim_world *world = candidate->world;
    for (const struct sim_plan *known = candidate->plans; known; known = known->next) {
        if (known->plan.version != plan->version)
            continue;
        if (memcmp(known->plan.primary, plan->primary, sizeof plan->primary) != 0 ||
            memcmp(known->plan.secondary, plan->secondary, sizeof plan->secondary) != 0)
            sim_fail(world, "two different plans of stream %d have version %u", candidate->index,
                     plan->version);
        return known;
    }
    struct sim_plan *kept = sim_memory_get(&world->memory, sizeof *kept);
    kept->plan = *plan;
    for (int i = 0; i < SCHEDULER_PLAN_SLOTS; i++) {
        note_id(kept, plan->primary[i]);
        note_id(kept, plan->secondary[i]);
    }
    kept->next = candidate->plans;
    candidate->plans = kept;
    return kept;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#define PPM INT64_C(1000000)

void sim_process_init(struct sim_process *process, struct sim_world *world, uint64_t host,
                      struct sim_random random)
{
    *process =
        (struct sim_process){.world = world, .number = host, .random = random, .base_ns = world->now_ns};
    struct sim_random *draws = &process->random;
    process->local_ns = sim_random_between(draws, SIM_S, 100000 * SIM_S); /* "0" is never, in places */
    if (!world->rules.clocks)
        return;
    process->drift_ppm = sim_random_between(draws, -1000, 1000);
    int64_t wrong_ns = sim_random_chance(draws, 100) ? 600 * SIM_S : 2 * SIM_S;
    process->wall_ns = sim_random_between(draws, -wrong_ns, wrong_ns);
}

int64_t sim_process_now_ns(const struct sim_process *process)
{
    int64_t since_ns = process->world->now_ns - process->base_ns;
    return process->local_ns + since_ns + since_ns / PPM * process->drift_ppm +
           since_ns % PPM * process->drift_ppm / PPM;
}

int64_t sim_process_when_ns(const struct sim_process *process, int64_t local_ns)
{
    int64_t left_ns = local_ns - sim_process_now_ns(process);
    if (left_ns <= 0)
        return process->world->now_ns;
    /* A little late where the clock drifts, never early. */
    return process->world->now_ns + left_ns - left_ns / PPM * process->drift_ppm + left_ns / PPM + 2;
}

int64_t sim_process_wall_ns(const struct sim_process *process)
{
    return 1000000 * SIM_S + process->world->now_ns + process->wall_ns;
}

void sim_process_jump(struct sim_process *process, int64_t by_ns)
{
    int64_t local_ns = sim_process_now_ns(process);
    process->base_ns = process->world->now_ns;
    process->local_ns = local_ns + by_ns;
}

bool sim_process_stopped(const struct sim_process *process)
{
    return process->paused_ns > process->world->now_ns;
}

void sim_process_at(struct sim_process *process, int64_t at_ns, sim_run *run, void *who, uint64_t what)
{
    sim_queue_put(
        &process->world->queue,
        &(struct sim_event){.at_ns = at_ns, .process = process, .run = run, .who = who, .what = what});
}

static int side(const struct sim_cut *cut, const struct sim_process *process)
{
    uint64_t key[2] = {cut->key, process->number};
    return (int)(base_hash_xxh3(key, sizeof key) % 3);
}

int64_t sim_process_cut_ns(const struct sim_process *from, const struct sim_process *to)
{
    int64_t until_ns = 0;
    for (int i = 0; i < SIM_CUTS; i++) {
        const struct sim_cut *cut = &from->world->cuts[i];
        if (cut->until_ns <= from->world->now_ns || cut->until_ns <= until_ns)
            continue;
        int a = side(cut, from), b = side(cut, to);
        if ((a == 0 && b == 1) || (a == 1 && b == 0 && !cut->one_sided))
            until_ns = cut->until_ns;
    }
    return until_ns;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_ingest/placement.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES = INGEST_PLACEMENT_SAMPLES, BATCHES = 2 * (SAMPLES + 1), MARGIN_PERCENT = 10 };

static const struct ingest_trial *trial_of(const struct ingest_placement *placement,
                                           enum mr_finish_where where)
{
    return &placement->trials[where == MR_FINISH_GPU];
}

static uint32_t counted(const struct ingest_trial *trial)
{
    return trial->seen > 0 ? trial->seen - 1 : 0;
}

static bool full(const struct ingest_trial *trial)
{
    return counted(trial) == SAMPLES;
}

static int64_t cost_ns(const struct ingest_sample *sample)
{
    return sample->cpu_ns + sample->copy_ns + sample->kernel_ns;
}

/* By cost; of none, zeros. */
static struct ingest_sample median(const struct ingest_trial *trial)
{
    struct ingest_sample sorted[SAMPLES + 1] = {0};
    uint32_t count = counted(trial);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && cost_ns(&sorted[at - 1]) > cost_ns(&trial->samples[i]); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = trial->samples[i];
    }
    return sorted[count / 2];
}

void ingest_placement_init(struct ingest_placement *placement, enum mr_finish_where asked, bool gpu)
{
    *placement = (struct ingest_placement){.asked = asked, .gpu = gpu};
}

bool ingest_placement_decided(const struct ingest_placement *placement)
{
    return !placement->gpu || placement->asked != MR_FINISH_AUTO ||
           (full(trial_of(placement, MR_FINISH_CLIENT)) && full(trial_of(placement, MR_FINISH_GPU)));
}

enum mr_finish_where ingest_placement_where(const struct ingest_placement *placement)
{
    const struct ingest_trial *client = trial_of(placement, MR_FINISH_CLIENT);
    const struct ingest_trial *gpu = trial_of(placement, MR_FINISH_GPU);
    if (!placement->gpu)
        return MR_FINISH_CLIENT;
    if (placement->asked != MR_FINISH_AUTO)
        return placement->asked;
    if (!ingest_placement_decided(placement))
        return client->seen < gpu->seen ? MR_FINISH_CLIENT : MR_FINISH_GPU;
    struct ingest_sample there = median(gpu), here = median(client);
    return cost_ns(&here) * 100 < cost_ns(&there) * (100 - MARGIN_PERCENT) ? MR_FINISH_CLIENT : MR_FINISH_GPU;
}

bool ingest_placement_wants(const struct ingest_placement *placement, enum mr_finish_where where)
{
    return !full(trial_of(placement, where));
}

void ingest_placement_add(struct ingest_placement *placement, enum mr_finish_where where,
                          const struct ingest_sample *sample)
{
    struct ingest_trial *trial = &placement->trials[where == MR_FINISH_GPU];
    if (full(trial))
        return;
    if (trial->seen > 0)
        trial->samples[trial->seen - 1] = *sample;
    trial->seen++;
}

static struct mr_place_cost publish(const struct ingest_trial *trial)
{
    struct ingest_sample sample = median(trial);
    return (struct mr_place_cost){.batches = counted(trial),
                                  .cpu_ns = sample.cpu_ns,
                                  .copy_ns = sample.copy_ns,
                                  .kernel_ns = sample.kernel_ns,
                                  .copied_bytes = sample.copied_bytes};
}

static void say(const struct ingest_placement *placement, struct mr_placement *out)
{
    const char *where = out->where == MR_FINISH_GPU ? "gpu" : "client";
    struct ingest_sample there = median(trial_of(placement, MR_FINISH_GPU));
    struct ingest_sample here = median(trial_of(placement, MR_FINISH_CLIENT));
    double there_ms = (double)cost_ns(&there) / 1e6, here_ms = (double)cost_ns(&here) / 1e6;
    if (!placement->gpu)
        snprintf(out->reason, sizeof out->reason, "client: there is no GPU");
    else if (placement->asked != MR_FINISH_AUTO)
        snprintf(out->reason, sizeof out->reason, "%s: asked for", where);
    else if (!out->decided)
        snprintf(out->reason, sizeof out->reason, "%s: being measured, %u of %d batches", where,
                 placement->trials[0].seen + placement->trials[1].seen, BATCHES);
    else if (out->where == MR_FINISH_GPU)
        snprintf(out->reason, sizeof out->reason, "gpu: %.2f ms a batch there, %.2f ms on the trainer's CPU",
                 there_ms, here_ms);
    else
        snprintf(out->reason, sizeof out->reason,
                 "client: %.2f ms a batch on the trainer's CPU, %.2f ms on the GPU", here_ms, there_ms);
}

void ingest_placement_describe(const struct ingest_placement *placement, struct mr_placement *out)
{
    out->where = ingest_placement_where(placement);
    out->decided = ingest_placement_decided(placement);
    out->client = publish(trial_of(placement, MR_FINISH_CLIENT));
    out->gpu = publish(trial_of(placement, MR_FINISH_GPU));
    say(placement, out);
}

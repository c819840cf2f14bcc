/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/scheduler/cluster_fixture.h"

#include <string.h>

enum { PROBES_MAX = 16 };

void fixture_version(uint8_t n, uint8_t version[BASE_SHA256_BYTES])
{
    memset(version, 0xd0 + n, BASE_SHA256_BYTES);
}

enum base_code fixture_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                            const struct fake_worker *worker, struct base_error *error)
{
    struct scheduler_dataset_held held[2] = {{.eligible = !worker->not_eligible},
                                             {.eligible = !worker->not_eligible}};
    struct scheduler_probe_result probes[PROBES_MAX];
    struct scheduler_front front = {.epoch = worker->front_epoch};
    struct scheduler_worker_report report = {.id = worker->id,
                                             .incarnation = worker->incarnation,
                                             .addresses = "10.0.0.1:7",
                                             .weight = worker->weight,
                                             .draining = worker->draining,
                                             .queue_ms = worker->queue_ms,
                                             .datasets = held,
                                             .dataset_count = 2,
                                             .probes = probes,
                                             .fronts = &front};
    for (int i = 0; i < 2; i++) {
        fixture_version((uint8_t)(i + 1), held[i].version);
        held[i].error = worker->not_eligible ? "/data: no such directory" : NULL;
    }
    if (worker->front_stream) {
        memcpy(front.stream, worker->front_stream, sizeof front.stream);
        report.front_count = 1;
    }
    enum base_code code = scheduler_cluster_worker_sync(cluster, now_ns, &report, error);
    if (code || !scheduler_cluster_probe_at(cluster, worker->id, 0))
        return code;
    for (const struct scheduler_stream *probe;
         report.probe_count < PROBES_MAX &&
         (probe = scheduler_cluster_probe_at(cluster, worker->id, report.probe_count));) {
        struct scheduler_probe_result *result = &probes[report.probe_count++];
        memcpy(result->key, probe->hash, sizeof result->key);
        memset(result->fingerprint, worker->bits, sizeof result->fingerprint);
        result->error = worker->cannot_make ? "no decoder" : NULL;
    }
    return scheduler_cluster_worker_sync(cluster, now_ns, &report, error);
}

const char *fixture_sample_text(const char *preset)
{
    static char texts[2][SCHEDULER_PIPELINE_TEXT_BYTES];
    struct scheduler_pipeline pipeline;
    char *text = texts[strcmp(preset, "imagenet_train") == 0];
    if (scheduler_pipeline_parse(preset, NULL, 0, &pipeline, NULL) ||
        scheduler_pipeline_print(&pipeline, "sample", text, SCHEDULER_PIPELINE_TEXT_BYTES, NULL))
        return "";
    return text;
}

struct scheduler_job_request fixture_request(const char *job)
{
    struct scheduler_job_request request = {.job = job,
                                            .world = 1,
                                            .batch = 10,
                                            .tail = SCHEDULER_TAIL_EXACT,
                                            .dataset = "mini",
                                            .items = 1000,
                                            .shuffle = true,
                                            .generation = 1,
                                            .sample_text = fixture_sample_text("imagenet_train"),
                                            .pipeline_text = "sample: ... | finish: | batch:"};
    fixture_version(1, request.dataset_version);
    return request;
}

int fixture_held(const struct scheduler_live_stream *stream, uint64_t worker)
{
    int count = 0;
    for (int s = 0; s < SCHEDULER_PLAN_SLOTS; s++)
        count += stream->plan.primary[s] == worker;
    return count;
}

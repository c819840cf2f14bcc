/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/dataset.h"

#include <stdlib.h>
#include <string.h>

enum base_code worker_dataset_create(struct worker_dataset **out, struct manifest *manifest, const char *name,
                                     const char *path, const struct source_roots *roots,
                                     struct base_error *error)
{
    uint64_t items = manifest_items(manifest);
    struct worker_dataset *dataset = calloc(1, sizeof *dataset);
    if (dataset) {
        dataset->name = strdup(name);
        dataset->path = strdup(path);
        dataset->verdicts = calloc(items > 0 ? items : 1, sizeof *dataset->verdicts);
        dataset->items = items;
        dataset->references = 1;
    }
    if (!dataset || !dataset->name || !dataset->path || !dataset->verdicts) {
        worker_dataset_release(dataset);
        return base_error_set(error, BASE_NO_MEMORY, "dataset %s", name);
    }
    dataset->manifest = manifest;
    dataset->folder = (struct source_folder){roots, dataset->path, manifest};
    *out = dataset;
    return BASE_OK;
}

void worker_dataset_hold(struct worker_dataset *dataset)
{
    dataset->references++;
}

void worker_dataset_release(struct worker_dataset *dataset)
{
    if (!dataset || --dataset->references > 0)
        return;
    if (dataset->manifest)
        manifest_close(&dataset->manifest);
    free(dataset->name);
    free(dataset->path);
    free(dataset->verdicts);
    free(dataset);
}

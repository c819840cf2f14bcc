/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/source/source.h"

#include "worker/source/mask.h"
#include "worker/source/walk.h"

#include <string.h>

struct index {
    const struct source_roots *roots;
    const char *masks; /* NULL: none */
    struct manifest_writer *writer;
    uint64_t items, in_class;
    uint32_t classes;
};

static enum base_code index_begin_class(void *context, const char *name, struct base_error *error)
{
    struct index *index = context;
    index->classes++;
    index->in_class = 0;
    return manifest_writer_class(index->writer, name, error);
}

static enum base_code index_found(void *context, const struct source_found *found, struct base_error *error)
{
    struct index *index = context;
    if (found->skipped)
        return manifest_writer_skipped(index->writer, found->name, error);
    struct manifest_item item = {.name = found->name,
                                 .size_bytes = found->size_bytes,
                                 .mtime_ns = found->mtime_ns,
                                 .label = found->label};
    enum base_code code = index->masks ? source_mask_stat(index->roots, index->masks, &item, error) : BASE_OK;
    if (code != BASE_OK)
        return code;
    index->items++;
    index->in_class++;
    return manifest_writer_item(index->writer, &item, error);
}

static enum base_code index_end_class(void *context, const char *name, struct base_error *error)
{
    const struct index *index = context;
    if (index->in_class > 0)
        return BASE_OK;
    return base_error_set(
        error, BASE_INVALID,
        "class \"%s\" is empty: it has no file that ends in .jpg .jpeg .png .ppm .bmp .pgm .tif "
        ".tiff or .webp",
        name);
}

/* Nothing is left out in silence: what cannot be read ends the indexing. */
static enum base_code index_problem(void *context, const char *name, const struct base_error *cause,
                                    struct base_error *error)
{
    (void)context;
    (void)name;
    if (error)
        *error = *cause;
    return cause->code;
}

enum base_code source_folder_index(const struct source_roots *roots, const struct source_place *place,
                                   const char *manifest_path, const _Atomic bool *cancel,
                                   uint8_t version[BASE_SHA256_BYTES], struct base_error *error)
{
    struct index index = {.roots = roots, .masks = place->masks};
    const char *path = place->path;
    const struct source_visitor visitor = {.context = &index,
                                           .begin_class = index_begin_class,
                                           .found = index_found,
                                           .end_class = index_end_class,
                                           .problem = index_problem};
    enum base_code code = manifest_writer_create(&index.writer, manifest_path, error);
    if (code == BASE_OK && place->masks)
        code = manifest_writer_masks(index.writer, place->masks, error);
    if (code == BASE_OK)
        code = source_walk(roots, path, cancel, &visitor, error);
    if (code == BASE_OK && index.classes == 0)
        code = base_error_set(error, BASE_INVALID,
                              "no classes: the folder has no subfolders, one a class is needed");
    if (code == BASE_OK)
        code = manifest_writer_finish(index.writer, version, error);
    manifest_writer_destroy(index.writer);
    if (code != BASE_OK && error && strncmp(error->text, path, strlen(path)) != 0)
        base_error_prefix(error, code, "%s", path);
    return code;
}

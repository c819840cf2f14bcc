/* SPDX-License-Identifier: Apache-2.0 */
#include "server/datasets.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a reply can carry: classes and lists go whole into messages of 1 MB. */
enum { DATASETS_MAX = 1024, CLASSES_MAX_BYTES = 800000, NAMES_MAX_BYTES = 65536 };

struct server_datasets {
    struct store *store;
    struct server_dataset *first;
    size_t count;
    uint64_t revision, last_order;
};

const char *server_dataset_state_name(enum server_dataset_state state)
{
    static const char *const names[] = {"indexing", "ready", "failed"};
    return names[state];
}

/* ---- lines ---- */

static void lines_fini(struct server_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++)
        free(lines->line[i]);
    free(lines->line);
    *lines = (struct server_lines){0};
}

/* The first of the texts, as many as `most_bytes` hold, as UTF-8: clients could not parse anything else. */
static bool lines_set(struct server_lines *lines, char *const *from, size_t count, size_t most_bytes)
{
    struct server_lines made = {calloc(count ? count : 1, sizeof(char *)), 0};
    bool ok = made.line != NULL;
    for (size_t i = 0, bytes = 0; ok && i < count; i++) {
        struct base_buffer line;
        base_buffer_init(&line);
        base_utf8_put(&line, from[i]);
        bytes += line.size + 4; /* and its tag and length */
        ok = base_buffer_text(&line) != NULL;
        if (!ok || bytes > most_bytes) {
            base_buffer_fini(&line);
            break;
        }
        made.line[made.count++] = (char *)line.bytes;
    }
    if (!ok) {
        lines_fini(&made);
        return false;
    }
    lines_fini(lines);
    *lines = made;
    return true;
}

/* Names may hold newlines: they are kept apart by a byte that no path has at its ends and no name can hold.
 */
static char *lines_join(const struct server_lines *lines)
{
    struct base_buffer out;
    base_buffer_init(&out);
    for (size_t i = 0; i < lines->count; i++) {
        if (i)
            base_buffer_put_u8(&out, '/');
        for (const char *at = lines->line[i]; *at; at++)
            base_buffer_printf(&out, *at == '/' ? "//" : "%c", *at);
    }
    base_buffer_put_u8(&out, 0);
    if (out.failed) {
        base_buffer_fini(&out);
        return NULL;
    }
    return (char *)out.bytes;
}

static bool lines_split(struct server_lines *lines, const char *joined)
{
    size_t most = 1, length = strlen(joined);
    for (size_t i = 0; i < length; i++)
        most += joined[i] == '/';
    char **line = calloc(most, sizeof *line);
    char *text = malloc(length + 1);
    size_t count = 0, used = 0;
    bool ok = line && text;
    for (size_t i = 0; ok && length && i <= length; i++) {
        if (joined[i] == '/' && joined[i + 1] == '/') {
            text[used++] = joined[i++];
        } else if (joined[i] && joined[i] != '/') {
            text[used++] = joined[i];
        } else {
            text[used] = 0;
            used = 0;
            ok = (line[count] = strdup(text)) != NULL;
            count += ok;
        }
    }
    free(text);
    struct server_lines made = {line, count};
    if (!ok) {
        lines_fini(&made);
        return false;
    }
    lines_fini(lines);
    *lines = made;
    return true;
}

/* ---- records ---- */

static void record_destroy(struct server_dataset *dataset)
{
    if (!dataset)
        return;
    free(dataset->path);
    free(dataset->masks);
    free(dataset->asked_masks);
    lines_fini(&dataset->classes);
    lines_fini(&dataset->skipped_names);
    lines_fini(&dataset->changed_names);
    free(dataset);
}

static struct server_dataset *record_create(const char *name, const struct server_dataset_place *place)
{
    struct server_dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset || !(dataset->path = strdup(place->path)) || !(dataset->masks = strdup(place->masks))) {
        record_destroy(dataset);
        return NULL;
    }
    snprintf(dataset->name, sizeof dataset->name, "%s", name);
    return dataset;
}

static void insert(struct server_datasets *datasets, struct server_dataset *dataset)
{
    struct server_dataset **at = &datasets->first;
    while (*at && strcmp((*at)->name, dataset->name) < 0)
        at = &(*at)->next;
    dataset->next = *at;
    *at = dataset;
    datasets->count++;
}

static enum base_code save(struct server_datasets *datasets, const struct server_dataset *d,
                           struct base_error *error)
{
    char *classes = lines_join(&d->classes), *skipped = lines_join(&d->skipped_names);
    struct store_dataset record = {
        .name = d->name,
        .path = d->path,
        .masks = d->masks,
        .state = server_dataset_state_name(d->state),
        .error = d->error,
        .items = d->items,
        .bytes = d->bytes,
        .skipped = d->skipped,
        .classes = classes,
        .skipped_names = skipped,
    };
    memcpy(record.version, d->version, sizeof record.version);
    enum base_code code = classes && skipped
                              ? store_dataset_put(datasets->store, &record, error)
                              : base_error_set(error, BASE_NO_MEMORY, "dataset %s: no memory", d->name);
    free(classes);
    free(skipped);
    if (code)
        base_log(BASE_LOG_ERROR, "state_not_saved", "dataset=%s error=\"%s\"", d->name,
                 error ? error->text : "");
    return code;
}

static void order_new(struct server_datasets *datasets, struct server_order *order)
{
    *order = (struct server_order){.id = ++datasets->last_order};
    datasets->revision++;
}

struct loading {
    struct server_datasets *datasets;
    bool failed;
};

static void load(void *context, const struct store_dataset *from)
{
    struct loading *loading = context;
    static const uint8_t none[BASE_SHA256_BYTES];
    struct server_dataset_place place = {from->path, from->masks};
    struct server_dataset *dataset = record_create(from->name, &place);
    if (!dataset || !lines_split(&dataset->classes, from->classes) ||
        !lines_split(&dataset->skipped_names, from->skipped_names)) {
        record_destroy(dataset);
        loading->failed = true;
        return;
    }
    memcpy(dataset->version, from->version, sizeof dataset->version);
    dataset->has_version = memcmp(from->version, none, sizeof none) != 0;
    dataset->items = from->items;
    dataset->bytes = from->bytes;
    dataset->skipped = from->skipped;
    snprintf(dataset->error, sizeof dataset->error, "%s", from->error);
    dataset->state = !strcmp(from->state, "ready")    ? SERVER_DATASET_READY
                     : !strcmp(from->state, "failed") ? SERVER_DATASET_FAILED
                                                      : SERVER_DATASET_INDEXING;
    if (dataset->state == SERVER_DATASET_INDEXING)
        order_new(loading->datasets, &dataset->index);
    insert(loading->datasets, dataset);
}

enum base_code server_datasets_create(struct server_datasets **out, struct store *store, uint64_t last_order,
                                      struct base_error *error)
{
    struct server_datasets *datasets = calloc(1, sizeof *datasets);
    if (!datasets)
        return base_error_set(error, BASE_NO_MEMORY, "datasets: no memory");
    datasets->store = store;
    datasets->revision = 1;
    datasets->last_order = last_order;
    struct loading loading = {datasets, false};
    enum base_code code = store_datasets_each(store, load, &loading, error);
    if (!code && loading.failed)
        code = base_error_set(error, BASE_NO_MEMORY, "datasets: no memory");
    if (code)
        server_datasets_destroy(datasets);
    else
        *out = datasets;
    return code;
}

void server_datasets_destroy(struct server_datasets *datasets)
{
    if (!datasets)
        return;
    while (datasets->first) {
        struct server_dataset *next = datasets->first->next;
        record_destroy(datasets->first);
        datasets->first = next;
    }
    free(datasets);
}

uint64_t server_datasets_revision(const struct server_datasets *datasets)
{
    return datasets->revision;
}

struct server_dataset *server_datasets_first(const struct server_datasets *datasets)
{
    return datasets->first;
}

enum base_code server_datasets_unknown(const struct server_datasets *datasets, const char *name,
                                       struct base_error *error)
{
    char known[200] = "";
    size_t used = 0;
    for (const struct server_dataset *at = datasets->first; at && used < sizeof known; at = at->next)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", at->name);
    return base_error_set(error, BASE_NOT_FOUND, "dataset '%.128s' is not registered; %s%s%s", name,
                          used ? "there is " : "none is: `millrace dataset add NAME FOLDER`", known,
                          used >= sizeof known ? "...: `millrace dataset list` has all" : "");
}

struct server_dataset *server_datasets_find(const struct server_datasets *datasets, const char *name)
{
    struct server_dataset *at = datasets->first;
    while (at && strcmp(at->name, name))
        at = at->next;
    return at;
}

const struct server_dataset *server_datasets_find_version(const struct server_datasets *datasets,
                                                          const uint8_t version[BASE_SHA256_BYTES])
{
    const struct server_dataset *at = datasets->first;
    while (at && !(at->has_version && !memcmp(at->version, version, BASE_SHA256_BYTES)))
        at = at->next;
    return at;
}

/* ---- what users ask ---- */

static enum base_code check_path(const char *name, const char *what, const char *path,
                                 struct base_error *error)
{
    if (path[0] != '/' || strlen(path) >= 4096)
        return base_error_set(error, BASE_INVALID, "dataset %s: %s '%.200s' is not an absolute one", name,
                              what, path);
    if (!base_utf8_is_valid(path))
        return base_error_set(error, BASE_INVALID,
                              "dataset %s: its %s is not UTF-8: register a link to it that is", name, what);
    return BASE_OK;
}

static enum base_code check_names(const char *name, const struct server_dataset_place *place,
                                  struct base_error *error)
{
    size_t length = strlen(name);
    if (!length || length >= SERVER_DATASET_NAME_CHARS)
        return base_error_set(error, BASE_INVALID, "dataset name '%.40s': it needs 1 to %d characters", name,
                              SERVER_DATASET_NAME_CHARS - 1);
    for (const char *at = name; *at; at++) {
        if (!isalnum((unsigned char)*at) && !strchr("-_.", *at))
            return base_error_set(error, BASE_INVALID,
                                  "dataset name '%s': only letters, digits, '-', '_' and '.' may stand in it",
                                  name);
    }
    enum base_code code = check_path(name, "path", place->path, error);
    return code || !place->masks[0] ? code : check_path(name, "path of masks", place->masks, error);
}

const char *server_dataset_asked_masks(const struct server_dataset *dataset)
{
    return dataset->asked_masks ? dataset->asked_masks : dataset->masks;
}

static enum base_code add_new(struct server_datasets *datasets, const char *name,
                              const struct server_dataset_place *place, struct server_dataset **out,
                              struct base_error *error)
{
    if (datasets->count == DATASETS_MAX)
        return base_error_set(error, BASE_BUSY,
                              "dataset %s: there are %d datasets, the most that one server keeps", name,
                              DATASETS_MAX);
    struct server_dataset *dataset = record_create(name, place);
    if (!dataset)
        return base_error_set(error, BASE_NO_MEMORY, "dataset %s: no memory", name);
    enum base_code code = save(datasets, dataset, error);
    if (code) {
        record_destroy(dataset);
        return code;
    }
    insert(datasets, dataset);
    order_new(datasets, &dataset->index);
    *out = dataset;
    return BASE_OK;
}

/* A version that there is stays as it is, masks and all, until the new one is made. */
static enum base_code add_again(struct server_datasets *datasets, struct server_dataset *dataset,
                                const char *masks, struct base_error *error)
{
    bool other = strcmp(masks, server_dataset_asked_masks(dataset)) != 0;
    struct server_dataset next = *dataset;
    char *asked = strdup(masks), **place = next.has_version ? &next.asked_masks : &next.masks;
    if (!asked)
        return base_error_set(error, BASE_NO_MEMORY, "dataset %s: no memory", dataset->name);
    if (!next.has_version)
        next.state = SERVER_DATASET_INDEXING;
    next.error[0] = 0;
    next.index_code = BASE_OK;
    char *before = *place;
    *place = asked;
    enum base_code code = save(datasets, &next, error);
    free(code ? asked : before);
    if (code)
        return code;
    *dataset = next;
    if (!dataset->index.id || other)
        order_new(datasets, &dataset->index);
    return BASE_OK;
}

enum base_code server_datasets_add(struct server_datasets *datasets, const char *name,
                                   const struct server_dataset_place *place, struct server_dataset **out,
                                   struct base_error *error)
{
    enum base_code code = check_names(name, place, error);
    if (code)
        return code;
    struct server_dataset *dataset = server_datasets_find(datasets, name);
    bool moved = dataset && strcmp(dataset->path, place->path);
    if (moved && dataset->state == SERVER_DATASET_FAILED) { /* it was never there: a corrected path */
        if ((code = server_datasets_remove(datasets, name, error)))
            return code;
        dataset = NULL;
    } else if (moved) {
        return base_error_set(error, BASE_EXISTS,
                              "dataset %s is registered already, at %s: `millrace dataset rm` forgets it",
                              name, dataset->path);
    }
    if (!dataset)
        return add_new(datasets, name, place, out, error);
    *out = dataset;
    return add_again(datasets, dataset, place->masks, error);
}

enum base_code server_datasets_remove(struct server_datasets *datasets, const char *name,
                                      struct base_error *error)
{
    struct server_dataset **at = &datasets->first;
    while (*at && strcmp((*at)->name, name))
        at = &(*at)->next;
    if (!*at)
        return server_datasets_unknown(datasets, name, error);
    enum base_code code = store_dataset_remove(datasets->store, name, error);
    if (code)
        return code;
    struct server_dataset *gone = *at;
    *at = gone->next;
    datasets->count--;
    if (gone->has_version && !server_datasets_find_version(datasets, gone->version))
        code = store_bad_items_remove(datasets->store, gone->version, error);
    record_destroy(gone);
    datasets->revision++;
    return code;
}

enum base_code server_datasets_verify(struct server_datasets *datasets, struct server_dataset *dataset,
                                      struct base_error *error)
{
    if (!dataset->has_version)
        return base_error_set(error, BASE_UNAVAILABLE, "dataset %s is %s: there is nothing to verify yet",
                              dataset->name, server_dataset_state_name(dataset->state));
    if (!dataset->verify.id)
        order_new(datasets, &dataset->verify);
    return BASE_OK;
}

/* ---- orders ---- */

static bool among(uint64_t id, const uint64_t *ids, int count)
{
    for (int i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

/* False: every live worker has refused, or so many that the others may be taken to. */
static bool order_assign(struct server_datasets *datasets, struct server_order *order, const uint64_t *live,
                         int count)
{
    if (!order->id || (order->worker && among(order->worker, live, count)))
        return true;
    if (order->worker)
        datasets->revision++;
    order->worker = 0;
    if (order->tried_count == SERVER_DATASET_TRIED_MAX)
        return false;
    for (int i = 0; i < count; i++) {
        if (among(live[i], order->tried, order->tried_count))
            continue;
        order->worker = live[i];
        datasets->revision++;
        return true;
    }
    return count == 0;
}

static void index_failed(struct server_datasets *datasets, struct server_dataset *dataset)
{
    snprintf(dataset->error, sizeof dataset->error, "%s", dataset->index.last_error);
    dataset->index_code = dataset->index.last_code;
    if (!dataset->has_version)
        dataset->state = SERVER_DATASET_FAILED;
    dataset->index = (struct server_order){0};
    free(dataset->asked_masks);
    dataset->asked_masks = NULL;
    datasets->revision++;
    char quoted[BASE_ERROR_TEXT_BYTES * 2];
    base_log(BASE_LOG_ERROR, "dataset_index_failed", "dataset=%s error=%s", dataset->name,
             base_log_quote(dataset->error, quoted, sizeof quoted));
    save(datasets, dataset, NULL);
}

static void verify_ended(struct server_datasets *datasets, struct server_dataset *dataset,
                         enum base_code code)
{
    dataset->verify_code = code;
    if (code)
        snprintf(dataset->error, sizeof dataset->error, "%s", dataset->verify.last_error);
    dataset->verify = (struct server_order){0};
    dataset->verify_done++;
    datasets->revision++;
}

bool server_datasets_ordering(const struct server_datasets *datasets)
{
    for (const struct server_dataset *d = datasets->first; d; d = d->next)
        if (d->index.id || d->verify.id)
            return true;
    return false;
}

void server_datasets_assign(struct server_datasets *datasets, const uint64_t *live, int count)
{
    for (struct server_dataset *d = datasets->first; d; d = d->next) {
        if (!order_assign(datasets, &d->index, live, count))
            index_failed(datasets, d);
        if (!order_assign(datasets, &d->verify, live, count))
            verify_ended(datasets, d, BASE_UNAVAILABLE);
    }
}

static void refuse(struct server_datasets *datasets, struct server_order *order, enum base_code code,
                   const char *text)
{
    snprintf(order->last_error, sizeof order->last_error, "%s", text);
    order->last_code = code;
    order->tried[order->tried_count++] = order->worker; /* it was given: there is room */
    order->worker = 0;
    datasets->revision++;
}

static enum base_code index_done(struct server_datasets *datasets, struct server_dataset *dataset,
                                 const Millrace__V1__IndexResult *result, struct base_error *error)
{
    if (result->version.len != BASE_SHA256_BYTES || !result->items)
        return base_error_set(error, BASE_INVALID, "index of dataset %s: no version or no items",
                              dataset->name);
    struct server_dataset next = *dataset; /* stored first: an order that is done is not asked about again */
    next.classes = next.skipped_names = (struct server_lines){0};
    memcpy(next.version, result->version.data, BASE_SHA256_BYTES);
    next.has_version = true;
    next.items = result->items;
    next.bytes = result->bytes;
    next.skipped = result->skipped;
    next.state = SERVER_DATASET_READY;
    next.error[0] = 0;
    next.index = (struct server_order){0};
    next.asked_masks = NULL;
    if (dataset->asked_masks)
        next.masks = dataset->asked_masks;
    enum base_code code = BASE_OK;
    if (!lines_set(&next.classes, result->classes, result->n_classes, CLASSES_MAX_BYTES) ||
        !lines_set(&next.skipped_names, result->skipped_names, result->n_skipped_names, NAMES_MAX_BYTES))
        code = base_error_set(error, BASE_NO_MEMORY, "dataset %s: no memory", dataset->name);
    else
        code = save(datasets, &next, error);
    if (code) {
        lines_fini(&next.classes);
        lines_fini(&next.skipped_names);
        return code;
    }
    lines_fini(&dataset->classes);
    lines_fini(&dataset->skipped_names);
    if (next.masks != dataset->masks)
        free(dataset->masks);
    *dataset = next;
    datasets->revision++;
    char hex[BASE_SHA256_HEX_CHARS + 1];
    base_hash_to_hex(dataset->version, BASE_SHA256_BYTES, hex);
    base_log(BASE_LOG_INFO, "dataset_ready", "dataset=%s version=%.12s items=%llu", dataset->name, hex,
             (unsigned long long)dataset->items);
    return BASE_OK;
}

static enum base_code verify_result(struct server_datasets *datasets, struct server_dataset *dataset,
                                    const Millrace__V1__IndexResult *result, struct base_error *error)
{
    if (!lines_set(&dataset->changed_names, result->changed_names, result->n_changed_names, NAMES_MAX_BYTES))
        return base_error_set(error, BASE_NO_MEMORY, "dataset %s: no memory", dataset->name);
    dataset->changed = result->changed;
    verify_ended(datasets, dataset, BASE_OK);
    return BASE_OK;
}

enum base_code server_datasets_indexed(struct server_datasets *datasets,
                                       const Millrace__V1__IndexResult *result, struct base_error *error)
{
    for (struct server_dataset *d = datasets->first; d; d = d->next) {
        struct server_order *order = d->index.id == result->order    ? &d->index
                                     : d->verify.id == result->order ? &d->verify
                                                                     : NULL;
        if (!order || !result->order || order->worker != result->worker)
            continue;
        if (result->code)
            refuse(datasets, order, (enum base_code)result->code, result->error);
        else if (order == &d->verify)
            return verify_result(datasets, d, result, error);
        else if (server_dataset_asked_masks(d)[0] &&
                 !result->masks) /* it would be served as if it had them */
            refuse(datasets, order, BASE_UNSUPPORTED, "the worker is of a version that knows no masks");
        else
            return index_done(datasets, d, result, error);
    }
    return BASE_OK;
}

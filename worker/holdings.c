/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/holdings.h"

#include "base/clock.h"
#include "base/grow.h"
#include "base/log.h"
#include "worker/pull.h"
#include "worker/sweep.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBE_SAMPLES = 64, AGAIN_FIRST_MS = 200, AGAIN_MOST_MS = 10000, ADDRESSES_MAX = 32 };

struct holding {
    uint8_t version[BASE_SHA256_BYTES];
    char *name, *path;              /* owned */
    char *addresses[ADDRESSES_MAX]; /* of holders; owned */
    int address_count;
    struct worker_dataset *dataset; /* a reference; NULL: no manifest yet */
    bool wanted, busy, eligible;
    int64_t again_ns; /* when to try again */
    int64_t again_ms; /* and how long after that */
    char error[BASE_ERROR_TEXT_BYTES];
};

struct worker_holdings {
    struct worker_holdings_options options;
    struct holding **items; /* owned; stable addresses: chores refer to them by version */
    size_t count;
    bool swept; /* of manifests that the first orders did not name */
};

struct holding_chore {
    struct worker_chore chore;
    struct worker_holdings *holdings;
    uint8_t version[BASE_SHA256_BYTES];
    char *path, *addresses[ADDRESSES_MAX]; /* owned */
    int address_count;
    struct manifest *manifest;    /* got here; owned until done */
    struct worker_dataset *known; /* a reference: only to be probed again */
    enum base_code code;
    struct base_error error;
};

enum base_code worker_holdings_create(struct worker_holdings **out,
                                      const struct worker_holdings_options *options, struct base_error *error)
{
    struct worker_holdings *holdings = calloc(1, sizeof *holdings);
    if (!holdings)
        return base_error_set(error, BASE_NO_MEMORY, "holdings");
    holdings->options = *options;
    worker_sweep_parts(options->state_dir);
    *out = holdings;
    return BASE_OK;
}

static void free_texts(char **texts, int count)
{
    for (int i = 0; i < count; i++)
        free(texts[i]);
}

static void free_holding(struct holding *holding)
{
    if (!holding)
        return;
    worker_dataset_release(holding->dataset);
    free_texts(holding->addresses, holding->address_count);
    free(holding->name);
    free(holding->path);
    free(holding);
}

void worker_holdings_destroy(struct worker_holdings *holdings)
{
    for (size_t i = 0; holdings && i < holdings->count; i++)
        free_holding(holdings->items[i]);
    if (holdings)
        free(holdings->items);
    free(holdings);
}

void worker_holdings_path(const char *state_dir, const uint8_t version[32], char *path, size_t path_bytes)
{
    char hex[BASE_SHA256_HEX_CHARS + 1];
    base_hash_to_hex(version, BASE_SHA256_BYTES, hex);
    snprintf(path, path_bytes, "%s/manifests/%s.manifest", state_dir, hex);
}

static struct holding *find(const struct worker_holdings *holdings, const uint8_t version[32])
{
    for (size_t i = 0; i < holdings->count; i++)
        if (memcmp(holdings->items[i]->version, version, BASE_SHA256_BYTES) == 0)
            return holdings->items[i];
    return NULL;
}

struct worker_dataset *worker_holdings_find(const struct worker_holdings *holdings, const uint8_t version[32])
{
    const struct holding *holding = find(holdings, version);
    return holding ? holding->dataset : NULL;
}

/* ---- the chore ---- */

static enum base_code get_manifest(struct holding_chore *chore, struct base_error *error)
{
    const struct worker_holdings_options *options = &chore->holdings->options;
    char path[PATH_MAX];
    worker_holdings_path(options->state_dir, chore->version, path, sizeof path);
    if (access(path, R_OK) == 0 && manifest_open(&chore->manifest, path, chore->version, NULL) == BASE_OK)
        return BASE_OK;
    struct worker_pull pull = {.addresses = (const char *const *)chore->addresses,
                               .address_count = chore->address_count,
                               .version = chore->version,
                               .path = path,
                               .token_key = options->token_key,
                               .name = options->name,
                               .cancel = worker_chores_cancel(options->chores)};
    enum base_code code = worker_pull_manifest(&pull, error);
    return code == BASE_OK ? manifest_open(&chore->manifest, path, chore->version, error) : code;
}

static void work(struct worker_chore *base)
{
    struct holding_chore *chore = (struct holding_chore *)base;
    if (!chore->known) {
        chore->code = get_manifest(chore, &chore->error);
        if (chore->code != BASE_OK)
            return;
    }
    struct source_folder folder = {chore->holdings->options.roots, chore->path,
                                   chore->known ? chore->known->manifest : chore->manifest};
    chore->code = source_folder_probe(&folder, PROBE_SAMPLES, &chore->error);
}

static void keep_manifest(struct worker_holdings *holdings, struct holding *holding,
                          struct holding_chore *chore)
{
    if (!chore->manifest)
        return;
    struct base_error error;
    if (!holding->dataset && worker_dataset_create(&holding->dataset, chore->manifest, holding->name,
                                                   holding->path, holdings->options.roots, &error) == BASE_OK)
        return;
    manifest_close(&chore->manifest);
}

static void log_change(const struct holding *holding, const struct holding_chore *chore)
{
    char hex[13], quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_hash_to_hex(holding->version, 6, hex);
    if (chore->code == BASE_OK)
        base_log(BASE_LOG_INFO, "dataset_eligible", "dataset=%s version=%s", holding->name, hex);
    else
        base_log(BASE_LOG_WARN, "dataset_not_eligible", "dataset=%s version=%s error=%s", holding->name, hex,
                 base_log_quote(chore->error.text, quoted, sizeof quoted));
}

static void settle(struct worker_holdings *holdings, struct holding *holding, struct holding_chore *chore)
{
    keep_manifest(holdings, holding, chore);
    bool eligible = chore->code == BASE_OK && holding->dataset;
    const char *text = eligible ? "" : chore->error.text;
    bool news = eligible != holding->eligible || strcmp(text, holding->error) != 0;
    holding->busy = false;
    holding->eligible = eligible;
    snprintf(holding->error, sizeof holding->error, "%s", text);
    holding->again_ns = eligible ? INT64_MAX : base_clock_now_ns() + holding->again_ms * BASE_NS_PER_MS;
    holding->again_ms = holding->again_ms * 2 < AGAIN_MOST_MS ? holding->again_ms * 2 : AGAIN_MOST_MS;
    if (!news)
        return;
    log_change(holding, chore);
    holdings->options.changed(holdings->options.context);
}

static void done(struct worker_chore *base)
{
    struct holding_chore *chore = (struct holding_chore *)base;
    struct holding *holding = find(chore->holdings, chore->version);
    bool moved = holding && strcmp(holding->path, chore->path) != 0;
    if (holding && !base->dropped && !moved)
        settle(chore->holdings, holding, chore);
    else if (chore->manifest)
        manifest_close(&chore->manifest);
    if (moved)
        holding->busy = false; /* the next tick looks where it is now */
    worker_dataset_release(chore->known);
    free_texts(chore->addresses, chore->address_count);
    free(chore->path);
    free(chore);
}

static void start(struct worker_holdings *holdings, struct holding *holding)
{
    struct holding_chore *chore = calloc(1, sizeof *chore);
    if (!chore || !(chore->path = strdup(holding->path))) {
        free(chore);
        return; /* the next tick tries again */
    }
    chore->chore.work = work;
    chore->chore.done = done;
    chore->holdings = holdings;
    memcpy(chore->version, holding->version, sizeof chore->version);
    for (int i = 0; i < holding->address_count; i++)
        if ((chore->addresses[chore->address_count] = strdup(holding->addresses[i])))
            chore->address_count++;
    if (holding->dataset) {
        chore->known = holding->dataset;
        worker_dataset_hold(chore->known);
    }
    holding->busy = true;
    worker_chore_begin(holdings->options.chores, &chore->chore);
}

/* ---- orders ---- */

static struct holding *add(struct worker_holdings *holdings, const Millrace__V1__DatasetOrder *order)
{
    if (!base_grow(&holdings->items, holdings->count, sizeof *holdings->items))
        return NULL;
    struct holding *holding = calloc(1, sizeof *holding);
    if (!holding || !(holding->name = strdup(order->dataset)) || !(holding->path = strdup(order->path))) {
        free_holding(holding);
        return NULL;
    }
    memcpy(holding->version, order->version.data, sizeof holding->version);
    holding->again_ms = AGAIN_FIRST_MS;
    holdings->items[holdings->count++] = holding;
    return holding;
}

/* With a holder at last, what waited for one is tried at once. */
static void set_addresses(struct holding *holding, const Millrace__V1__DatasetOrder *order)
{
    if (holding->address_count == 0 && order->n_holders > 0)
        holding->again_ns = 0;
    free_texts(holding->addresses, holding->address_count);
    holding->address_count = 0;
    for (size_t h = 0; h < order->n_holders; h++)
        for (size_t a = 0; a < order->holders[h]->n_addresses && holding->address_count < ADDRESSES_MAX; a++)
            if ((holding->addresses[holding->address_count] = strdup(order->holders[h]->addresses[a])))
                holding->address_count++;
}

/* Registered anew under another path: streams that are live go on where they were, new ones begin there. */
static void set_path(struct holding *holding, const Millrace__V1__DatasetOrder *order)
{
    if (strcmp(holding->path, order->path) == 0)
        return;
    char *path = strdup(order->path);
    if (!path)
        return;
    free(holding->path);
    holding->path = path;
    worker_dataset_release(holding->dataset);
    holding->dataset = NULL;
    holding->eligible = false;
    holding->again_ns = 0;
}

/* Its streams that are live keep it mapped. A chore that is out may yet write it: then it goes with the next start. */
static void remove_manifest(const struct worker_holdings *holdings, const struct holding *holding)
{
    char path[PATH_MAX];
    worker_holdings_path(holdings->options.state_dir, holding->version, path, sizeof path);
    if (!holding->busy)
        unlink(path);
}

static bool is_held(void *context, const uint8_t version[32])
{
    return find(context, version) != NULL;
}

static void drop_unwanted(struct worker_holdings *holdings)
{
    size_t kept = 0;
    for (size_t i = 0; i < holdings->count; i++) {
        if (holdings->items[i]->wanted)
            holdings->items[kept++] = holdings->items[i];
        else {
            remove_manifest(holdings, holdings->items[i]);
            free_holding(holdings->items[i]); /* a chore that is out finds nobody */
        }
    }
    holdings->count = kept;
    if (!holdings->swept) /* nothing is being indexed yet */
        worker_sweep_manifests(holdings->options.state_dir, is_held, holdings);
    holdings->swept = true;
}

void worker_holdings_order(struct worker_holdings *holdings, int64_t now_ns,
                           Millrace__V1__DatasetOrder *const *orders, size_t count)
{
    for (size_t i = 0; i < holdings->count; i++)
        holdings->items[i]->wanted = false;
    for (size_t i = 0; i < count; i++) {
        if (orders[i]->version.len != BASE_SHA256_BYTES)
            continue;
        struct holding *holding = find(holdings, orders[i]->version.data);
        if (!holding)
            holding = add(holdings, orders[i]);
        if (!holding)
            continue;
        holding->wanted = true;
        set_addresses(holding, orders[i]);
        set_path(holding, orders[i]);
    }
    drop_unwanted(holdings);
    worker_holdings_tick(holdings, now_ns);
}

void worker_holdings_tick(struct worker_holdings *holdings, int64_t now_ns)
{
    for (size_t i = 0; i < holdings->count; i++) {
        struct holding *holding = holdings->items[i];
        if (!holding->busy && !holding->eligible && now_ns >= holding->again_ns)
            start(holdings, holding);
    }
}

size_t worker_holdings_count(const struct worker_holdings *holdings)
{
    return holdings->count;
}

void worker_holdings_report(const struct worker_holdings *holdings, size_t index,
                            Millrace__V1__DatasetHeld *held)
{
    struct holding *holding = holdings->items[index];
    millrace__v1__dataset_held__init(held);
    held->version = (ProtobufCBinaryData){sizeof holding->version, holding->version};
    held->eligible = holding->eligible;
    held->error = holding->error;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sweep.h"

#include "base/hash.h"
#include "base/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MANIFEST ".manifest"
#define ORDER "order-"
#define NEW ".new"

enum kind { FOREIGN, MANIFEST_WHOLE, PART };

/* Nothing, or the six characters that mkostemp puts behind a name. */
static bool is_suffix(const char *text, bool *none)
{
    *none = *text == '\0';
    return *none || (text[0] == '.' && strlen(text) == 7 &&
                     strspn(text + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == 6);
}

static enum kind kind_of(const char *name, uint8_t version[BASE_SHA256_BYTES])
{
    char hex[BASE_SHA256_HEX_CHARS + 1];
    bool none;
    if (strncmp(name, ORDER, strlen(ORDER)) == 0) {
        const char *number = name + strlen(ORDER);
        size_t digits = strspn(number, "0123456789");
        bool ours = digits > 0 && strncmp(number + digits, NEW, strlen(NEW)) == 0 &&
                    is_suffix(number + digits + strlen(NEW), &none);
        return ours ? PART : FOREIGN;
    }
    size_t digits = strspn(name, "0123456789abcdef");
    if (digits != BASE_SHA256_HEX_CHARS || strncmp(name + digits, MANIFEST, strlen(MANIFEST)) != 0 ||
        !is_suffix(name + digits + strlen(MANIFEST), &none))
        return FOREIGN;
    snprintf(hex, sizeof hex, "%.*s", BASE_SHA256_HEX_CHARS, name);
    if (!base_hash_from_hex(hex, version, BASE_SHA256_BYTES))
        return FOREIGN;
    return none ? MANIFEST_WHOLE : PART;
}

struct sweep {
    enum kind kind;
    bool (*wanted)(void *context, const uint8_t version[32]); /* NULL: none is */
    void *context;
};

static int run(const char *state_dir, const struct sweep *sweep)
{
    char path[PATH_MAX];
    int removed = 0;
    snprintf(path, sizeof path, "%s/manifests", state_dir);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        uint8_t version[BASE_SHA256_BYTES];
        if (kind_of(entry->d_name, version) != sweep->kind ||
            (sweep->wanted && sweep->wanted(sweep->context, version)))
            continue;
        if (unlinkat(dirfd(folder), entry->d_name, 0) != 0)
            continue; /* what cannot be removed harms nobody */
        base_log(BASE_LOG_INFO, "swept", "file=%s", entry->d_name);
        removed++;
    }
    if (folder)
        closedir(folder);
    return removed;
}

int worker_sweep_parts(const char *state_dir)
{
    return run(state_dir, &(struct sweep){.kind = PART});
}

int worker_sweep_manifests(const char *state_dir, bool (*wanted)(void *context, const uint8_t version[32]),
                           void *context)
{
    return run(state_dir, &(struct sweep){MANIFEST_WHOLE, wanted, context});
}

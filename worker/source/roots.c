/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usual path lies beneath a root as it is written, without links that leave it: one openat2 opens it. When the kernel says that a link
 * leads out, or is absolute, the path is resolved, and what it leads to is opened beneath whichever root holds that.
 */
#include "worker/source/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct root {
    char *given, *real; /* owned; as the operator wrote it, and resolved */
    int fd;             /* O_PATH */
};

struct source_roots {
    struct root *roots;
    struct source_map *maps; /* owned copies */
    int count, map_count;
};

/* What `path` has behind the whole components of `folder`, without leading slashes; NULL: it does not lie beneath it. */
static const char *behind(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    while (length > 0 && folder[length - 1] == '/')
        length--;
    if (strncmp(path, folder, length) != 0 || (path[length] && path[length] != '/'))
        return NULL;
    return path + length + strspn(path + length, "/");
}

static bool climbs(const char *path)
{
    for (const char *part = strstr(path, "/.."); part; part = strstr(part + 3, "/.."))
        if (part[3] == '/' || part[3] == 0)
            return true;
    return false;
}

static enum base_code add_root(struct source_roots *roots, const char *path, struct base_error *error)
{
    struct root *root = &roots->roots[roots->count++];
    *root = (struct root){.fd = -1, .given = strdup(path), .real = realpath(path, NULL)};
    if (path[0] != '/')
        return base_error_set(error, BASE_INVALID, "data root \"%s\": not an absolute path", path);
    if (!root->real)
        return base_error_errno(error, errno, "data root %s", path);
    if (!root->given)
        return base_error_set(error, BASE_NO_MEMORY, "data root %s: no memory", path);
    root->fd = open(root->real, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root->fd >= 0 ? BASE_OK : base_error_errno(error, errno, "data root %s", path);
}

static enum base_code add_map(struct source_roots *roots, const struct source_map *map,
                              struct base_error *error)
{
    struct source_map *copy = &roots->maps[roots->map_count++];
    *copy = (struct source_map){strdup(map->from), strdup(map->to)};
    if (!copy->from || !copy->to)
        return base_error_set(error, BASE_NO_MEMORY, "map %s=%s: no memory", map->from, map->to);
    if (map->from[0] != '/' || map->to[0] != '/')
        return base_error_set(error, BASE_INVALID, "map %s=%s: both must be absolute paths", map->from,
                              map->to);
    return BASE_OK;
}

enum base_code source_roots_open(struct source_roots **roots, const char *const *paths, int count,
                                 const struct source_map *maps, int map_count, struct base_error *error)
{
    enum base_code code = BASE_OK;
    struct source_roots *r = calloc(1, sizeof *r);
    if (r) {
        r->roots = calloc((size_t)count + 1, sizeof *r->roots);
        r->maps = calloc((size_t)map_count + 1, sizeof *r->maps);
    }
    if (!r || !r->roots || !r->maps)
        code = base_error_set(error, BASE_NO_MEMORY, "data roots: no memory");
    for (int i = 0; code == BASE_OK && i < count; i++)
        code = add_root(r, paths[i], error);
    for (int i = 0; code == BASE_OK && i < map_count; i++)
        code = add_map(r, &maps[i], error);
    if (code != BASE_OK)
        source_roots_close(&r);
    else
        *roots = r;
    return code;
}

void source_roots_close(struct source_roots **roots)
{
    struct source_roots *r = *roots;
    *roots = NULL;
    if (!r)
        return;
    for (int i = 0; r->roots && i < r->count; i++) {
        if (r->roots[i].fd >= 0)
            close(r->roots[i].fd);
        free(r->roots[i].given);
        free(r->roots[i].real);
    }
    for (int i = 0; r->maps && i < r->map_count; i++) {
        free((char *)(uintptr_t)r->maps[i].from);
        free((char *)(uintptr_t)r->maps[i].to);
    }
    free(r->roots);
    free(r->maps);
    free(r);
}

/* The path where this machine has it; the longest `from` wins. */
static enum base_code map_path(const struct source_roots *roots, const char *path, char out[PATH_MAX],
                               struct base_error *error)
{
    const struct source_map *best = NULL;
    for (int i = 0; i < roots->map_count; i++)
        if (behind(path, roots->maps[i].from) && (!best || strlen(roots->maps[i].from) > strlen(best->from)))
            best = &roots->maps[i];
    int size = best ? snprintf(out, PATH_MAX, "%s/%s", best->to, behind(path, best->from))
                    : snprintf(out, PATH_MAX, "%s", path);
    if (size < 0 || size >= PATH_MAX)
        return base_error_set(error, BASE_TOO_LARGE, "%.200s...: a path of more than %d bytes", path,
                              PATH_MAX);
    return BASE_OK;
}

/* -1 and errno on failure. */
static int open_beneath(const struct root *root, const char *rest, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd;
    do { /* EAGAIN: something was renamed while ".." was resolved */
        fd = (int)syscall(SYS_openat2, root->fd, *rest ? rest : ".", &how, sizeof how);
    } while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    return fd;
}

static enum base_code refuse(const struct source_roots *roots, const char *path, const char *real,
                             struct base_error *error)
{
    char list[256] = "";
    for (int i = 0, used = 0; i < roots->count && used < (int)sizeof list - 1; i++)
        used +=
            snprintf(list + used, sizeof list - (size_t)used, "%s%s", i ? ", " : "", roots->roots[i].given);
    if (!real || strcmp(path, real) == 0)
        return base_error_set(error, BASE_REFUSED, "%s: outside the data roots (%s)", path, list);
    return base_error_set(error, BASE_REFUSED, "%s: leads to %s, outside the data roots (%s)", path, real,
                          list);
}

/* `inside`: the path as written lies beneath a root: only then may a stranger learn what is missing. */
static enum base_code open_resolved(const struct source_roots *roots, const char *path, bool inside,
                                    int flags, int *fd, struct base_error *error)
{
    char *real = realpath(path, NULL);
    if (!real)
        return inside ? base_error_errno(error, errno, "%s", path) : refuse(roots, path, NULL, error);
    enum base_code code = BASE_OK;
    const struct root *root = NULL;
    for (int i = 0; i < roots->count && !root; i++)
        root = behind(real, roots->roots[i].real) ? &roots->roots[i] : NULL;
    *fd = root ? open_beneath(root, behind(real, root->real), flags) : -1;
    if (!root || (*fd < 0 && errno == EXDEV))
        code = refuse(roots, path, real, error);
    else if (*fd < 0)
        code = base_error_errno(error, errno, "%s", path);
    free(real);
    return code;
}

enum base_code source_roots_open_any(const struct source_roots *roots, const char *given_path, int flags,
                                     int *fd, struct base_error *error)
{
    char path[PATH_MAX];
    if (given_path[0] != '/')
        return base_error_set(error, BASE_INVALID, "\"%s\": not an absolute path", given_path);
    enum base_code code = map_path(roots, given_path, path, error);
    if (code != BASE_OK)
        return code;
    bool inside = false;
    for (int i = 0; i < roots->count; i++) {
        const struct root *root = &roots->roots[i];
        const char *rest = behind(path, root->given);
        if (!rest)
            rest = behind(path, root->real);
        if (!rest)
            continue;
        inside = !climbs(path);
        *fd = open_beneath(root, rest, flags);
        if (*fd >= 0)
            return BASE_OK;
        if (errno != EXDEV && errno != ELOOP)
            return base_error_errno(error, errno, "%s", path);
    }
    return open_resolved(roots, path, inside, flags, fd, error);
}

enum base_code source_roots_open_file(const struct source_roots *roots, const char *path, int *fd,
                                      struct base_error *error)
{
    int opened = -1;
    struct stat stat;
    /* not blocking: the name may be a pipe's */
    enum base_code code =
        source_roots_open_any(roots, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, &opened, error);
    if (code != BASE_OK)
        return code;
    if (fstat(opened, &stat) != 0)
        code = base_error_errno(error, errno, "%s", path);
    else if (!S_ISREG(stat.st_mode))
        code = base_error_set(error, BASE_INVALID, "%s: not a regular file", path);
    if (code == BASE_OK)
        *fd = opened;
    else
        close(opened);
    return code;
}

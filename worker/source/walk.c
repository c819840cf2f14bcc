/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/source/walk.h"

#include "base/clock.h"
#include "base/grow.h"
#include "base/utf8.h"
#include "worker/source/roots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- order ---- */

static uint32_t next_point(const uint8_t **text)
{
    size_t size = base_utf8_size((const char *)*text);
    uint32_t point = size == 0   ? 0xDC00u + **text /* Python's surrogateescape */
                     : size == 1 ? **text
                                 : **text & (0x7Fu >> size);
    for (size_t i = 1; i < size; i++)
        point = point << 6 | ((*text)[i] & 0x3F);
    *text += size > 0 ? size : 1;
    return point;
}

static int compare_spans(const uint8_t *a, const uint8_t *a_end, const uint8_t *b, const uint8_t *b_end)
{
    while (a < a_end && b < b_end) {
        uint32_t x = next_point(&a), y = next_point(&b);
        if (x != y)
            return x < y ? -1 : 1;
    }
    return (a < a_end) - (b < b_end);
}

static int compare_parts(const char *a, size_t a_size, const char *b, size_t b_size)
{
    return compare_spans((const uint8_t *)a, (const uint8_t *)a + a_size, (const uint8_t *)b,
                         (const uint8_t *)b + b_size);
}

/* As Python compares str(a) and str(b) of file names. */
static int compare_text(const char *a, const char *b)
{
    return compare_parts(a, strlen(a), b, strlen(b));
}

static size_t folder_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? (size_t)(slash - name) : 0;
}

int source_walk_compare_names(const char *a, const char *b)
{
    int order = compare_parts(a, strcspn(a, "/"), b, strcspn(b, "/"));
    if (order == 0)
        order = compare_parts(a, folder_of(a), b, folder_of(b));
    return order ? order : compare_text(a, b);
}

static bool is_image(const char *name)
{
    static const char *const suffixes[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                           ".pgm", ".tif",  ".tiff", ".webp"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t size = strlen(suffixes[i]);
        if (length >= size && strcasecmp(name + length - size, suffixes[i]) == 0)
            return true;
    }
    return false;
}

int64_t source_walk_mtime_ns(const struct stat *stat)
{
    return (int64_t)stat->st_mtim.tv_sec * BASE_NS_PER_S + stat->st_mtim.tv_nsec;
}

/* ---- folders ---- */

struct file {
    char *name; /* owned */
    uint64_t size_bytes;
    int64_t mtime_ns;
    bool skipped;
    struct base_error *problem; /* owned; NULL: none */
};

struct folder {
    char *path;  /* owned; relative */
    long parent; /* index; -1: the top one */
    dev_t device;
    ino_t inode;
    struct file *files; /* owned */
    size_t count;
};

/* The folders of one class, or the walked folder itself: index 0 is the top, each behind its parent. */
struct tree {
    struct folder *folders;
    size_t count;
};

struct walk {
    const struct source_roots *roots;
    const char *path;
    const _Atomic bool *cancel;
    const struct source_visitor *visitor;
    struct tree tree;
};

static void tree_clear(struct tree *tree)
{
    for (size_t i = 0; i < tree->count; i++) {
        struct folder *folder = &tree->folders[i];
        for (size_t j = 0; j < folder->count; j++) {
            free(folder->files[j].name);
            free(folder->files[j].problem);
        }
        free(folder->files);
        free(folder->path);
    }
    free(tree->folders);
    *tree = (struct tree){0};
}

static char *join(const char *folder, const char *name)
{
    char *path;
    if (asprintf(&path, *folder ? "%s/%s" : "%s%s", folder, name) < 0)
        return NULL;
    return path;
}

static enum base_code no_memory(const char *name, struct base_error *error)
{
    return base_error_set(error, BASE_NO_MEMORY, "%s: no memory for a list of files", name);
}

static enum base_code add_folder(struct tree *tree, const char *parent_path, long parent, const char *name,
                                 struct base_error *error)
{
    char *path = join(parent_path, name);
    if (!path || !base_grow(&tree->folders, tree->count, sizeof *tree->folders)) {
        free(path);
        return no_memory(name, error);
    }
    tree->folders[tree->count++] = (struct folder){.path = path, .parent = parent};
    return BASE_OK;
}

static enum base_code add_file(struct folder *folder, struct file file, const char *name,
                               struct base_error *error)
{
    file.name = strdup(name);
    if (!file.name || !base_grow(&folder->files, folder->count, sizeof file)) {
        free(file.name);
        free(file.problem);
        return no_memory(name, error);
    }
    folder->files[folder->count++] = file;
    return BASE_OK;
}

static enum base_code add_problem(struct folder *folder, const char *name, const struct base_error *cause,
                                  struct base_error *error)
{
    struct base_error *problem = malloc(sizeof *problem);
    if (!problem)
        return no_memory(name, error);
    *problem = *cause;
    return add_file(folder, (struct file){.problem = problem}, name, error);
}

/* ---- reading ---- */

/* That memory is out says nothing about the file: the walk ends. */
static enum base_code report(const struct walk *walk, const char *name, const struct base_error *cause,
                             struct base_error *error)
{
    if (cause->code == BASE_NO_MEMORY)
        return base_error_set(error, cause->code, "%s", cause->text);
    return walk->visitor->problem(walk->visitor->context, name, cause, error);
}

static enum base_code open_in_walk(const struct walk *walk, const char *relative, int flags, int *fd,
                                   struct base_error *cause)
{
    char *path = *relative ? join(walk->path, relative) : strdup(walk->path);
    enum base_code code =
        path ? source_roots_open_any(walk->roots, path, flags, fd, cause) : no_memory(relative, cause);
    free(path);
    return code;
}

/* What a link leads to. */
static enum base_code stat_link(const struct walk *walk, const char *relative, struct stat *stat,
                                struct base_error *cause)
{
    int fd;
    enum base_code code = open_in_walk(walk, relative, O_PATH, &fd, cause);
    if (code != BASE_OK)
        return code;
    if (fstat(fd, stat) != 0)
        code = base_error_errno(cause, errno, "%s", relative);
    close(fd);
    return code;
}

static enum base_code take_entry(struct walk *walk, size_t index, int folder_fd, const char *name,
                                 struct base_error *error)
{
    struct stat stat = {0};
    struct base_error cause = {0};
    struct folder *folder = &walk->tree.folders[index];
    char *relative = join(folder->path, name);
    if (!relative)
        return no_memory(name, error);
    if (fstatat(folder_fd, name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
        base_error_errno(&cause, errno, "%s", relative);
    else if (S_ISLNK(stat.st_mode))
        stat_link(walk, relative, &stat, &cause);
    if (cause.code == BASE_OK && !S_ISDIR(stat.st_mode) && !S_ISREG(stat.st_mode) && is_image(name))
        base_error_set(&cause, BASE_INVALID, "%s: not a regular file", relative);
    free(relative);
    if (cause.code == BASE_OK && S_ISDIR(stat.st_mode))
        return add_folder(&walk->tree, folder->path, (long)index, name, error);
    if (!is_image(name) && (cause.code == BASE_OK || cause.code == BASE_NOT_FOUND))
        return add_file(folder, (struct file){.skipped = true}, name, error);
    if (cause.code != BASE_OK)
        return add_problem(folder, name, &cause, error);
    struct file file = {.size_bytes = (uint64_t)stat.st_size, .mtime_ns = source_walk_mtime_ns(&stat)};
    return add_file(folder, file, name, error);
}

/* A folder that is its own ancestor, by way of a link. */
static bool loops(const struct tree *tree, size_t index, const char **ancestor)
{
    const struct folder *folder = &tree->folders[index];
    for (long up = folder->parent; up >= 0; up = tree->folders[up].parent) {
        *ancestor = tree->folders[up].path;
        if (tree->folders[up].inode == folder->inode && tree->folders[up].device == folder->device)
            return true;
    }
    return false;
}

static enum base_code read_entries(struct walk *walk, size_t index, DIR *stream, struct base_error *error)
{
    enum base_code code = BASE_OK;
    while (code == BASE_OK) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry && errno) {
            struct base_error cause;
            base_error_errno(&cause, errno, "%s", walk->tree.folders[index].path);
            return report(walk, NULL, &cause, error);
        }
        if (!entry)
            break;
        if (walk->cancel && atomic_load_explicit(walk->cancel, memory_order_relaxed))
            return base_error_set(error, BASE_CANCELLED, "%s: cancelled", walk->path);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            code = take_entry(walk, index, dirfd(stream), entry->d_name, error);
    }
    return code;
}

static enum base_code read_folder(struct walk *walk, size_t index, struct base_error *error)
{
    int fd = -1;
    struct stat stat;
    struct base_error cause;
    const char *ancestor, *path = walk->tree.folders[index].path;
    if (open_in_walk(walk, path, O_RDONLY | O_DIRECTORY, &fd, &cause) != BASE_OK)
        return report(walk, NULL, &cause, error);
    DIR *stream = fstat(fd, &stat) == 0 ? fdopendir(fd) : NULL;
    if (!stream) {
        base_error_errno(&cause, errno, "%s", path);
        close(fd);
        return report(walk, NULL, &cause, error);
    }
    walk->tree.folders[index].device = stat.st_dev;
    walk->tree.folders[index].inode = stat.st_ino;
    enum base_code code;
    if (loops(&walk->tree, index, &ancestor)) {
        base_error_set(&cause, BASE_INVALID, "%s: a loop of links, it leads back to %s", path,
                       *ancestor ? ancestor : "the dataset's folder");
        code = report(walk, NULL, &cause, error);
    } else {
        code = read_entries(walk, index, stream, error);
    }
    closedir(stream);
    return code;
}

/* ---- telling ---- */

static int by_name(const void *a, const void *b)
{
    const struct file *x = a, *y = b;
    return compare_text(x->name, y->name);
}

static int by_path(const void *a, const void *b)
{
    const struct folder *x = a, *y = b;
    return compare_text(x->path, y->path);
}

static enum base_code tell_folder(const struct walk *walk, struct folder *folder, int32_t label,
                                  struct base_error *error)
{
    enum base_code code = BASE_OK;
    if (folder->count > 0)
        qsort(folder->files, folder->count, sizeof *folder->files, by_name);
    for (size_t i = 0; code == BASE_OK && i < folder->count; i++) {
        const struct file *file = &folder->files[i];
        char *name = join(folder->path, file->name);
        if (!name)
            return no_memory(file->name, error);
        struct source_found found = {name, label, file->size_bytes, file->mtime_ns,
                                     file->skipped || label < 0};
        code = file->problem ? report(walk, name, file->problem, error)
                             : walk->visitor->found(walk->visitor->context, &found, error);
        free(name);
    }
    return code;
}

/* Reads the whole class, then sorts: the order of folders is that of whole paths, not the tree's. */
static enum base_code walk_class(struct walk *walk, const char *name, int32_t label, const struct folder *top,
                                 struct base_error *error)
{
    const struct source_visitor *visitor = walk->visitor;
    enum base_code code = visitor->begin_class(visitor->context, name, error);
    if (code == BASE_OK) /* the walked folder first: a link to it is a loop, too */
        code = add_folder(&walk->tree, "", -1, "", error);
    if (code == BASE_OK)
        code = add_folder(&walk->tree, "", 0, name, error);
    if (code == BASE_OK) {
        walk->tree.folders[0].device = top->device;
        walk->tree.folders[0].inode = top->inode;
    }
    for (size_t i = 1; code == BASE_OK && i < walk->tree.count; i++)
        code = read_folder(walk, i, error);
    if (code == BASE_OK && walk->tree.count > 2)
        qsort(walk->tree.folders + 1, walk->tree.count - 1, sizeof *walk->tree.folders, by_path);
    for (size_t i = 1; code == BASE_OK && i < walk->tree.count; i++)
        code = tell_folder(walk, &walk->tree.folders[i], label, error);
    tree_clear(&walk->tree);
    return code == BASE_OK ? visitor->end_class(visitor->context, name, error) : code;
}

/* The walked folder alone: its subfolders are the classes. */
static enum base_code read_top(struct walk *walk, struct base_error *error)
{
    int fd;
    enum base_code code = open_in_walk(walk, "", O_RDONLY | O_DIRECTORY, &fd, error);
    if (code != BASE_OK)
        return code;
    close(fd);
    code = add_folder(&walk->tree, "", -1, "", error);
    return code == BASE_OK ? read_folder(walk, 0, error) : code;
}

enum base_code source_walk(const struct source_roots *roots, const char *path, const _Atomic bool *cancel,
                           const struct source_visitor *visitor, struct base_error *error)
{
    struct walk walk = {.roots = roots, .path = path, .cancel = cancel, .visitor = visitor};
    enum base_code code = read_top(&walk, error);
    struct tree top = walk.tree;
    walk.tree = (struct tree){0};
    if (code == BASE_OK && top.count > 2)
        qsort(top.folders + 1, top.count - 1, sizeof *top.folders, by_path);
    for (size_t i = 1; code == BASE_OK && i < top.count; i++)
        code = walk_class(&walk, top.folders[i].path, (int32_t)i - 1, &top.folders[0], error);
    if (code == BASE_OK && top.count > 0)
        code = tell_folder(&walk, &top.folders[0], -1, error);
    tree_clear(&walk.tree);
    tree_clear(&top);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/settings.h"

#include "base/address.h"
#include "base/limits.h"
#include "proto/rpc/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define AT(field) offsetof(struct worker_settings, field)

static const struct base_option table[] = {
    {"server", BASE_OPTION_TEXT, "127.0.0.1:7070", "ADDR", "control address of the server", AT(server), 0, 0},
    {"listen", BASE_OPTION_TEXT, "127.0.0.1:0", "ADDR", "address of the data port; port 0: any free one",
     AT(listen), 0, 0},
    {"advertise", BASE_OPTION_LIST, NULL, "ADDR",
     "address that others use for the data port; not given: what it listens on", AT(advertise), 0, 0},
    {"data-root", BASE_OPTION_LIST, NULL, "DIR", "folder beneath which files may be read; at least one",
     AT(data_roots), 0, 0},
    {"map", BASE_OPTION_LIST, NULL, "FROM=TO", "paths that begin with FROM are read at TO", AT(maps), 0, 0},
    {"state", BASE_OPTION_TEXT, "", "DIR",
     "folder for manifests and the worker's id; not given: ~/.local/state/millrace-worker", AT(state), 0, 0},
    {"staging", BASE_OPTION_BYTES, "0", "BYTES",
     "memory for prepared blocks; 0: a quarter of what this process may use", AT(staging_bytes), 0, 0},
    {"raw", BASE_OPTION_BYTES, "0", "BYTES",
     "memory for raw items being prepared; 0: 1/16 of what it may use", AT(raw_bytes), 0, 0},
    {"threads", BASE_OPTION_INT, "0", "N", "prep threads; 0: one per usable core", AT(threads), 0, 4096},
    {"io-threads", BASE_OPTION_INT, "16", "N", "threads that read raw items", AT(io_threads), 1, 4096},
    {"cpu-class", BASE_OPTION_TEXT, "idle", "CLASS",
     "of prep threads: idle (they give way to all else) or normal", AT(cpu_class), 0, 0},
    {"secret-file", BASE_OPTION_TEXT, NULL, "FILE", "key of tokens; without it only loopback is served",
     AT(secret_file), 0, 0},
    {"insecure", BASE_OPTION_BOOL, NULL, NULL, "serve any address without a token", AT(insecure), 0, 0},
    {"worker-id", BASE_OPTION_TEXT, NULL, "N",
     "number of this worker; not given: random, kept in the state folder", AT(worker_id_text), 0, 0},
    {"drain-ms", BASE_OPTION_INT, "5000", "MS", "milliseconds to serve what is staged after SIGTERM",
     AT(drain_ms), 0, 3600000},
    {"log-level", BASE_OPTION_TEXT, "info", "LEVEL", "debug, info, warn or error", AT(log_level), 0, 0},
};

static const struct base_options options = {
    .program = "millrace-worker",
    .usage = "--data-root DIR [options]",
    .summary = "Prepares minibatches on an idle machine and serves them to trainers. Prints `ready ADDR` "
               "when its data\n"
               "port serves. On SIGTERM it makes nothing new, serves what is staged, and ends.",
    .table = table,
    .count = sizeof table / sizeof *table,
};

void worker_settings_help(FILE *out)
{
    base_options_help(&options, out);
}

/* ---- checks ---- */

static enum base_code read_words(struct worker_settings *settings, struct base_error *error)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    settings->idle = strcmp(settings->cpu_class, "idle") == 0;
    if (!settings->idle && strcmp(settings->cpu_class, "normal") != 0)
        return base_error_set(error, BASE_INVALID, "--cpu-class \"%s\": must be idle or normal",
                              settings->cpu_class);
    for (int i = 0; i < 4; i++)
        if (strcmp(settings->log_level, levels[i]) == 0) {
            settings->level = (enum base_log_level)i;
            return BASE_OK;
        }
    return base_error_set(error, BASE_INVALID, "--log-level \"%s\": must be debug, info, warn or error",
                          settings->log_level);
}

static enum base_code read_maps(struct worker_settings *settings, struct base_error *error)
{
    for (int i = 0; i < settings->maps.count; i++) {
        char *text = settings->map_texts[i];
        const char *given = settings->maps.values[i];
        if (strlen(given) >= sizeof settings->map_texts[i])
            return base_error_set(error, BASE_TOO_LARGE, "--map: over %zu bytes",
                                  sizeof settings->map_texts[i]);
        strcpy(text, given);
        char *equals = strchr(text, '=');
        if (!equals || equals == text || equals[1] == '\0')
            return base_error_set(error, BASE_INVALID, "--map \"%s\": must be FROM=TO", given);
        *equals = '\0';
        settings->map_list[i] = (struct source_map){text, equals + 1};
    }
    return BASE_OK;
}

/* Another address than loopback needs tokens, or a clear word that none are wanted. */
static enum base_code check_listen(struct worker_settings *settings, struct base_error *error)
{
    char host[256];
    uint16_t port;
    enum base_code code = base_address_parse(settings->listen, host, &port, error);
    if (code != BASE_OK)
        return base_error_prefix(error, code, "--listen");
    if (!settings->has_key && !settings->insecure && !base_address_is_loopback(host))
        return base_error_set(
            error, BASE_REFUSED,
            "--listen %s: not a loopback address: give --secret-file, or --insecure to serve without tokens",
            settings->listen);
    bool wildcard = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    if (wildcard && settings->advertise.count == 0)
        return base_error_set(error, BASE_INVALID,
                              "--listen %s: say with --advertise which address others use", settings->listen);
    return BASE_OK;
}

static enum base_code take_budgets(struct worker_settings *settings, struct base_error *error)
{
    uint64_t memory_bytes = base_limits_memory_bytes();
    if (settings->staging_bytes == 0)
        settings->staging_bytes = memory_bytes / 4;
    if (settings->raw_bytes == 0)
        settings->raw_bytes = memory_bytes / 16;
    if (settings->threads == 0)
        settings->threads = base_limits_cores();
    /* staging counts only when it is touched: too much of it would be a kill in the middle of an epoch */
    if (settings->staging_bytes > memory_bytes ||
        settings->raw_bytes > memory_bytes - settings->staging_bytes)
        return base_error_set(
            error, BASE_TOO_LARGE,
            "--staging %llu and --raw %llu bytes: this process may use %llu bytes of memory",
            (unsigned long long)settings->staging_bytes, (unsigned long long)settings->raw_bytes,
            (unsigned long long)memory_bytes);
    return BASE_OK;
}

static enum base_code choose_state(struct worker_settings *settings, struct base_error *error)
{
    const char *home = getenv("HOME");
    int size = settings->state[0] != '\0'
                   ? snprintf(settings->state_dir, sizeof settings->state_dir, "%s", settings->state)
                   : snprintf(settings->state_dir, sizeof settings->state_dir,
                              "%s/.local/state/millrace-worker", home ? home : "/var/lib");
    if (size < 0 || (size_t)size >= sizeof settings->state_dir - 200)
        return base_error_set(error, BASE_TOO_LARGE, "--state: the path is too long");
    return BASE_OK;
}

enum base_code worker_settings_parse(struct worker_settings *settings, int argc, char **argv,
                                     struct base_error *error)
{
    memset(settings, 0, sizeof *settings);
    enum base_code code = base_options_parse(&options, argc, argv, settings, &settings->rest, error);
    if (code != BASE_OK || settings->rest.help || settings->rest.version)
        return code;
    if (settings->data_roots.count == 0)
        return base_error_set(error, BASE_INVALID, "--data-root: at least one is needed");
    settings->has_key = settings->secret_file && settings->secret_file[0] != '\0';
    if (settings->has_key)
        code =
            rpc_token_read_key(settings->secret_file, settings->token_key, sizeof settings->token_key, error);
    if (code == BASE_OK)
        code = read_words(settings, error);
    if (code == BASE_OK)
        code = read_maps(settings, error);
    if (code == BASE_OK)
        code = check_listen(settings, error);
    if (code == BASE_OK)
        code = choose_state(settings, error);
    return code == BASE_OK ? take_budgets(settings, error) : code;
}

/* ---- identity ---- */

static enum base_code make_folders(char *path, struct base_error *error)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700); /* what matters is whether the last one is there */
        *slash = '/';
    }
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return base_error_errno(error, errno, "making the state folder %s", path);
    return BASE_OK;
}

static enum base_code parse_id(const char *text, const char *where, uint64_t *id, struct base_error *error)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || (*end != '\0' && *end != '\n') || errno || value == 0 || text[0] == '-')
        return base_error_set(error, BASE_INVALID, "%s: a worker's id is a number from 1 on", where);
    *id = value;
    return BASE_OK;
}

static enum base_code keep_id(const char *path, uint64_t id, struct base_error *error)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return base_error_errno(error, errno, "writing %s", path);
    bool written = fprintf(file, "%llu\n", (unsigned long long)id) > 0;
    if (fclose(file) != 0 || !written)
        return base_error_errno(error, errno, "writing %s", path);
    return BASE_OK;
}

/* One process an id: the lock lives as long as the process. */
static enum base_code lock_id(struct worker_settings *settings, struct base_error *error)
{
    char path[WORKER_STATE_CHARS];
    snprintf(path, sizeof path, "%.4000s/worker-%llu.lock", settings->state_dir,
             (unsigned long long)settings->worker);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return base_error_errno(error, errno, "opening %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        settings->lock_fd = fd;
        return BASE_OK;
    }
    close(fd);
    return base_error_set(error, BASE_EXISTS,
                          "--state %s: worker %llu is running already; another one needs another folder",
                          settings->state_dir, (unsigned long long)settings->worker);
}

static enum base_code find_id(struct worker_settings *settings, struct base_error *error)
{
    char path[WORKER_STATE_CHARS], text[32] = "";
    if (settings->worker_id_text)
        return parse_id(settings->worker_id_text, "--worker-id", &settings->worker, error);
    snprintf(path, sizeof path, "%.4000s/worker-id", settings->state_dir);
    FILE *file = fopen(path, "re");
    if (file) {
        bool read = fgets(text, sizeof text, file) != NULL;
        fclose(file);
        return parse_id(read ? text : "", path, &settings->worker, error);
    }
    do {
        if (getrandom(&settings->worker, sizeof settings->worker, 0) != (ssize_t)sizeof settings->worker)
            return base_error_errno(error, errno, "a random worker id");
        settings->worker >>= 11; /* exact in a double, as readers of JSON keep numbers */
    } while (settings->worker == 0);
    return keep_id(path, settings->worker, error);
}

enum base_code worker_settings_identify(struct worker_settings *settings, struct base_error *error)
{
    enum base_code code = make_folders(settings->state_dir, error);
    if (code == BASE_OK)
        code = find_id(settings, error);
    return code == BASE_OK ? lock_id(settings, error) : code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's options: one table, checked together. */
#ifndef WORKER_SETTINGS_H
#define WORKER_SETTINGS_H

#include "base/log.h"
#include "base/options.h"
#include "worker/source/source.h"

#define WORKER_STATE_CHARS 4096

struct worker_settings {
    const char *server, *listen, *state, *cpu_class, *secret_file, *worker_id_text, *log_level;
    struct base_option_list advertise, data_roots, maps;
    uint64_t staging_bytes, raw_bytes;
    int64_t threads, io_threads, drain_ms;
    bool insecure;
    /* worked out */
    uint64_t worker; /* id */
    int lock_fd;     /* held as long as the process lives */
    bool idle;
    enum base_log_level level;
    char state_dir[WORKER_STATE_CHARS], token_key[4097];
    bool has_key;
    struct source_map map_list[BASE_OPTIONS_LIST_MAX];
    char map_texts[BASE_OPTIONS_LIST_MAX][1024];
    struct base_options_rest rest;
};

/* Parses and checks; *settings must stay where it is. rest.help, rest.version: that was asked for. */
enum base_code worker_settings_parse(struct worker_settings *settings, int argc, char **argv,
                                     struct base_error *error);
void worker_settings_help(FILE *out);
/* The id from the state folder, made at random the first time, unless one was given. The folder is made, too. */
enum base_code worker_settings_identify(struct worker_settings *settings, struct base_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ENVIRONMENT_PREFIX "MILLRACE_"

enum { NAME_BYTES = 64, OPTIONS_MAX = 64 };

/* Where a value came from, for errors: "--cores", "MILLRACE_CORES". */
struct origin {
    const struct base_option *option;
    char place[NAME_BYTES];
};

static void *field_of(const struct base_option *option, void *into)
{
    return (char *)into + option->offset;
}

enum base_code base_options_bytes(const char *text, uint64_t *bytes, struct base_error *error)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"kB", 1000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", UINT64_C(1000000000000)},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
    };
    char *end = NULL;
    errno = 0;
    uint64_t value = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    for (size_t i = 0; end && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].suffix) != 0)
            continue;
        if (errno == ERANGE || value > UINT64_MAX / units[i].factor)
            return base_error_set(error, BASE_INVALID, "\"%s\" is more bytes than 64 bits hold", text);
        *bytes = value * units[i].factor;
        return BASE_OK;
    }
    return base_error_set(error, BASE_INVALID, "\"%s\" is not a number of bytes (4096, 64MiB, 1GB)", text);
}

static enum base_code set_bool(const struct origin *from, const char *text, bool *value,
                               struct base_error *error)
{
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    if (!yes && strcmp(text, "false") != 0 && strcmp(text, "0") != 0)
        return base_error_set(error, BASE_INVALID, "%s: \"%s\" is not true or false", from->place, text);
    *value = yes;
    return BASE_OK;
}

static enum base_code set_int(const struct origin *from, const char *text, int64_t *value,
                              struct base_error *error)
{
    const struct base_option *option = from->option;
    const char *digits = text + (*text == '-');
    char *end = NULL;
    errno = 0;
    int64_t number = isdigit((unsigned char)*digits) ? strtoll(text, &end, 10) : 0;
    if (!end || *end || errno == ERANGE)
        return base_error_set(error, BASE_INVALID, "%s: \"%s\" is not a whole number", from->place, text);
    bool checked = option->least || option->most;
    if (checked && (number < option->least || number > option->most))
        return base_error_set(error, BASE_INVALID, "%s: %s is not within %" PRId64 " to %" PRId64,
                              from->place, text, option->least, option->most);
    *value = number;
    return BASE_OK;
}

static enum base_code add_to_list(const struct origin *from, const char *text, struct base_option_list *list,
                                  struct base_error *error)
{
    if (list->count == BASE_OPTIONS_LIST_MAX)
        return base_error_set(error, BASE_INVALID, "%s: given more than %d times", from->place,
                              BASE_OPTIONS_LIST_MAX);
    list->values[list->count++] = text;
    return BASE_OK;
}

static enum base_code set_value(const struct origin *from, const char *text, void *into,
                                struct base_error *error)
{
    void *field = field_of(from->option, into);
    switch (from->option->type) {
    case BASE_OPTION_TEXT:
        *(const char **)field = text;
        return BASE_OK;
    case BASE_OPTION_BOOL:
        return set_bool(from, text, field, error);
    case BASE_OPTION_INT:
        return set_int(from, text, field, error);
    case BASE_OPTION_BYTES: {
        enum base_code code = base_options_bytes(text, field, error);
        return code ? base_error_prefix(error, code, "%s", from->place) : BASE_OK;
    }
    case BASE_OPTION_LIST:
        return add_to_list(from, text, field, error);
    }
    return base_error_set(error, BASE_INTERNAL, "%s: an option of no known type", from->place);
}

static void clear(const struct base_option *option, void *into)
{
    static const size_t sizes[] = {
        [BASE_OPTION_TEXT] = sizeof(const char *),
        [BASE_OPTION_BOOL] = sizeof(bool),
        [BASE_OPTION_INT] = sizeof(int64_t),
        [BASE_OPTION_BYTES] = sizeof(uint64_t),
        [BASE_OPTION_LIST] = sizeof(struct base_option_list),
    };
    memset(field_of(option, into), 0, sizes[option->type]);
}

static void environment_name(const struct base_option *option, char name[NAME_BYTES])
{
    int used = snprintf(name, NAME_BYTES, ENVIRONMENT_PREFIX "%s", option->name);
    for (int i = 0; i < used && i < NAME_BYTES - 1; i++)
        name[i] = name[i] == '-' ? '_' : (char)toupper((unsigned char)name[i]);
}

/* Cuts a copy of the environment's text at ':'; the copy lives in `rest`. */
static enum base_code set_list_from_environment(const struct origin *from, const char *text, void *into,
                                                struct base_options_rest *rest, struct base_error *error)
{
    size_t size = strlen(text) + 1;
    if (size > sizeof rest->environment - rest->environment_used)
        return base_error_set(error, BASE_TOO_LARGE, "%s: lists in the environment are over %zu bytes in all",
                              from->place, sizeof rest->environment);
    char *copy = memcpy(rest->environment + rest->environment_used, text, size), *save = NULL;
    rest->environment_used += size;
    enum base_code code = BASE_OK;
    for (char *part = strtok_r(copy, ":", &save); part && !code; part = strtok_r(NULL, ":", &save))
        code = add_to_list(from, part, field_of(from->option, into), error);
    return code;
}

/* What the flags did not say comes from the environment, else from the table. */
static enum base_code fill_unset(const struct base_option *option, void *into, struct base_options_rest *rest,
                                 struct base_error *error)
{
    struct origin from = {.option = option};
    environment_name(option, from.place);
    const char *text = getenv(from.place);
    if (text && option->type == BASE_OPTION_LIST)
        return set_list_from_environment(&from, text, into, rest, error);
    if (!text) {
        text = option->default_text;
        snprintf(from.place, sizeof from.place, "default of --%.40s", option->name);
    }
    return text ? set_value(&from, text, into, error) : BASE_OK;
}

static const struct base_option *find(const struct base_options *options, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < options->count; i++) {
        const char *candidate = options->table[i].name;
        if (strlen(candidate) == name_bytes && memcmp(candidate, name, name_bytes) == 0)
            return &options->table[i];
    }
    return NULL;
}

/* One flag at argv[*at], its value included; *at moves to the last argument that it used. */
static enum base_code take_flag(const struct base_options *options, char **argv, int *at, bool *given,
                                void *into, struct base_error *error)
{
    const char *flag = argv[*at], *equals = strchr(flag, '=');
    size_t bytes = equals ? (size_t)(equals - flag) : strlen(flag);
    const struct base_option *option =
        bytes > 2 && flag[1] == '-' ? find(options, flag + 2, bytes - 2) : NULL;
    if (!option)
        return base_error_set(error, BASE_INVALID, "unknown flag %.*s (%s --help lists them)", (int)bytes,
                              flag, options->program);
    struct origin from = {.option = option};
    snprintf(from.place, sizeof from.place, "--%s", option->name);
    const char *text = equals ? equals + 1 : NULL;
    if (!text && option->type == BASE_OPTION_BOOL)
        text = "true";
    if (!text && argv[*at + 1] && strncmp(argv[*at + 1], "--", 2) != 0)
        text = argv[++*at];
    if (!text)
        return base_error_set(error, BASE_INVALID, "%s needs a value (%s)", from.place,
                              option->value_name ? option->value_name : "VALUE");
    given[option - options->table] = true;
    return set_value(&from, text, into, error);
}

static enum base_code add_positional(const struct base_options *options, const char *text,
                                     struct base_options_rest *rest, struct base_error *error)
{
    if (rest->count >= options->most_positional || rest->count == BASE_OPTIONS_LIST_MAX)
        return base_error_set(error, BASE_INVALID, "\"%s\" is one argument too many: usage: %s %s", text,
                              options->program, options->usage);
    rest->positional[rest->count++] = text;
    return BASE_OK;
}

struct filling {
    bool *given; /* which options were */
    void *into;
    struct base_options_rest *rest;
};

static enum base_code take_arguments(const struct base_options *options, int argc, char **argv,
                                     const struct filling *filling, struct base_error *error)
{
    struct base_options_rest *rest = filling->rest;
    bool flags = true;
    enum base_code code = BASE_OK;
    for (int i = 1; i < argc && !code && !rest->help && !rest->version; i++) {
        if (flags && strcmp(argv[i], "--") == 0)
            flags = false;
        else if (flags && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0))
            rest->help = true;
        else if (flags && strcmp(argv[i], "--version") == 0)
            rest->version = true;
        else if (flags && argv[i][0] == '-' && argv[i][1])
            code = take_flag(options, argv, &i, filling->given, filling->into, error);
        else
            code = add_positional(options, argv[i], rest, error);
    }
    return code;
}

enum base_code base_options_parse(const struct base_options *options, int argc, char **argv, void *into,
                                  struct base_options_rest *rest, struct base_error *error)
{
    bool given[OPTIONS_MAX] = {false};
    if (options->count > OPTIONS_MAX)
        return base_error_set(error, BASE_INTERNAL, "%s has more than %d options", options->program,
                              OPTIONS_MAX);
    memset(rest, 0, sizeof *rest);
    for (size_t i = 0; i < options->count; i++)
        clear(&options->table[i], into);
    struct filling filling = {given, into, rest};
    enum base_code code = take_arguments(options, argc, argv, &filling, error);
    if (code || rest->help || rest->version)
        return code;
    for (size_t i = 0; i < options->count && !code; i++)
        if (!given[i])
            code = fill_unset(&options->table[i], into, rest, error);
    if (!code && rest->count < options->least_positional)
        return base_error_set(error, BASE_INVALID, "an argument is missing: usage: %s %s", options->program,
                              options->usage);
    return code;
}

static const char *value_name_of(const struct base_option *option)
{
    static const char *const names[] = {
        [BASE_OPTION_TEXT] = "TEXT",
        [BASE_OPTION_INT] = "N",
        [BASE_OPTION_BYTES] = "BYTES",
        [BASE_OPTION_LIST] = "TEXT",
    };
    return option->value_name ? option->value_name : names[option->type];
}

void base_options_help(const struct base_options *options, FILE *out)
{
    fprintf(out, "Usage: %s %s\n\n%s\n\nOptions:\n", options->program, options->usage, options->summary);
    for (size_t i = 0; i < options->count; i++) {
        const struct base_option *option = &options->table[i];
        char left[NAME_BYTES];
        bool is_bool = option->type == BASE_OPTION_BOOL;
        snprintf(left, sizeof left, "--%s %s", option->name, is_bool ? "" : value_name_of(option));
        fprintf(out, "  %-26s %s", left, option->help);
        if (option->type == BASE_OPTION_LIST)
            fprintf(out, " (may be given several times)");
        if (option->default_text && option->default_text[0] && !is_bool)
            fprintf(out, " [%s]", option->default_text);
        fputc('\n', out);
    }
    fprintf(out, "  %-26s %s\n", "--version", "the version");
    fprintf(out, "  %-26s %s\n\n", "--help", "this text");
    fprintf(out, "Each option can come from the environment too: --some-name from " ENVIRONMENT_PREFIX
                 "SOME_NAME.\n");
}

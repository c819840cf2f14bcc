/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include "base/log.h"
#include "client/include/millrace/millrace.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/token.h"
#include "proto/schema/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_parse(const struct base_options *options, int argc, char **argv, void *into,
               struct base_options_rest *rest, int *status)
{
    struct base_error error;
    base_log_start("millrace", 2, BASE_LOG_ERROR);
    enum base_code code = base_options_parse(options, argc, argv, into, rest, &error);
    if (code == BASE_OK && !rest->help && !rest->version)
        return true;
    if (rest->help || rest->version) {
        if (rest->help)
            base_options_help(options, stdout);
        else
            printf("millrace %s\n", mr_version());
        *status = CLI_EXIT_OK;
    } else {
        fprintf(stderr, "%s: %s\n", options->program, error.text);
        *status = CLI_EXIT_USAGE;
    }
    return false;
}

static int exit_of(enum base_code code)
{
    switch (code) {
    case BASE_OK:
        return CLI_EXIT_OK;
    case BASE_NOT_FOUND:
        return CLI_EXIT_NOT_FOUND;
    case BASE_REFUSED:
        return CLI_EXIT_REFUSED;
    case BASE_UNAVAILABLE:
    case BASE_TIMEOUT:
    case BASE_BUSY:
        return CLI_EXIT_UNAVAILABLE;
    default:
        return CLI_EXIT_FAILED;
    }
}

int cli_fail(const char *command, bool json, const struct base_error *error)
{
    char clean[BASE_ERROR_TEXT_BYTES];
    fprintf(stderr, "%s: %s\n", command, cli_clean(error->text, clean, sizeof clean));
    if (json) {
        struct base_buffer out;
        struct base_json writer;
        base_buffer_init(&out);
        base_json_begin(&writer, &out);
        base_json_object(&writer, NULL);
        base_json_object(&writer, "error");
        base_json_text(&writer, "code", base_error_name(error->code));
        base_json_text(&writer, "text", error->text);
        base_json_object_end(&writer);
        base_json_object_end(&writer);
        cli_flush(&out);
    }
    return exit_of(error->code);
}

enum base_code cli_number(const char *text, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno ? BASE_OK : BASE_INVALID;
}

/* ---- calls ---- */

enum base_code cli_call(const struct cli_common *common, const struct rpc_request *request,
                        ProtobufCMessage **reply, struct base_error *error)
{
    char key[4097] = "";
    struct rpc_channel *channel = NULL;
    enum base_code code = BASE_OK;
    if (common->secret_file && common->secret_file[0])
        code = rpc_token_read_key(common->secret_file, key, sizeof key, error);
    if (code != BASE_OK)
        return code;
    struct rpc_channel_options options = {.target = common->server, .token_key = key[0] ? key : NULL};
    rpc_start();
    code = rpc_channel_open(&channel, &options, error);
    if (code == BASE_OK)
        code = rpc_call_wait(channel, request, reply, error);
    rpc_channel_close(&channel);
    rpc_stop();
    return code;
}

void cli_free(ProtobufCMessage *reply)
{
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

/* ---- output ---- */

void cli_flush(struct base_buffer *buffer)
{
    base_buffer_put_u8(buffer, '\n');
    if (buffer->failed)
        fputs("millrace: no memory for the output\n", stderr);
    else
        fwrite(buffer->bytes, 1, buffer->size, stdout);
    fflush(stdout);
    base_buffer_fini(buffer);
}

void cli_print_json(const ProtobufCMessage *message)
{
    struct base_buffer out;
    struct base_json writer;
    base_buffer_init(&out);
    base_json_begin(&writer, &out);
    schema_json_print(message, &writer, NULL);
    cli_flush(&out);
}

const char *cli_clean(const char *text, char *out, size_t out_bytes)
{
    size_t i = 0;
    for (; text[i] && i + 1 < out_bytes; i++)
        out[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7F ? '?' : text[i];
    out[i] = 0;
    return out;
}

const char *cli_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

/* ---- tables ---- */

void cli_table_begin(struct cli_table *table, const char *const *titles)
{
    table->titles = titles;
    table->rows_cells = 0;
    base_buffer_init(&table->cells);
}

void cli_table_cell(struct cli_table *table, const char *format, ...)
{
    char text[1024], clean[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_clean(text, clean, sizeof clean);
    base_buffer_put(&table->cells, clean, strlen(clean) + 1);
    table->rows_cells++;
}

/* Columns on a terminal: code points, near enough for names. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

static void print_cell(const char *text, int width, bool right, bool last)
{
    int pad = width - width_of(text);
    printf("%*s%s%*s%s", right ? pad : 0, "", text, right || last ? 0 : pad, "", last ? "\n" : "  ");
}

void cli_table_print(struct cli_table *table, uint32_t omitted)
{
    int widths[CLI_COLUMNS_MAX] = {0}, columns = 0;
    for (; table->titles[columns]; columns++)
        widths[columns] = width_of(table->titles[columns]) - (table->titles[columns][0] == '>');
    const char *cell = (const char *)table->cells.bytes;
    for (int i = 0; columns && !table->cells.failed && i < table->rows_cells; i++, cell += strlen(cell) + 1)
        if (width_of(cell) > widths[i % columns])
            widths[i % columns] = width_of(cell);
    for (int i = 0; i < columns; i++) {
        bool right = table->titles[i][0] == '>';
        print_cell(table->titles[i] + right, widths[i], right, i + 1 == columns);
    }
    cell = (const char *)table->cells.bytes;
    for (int i = 0; columns && !table->cells.failed && i < table->rows_cells; i++, cell += strlen(cell) + 1)
        print_cell(cell, widths[i % columns], table->titles[i % columns][0] == '>',
                   i % columns + 1 == columns);
    base_buffer_fini(&table->cells);
    if (omitted > 0)
        printf("... and %u more, for which the answer had no room\n", omitted);
}

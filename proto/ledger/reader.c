/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ledger/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum base_code ledger_reader_open(struct ledger_reader *reader, const char *path, struct base_error *error)
{
    *reader = (struct ledger_reader){.path = path, .file = fopen(path, "rbe")};
    if (!reader->file)
        return base_error_errno(error, errno, "ledger %s", path);
    return BASE_OK;
}

void ledger_reader_close(struct ledger_reader *reader)
{
    if (reader->file)
        fclose(reader->file);
    free(reader->bytes);
    *reader = (struct ledger_reader){0};
}

static bool reserve(struct ledger_reader *reader, size_t size)
{
    if (size <= reader->capacity)
        return true;
    uint8_t *bytes = realloc(reader->bytes, size);
    if (!bytes)
        return false;
    reader->bytes = bytes;
    reader->capacity = size;
    return true;
}

/* The file ends here, within a record or not. */
static enum base_code end(struct ledger_reader *reader, bool torn, struct base_error *error)
{
    if (ferror(reader->file))
        return base_error_errno(error, errno, "ledger %s", reader->path);
    reader->torn = torn;
    return base_error_set(error, BASE_CLOSED, "ledger %s: the end", reader->path);
}

enum base_code ledger_reader_next(struct ledger_reader *reader, struct ledger_record *record,
                                  struct base_error *error)
{
    size_t size = 0;
    if (!reserve(reader, LEDGER_HEAD_BYTES))
        return base_error_set(error, BASE_NO_MEMORY, "ledger %s: no memory for a record", reader->path);
    size_t got = fread(reader->bytes, 1, LEDGER_HEAD_BYTES, reader->file);
    if (got < LEDGER_HEAD_BYTES)
        return end(reader, got > 0, error);
    unsigned long long at = reader->offset;
    enum base_code code = ledger_head(reader->bytes, &size, error);
    if (code != BASE_OK)
        return base_error_prefix(error, code, "ledger %s, byte %llu", reader->path, at);
    if (!reserve(reader, size))
        return base_error_set(error, BASE_NO_MEMORY, "ledger %s: no memory for a record", reader->path);
    got = fread(reader->bytes + LEDGER_HEAD_BYTES, 1, size - LEDGER_HEAD_BYTES, reader->file);
    if (got < size - LEDGER_HEAD_BYTES)
        return end(reader, true, error);
    reader->offset += size;
    code = ledger_parse(reader->bytes, size, record, error);
    return code == BASE_OK ? BASE_OK
                           : base_error_prefix(error, code, "ledger %s, byte %llu", reader->path, at);
}

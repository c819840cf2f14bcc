/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct client_ledger {
    int fd;
    char path[PATH_MAX];
    uint64_t end; /* of the whole records: the next one goes there, over what a failed write left */
    uint8_t *hashes, *valid;
    struct base_buffer record;
};

static enum base_code choose_path(struct client_ledger *ledger, const char *path,
                                  const struct ledger_start *start, struct base_error *error)
{
    struct stat about;
    bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    int used =
        folder ? snprintf(ledger->path, sizeof ledger->path, "%s/%s.%u.ledger", path, start->job, start->rank)
               : snprintf(ledger->path, sizeof ledger->path, "%s", path);
    if (used >= (int)sizeof ledger->path || (folder && strchr(start->job, '/')))
        return base_error_set(error, BASE_INVALID, "ledger %.200s: no name for job %s in it", path,
                              start->job);
    return BASE_OK;
}

/* Where the last whole record ends. Checks heads only: a damaged record is for the audit to find. */
static enum base_code find_end(struct client_ledger *ledger, struct base_error *error)
{
    struct stat about;
    uint8_t head[LEDGER_HEAD_BYTES];
    if (fstat(ledger->fd, &about) != 0)
        return base_error_errno(error, errno, "ledger %s", ledger->path);
    uint64_t size = (uint64_t)about.st_size;
    while (size - ledger->end >= sizeof head) {
        size_t record;
        ssize_t got = pread(ledger->fd, head, sizeof head, (off_t)ledger->end);
        if (got != (ssize_t)sizeof head)
            return base_error_errno(error, got < 0 ? errno : EIO, "ledger %s", ledger->path);
        enum base_code code = ledger_head(head, &record, error);
        if (code != BASE_OK)
            return base_error_prefix(error, code, "ledger %s, byte %llu", ledger->path,
                                     (unsigned long long)ledger->end);
        if (record > size - ledger->end)
            break;
        ledger->end += record;
    }
    size_t left = size - ledger->end < sizeof head ? (size_t)(size - ledger->end) : sizeof head;
    ssize_t got = pread(ledger->fd, head, left, (off_t)ledger->end);
    if (got != (ssize_t)left)
        return base_error_errno(error, got < 0 ? errno : EIO, "ledger %s", ledger->path);
    if (!ledger_may_begin(head, left))
        return base_error_set(error, BASE_CORRUPT, "ledger %s: not a ledger", ledger->path);
    if (ledger->end < size && ftruncate(ledger->fd, (off_t)ledger->end) != 0)
        return base_error_errno(error, errno, "ledger %s", ledger->path);
    return BASE_OK;
}

static enum base_code open_file(struct client_ledger *ledger, struct base_error *error)
{
    ledger->fd = open(ledger->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (ledger->fd < 0)
        return base_error_errno(error, errno, "ledger %s", ledger->path);
    if (flock(ledger->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? base_error_set(error, BASE_CONFLICT, "ledger %s: another job writes it", ledger->path)
                   : base_error_errno(error, errno, "ledger %s", ledger->path);
    return find_end(ledger, error);
}

static enum base_code write_record(struct client_ledger *ledger, struct base_error *error)
{
    const struct base_buffer *record = &ledger->record;
    size_t done = 0;
    if (record->failed)
        return base_error_set(error, BASE_NO_MEMORY, "ledger %s: no memory for a record", ledger->path);
    while (done < record->size) { /* once, but for a disk that is filling up or a signal */
        ssize_t put =
            pwrite(ledger->fd, record->bytes + done, record->size - done, (off_t)(ledger->end + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            base_error_errno(error, put < 0 ? errno : EIO, "ledger %s", ledger->path);
            if (error)
                error->code = BASE_IO;
            return BASE_IO;
        }
        done += (size_t)put;
    }
    ledger->end += done;
    return BASE_OK;
}

enum base_code client_ledger_open(struct client_ledger **out, const char *path,
                                  const struct ledger_start *start, struct base_error *error)
{
    struct client_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a ledger");
    ledger->fd = -1;
    base_buffer_init(&ledger->record);
    ledger->hashes = malloc(8 * (size_t)start->batch);
    ledger->valid = malloc((start->batch + 7) / 8);
    bool room = base_buffer_extend(&ledger->record, ledger_batch_bytes(start->batch, 1)) != NULL;
    base_buffer_clear(&ledger->record);
    enum base_code code = ledger->hashes && ledger->valid && room
                              ? choose_path(ledger, path, start, error)
                              : base_error_set(error, BASE_NO_MEMORY, "no memory for a ledger");
    if (code == BASE_OK)
        code = open_file(ledger, error);
    if (code == BASE_OK)
        code = client_ledger_restart(ledger, start, error);
    if (code != BASE_OK)
        client_ledger_close(&ledger);
    *out = ledger;
    return code;
}

enum base_code client_ledger_restart(struct client_ledger *ledger, const struct ledger_start *start,
                                     struct base_error *error)
{
    base_buffer_clear(&ledger->record);
    ledger_put_start(&ledger->record, start);
    return write_record(ledger, error);
}

void client_ledger_close(struct client_ledger **pointer)
{
    struct client_ledger *ledger = *pointer;
    *pointer = NULL;
    if (!ledger)
        return;
    if (ledger->fd >= 0)
        close(ledger->fd);
    free(ledger->hashes);
    free(ledger->valid);
    base_buffer_fini(&ledger->record);
    free(ledger);
}

enum base_code client_ledger_append(struct client_ledger *ledger, const struct mr_batch *batch,
                                    const struct client_ledger_step *step, struct base_error *error)
{
    struct ledger_batch entry = {
        .job_epoch = batch->epoch,
        .epoch = batch->stream_epoch,
        .step = batch->step,
        .steps = batch->steps,
        .step_begin = step->begin,
        .step_valid = step->valid,
        .after_epoch = batch->cursor.epoch,
        .after_position = batch->cursor.position,
        .padding = batch->rows - step->rows,
        .rows = step->rows,
        .hashes = ledger->hashes,
        .valid = ledger->valid,
    };
    memset(ledger->valid, 0, (step->rows + 7) / 8);
    for (uint32_t i = 0; i < step->rows; i++) { /* what was handed over, not what should have been */
        struct ledger_run *run = entry.run_count > 0 ? &entry.runs[entry.run_count - 1] : NULL;
        uint64_t position = batch->row[i].position;
        base_set_u64(ledger->hashes + 8 * (size_t)i, batch->row[i].hash);
        ledger->valid[i / 8] |= (uint8_t)((batch->valid[i] != 0) << i % 8);
        if (run && position == run->begin + run->count)
            run->count++;
        else if (entry.run_count < LEDGER_RUNS_MAX)
            entry.runs[entry.run_count++] = (struct ledger_run){position, 1};
        else
            return base_error_set(error, BASE_INTERNAL, "ledger %s: a batch in more than %d runs",
                                  ledger->path, LEDGER_RUNS_MAX);
    }
    base_buffer_clear(&ledger->record);
    ledger_put_batch(&ledger->record, &entry);
    return write_record(ledger, error);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BUSY_MS = 2000 };

struct store {
    sqlite3 *db;
    bool begun; /* between begin and commit or rollback */
};

/* Each step makes the next schema version out of the one before; version 0 is an empty file. Steps are only ever added. */
static const char *const steps[] = {
    "CREATE TABLE datasets(name TEXT PRIMARY KEY, path TEXT NOT NULL, state TEXT NOT NULL, error TEXT NOT "
    "NULL,"
    " version BLOB NOT NULL, items INTEGER NOT NULL, bytes INTEGER NOT NULL, skipped INTEGER NOT NULL,"
    " classes TEXT NOT NULL, skipped_names TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE jobs(id TEXT PRIMARY KEY, dataset TEXT NOT NULL, record BLOB NOT NULL, stream BLOB NOT "
    "NULL,"
    " first_epoch INTEGER NOT NULL, epoch INTEGER NOT NULL, position INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE streams(hash BLOB PRIMARY KEY, dataset_version BLOB NOT NULL, fingerprint BLOB NOT NULL,"
    " items INTEGER NOT NULL, seed INTEGER NOT NULL, shuffle INTEGER NOT NULL, sample_text TEXT NOT NULL,"
    " plan_version INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE bad_items(version BLOB, item INTEGER, name TEXT NOT NULL, cause TEXT NOT NULL,"
    " PRIMARY KEY(version, item)) WITHOUT ROWID;",
    "CREATE TABLE numbers(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;",
    "ALTER TABLE streams ADD COLUMN homes BLOB NOT NULL DEFAULT x'';",
    "ALTER TABLE datasets ADD COLUMN masks TEXT NOT NULL DEFAULT '';",
};
enum { SCHEMA_VERSION = sizeof steps / sizeof *steps };

static enum base_code code_of(int sqlite)
{
    int plain = sqlite & 0xff;
    if (plain == SQLITE_NOMEM || sqlite == SQLITE_IOERR_NOMEM)
        return BASE_NO_MEMORY;
    return plain == SQLITE_CORRUPT || plain == SQLITE_NOTADB ? BASE_CORRUPT : BASE_IO;
}

static enum base_code failed(struct store *store, struct base_error *error, const char *what)
{
    return base_error_set(error, code_of(sqlite3_extended_errcode(store->db)), "state store: %s: %s", what,
                          sqlite3_errmsg(store->db));
}

static enum base_code run(struct store *store, const char *sql, struct base_error *error)
{
    return sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK ? BASE_OK : failed(store, error, sql);
}

/* ---- statements: 't' text, 'i' uint64 (kept as int64 bits), 'b' blob with its size ---- */

struct value {
    char type;
    const void *bytes;
    size_t size;
    uint64_t number;
};

static struct value text(const char *value)
{
    return (struct value){.type = 't', .bytes = value ? value : ""};
}

static struct value number(uint64_t value)
{
    return (struct value){.type = 'i', .number = value};
}

static struct value blob(const void *bytes, size_t size)
{
    return (struct value){.type = 'b', .bytes = bytes, .size = size};
}

static int bind(sqlite3_stmt *statement, int at, const struct value *value)
{
    switch (value->type) {
    case 't':
        return sqlite3_bind_text(statement, at, value->bytes, -1, SQLITE_STATIC);
    case 'b':
        return sqlite3_bind_blob64(statement, at, value->bytes ? value->bytes : "", value->size,
                                   SQLITE_STATIC);
    default:
        return sqlite3_bind_int64(statement, at, (sqlite3_int64)value->number);
    }
}

static sqlite3_stmt *prepare(struct store *store, const char *sql, const struct value *values, int count)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL) != SQLITE_OK)
        return NULL;
    for (int i = 0; i < count; i++) {
        if (bind(statement, i + 1, &values[i]) != SQLITE_OK) {
            sqlite3_finalize(statement);
            return NULL;
        }
    }
    return statement;
}

/* A rollback that found no memory left its transaction open: the next write must not become a part of it. */
static enum base_code close_stale(struct store *store, struct base_error *error)
{
    return store->begun || sqlite3_get_autocommit(store->db) ? BASE_OK : run(store, "ROLLBACK", error);
}

static enum base_code change(struct store *store, const char *sql, const struct value *values, int count,
                             struct base_error *error)
{
    enum base_code stale = close_stale(store, error);
    if (stale)
        return stale;
    sqlite3_stmt *statement = prepare(store, sql, values, count);
    if (!statement)
        return failed(store, error, sql);
    int step = sqlite3_step(statement);
    enum base_code code = step == SQLITE_DONE ? BASE_OK : failed(store, error, sql);
    sqlite3_finalize(statement);
    return code;
}

/* Calls `row` for every row of the query. */
static enum base_code query(struct store *store, sqlite3_stmt *statement, void (*row)(sqlite3_stmt *, void *),
                            void *context, struct base_error *error)
{
    if (!statement)
        return failed(store, error, "query");
    int step;
    enum base_code code = BASE_OK;
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        row(statement, context);
        if (sqlite3_errcode(store->db) == SQLITE_NOMEM) /* of a column: it was taken for an empty one */
            code = failed(store, error, sqlite3_sql(statement));
    }
    if (step != SQLITE_DONE)
        code = failed(store, error, sqlite3_sql(statement));
    sqlite3_finalize(statement);
    return code;
}

static const char *column_text(sqlite3_stmt *statement, int at)
{
    const unsigned char *value = sqlite3_column_text(statement, at);
    return value ? (const char *)value : "";
}

/* A blob of another size than asked for leaves zeros. */
static void column_bytes(sqlite3_stmt *statement, int at, uint8_t *out, size_t size)
{
    memset(out, 0, size);
    const void *value = sqlite3_column_blob(statement, at);
    if (value && (size_t)sqlite3_column_bytes(statement, at) == size)
        memcpy(out, value, size);
}

static uint64_t column_number(sqlite3_stmt *statement, int at)
{
    return (uint64_t)sqlite3_column_int64(statement, at);
}

/* ---- open ---- */

static void take_number(sqlite3_stmt *statement, void *context)
{
    *(uint64_t *)context = column_number(statement, 0);
}

static enum base_code upgrade(struct store *store, struct base_error *error)
{
    uint64_t version = 0;
    enum base_code code =
        query(store, prepare(store, "PRAGMA user_version", NULL, 0), take_number, &version, error);
    if (code)
        return code;
    if (version > SCHEMA_VERSION)
        return base_error_set(error, BASE_UNSUPPORTED,
                              "state store: schema %llu was written by a newer server; this one knows %d",
                              (unsigned long long)version, SCHEMA_VERSION);
    for (; !code && version < SCHEMA_VERSION; version++) {
        char set[64];
        snprintf(set, sizeof set, "PRAGMA user_version=%d", (int)version + 1);
        if (!(code = run(store, "BEGIN", error)) && !(code = run(store, steps[version], error)) &&
            !(code = run(store, set, error)))
            code = run(store, "COMMIT", error);
    }
    return code;
}

static enum base_code make_directory(const char *dir, struct base_error *error)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path)
        return base_error_set(error, BASE_INVALID, "state directory: the path is too long");
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char saved = *at;
        *at = 0;
        if (mkdir(path, 0700) && errno != EEXIST)
            return base_error_errno(error, errno, "state directory %s", path);
        *at = saved;
        if (!saved)
            return BASE_OK;
    }
}

enum base_code store_open(struct store **out, const char *dir, struct base_error *error)
{
    enum base_code code = make_directory(dir, error);
    if (code)
        return code;
    char path[4200];
    snprintf(path, sizeof path, "%s/server.db", dir);
    struct store *store = calloc(1, sizeof *store);
    if (!store)
        return base_error_set(error, BASE_NO_MEMORY, "state store: no memory");
    int opened = sqlite3_open_v2(path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (opened != SQLITE_OK) {
        code = base_error_set(error, code_of(opened), "state store: %s", sqlite3_errstr(opened));
        goto cleanup;
    }
    sqlite3_busy_timeout(store->db, BUSY_MS);
    if ((code = run(store, "PRAGMA locking_mode=EXCLUSIVE", error)) ||
        (code = run(store, "PRAGMA journal_mode=WAL", error)) ||
        (code = run(store, "PRAGMA synchronous=FULL", error)) || (code = upgrade(store, error)) ||
        /* the lock is taken with the first write */
        (code = run(store, "BEGIN IMMEDIATE; COMMIT", error)))
        goto cleanup;
    *out = store;
    return BASE_OK;
cleanup:
    base_error_prefix(error, code, "%s", path);
    store_close(&store);
    return code;
}

void store_close(struct store **store)
{
    if (!*store)
        return;
    sqlite3_close_v2((*store)->db);
    free(*store);
    *store = NULL;
}

/* ---- many changes, one write ---- */

enum base_code store_begin(struct store *store, struct base_error *error)
{
    enum base_code code = close_stale(store, error);
    if (!code)
        code = run(store, "BEGIN IMMEDIATE", error);
    store->begun = !code;
    return code;
}

enum base_code store_commit(struct store *store, struct base_error *error)
{
    enum base_code code = run(store, "COMMIT", error);
    if (code)
        store_rollback(store); /* or the next begin fails, too */
    store->begun = false;
    return code;
}

void store_rollback(struct store *store)
{
    sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    store->begun = false;
}

/* ---- numbers that no two servers of one state use ---- */

enum base_code store_first_number(struct store *store, uint64_t now_us, uint64_t *first,
                                  struct base_error *error)
{
    uint64_t last = 0;
    enum base_code code =
        query(store, prepare(store, "SELECT value FROM numbers WHERE name='first'", NULL, 0), take_number,
              &last, error);
    if (code)
        return code;
    *first = now_us > last + STORE_NUMBERS_A_START ? now_us : last + STORE_NUMBERS_A_START;
    const struct value values[] = {number(*first)};
    return change(store, "INSERT OR REPLACE INTO numbers VALUES('first',?)", values, 1, error);
}

/* ---- datasets ---- */

enum base_code store_dataset_put(struct store *store, const struct store_dataset *d, struct base_error *error)
{
    const struct value values[] = {
        text(d->name),
        text(d->path),
        text(d->state),
        text(d->error),
        blob(d->version, sizeof d->version),
        number(d->items),
        number(d->bytes),
        number(d->skipped),
        text(d->classes),
        text(d->skipped_names),
        text(d->masks),
    };
    return change(store, "INSERT OR REPLACE INTO datasets VALUES(?,?,?,?,?,?,?,?,?,?,?)", values, 11, error);
}

enum base_code store_dataset_remove(struct store *store, const char *name, struct base_error *error)
{
    const struct value values[] = {text(name)};
    return change(store, "DELETE FROM datasets WHERE name=?", values, 1, error);
}

struct each {
    void *context;
    union {
        store_dataset_fn dataset;
        store_job_fn job;
        store_stream_fn stream;
        store_bad_item_fn bad;
    } call;
};

static void dataset_row(sqlite3_stmt *s, void *context)
{
    struct each *each = context;
    struct store_dataset dataset = {
        .name = column_text(s, 0),
        .path = column_text(s, 1),
        .state = column_text(s, 2),
        .error = column_text(s, 3),
        .items = column_number(s, 5),
        .bytes = column_number(s, 6),
        .skipped = column_number(s, 7),
        .classes = column_text(s, 8),
        .skipped_names = column_text(s, 9),
        .masks = column_text(s, 10),
    };
    column_bytes(s, 4, dataset.version, sizeof dataset.version);
    each->call.dataset(each->context, &dataset);
}

enum base_code store_datasets_each(struct store *store, store_dataset_fn call, void *context,
                                   struct base_error *error)
{
    struct each each = {context, {.dataset = call}};
    return query(store, prepare(store, "SELECT * FROM datasets ORDER BY name", NULL, 0), dataset_row, &each,
                 error);
}

/* ---- jobs ---- */

enum base_code store_job_put(struct store *store, const struct store_job *job, struct base_error *error)
{
    const struct value values[] = {
        text(job->id),
        text(job->dataset),
        blob(job->record, job->record_size),
        blob(job->stream, sizeof job->stream),
        number(job->first_epoch),
        number(job->epoch),
        number(job->position),
    };
    return change(store, "INSERT OR REPLACE INTO jobs VALUES(?,?,?,?,?,?,?)", values, 7, error);
}

enum base_code store_job_remove(struct store *store, const char *id, struct base_error *error)
{
    const struct value values[] = {text(id)};
    return change(store, "DELETE FROM jobs WHERE id=?", values, 1, error);
}

static void job_row(sqlite3_stmt *s, void *context)
{
    struct each *each = context;
    struct store_job job = {
        .id = column_text(s, 0),
        .dataset = column_text(s, 1),
        .record = sqlite3_column_blob(s, 2),
        .record_size = (size_t)sqlite3_column_bytes(s, 2),
        .first_epoch = (uint32_t)column_number(s, 4),
        .epoch = (uint32_t)column_number(s, 5),
        .position = column_number(s, 6),
    };
    column_bytes(s, 3, job.stream, sizeof job.stream);
    each->call.job(each->context, &job);
}

enum base_code store_jobs_each(struct store *store, store_job_fn call, void *context,
                               struct base_error *error)
{
    struct each each = {context, {.job = call}};
    return query(store, prepare(store, "SELECT * FROM jobs ORDER BY id", NULL, 0), job_row, &each, error);
}

/* ---- streams ---- */

enum base_code store_stream_put(struct store *store, const struct store_stream *stream,
                                struct base_error *error)
{
    const struct value values[] = {
        blob(stream->hash, sizeof stream->hash),
        blob(stream->dataset_version, sizeof stream->dataset_version),
        blob(stream->fingerprint, sizeof stream->fingerprint),
        number(stream->items),
        number(stream->seed),
        number(stream->shuffle),
        text(stream->sample_text),
        number(stream->plan_version),
        blob(stream->homes, stream->homes_size),
    };
    return change(store, "INSERT OR REPLACE INTO streams VALUES(?,?,?,?,?,?,?,?,?)", values, 9, error);
}

enum base_code store_stream_remove(struct store *store, const uint8_t hash[BASE_SHA256_BYTES],
                                   struct base_error *error)
{
    const struct value values[] = {blob(hash, BASE_SHA256_BYTES)};
    return change(store, "DELETE FROM streams WHERE hash=?", values, 1, error);
}

static void stream_row(sqlite3_stmt *s, void *context)
{
    struct each *each = context;
    struct store_stream stream = {
        .items = column_number(s, 3),
        .seed = column_number(s, 4),
        .shuffle = column_number(s, 5) != 0,
        .sample_text = column_text(s, 6),
        .plan_version = (uint32_t)column_number(s, 7),
        .homes = sqlite3_column_blob(s, 8),
        .homes_size = (size_t)sqlite3_column_bytes(s, 8),
    };
    column_bytes(s, 0, stream.hash, sizeof stream.hash);
    column_bytes(s, 1, stream.dataset_version, sizeof stream.dataset_version);
    column_bytes(s, 2, stream.fingerprint, sizeof stream.fingerprint);
    each->call.stream(each->context, &stream);
}

enum base_code store_streams_each(struct store *store, store_stream_fn call, void *context,
                                  struct base_error *error)
{
    struct each each = {context, {.stream = call}};
    return query(store, prepare(store, "SELECT * FROM streams", NULL, 0), stream_row, &each, error);
}

/* ---- quarantine ---- */

enum base_code store_bad_item_put(struct store *store, const struct store_bad_item *bad,
                                  struct base_error *error)
{
    const struct value values[] = {
        blob(bad->version, sizeof bad->version),
        number(bad->item),
        text(bad->name),
        text(bad->cause),
    };
    return change(store, "INSERT OR REPLACE INTO bad_items VALUES(?,?,?,?)", values, 4, error);
}

enum base_code store_bad_items_remove(struct store *store, const uint8_t version[BASE_SHA256_BYTES],
                                      struct base_error *error)
{
    const struct value values[] = {blob(version, BASE_SHA256_BYTES)};
    return change(store, "DELETE FROM bad_items WHERE version=?", values, 1, error);
}

static void bad_row(sqlite3_stmt *s, void *context)
{
    struct each *each = context;
    struct store_bad_item bad = {
        .item = column_number(s, 1),
        .name = column_text(s, 2),
        .cause = column_text(s, 3),
    };
    column_bytes(s, 0, bad.version, sizeof bad.version);
    each->call.bad(each->context, &bad);
}

enum base_code store_bad_items_count(struct store *store, const uint8_t version[BASE_SHA256_BYTES],
                                     uint64_t *count, struct base_error *error)
{
    const struct value values[] = {blob(version, BASE_SHA256_BYTES)};
    const char *sql = "SELECT count(*) FROM bad_items WHERE version=?";
    return query(store, prepare(store, sql, values, 1), take_number, count, error);
}

enum base_code store_bad_items_each(struct store *store, const uint8_t version[BASE_SHA256_BYTES],
                                    uint32_t most, store_bad_item_fn call, void *context,
                                    struct base_error *error)
{
    const struct value values[] = {blob(version, BASE_SHA256_BYTES), number(most)};
    struct each each = {context, {.bad = call}};
    const char *sql = "SELECT * FROM bad_items WHERE version=? ORDER BY item LIMIT ?";
    return query(store, prepare(store, sql, values, 2), bad_row, &each, error);
}

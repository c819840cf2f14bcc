/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/core.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64

struct lease {
    PyObject_HEAD struct python_pool *pool;
    struct python_chunk *chunk; /* NULL: a copy */
    struct mr_batch *batch;     /* to be released; NULL: was */
    char *copy;                 /* values of fields; NULL: they are in the slot */
    char *side;                 /* what the library keeps outside slots: validity, rows, offsets */
};

static struct lease *lease_of(PyObject *self)
{
    return (struct lease *)(void *)self;
}

static void release_batch(struct lease *lease)
{
    if (lease->batch && lease->pool->job) /* a closed job has taken its batches back */
        mr_batch_release(lease->batch);
    lease->pool->held -= lease->batch != NULL;
    lease->batch = NULL;
}

static void lease_dealloc(PyObject *self)
{
    struct lease *lease = lease_of(self);
    PyTypeObject *type = Py_TYPE(self);
    release_batch(lease);
    if (lease->chunk)
        python_memory_release(lease->chunk);
    free(lease->copy);
    free(lease->side);
    python_memory_put(lease->pool);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- memory ---- */

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t side_bytes(const struct mr_batch *batch)
{
    size_t bytes = batch->rows * (3 * sizeof(int64_t) + sizeof(uint64_t) + 3);
    for (int i = 0; i < batch->field_count; i++)
        bytes += batch->fields[i].offsets ? (batch->rows + (size_t)1) * sizeof(int64_t) : 0;
    return padded(bytes + 1);
}

static int copy_fields(struct lease *lease)
{
    const struct mr_batch *batch = lease->batch;
    size_t bytes = ALIGN;
    for (int i = 0; i < batch->field_count; i++)
        bytes += padded(batch->fields[i].bytes);
    lease->copy = aligned_alloc(ALIGN, bytes);
    if (!lease->copy)
        return -1;
    char *at = lease->copy;
    PyThreadState *python = PyEval_SaveThread();
    for (int i = 0; i < batch->field_count; i++) {
        memcpy(at, batch->fields[i].data, batch->fields[i].bytes);
        at += padded(batch->fields[i].bytes);
    }
    PyEval_RestoreThread(python);
    return 0;
}

/* ---- what Python gets ---- */

/* Adds a value that it takes; NULL stands for an error before. */
static int put(PyObject *tuple, Py_ssize_t index, PyObject *value)
{
    return value ? PyTuple_SetItem(tuple, index, value) : -1;
}

static PyObject *make_field(struct lease *lease, const struct mr_field *field, char **copied, char **side)
{
    union {
        const void *in;
        void *out; /* the slot is the trainer's until it is released */
    } both = {.in = field->data};
    void *data = both.out;
    PyObject *self = (PyObject *)(void *)lease;
    if (*copied) {
        data = *copied;
        *copied += padded(field->bytes);
    }
    PyObject *values = python_array_make(self, data, (int)field->dtype, field->rank, field->dims);
    if (!field->offsets || !values)
        return Py_BuildValue("sN", field->name, values);
    int64_t count = (int64_t)lease->batch->rows + 1;
    memcpy(*side, field->offsets, (size_t)count * sizeof(int64_t));
    PyObject *offsets = python_array_make(self, *side, MR_I64, 1, &count);
    *side += (size_t)count * sizeof(int64_t);
    return Py_BuildValue("sNN", field->name, values, offsets);
}

static PyObject *make_fields(struct lease *lease, char **side)
{
    const struct mr_batch *batch = lease->batch;
    PyObject *fields = PyTuple_New(batch->field_count);
    char *copied = lease->copy;
    for (int i = 0; fields && i < batch->field_count; i++)
        if (put(fields, i, make_field(lease, &batch->fields[i], &copied, side)) < 0)
            Py_CLEAR(fields);
    return fields;
}

enum { COLUMNS = 7 }; /* positions, items, used items, hashes; valid, status, cause */

static void fill_columns(const struct mr_batch *batch, void *const columns[COLUMNS])
{
    int64_t *positions = columns[0], *items = columns[1], *used = columns[2];
    uint64_t *hashes = columns[3];
    uint8_t *valid = columns[4], *status = columns[5], *cause = columns[6];
    for (uint32_t i = 0; i < batch->rows; i++) {
        const struct mr_row *row = &batch->row[i];
        positions[i] = (int64_t)row->position;
        items[i] = (int64_t)row->item;
        used[i] = (int64_t)row->used_item;
        hashes[i] = row->hash;
        valid[i] = batch->valid[i];
        status[i] = row->status;
        cause[i] = row->cause;
    }
}

static PyObject *make_columns(struct lease *lease, char *side)
{
    static const int dtypes[COLUMNS] = {MR_I64, MR_I64, MR_I64, PYTHON_U64, PYTHON_BOOL, MR_U8, MR_U8};
    void *columns[COLUMNS];
    int64_t rows = lease->batch->rows;
    PyObject *tuple = PyTuple_New(COLUMNS);
    for (int i = 0; tuple && i < COLUMNS; i++) {
        columns[i] = side;
        side += rows * python_array_itemsize(dtypes[i]);
        if (put(tuple, i, python_array_make((PyObject *)(void *)lease, columns[i], dtypes[i], 1, &rows)) < 0)
            Py_CLEAR(tuple);
    }
    if (tuple)
        fill_columns(lease->batch, columns);
    return tuple;
}

static PyObject *make_batch(struct lease *lease)
{
    const struct mr_batch *batch = lease->batch;
    char cursor[MR_CURSOR_TEXT_BYTES], *side = lease->side;
    mr_cursor_print(&batch->cursor, cursor);
    PyObject *fields = make_fields(lease, &side); /* offsets first: they want alignment */
    PyObject *columns = fields ? make_columns(lease, side) : NULL;
    if (!columns) {
        Py_XDECREF(fields);
        return NULL;
    }
    return Py_BuildValue("NNIIIIKKs", fields, columns, batch->rows, batch->valid_rows, batch->epoch,
                         batch->stream_epoch, (unsigned long long)batch->step,
                         (unsigned long long)batch->steps, cursor);
}

PyObject *python_lease_take(struct python_pool *pool, struct mr_batch *batch, int copy)
{
    struct lease *lease = PyObject_New(struct lease, (PyTypeObject *)(void *)python_types.lease);
    if (!lease) {
        mr_batch_release(batch);
        return NULL;
    }
    python_memory_get(pool);
    pool->held++;
    lease->pool = pool;
    lease->batch = batch;
    lease->chunk = NULL;
    lease->copy = NULL;
    lease->side = aligned_alloc(ALIGN, side_bytes(batch));
    int bad = !lease->side || (copy && copy_fields(lease) < 0);
    if (!copy && batch->field_count > 0)
        lease->chunk = python_memory_hold(pool, batch->fields[0].data);
    PyObject *made = bad ? PyErr_NoMemory() : make_batch(lease);
    if (copy)
        release_batch(lease);
    Py_DECREF((PyObject *)(void *)lease);
    return made;
}

static char doc[] = "Holds a batch.";

static PyType_Slot slots[] = {
    {Py_tp_doc, doc},
    {Py_tp_dealloc, lease_dealloc},
    {0, NULL},
};

PyType_Spec python_lease_spec = {
    .name = "millrace._core.Lease",
    .basicsize = sizeof(struct lease),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

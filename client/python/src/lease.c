/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/core.h"

#include "client/python/src/align.h"

#include <stdlib.h>
#include <string.h>

struct lease {
    PyObject_HEAD struct python_pool *pool;
    struct python_chunk *chunk; /* NULL: a copy */
    struct mr_batch *batch;     /* to be released; NULL: was */
    char *copy;                 /* values of fields; NULL: they are in the slot */
    struct python_loan *loan;   /* of a device's ring; NULL: none */
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

/* On a device both may wait for a copy, or for streams. */
static void let_go(struct python_pool *pool, struct python_loan *loan)
{
    pool->held -= loan && !loan->own;
    PyThreadState *python = pool->ring ? PyEval_SaveThread() : NULL;
    python_loan_release(loan);
    python_memory_put(pool);
    if (python)
        PyEval_RestoreThread(python);
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
    let_go(lease->pool, lease->loan);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- memory ---- */

static size_t side_bytes(const struct mr_batch *batch)
{
    size_t bytes = batch->rows * (3 * sizeof(int64_t) + sizeof(uint64_t) + 3);
    for (int i = 0; i < batch->field_count; i++)
        bytes += batch->fields[i].offsets ? (batch->rows + (size_t)1) * sizeof(int64_t) : 0;
    return python_align_up(bytes + 1);
}

static int copy_fields(struct lease *lease)
{
    const struct mr_batch *batch = lease->batch;
    size_t bytes = PYTHON_ALIGN;
    for (int i = 0; i < batch->field_count; i++)
        bytes += python_align_up(batch->fields[i].bytes);
    lease->copy = aligned_alloc(PYTHON_ALIGN, bytes);
    if (!lease->copy)
        return -1;
    char *at = lease->copy;
    PyThreadState *python = PyEval_SaveThread();
    for (int i = 0; i < batch->field_count; i++) {
        memcpy(at, batch->fields[i].data, batch->fields[i].bytes);
        at += python_align_up(batch->fields[i].bytes);
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

static PyObject *make_field(struct lease *lease, const struct mr_batch *batch, const struct mr_field *field,
                            char **copied, char **side)
{
    union {
        const void *in;
        void *out; /* the slot is the trainer's until it is released */
    } both = {.in = field->data};
    void *data = both.out;
    PyObject *self = (PyObject *)(void *)lease;
    if (*copied) {
        data = *copied;
        *copied += python_align_up(field->bytes);
    }
    PyObject *values = python_array_make(self, data, (int)field->dtype, field->rank, field->dims);
    if (!field->offsets || !values)
        return Py_BuildValue("sN", field->name, values);
    int64_t count = (int64_t)batch->rows + 1;
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
        if (put(fields, i, make_field(lease, batch, &batch->fields[i], &copied, side)) < 0)
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

static PyObject *make_columns(struct lease *lease, const struct mr_batch *batch, char *side)
{
    static const int dtypes[COLUMNS] = {MR_I64, MR_I64, MR_I64, PYTHON_U64, PYTHON_BOOL, MR_U8, MR_U8};
    void *columns[COLUMNS];
    int64_t rows = batch->rows;
    PyObject *tuple = PyTuple_New(COLUMNS);
    for (int i = 0; tuple && i < COLUMNS; i++) {
        columns[i] = side;
        side += rows * python_array_itemsize(dtypes[i]);
        if (put(tuple, i, python_array_make((PyObject *)(void *)lease, columns[i], dtypes[i], 1, &rows)) < 0)
            Py_CLEAR(tuple);
    }
    if (tuple)
        fill_columns(batch, columns);
    return tuple;
}

/* Takes the fields; NULL stands for an error before. */
static PyObject *make_batch(struct lease *lease, const struct mr_batch *batch, PyObject *fields, char *side)
{
    char cursor[MR_CURSOR_TEXT_BYTES];
    mr_cursor_print(&batch->cursor, cursor);
    PyObject *columns = fields ? make_columns(lease, batch, side) : NULL;
    if (!columns) {
        Py_XDECREF(fields);
        return NULL;
    }
    return Py_BuildValue("NNIIIIKKs", fields, columns, batch->rows, batch->valid_rows, batch->epoch,
                         batch->stream_epoch, (unsigned long long)batch->step,
                         (unsigned long long)batch->steps, cursor);
}

static struct lease *new_lease(struct python_pool *pool)
{
    struct lease *lease = PyObject_New(struct lease, (PyTypeObject *)(void *)python_types.lease);
    if (!lease)
        return NULL;
    python_memory_get(pool);
    lease->pool = pool;
    lease->chunk = NULL;
    lease->batch = NULL;
    lease->copy = lease->side = NULL;
    lease->loan = NULL;
    return lease;
}

PyObject *python_lease_take(struct python_pool *pool, struct mr_batch *batch, int copy)
{
    struct lease *lease = new_lease(pool);
    if (!lease) {
        mr_batch_release(batch);
        return NULL;
    }
    pool->held++;
    lease->batch = batch;
    lease->side = aligned_alloc(PYTHON_ALIGN, side_bytes(batch));
    int bad = !lease->side || (copy && copy_fields(lease) < 0);
    if (!copy && batch->field_count > 0)
        lease->chunk = python_memory_hold(pool, batch->fields[0].data);
    char *side = lease->side;
    PyObject *fields =
        bad ? PyErr_NoMemory() : make_fields(lease, &side); /* offsets first: they want alignment */
    PyObject *made = make_batch(lease, batch, fields, side);
    if (copy)
        release_batch(lease);
    Py_DECREF((PyObject *)(void *)lease);
    return made;
}

/* ---- on a device ---- */

int python_lease_use(PyObject *self, void *stream)
{
    struct python_loan *loan = lease_of(self)->loan;
    struct mr_error error;
    enum mr_code code;
    PyThreadState *python = PyEval_SaveThread(); /* another thread's batch may be on its way to the device */
    code = python_loan_use(loan, stream, &error);
    PyEval_RestoreThread(python);
    if (code == MR_OK)
        return 0;
    python_raise(code, error.text);
    return -1;
}

static PyObject *make_device_field(struct lease *lease, const struct mr_field *field)
{
    union {
        const void *in;
        void *out;
    } both = {.in = field->data};
    PyObject *values =
        python_array_make((PyObject *)(void *)lease, both.out, (int)field->dtype, field->rank, field->dims);
    if (values)
        ((struct python_array *)(void *)values)->ordinal = python_ring_ordinal(lease->loan->ring);
    return values ? Py_BuildValue("sN", field->name, values) : NULL;
}

/* Image and label of one lease, the others of another: whoever keeps those keeps nothing of the device. */
static PyObject *make_device_fields(struct lease *device, struct lease *host, const struct mr_batch *shown,
                                    char **side)
{
    const struct python_loan *loan = device->loan;
    int labelled = loan->batch->label.name != NULL, at = 0;
    PyObject *fields = PyTuple_New(1 + labelled + shown->field_count);
    if (fields && put(fields, at++, make_device_field(device, &loan->batch->image)) < 0)
        Py_CLEAR(fields);
    if (fields && labelled && put(fields, at++, make_device_field(device, &loan->batch->label)) < 0)
        Py_CLEAR(fields);
    char *in_place = NULL;
    for (int i = 0; fields && i < shown->field_count; i++)
        if (put(fields, at++, make_field(host, shown, &shown->fields[i], &in_place, side)) < 0)
            Py_CLEAR(fields);
    return fields;
}

PyObject *python_lease_take_loan(struct python_pool *pool, struct python_loan *loan)
{
    const struct mr_device_batch *batch = loan->batch;
    struct mr_batch shown = {.rows = batch->rows,
                             .valid_rows = batch->valid_rows,
                             .valid = batch->valid,
                             .row = batch->row,
                             .epoch = batch->epoch,
                             .stream_epoch = batch->stream_epoch,
                             .step = batch->step,
                             .steps = batch->steps,
                             .cursor = batch->cursor,
                             .field_count = loan->other_count,
                             .fields = loan->others};
    struct lease *device = new_lease(pool), *host = device ? new_lease(pool) : NULL;
    PyObject *made = NULL;
    if (device) {
        device->loan = loan;
        pool->held += !loan->own;
    } else {
        python_loan_release(loan);
    }
    if (host) {
        host->copy = loan->others_memory;
        loan->others_memory = NULL;
        char *side = host->side = aligned_alloc(PYTHON_ALIGN, side_bytes(&shown));
        PyObject *fields = side ? make_device_fields(device, host, &shown, &side) : PyErr_NoMemory();
        made = make_batch(host, &shown, fields, side);
    }
    Py_XDECREF((PyObject *)(void *)host);
    Py_XDECREF((PyObject *)(void *)device);
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

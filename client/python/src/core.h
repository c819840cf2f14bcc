/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the extension millrace._core: stable ABI of Python 3.11 (the first whose limited API has the buffer protocol).
 *
 *   Job    an open job (job.c); next() gives batches
 *   Lease  holds a batch: its slot until the last array has gone, or a copy, or a loan of a device's ring (lease.c)
 *   Array  typed memory of a lease: DLPack, the buffer protocol, CUDA's array interface; no copy (array.c, dlpack.c)
 *
 * All of it runs under the GIL, but for waiting, closing and copying.
 */
#ifndef CLIENT_PYTHON_CORE_H
#define CLIENT_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/python/src/memory.h"
#include "client/python/src/ring.h"
#include "client/include/millrace/millrace.h"

/* Dtypes of arrays beside those of fields. */
enum python_dtype { PYTHON_BOOL = 101, PYTHON_U64 = 102 };

struct python_array {
    PyObject_HEAD PyObject *lease; /* keeps the memory */
    void *data;
    int dtype; /* enum mr_dtype, or python_dtype */
    int rank;
    int ordinal;                                 /* of the CUDA device that has the memory; -1: the host's */
    Py_ssize_t shape[MR_DIMS], strides[MR_DIMS]; /* strides in bytes */
};

/* Types, made once by the module. */
struct python_types {
    PyObject *array, *lease, *job;
};
extern struct python_types python_types;

extern PyType_Spec python_array_spec, python_lease_spec, python_job_spec;

/* ---- module.c ---- */

/* Sets the exception of a code; always NULL. */
PyObject *python_raise(enum mr_code code, const char *text);

/* ---- array.c ---- */

/* C order over `dims`. The lease keeps `data`. */
PyObject *python_array_make(PyObject *lease, void *data, int dtype, int rank, const int64_t *dims);
Py_ssize_t python_array_itemsize(int dtype);

/* ---- dlpack.c ---- */

PyObject *python_dlpack_export(struct python_array *array, int versioned);

/* ---- lease.c ---- */

/* What Job.next() returns for a batch; takes the batch. `copy`: of its own memory, the slot is free again. */
PyObject *python_lease_take(struct python_pool *pool, struct mr_batch *batch, int copy);
/* The same of a batch on a device; takes the loan. */
PyObject *python_lease_take_loan(struct python_pool *pool, struct python_loan *loan);
/* A consumer works on `stream` with an array of a lease on a device; -1: an exception is set. */
int python_lease_use(PyObject *lease, void *stream);

#endif

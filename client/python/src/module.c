/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/core.h"

#include <stdio.h>

#ifdef MILLRACE_CUDA
#define HAS_CUDA Py_True
#else
#define HAS_CUDA Py_False
#endif

struct python_types python_types;

PyObject *python_raise(enum mr_code code, const char *text)
{
    PyObject *errors = PyImport_ImportModule("millrace.errors");
    PyObject *error = errors ? PyObject_CallMethod(errors, "make", "ss", mr_code_name(code), text) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(errors);
    return NULL;
}

/* ---- cursors ---- */

static PyObject *cursor_parts(PyObject *module, PyObject *args)
{
    const char *text;
    struct mr_cursor cursor;
    struct mr_error error;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:cursor_parts", &text))
        return NULL;
    if (mr_cursor_parse(&cursor, text, &error))
        return python_raise(error.code, error.text);
    return Py_BuildValue("IK", cursor.epoch - cursor.first_epoch, (unsigned long long)cursor.position);
}

static PyObject *cursor_at(PyObject *module, PyObject *args)
{
    const char *text;
    unsigned epoch;
    struct mr_cursor cursor;
    struct mr_error error;
    char out[MR_CURSOR_TEXT_BYTES];
    (void)module;
    if (!PyArg_ParseTuple(args, "sI:cursor_at", &text, &epoch))
        return NULL;
    if (mr_cursor_parse(&cursor, text, &error))
        return python_raise(error.code, error.text);
    if (epoch >= UINT32_MAX - cursor.first_epoch)
        return PyErr_Format(PyExc_OverflowError, "epoch %u is beyond the last", epoch);
    cursor.epoch = cursor.first_epoch + epoch;
    cursor.position = 0;
    mr_cursor_print(&cursor, out);
    return PyUnicode_FromString(out);
}

static PyObject *cause_name(PyObject *module, PyObject *args)
{
    unsigned char cause;
    (void)module;
    if (!PyArg_ParseTuple(args, "b:cause_name", &cause))
        return NULL;
    return PyUnicode_FromString(mr_cause_name(cause));
}

/* ---- the module ---- */

static PyMethodDef functions[] = {
    {"cursor_parts", cursor_parts, METH_VARARGS, "cursor_parts(cursor): (epoch of the job, position)."},
    {"cursor_at", cursor_at, METH_VARARGS, "cursor_at(cursor, epoch): the cursor of that epoch's beginning."},
    {"cause_name", cause_name, METH_VARARGS, "cause_name(cause): in words; '' for 0."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type)
{
    if (!*type)
        *type = PyType_FromSpec(spec);
    return *type ? PyModule_AddObjectRef(module, name, *type) : -1;
}

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "millrace._core",
    .m_doc = "The C client library for millrace.Loader: not for use by itself.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__core(void); /* no header declares it */
PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    if (add_type(module, "Array", &python_array_spec, &python_types.array) < 0 ||
        add_type(module, "Lease", &python_lease_spec, &python_types.lease) < 0 ||
        add_type(module, "Job", &python_job_spec, &python_types.job) < 0 ||
        PyModule_AddStringConstant(module, "version", mr_version()) < 0 ||
        PyModule_AddObjectRef(module, "has_cuda", HAS_CUDA) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

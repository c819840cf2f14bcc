/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/core.h"

#include <stdint.h>
#include <string.h>

static const struct {
    int dtype;
    const char *name, *format; /* format: of the buffer protocol; NULL: it has none */
    Py_ssize_t bytes;
} dtypes[] = {
    {MR_U8, "uint8", "B", 1},      {MR_I32, "int32", "i", 4},      {MR_I64, "int64", "q", 8},
    {MR_F32, "float32", "f", 4},   {MR_F16, "float16", "e", 2},    {MR_BF16, "bfloat16", NULL, 2},
    {PYTHON_BOOL, "bool", "?", 1}, {PYTHON_U64, "uint64", "Q", 8},
};

static size_t dtype_row(int dtype)
{
    size_t row = 0;
    while (row + 1 < sizeof dtypes / sizeof dtypes[0] && dtypes[row].dtype != dtype)
        row++;
    return row;
}

Py_ssize_t python_array_itemsize(int dtype)
{
    return dtypes[dtype_row(dtype)].bytes;
}

static struct python_array *array_of(PyObject *self)
{
    return (struct python_array *)(void *)self;
}

static Py_ssize_t values_of(const struct python_array *array)
{
    Py_ssize_t values = 1;
    for (int i = 0; i < array->rank; i++)
        values *= array->shape[i];
    return values;
}

static struct python_array *new_array(PyObject *lease, void *data, int dtype, int rank)
{
    struct python_array *array =
        PyObject_New(struct python_array, (PyTypeObject *)(void *)python_types.array);
    if (!array)
        return NULL;
    array->lease = Py_NewRef(lease);
    array->data = data;
    array->dtype = dtype;
    array->rank = rank;
    array->ordinal = -1;
    return array;
}

PyObject *python_array_make(PyObject *lease, void *data, int dtype, int rank, const int64_t *dims)
{
    struct python_array *array = new_array(lease, data, dtype, rank);
    if (!array)
        return NULL;
    Py_ssize_t stride = python_array_itemsize(dtype);
    for (int i = rank; i-- > 0;) {
        array->shape[i] = (Py_ssize_t)dims[i];
        array->strides[i] = stride;
        stride *= array->shape[i];
    }
    return (PyObject *)(void *)array;
}

static void array_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(array_of(self)->lease);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- buffer protocol ---- */

static int in_order(const struct python_array *array, int fortran)
{
    Py_ssize_t stride = python_array_itemsize(array->dtype);
    for (int i = 0; i < array->rank; i++) {
        int at = fortran ? i : array->rank - 1 - i;
        if (array->strides[at] != stride && array->shape[at] > 1)
            return 0;
        stride *= array->shape[at];
    }
    return 1;
}

static int order_fits(const struct python_array *array, int flags)
{
    int c = in_order(array, 0), strided = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    if (!strided || (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS)
        return c;
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS)
        return in_order(array, 1);
    return (flags & PyBUF_ANY_CONTIGUOUS) != PyBUF_ANY_CONTIGUOUS || c || in_order(array, 1);
}

/* Why it has no buffer; NULL: it has one. */
static const char *no_buffer(const struct python_array *array)
{
    if (array->ordinal >= 0)
        return "the array is in a GPU's memory: use DLPack, or copy it to the host";
    return dtypes[dtype_row(array->dtype)].format
               ? NULL
               : "bfloat16 has no format in the buffer protocol: use DLPack";
}

static int array_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    struct python_array *array = array_of(self);
    const char *format = dtypes[dtype_row(array->dtype)].format;
    view->obj = NULL;
    if (no_buffer(array) || !order_fits(array, flags)) {
        PyErr_SetString(PyExc_BufferError, no_buffer(array)
                                               ? no_buffer(array)
                                               : "the array is not in the order that is asked for");
        return -1;
    }
    union {
        const char *in;
        char *out; /* Py_buffer has no const */
    } both = {.in = format};
    *view = (Py_buffer){
        .buf = array->data,
        .obj = Py_NewRef(self),
        .len = values_of(array) * python_array_itemsize(array->dtype),
        .itemsize = python_array_itemsize(array->dtype),
        .ndim = array->rank,
        .format = flags & PyBUF_FORMAT ? both.out : NULL,
        .shape = flags & PyBUF_ND ? array->shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? array->strides : NULL,
    };
    return 0;
}

/* ---- attributes ---- */

static PyObject *tuple_of(const Py_ssize_t *values, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *value = PyLong_FromSsize_t(values[i]);
        if (!value || PyTuple_SetItem(tuple, i, value) < 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}

static PyObject *array_shape(PyObject *self, void *closure)
{
    (void)closure;
    return tuple_of(array_of(self)->shape, array_of(self)->rank);
}

static PyObject *array_strides(PyObject *self, void *closure)
{
    (void)closure;
    return tuple_of(array_of(self)->strides, array_of(self)->rank);
}

static PyObject *array_dtype(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(dtypes[dtype_row(array_of(self)->dtype)].name);
}

static PyObject *array_ndim(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(array_of(self)->rank);
}

static PyObject *array_nbytes(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(values_of(array_of(self)) * python_array_itemsize(array_of(self)->dtype));
}

static PyObject *array_pointer(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(array_of(self)->data);
}

static Py_ssize_t array_length(PyObject *self)
{
    return array_of(self)->rank > 0 ? array_of(self)->shape[0] : 0;
}

static PyObject *array_repr(PyObject *self)
{
    PyObject *shape = array_shape(self, NULL);
    PyObject *repr = shape ? PyUnicode_FromFormat("millrace.Array(shape=%R, dtype='%s')", shape,
                                                  dtypes[dtype_row(array_of(self)->dtype)].name)
                           : NULL;
    Py_XDECREF(shape);
    return repr;
}

/* NHWC memory as NCHW, or N views of HWC as of CHW: another view of the same bytes. */
static PyObject *array_channels_first(PyObject *self, PyObject *ignored)
{
    static const int order[] = {2, 0, 1};
    struct python_array *array = array_of(self);
    int images = array->rank - 3; /* dimensions before those of an image */
    (void)ignored;
    if (images < 1) {
        PyErr_SetString(PyExc_ValueError, "channels_first: the array has not 4 dimensions or more");
        return NULL;
    }
    struct python_array *view = new_array(array->lease, array->data, array->dtype, array->rank);
    if (view)
        view->ordinal = array->ordinal;
    for (int i = 0; view && i < array->rank; i++) {
        int from = i < images ? i : images + order[i - images];
        view->shape[i] = array->shape[from];
        view->strides[i] = array->strides[from];
    }
    return (PyObject *)(void *)view;
}

/* ---- DLPack ---- */

enum { DL_CPU = 1, DL_CUDA = 2 };

static PyObject *array_dlpack_device(PyObject *self, PyObject *ignored)
{
    int ordinal = array_of(self)->ordinal;
    (void)ignored;
    return ordinal < 0 ? Py_BuildValue("(ii)", DL_CPU, 0) : Py_BuildValue("(ii)", DL_CUDA, ordinal);
}

/* The array is exported where it is, and as it is. */
static int check_place(const struct python_array *array, PyObject *device, PyObject *copy)
{
    long type = array->ordinal < 0 ? DL_CPU : DL_CUDA, id = array->ordinal < 0 ? 0 : array->ordinal;
    long wants_type = type, wants_id = id;
    if (device && device != Py_None) {
        PyObject *pair = PySequence_Tuple(device);
        int good = pair && PyArg_ParseTuple(pair, "ll;dl_device is (type, id)", &wants_type, &wants_id);
        Py_XDECREF(pair);
        if (!good)
            return -1;
    }
    if (wants_type != type || wants_id != id)
        PyErr_Format(PyExc_BufferError,
                     "the array is on DLPack device (%ld, %ld), not (%ld, %ld): copy it there", type, id,
                     wants_type, wants_id);
    else if (copy == Py_True)
        PyErr_SetString(PyExc_BufferError, "the array is exported without a copy only");
    return PyErr_Occurred() ? -1 : 0;
}

/* The array API's numbers: None and 1, the legacy default stream; 2, the per-thread default stream; -1, no synchronisation; else a
 * cudaStream_t, which 0 is not: it would have two meanings. */
static int use_stream(const struct python_array *array, PyObject *stream)
{
    int none = !stream || stream == Py_None;
    if (array->ordinal < 0) {
        if (!none)
            PyErr_SetString(PyExc_BufferError, "the array is in CPU memory: it has no stream");
        return none ? 0 : -1;
    }
    long long handle = none ? 1 : PyLong_AsLongLong(stream);
    if (handle == -1)
        return PyErr_Occurred() ? -1 : 0;
    if (handle < 1) {
        PyErr_Format(PyExc_BufferError,
                     "stream %lld: 1 is the legacy default stream, 2 the per-thread one, -1 none", handle);
        return -1;
    }
    return python_lease_use(array->lease, (void *)(uintptr_t)handle);
}

static PyObject *array_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char stream_word[] = "stream", version_word[] = "max_version", device_word[] = "dl_device",
                copy_word[] = "copy";
    static char *words[] = {stream_word, version_word, device_word, copy_word, NULL};
    PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OOOO:__dlpack__", words, &stream, &version, &device,
                                     &copy) ||
        check_place(array_of(self), device, copy) < 0)
        return NULL;
    long major = 0;
    if (version && version != Py_None) {
        PyObject *first = PySequence_GetItem(version, 0);
        major = first ? PyLong_AsLong(first) : -1;
        Py_XDECREF(first);
        if (PyErr_Occurred())
            return NULL;
    }
    if (use_stream(array_of(self), stream) < 0)
        return NULL;
    return python_dlpack_export(array_of(self), major >= 1);
}

/* Version 3: whoever takes it works on, or waits for, the stream that it names. */
static PyObject *array_cuda_interface(PyObject *self, void *closure)
{
    static const struct {
        int dtype;
        const char *typestr;
    } types[] = {{MR_U8, "|u1"}, {MR_I64, "<i8"}, {MR_F32, "<f4"}, {MR_F16, "<f2"}};
    struct python_array *array = array_of(self);
    const char *typestr = NULL;
    (void)closure;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        typestr = types[i].dtype == array->dtype ? types[i].typestr : typestr;
    if (array->ordinal < 0 || !typestr) {
        PyErr_SetString(PyExc_AttributeError, array->ordinal < 0 ? "the array is not in a GPU's memory"
                                                                 : "bfloat16 has no type there: use DLPack");
        return NULL;
    }
    if (python_lease_use(array->lease, (void *)(uintptr_t)1) < 0)
        return NULL;
    return Py_BuildValue("{sNsNsss(NO)sisi}", "shape", array_shape(self, NULL), "strides",
                         array_strides(self, NULL), "typestr", typestr, "data",
                         PyLong_FromVoidPtr(values_of(array) ? array->data : NULL), Py_False, "version", 3,
                         "stream", 1);
}

/* numpy asks for it where there is no buffer, and would take the array for one object without it. */
static PyObject *array_numpy(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char dtype_word[] = "dtype", copy_word[] = "copy";
    static char *words[] = {dtype_word, copy_word, NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    const char *why = no_buffer(array_of(self));
    if (why)
        PyErr_SetString(PyExc_TypeError, why);
    if (why || !PyArg_ParseTupleAndKeywords(args, keywords, "|OO:__array__", words, &dtype, &copy))
        return NULL;
    PyObject *numpy = PyImport_ImportModule("numpy"), *view = numpy ? PyMemoryView_FromObject(self) : NULL;
    PyObject *made =
        view ? PyObject_CallMethod(numpy, copy == Py_True ? "array" : "asarray", "OO", view, dtype) : NULL;
    Py_XDECREF(view);
    Py_XDECREF(numpy);
    return made;
}

/* ---- the type ---- */

static PyObject *array_subscript(PyObject *self, PyObject *key)
{
    (void)self;
    (void)key;
    PyErr_SetString(PyExc_TypeError,
                    "a millrace.Array is memory, not to be computed with: take it by numpy.asarray(), "
                    "torch.from_dlpack(), jax.dlpack.from_dlpack() or memoryview(), or give the Loader "
                    "arrays='numpy', 'torch' or 'jax'");
    return NULL;
}

#define CAST(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef methods[] = {
    {"__dlpack__", CAST(array_dlpack), METH_VARARGS | METH_KEYWORDS,
     "A DLPack capsule of the same memory, which it keeps. On a GPU `stream` is where the consumer "
     "works:\nNone or 1, the "
     "legacy default stream; 2, the per-thread one; -1, it waits by itself; else a cudaStream_t."},
    {"__array__", CAST(array_numpy), METH_VARARGS | METH_KEYWORDS,
     "numpy's array of the same memory. TypeError: numpy cannot have it."},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS, "(1, 0): CPU; (2, N): CUDA device N."},
    {"channels_first", array_channels_first, METH_NOARGS,
     "The NCHW view of an NHWC array (or [N, views, C, H, W] of [N, views, H, W, C]): the same memory, other "
     "strides."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"shape", array_shape, NULL, "Sizes of the dimensions; the first is rows.", NULL},
    {"strides", array_strides, NULL, "In bytes.", NULL},
    {"dtype", array_dtype, NULL, "numpy's name, for instance 'uint8'.", NULL},
    {"ndim", array_ndim, NULL, "Number of dimensions.", NULL},
    {"nbytes", array_nbytes, NULL, "Bytes of all values.", NULL},
    {"pointer", array_pointer, NULL, "Address of the first value.", NULL},
    {"__cuda_array_interface__", array_cuda_interface, NULL,
     "Of an array on a GPU: CUDA's array interface, version 3.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static char doc[] = "Values of a batch, in the memory they were received into or, on a GPU, finished in. "
                    "numpy.asarray,\nmemoryview, "
                    "torch.from_dlpack and jax.dlpack.from_dlpack take it without a copy (on a GPU the last "
                    "two); the\nmemory lives as "
                    "long as any of them.";

static PyType_Slot slots[] = {
    {Py_tp_doc, doc},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_repr, array_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_sq_length, array_length},
    {Py_mp_subscript, array_subscript},
    {Py_bf_getbuffer, array_getbuffer},
    {0, NULL},
};

PyType_Spec python_array_spec = {
    .name = "millrace.Array",
    .basicsize = sizeof(struct python_array),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

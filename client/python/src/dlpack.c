/* SPDX-License-Identifier: Apache-2.0 */
/* The structures of the DLPack standard (its ABI 0.x and 1.0), over an array's memory. */
#include "client/python/src/core.h"

#include <stdlib.h>

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2 };
enum { CODE_INT = 0, CODE_UINT = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4, CODE_BOOL = 6 };

struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* strides in values */
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* What a capsule points to, and what it needs. */
struct exported {
    union {
        struct dl_managed managed;
        struct dl_versioned versioned;
    };
    PyObject *array;
    int64_t shape[MR_DIMS], strides[MR_DIMS];
};

static const char plain_name[] = "dltensor", versioned_name[] = "dltensor_versioned";

/* On any thread, with or without the GIL; a consumer may outlive the interpreter. */
static void let_go(struct exported *exported)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(exported->array);
        PyGILState_Release(state);
    }
    free(exported);
}

static void delete_plain(struct dl_managed *self)
{
    let_go(self->context);
}

static void delete_versioned(struct dl_versioned *self)
{
    let_go(self->context);
}

/* Of a capsule that nobody took: a taken one has another name. */
static void drop_capsule(PyObject *capsule)
{
    for (int versioned = 0; versioned < 2; versioned++) {
        const char *name = versioned ? versioned_name : plain_name;
        if (PyCapsule_IsValid(capsule, name))
            let_go(PyCapsule_GetPointer(capsule, name)); /* the union begins where `exported` does */
    }
}

static struct dl_tensor describe(struct exported *exported, const struct python_array *array)
{
    static const struct {
        int dtype;
        uint8_t code, bits;
    } codes[] = {
        {MR_U8, CODE_UINT, 8},       {MR_I32, CODE_INT, 32},      {MR_I64, CODE_INT, 64},
        {MR_F32, CODE_FLOAT, 32},    {MR_F16, CODE_FLOAT, 16},    {MR_BF16, CODE_BFLOAT, 16},
        {PYTHON_BOOL, CODE_BOOL, 8}, {PYTHON_U64, CODE_UINT, 64},
    };
    struct dl_tensor tensor = {
        .data = array->data,
        .device = {array->ordinal < 0 ? DEVICE_CPU : DEVICE_CUDA, array->ordinal < 0 ? 0 : array->ordinal},
        .ndim = array->rank,
        .dtype = {CODE_UINT, 8, 1},
        .shape = exported->shape,
        .strides = exported->strides};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].dtype == array->dtype) {
            tensor.dtype.code = codes[i].code;
            tensor.dtype.bits = codes[i].bits;
        }
    for (int i = 0; i < array->rank; i++) {
        exported->shape[i] = array->shape[i];
        exported->strides[i] = array->strides[i] / python_array_itemsize(array->dtype);
    }
    return tensor;
}

PyObject *python_dlpack_export(struct python_array *array, int versioned)
{
    struct exported *exported = calloc(1, sizeof *exported);
    if (!exported)
        return PyErr_NoMemory();
    struct dl_tensor tensor = describe(exported, array);
    if (versioned)
        exported->versioned = (struct dl_versioned){
            .major = 1, .context = exported, .deleter = delete_versioned, .tensor = tensor};
    else
        exported->managed = (struct dl_managed){tensor, exported, delete_plain};
    exported->array = Py_NewRef((PyObject *)(void *)array);
    PyObject *capsule = PyCapsule_New(exported, versioned ? versioned_name : plain_name, drop_capsule);
    if (!capsule)
        let_go(exported);
    return capsule;
}

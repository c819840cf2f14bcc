/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/core.h"
#include "client/python/src/feed.h"
#include "client/python/src/opening.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLICE_MS 50  /* how long Ctrl-C may wait */
#define WARN_MS 5000 /* without an answer */
#define FOREVER_MS (INT64_C(100) * 365 * 24 * 3600 * 1000)
#define LOOK_AHEAD_MAX 1024
#define RING_MAX 64

struct job {
    PyObject_HEAD pid_t pid; /* of the process that opened it: in a forked child it is inert */
    struct mr_client *client;
    struct python_pool *pool;
    struct python_feed feed; /* ring NULL: batches stay in host memory */
    uint32_t look_ahead;
    int users; /* threads inside next() or seek() */
    int closing;
    int handling;                     /* next() runs handlers of signals: one that closes is inside next() */
    int feeding;                      /* a thread has the feed, which is for one */
    unsigned long long copies, views; /* batches handed over as copies, and in their slots or the ring */
};

static struct job *job_of(PyObject *self)
{
    return (struct job *)(void *)self;
}

/* The open job; NULL, and the exception is set. */
static struct mr_job *usable(const struct job *job)
{
    if (job->pid != getpid()) {
        python_raise(MR_CLOSED,
                     "this Loader was opened by the parent of this process: nothing of it works after a "
                     "fork; open one here, before the parent opens any, or spawn the process");
        return NULL;
    }
    if (job->closing || !job->pool || !job->pool->job) {
        python_raise(MR_CLOSED, "the Loader is closed");
        return NULL;
    }
    return job->pool->job;
}

static int64_t ms_of(double seconds)
{
    if (seconds < 0 || !(seconds * 1000 < (double)FOREVER_MS))
        return FOREVER_MS;
    return (int64_t)ceil(seconds * 1000);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* ---- opening ---- */

/* Keeps a list of str; false: an exception is set. None is an empty list. */
static int keep_list(struct python_request *request, PyObject *list, const char **out, const char *what)
{
    Py_ssize_t count = list == Py_None ? 0 : PySequence_Size(list);
    if (count < 0)
        return 0;
    if (count > PYTHON_LIST) {
        PyErr_Format(PyExc_ValueError, "%s: more than %d", what, PYTHON_LIST);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        PyObject *bytes = item ? PyUnicode_AsUTF8String(item) : NULL;
        out[i] = bytes ? python_request_keep(request, PyBytes_AsString(bytes)) : NULL;
        Py_XDECREF(bytes);
        Py_XDECREF(item);
        if (!bytes)
            return 0;
    }
    return 1;
}

struct arguments {
    const char *server, *secret_file, *dataset, *job, *pipeline, *resume, *ledger;
    PyObject *options, *fields, *seed;
    int sampler, join, tail, on_bad, accept_new_bits, apply_finish, backend, ordinal, where;
    unsigned rank, world, batch, epochs, look_ahead;
    double timeout_s, weight;
};

static int parse(PyObject *args, PyObject *keywords, struct arguments *a)
{
    static char names[][16] = {
        "server",  "secret_file", "dataset",    "batch",   "job",    "pipeline",        "options",
        "fields",  "seed",        "sampler",    "join",    "tail",   "on_bad",          "rank",
        "world",   "epochs",      "look_ahead", "resume",  "ledger", "accept_new_bits", "apply_finish",
        "timeout", "weight",      "backend",    "ordinal", "where"};
    char *words[sizeof names / sizeof names[0] + 1] = {NULL};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        words[i] = names[i];
    return PyArg_ParseTupleAndKeywords(args, keywords, "|$zzsIzsOOOiiiiIIIIzzppddiii:Job", words, &a->server,
                                       &a->secret_file, &a->dataset, &a->batch, &a->job, &a->pipeline,
                                       &a->options, &a->fields, &a->seed, &a->sampler, &a->join, &a->tail,
                                       &a->on_bad, &a->rank, &a->world, &a->epochs, &a->look_ahead,
                                       &a->resume, &a->ledger, &a->accept_new_bits, &a->apply_finish,
                                       &a->timeout_s, &a->weight, &a->backend, &a->ordinal, &a->where);
}

static int on_device(const struct arguments *a)
{
    return a->backend != MR_BACKEND_AUTO; /* which stands for none */
}

static int fill_request(struct python_request *request, const struct arguments *a)
{
    struct mr_error error;
    request->where = (struct mr_client_options){.size = sizeof request->where,
                                                .server = python_request_keep(request, a->server),
                                                .secret_file = python_request_keep(request, a->secret_file)};
    request->what = (struct mr_job_options){
        .size = sizeof request->what,
        .job = python_request_keep(request, a->job),
        .dataset = python_request_keep(request, a->dataset),
        .pipeline = python_request_keep(request, a->pipeline),
        .options = request->options,
        .fields = a->fields == Py_None ? NULL : request->fields,
        .seed = a->seed == Py_None ? NULL : &request->seed,
        .sampler = (enum mr_sampler)a->sampler,
        .join = (enum mr_join)a->join,
        .tail = (enum mr_tail)a->tail,
        .on_bad = (enum mr_on_bad)a->on_bad,
        .rank = a->rank,
        .world = a->world,
        .batch = a->batch,
        .epochs = a->epochs,
        .look_ahead = a->look_ahead,
        .resume = a->resume ? &request->resume : NULL,
        .accept_new_bits = a->accept_new_bits,
        .apply_finish = a->apply_finish && !on_device(a),
        .ledger = python_request_keep(request, a->ledger),
        .weight = a->weight,
    };
    if (a->seed != Py_None)
        request->seed = PyLong_AsUnsignedLongLong(a->seed);
    if (PyErr_Occurred())
        return 0;
    if (a->resume && mr_cursor_parse(&request->resume, a->resume, &error)) {
        python_raise(error.code, error.text);
        return 0;
    }
    return keep_list(request, a->options, request->options, "options") &&
           keep_list(request, a->fields, request->fields, "fields");
}

/* A wrong address is mostly that; the error that names the cause comes only when `timeout` is over. */
static int warn_of_waiting(const struct arguments *a)
{
    const char *server = a->server ? a->server : getenv("MILLRACE_SERVER");
    return PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                            "millrace: no job on dataset %s within %d s, still trying for timeout=: does a "
                            "millrace-server listen at %s?",
                            a->dataset, WARN_MS / 1000, server && *server ? server : "127.0.0.1:7070");
}

/* Waits with the GIL released; false: an exception is set. */
static int await_opening(struct python_opening *opening, struct python_opened *opened,
                         const struct arguments *a)
{
    int done = 0;
    int64_t warn_ms = a->join == MR_JOIN_NEXT ? INT64_MAX : now_ms() + WARN_MS; /* NEXT is to wait */
    while (!done) {
        PyThreadState *python = PyEval_SaveThread();
        done = python_opening_wait(opening, SLICE_MS, opened);
        PyEval_RestoreThread(python);
        bool warns = !done && now_ms() >= warn_ms;
        warn_ms = warns ? INT64_MAX : warn_ms;
        if (!done && (PyErr_CheckSignals() < 0 || (warns && warn_of_waiting(a) < 0))) {
            python_opening_abandon(opening);
            return 0;
        }
    }
    if (opened->code == MR_OK)
        return 1;
    python_raise(opened->code, opened->error.text);
    return 0;
}

static int open_job(struct job *job, const struct arguments *a)
{
    struct python_opened opened;
    struct python_request *request = calloc(1, sizeof *request);
    if (!request || !fill_request(request, a)) {
        if (request) {
            request->failed = true; /* start only drops its texts */
            python_opening_start(request, NULL, 0);
        }
        free(request);
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        return 0;
    }
    struct python_opening *opening = python_opening_start(request, job->pool, ms_of(a->timeout_s));
    free(request);
    if (!opening) {
        PyErr_NoMemory();
        return 0;
    }
    if (!await_opening(opening, &opened, a))
        return 0;
    job->client = opened.client;
    job->pool->job = opened.job;
    return 1;
}

/* Before the job, whose slots are the device's. */
static int open_device(struct job *job, const struct arguments *a)
{
    struct python_ring_options options = {
        .backend = (enum mr_backend)a->backend,
        .ordinal = a->ordinal,
        .entries = a->look_ahead < RING_MAX ? a->look_ahead : RING_MAX,
        .rows = a->batch,
        .where = (enum mr_finish_where)a->where,
    };
    struct mr_error error;
    enum mr_code code;
    PyThreadState *python = PyEval_SaveThread();
    code = python_ring_open(&job->pool->ring, &options, &error);
    PyEval_RestoreThread(python);
    job->feed.ring = job->pool->ring;
    if (code != MR_OK)
        python_raise(code, error.text);
    return code == MR_OK;
}

/* What the device does with a batch: all that the pipeline says, or nothing. */
static int plan_device(struct job *job, const struct arguments *a)
{
    struct mr_finish finish = {.size = sizeof finish, .dtype = MR_U8};
    struct mr_error error;
    enum mr_code code = a->apply_finish ? mr_job_finish(job->pool->job, &finish, &error) : MR_OK;
    if (code != MR_OK) {
        python_raise(code, error.text);
        return 0;
    }
    python_ring_plan(job->pool->ring, &finish);
    return 1;
}

static int open_all(struct job *job, const struct arguments *a)
{
    if (!job->pool) {
        PyErr_NoMemory();
        return 0;
    }
    if (!on_device(a))
        return open_job(job, a);
    return open_device(job, a) && open_job(job, a) && plan_device(job, a);
}

static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct arguments a = {0};
    if (!parse(args, keywords, &a))
        return NULL;
    if (a.look_ahead < 1 || a.look_ahead > LOOK_AHEAD_MAX)
        return PyErr_Format(PyExc_ValueError, "look_ahead is %u, must be 1 to %d", a.look_ahead,
                            LOOK_AHEAD_MAX);
    struct job *job = PyObject_New(struct job, type);
    if (!job)
        return NULL;
    job->pid = getpid();
    job->client = NULL;
    job->look_ahead = a.look_ahead;
    job->users = job->closing = job->handling = job->feeding = 0;
    job->copies = job->views = 0;
    job->feed = (struct python_feed){0};
    job->pool = python_memory_open(a.look_ahead + 1);
    if (open_all(job, &a))
        return (PyObject *)(void *)job;
    Py_DECREF((PyObject *)(void *)job);
    return NULL;
}

/* ---- closing ---- */

/* Whoever is inside next() leaves within a slice; a handler that it runs leaves the closing to it. */
static void close_job(struct job *job)
{
    struct timespec moment = {0, 1000000};
    job->closing = 1;
    if (job->handling)
        return;
    while (job->users > 0 && job->pid == getpid()) {
        PyThreadState *python = PyEval_SaveThread();
        nanosleep(&moment, NULL);
        PyEval_RestoreThread(python);
    }
    struct mr_client *client = job->client;
    struct mr_job *open = job->pool ? job->pool->job : NULL;
    job->client = NULL;
    if (job->pool)
        job->pool->job = NULL;
    PyThreadState *python = PyEval_SaveThread();
    if (open && job->feed.ring && job->pid == getpid()) {
        python_feed_drop(&job->feed);
        python_ring_settle(job->feed.ring);
    }
    mr_job_close(&open);
    mr_client_close(&client);
    PyEval_RestoreThread(python);
}

/* Keeps the exception that is set. */
static void finish_closing(struct job *job)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    close_job(job);
    PyErr_Restore(kind, value, trace);
}

static PyObject *job_close(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    close_job(job_of(self));
    return Py_NewRef(Py_None);
}

static void job_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    finish_closing(job_of(self));
    PyThreadState *python = PyEval_SaveThread(); /* a device's memory may be in use still */
    python_memory_put(job_of(self)->pool);
    PyEval_RestoreThread(python);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- batches ---- */

/* The library names the slice that it waited; the caller waited longer. */
static PyObject *raise_timeout(const struct mr_error *error, double timeout_s)
{
    char text[MR_ERROR_TEXT_BYTES + 64];
    const char *why = strstr(error->text, " ms: ");
    snprintf(text, sizeof text, "no batch within %g s: %s", timeout_s, why ? why + 5 : error->text);
    return python_raise(MR_TIMEOUT, text);
}

static PyObject *take(struct job *job, struct mr_batch *batch)
{
    int copy = job->pool->held + 1 >= job->look_ahead; /* one more, and the library had none to give */
    PyObject *made = python_lease_take(job->pool, batch, copy);
    job->copies += made && copy;
    job->views += made && !copy;
    return made;
}

/* The next one goes to the device while the trainer works with this one; at an epoch's end nobody knows whether there is one. */
static PyObject *take_loan(struct job *job, struct python_loan *loan)
{
    int copy = loan->own != NULL, last = loan->batch->step + 1 >= loan->batch->steps;
    PyObject *made = python_lease_take_loan(job->pool, loan);
    job->copies += made && copy;
    job->views += made && !copy;
    if (last || !made)
        return made;
    PyThreadState *python = PyEval_SaveThread();
    python_feed_prefetch(&job->feed, job->pool->job);
    PyEval_RestoreThread(python);
    return made;
}

static PyObject *wait_for_batch(struct job *job, double timeout_s)
{
    int64_t end_ms = now_ms() + ms_of(timeout_s);
    for (;;) {
        struct mr_job *open = usable(job);
        struct mr_batch *batch = NULL;
        struct python_loan *loan = NULL;
        struct mr_error error;
        enum mr_code code;
        if (!open)
            return NULL;
        int64_t left_ms = end_ms - now_ms(), slice_ms = left_ms < SLICE_MS ? left_ms : SLICE_MS;
        PyThreadState *python = PyEval_SaveThread();
        slice_ms = slice_ms > 0 ? slice_ms : 0;
        code = job->feed.ring ? python_feed_next(&job->feed, open, slice_ms, &loan, &error)
                              : mr_job_next(open, &batch, slice_ms, &error);
        PyEval_RestoreThread(python);
        if (code == MR_OK)
            return loan ? take_loan(job, loan) : take(job, batch);
        if (code == MR_END)
            return Py_NewRef(Py_None);
        if (code != MR_TIMEOUT)
            return python_raise(code, error.text);
        job->handling++; /* another thread may be here, too, while a handler runs */
        int interrupted = PyErr_CheckSignals() < 0;
        job->handling--;
        if (interrupted)
            return NULL;
        if (now_ms() >= end_ms)
            return raise_timeout(&error, timeout_s);
    }
}

/* The calling thread has the feed, and closing waits for it; 0: another one has, and the exception is set. */
static int enter(struct job *job)
{
    if (job->feeding && job->pid == getpid()) {
        python_raise(MR_BUSY, "another thread is waiting for a batch of this Loader");
        return 0;
    }
    job->feeding = job->feed.ring != NULL;
    job->users++;
    return 1;
}

static PyObject *leave(struct job *job, PyObject *made)
{
    job->users--;
    job->feeding = 0;
    if (job->closing && job->users == 0)
        finish_closing(job);
    return made;
}

static PyObject *job_next(PyObject *self, PyObject *args)
{
    double timeout_s;
    if (!PyArg_ParseTuple(args, "d:next", &timeout_s) || !enter(job_of(self)))
        return NULL;
    return leave(job_of(self), wait_for_batch(job_of(self), timeout_s));
}

static PyObject *seek(struct job *job, const char *text)
{
    struct mr_cursor cursor;
    struct mr_error error;
    struct mr_job *open = usable(job);
    if (!open)
        return NULL;
    if (mr_cursor_parse(&cursor, text, &error) || mr_job_seek(open, &cursor, &error))
        return python_raise(error.code, error.text);
    PyThreadState *python = PyEval_SaveThread();
    python_feed_drop(&job->feed); /* it stood before that */
    PyEval_RestoreThread(python);
    return Py_NewRef(Py_None);
}

static PyObject *job_seek(PyObject *self, PyObject *args)
{
    const char *text;
    if (!PyArg_ParseTuple(args, "s:seek", &text) || !enter(job_of(self)))
        return NULL;
    return leave(job_of(self), seek(job_of(self), text));
}

/* ---- about it ---- */

static PyObject *list_classes(const struct mr_job_info *info)
{
    PyObject *list = PyList_New(info->class_count);
    for (uint32_t i = 0; list && i < info->class_count; i++) {
        const char *name = info->classes[i]; /* a folder's name: any bytes */
        PyObject *text = PyUnicode_DecodeFSDefault(name);
        if (!text || PyList_SetItem(list, i, text) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *job_info(PyObject *self, PyObject *ignored)
{
    struct mr_job_info info = {.size = sizeof info};
    struct mr_error error;
    char cursor[MR_CURSOR_TEXT_BYTES];
    (void)ignored;
    struct mr_job *open = usable(job_of(self));
    if (!open)
        return NULL;
    if (job_of(self)->feeding) /* between the job and the hand-over there is no place to tell */
        return python_raise(MR_BUSY, "another thread is waiting for a batch of this Loader");
    if (mr_job_info(open, &info, &error))
        return python_raise(error.code, error.text);
    const struct python_feed *feed = &job_of(self)->feed;
    mr_cursor_print(feed->ahead || feed->pending ? &feed->at : &info.cursor, cursor);
    PyObject *classes = list_classes(&info);
    if (!classes)
        return NULL;
    return Py_BuildValue("{sKsKsNssssss}", "items", (unsigned long long)info.items, "steps",
                         (unsigned long long)info.steps, "classes", classes, "pipeline", info.pipeline,
                         "note", info.note, "cursor", cursor);
}

static PyObject *job_stats(PyObject *self, PyObject *ignored)
{
    struct mr_job_stats s = {.size = sizeof s};
    const struct job *job = job_of(self);
    (void)ignored;
    struct mr_job *open = usable(job);
    if (!open)
        return NULL;
    enum mr_code code = mr_job_stats(open, &s);
    if (code)
        return python_raise(code, "stats");
#define COUNT(name) #name, (unsigned long long)s.name
    return Py_BuildValue("{sKsKsKsdsIsKsKsKsKsKsKsKsKsKsKsKsKsKsKsI}", COUNT(rows), COUNT(batches),
                         COUNT(bytes), "stall_s", (double)s.stall_ns / 1e9, "ready", s.ready,
                         COUNT(substituted), COUNT(skipped), COUNT(requests), COUNT(moved), COUNT(retries),
                         COUNT(reconnects), COUNT(failovers), COUNT(bad_frames), COUNT(hedges),
                         COUNT(hedges_won), COUNT(socket_bytes), COUNT(memory_bytes), "copies", job->copies,
                         "views", job->views, "held", job->pool->held);
#undef COUNT
}

static PyObject *job_item(PyObject *self, PyObject *args)
{
    unsigned long long index;
    double timeout_s;
    struct mr_error error;
    if (!PyArg_ParseTuple(args, "Kd:item", &index, &timeout_s))
        return NULL;
    struct mr_job *open = usable(job_of(self));
    struct mr_item *item = open ? calloc(1, sizeof *item) : NULL;
    if (!item)
        return open ? PyErr_NoMemory() : NULL;
    enum mr_code code;
    job_of(self)->users++;
    PyThreadState *python = PyEval_SaveThread();
    code = mr_job_item(open, index, item, ms_of(timeout_s), &error);
    PyEval_RestoreThread(python);
    job_of(self)->users--;
    PyObject *name = code == MR_OK ? PyUnicode_DecodeFSDefault(item->name) : python_raise(code, error.text);
    PyObject *made =
        name ? Py_BuildValue("NiK", name, (int)item->label, (unsigned long long)item->size_bytes) : NULL;
    free(item);
    return made;
}

static PyObject *cost(const struct mr_place_cost *of)
{
    return Py_BuildValue("{sIsdsdsdsK}", "batches", of->batches, "cpu_ms", (double)of->cpu_ns / 1e6,
                         "copy_ms", (double)of->copy_ns / 1e6, "kernel_ms", (double)of->kernel_ns / 1e6,
                         "copied_bytes", (unsigned long long)of->copied_bytes);
}

static PyObject *job_placement(PyObject *self, PyObject *ignored)
{
    struct mr_placement is = {.size = sizeof is};
    const struct job *job = job_of(self);
    (void)ignored;
    if (!usable(job))
        return NULL;
    struct python_ring *ring = job->feed.ring;
    if (!ring || !python_ring_placement(ring, &is))
        return Py_BuildValue("{szszsNss}", "device", ring ? python_ring_name(ring) : NULL, "where",
                             ring ? NULL : "client", "decided", PyBool_FromLong(!ring), "reason",
                             ring ? "no batch came yet"
                                  : "client: no device, batches stay in this process's memory");
    return Py_BuildValue("{sssssNsssNsN}", "device", python_ring_name(ring), "where",
                         is.where == MR_FINISH_GPU ? "gpu" : "client", "decided", PyBool_FromLong(is.decided),
                         "reason", is.reason, "client", cost(&is.client), "gpu", cost(&is.gpu));
}

/* ---- the type ---- */

static PyMethodDef methods[] = {
    {"next", job_next, METH_VARARGS, "next(timeout): the next batch's parts; None: the last epoch is over."},
    {"seek", job_seek, METH_VARARGS, "seek(cursor): goes on there."},
    {"info", job_info, METH_NOARGS, "items, steps, classes, pipeline, note, cursor."},
    {"stats", job_stats, METH_NOARGS, "Counters."},
    {"placement", job_placement, METH_NOARGS, "Where finish runs, and why."},
    {"item", job_item, METH_VARARGS, "item(index, timeout): (name, label, bytes)."},
    {"close", job_close, METH_NOARGS, "Closes job and client; arrays stay valid."},
    {NULL, NULL, 0, NULL},
};

static char doc[] = "An open job.";

static PyType_Slot slots[] = {
    {Py_tp_doc, doc}, {Py_tp_new, job_new}, {Py_tp_dealloc, job_dealloc}, {Py_tp_methods, methods}, {0, NULL},
};

PyType_Spec python_job_spec = {
    .name = "millrace._core.Job",
    .basicsize = sizeof(struct job),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

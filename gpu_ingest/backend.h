/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between CUDA and the host, behind one table of functions. A lane is the memory of one ingest on a device and
 * the order of its work; it has as many entries as the ring. Handles are the backend's own.
 */
#ifndef GPU_INGEST_BACKEND_H
#define GPU_INGEST_BACKEND_H

#include "gpu_ingest/include/millrace/ingest.h"
#include "gpu_ingest/kernels.h"
#include "gpu_ingest/placement.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INGEST_NAME_CHARS 300

struct ingest_plan {
    uint32_t ring, batch, images;              /* images: of a batch, its views counted */
    size_t in_bytes, image_bytes, label_bytes; /* of a whole batch */
    const struct ingest_tables *tables;        /* outlive the lane */
    bool stages;                               /* batches may be finished on the CPU */
};

struct ingest_place { /* of an entry */
    void *image, *label;
    struct mr_row_draw *draws; /* host memory: written before submit, when the batch before has been copied */
};

struct ingest_backend {
    enum mr_backend kind;
    enum mr_code (*open)(void **device, int ordinal, char name[INGEST_NAME_CHARS], struct mr_error *error);
    void (*close)(void *device);
    void *(*slot_allocate)(void *device, size_t bytes);
    void (*slot_free)(void *device, void *memory);
    enum mr_code (*lane_create)(void **lane, void *device, const struct ingest_plan *plan,
                                struct mr_error *error);
    void (*lane_destroy)(void *lane);
    struct ingest_place (*place)(void *lane, uint32_t entry);
    /* Copy and kernels. `work` has host pointers in `in`, `labels` and `draws`; the others are the entry's place. */
    enum mr_code (*submit)(void *lane, uint32_t entry, const struct ingest_work *work, bool measure,
                           struct mr_error *error);
    /* Host memory to finish a batch in, free for it until upload: waits until it is. */
    enum mr_code (*stage)(void *lane, uint32_t entry, void **image, void **label, struct mr_error *error);
    /* Copies what `work` made in the stage to the entry's place. */
    enum mr_code (*upload)(void *lane, uint32_t entry, const struct ingest_work *work, bool measure,
                           struct mr_error *error);
    void (*unstage)(void *lane); /* no batch is staged any more */
    /* Copy and kernels of the last submit or upload with `measure`. MR_BUSY: not done yet. */
    enum mr_code (*measured)(void *lane, struct ingest_sample *sample);
    enum mr_code (*copied)(void *lane, uint32_t entry, int wait,
                           struct mr_error *error); /* MR_BUSY: not yet */
    enum mr_code (*wait)(void *lane, uint32_t entry, struct mr_error *error);
    enum mr_code (*stream_wait)(void *lane, uint32_t entry, void *stream, struct mr_error *error);
    enum mr_code (*release)(void *lane, uint32_t entry, void *const *streams, uint32_t count,
                            struct mr_error *error); /* at most MR_STREAMS */
};

extern const struct ingest_backend ingest_host_backend;
#ifdef MILLRACE_CUDA
extern const struct ingest_backend ingest_cuda_backend;
#endif

/* Fills `error` (may be NULL), returns `code`. */
enum mr_code ingest_error_set(struct mr_error *error, enum mr_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif

#endif

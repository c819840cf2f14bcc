/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Millrace's way to a GPU: batches as the wire carries them (u8, NHWC) go from pinned batch slots to device memory, are
 * finished there (dtype, normalise, layout, RandomErasing, MixUp, CutMix), and are handed to the trainer's stream. Without a
 * GPU the backend `host` does the same in ordinary memory: same calls, same bits.
 *
 *     mr_device_open(&device, &(struct mr_device_options){.size = sizeof(struct mr_device_options)}, &error);
 *     what.slot_allocate = mr_device_slot_allocate;    // pinned: no copy between socket and copy engine
 *     what.slot_free = mr_device_slot_free;
 *     what.slot_context = device;
 *     mr_job_open(&job, client, &what, 30000, &error); // apply_finish stays 0
 *     mr_job_finish(job, &finish, &error);
 *     mr_ingest_create(&ingest, device, &options, &error); // .finish = &finish, .batch_release = mr_batch_release, ...
 *     while (mr_job_next(job, &batch, 30000, &error) == MR_OK) {
 *         mr_ingest_submit(ingest, batch, &ready, &error); // queued; `batch` is the ingest's now
 *         mr_ingest_stream_wait(ready, stream);            // work queued on `stream` from here on sees it whole
 *         train(ready->image.data, ready->label.data, stream);
 *         mr_ingest_release(ready, stream);                // reused after what is queued on `stream` by now
 *     }
 *     mr_ingest_destroy(ingest);
 *     mr_job_close(&job);
 *     mr_device_close(&device);
 *
 * finish and batch ops run on the GPU, or on the CPU of the thread that calls mr_ingest_submit, which then copies the finished
 * batch: the bits are the same. MR_FINISH_AUTO does the first full batches both ways in turn, 4 on either side, and takes what
 * costs less of thread, copy and kernels together, for good; mr_ingest_placement says what was measured and why.
 *
 * A `stream` is a cudaStream_t of the device (NULL: its legacy default stream; cudaStreamPerThread is one as well), which must
 * live until mr_ingest_release and not be capturing a graph; the backend host does its work inside mr_ingest_submit and ignores
 * it. All device memory is taken at creation.
 *
 * Threads: one at a time for an ingest and its batches; slots may be allocated meanwhile. No thread is started. The calling
 * thread's current CUDA device and context are as before after each call; a context is made on the device asked for and on
 * no other. Errors as in millrace.h; MR_IO: CUDA said no, the text says what; of a failed kernel or copy, every later call
 * says it again.
 */
#ifndef MILLRACE_INGEST_H
#define MILLRACE_INGEST_H

#include "millrace/millrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device ---- */

enum mr_backend {
    MR_BACKEND_AUTO, /* CUDA where there is such a device, else the host */
    MR_BACKEND_HOST,
    MR_BACKEND_CUDA
};

struct mr_device;

struct mr_device_options {
    size_t size;
    enum mr_backend backend;
    int ordinal; /* which CUDA device, from 0 */
};

/* MR_UNSUPPORTED: CUDA is not in this build, or no code for this device (older than sm_80). MR_NOT_FOUND: no such CUDA device (AUTO: the host instead, if there is none at
 * all). */
MR_API enum mr_code mr_device_open(struct mr_device **device, const struct mr_device_options *options,
                                   struct mr_error *error);
/* MR_BUSY, and nothing happens: slots or ingests of it live. Clears *device; NULL is fine. */
MR_API enum mr_code mr_device_close(struct mr_device **device);
MR_API enum mr_backend mr_device_backend(const struct mr_device *device);
MR_API const char *mr_device_name(const struct mr_device *device); /* "host", "cuda:1 NVIDIA H200" */

/* For mr_job_options: memory that this device copies from without another copy; `device` is the slot_context. */
MR_API void *mr_device_slot_allocate(void *device, size_t bytes);
MR_API void mr_device_slot_free(void *device, void *memory, size_t bytes);

/* ---- ingest ---- */

struct mr_ingest;

enum mr_finish_where {
    MR_FINISH_AUTO,   /* measured */
    MR_FINISH_CLIENT, /* on the CPU, in mr_ingest_submit */
    MR_FINISH_GPU     /* MR_UNSUPPORTED with the backend host */
};

struct mr_ingest_options {
    size_t size;
    const struct mr_finish *finish; /* mr_job_finish's, or one's own */
    uint32_t batch;                 /* rows of a batch, at most */
    uint32_t height, width;         /* of the field "image"; its views are `finish`'s */
    uint32_t ring;                  /* device batches; 0: 3 */
    enum mr_finish_where
        where; /* not GPU: two finished batches of pinned memory, given back if the GPU is chosen */
    /* Called, inside a call of this ingest, when a submitted batch has been copied: mr_batch_release. NULL: batches stay the
     * caller's; mr_ingest_copied says when. */
    void (*batch_release)(struct mr_batch *batch);
};

/* The device must live longer. MR_NO_MEMORY says how much was asked for. */
MR_API enum mr_code mr_ingest_create(struct mr_ingest **ingest, struct mr_device *device,
                                     const struct mr_ingest_options *options, struct mr_error *error);
/* Waits for what is under way, also on the streams given to mr_ingest_release. Its batches must not be used any more. NULL
 * is fine. */
MR_API void mr_ingest_destroy(struct mr_ingest *ingest);

struct mr_device_batch {
    struct mr_field
        image; /* data: memory of the device; dims as the layout says, with several views [rows, views, ...] */
    struct mr_field
        label; /* i64 [rows], or f32 [rows, classes] where the pipeline mixes; name NULL: not sent */
    uint32_t rows, valid_rows; /* these and what follows: as in the mr_batch, copied; host memory */
    const uint8_t *valid;
    const struct mr_row *row;
    uint32_t epoch, stream_epoch;
    uint64_t step, steps;
    struct mr_cursor cursor;
};

/* Queues copy and kernels of the job's next batch; waits only when the copy before is still under way, so that at most one
 * batch is held (none, where it is finished on the CPU). On success the batch belongs to the ingest if it has a batch_release. MR_BUSY: all of the ring is the
 * trainer's. MR_INVALID: no field "image", u8 of the size that was stated, or too many rows. */
MR_API enum mr_code mr_ingest_submit(struct mr_ingest *ingest, struct mr_batch *batch,
                                     struct mr_device_batch **out, struct mr_error *error);
/* Of a batch that was not released yet. MR_BUSY: the mr_batch it came from is still being copied (wait 0); MR_OK: it is
 * no longer needed. */
MR_API enum mr_code mr_ingest_copied(struct mr_device_batch *batch, int wait, struct mr_error *error);
/* What is queued on `stream` from now on begins when the batch is ready. */
MR_API enum mr_code mr_ingest_stream_wait(struct mr_device_batch *batch, void *stream,
                                          struct mr_error *error);
/* Returns when the batch is ready. */
MR_API enum mr_code mr_ingest_wait(struct mr_device_batch *batch, struct mr_error *error);
/* Gives it back; its memory is written again after what is queued on `stream` by now. */
MR_API enum mr_code mr_ingest_release(struct mr_device_batch *batch, void *stream, struct mr_error *error);
/* The same of a batch that was used on several streams. MR_INVALID: more than MR_STREAMS. */
#define MR_STREAMS 8
MR_API enum mr_code mr_ingest_release_streams(struct mr_device_batch *batch, void *const *streams,
                                              uint32_t count, struct mr_error *error);

/* ---- where finish runs ---- */

struct mr_place_cost { /* the batch of median cost, of those that were measured; all 0: none was */
    uint32_t batches;  /* measured */
    int64_t cpu_ns;    /* of the submitting thread: finish, or queueing */
    int64_t copy_ns, kernel_ns;
    uint64_t copied_bytes; /* u8 to the GPU, or finished by the client */
};

struct mr_placement {
    size_t size;
    enum mr_finish_where where; /* of the next batch: MR_FINISH_CLIENT or MR_FINISH_GPU */
    int decided;                /* 0: AUTO, and not enough has been measured yet */
    struct mr_place_cost client, gpu;
    char reason[128]; /* "gpu: 0.21 ms a batch there, 3.90 ms on the trainer's CPU", "client: asked for" */
};

/* MR_INVALID: placement->size. */
MR_API enum mr_code mr_ingest_placement(const struct mr_ingest *ingest, struct mr_placement *placement);

#ifdef __cplusplus
}
#endif

#endif

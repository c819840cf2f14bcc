/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One mr_job: the machine, its memory, its connections and its talk with the server.
 *
 * Two threads meet here: the trainer's (mr_job_next and the like) and the client's loop. `mutex` guards everything from
 * `core` on; what is before is set in mr_job_open and never changes. Memory of a slot that is held is the trainer's alone.
 */
#ifndef CLIENT_JOB_H
#define CLIENT_JOB_H

#include "client/src/certificate.h"
#include "client/src/client.h"
#include "client/src/core.h"
#include "client/src/items.h"
#include "client/src/ledger.h"
#include "client/src/slots.h"
#include "proto/manifest/manifest.h"
#include "scheduler/stream.h"

#include <pthread.h>
#include <stdatomic.h>

#define CLIENT_JOB_CHARS 128
#define CLIENT_NOTE_CHARS 1024
#define CLIENT_ADDRESSES 8 /* of a worker; more are not tried */

struct event;
struct client_session;
struct client_call;

/* How to reach a worker, from the latest plan. */
struct client_endpoint {
    uint64_t worker;
    char addresses[CLIENT_ADDRESSES][BASE_ADDRESS_CHARS];
    int count;
    unsigned next; /* the address to begin with: they take turns */
};

/* A page of the manifest that the trainer's thread waits for. */
struct client_page {
    bool wanted, here;              /* here: `code` and `bytes` are the answer */
    bool elsewhere;                 /* what `worker` gave was no use */
    uint64_t index, worker, number; /* number: of the request under way at `worker`, 0: none */
    int64_t try_ns;                 /* then it is asked for anew, elsewhere */
    struct base_buffer bytes;
    enum base_code code;
    struct base_error error;
};

struct mr_job {
    struct mr_client *client;
    char name[CLIENT_JOB_CHARS], dataset[256];
    uint32_t rank, look_ahead;
    uint64_t generation;
    bool sockets_only;
    uint8_t *open_bytes; /* packed JobOpen, to open again where the server forgot us */
    size_t open_size;
    struct scheduler_stream stream;
    struct scheduler_pipeline pipeline;
    struct mr_finish finish;
    struct scheduler_shape shape;
    char pipeline_text[SCHEDULER_PIPELINE_TEXT_BYTES], note[CLIENT_NOTE_CHARS];
    char **classes; /* [class_count + 1] */
    uint32_t class_count;
    struct client_slots slots;
    struct base_message poke; /* wakes the loop */

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a step is ready, an error, a page, closing */
    struct client_core *core;
    struct client_items items;
    uint32_t first_epoch;
    uint64_t seeks; /* the server is told, so that no earlier report undoes one */
    bool closing, poked;
    bool flushing; /* the loop writes to sockets, without the mutex */
    bool has_left; /* `left`: the machine wants it, and the loop has not done it yet */
    struct client_action left;
    bool news;              /* of the loop, for who waits for `changed`: told when it unlocks */
    int users;              /* threads inside a call */
    atomic_int posting;     /* threads that have unlocked, and wake the loop yet */
    int waiting;            /* of them: for a batch, or a page */
    struct base_error over; /* not OK: the server ended it */
    uint64_t batches, bytes, stall_ns, bad_frames;
    uint64_t socket_bytes, memory_bytes; /* of DATA, by how they came */
    struct client_certificates certificates;

    struct client_ledger *ledger;   /* NULL: none. Trainer's thread only, as the next three */
    struct client_batch *unwritten; /* taken, and the ledger did not take it: not handed over yet */
    struct client_ledger_step lies; /* of the batch last taken */
    struct scheduler_cursor before; /* likewise: the cursor until it is handed over */

    struct client_session *sessions; /* a list */
    struct client_endpoint *endpoints;
    int endpoint_count;
    struct event *timer;
    int64_t timer_ns; /* of which it goes off; INT64_MAX: it is not set */
    struct client_page page;
    struct manifest_remote *manifest; /* the trainer's thread only */
    int64_t page_deadline_ns;         /* likewise */
    int64_t name_until_ns;            /* of a bad item: then it is told without; 0: none was met */

    struct client_call *sync; /* under way */
    struct event *sync_timer;
    uint64_t revision;
    uint32_t sync_wait_ms;
};

/* Carries out what the machine wants. Loop thread, mutex held. */
void client_job_drive(struct mr_job *job);
/* The trainer's thread, mutex held: as client_job_drive, and lets frames leave, all that the loop is not needed for. False: it
 * is, poke it. */
bool client_job_ask(struct mr_job *job);
/* The loop thread's way out: wakes who waits, when there is news (woken before, they would only wait for the mutex), then lets frames
 * leave and sets the timer. */
void client_job_unlock(struct mr_job *job);
/* Any thread, mutex held: drive soon. */
void client_job_poke(struct mr_job *job);
/* The same, after unlocking: or the loop would only wait for the mutex. */
void client_job_unlock_poking(struct mr_job *job);
/* The ledger's record of a start where the machine is now. */
void client_job_ledger_start(const struct mr_job *job, bool resumed, uint64_t generation,
                             struct ledger_start *start);
/* The machine's cursor as the trainer saves it. */
void client_job_cursor(const struct mr_job *job, struct scheduler_cursor at, struct mr_cursor *cursor);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real millrace-worker process with a server that this test plays, and peers that speak the data port by hand: bytes are
 * written and read here, without proto/wire/link.
 */
#ifndef TESTS_UNIT_WORKER_SITE_H
#define TESTS_UNIT_WORKER_SITE_H

#include "proto/manifest/manifest.h"
#include "proto/wire/header.h"
#include "proto/wire/messages.h"
#include "proto/wire/rows.h"
#include "scheduler/stream.h"

#include <sys/types.h>

#define SITE_WORKER 77
#define SITE_WAIT_MS 20000
#define SITE_STREAMS 2

struct site {
    char dir[256], server_address[64], worker_address[64];
    pid_t worker;
    uint8_t version[32];
    uint64_t items;
    struct scheduler_stream
        streams[SITE_STREAMS]; /* [0] imagenet_train, shuffled; [1] imagenet_eval, sequential */
};

/* Makes pictures with `script`, starts the server. */
void site_start(struct site *site, const char *script);
/* Starts the program; log in DIR/worker.log (appended). `extra`: NULL-terminated options. */
void site_start_worker(struct site *site, const char *program, const char *const *extra);
/* Index, hold, probe, serve: until the worker reports that it serves both streams. */
void site_bring_up(struct site *site);
/* Waits for the end after `signal_number` (0: none is sent); the exit status. */
int site_end_worker(struct site *site, int signal_number);
void site_stop(struct site *site);
/* And waits until the worker has it. */
void site_set_plan(struct site *site, uint32_t version, uint64_t home);
/* The last value of a counter that the worker told; waits until it is `least`. */
double site_counter(struct site *site, const char *name, const char *labels, double least);
int site_bad_items(struct site *site); /* told so far */
int site_log_lines(const struct site *site, const char *text);

/* ---- peers ---- */

struct peer {
    int fd;
    uint64_t next_request;
    struct wire_opened opened;
    int fields_sent;
};
struct frame {
    struct wire_header header;
    uint8_t *payload; /* owned by the test: free */
};

struct peer peer_connect(const struct site *site); /* no HELLO yet */
void peer_close(struct peer *peer);
void peer_send_bytes(struct peer *peer, const void *bytes, size_t size);
void peer_send(struct peer *peer, struct wire_header header, const void *payload, size_t size);
void peer_hello(struct peer *peer, uint16_t version_min, uint16_t version_max, const char *token);
/* The next frame but WAIT and PING. False: the connection ended. Fails the test after SITE_WAIT_MS. */
bool peer_receive(struct peer *peer, struct frame *frame);
struct peer peer_greeted(const struct site *site);
/* Sends OPEN; handle = stream + 1. `fields`: NULL-terminated, NULL: all. */
void peer_open(struct peer *peer, const struct site *site, int stream, const char *const *fields);
uint64_t peer_get(struct peer *peer, int stream, uint32_t epoch, uint64_t block, uint16_t to);
/* HELLO and OPEN done, with all fields. */
/* Blocks 0 to `blocks` - 1 of epoch 0, in one segment. */
void peer_get_together(struct peer *peer, int stream, uint64_t blocks, uint16_t to);
uint32_t peer_segments(const struct peer *peer); /* with data, that have come so far */
struct peer peer_ready(const struct site *site, int stream);
/* Receives one frame and checks its type; returns it. */
struct frame peer_expect(struct peer *peer, enum wire_type type);
/* A FAIL with that code, then the end. */
void peer_expect_refusal(struct peer *peer, enum base_code code);

#endif
